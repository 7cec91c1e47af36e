//! An event exists if and only if its effect committed, with an id that is the same on every attempt.

use std::time::{Duration, SystemTime};

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::Event;
use pgonce::{Ack, Claim, Error, Failure};
use pgonce_tests::{
    TestDriver, World, effect, for_each_driver, for_each_driver_and_setting, intent,
};
use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

const COUNT: &str = "select count(*) from pgonce.outbox";

async fn an_event_exists_if_and_only_if_the_attempt_succeeded<D: TestDriver>(world: World<D>) {
    let event = Event::new("orders", "order.created")
        .subject("order-7")
        .header("traceparent", "00-1")
        .payload(&json!({"item": "book"}))
        .unwrap();
    let request = intent("k").tenant("acme").unwrap();
    let mut ids = Vec::new();
    for succeed in [false, false, true] {
        let Claim::Run(mut attempt) = world.once.claim(&request).await.unwrap() else {
            panic!("fresh")
        };
        effect(&mut attempt).await.unwrap();
        ids.push(attempt.publish(&event).await.unwrap());
        match succeed {
            true => drop(attempt.succeed(Ack::status()).await.unwrap()),
            false => attempt.abandon().await.unwrap(),
        }
        let n = i64::from(succeed);
        assert_eq!(
            (
                world.see.number(COUNT).await,
                world.see.effects(&request).await
            ),
            (n, n)
        );
    }
    let row = world
        .see
        .text("select concat_ws('|', message_id, tenant, topic, type, subject, headers, payload) from pgonce.outbox")
        .await;
    assert_eq!(
        row,
        format!(
            "{}|acme|orders|order.created|order-7|{{\"traceparent\": \"00-1\"}}|{{\"item\": \"book\"}}",
            ids[2]
        )
    );
}

async fn every_intent_type_and_ordinal_has_an_id_of_its_own<D: TestDriver>(world: World<D>) {
    let mut ids = Vec::new();
    // Names that run together in the same letters.
    for (tenant, key) in [("", "k"), ("t", "k"), ("", "k2"), ("t,5", "k"), ("", ",5k")] {
        for kind in ["a", "b"] {
            let request = intent(key).tenant(tenant).unwrap();
            let Claim::Run(mut attempt) = world.once.claim(&request).await.unwrap() else {
                panic!("fresh")
            };
            let event = Event::new("t", kind);
            let (first, second) = (
                attempt.publish(&event).await.unwrap(),
                attempt.publish(&event).await.unwrap(),
            );
            ids.extend([first, second]);
            attempt.abandon().await.unwrap();
        }
    }
    let made = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), made);
    assert!(ids.iter().all(|id| id.get_version_num() == 8));
}

for_each_driver_and_setting!(an_event_exists_if_and_only_if_the_attempt_succeeded);
for_each_driver!(every_intent_type_and_ordinal_has_an_id_of_its_own);

#[tokio::test]
async fn a_takeover_says_the_same_with_the_same_id() {
    let world = World::<TokioPostgres>::new().await;
    let event = Event::new("orders", "order.paid").subject("order-7");
    let request = intent("leased");
    let mut ids = Vec::new();
    for _ in 0..2 {
        let Claim::Run(lease) = world
            .once
            .lease(&request, Duration::from_secs(60))
            .await
            .unwrap()
        else {
            panic!("not ours")
        };
        let mut attempt = lease.begin().await.unwrap();
        ids.push(attempt.publish(&event).await.unwrap());
        drop(attempt);
        world
            .see
            .run("select pgonce._move_clock('2 minutes')")
            .await;
    }
    assert_eq!(ids[0], ids[1]);
    // Retries of an atomic attempt too, from the first that finds a record.
    let request = intent("retried");
    let mut ids = Vec::new();
    for _ in 0..3 {
        let Claim::Run(mut attempt) = world.once.claim(&request).await.unwrap() else {
            panic!("not ours")
        };
        ids.push(attempt.publish(&event).await.unwrap());
        attempt
            .fail(Failure::transient("later", "m"))
            .await
            .unwrap();
    }
    assert_eq!(ids[1], ids[2]);
}

