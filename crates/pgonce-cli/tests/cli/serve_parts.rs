//! The parts of `pgonce serve`: each waits for the database by itself, and shows it.

use pgonce_testkit::wait_until;
use rustix::process::Signal;

use crate::fixture::Fixture;
use crate::serve::{DEADLINE, Serving};

/// A pause of an hour is over when the settings are read again.
#[tokio::test]
async fn a_hangup_wakes_who_waits() {
    let fixture = Fixture::installed().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pgonce.toml");
    let write =
        |every: &str| std::fs::write(&file, format!("purge_every = \"{every}\"\n")).unwrap();
    write("1h");
    let flags = [
        "--config",
        file.to_str().unwrap(),
        "--roles",
        "retention,metrics",
    ];
    let serving = Serving::of(&fixture, &flags, "");
    let swept = async || {
        serving
            .text("/metrics", "")
            .await
            .contains("pgonce_purge_last_success")
    };
    wait_until("the first purge", DEADLINE, swept)
        .await
        .unwrap();
    fixture
        .sql(
            "select pgonce.define_scope('s', '1 second'); begin; select pgonce.claim('s', 'k', '\\x01'); \
             select pgonce.succeed('s', 'k', '\\x01', 1); commit; select pgonce._move_clock('1 hour')",
        )
        .await;
    write("2h");
    serving.signal(Signal::HUP);
    let gone = async || {
        let query = "select count(*) from pgonce.intent";
        let row = fixture.client.query_one(query, &[]).await.unwrap();
        row.get::<_, i64>(0) == 0
    };
    wait_until("the purge after the reload", DEADLINE, gone)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_database_that_is_away_at_the_start_is_waited_for_by_every_part() {
    let fixture = Fixture::installed().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    fixture
        .sql(
            "create table received (n bigint); select pgonce.create_subscription('c'); \
             create function apply(p_message jsonb) returns void language sql as \
             'insert into received values ((p_message -> ''payload'' ->> ''n'')::bigint)'; \
             create function do_job(p_job jsonb) returns void language sql as 'insert into received values (8)'; \
             select pgonce.enqueue('q')",
        )
        .await;
    let relay = path(
        "relay.toml",
        "[[relays]]\nsubscription = \"b\"\nsink = \"stdout:\"\n[relays.create]\n",
    );
    let consumers = path(
        "consume.toml",
        "[[consumers]]\nconsumer = \"c\"\nsource = \"outbox:c\"\nsql = \"apply\"\n",
    );
    let gateway = path(
        "gateway.toml",
        "[listen]\naddress = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[upstreams.shop]\nurl = \"http://127.0.0.1:1\"\n\
         [[routes]]\npath = \"/{*rest}\"\nupstream = \"shop\"\n",
    );
    let workers = path(
        "work.toml",
        "[[workers]]\nqueues = [\"q\"]\nsql = \"do_job\"\n",
    );
    let flags = [
        "--roles",
        "relay,consumers,workers,gateway",
        "--workers-file",
        &workers,
        "--relay-file",
        &relay,
        "--consumers-file",
        &consumers,
        "--gateway-file",
        &gateway,
    ];
    fixture
        .sql("select pgonce.publish('t', 'counted', 's', '{\"n\": 7}')")
        .await;
    // The server answers, and refuses: there is no such role yet.
    let role = format!("late_{}", uuid::Uuid::new_v4().simple());
    let url = fixture.database.url();
    let (_, rest) = url.split_once('@').unwrap();
    let usual = ["serve", "--format", "json", "--listen", "127.0.0.1:0"];
    let mut command = fixture.command(&[&usual[..], &flags[..]].concat());
    command.env("DATABASE_URL", format!("postgres://{role}@{rest}"));
    let serving = Serving::start(command);
    for part in [
        "the next try of relay",
        "the next try of consumers",
        "the next try of workers",
        "the next try of gateway",
    ] {
        serving.readiness(503, part).await;
    }
    fixture
        .sql(&format!("create role {role} login superuser"))
        .await;
    serving.readiness(200, "ready").await;
    serving.logged("the gateway listens").await;
    let applied = async || {
        let row = fixture
            .client
            .query_one("select count(*) from received", &[])
            .await
            .unwrap();
        row.get::<_, i64>(0) == 2
    };
    wait_until("the consumer and the worker", DEADLINE, applied)
        .await
        .unwrap();
    drop(serving);
    fixture.sql(&format!("drop role {role}")).await;
}

#[tokio::test]
async fn what_a_file_says_of_what_the_daemon_has_itself_is_refused_or_logged() {
    let fixture = Fixture::installed().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relay.toml");
    let write = |settings: &str| {
        let relay = "[[relays]]\nsubscription = \"b\"\nsink = \"stdout:\"\n[relays.create]\n";
        std::fs::write(&file, format!("{settings}{relay}")).unwrap();
    };
    let file = file.to_str().unwrap();
    let flags = ["--roles", "relay", "--relay-file", file];
    let flags = [&flags[..], &["--drain-timeout", "10s"]].concat();
    write("database.schema = \"other\"\n");
    let run = fixture.run(&[&["serve"], &flags[..]].concat());
    assert!(
        run.code == 2 && run.err.contains("database.schema is not \"pgonce\""),
        "{run:?}"
    );
    write("database.url_env = \"ELSEWHERE\"\nlisten.address = \"127.0.0.1:1\"\n");
    let serving = Serving::of(&fixture, &flags, "");
    for line in ["\"database.url_env\"", "\"listen\"", "is not shorter"] {
        serving.logged(line).await;
    }
    serving.readiness(200, "ready").await;
}

/// As the page about the daemon says: a role with the parts operator and app.
#[tokio::test]
async fn a_granted_role_is_enough_for_the_daemon() {
    let fixture = Fixture::installed().await;
    let role = format!("ops_{}", uuid::Uuid::new_v4().simple());
    fixture.sql(&format!("create role {role} login")).await;
    fixture.ok(&[
        "migrate",
        "up",
        "--grant",
        &format!("operator={role}"),
        "--grant",
        &format!("app={role}"),
    ]);
    let url = fixture.database.url();
    let (_, rest) = url.split_once('@').unwrap();
    let usual = [
        "serve",
        "--format",
        "json",
        "--listen",
        "127.0.0.1:0",
        "--purge-every",
        "50ms",
    ];
    let mut command = fixture.command(&usual);
    command.env("DATABASE_URL", format!("postgres://{role}@{rest}"));
    let serving = Serving::start(command);
    let swept = async || {
        serving
            .text("/metrics", "")
            .await
            .contains("pgonce_purge_last_success")
    };
    wait_until("a purge", DEADLINE, swept).await.unwrap();
    serving.readiness(200, "ready").await;
    for page in [
        "/",
        "/find?q=x",
        "/intents",
        "/outbox",
        "/inbox",
        "/ledger",
        "/scopes",
        "/audit",
    ] {
        serving.text(page, "").await;
    }
    // One beside a purge of the daemon waits for its turn.
    assert_eq!(
        serving
            .act("purge", "", &serde_json::json!({}))
            .await
            .status(),
        200
    );
    let audit = serving.text("/api/v1/audit", "").await;
    assert!(
        audit.contains("\"act\":\"purge\"") && audit.contains("\"who\":\"local ("),
        "{audit}"
    );
    let log = serving.log.lock().unwrap().clone();
    assert!(
        !log.contains("permission denied") && !log.contains("tried again"),
        "{log}"
    );
    drop(serving);
    fixture
        .sql(&format!("drop owned by {role}; drop role {role}"))
        .await;
}

#[tokio::test]
async fn what_health_asks_is_cancelled_and_errors_of_tasks_are_shown() {
    let fixture = Fixture::installed().await;
    let serving = Serving::of(&fixture, &["--roles", "metrics,timers"], "");
    serving.readiness(200, "ready").await;
    fixture
        .sql("begin; lock table pgonce.migration, pgonce.outbox_subscription in access exclusive mode")
        .await;
    assert_eq!(serving.get("/readyz", "").await.status(), 503);
    assert!(
        serving
            .text("/metrics", "")
            .await
            .contains("pgonce_database_up 0")
    );
    // The lock is still held: only a cancelled query waits no longer.
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let cancelled = async || {
        let row = fixture.client.query_one(waiting, &[]).await.unwrap();
        row.get::<_, i64>(0) == 0
    };
    wait_until("no query that waits", DEADLINE, cancelled)
        .await
        .unwrap();
    fixture.sql("rollback").await;
    serving.readiness(200, "ready").await;
    fixture
        .sql("alter function pgonce._due_timers rename to _due_timers_gone")
        .await;
    serving.readiness(503, "the next try of timers").await;
    fixture
        .sql("alter function pgonce._due_timers_gone rename to _due_timers")
        .await;
    serving.readiness(200, "ready").await;
}

#[tokio::test]
async fn metrics_show_calls_without_a_known_outcome_and_stuck_intents() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "select pgonce.define_provider('bank', p_deadline => '0'); \
             select pgonce.external_send('pay', k, c.fence, 'charge', p, '\\x01') \
               from (values ('k-1', 'bank'), ('k-2', 'bank'), ('k-3', 'post')) v (k, p) \
              cross join lateral pgonce.claim('pay', k, '\\x01', '1 hour') c; \
             update pgonce.intent set lease_until = pgonce.now() - interval '1 second' where key = 'k-1'",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "metrics"], "");
    let text = serving.text("/metrics", "").await;
    for line in [
        "pgonce_external_calls{provider=\"bank\",status=\"needs_operator\"} 2",
        "pgonce_external_calls{provider=\"bank\",status=\"sent\"} 0",
        "pgonce_external_calls{provider=\"post\",status=\"sent\"} 1",
        "pgonce_stuck_intents{classification=\"safe_to_retry\"} 1",
        "pgonce_stuck_intents{classification=\"needs_probe\"} 0",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("pgonce_external_oldest_age_seconds{provider=\"post\"}"));
}

