//! What operators see and do of events, with the program.

use serde_json::{Value, json};

use crate::fixture::{Fixture, without_database};

/// Settles an event of `billing` by hand, as a relay would.
fn settle(seq: i64, what: &str) -> String {
    format!(
        "select pgonce._claim_lanes('billing', 'hand', '1 hour');
         select pgonce._settle_lane('billing', c.lane, c.epoch, null,
             jsonb_build_array(jsonb_build_object('seq', {seq}, 'what', '{what}', 'reason', 'no such address')))
           from pgonce.outbox o join pgonce.outbox_cursor c on c.subscription = 'billing' and c.lane = o.lane
          where o.seq = {seq};
         select pgonce._release_lanes('billing', 'hand')"
    )
}

/// Events 1 to 3 of subject a, of which the first is dead, and event 4 of subject b.
async fn troubled() -> Fixture {
    let fixture = Fixture::installed().await;
    fixture.ok(&["outbox", "subscriptions", "create", "billing"]);
    fixture
        .sql(
            "select pgonce.publish('orders', 'order.changed', 'a', jsonb_build_object('n', i)) from generate_series(1, 3) i;
             select pgonce.publish('orders', 'order.changed', 'b', '{\"n\": 4}')",
        )
        .await;
    fixture.sql(&settle(1, "dead")).await;
    fixture
}

/// Delivers what is there; gives the field `n` of each event.
fn relay(fixture: &Fixture) -> Vec<i64> {
    let out = fixture.ok(&[
        "relay",
        "--subscription",
        "billing",
        "--sink",
        "stdout:",
        "--once",
    ]);
    let number = |line: &str| -> i64 {
        let event: Value = serde_json::from_str(line).unwrap();
        event["data"]["n"].as_i64().unwrap()
    };
    out.lines().map(number).collect()
}

fn only(fixture: &Fixture, args: &[&str]) -> Value {
    let rows = fixture.json(args);
    assert_eq!(rows.as_array().unwrap().len(), 1, "{args:?}: {rows}");
    rows[0].clone()
}

#[tokio::test]
async fn status_list_and_show_say_how_far_everybody_is_and_why() {
    let fixture = Fixture::installed().await;
    assert!(
        fixture
            .ok(&["outbox", "status"])
            .contains("subscriptions create")
    );
    assert_eq!(fixture.json(&["outbox", "status"]), json!([]));
    assert_eq!(
        fixture.ok(&["outbox", "list"]),
        "There are no dead letters.\n"
    );

    let fixture = troubled().await;
    let status = only(&fixture, &["outbox", "status"]);
    assert_eq!(
        (&status["waiting"], &status["dead"], &status["lanes_held"]),
        (&json!(4), &json!(1), &json!(0))
    );
    let lanes = fixture.json(&["outbox", "status", "billing", "--lanes"]);
    assert_eq!(lanes.as_array().unwrap().len(), 16);
    let waiting = |lane: &Value| lane["waiting"].as_i64().unwrap();
    assert_eq!(
        lanes.as_array().unwrap().iter().map(waiting).sum::<i64>(),
        4
    );
    let letter = only(&fixture, &["outbox", "list", "billing"]);
    assert_eq!(
        (&letter["seq"], &letter["subject"], &letter["reason"]),
        (&json!(1), &json!("a"), &json!("no such address"))
    );
    let shown = fixture.json(&["outbox", "show", "billing", "1"]);
    assert_eq!(
        (&shown["fate"], &shown["payload"]),
        (&json!("dead"), &json!({"n": 1}))
    );
    let id = shown["message_id"].as_str().unwrap();
    assert_eq!(fixture.json(&["outbox", "show", "billing", id]), shown);
    assert_eq!(
        fixture.json(&["outbox", "show", "billing", "4"])["fate"],
        "waiting"
    );

    for args in [
        &["status", "nobody"][..],
        &["show", "nobody", "1"],
        &["show", "billing", "99"],
        &["show", "billing", "6c0c2b9e-0000-4000-8000-000000000000"],
        &["redrive", "nobody"],
        &["recover", "nobody", "--since", "1h"],
        &["skip", "billing", "99", "--reason", "x"],
        &["replay", "nobody", "--from", "1"],
        &["evict", "nobody", "--reason", "x"],
        &["subscriptions", "alter", "nobody"],
        &["subscriptions", "drop", "nobody"],
        &["list", "nobody"],
    ] {
        let run = fixture.run(&[&["outbox"], args].concat());
        assert_eq!(run.code, 7, "{args:?}: {run:?}");
        assert!(run.err.contains("do:"), "{run:?}");
    }
}

