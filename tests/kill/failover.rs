//! The primary dies and a standby takes its place.

use std::time::{Duration, Instant};

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Message, Statement};
use pgonce::{Ack, Claim, ClaimKind, Error, Failure, Lease, Once};
use pgonce_testkit::{Postgres, Replication, checker::Coverage};
use pgonce_tests::{Observer, TestDriver, effect, install, intent, work};

use crate::address::Address;
use crate::load::{Load, verdict};

const MINUTE: Duration = Duration::from_secs(60);

async fn primary() -> Postgres {
    let primary = Postgres::builder().start().await.unwrap();
    let database = primary.create_database("kill").await.unwrap();
    install(database.url()).await.unwrap();
    primary
}

fn once<D: TestDriver>(url: &str) -> Once<D> {
    Once::builder(D::connect(url, 8)).build().unwrap()
}

async fn lease<D: TestDriver>(once: &Once<D>, key: &str) -> Lease<D> {
    match once.lease(&intent(key), MINUTE).await.unwrap() {
        Claim::Run(lease) => lease,
        other => panic!("{key}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_to_a_synchronous_standby_loses_nothing_that_was_acknowledged() {
    for _ in 0..=crate::kills() / 50 {
        fail_over_under_load().await;
    }
}

async fn fail_over_under_load() {
    let primary = primary().await;
    let standby = primary.standby(Replication::Synchronous).await.unwrap();
    let address = Address::of(primary.port()).await;
    let url = address.url_for("kill");
    Load::define(&once::<TokioPostgres>(&url)).await;
    // A role may have said that it does not care; what pgonce acknowledges is durable all the same.
    let careless = "alter database kill set synchronous_commit = local";
    Observer::connect(&primary.url_for("kill"))
        .await
        .run(careless)
        .await;

    let mut load = Load::new();
    load.begin::<Sqlx>(&url);
    load.begin::<TokioPostgres>(&url);
    for _ in 0..5 {
        load.busy_for_a_while().await;
    }
    primary.crash().await.unwrap();
    let dead = Instant::now();
    standby.promote().await.unwrap();
    address.point_at(standby.port());
    let ready = Instant::now();
    let mut worst = Duration::ZERO;
    for clients in &mut load.clients {
        worst = worst.max(clients.back_at(dead).await.saturating_duration_since(ready));
    }
    load.busy_for_a_while().await;
    let history = load.finish().await;

    let coverage = Coverage::new()
        .require("success", 50)
        .require("duplicate", 20);
    let verdict = verdict(&history, &standby.url_for("kill"), &coverage).await;
    println!("synchronous failover: {verdict}\nback at work {worst:?} after the promotion");
    assert!(verdict.passed(), "{verdict}");
}

#[tokio::test]
async fn no_answer_comes_before_the_synchronous_standby_has_it_whatever_the_role_says() {
    let primary = primary().await;
    let standby = primary.standby(Replication::Synchronous).await.unwrap();
    let see = Observer::connect(&primary.url_for("kill")).await;
    // Only what must be durable waits from here on: these would wait too.
    see.run("set synchronous_commit = off").await;
    see.run("select pgonce._installation_epoch()").await;
    standby.fall_behind().await.unwrap();
    for setting in ["on", "local", "off"] {
        for path in ["run", "known first", "lease", "fail"] {
            let name = format!("{path} {setting}").replace(' ', "_");
            let options =
                format!("options=-c%20synchronous_commit={setting}&application_name={name}");
            let once = once::<TokioPostgres>(&format!("{}?{options}", primary.url_for("kill")));
            let request = intent(&name);
            let call = tokio::spawn(async move {
                match path {
                    "run" => drop(once.run(&request, work::<TokioPostgres>).await),
                    "known first" => drop(
                        once.run(&request.known_first(), work::<TokioPostgres>)
                            .await,
                    ),
                    "lease" => drop(once.lease(&request, MINUTE).await),
                    _ => drop(
                        once.run::<(), _, _>(&request, async |_| {
                            Err(Failure::permanent("no", "never").into())
                        })
                        .await,
                    ),
                }
            });
            let waits = format!(
                "select exists (select from pg_stat_activity where datname = current_database() and application_name = '{name}' and wait_event = 'SyncRep')"
            );
            see.wait_until(&waits).await;
            assert!(!call.is_finished(), "{name} was answered");
            call.abort();
        }
    }
}

/// To cancel that wait would make the commit visible, and every copy of its messages done.
#[tokio::test]
async fn a_statement_of_a_consumer_that_waits_for_the_synchronous_standby_is_not_cancelled() {
    let primary = primary().await;
    let standby = primary.standby(Replication::Synchronous).await.unwrap();
    let see = Observer::connect(&primary.url_for("kill")).await;
    see.run("set synchronous_commit = off; create table applied (id text); grant all on applied to public")
        .await;
    see.run("select pgonce._installation_epoch()").await;
    standby.fall_behind().await.unwrap();
    let url = format!("{}?application_name=consumer", primary.url_for("kill"));
    let inbox = once::<TokioPostgres>(&url).inbox();
    let statement = Statement::new("insert into applied select m.id from messages m").unwrap();
    let message = Message::new("evt-1", "{}");
    let (messages, limit) = ([&message], Duration::from_secs(2));
    let late = inbox
        .apply_at_once(&statement, "billing", "shop", &messages, limit)
        .await;
    assert!(late.is_err(), "{late:?}");
    let waits = "select exists (select from pg_stat_activity where application_name = 'consumer' and wait_event = 'SyncRep')";
    for _ in 0..50 {
        assert_eq!(see.text(waits).await, "t", "it was cancelled");
        assert_eq!(see.number("select count(*) from applied").await, 0);
    }
}

async fn after_an_asynchronous_failover_no_stale_fence_is_accepted<D: TestDriver>() {
    let primary = primary().await;
    let standby = primary.standby(Replication::Asynchronous).await.unwrap();
    let address = Address::of(primary.port()).await;
    let once = once::<D>(&address.url_for("kill"));
    let see = Observer::connect(&primary.url_for("kill")).await;
    let expire = "update pgonce.intent set lease_until = pgonce.now() where key like 'overtaken%'";

    // What the standby knows: leases that are alive, and some that are overtaken later.
    let acts = ["heartbeat", "write", "succeed", "fail", "release"];
    let mut alive = Vec::new();
    let mut overtaken = Vec::new();
    for act in acts {
        alive.push((act, lease(&once, &format!("alive {act}")).await));
        overtaken.push((act, lease(&once, &format!("overtaken {act}")).await));
    }
    see.run(expire).await;
    standby.wait_until_caught_up_with(&primary).await.unwrap();
    standby.fall_behind().await.unwrap();

    // What it never learns: takeovers, new leases, and an acknowledged success.
    let mut unknown = Vec::new();
    for act in acts {
        unknown.push((act, lease(&once, &format!("unknown {act}")).await));
        let taker = lease(&once, &format!("overtaken {act}")).await;
        assert_eq!(taker.kind(), ClaimKind::Takeover);
        unknown.push((act, taker));
    }
    let _ = once.run(&intent("acknowledged"), work::<D>).await.unwrap();
    let highest: i64 = unknown
        .iter()
        .map(|(_, lease)| lease.fence())
        .max()
        .unwrap();
    primary.crash().await.unwrap();
    standby.promote().await.unwrap();
    address.point_at(standby.port());
    let see = Observer::connect(&standby.url_for("kill")).await;

    let before = see.dump().await;
    for (act, lease) in overtaken.into_iter().chain(unknown) {
        let key = lease.intent().key().to_owned();
        let fence = lease.fence();
        let code = act_as(act, lease).await.expect_err(&key).code().to_owned();
        assert!(
            ["P4010", "P4011", "P4012"].contains(&&*code),
            "{act} on {key} under fence {fence}: {code}"
        );
        // In plain SQL too.
        let names = format!(
            "'orders.create', '{key}', (select fingerprint from pgonce.intent where key = 'alive fail'), {fence}"
        );
        for sql in [
            format!("select pgonce.succeed({names})"),
            format!("select pgonce.fail({names}, true, 'c', 'm')"),
        ] {
            let code = see.code(&sql).await;
            assert!(
                ["P4010", "P4011", "P4012"].contains(&&*code),
                "{sql}: {code:?}"
            );
        }
    }
    assert_eq!(see.dump().await, before);

    // Every new fence is above every old one, also those that were lost.
    for act in acts {
        for key in [format!("unknown {act}"), format!("overtaken {act}")] {
            let lease = lease(&once, &key).await;
            assert!(
                lease.fence() > highest,
                "{key}: {} after {highest}",
                lease.fence()
            );
            let mut attempt = lease.begin().await.unwrap();
            effect(&mut attempt).await.unwrap();
            let _ = attempt.succeed(Ack::status()).await.unwrap();
            assert_eq!(see.effects(&intent(&key)).await, 1);
        }
    }
    // Who held a lease that the standby knows, and still in time, goes on undisturbed.
    for (act, lease) in alive {
        act_as(act, lease).await.unwrap();
    }
    // What was acknowledged and lost happens again, once, when it is asked for again.
    assert_eq!(see.records(&intent("acknowledged")).await, 0);
    assert!(
        !once
            .run(&intent("acknowledged"), work::<D>)
            .await
            .unwrap()
            .replayed()
    );
    assert_eq!(see.effects(&intent("acknowledged")).await, 1);
}

/// The first call may meet a connection to the dead primary that nobody has noticed yet.
async fn act_as<D: TestDriver>(act: &str, mut lease: Lease<D>) -> Result<(), Error> {
    while let Err(Error::Disconnected(_)) = lease.begin().await.map(drop) {}
    match act {
        "heartbeat" => lease.heartbeat().await,
        "succeed" => lease.succeed(Ack::status()).await.map(drop),
        "fail" => lease.fail(Failure::transient("late", "too late")).await,
        "release" => lease.release().await,
        _ => {
            let mut attempt = lease.begin().await?;
            effect(&mut attempt).await?;
            attempt.succeed(Ack::status()).await.map(drop)
        }
    }
}

mod after_an_asynchronous_failover_no_stale_fence_is_accepted {
    #[tokio::test]
    async fn sqlx() {
        super::after_an_asynchronous_failover_no_stale_fence_is_accepted::<super::Sqlx>().await;
    }

    #[tokio::test]
    async fn tokio_postgres() {
        super::after_an_asynchronous_failover_no_stale_fence_is_accepted::<super::TokioPostgres>()
            .await;
    }
}