#[tokio::test]
async fn a_rollback_to_a_savepoint_takes_the_count_back() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("begin; select * from pgonce.claim('s', 'k', '\\x01')")
        .await;
    let publish = "select pgonce.publish('t', 'x', 's', '{}')";
    let first = see.text(publish).await;
    see.run("savepoint a").await;
    let second = see.text(publish).await;
    see.run("rollback to a").await;
    assert_eq!(see.text(publish).await, second);
    assert_ne!(first, second);
    see.run("commit").await;
    // After the transaction there is no attempt any more: the id is random.
    assert_ne!(see.text(publish).await, see.text(publish).await);
}

#[tokio::test]
async fn two_intents_in_one_transaction_each_count_for_themselves() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let publish = "select pgonce.publish('t', 'x', 's', '{}')";
    // With a record of each, every attempt derives the same ids.
    for key in ["a", "b"] {
        see.run(&format!(
            "select pgonce.release('s', '{key}', c.fence) from pgonce.claim('s', '{key}', '\\x01', interval '1 minute') c"
        ))
        .await;
    }
    let mut ids = Vec::new();
    for keys in [["a", "b"], ["b", "a"]] {
        see.run("begin").await;
        for key in keys {
            see.run(&format!(
                "select * from pgonce.claim('s', '{key}', '\\x01')"
            ))
            .await;
            ids.push((key, see.text(publish).await));
        }
        see.run("rollback").await;
    }
    ids.sort();
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[2], ids[3]);
    assert_ne!(ids[0].1, ids[2].1);
}

#[tokio::test]
async fn it_is_published_on_any_connection_and_in_a_joined_transaction() {
    let world = World::<Sqlx>::new().await;
    let pool = world.once.driver().pool().clone();
    let mine = Uuid::from_u128(7);
    for commit in [false, true] {
        let mut tx = pool.begin().await.unwrap();
        let event = Event::new("t", "x").message_id(mine).tenant("acme");
        assert_eq!(world.once.publish(&mut tx, &event).await.unwrap(), mine);
        let Claim::Run(mut joined) = world.once.join(&mut tx, &intent("j")).await.unwrap() else {
            panic!("fresh")
        };
        let id = joined.publish(&Event::new("t", "y")).await.unwrap();
        assert_eq!(id.get_version_num(), 8);
        let _ = joined.succeed(Ack::status()).await.unwrap();
        match commit {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
        assert_eq!(world.see.number(COUNT).await, if commit { 2 } else { 0 });
    }
    // Without a subject an event is its own.
    let own = "select count(*) from pgonce.outbox where subject = message_id::text";
    assert_eq!(world.see.number(own).await, 2);
}

#[tokio::test]
async fn what_does_not_fit_is_refused_before_anything_is_written() {
    let world = World::<TokioPostgres>::new().await;
    let mut client = world.once.driver().pool().get().await.unwrap();
    let long = "x".repeat(256);
    let events = [
        Event::new("", "x"),
        Event::new("t", ""),
        Event::new(long.as_str(), "x"),
        Event::new("t", long.as_str()),
        Event::new("t", "x").subject(""),
        Event::new("t", "x").subject(long.as_str()),
        Event::new("t", "x").tenant(long.as_str()),
        Event::new("t", "x").header("h", "y".repeat(70_000)),
        Event::new("t", "x").header("X-Request-Id", "1"),
        Event::new("t", "x").header("", "1"),
        Event::new("t", "x").header("a".repeat(21), "1"),
        Event::new("t", "x").header("id", "1"),
        Event::new("t", "x")
            .payload(&"z".repeat(2_000_000))
            .unwrap(),
    ];
    for event in events {
        let mut tx = client.transaction().await.unwrap();
        let refused = world.once.publish(&mut tx, &event).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
        assert!(refused.to_string().contains("Hint"), "{refused}");
    }
    assert_eq!(world.see.number(COUNT).await, 0);
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_800_000_000_123_456);
    let mut tx = client.transaction().await.unwrap();
    let event = Event::new("t", "x").deliver_at(at);
    let _ = world.once.publish(&mut tx, &event).await.unwrap();
    tx.commit().await.unwrap();
    let kept = "select extract(epoch from deliver_at) from pgonce.outbox";
    assert_eq!(world.see.text(kept).await, "1800000000.123456");
}