#[tokio::test]
async fn a_stuck_subscription_is_pointed_out() {
    let fixture = troubled().await;
    fixture.sql("select pgonce._move_clock('10 minutes')").await;
    assert!(fixture.ok(&["outbox", "status"]).contains("outbox evict"));
    assert_eq!(only(&fixture, &["outbox", "status"])["stuck"], true);
}

#[tokio::test]
async fn a_redrive_goes_in_order_and_a_skip_lets_the_rest_go() {
    let fixture = troubled().await;
    assert_eq!(relay(&fixture), [4], "subject a waits");
    assert_eq!(
        fixture.json(&["outbox", "redrive", "billing", "--subject", "b"]),
        json!({"redriven": 0, "rate": 200, "seconds": 0})
    );
    let run = fixture.run(&["outbox", "redrive", "billing", "--rate", "0"]);
    assert_eq!(run.code, 2, "{run:?}");
    assert_eq!(
        fixture.ok(&["outbox", "redrive", "billing"]),
        "1 subject moves again, 200 a second: the last comes due within 1 second\n"
    );
    assert_eq!(relay(&fixture), [1, 2, 3]);

    let fixture = troubled().await;
    relay(&fixture);
    let run = fixture.run(&["outbox", "skip", "billing", "1", "--reason", "", "--yes"]);
    assert!(run.code == 2 && run.err.contains("reason"), "{run:?}");
    let skip = ["outbox", "skip", "billing", "1", "--reason", "typo"];
    let run = fixture.run(&skip);
    assert!(run.code == 11 && run.err.contains("--yes"), "{run:?}");
    let dry = fixture.json(&[&skip[..], &["--dry-run"]].concat());
    assert_eq!(dry["count"], 1, "{dry}");
    assert_eq!(relay(&fixture), [0; 0], "nothing was skipped yet");
    fixture.ok(&[&skip[..], &["--yes"]].concat());
    assert_eq!(relay(&fixture), [2, 3]);
    let shown = fixture.json(&["outbox", "show", "billing", "1"]);
    assert_eq!(
        (&shown["fate"], &shown["reason"], &shown["skipped_by"]),
        (&json!("skipped"), &json!("typo"), &json!("postgres"))
    );
    let since = ["outbox", "recover", "billing", "--since", "1h"];
    assert_eq!(fixture.json(&since), json!({"recovered": 0}));
    let skipped = [&since[..], &["--skipped"]].concat();
    assert_eq!(fixture.json(&skipped), json!({"recovered": 1}));
    assert_eq!(relay(&fixture), [1]);
}

