//! The path that makes no attempts: an installation that is cut at every message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use pgonce::migrate::Migrator;
use pgonce_testkit::{Action, CuttingProxy, FaultPlan, Trial};
use tokio::time::timeout;
use tokio_postgres::Client;

use super::config::{Config, Isolation, Pooler};
use super::driver_ext::DriverExt;
use super::fixture::{Fixture, connect};
use super::path::Path;
use super::screen::Screen;
use super::trial::Trialed;
use super::{Plan, Result, campaign};

const STUCK: Duration = Duration::from_secs(60);
/// How long a second migrator has the field for itself.
const WINDOW: Duration = Duration::from_millis(50);
/// In a short storm, and in every one for the actions that end alike, one message in so many.
const SOME: usize = 6;

/// Everything in a schema, without its name; but for the outbox's partitions, which come and go.
const CATALOG: &str = "
select md5(string_agg(replace(what, $1 || '.', ''), E'\\n' order by replace(what, $1 || '.', ''))) from (
    select pg_get_functiondef(p.oid) as what from pg_proc p
     where p.pronamespace = $1::text::regnamespace
    union all
    select format('%s.%s %s %s', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull)
      from pg_class c join pg_attribute a on a.attrelid = c.oid
     where c.relnamespace = $1::text::regnamespace and a.attnum > 0 and c.relname !~ '^outbox_[0-9]'
    union all
    select format('%s %s', conrelid::regclass, pg_get_constraintdef(oid)) from pg_constraint
     where connamespace = $1::text::regnamespace and conrelid::regclass::text !~ 'outbox_[0-9]'
    union all
    select pg_get_triggerdef(t.oid) from pg_trigger t join pg_class c on c.oid = t.tgrelid
     where c.relnamespace = $1::text::regnamespace and not t.tgisinternal
) as everything";

/// All trials of the path; none where it would only repeat what another configuration shows.
pub(super) async fn trials<D: DriverExt>(fixture: &Fixture<D>, plan: &Plan) -> Result<Vec<Trial>> {
    let here = |config: &Config| {
        config.isolation == Isolation::ReadCommitted && config.pooler == Pooler::Direct
    };
    if !plan.includes(Path::Migrate) || !here(&fixture.config) {
        return Ok(Vec::new());
    }
    if let Some(trial) = &plan.fault {
        return Ok(vec![trial.clone()]);
    }
    let proxy = fixture.proxy()?;
    let schema = "storm_dry";
    migrator(fixture, &proxy, schema)?.up().await?;
    let messages = proxy.transcript();
    let client = connect(&fixture.database.url()).await?;
    expect_complete(fixture, &client, schema).await?;
    let mut trials = FaultPlan::every(&messages, plan.actions()).trials;
    if plan.quick || plan.sample.is_some() {
        trials = trials.into_iter().step_by(SOME).collect();
    }
    trials.truncate(plan.sample.map_or(usize::MAX, |sample| sample / 20));
    Ok(trials)
}

pub(super) async fn storm<D: DriverExt>(
    fixture: &Arc<Fixture<D>>,
    trials: Vec<Trial>,
    plan: &Plan,
    screen: &Arc<Screen>,
) -> Result<Vec<Trialed>> {
    if trials.is_empty() {
        return Ok(Vec::new());
    }
    let (trials, next) = (Arc::new(trials), Arc::new(AtomicUsize::new(0)));
    campaign::run_clients(fixture, plan, move |fixture, proxy, _| {
        let (trials, next, screen) = (Arc::clone(&trials), Arc::clone(&next), Arc::clone(screen));
        async move {
            let mut done = Vec::new();
            loop {
                let number = next.fetch_add(1, Relaxed);
                let Some(trial) = trials.get(number) else {
                    break;
                };
                let schema = format!("storm_{number}");
                let walked = walk(&fixture, &proxy, &schema, trial).await;
                done.push(Trialed {
                    path: Path::Migrate,
                    trial: trial.clone(),
                    key: schema,
                    fired: proxy.all_fired().len(),
                    repeated: false,
                    stuck: walked.err().map(|error| error.to_string()),
                });
                screen.step();
            }
            done
        }
    })
    .await
}

async fn walk<D: DriverExt>(
    fixture: &Fixture<D>,
    proxy: &CuttingProxy,
    schema: &str,
    trial: &Trial,
) -> Result<()> {
    proxy.start_over();
    proxy.arm_trial(trial);
    let calm = Migrator::new(fixture.calm.driver().clone()).schema(schema);
    let first = migrator(fixture, proxy, schema)?;
    let holds = trial
        .faults
        .iter()
        .any(|fault| fault.action == Action::SecondClientBetween);
    let first = async {
        // Cut off, it fails; the next one must go on from there.
        let up = timeout(STUCK, first.up()).await;
        proxy.disarm();
        up.is_ok()
    };
    let second = async {
        if !holds || timeout(Duration::from_secs(2), proxy.held()).await.is_err() {
            return Ok(());
        }
        let mut second = std::pin::pin!(calm.up());
        let early = timeout(WINDOW, &mut second).await;
        proxy.release();
        match early {
            Ok(up) => up.map(drop),
            Err(_) => second.await.map(drop),
        }
    };
    let (ended, second) = tokio::join!(first, second);
    if !ended {
        return Err(format!("the first migrator had no answer within {STUCK:?}").into());
    }
    second?;
    timeout(STUCK, calm.up())
        .await
        .map_err(|_| "the second `up` did not end")??;
    let client = connect(&fixture.database.url()).await?;
    expect_complete(fixture, &client, schema).await?;
    Ok(client
        .batch_execute(&format!("drop schema {schema} cascade"))
        .await?)
}

fn migrator<D: DriverExt>(
    fixture: &Fixture<D>,
    proxy: &CuttingProxy,
    schema: &str,
) -> Result<Migrator<D>> {
    let driver = D::connect(&proxy.url_for(fixture.database.name()), 1, false)?;
    Ok(Migrator::new(driver).schema(schema))
}

/// The schema is what an undisturbed installation made.
async fn expect_complete<D: DriverExt>(
    fixture: &Fixture<D>,
    client: &Client,
    schema: &str,
) -> Result<()> {
    Migrator::new(fixture.calm.driver().clone())
        .schema(schema)
        .check()
        .await?;
    let mut sums = Vec::new();
    for name in ["pgonce", schema] {
        let row = client.query_one(CATALOG, &[&name]).await?;
        sums.push(row.try_get::<_, Option<String>>(0)?);
    }
    if sums[0] != sums[1] || sums[0].is_none() {
        return Err(
            format!("schema {schema} is not what an undisturbed installation makes").into(),
        );
    }
    Ok(())
}