#[tokio::test]
async fn the_function_refuses_the_same_and_is_not_fooled_by_what_is_stored_compressed() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    // Three million bytes that take some ten thousand in a table.
    see.run("create table docs (name text, doc jsonb)").await;
    see.run("insert into docs values ('large', to_jsonb(repeat('x', 3000000))), ('fits', to_jsonb(repeat('x', 100000)))")
        .await;
    let stored = "select pg_column_compression(doc) is not null from docs where name = 'fits'";
    assert_eq!(see.text(stored).await, "t");
    let publish = |args: &str| format!("select pgonce.publish({args})");
    for (args, wrong) in [
        ("null, 'x', 's', '{}'", "topic"),
        ("'', 'x', 's', '{}'", "topic"),
        ("'t', repeat('x', 256), 's', '{}'", "type"),
        ("'t', '', 's', '{}'", "type"),
        ("'t', 'x', '', '{}'", "subject"),
        ("'t', 'x', repeat('x', 256), '{}'", "subject"),
        (
            "'t', 'x', 's', '{}', p_tenant => repeat('x', 256)",
            "tenant",
        ),
        ("'t', 'x', 's', '{}', p_tenant => null", "tenant"),
        ("'t', 'x', 's', '{}', p_headers => '[]'", "headers"),
        ("'t', 'x', 's', '{}', p_headers => null", "headers"),
        (
            "'t', 'x', 's', '{}', p_headers => '{\"X-Request-Id\": 1}'",
            "header",
        ),
        ("'t', 'x', 's', '{}', p_headers => '{\"\": 1}'", "header"),
        (
            "'t', 'x', 's', '{}', p_headers => jsonb_build_object(repeat('a', 21), 1)",
            "header",
        ),
        ("'t', 'x', 's', '{}', p_headers => '{\"id\": 1}'", "header"),
        (
            "'t', 'x', 's', (select doc from docs where name = 'large')",
            "payload",
        ),
    ] {
        let refused = see.code(&publish(args)).await;
        let code = match wrong {
            "payload" => "P4041",
            _ => "22023",
        };
        assert_eq!(refused, code, "{args}: {wrong}");
    }
    assert_eq!(see.number(COUNT).await, 0);
    for args in [
        "repeat('t', 255), repeat('x', 255), repeat('s', 255), null, p_tenant => repeat('c', 255)",
        "'t', 'x', null, '{}'",
        "'t', 'x', 's', '{}', p_headers => jsonb_build_object(repeat('a', 20), 1)",
        "'t', 'x', 's', (select doc from docs where name = 'fits')",
    ] {
        see.run(&publish(args)).await;
    }
    // What a relay counts is what it will get.
    let sizes = "select string_agg((size > 100000)::text, ' ' order by seq) from pgonce.outbox";
    assert_eq!(see.text(sizes).await, "false false false true");
}

/// A number of a few bytes may have more than a hundred thousand digits, and readers get them all.
#[tokio::test]
async fn an_event_weighs_what_its_readers_get() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let numbers = |number: &str, count: usize| format!("[{}1]", format!("{number},").repeat(count));
    let mut client = world.once.driver().pool().get().await.unwrap();
    // What could not be printed, what is far below 8 KiB, what is above, and digits that are zeros.
    for (number, count) in [
        ("1e131071", 8200),
        ("1e131071", 8),
        ("1e308", 3500),
        ("0e-16383", 64),
    ] {
        let json = numbers(number, count);
        let payload = format!("select pgonce.publish('t', 'x', 's', '{json}')");
        assert_eq!(see.code(&payload).await, "P4041", "{count} {number}");
        let headers = format!(
            "select pgonce.publish('t', 'x', 's', '{{}}', p_headers => '{{\"a\": {json}}}')"
        );
        assert_eq!(see.code(&headers).await, "P4042", "{count} {number}");
        let raw: &RawValue = serde_json::from_str(&json).unwrap();
        for event in [
            Event::new("t", "x"),
            Event::new("t", "x").message_id(Uuid::from_u128(7)),
        ] {
            let mut tx = client.transaction().await.unwrap();
            let event = event.payload(raw).unwrap();
            let refused = world.once.publish(&mut tx, event).await.unwrap_err();
            assert_eq!(refused.code(), "P4041", "{count} {number}: {refused}");
        }
    }
    let mut tx = client.transaction().await.unwrap();
    let event = Event::new("t", "x").header("a", json!(vec![1e300; 300]));
    let refused = world.once.publish(&mut tx, event).await.unwrap_err();
    assert_eq!(refused.code(), "P4042", "{refused}");
    tx.rollback().await.unwrap();
    assert_eq!(see.number(COUNT).await, 0);

    for payload in [
        "null",
        "'{}'",
        "'[1e131071,1e131071]'",
        "to_jsonb(repeat('\"', 9000))",
        "to_jsonb(repeat('x', 100000))",
    ] {
        see.run(&format!("select pgonce.publish('t', 'x', 's', {payload})"))
            .await;
        see.run(&format!(
            "select pgonce.publish('t', 'x', 's', {payload}, p_headers => '{{\"a\": 1e300}}')"
        ))
        .await;
    }
    let mut tx = client.transaction().await.unwrap();
    for payload in [json!({"a": "\"\""}), json!([1e300, 2])] {
        let event = Event::new("t", "x").payload(&payload).unwrap();
        let _ = world.once.publish(&mut tx, event).await.unwrap();
    }
    tx.commit().await.unwrap();
    let light = "select count(*) from pgonce.outbox \
         where size <> octet_length(headers::text) + coalesce(octet_length(payload::text), 0)";
    assert_eq!((see.number(COUNT).await, see.number(light).await), (12, 0));
}