#[tokio::test]
async fn a_replay_goes_back_entirely_or_gives_only_a_range() {
    let fixture = troubled().await;
    fixture.ok(&["outbox", "redrive", "billing"]);
    relay(&fixture);
    let range = ["outbox", "replay", "billing", "--from", "2", "--to", "3"];
    assert_eq!(fixture.ok(&range), "2 events come again\n");
    assert_eq!(relay(&fixture), [2, 3]);
    let run = fixture.run(&[&range[..], &["--limit", "1"]].concat());
    assert!(run.code == 2 && run.err.contains("22023"), "{run:?}");
    let run = fixture.run(&["outbox", "replay", "billing", "--from", "2", "--to", "1h"]);
    assert_eq!(run.code, 2, "a number and a time make no range: {run:?}");
    assert_eq!(
        fixture.json(&["outbox", "replay", "billing", "--from", "1h", "--to", "0s"]),
        json!({"replayed": 4})
    );
    relay(&fixture);

    assert_eq!(
        fixture.ok(&["outbox", "replay", "billing", "--from", "3"]),
        "billing goes back to event 3\n"
    );
    assert_eq!(relay(&fixture).len(), 2);
    let evict = ["outbox", "evict", "billing", "--reason", "forgotten"];
    assert_eq!(fixture.run(&evict).code, 11);
    fixture.ok(&[&evict[..], &["--yes"]].concat());
    assert!(
        fixture
            .ok(&["outbox", "evict", "billing", "--reason", "x", "--yes"])
            .contains("before")
    );
    let preview = fixture.ok(&[&evict[..], &["--dry-run"]].concat());
    assert_eq!(preview, "billing was evicted before\n");
    let run = fixture.run(&[
        "relay",
        "--subscription",
        "billing",
        "--sink",
        "stdout:",
        "--once",
    ]);
    assert!(run.code == 1 && run.err.contains("P4031"), "{run:?}");
    fixture.ok(&["outbox", "replay", "billing", "--from", "1h"]);
    assert_eq!(relay(&fixture).len(), 4);
}

#[tokio::test]
async fn a_replay_admits_an_evicted_subscription_also_where_nothing_comes_again() {
    let fixture = Fixture::installed().await;
    fixture.ok(&["outbox", "subscriptions", "create", "billing"]);
    fixture
        .sql("select pgonce.publish('orders', 'order.changed', 'a', '{\"n\": 1}')")
        .await;
    assert_eq!(relay(&fixture), [1]);
    let evict = ["outbox", "evict", "billing", "--reason", "r", "--yes"];
    let replay = |from: &'static str| ["outbox", "replay", "billing", "--from", from];
    fixture.ok(&evict);
    assert_eq!(
        fixture.ok(&replay("1000")),
        "billing reads again, from the next event on\n"
    );
    assert!(relay(&fixture).is_empty());
    fixture.ok(&evict);
    assert_eq!(
        fixture.json(&replay("1")),
        json!({"first": 1, "readmitted": true})
    );
    assert_eq!(relay(&fixture), [1]);
    fixture.ok(&evict);
    assert_eq!(
        fixture.ok(&replay("1")),
        "billing reads again, from event 1\n"
    );
}

#[tokio::test]
async fn a_replay_never_goes_forward_and_a_length_of_time_is_what_it_says() {
    let fixture = Fixture::installed().await;
    fixture.ok(&["outbox", "subscriptions", "create", "billing"]);
    // 80, 20, 10 and 0 days ago.
    for (n, days) in [(1, 60), (2, 10), (3, 10), (4, 0)] {
        let publish = format!(
            "select pgonce.publish('orders', 'order.changed', 'a', '{{\"n\": {n}}}'); select pgonce._move_clock('{days} days')"
        );
        fixture.sql(&publish).await;
    }
    let replay = |from: &str| fixture.ok(&["outbox", "replay", "billing", "--from", from]);
    let waiting = || only(&fixture, &["outbox", "status"])["waiting"].clone();
    for from in ["2h", "15d", "3", "1000", "0s"] {
        let words = replay(from);
        assert!(words.starts_with("billing does not go back"), "{words}");
        assert_eq!(waiting(), 4, "{from}");
    }
    assert_eq!(relay(&fixture), [1, 2, 3, 4]);
    assert_eq!(
        fixture.json(&["outbox", "replay", "billing", "--from", "0s"]),
        json!({"first": null, "readmitted": false})
    );
    // A month, not a minute.
    assert_eq!(replay("1M"), "billing goes back to event 2\n");
    assert_eq!(relay(&fixture), [2, 3, 4]);
    assert_eq!(replay("15d"), "billing goes back to event 3\n");
    assert_eq!(relay(&fixture), [3, 4]);
}

