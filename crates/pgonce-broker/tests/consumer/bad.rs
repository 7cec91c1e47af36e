//! Messages that can never be applied are kept for an operator, with the reason, and the consumer goes on.

use std::sync::Arc;

use pgonce::inbox::{Message, Tx};
use pgonce_broker::{Consumer, Handler, cloud_event};

use super::fixture::{Db, Fixture, Running, quick};

#[tokio::test]
async fn bad_messages_are_poison_with_the_reason_and_the_others_flow() {
    let fixture = Fixture::new().await;
    let good = |id: &str| Message::new(id, "{}").kind("order.paid");
    let bad = [
        (
            "not_json",
            Message::new("b1", "{\"n\": ").kind("order.paid"),
        ),
        ("id_missing", good("")),
        (
            "oversize",
            Message::new("b3", "x".repeat(2000)).kind("order.paid"),
        ),
        ("unknown_type", Message::new("b4", "{}").kind("order.eaten")),
        ("unknown_type", Message::new("b5", "{}")),
        ("bad_name", good(&"i".repeat(300))),
        ("bad_name", good("b\0seven")),
        ("bad_name", good("b8").key("k".repeat(300))),
        (
            "not_json",
            Message::new("b9", [0xff, 0])
                .kind("order.paid")
                .header("h\0", "v\0"),
        ),
    ];
    for (n, (_, message)) in bad.iter().enumerate() {
        // Twice: the copy is known.
        fixture.shop.send(message.clone());
        fixture.shop.send(good(&format!("m{n}")));
        fixture.shop.send(message.clone());
    }
    let consumer = fixture
        .consumer()
        .json()
        .max_bytes(1000)
        .kinds(["order.paid"]);
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture.wait_for(bad.len() as u64).await;
    fixture.wait_for_acks(bad.len() as u64 * 3).await;
    running.stop().await.unwrap();
    fixture.check().await;
    let mut found: Vec<_> = fixture.inbox.poison("c", 100).await.unwrap();
    found.sort_by_key(|poison| poison.code.clone());
    let mut codes: Vec<_> = bad.iter().map(|(code, _)| (*code).to_owned()).collect();
    codes.sort();
    assert_eq!(
        found
            .iter()
            .map(|p| p.code.clone().unwrap())
            .collect::<Vec<_>>(),
        codes
    );
    assert_eq!(counts.poisoned(), bad.len() as u64);
    // What was cut can be looked at, but not tried again.
    let cut = found.iter().find(|p| p.id == "b3").unwrap();
    assert_eq!(
        fixture
            .inbox
            .retry("c", Some(cut.seq), "x")
            .await
            .unwrap_err()
            .code(),
        "22023"
    );
    let kept = "select octet_length(payload) || ' of ' || size from pgonce.inbox_poison where message_id = 'b3'";
    assert_eq!(fixture.world.see.text(kept).await, "1000 of 2000");
}

#[tokio::test]
async fn a_reader_that_panics_on_a_message_makes_it_poison_and_the_others_flow() {
    let fixture = Fixture::new().await;
    fixture.send(1, 30, 30);
    let consumer = fixture.consumer().read_with(|message| {
        assert_ne!(message.id, "m7", "the test's reader panics");
        Ok(())
    });
    let running = Running::start(consumer);
    fixture.wait_for_acks(30).await;
    fixture.wait_for(29).await;
    running.stop().await.unwrap();
    let found = fixture.inbox.poison("c", 10).await.unwrap();
    assert_eq!((found.len(), found[0].id.as_str()), (1, "m7"));
    assert_eq!(found[0].code.as_deref(), Some("unreadable"));
    let why = found[0].reason.as_deref().unwrap_or_default();
    assert!(why.contains("the test's reader panics"), "{why}");
}

