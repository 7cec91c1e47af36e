//! Nothing outside pg_catalog and our own schema ever runs, whatever the caller's search_path. A schema that comes first
//! in it holds a twin of every operator, function and type that a statement could name; each raises.

use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::Message;
use pgonce::ledger::{Account, Group, Side};
use pgonce::migrate::{Migrator, Part, public_headers};
use pgonce::outbox::{Begin, Subscription};
use pgonce::queue::{NewJob, Queue};
use pgonce::scope::Contract;
use pgonce::transition::{Command, Rule};
use pgonce::{Ack, Attempt, Claim, Event, Failure, Intent, Once};
use pgonce_testkit::{Binaries, Database, Postgres, shared};
use pgonce_tests::{Observer, TestDriver, install, run_example};
use serde_json::{Value, json};
use tokio_postgres::NoTls;

use crate::campaign::{Campaign, in_time};

/// In the first pg_catalog is found last; in the second, as usual, first, and a twin wins only where it fits better.
const PATHS: &[&str] = &["evil, pg_catalog", "evil, public"];

/// What a stranger's code raises.
const CAUGHT: &str = "HIJAK";

/// The installed major versions.
pub(crate) fn majors() -> Vec<Option<u32>> {
    let mut majors = vec![None];
    for major in 14..=18 {
        if Binaries::of_major(major).is_ok() {
            majors.push(Some(major));
        }
    }
    majors
}

async fn hostile(server: &'static Postgres) -> Database {
    let setup = |url: String| async move {
        install(url.clone()).await?;
        Observer::connect(&url)
            .await
            .run(include_str!("twins.sql"))
            .await;
        Ok::<(), pgonce::Error>(())
    };
    server.template("hostile", setup).await.unwrap();
    server.database_from("hostile").await.unwrap()
}

/// Makes every session of the database find strangers first.
async fn take_over(database: &Database, path: &str) {
    let see = Observer::connect(&database.url()).await;
    let name = database.name();
    see.run(&format!("alter database {name} set search_path = {path}"))
        .await;
}

#[tokio::test]
async fn the_twins_catch_what_is_not_qualified() {
    let database = hostile(shared(None).await.unwrap()).await;
    take_over(&database, PATHS[0]).await;
    let see = Observer::connect(&database.url()).await;
    for unsafe_text in [
        "select 1::bigint % 2",
        "select 3 || 'x'::pg_catalog.text",
        "select cardinality('{a}'::pg_catalog.text[])",
        "select 'a'::text",
        "select format('%s', 1)",
        "select 2 in (1, 2)",
        "select 1 between 0 and 2",
        "select nullif(1, 2)",
        "select array_agg(n) from pg_catalog.generate_series(1, 2) n",
    ] {
        assert_eq!(see.code(unsafe_text).await, CAUGHT, "{unsafe_text}");
    }
    see.run("select pg_catalog.upper('a') operator(pg_catalog.=) 'A'")
        .await;
}

#[tokio::test]
async fn every_public_function_and_view_runs_no_strangers_code() {
    for major in majors() {
        let server = shared(major).await.unwrap();
        let database = hostile(server).await;
        for path in PATHS {
            let (client, connection) = tokio_postgres::connect(&database.url(), NoTls)
                .await
                .unwrap();
            tokio::spawn(connection);
            client
                .batch_execute(&format!("set search_path = {path}"))
                .await
                .unwrap();
            for header in public_headers() {
                // What the example itself says is the caller's own; only its types need their schema here.
                let example = header.section("example").unwrap();
                let example = example
                    .replace("p_into regclass", "p_into pg_catalog.regclass")
                    .replace(" text primary key", " pg_catalog.text primary key")
                    .replace(" text,", " pg_catalog.text,")
                    .replace(" date)", " pg_catalog.date)");
                if let Err(error) = run_example(&client, &example).await {
                    panic!("{path}, {major:?}, {}: {error:?}", header.name);
                }
            }
        }
    }
}