/// Vanished work is decided while the daemon runs, and counted.
#[tokio::test]
async fn the_role_recovery_decides_about_vanished_work() {
    let fixture = Fixture::installed().await;
    let flags = ["--roles", "recovery,metrics", "--recovery-every", "50ms"];
    let serving = Serving::of(&fixture, &flags, "");
    fixture
        .sql(
            "select pgonce.define_scope('pay', '1 day', p_stale => 'refuse'); \
             select pgonce.claim('pay', 'k', '\\x01', '1 minute'); \
             update pgonce.intent set lease_until = pgonce.now() - interval '1 second'",
        )
        .await;
    let decided = async || {
        let query = "select status || ' ' || failure_code from pgonce.intent where failure_code is not null";
        let row = fixture.client.query_opt(query, &[]).await.unwrap();
        row.is_some_and(|row| row.get::<_, String>(0) == "failed_final abandoned")
    };
    wait_until("the decision", DEADLINE, decided).await.unwrap();
    let counted = async || {
        let metrics = serving.text("/metrics", "").await;
        metrics.contains("pgonce_recovered_total{decision=\"abandoned\"} 1")
    };
    wait_until("the count", DEADLINE, counted).await.unwrap();
    let acts = "select count(*) from pgonce.operator_act where act = 'recover' and key = 'k' and reason like 'abandoned: %'";
    let acts = fixture.client.query_one(acts, &[]).await.unwrap();
    assert_eq!(acts.get::<_, i64>(0), 1);
}
