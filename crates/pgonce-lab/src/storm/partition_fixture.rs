//! The path that drops partitions, in a schema of its own whose partitions are tiny: elsewhere other
//! trials' consumers hold the log.

use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::outbox::{LaneLease, Outbox};
use pgonce::retry::Policy;
use pgonce_broker::Sink as _;
use pgonce_testkit::{CuttingProxy, Trial};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::NoTls;

use super::Result;
use super::attempt::ask;
use super::driver_ext::DriverExt;
use super::fixture::connect;
use super::relay::{Post, as_held, go_on, holds};
use super::trial::{STUCK, WINDOW, see_it_end};

const SCHEMA: &str = "storm_partitions";
const CONSUMER: &str = "partitions";
const LEASE: Duration = Duration::from_secs(2);

/// Eight events to a partition, dropped as soon as everybody is past them.
const TINY: &str = "
drop table storm_partitions.outbox_1, storm_partitions.outbox_1000001;
delete from storm_partitions.outbox_partition;
create table storm_partitions.outbox_1 partition of storm_partitions.outbox for values from (1) to (9);
insert into storm_partitions.outbox_partition values (1, 9);
update storm_partitions.outbox_state set partition_rows = 8, keep = '0';
select storm_partitions._create_outbox_partitions();
select storm_partitions.create_subscription('partitions');
";

/// Makes the schema, for the template.
pub(super) async fn lay_out(url: &str) -> Result<()> {
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
        .max_size(1)
        .build()?;
    Migrator::new(TokioPostgres::new(pool))
        .schema(SCHEMA)
        .up()
        .await?;
    Ok(connect(url).await?.batch_execute(TINY).await?)
}

/// Where partitions are dropped, one trial at a time.
#[derive(Debug)]
pub(super) struct PartitionFixture<D: DriverExt> {
    calm: Once<D>,
    turn: tokio::sync::Mutex<()>,
}

impl<D: DriverExt> PartitionFixture<D> {
    pub(super) fn of(driver: D) -> Result<Self> {
        let calm = Once::builder(driver)
            .schema(SCHEMA)
            .retry(Policy::none())
            .build()?;
        let turn = tokio::sync::Mutex::default();
        Ok(Self { calm, turn })
    }

    pub(super) async fn walk(
        &self,
        post: &Post<'_, D>,
        proxy: &CuttingProxy,
        trial: &Trial,
    ) -> Result<()> {
        let _turn = self.turn.lock().await;
        let subject = format!("{}-a", post.key);
        for n in 1..=9 {
            post.publish(SCHEMA, n, &subject).await?;
        }
        self.read_past(post, 9).await?;
        // These must stay, whatever is dropped.
        for n in 10..=12 {
            post.publish(SCHEMA, n, &subject).await?;
        }
        let before = self.oldest().await?;

        proxy.start_over();
        proxy.arm_trial(trial);
        let first = post
            .fixture
            .through_to(proxy, Policy::default().tries(1), SCHEMA)?;
        let (over, mut first_is_over) = watch::channel(false);
        let first_client = async {
            let tended = timeout(STUCK, first.outbox().maintain()).await;
            if proxy.fired().is_none() || holds(trial) {
                see_it_end(&first).await;
            }
            proxy.disarm();
            // The receiver may have finished already.
            let _ = over.send(true);
            tended
        };
        let second = async {
            if !holds(trial) {
                return Ok(());
            }
            tokio::select! {
                _ = first_is_over.wait_for(|over| *over) => return Ok(()),
                _ = proxy.held() => {}
            }
            post.fixture.history.saw("second relay between");
            // It leaves to the next what it would have to wait for.
            let mut second = std::pin::pin!(async { self.calm.outbox().maintain().await });
            let early = timeout(WINDOW, &mut second).await;
            proxy.release();
            match early {
                Ok(tended) => tended,
                Err(_) => second.await,
            }
        };
        let (tended, second) = tokio::join!(first_client, second);
        let _ = tended.map_err(|_| format!("the first had no answer within {STUCK:?}"))?;
        second?;

        let until = Instant::now() + STUCK;
        while self.oldest().await? == before {
            self.calm.outbox().maintain().await?;
            if Instant::now() >= until {
                return Err("the partition that everybody is past is never dropped".into());
            }
            sleep(Duration::from_millis(5)).await;
        }
        post.fixture.history.saw("partition dropped");
        self.read_past(post, 12).await
    }

    async fn oldest(&self) -> Result<Option<String>> {
        let sql = "select min(from_seq)::text from storm_partitions.outbox_partition";
        Ok(ask(&self.calm, sql, &[]).await?)
    }

    /// Delivers what is there until so many have come and the log knows that they are over.
    async fn read_past(&self, post: &Post<'_, D>, expected: usize) -> Result<()> {
        let outbox = self.calm.outbox();
        let until = Instant::now() + STUCK;
        ask(
            &self.calm,
            "select storm_partitions._record_watermark(1)::text",
            &[],
        )
        .await?;
        let over = "select bool_and((c.cursor).floor >= m.seq)::text from storm_partitions.outbox_cursor c, \
             (select max(seq) as seq from storm_partitions.outbox_watermark) m";
        while post.mailbox.different() < expected
            || ask(&self.calm, over, &[]).await?.as_deref() != Some("true")
        {
            self.read_once(&outbox, post).await?;
            if Instant::now() >= until {
                let there = post.mailbox.different();
                return Err(format!("{there} of {expected} events came within {STUCK:?}").into());
            }
        }
        Ok(())
    }

    async fn read_once(&self, outbox: &Outbox<D>, post: &Post<'_, D>) -> Result<()> {
        let lanes = outbox.claim_lanes(CONSUMER, "calm", LEASE).await?;
        let mut held: Vec<LaneLease> = lanes.into_iter().map(as_held).collect();
        let page = outbox.read(CONSUMER, &held, 1000, 1 << 20).await?;
        for message in &page.messages {
            post.mailbox.send(message).await;
        }
        go_on(&mut held, &page.cursors);
        outbox.advance(CONSUMER, &held, true).await?;
        Ok(outbox.leave(CONSUMER, "calm").await?)
    }
}