/// Where pg_catalog is found first, as usual: the callers' own statements need it.
#[tokio::test]
async fn random_operations_run_no_strangers_code() {
    in_time(async {
        let database = hostile(shared(None).await.unwrap()).await;
        let url = database.url();
        let campaign = Campaign::new(&url, &url).await;
        take_over(&database, PATHS[1]).await;
        campaign.work().await;
        campaign.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_migration_runs_no_strangers_code() {
    for path in PATHS {
        let server = shared(None).await.unwrap();
        let database = hostile(server).await;
        take_over(&database, path).await;
        let see = Observer::connect(&database.url()).await;
        see.run("create schema other").await;
        see.run("create role somebody_hostile").await;
        let migrator = Migrator::new(TokioPostgres::connect(&database.url(), 1)).schema("other");
        migrator.up().await.unwrap();
        for part in Part::ALL {
            migrator.grant(part, "somebody_hostile").await.unwrap();
        }
        migrator.check().await.unwrap();
        see.run("drop owned by somebody_hostile; drop role somebody_hostile")
            .await;
    }
}

/// Everything that an application does over the SDK; none of its own statements.
async fn drive<D: TestDriver>(url: &str) -> pgonce::Result<()> {
    let minute = Duration::from_secs(60);
    let once = Once::builder(D::connect(url, 4)).build()?;
    let contract = Contract::keep(Duration::from_secs(86_400));
    once.define_scope("hostile", &contract).await?;
    let subscription = Subscription::new(D::NAME)
        .topics(["t*"])
        .begin(Begin::Start);
    once.outbox().create_subscription(&subscription).await?;
    once.define_transition(&Rule::new("hostile", "", "open").topic("t"))
        .await?;
    let _ = once.fire_timers(10).await?;
    for key in ["first", "first", "second"] {
        let intent = Intent::new("hostile", format!("{} {key}", D::NAME), &key)?;
        let run = once.run(&intent, async |mut attempt: Attempt<D>| {
            attempt.try_lock("name").await?;
            attempt.lock("name", minute).await?;
            let event = Event::new("t", "created").subject(key).payload(&key)?;
            attempt.publish(event).await?;
            attempt
                .accept("c", "s", &Message::new(key, Vec::new()))
                .await?;
            let open = Command::new(
                "hostile",
                format!("{} {key}", D::NAME),
                "open",
                format!("{} {key}", D::NAME),
            );
            let _ = attempt.transition(&open).await?;
            let name = format!("{} {key}", D::NAME);
            attempt
                .set_timer("hostile", &name, "sla", "late", minute)
                .await?;
            for n in 0..3 {
                let job = NewJob::new("hostile")
                    .payload(&n)?
                    .key("k")
                    .group("hostile");
                let _ = attempt.enqueue(&job).await?;
            }
            let mut ledger = attempt.ledger();
            for name in ["a", "b"] {
                ledger.open(&Account::new(name, "EUR", Side::Debit)).await?;
            }
            let name = format!("{} {key}", D::NAME);
            let hold = Group::new("hostile", &*name).debit("a", 5).credit("b", 5);
            let _ = ledger.post(&hold.pending(1)).await?;
            ledger.settle("hostile", &name, 1).await?;
            let undo = Group::new("hostile", format!("undo {name}"));
            let _ = ledger.reverse(&undo, "hostile", &name).await?;
            ledger.balance("a").await?;
            ledger.balance_at("a", std::time::SystemTime::now()).await?;
            let now = std::time::SystemTime::now();
            ledger.statement("a", now - minute, now).await?;
            let row = json!({"customer": key, "reference": D::NAME, "item": "book"});
            let row = attempt.insert_or_fetch::<Value>("public.one_order_per_reference", &row);
            let row = row.await?.into_inner();
            attempt.succeed(Ack::value(&row["id"])?).await
        });
        let _ = run.await?;
        let _ = once.answer(&intent).await?;
    }
    let intent = Intent::new("hostile", format!("{} leased", D::NAME), &1)?;
    let Claim::Run(mut lease) = once.lease(&intent, minute).await? else {
        panic!("fresh")
    };
    lease.heartbeat().await?;
    lease.begin().await?.abandon().await?;
    let _ = lease.succeed(Ack::value(&1)?).await?;
    let intent = Intent::new("hostile", format!("{} fails", D::NAME), &1)?;
    let Claim::Run(attempt) = once.claim(&intent).await? else {
        panic!("fresh")
    };
    attempt.fail(Failure::permanent("no", "never")).await?;
    once.define_queue(&Queue::new("hostile").max_running(50).rate(1000, minute))
        .await?;
    let nightly = NewJob::new("hostile").payload(&1)?;
    once.define_schedule("hostile", Some("0 3 * * *"), "UTC", &nightly)
        .await?;
    for job in once.claim_jobs(&["hostile"], "w", minute, 10).await? {
        job.progress(&1).await?;
        let _ = job.transact(async |_| Ok(1)).await?;
        once.job("", job.id()).await?;
        once.cancel_job("", job.id(), "late").await?;
    }
    once.retry_jobs("hostile", None, "no reason").await?;
    once.job_group("", "hostile").await?;
    once.flush().await?;
    let _ = once.purge(10).await?;
    let _ = once.stuck(10).await?;
    let outbox = once.outbox();
    let goal = outbox.goal().await?;
    let _ = outbox.caught_up(D::NAME, &goal).await?;
    let _ = outbox.backlog().await?;
    let _ = outbox.dead_letters(D::NAME, 10).await?;
    let _ = outbox.redrive(D::NAME, None).await?;
    let inbox = once.inbox();
    inbox.maintain().await?;
    let _ = inbox.backlog().await?;
    let _ = inbox.poison("c", 10).await?;
    let _ = outbox.drop_subscription(D::NAME).await?;
    Ok(())
}

#[tokio::test]
async fn the_sdk_runs_no_strangers_code_over_either_driver() {
    for path in PATHS {
        let database = hostile(shared(None).await.unwrap()).await;
        take_over(&database, path).await;
        let url = database.url();
        if let Err(error) = drive::<TokioPostgres>(&url).await {
            panic!("tokio-postgres, {path}: {error:?}");
        }
        if let Err(error) = drive::<Sqlx>(&url).await {
            panic!("sqlx, {path}: {error:?}");
        }
    }
}