#[tokio::test]
async fn the_same_id_with_another_payload_is_loud_and_stored_for_an_operator() {
    let fixture = Fixture::new().await;
    fixture.shop.send(Message::new("m1", "one"));
    fixture.shop.send(Message::new("m1", "two"));
    fixture.shop.send(Message::new("m1", "one"));
    fixture.shop.send(Message::new("m1", "two"));
    let consumer = fixture.consumer();
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture.wait_for_acks(4).await;
    fixture.wait_for(1).await;
    running.stop().await.unwrap();
    fixture.check().await;
    assert!(counts.conflicts() >= 1);
    let poison = fixture.inbox.poison("c", 10).await.unwrap();
    assert_eq!(poison.len(), 1);
    assert_eq!(poison[0].code.as_deref(), Some("P4050"));
    let payload = "select convert_from(payload, 'UTF8') from pgonce.inbox_poison";
    assert_eq!(fixture.world.see.text(payload).await, "two");
}

#[tokio::test]
async fn a_redelivery_with_other_bytes_holds_nothing_back() {
    let fixture = Fixture::new().await;
    let message = |n: u64, text: &str| Message::new(format!("m{n}"), text).key("k");
    fixture.shop.send(message(1, "one"));
    fixture.shop.send(message(1, "two"));
    let running = Running::start(fixture.consumer());
    fixture.wait_for_acks(2).await;
    let poison =
        "select count(*) = 1 from pgonce.inbox_poison where message_id = 'm1' and key = 'k'";
    fixture.world.see.wait_until(poison).await;
    for n in 2..=20 {
        fixture.shop.send(message(n, "next"));
    }
    fixture.wait_for(20).await;
    // Nor does it hold back what is stored behind a message that failed.
    fixture.witness.script(|id| match id {
        "m21" => Err(pgonce::Failure::transient("not_yet", "later").into()),
        _ => Ok(()),
    });
    fixture.shop.send(message(21, "next"));
    fixture.shop.send(message(22, "next"));
    fixture.wait_for_acks(23).await;
    // Before that a last attempt may be under way, and nobody would ask for another.
    let given_up = "select count(*) = 1 from pgonce.inbox_poison where message_id = 'm21'";
    fixture.world.see.wait_until(given_up).await;
    fixture.witness.heal();
    let failed = "select pgonce.retry_messages('c', m.seq) from pgonce.inbox_poison m where message_id = 'm21'";
    fixture.world.see.run(failed).await;
    fixture.wait_for(22).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn fields_that_do_not_count_make_no_conflict() {
    let fixture = Fixture::new().await;
    let message = |id: &str, amount: u64, time: u64| {
        Message::new(id, format!("{{\"amount\": {amount}, \"sent_at\": {time}}}"))
    };
    fixture.shop.send(message("m1", 5, 1));
    fixture.shop.send(message("m1", 5, 2));
    fixture.shop.send(message("m2", 5, 3));
    fixture.shop.send(message("m2", 6, 3));
    let without_time = pgonce::Fingerprint::canon().exclude(["/sent_at"]);
    let consumer = fixture.consumer().compare_by(without_time);
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture.wait_for_acks(4).await;
    fixture.wait_for(2).await;
    running.stop().await.unwrap();
    let poison = fixture.inbox.poison("c", 10).await.unwrap();
    assert_eq!(poison.len(), 1);
    assert_eq!(poison[0].id, "m2");
    assert_eq!((counts.duplicates(), counts.conflicts()), (1, 1));
}

#[tokio::test]
async fn an_envelope_is_read_and_what_came_is_what_is_compared_and_stored() {
    let fixture = Fixture::new().await;
    let event = |id: &str, n: u64, extra: &str| {
        let text = format!(
            "{{\"specversion\": \"1.0\", \"id\": \"{id}\", \"source\": \"/shop\", \"type\": \"t\", \
             \"subject\": \"k\", \"data\": {{\"n\": {n}}}{extra}}}"
        );
        Message::new("", text)
    };
    fixture.witness.script(|id| match id {
        "m2" => Err(pgonce::Failure::permanent("no", "never").into()),
        _ => Ok(()),
    });
    fixture.shop.send(event("m1", 1, ""));
    fixture.shop.send(event("m1", 1, ""));
    fixture.shop.send(event("m2", 2, ""));
    fixture.shop.send(Message::new("x", "{}"));
    // Not the same message, although the data is: the envelope counts.
    fixture.shop.send(event("m1", 1, ", \"more\": true"));
    let running = Running::start(fixture.consumer().read_with(cloud_event));
    fixture.wait_for_acks(5).await;
    let poisoned = "select string_agg(message_id || ' ' || failure_code, ',' order by message_id, failure_code) \
         from pgonce.inbox_poison";
    fixture
        .world
        .see
        .wait_until(&format!(
            "select ({poisoned}) = 'm1 P4050,m2 no,x unreadable'"
        ))
        .await;
    // Stored as it came, and read again when it is tried again.
    let stored = "select count(*) from pgonce.inbox_poison where message_id = 'm2' \
         and convert_from(payload, 'UTF8')::jsonb @> '{\"specversion\": \"1.0\"}'";
    assert_eq!(fixture.world.see.number(stored).await, 1);
    fixture.witness.heal();
    let poison = fixture.inbox.poison("c", 10).await.unwrap();
    let conflict = poison.iter().find(|p| p.id == "m1").unwrap();
    assert!(
        fixture
            .inbox
            .skip("c", conflict.seq, "the sender says so")
            .await
            .unwrap()
    );
    let refused = poison.iter().find(|p| p.id == "m2").unwrap();
    fixture
        .inbox
        .retry("c", Some(refused.seq), "healed")
        .await
        .unwrap();
    fixture.wait_for(2).await;
    running.stop().await.unwrap();
}

/// Adds to a projection.
#[derive(Clone)]
struct Project;

impl Handler<Db> for Project {
    async fn apply(&self, mut tx: Tx<Db>, message: Arc<Message>) -> pgonce::Result<()> {
        let sql = "select pgonce.project('balance', $1, null, $2, $3::text::jsonb)";
        let payload = std::str::from_utf8(&message.payload).unwrap();
        let row: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&message.id, &message.key, &payload];
        tx.conn().execute(sql, &row).await?;
        Ok(())
    }
}