#[tokio::test]
async fn the_view_has_the_columns_that_debezium_expects() {
    let world = World::<TokioPostgres>::new().await;
    world
        .see
        .run("select pgonce.publish('orders', 'order.created', 'order-7', '{\"a\": 1}', p_headers => '{\"traceparent\": \"00-1\"}')")
        .await;
    let row = world
        .see
        .rows("select aggregatetype, aggregateid, type, payload, tracingspancontext from pgonce.outbox_events")
        .await;
    let expected = ["orders", "order-7", "order.created", "{\"a\": 1}", "00-1"];
    assert_eq!(row[0], expected.map(|cell| Some(cell.to_owned())));
}

#[tokio::test]
async fn an_application_cannot_write_an_event_that_stops_those_who_read() {
    let world = World::<TokioPostgres>::new().await;
    let row = |changes: &[(&str, &str)]| {
        let plain = [
            ("seq", "nextval('pgonce.outbox_seq')"),
            ("xid", "pg_current_xact_id()"),
            ("created_at", "now()"),
            ("size", "4"),
            ("lane", "pgonce._lane_of('', 's')"),
            ("message_id", "gen_random_uuid()"),
            ("tenant", "''"),
            ("topic", "'t'"),
            ("type", "'x'"),
            ("subject", "'s'"),
            ("headers", "'{}'"),
            ("payload", "'{}'"),
        ];
        let (names, values): (Vec<_>, Vec<_>) = plain
            .into_iter()
            .map(|(name, value)| {
                let change = changes.iter().find(|(changed, _)| *changed == name);
                (name, change.map_or(value, |(_, value)| value))
            })
            .unzip();
        format!(
            "begin; set local role world_app; insert into pgonce.outbox ({}) values ({})",
            names.join(", "),
            values.join(", ")
        )
    };
    let long = "repeat('l', 6400)";
    let lane_of_long =
        |tenant: &str, subject: &str| format!("pgonce._lane_of({tenant}, {subject})");
    let (of_subject, of_tenant) = (lane_of_long("''", long), lane_of_long(long, "'s'"));
    for bad in [
        row(&[("created_at", "'infinity'")]),
        row(&[("created_at", "'-infinity'")]),
        row(&[("size", "-1")]),
        row(&[("lane", "16")]),
        row(&[("lane", "-1")]),
        row(&[("lane", "(pgonce._lane_of('', 's') + 1) % 16")]),
        row(&[("headers", "'[]'")]),
        row(&[("topic", "''")]),
        row(&[("topic", long)]),
        row(&[("type", "''")]),
        row(&[("type", long)]),
        row(&[("subject", "''"), ("lane", "pgonce._lane_of('', '')")]),
        row(&[("subject", long), ("lane", &of_subject)]),
        row(&[("tenant", long), ("lane", &of_tenant)]),
        row(&[("size", "3")]),
        row(&[("payload", "'[1e1000]'"), ("size", "100")]),
        row(&[("headers", "'{\"a\": 1e1000}'"), ("size", "100")]),
        row(&[
            ("size", "2000000"),
            ("payload", "to_jsonb(repeat('x', 1500000))"),
        ]),
    ] {
        assert_eq!(world.see.code(&bad).await, "42501", "{bad}");
        world.see.run("rollback").await;
    }
    world.see.run(&row(&[])).await;
    world.see.run("commit").await;
    assert_eq!(world.see.number(COUNT).await, 1);
}
