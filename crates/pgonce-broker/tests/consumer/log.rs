//! From our own outbox, without a broker: effects here, reply there, applied once.

use pgonce::outbox::{Event, Subscription};
use pgonce_broker::Consumer;
use pgonce_broker::sources::OutboxLog;

use super::fixture::{Fixture, Running, quick};

#[tokio::test]
async fn what_is_published_is_applied_once_and_in_the_order_of_its_subject() {
    let fixture = Fixture::new().await;
    let outbox = fixture.once().outbox();
    outbox
        .create_subscription(&Subscription::new("c"))
        .await
        .unwrap();
    let publish = |from: u64, to: u64| {
        let see = &fixture.world.see;
        async move {
            let sql = format!(
                "select pgonce.publish('orders', 'x', 'k' || i % 5, jsonb_build_object('n', i), \
                 p_message_id => ('00000000-0000-4000-8000-' || lpad(i::text, 12, '0'))::uuid) \
                 from generate_series({from}, {to}) i"
            );
            see.run(&sql).await;
        }
    };
    let start = || {
        let source = OutboxLog::new(fixture.once().outbox(), "c");
        quick(Consumer::new(
            &fixture.once(),
            "c",
            source,
            fixture.witness.clone(),
        ))
    };
    publish(1, 200).await;
    let consumer = start();
    let counts = consumer.counts();
    let running = Running::start(consumer);
    let there = |n: u64| format!("select count(distinct id) = {n} from seen");
    fixture.world.see.wait_until(&there(200)).await;
    assert!(counts.lag() < super::fixture::DEADLINE);
    // Killed, it leaves some to be delivered again: copies, which are known.
    running.kill().await;
    fixture
        .world
        .see
        .run("select pgonce._move_clock('1 minute')")
        .await;
    publish(201, 300).await;
    let running = Running::start(start());
    fixture.world.see.wait_until(&there(300)).await;
    running.stop().await.unwrap();
    let see = &fixture.world.see;
    assert_eq!(see.number("select count(*) from seen").await, 300);
    let turned = "select count(*) from (select right(id, 12)::bigint as sent, lag(right(id, 12)::bigint) \
         over (partition by key order by n) as before from seen) o where sent < before";
    assert_eq!(see.number(turned).await, 0);
}

#[tokio::test]
async fn a_consumer_that_stopped_has_recorded_what_it_applied_and_keeps_no_lane() {
    let fixture = Fixture::new().await;
    let outbox = fixture.once().outbox();
    outbox
        .create_subscription(&Subscription::new("c"))
        .await
        .unwrap();
    let see = &fixture.world.see;
    see.run("select pgonce.publish('orders', 'x', 'k' || i, '1') from generate_series(1, 50) i")
        .await;
    let source = OutboxLog::new(outbox, "c");
    let consumer = Consumer::new(&fixture.once(), "c", source, fixture.witness.clone());
    let running = Running::start(quick(consumer));
    see.wait_until("select count(*) = 50 from seen").await;
    running.stop().await.unwrap();
    // At once: a process that is asked to end does so now.
    let left = "select waiting || ' ' || (select count(*) from pgonce.outbox_cursor where owner is not null) \
                from pgonce.outbox_backlog where subscription = 'c'";
    assert_eq!(see.text(left).await, "0 0");
}

#[tokio::test]
async fn a_reader_that_was_never_created_ends_the_consumer_with_a_reason() {
    let fixture = Fixture::new().await;
    let source = OutboxLog::new(fixture.once().outbox(), "nobody");
    let consumer = Consumer::new(&fixture.once(), "c", source, fixture.witness.clone());
    let ended = Running::start(quick(consumer)).ended().await.unwrap_err();
    assert!(ended.to_string().contains("nobody"), "{ended}");
}

#[tokio::test]
async fn an_event_that_a_handler_publishes_exists_if_and_only_if_the_message_was_applied() {
    let fixture = Fixture::new().await;
    fixture.send(1, 20, 4);
    let handler = |mut tx: pgonce::inbox::Tx<super::fixture::Db>,
                   message: std::sync::Arc<pgonce::inbox::Message>| async move {
        tx.publish(&Event::new("replies", "received").subject(message.id.clone()))
            .await?;
        if message.id == "m7" {
            return Err(pgonce::Failure::permanent("no", "never").into());
        }
        Ok(())
    };
    let consumer = Consumer::new(&fixture.once(), "c", fixture.shop.source(), handler);
    let running = Running::start(quick(consumer));
    fixture.wait_for_acks(20).await;
    running.stop().await.unwrap();
    let see = &fixture.world.see;
    let behind = see
        .number("select behind from pgonce.inbox_poison where message_id = 'm7'")
        .await;
    let reply = "select count(distinct subject) || ' ' || count(*) from pgonce.outbox where subject <> 'm7'";
    assert_eq!(see.text(reply).await, format!("{0} {0}", 19 - behind));
    assert_eq!(
        see.number("select count(*) from pgonce.outbox where subject = 'm7'")
            .await,
        0
    );
}