/// What is stored is the envelope: built from that, the table would be wrong or empty.
#[tokio::test]
async fn a_projection_of_what_was_inside_envelopes_is_not_built_from_the_envelopes() {
    let fixture = Fixture::new().await;
    let see = &fixture.world.see;
    let define = "create table balance (account text primary key, amount bigint not null);
        create function apply_balance(p_into regclass, p_event pgonce.projected) returns void language plpgsql as $$
        begin
            execute format('insert into %s as b values ($1, $2) on conflict (account) do update set amount = b.amount + excluded.amount', p_into)
                using p_event.entity, coalesce((p_event.payload ->> 'delta')::bigint, 0);
        end $$;
        select pgonce.define_projection('balance', 'balance', 'apply_balance', 'marker', p_from_consumer => 'c')";
    see.run(define).await;
    let consumer = |message: Message| {
        fixture.shop.send(message);
        quick(Consumer::new(
            &fixture.once(),
            "c",
            fixture.shop.source(),
            Project,
        ))
        .store_first()
    };
    let plain = Message::new("m1", "{\"delta\": 2}").key("a");
    let running = Running::start(consumer(plain));
    see.wait_until("select count(*) = 1 from balance where amount = 2")
        .await;
    running.stop().await.unwrap();
    assert_eq!(fixture.inbox.rebuild("balance").await.unwrap().removed, 0);
    let event = "{\"specversion\": \"1.0\", \"id\": \"m2\", \"source\": \"/shop\", \"type\": \"t\", \"subject\": \"a\", \
        \"data\": {\"delta\": 3}}";
    let running = Running::start(consumer(Message::new("", event)).read_with(cloud_event));
    see.wait_until("select count(*) = 1 from balance where amount = 5")
        .await;
    running.stop().await.unwrap();
    let verified = fixture.inbox.verify("balance").await;
    assert_eq!(verified.unwrap_err().code(), "55000");
    let rebuilt = fixture.inbox.rebuild("balance").await;
    assert_eq!(rebuilt.unwrap_err().code(), "55000");
    assert_eq!(see.number("select amount from balance").await, 5);
}