#[tokio::test]
async fn subscriptions_are_created_altered_listed_and_dropped() {
    let fixture = Fixture::installed().await;
    let made = fixture.json(&[
        "outbox",
        "subscriptions",
        "create",
        "billing",
        "--from",
        "now",
        "--topics",
        "orders,refunds.*",
        "--types",
        "order.*",
        "--tenants",
        "acme",
        "--max-attempts",
        "3",
        "--backoff",
        "2s",
        "--max-backoff",
        "1m",
        "--dead-limit",
        "5",
        "--when-full",
        "discard",
    ]);
    let expected = json!({
        "subscription": "billing", "topics": ["orders", "refunds.*"], "types": ["order.*"], "tenants": ["acme"],
        "max_attempts": 3, "backoff": "00:00:02", "max_backoff": "00:01:00", "dead_limit": 5,
        "when_full": "discard", "created_at": made["created_at"], "evicted_at": null, "evicted_why": null,
    });
    assert_eq!(made, expected);
    let run = fixture.run(&["outbox", "subscriptions", "create", "billing"]);
    assert!(run.code == 1 && run.err.contains("42710"), "{run:?}");
    let altered = fixture.json(&[
        "outbox",
        "subscriptions",
        "alter",
        "billing",
        "--topics",
        "*",
        "--when-full",
        "stop",
    ]);
    assert_eq!(
        (&altered["topics"], &altered["when_full"], &altered["types"]),
        (&Value::Null, &json!("stop"), &json!(["order.*"]))
    );
    let run = fixture.run(&[
        "outbox",
        "subscriptions",
        "alter",
        "billing",
        "--max-attempts",
        "0",
    ]);
    assert!(
        run.code == 2 && run.err.contains("attempts_are_positive"),
        "{run:?}"
    );
    assert_eq!(
        only(&fixture, &["outbox", "subscriptions"])["subscription"],
        "billing"
    );
    let drop = ["outbox", "subscriptions", "drop", "billing"];
    assert_eq!(fixture.run(&drop).code, 11);
    fixture.ok(&[&drop[..], &["--dry-run"]].concat());
    fixture.ok(&[&drop[..], &["--yes"]].concat());
    assert_eq!(
        fixture.json(&["outbox", "subscriptions", "list"]),
        json!([])
    );
}

#[tokio::test]
async fn retention_is_shown_and_changed_and_purge_maintains_the_log() {
    let fixture = Fixture::installed().await;
    assert_eq!(fixture.json(&["outbox", "retention"])["keep"], "1 day");
    let changed = fixture.json(&["outbox", "retention", "--keep", "1h", "--max-keep", "7d"]);
    assert_eq!(
        (&changed["keep"], &changed["max_keep"]),
        (&json!("01:00:00"), &json!("7 days"))
    );
    let run = fixture.run(&["outbox", "retention", "--keep", "7d", "--max-keep", "1h"]);
    assert!(
        run.code == 2 && run.err.contains("max_keep_is_longer"),
        "{run:?}"
    );
    // Events beyond the partitions that are there: purge makes the next.
    fixture
        .sql("select setval('pgonce.outbox_seq', 1500000)")
        .await;
    assert_eq!(fixture.json(&["outbox", "retention"])["partitions"], 2);
    fixture.ok(&["purge"]);
    assert_eq!(fixture.json(&["outbox", "retention"])["partitions"], 4);
}

#[test]
fn what_makes_no_sense_is_exit_2_before_anybody_is_asked() {
    for args in [
        &["recover", "c"][..],
        &["recover", "c", "--since", "30"],
        &["replay", "c"],
        &["replay", "c", "--from", "-1"],
        &["skip", "c", "one", "--reason", "x"],
        &["skip", "c", "1"],
        &["evict", "c"],
        &["list", "--state", "lost"],
        &["subscriptions", "create", "c", "--from", "never"],
        &["subscriptions", "create", "c", "--backoff", "5"],
        &["retention", "--max-keep", "1d"],
        &["retention", "--keep", "1M"],
        &["retention", "--keep", "1 M 2h"],
    ] {
        let run = without_database(&[&["outbox"], args].concat());
        assert_eq!(run.code, 2, "{args:?}: {run:?}");
    }
}

