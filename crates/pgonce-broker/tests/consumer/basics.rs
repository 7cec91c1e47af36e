//! Every message has one effect, however often and by however many it is delivered.

use std::sync::Arc;
use std::time::Duration;

use pgonce::inbox::{Message, Tx};
use pgonce_broker::{Batches, Consumer};

use super::fixture::{Db, Fixture, Running, Witness, message, quick};

#[tokio::test]
async fn delivered_one_to_fifty_times_in_any_order_it_is_applied_once() {
    let fixture = Fixture::new().await;
    // No keys: no order is promised, and none is kept.
    for copy in 0..50u64 {
        for n in 1..=20u64 {
            if copy < 1 + (n * 49) / 20 {
                let turned = if copy % 2 == 0 { n } else { 21 - n };
                fixture.shop.send(Message::new(format!("m{turned}"), "{}"));
            }
        }
    }
    let sent = fixture.shop.waiting() as u64;
    let consumer = fixture.consumer().batch(7, Duration::from_millis(1));
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture.wait_for_acks(sent).await;
    fixture.wait_for(20).await;
    running.stop().await.unwrap();
    fixture.check().await;
    assert_eq!(counts.applied(), 20);
    assert_eq!(counts.duplicates(), sent - 20);
}

#[tokio::test]
async fn order_is_kept_inside_a_key_and_keys_go_side_by_side() {
    let fixture = Fixture::new().await;
    fixture.send(1, 500, 7);
    let running = Running::start(fixture.consumer().batch(20, Duration::from_millis(1)));
    fixture.wait_for(500).await;
    fixture.wait_for_acks(500).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.shop.waiting(), 0);
}

#[tokio::test]
async fn two_workers_on_the_same_messages_apply_each_once() {
    let fixture = Fixture::new().await;
    for n in 1..=200 {
        for _ in 0..3 {
            fixture.shop.send(Message::new(format!("m{n}"), "{}"));
        }
    }
    let workers = [fixture.run(), fixture.run(), fixture.run()];
    fixture.wait_for_acks(600).await;
    fixture.wait_for(200).await;
    for worker in workers {
        worker.stop().await.unwrap();
    }
    fixture.check().await;
}

#[tokio::test]
async fn two_consumers_do_not_disturb_each_other() {
    let fixture = Fixture::new().await;
    let other = pgonce_broker::sources::Channel::new("shop");
    for n in 1..=50 {
        fixture.shop.send(message(n, 5));
        other.send(message(n, 5));
    }
    let second = Witness::of("d");
    second.script(|id| match id {
        "m7" => Err(pgonce::Failure::permanent("no", "never").into()),
        _ => Ok(()),
    });
    let once = fixture.once();
    let running = [
        fixture.run(),
        Running::start(quick(Consumer::new(&once, "d", other.source(), second))),
    ];
    fixture.wait_for(50).await;
    let poisoned = "select count(*) = 1 from pgonce.inbox_poison where consumer = 'd'";
    fixture.world.see.wait_until(poisoned).await;
    for one in running {
        one.stop().await.unwrap();
    }
    assert!(fixture.inbox.poison("c", 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn many_at_once_in_one_statement() {
    let fixture = Fixture::new().await;
    fixture.send(1, 300, 3);
    let handler = Batches(|mut tx: Tx<Db>, messages: Vec<Arc<Message>>| async move {
        let ids: Vec<_> = messages.iter().map(|m| m.id.clone()).collect();
        let keys: Vec<_> = messages.iter().map(|m| m.key.clone()).collect();
        let sql = "insert into seen (consumer, id, key) select 'c', * from unnest($1::text[], $2::text[])";
        tx.conn().execute(sql, &[&ids, &keys]).await?;
        if ids.iter().any(|id| id == "m77") {
            return Err(pgonce::Failure::permanent("no", "never").into());
        }
        Ok(())
    });
    let consumer = Consumer::new(&fixture.once(), "c", fixture.shop.source(), handler);
    let counts = consumer.counts();
    let running = Running::start(quick(consumer));
    fixture.wait_for_acks(300).await;
    running.stop().await.unwrap();
    fixture.check().await;
    // m77 needs manual action, and so does what came for its key.
    assert_eq!(counts.poisoned(), 1);
    assert!(counts.splits() > 0);
    let poison = fixture.inbox.poison("c", 10).await.unwrap();
    assert_eq!((poison.len(), poison[0].id.as_str()), (1, "m77"));
    let left = 300 - fixture.world.see.number("select count(*) from seen").await;
    assert_eq!(poison[0].behind + 1, u64::try_from(left).unwrap());
}

#[tokio::test]
async fn a_stop_finishes_what_is_in_hand_and_gives_the_rest_back() {
    let fixture = Fixture::new().await;
    fixture.send(1, 1000, 10);
    let running = Running::start(fixture.consumer().batch(5, Duration::from_millis(1)));
    fixture.wait_for(20).await;
    running.stop().await.unwrap();
    fixture.check().await;
    let applied = fixture.world.see.number("select count(*) from seen").await;
    assert_eq!(fixture.shop.acked(), u64::try_from(applied).unwrap());
    assert_eq!(fixture.shop.waiting() as u64 + fixture.shop.acked(), 1000);
    let running = fixture.run();
    fixture.wait_for(1000).await;
    running.stop().await.unwrap();
    fixture.check().await;
}
