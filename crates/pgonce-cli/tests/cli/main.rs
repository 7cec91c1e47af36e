//! The program as its users meet it: arguments in, output and exit code out.

#![allow(clippy::unwrap_used)]

mod audit;
mod canaries;
mod console;
mod console_acts;
mod console_browser;
mod console_counts;
mod console_forward;
mod console_live;
mod console_operations;
mod console_pages;
mod consume;
#[cfg(feature = "kafka")]
mod consume_kafka;
mod consume_killed;
mod consume_service;
mod doctor;
mod dry_run;
mod external;
mod fixture;
mod forecast;
mod help;
mod import;
#[cfg(target_os = "linux")]
mod import_killed;
mod inbox;
mod intervene;
mod ledger;
mod lists;
mod lost_replies;
mod names;
mod outbox;
mod plans;
mod queue;
mod region;
mod relay;
mod relay_file;
mod relay_health;
mod roles;
mod runbooks;
mod search_path;
mod serve;
mod serve_parts;
mod tail;
mod tls;
mod unknown_names;
mod verdicts;
mod webhooks;
mod whole_lists;
mod work;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use pgonce_testkit::shared;
use serde_json::{Value, json};

use crate::fixture::{Fixture, Run, program, without_database};

#[test]
fn what_cannot_be_understood_is_exit_2() {
    let run = without_database(&["stuck"]);
    assert_eq!(run.code, 2);
    assert!(
        run.err.contains("no database was given") && run.err.contains("DATABASE_URL"),
        "{run:?}"
    );
    for args in [
        &["no-such-command"][..],
        &["scope", "define", "x"],
        &["scope", "define", "x", "--retention", "30"],
        &[
            "scope",
            "define",
            "x",
            "--retention",
            "7d",
            "--busy",
            "perhaps",
        ],
        &["purge", "--limit", "0"],
        &["stuck", "--database-url", "mysql://x"],
        &["stuck", "--database-url", "postgres://x:secret@[bad/db"],
    ] {
        let run = without_database(args);
        assert_eq!(run.code, 2, "{args:?}: {run:?}");
        assert!(!run.err.contains("secret"), "{run:?}");
    }
}

#[test]
fn the_name_of_a_file_need_not_be_unicode() {
    let mut lost = program(&["lost"]);
    let lost = lost.arg(OsStr::from_bytes(b"none\xff.jsonl"));
    let run = Run::of(lost.output().unwrap());
    assert!(
        run.code == 2 && run.err.contains("cannot be read"),
        "{run:?}"
    );
}

