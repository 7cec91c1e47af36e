//! Faults are planted one at a time: doctor finds each, nothing else, and its fix makes the finding go.

use std::collections::BTreeSet;
use std::time::Duration;

use pgonce_testkit::{DelayProxy, Postgres, Replication};
use serde_json::Value;
use tokio_postgres::{Client, NoTls};

use crate::fixture::{Run, program};

/// A server as it should be: durable, and ending idle transactions.
async fn healthy_server() -> Postgres {
    Postgres::builder()
        .setting("fsync", "on")
        .setting("idle_in_transaction_session_timeout", "10min")
        .setting("max_connections", "40")
        .start()
        .await
        .unwrap()
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn pgonce(url: &str, args: &[&str]) -> Run {
    let mut command = program(args);
    Run::of(command.env("DATABASE_URL", url).output().unwrap())
}

fn findings(url: &str, args: &[&str]) -> Vec<Value> {
    let run = pgonce(url, &[&["doctor", "-o", "json"], args].concat());
    assert!([0, 12].contains(&run.code), "{run:?}");
    let report: Value = serde_json::from_str(&run.out).unwrap();
    report["findings"].as_array().unwrap().clone()
}

fn ids(findings: &[Value]) -> BTreeSet<&str> {
    let ids = findings
        .iter()
        .map(|finding| finding["id"].as_str().unwrap());
    ids.collect()
}

/// A template with pgonce in it.
async fn install(server: &Postgres) {
    server
        .template("pgonce", async |url: String| {
            assert_eq!(pgonce(&url, &["migrate", "up"]).code, 0);
            Ok::<(), std::io::Error>(())
        })
        .await
        .unwrap();
}

/// What is wrong afterwards (the first is the fault, the others come with the way it is planted), and how to plant it.
const FAULTS: &[(&[&str], &str)] = &[
    (&["scope-undefined"], "select pgonce.claim('x', 'k', '\\x01', '1 hour')"),
    (&["external-takeover"], "select pgonce.define_scope('x', '7 days', p_boundary => 'external', p_reconciliation => '1 day')"),
    (&["horizon-missing"], "select pgonce.define_scope('x', '30 days', p_key_source => 'message')"),
    (&["retention-below-message-redelivery"], "select pgonce.define_scope('x', '1 day', p_key_source => 'message', p_redelivery => '1 hour')"),
    (&["inbox-keep-below-outbox"], "select pgonce.set_outbox_retention('40 days')"),
    (&["lease-short"], "select pgonce.define_scope('x', '7 days', p_lease => '500 ms')"),
    (&["wait-long"], "select pgonce.define_scope('x', '7 days', p_busy => 'wait', p_wait_timeout => '2 minutes')"),
    (&["tombstones-unlimited"], "select pgonce.define_scope('x', '7 days', p_after_expiry => 'gone')"),
    (&["stuck-needs-action"], "select pgonce.define_scope('x', '7 days', p_stale => 'hold'); select pgonce._move_clock('-10 minutes');
        select pgonce.claim('x', 'k', '\\x01', '1 second'); select pgonce._reset_clock()"),
    (&["stuck-not-retried"], "select pgonce.define_scope('x', '7 days'); select pgonce._move_clock('-2 hours');
        select pgonce.claim('x', 'k', '\\x01', '1 second'); select pgonce._reset_clock()"),
    (&["purge-behind"], "select pgonce.define_scope('x', '1 hour'); select pgonce._move_clock('-3 days');
        begin; select pgonce.claim('x', 'k', '\\x01'); select pgonce.succeed('x', 'k', '\\x01', 1); commit; select pgonce._reset_clock()"),
    (&["outbox-no-relay"], "select pgonce._move_clock('-10 minutes'); select pgonce.create_subscription('s');
        select pgonce.publish('t', 'y', '1', '{}'); select pgonce._reset_clock()"),
    (&["outbox-stuck"], "select pgonce._move_clock('-10 minutes'); select pgonce.create_subscription('s');
        select pgonce.publish('t', 'y', '1', '{}'); select pgonce._reset_clock();
        update pgonce.outbox_cursor set owner = 'relay', lease_until = pgonce.now() + interval '1 hour'"),
    (&["dead-letters"], "select pgonce.create_subscription('s'); insert into pgonce.parked (tenant, subscription, subject, seq, lane, state,
        attempts, parked_at, created_at, size, message_id, topic, type, headers)
        values ('', 's', '1', nextval('pgonce.outbox_seq'), 1, 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', 'y', '{}')"),
    (&["dead-letters-full", "dead-letters"], "select pgonce.create_subscription('s', p_dead_limit => 1);
        insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id,
        topic, type, headers) values ('', 's', '1', nextval('pgonce.outbox_seq'), 1, 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', 'y', '{}')"),
    (&["subscription-evicted"], "select pgonce.create_subscription('s'); select pgonce.evict_subscription('s', 'nobody reads it')"),
    (&["outbox-partitions-missing"], "select setval('pgonce.outbox_seq', 1999999)"),
    (&["inbox-partitions-missing"], "insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id)
        values (now(), (now() at time zone 'UTC')::date, '', 'c', 's', 'm')"),
    (&["inbox-poison"], "insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, received_at,
        holds_key, headers, payload) values (nextval('pgonce.inbox_seq'), '', 'c', 's', 'm', '\\x01', 1, 'failed_final', now(), true, '{}', '\\x01')"),
    (&["inbox-behind"], "insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, received_at,
        holds_key, headers, payload) values (nextval('pgonce.inbox_seq'), '', 'c', 's', 'm', '\\x01', 1, 'received', now() - interval '2 hours', true, '{}', '\\x01')"),
    (&["timers-overdue"], "insert into pgonce.transition_timer (tenant, machine, entity, kind, number, to_state, due_at, set_at)
        values ('', 'case', '1', 'sla', nextval('pgonce.transition_seq'), 'late', now() - interval '1 hour', now() - interval '2 hours')"),
    (&["growth-ahead"], "select pgonce.define_scope('x', '90 days'); insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key,
        fingerprint) select 1, now(), now() + interval '90 days', 1, 'succeeded', '', 'x', i::text, '\\x01' from generate_series(1, 1000) i;
        analyze pgonce.intent; insert into pgonce.sample select now() - ago, intents, 0, 0, 0
        from (values (interval '1 day', 0), ('0', 10000000)) v (ago, intents)"),
    (&["projection-build-abandoned"], "create table public.t (id int primary key);
        insert into pgonce.projection (projection, into_table, apply, gate, begins_after, defined_at) values ('p', 'public.t', 'f', 'version', 0, now());
        insert into pgonce.projection_build (projection, purpose, fresh, seen, started_at)
        values ('p', 'rebuild', 'public.t2', pg_current_snapshot(), now() - interval '2 days')"),
    (&["projection-not-unique"], "create table public.t (id int);
        insert into pgonce.projection (projection, into_table, apply, gate, begins_after, defined_at) values ('p', 'public.t', 'f', 'version', 0, now())"),
    (&["schema-drift"], "alter function pgonce.purge cost 7"),
    (&["schema-drift"], "drop index pgonce.unfinished_intents"),
    (&["schema-drift"], "alter table pgonce.intent drop constraint one_row_per_intent"),
    (&["half-distributed", "schema-drift"], "create or replace function pgonce._remote_tables() returns setof text language sql stable
        set search_path = pg_catalog, pg_temp return 'orders'"),
    (&["foreign-trigger"], "create function public.f() returns trigger language plpgsql as 'begin return new; end';
        create trigger mine before insert on pgonce.suppressed for each row execute function public.f()"),
    (&["trigger-disabled"], "alter table pgonce.intent disable trigger every_transition_is_checked"),
    (&["clock-replaced"], "select pgonce._move_clock('1 minute')"),
    (&["table-unlogged"], "alter table pgonce.suppressed set unlogged"),
    (&["sequence-behind"], "select pgonce.publish('t', 'y', '1', '{}');
        alter sequence pgonce.outbox_seq restart"),
    (&["sequence-behind"], "select pgonce.enqueue('q', '1');
        alter sequence pgonce.job_seq restart"),
    (&["sequence-behind"], "select pgonce.store_message('c', 's', 'm', '\\x7b7d');
        alter sequence pgonce.inbox_seq restart"),
    (&["sequence-behind"], "select pgonce.define_scope('x', '7 days'); select pgonce.claim('x', 'k', '\\x01', '1 hour');
        alter sequence pgonce.lease_number restart"),
    (&["sequence-behind"], "select pgonce.define_transition('m', '', 'open'); select pgonce.transition('m', 'e', 'open', 'c');
        alter sequence pgonce.transition_seq restart"),
    (&["sequence-behind"], "select pgonce.create_subscription('s');
        alter sequence pgonce.operator_act_number_seq restart"),
    (&["sequence-behind"], "select pgonce.region_join(1::smallint, 'eu'); select pgonce._installation_epoch();
        insert into pgonce.region_fact select 1, epoch, 7, 'finished', '', 's', 'k', now(), now() from pgonce.installation"),
    (&["index-invalid"], "update pg_index set indisvalid = false where indexrelid = 'pgonce.unfinished_intents'::regclass"),
    (&["row-security-off"], "alter table pgonce.intent disable row level security"),
    (&["grants-too-wide"], "grant delete on pgonce.intent to public"),
    (&["grants-too-wide"], "create role clerk; select pgonce.grant_to('clerk', 'app'); grant update on pgonce.intent to clerk"),
    (&["schema-create"], "grant create on schema pgonce to public"),
    (&["owner-differs"], "create role clerk; alter function pgonce.purge owner to clerk; alter table pgonce.suppressed owner to clerk;
        alter view pgonce.most_retried owner to clerk; alter type pgonce.status owner to clerk; alter sequence pgonce.outbox_seq owner to clerk"),
    (&["owner-differs"], "create role clerk; create function pgonce.theirs() returns int language sql security definer return 1;
        alter function pgonce.theirs owner to clerk"),
    (&["granted-role-superuser"], "create role root superuser; select pgonce.grant_to('root', 'app')"),
    (&["transition-guard"], "create function public.g(text, text, jsonb) returns boolean language sql return true; create role clerk;
        alter function public.g owner to clerk; select pgonce.define_transition('m', '', 'a', 'public.g')"),
    (&["transition-guard"], "create function public.g(text, text, jsonb) returns boolean language sql return true;
        select pgonce.define_transition('m', '', 'a', 'public.g'); drop function public.g"),
    (&["autovacuum-table"], "alter table pgonce.intent set (autovacuum_enabled = off)"),
    (&["table-bloat", "autovacuum-table"], "alter table pgonce.suppressed set (autovacuum_enabled = off);
        insert into pgonce.suppressed (tenant, scope) select '', i::text from generate_series(1, 30000) i; delete from pgonce.suppressed"),
    (&["statistics-missing", "autovacuum-table"], "alter table pgonce.suppressed set (autovacuum_enabled = off);
        insert into pgonce.suppressed (tenant, scope) select '', repeat('x', 200) || i from generate_series(1, 25000) i"),
    (&["synchronous-commit-off"], "alter database {database} set synchronous_commit = off"),
    (&["read-only-default"], "create role reader; alter role reader in database {database} set default_transaction_read_only = on"),
    (&["isolation-default"], "alter database {database} set default_transaction_isolation = 'serializable'"),
    (&["replication-role"], "alter database {database} set session_replication_role = 'replica'"),
    (&["statement-timeout-short"], "create role hasty; alter role hasty in database {database} set statement_timeout = '500ms'"),
    (&["migration-pending"], "update pgonce.routines set checksum = 'of another build'"),
];

/// Their SQL does not end the finding at once: the rows stay, a part must be filled in, or statistics come later.
const FIXED_LATER: [&str; 4] = [
    "inbox-partitions-missing",
    "projection-not-unique",
    "schema-drift",
    "table-bloat",
];

#[tokio::test]
async fn every_planted_fault_is_found_alone_and_goes_with_its_fix() {
    let server = healthy_server().await;
    install(&server).await;
    let healthy = server.database_from("pgonce").await.unwrap();
    let run = pgonce(&healthy.url(), &["doctor"]);
    assert!(
        run.code == 0 && run.out.starts_with("nothing found in "),
        "{run:?}"
    );

    let mut planted = BTreeSet::new();
    for (expected, sql) in FAULTS {
        let id = expected[0];
        planted.insert(id);
        let database = server.database_from("pgonce").await.unwrap();
        let url = database.url();
        let client = connect(&url).await;
        let sql = sql.replace("{database}", database.name());
        // Each by itself: some may not run beside others.
        for statement in sql.split(";\n") {
            client
                .batch_execute(statement)
                .await
                .unwrap_or_else(|error| panic!("{id}: {error:?}"));
        }
        if id == "table-bloat" {
            let counted = "select exists (select from pg_stat_all_tables where relname = 'suppressed' and n_dead_tup > 20000)";
            while !client
                .query_one(counted, &[])
                .await
                .unwrap()
                .get::<_, bool>(0)
            {
                tokio::task::yield_now().await;
            }
        }
        let found = findings(&url, &[]);
        assert_eq!(
            ids(&found),
            expected.iter().copied().collect(),
            "{id}: {found:#?}"
        );
        let finding = found.iter().find(|finding| finding["id"] == id).unwrap();
        for field in ["severity", "title", "evidence", "why"] {
            assert!(
                finding[field].as_str().is_some_and(|text| text.len() > 5),
                "{finding:#}"
            );
        }
        assert!(
            finding["sql"].is_string() || finding["command"].is_string(),
            "{finding:#}"
        );
        if finding["sql"].is_string() && !FIXED_LATER.contains(&id) {
            let script = pgonce(&url, &["doctor", "--only", id, "--fix-sql"]).out;
            for line in script.lines().filter(|line| !line.starts_with("--")) {
                client
                    .batch_execute(line)
                    .await
                    .unwrap_or_else(|error| panic!("{id}: {line}: {error:?}"));
            }
            assert_eq!(findings(&url, &["--only", id]), Vec::<Value>::new(), "{id}");
        }
        // What roles and databases were given goes with them; roles stay behind the database.
        for role in ["clerk", "root", "reader", "hasty"] {
            let drop = format!("drop owned by {role}; drop role {role}");
            let _ = client.batch_execute(&drop).await;
        }
    }
    assert!(planted.len() >= 40, "{}", planted.len());
}

#[tokio::test]
async fn faults_of_sessions_and_of_the_server_are_found_too() {
    let server = healthy_server().await;
    install(&server).await;
    let database = server.database_from("pgonce").await.unwrap();
    let url = database.url();
    let client = connect(&url).await;
    let only = |id: &str| ids(&findings(&url, &["--only", id])).contains(id);
    assert!(findings(&url, &[]).is_empty());

    // Settings of the server; a reload is asynchronous, so a new session is asked until it has it.
    for (id, name, bad, good) in [
        ("fsync-off", "fsync", "off", "on"),
        ("full-page-writes-off", "full_page_writes", "off", "on"),
        ("autovacuum-off", "autovacuum", "off", "on"),
        ("synchronous-commit-off", "synchronous_commit", "off", "on"),
        (
            "idle-timeout-unset",
            "idle_in_transaction_session_timeout",
            "0",
            "10min",
        ),
    ] {
        for (value, faulty) in [(bad, true), (good, false)] {
            client
                .batch_execute(&format!("alter system set {name} = '{value}'"))
                .await
                .unwrap();
            client
                .batch_execute("select pg_reload_conf()")
                .await
                .unwrap();
            loop {
                let new = connect(&url).await;
                let now: String = new
                    .query_one(&format!("show {name}"), &[])
                    .await
                    .unwrap()
                    .get(0);
                if now == value {
                    break;
                }
            }
            assert_eq!(only(id), faulty, "{id} with {value}");
        }
    }

    client
        .batch_execute("select pg_create_physical_replication_slot('lost', true)")
        .await
        .unwrap();
    assert_eq!(ids(&findings(&url, &[])), BTreeSet::from(["slot-inactive"]));
    // What loses data is no line of the script.
    let no_sql = |id: &str| {
        let script = pgonce(&url, &["doctor", "--only", id, "--fix-sql"]).out;
        assert!(script.contains("-- run: "), "{script}");
        assert!(
            script.lines().all(|line| line.starts_with("--")),
            "{script}"
        );
    };
    no_sql("slot-inactive");
    client
        .batch_execute("select pg_drop_replication_slot('lost')")
        .await
        .unwrap();

    // A claim in autocommit; one with a lease, or in its transaction, is none.
    let caller = connect(&url).await;
    caller
        .query(
            "select * from pgonce.claim('x', 'k', '\\x01', '1 hour')",
            &[],
        )
        .await
        .unwrap();
    assert!(!only("autocommit-caller"));
    caller
        .query("select * from pgonce.claim('x', 'k2', '\\x01')", &[])
        .await
        .unwrap();
    assert!(only("autocommit-caller"));
    caller
        .batch_execute("begin; select * from pgonce.claim('x', 'k2', '\\x01')")
        .await
        .unwrap();
    assert!(!only("autocommit-caller"));

    // That transaction grows old, and so does a prepared one.
    let second = connect(&url).await;
    second
        .batch_execute("begin; select pg_current_xact_id(); prepare transaction 'forgotten'")
        .await
        .unwrap();
    assert!(!only("old-transaction") && !only("prepared-transaction"));
    client
        .batch_execute("select pgonce._move_clock('2 hours')")
        .await
        .unwrap();
    assert!(only("old-transaction") && only("prepared-transaction"));
    no_sql("prepared-transaction");
    client
        .batch_execute("select pgonce._reset_clock()")
        .await
        .unwrap();
    client
        .batch_execute("rollback prepared 'forgotten'")
        .await
        .unwrap();
    drop((caller, second));

    // Almost all of the 40 connections; doctor has one itself.
    let mut crowd = Vec::new();
    for _ in 0..35 {
        crowd.push(connect(&url).await);
    }
    assert!(only("connections-near-limit"));
    drop(crowd);

    client
        .batch_execute("create role watcher login; select pgonce.grant_to('watcher', 'operator')")
        .await
        .unwrap();
    let found = findings(&url.replace("postgres@", "watcher@"), &[]);
    assert!(ids(&found).contains("not-checked"), "{found:#?}");

    let proxy = DelayProxy::start(("127.0.0.1", server.port()), Duration::ZERO).unwrap();
    let found = findings(
        &proxy.url_for(database.name()),
        &["--only", "pooler-between"],
    );
    assert_eq!(ids(&found), BTreeSet::from(["pooler-between"]));

    client
        .batch_execute("create database plain encoding 'SQL_ASCII' template template0")
        .await
        .unwrap();
    let plain = server.url_for("plain");
    assert_eq!(pgonce(&plain, &["migrate", "up"]).code, 0);
    assert_eq!(
        ids(&findings(&plain, &[])),
        BTreeSet::from(["encoding-sql-ascii"])
    );

    let standby = server.standby(Replication::Asynchronous).await.unwrap();
    standby.wait_until_caught_up_with(&server).await.unwrap();
    let found = findings(&standby.url_for(database.name()), &["--only", "standby"]);
    assert_eq!(ids(&found), BTreeSet::from(["standby"]));
    drop(standby);

    // A name that cannot be resolved is an address of another machine, and nothing listens for it.
    client
        .batch_execute("alter system set listen_addresses = '127.0.0.1, database.invalid'")
        .await
        .unwrap();
    drop(client);
    server.restart().await.unwrap();
    assert!(only("tls-off"));
}

#[tokio::test]
async fn the_exit_code_follows_the_severity_and_the_report_is_for_people_too() {
    let fixture = crate::fixture::Fixture::installed().await;
    fixture
        .sql("select pgonce.define_scope('x', '7 days', p_lease => '500 ms')")
        .await;
    let doctor =
        |args: &[&str]| fixture.run(&[&["doctor", "--only", "lease-short"], args].concat());
    let run = doctor(&[]);
    assert_eq!((run.code, run.err.as_str()), (12, ""));
    for part in [
        "warning: ",
        "[lease-short]",
        "found: scope x",
        "why: ",
        "fix: update pgonce.scope",
        "1 warnings",
    ] {
        assert!(run.out.contains(part), "{part}: {run:?}");
    }
    assert_eq!(doctor(&["--fail-on", "critical"]).code, 0);
    let run = fixture.run(&["doctor", "--only", "no-such-check"]);
    assert!(run.code == 7 && run.err.contains("--list"), "{run:?}");
    let listed = fixture.json(&["doctor", "--list"]);
    assert!(listed.as_array().unwrap().len() > 50);
}
