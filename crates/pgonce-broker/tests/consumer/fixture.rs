//! A database with a witness that nothing but pgonce keeps from seeing an effect twice, and consumers over it.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Contract, Inbox, Message, Tx};
use pgonce::{Once, Result};
use pgonce_broker::sources::{Channel, ChannelSource};
use pgonce_broker::{Consumer, Handler, Source};
use pgonce_tests::{TestDriver as _, World};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) type Db = TokioPostgres;

/// What the handler does with a message beside its effect, by its id.
type Script = Arc<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// Leaves one row for each time it is called; fails as scripted, after that.
#[derive(Clone, Default)]
pub(crate) struct Witness {
    consumer: String,
    script: Arc<Mutex<Option<Script>>>,
}

impl Witness {
    pub(crate) fn of(consumer: &str) -> Self {
        Self {
            consumer: consumer.to_owned(),
            script: Arc::default(),
        }
    }

    pub(crate) fn script(&self, script: impl Fn(&str) -> Result<()> + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Some(Arc::new(script));
    }

    pub(crate) fn heal(&self) {
        *self.script.lock().unwrap() = None;
    }
}

impl Handler<Db> for Witness {
    async fn apply(&self, mut tx: Tx<Db>, message: Arc<Message>) -> Result<()> {
        let sql = "insert into seen (consumer, id, key) values ($1, $2, $3)";
        let row: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&self.consumer, &message.id, &message.key];
        tx.conn().execute(sql, &row).await?;
        let script = self.script.lock().unwrap().clone();
        script.map_or(Ok(()), |script| script(&message.id))
    }
}

/// A consumer that runs.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Running {
    pub(crate) fn start<D: Driver, S: Source, H: Handler<D>>(consumer: Consumer<D, S, H>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(consumer.run(stop.clone()));
        Self { stop, task }
    }

    /// Asks it to stop and waits until it has.
    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.task.await.unwrap()
    }

    /// As if its process were killed: nothing is finished, nothing given back.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ended(self) -> Result<()> {
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .unwrap()
            .unwrap()
    }
}

/// A database of a test's own.
pub(crate) struct Fixture {
    pub(crate) world: World<Db>,
    pub(crate) inbox: Inbox<Db>,
    pub(crate) shop: Channel,
    pub(crate) witness: Witness,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let world = World::<Db>::new().await;
        let seen = "create table seen (n bigint generated always as identity, consumer text, id text, key text)";
        world.see.run(seen).await;
        let inbox = world.once.inbox();
        let short = Duration::from_millis(10);
        let contract = Contract::default()
            .max_attempts(3)
            .backoff(short, short * 4);
        inbox.define("c", &contract).await.unwrap();
        Self {
            inbox,
            world,
            shop: Channel::new("shop"),
            witness: Witness::of("c"),
        }
    }

    /// Another set of connections, as another process has.
    pub(crate) fn once(&self) -> Once<Db> {
        Once::tokio_postgres(TokioPostgres::connect(&self.world.url(), 6).pool().clone())
    }

    /// The consumer `c` over the shop.
    pub(crate) fn consumer(&self) -> Consumer<Db, ChannelSource, Witness> {
        let consumer = Consumer::new(&self.once(), "c", self.shop.source(), self.witness.clone());
        quick(consumer)
    }

    pub(crate) fn run(&self) -> Running {
        Running::start(self.consumer())
    }

    /// Sends messages `m1` … spread over keys by their remainder.
    pub(crate) fn send(&self, from: u64, to: u64, keys: u64) {
        for n in from..=to {
            self.shop.send(message(n, keys));
        }
    }

    /// Waits until this many messages were applied, and checks that each was applied once.
    pub(crate) async fn wait_for(&self, count: u64) {
        let there = format!("select count(distinct id) >= {count} from seen where consumer = 'c'");
        self.world.see.wait_until(&there).await;
        self.check().await;
    }

    /// Waits until the source got every acknowledgement.
    pub(crate) async fn wait_for_acks(&self, count: u64) {
        self.wait(&format!("{count} acknowledgements"), || async {
            self.shop.acked() >= count
        })
        .await;
    }

    pub(crate) async fn wait<F, Fut>(&self, what: &str, is: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = bool>,
    {
        pgonce_testkit::wait_until(what.to_owned(), DEADLINE, is)
            .await
            .unwrap();
    }

    /// Nothing was applied twice, and no key was turned round.
    pub(crate) async fn check(&self) {
        let twice = "select coalesce(string_agg(id || ' ' || n, ', '), 'none') from \
             (select consumer, id, count(*) n from seen group by 1, 2 having count(*) > 1) d";
        assert_eq!(self.world.see.text(twice).await, "none", "applied twice");
        let turned = "select count(*) from (select substr(id, 2)::bigint as sent, lag(substr(id, 2)::bigint) \
             over (partition by consumer, key order by n) as before from seen where key is not null) o where sent < before";
        assert_eq!(self.world.see.number(turned).await, 0, "turned round");
    }
}

pub(crate) fn quick<D: Driver, S: Source, H: Handler<D>>(
    consumer: Consumer<D, S, H>,
) -> Consumer<D, S, H> {
    let pause = Duration::from_millis(5);
    consumer.backoff(pause, pause * 20).poll_stored(pause)
}

pub(crate) fn message(n: u64, keys: u64) -> Message {
    Message::new(format!("m{n}"), format!("{{\"n\": {n}}}")).key(format!("k{}", n % keys))
}