#[test]
fn no_server_is_exit_3_and_says_what_to_look_at() {
    let url = "postgres://nobody:secret@127.0.0.1:1/nowhere";
    let run = without_database(&["migrate", "status", "--database-url", url]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(
        run.err.contains("no connection")
            && run.err.contains("08006")
            && run.err.contains("--database-url")
    );
    assert!(!run.err.contains("secret"));
    let run = without_database(&["stuck", "--format", "json", "--database-url", url]);
    let error: Value = serde_json::from_str(&run.err).unwrap();
    assert_eq!(
        (&error["error"]["code"], &error["error"]["exit"]),
        (&json!("08006"), &json!(3))
    );
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_exit_3() {
    let server = shared(None).await.unwrap();
    let run = without_database(&[
        "stuck",
        "--database-url",
        &server.url_for("no_such_database"),
    ]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.err.contains("no_such_database"), "{run:?}");
}

#[tokio::test]
async fn migrate_goes_from_nothing_to_up_to_date() {
    let fixture = Fixture::empty().await;
    assert_eq!(fixture.run(&["migrate", "status"]).code, 4);
    let run = fixture.run(&["stuck"]);
    assert!(
        run.code == 4 && run.err.contains("pgonce migrate up"),
        "{run:?}"
    );
    assert!(
        fixture
            .ok(&["migrate", "plan"])
            .contains("would apply 0001_core")
    );
    assert!(
        fixture
            .ok(&["migrate", "plan", "--sql"])
            .contains("create table pgonce.intent")
    );
    assert!(fixture.ok(&["migrate", "up"]).contains("applied 0001_core"));
    assert_eq!(
        fixture.ok(&["migrate", "up"]),
        "schema pgonce is up to date\n"
    );
    assert!(
        fixture
            .ok(&["migrate", "plan", "--sql"])
            .contains("nothing to do")
    );
    let status = fixture.json(&["migrate", "status"]);
    assert_eq!(status["migrations"][0]["state"], "applied");
    assert_eq!(status["routines"], "current");
    assert!(fixture.ok(&["migrate", "status"]).contains("0001_core"));
}

#[tokio::test]
async fn a_newer_and_breaking_schema_is_exit_5_and_a_changed_one_exit_6() {
    let fixture = Fixture::installed().await;
    fixture.sql("insert into pgonce.migration (number, name, checksum, breaking) values (9999, '9999_future', '', false)").await;
    assert!(fixture.ok(&["migrate", "up"]).contains("9999_future"));
    assert_eq!(
        fixture.json(&["migrate", "up"])["newer"],
        json!(["9999_future"])
    );
    fixture.ok(&["stuck"]);

    fixture
        .sql("update pgonce.migration set breaking = true where number = 9999")
        .await;
    for args in [
        &["migrate", "up"][..],
        &["migrate", "status"],
        &["migrate", "plan"],
        &["stuck"],
        &["purge"],
    ] {
        let run = fixture.run(args);
        assert_eq!(run.code, 5, "{args:?}: {run:?}");
        assert!(run.err.contains("P4102"), "{run:?}");
    }
    fixture.sql("delete from pgonce.migration where number = 9999; update pgonce.migration set checksum = 'x'").await;
    assert_eq!(fixture.run(&["migrate", "up"]).code, 6);
    assert_eq!(fixture.run(&["migrate", "status"]).code, 6);
    assert_eq!(fixture.run(&["stuck"]).code, 0);
}

#[tokio::test]
async fn another_schema_is_chosen_by_flag_or_variable() {
    let fixture = Fixture::empty().await;
    fixture.ok(&["migrate", "--schema", "elsewhere", "up"]);
    assert_eq!(fixture.run(&["stuck"]).code, 4);
    fixture.ok(&["stuck", "--schema", "elsewhere"]);
    let run = fixture
        .command(&["scope", "list"])
        .env("PGONCE_SCHEMA", "elsewhere")
        .output()
        .unwrap();
    assert!(run.status.success());
    let run = fixture.run(&["stuck", "--schema", "x; drop schema public"]);
    assert!(run.code == 2 && run.err.contains("22023"), "{run:?}");
}

#[tokio::test]
async fn a_role_with_access_watches_and_a_stranger_is_exit_8() {
    let fixture = Fixture::installed().await;
    let role = format!("clerk_{}", uuid::Uuid::new_v4().simple());
    fixture.sql(&format!("create role {role} login")).await;
    let url = fixture
        .database
        .url()
        .replace("postgres@", &format!("{role}@"));
    let run = without_database(&["stuck", "--database-url", &url]);
    assert!(run.code == 8 && run.err.contains("grant"), "{run:?}");
    assert!(
        fixture
            .ok(&["migrate", "up", "--grant", &format!("operator={role}")])
            .contains(&role)
    );
    assert_eq!(without_database(&["stuck", "--database-url", &url]).code, 0);
    assert_eq!(without_database(&["purge", "--database-url", &url]).code, 0);
    assert_eq!(
        without_database(&["strict", "on", "--database-url", &url]).code,
        8
    );
    let run = fixture.run(&["migrate", "up", "--grant", "app=no_such_role"]);
    assert!(
        run.code == 7 && run.err.contains("create role no_such_role"),
        "{run:?}"
    );
}

#[tokio::test]
async fn a_contract_is_defined_with_every_field_and_shown_again() {
    let fixture = Fixture::installed().await;
    let defined = fixture.json(&[
        "scope",
        "define",
        "orders.create",
        "--retention",
        "30d",
        "--lease",
        "45s",
        "--busy",
        "wait",
        "--wait-timeout",
        "500ms",
        "--storage",
        "reference",
        "--after-expiry",
        "gone",
        "--tombstone-for",
        "1 year",
        "--stale",
        "hold",
        "--key-source",
        "derived",
        "--boundary",
        "external",
        "--client-retry",
        "2h",
        "--redelivery",
        "1w",
        "--reconciliation",
        "1h30m",
        "--audit",
        "15m",
        "--max-answer",
        "4096",
        "--max-keys",
        "1000",
        "--max-attempts",
        "5",
        "--keep-attempts",
        "7",
        "--commit-guard",
        "--note",
        "it's ours",
        "--tenant",
        "acme",
    ]);
    let expected = json!({
        "tenant": "acme", "scope": "orders.create", "retention": "30 days", "lease": "00:00:45", "busy": "wait",
        "wait_timeout": "00:00:00.5", "storage": "reference", "after_expiry": "gone", "tombstone_for": "365 days 06:00:00",
        "stale": "hold", "key_source": "derived", "boundary": "external", "client_retry": "02:00:00",
        "redelivery": "7 days", "reconciliation": "01:30:00", "audit": "00:15:00", "max_answer": 4096, "max_keys": 1000, "commit_guard": true, "note": "it's ours",
        "max_attempts": 5, "keep_attempts": 7, "probe": null, "retry_queue": null, // these two name what must exist
        "defined_at": defined["defined_at"],
    });
    assert_eq!(defined, expected);
    assert_eq!(
        fixture.json(&["scope", "show", "orders.create", "--tenant", "acme"]),
        expected
    );
    assert_eq!(
        fixture.json(&["scope", "show", "orders.create"])["scope"],
        "*"
    );
    assert!(fixture.ok(&["scope", "list"]).contains("orders.create"));

    let run = fixture.run(&["scope", "define", "x", "--retention", "1d", "--audit", "7d"]);
    assert!(
        run.code == 2 && run.err.contains("retention covers every horizon"),
        "{run:?}"
    );
    let run = fixture.run(&["scope", "define", "x", "--retention", "a while"]);
    assert!(run.code == 2 && run.err.contains("7d"), "{run:?}");

    assert_eq!(fixture.run(&["scope", "drop", "orders.create"]).code, 7);
    let drop = ["scope", "drop", "orders.create", "--tenant", "acme"];
    assert_eq!(fixture.run(&drop).code, 11);
    assert_eq!(
        fixture.json(&[&drop[..], &["--dry-run"]].concat())["count"],
        1
    );
    fixture.ok(&[&drop[..], &["--yes"]].concat());
    fixture.ok(&["strict", "on"]);
    assert_eq!(fixture.run(&["scope", "show", "orders.create"]).code, 7);
    fixture.ok(&["strict", "off"]);
    fixture.ok(&["scope", "show", "orders.create"]);
}

#[tokio::test]
async fn operators_see_what_is_stuck_retried_suppressed_and_whether_it_happened() {
    let fixture = Fixture::installed().await;
    for args in [
        &["intent", "stuck", "--scope", "nowhere"][..],
        &["intent", "list", "nowhere"],
    ] {
        assert_eq!(fixture.run(args).code, 7, "{args:?}");
    }
    assert_eq!(fixture.ok(&["stuck"]), "Nothing is stuck.\n");
    assert_eq!(fixture.json(&["stuck"]), json!([]));
    fixture
        .sql(
            "select pgonce.claim('s', 'left', '\\x01', '1 microsecond');
             select pgonce.claim('s', E'evil\\x1b[2J', '\\x01', '1 microsecond');
             begin; select pgonce.claim('s', 'done', '\\x01'); select pgonce.succeed('s', 'done', '\\x01', 1, '{\"id\": 7}'); commit;
             select pgonce.fail('s', 'no', '\\x01', 1, false, 'declined', 'the bank said no');
             select pgonce.fail('s', 'again', '\\x01', 1, true, 'later', 'not now');
             select pgonce.claim('s', 'again', '\\x01', '1 hour');
             select pgonce._count_suppressed('s', 3, 0, 0, 1)",
        )
        .await;
    let stuck = fixture.json(&["stuck"]);
    assert_eq!(stuck.as_array().unwrap().len(), 2);
    assert_eq!(stuck[0]["classification"], "safe_to_retry");
    assert_eq!(
        fixture
            .json(&["stuck", "--limit", "1"])
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(fixture.run(&["stuck", "--scope", "other"]).code, 7);
    let table = fixture.ok(&["stuck"]);
    assert!(
        table.contains("left") && !table.contains('\u{1b}'),
        "{table}"
    );
    assert_eq!(fixture.json(&["most-retried"])[0]["key"], "again");
    assert_eq!(fixture.json(&["suppression"])[0]["suppressed"], 4);

    let verdict = |key: &str| {
        fixture.json(&["show", "s", key])["verdict"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(verdict("done").starts_with("It happened once."));
    assert!(verdict("no").starts_with("It was refused, finally."));
    assert!(verdict("again").starts_with("Somebody is at it now"));
    assert!(verdict("left").starts_with("Its holder stopped on the way."));
    assert_eq!(
        fixture.json(&["show", "s", "done"])["answer"],
        json!({"id": 7})
    );
    assert!(
        fixture
            .ok(&["show", "s", "done"])
            .contains("It happened once.")
    );

    let run = fixture.run(&["show", "s", "never"]);
    assert!(run.code == 7 && run.err.contains("no record"), "{run:?}");
    assert_eq!(
        fixture.run(&["show", "s", "done", "--tenant", "acme"]).code,
        7
    );
    fixture
        .sql("begin; select pgonce.claim('s', 'never', '\\x01')")
        .await;
    assert!(
        fixture
            .run(&["show", "s", "never"])
            .err
            .contains("under way")
    );
    fixture.sql("rollback").await;
}

#[tokio::test]
async fn purge_says_how_much_it_removed_and_whether_there_is_more() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "select pgonce.fail('s', n::text, '\\x01', 1, false, 'no', 'no') from generate_series(1, 25) n;
             select pgonce._move_clock('8 days');
             insert into pgonce.job_end (id, ended_at, expires_at, status, attempts, tenant, queue)
             select n, now(), now(), 'succeeded', 1, '', 'q' from generate_series(1, 25) n",
        )
        .await;
    assert_eq!(
        fixture.json(&["purge", "--dry-run"]),
        json!({"would_purge": 25, "jobs": 25})
    );
    assert_eq!(
        fixture.json(&["purge", "--limit", "10"]),
        json!({"purged": 10, "jobs": 10, "more": true})
    );
    assert_eq!(
        fixture.json(&["purge", "--limit", "10", "--all"]),
        json!({"purged": 15, "jobs": 15, "more": false})
    );
    let left = fixture
        .client
        .query_one("select count(*) from pgonce.job_end", &[]);
    assert_eq!(left.await.unwrap().get::<_, i64>(0), 0, "jobs as well");
    assert_eq!(
        fixture.ok(&["purge"]),
        "purged 0 finished records and 0 ended jobs\n"
    );
}

#[test]
fn codes_say_what_to_do() {
    let run = without_database(&["codes"]);
    assert!(
        run.out.contains("P4002") && run.out.contains("40001"),
        "{run:?}"
    );
    let one: Value =
        serde_json::from_str(&without_database(&["codes", "40p01", "--format", "json"]).out)
            .unwrap();
    assert_eq!(
        (&one[0]["code"], &one[0]["class"]),
        (&json!("40P01"), &json!("retry"))
    );
    assert_eq!(without_database(&["codes", "nonsense"]).code, 7);
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let fixture = Fixture::installed().await;
    for args in [
        &["codes"][..],
        &["migrate", "status"],
        &["scope", "list"],
        &["--help"],
    ] {
        let run = fixture.run_unread(args);
        assert_eq!((run.code, &*run.err), (0, ""), "{args:?}");
    }
}

#[tokio::test]
async fn operations_work_through_a_transaction_pooler() {
    let fixture = Fixture::installed().await;
    let pooler = pgonce_testkit::PgBouncer::in_front_of(fixture.server)
        .pool_mode_transaction()
        .start()
        .await
        .unwrap();
    let url = pooler.url_for(fixture.database.name());
    for args in [
        &["migrate", "status"][..],
        &["stuck"],
        &["scope", "list"],
        &["purge", "--all"],
        &["suppression"],
    ] {
        let run = without_database(&[args, &["--database-url", &url]].concat());
        assert_eq!(run.code, 0, "{args:?}: {run:?}");
    }
}