#[tokio::test]
async fn a_relay_follows_the_write_ahead_log_only_where_the_server_can() {
    let fixture = Fixture::installed().await;
    fixture.ok(&["outbox", "subscriptions", "create", "billing"]);
    let tail = fixture.json(&["outbox", "tail"]);
    assert_eq!(
        (&tail["allowed"], &tail["relays"]),
        (&json!(false), &json!(0))
    );
    for (turn, allowed) in [("on", true), ("on", true), ("off", false), ("on", true)] {
        assert_eq!(fixture.json(&["outbox", "tail", turn])["allowed"], allowed);
    }
    // The servers of tests have PostgreSQL's own wal_level, which is not enough.
    let relay = [
        "relay",
        "--subscription",
        "billing",
        "--sink",
        "stdout:",
        "--once",
    ];
    let run = fixture.run(&[&relay[..], &["--wal"]].concat());
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.err.contains("wal_level is replica, not logical"),
        "{run:?}"
    );
    assert!(run.err.contains("55000"), "{run:?}");
    let by_variable = fixture.command(&relay).env("PGONCE_WAL", "1").output();
    assert_eq!(by_variable.unwrap().status.code(), Some(1));
    let off = fixture.command(&relay).env("PGONCE_WAL", "0").output();
    assert_eq!(off.unwrap().status.code(), Some(0));
}

#[tokio::test]
async fn what_a_subscription_has_not_had_is_counted_before_it_is_dropped_or_evicted() {
    let fixture = Fixture::installed().await;
    fixture.ok(&[
        "outbox",
        "subscriptions",
        "create",
        "billing",
        "--topics",
        "wanted",
    ]);
    let publish = |topic: &str, events: u32| {
        format!(
            "select pgonce.publish('{topic}', 'x', 'a', '{{}}') from generate_series(1, {events})"
        )
    };
    // More than the view of all subscriptions looks at.
    fixture.sql(&publish("other", 600)).await;
    fixture.sql(&publish("wanted", 3)).await;
    assert_eq!(only(&fixture, &["outbox", "status"])["waiting"], 0);
    let role = format!("operator_{}", uuid::Uuid::new_v4().simple());
    fixture.sql(&format!("create role {role} login")).await;
    fixture.ok(&["migrate", "up", "--grant", &format!("operator={role}")]);
    let url = fixture.database.url();
    let (_, rest) = url.split_once('@').unwrap();
    let asked = |act: &[&str]| -> Value {
        let words = [act, &["--dry-run", "--format", "json"]].concat();
        let mut command = fixture.command(&words);
        command.env("DATABASE_URL", format!("postgres://{role}@{rest}"));
        let run = crate::fixture::Run::of(command.output().unwrap());
        assert_eq!(run.code, 0, "{run:?}");
        serde_json::from_str(&run.out).unwrap()
    };
    let evict = ["outbox", "evict", "billing", "--reason", "r"];
    let drop = ["outbox", "subscriptions", "drop", "billing"];
    for act in [&evict[..], &drop] {
        let asked = asked(act);
        assert_eq!(
            (&asked["count"], &asked["at_least"]),
            (&json!(3), &json!(false)),
            "{asked}"
        );
    }
    fixture.sql(&publish("wanted", 20_000)).await;
    for act in [&evict[..], &drop] {
        let asked = asked(act);
        assert_eq!(asked["at_least"], true, "{asked}");
        assert!(asked["count"].as_u64().unwrap() > 19_000, "{asked}");
        let words = asked["would"].as_str().unwrap();
        assert!(
            words.contains("with at least 19") && words.ends_with("undelivered events"),
            "{words}"
        );
    }
    fixture
        .sql(&format!("drop owned by {role}; drop role {role}"))
        .await;
}
