//! Handlers that take too long: they are ended, and nothing of them is left.

use std::sync::Arc;
use std::time::Duration;

use pgonce::Once;
use pgonce::driver::sqlx::Sqlx;
use pgonce::inbox::{Message, Tx};
use pgonce_broker::{Consumer, HttpHandler};
use pgonce_tests::{Cutter, Observer, TestDriver};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::fixture::{Db, Fixture, Running, quick};

const SHORT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_handler_that_never_ends_fails_and_is_poisoned_in_the_end() {
    let fixture = Fixture::new().await;
    fixture.send(1, 20, 20);
    let handler = |mut tx: Tx<Db>, message: Arc<Message>| async move {
        let sql = "insert into seen (consumer, id) values ('c', $1)";
        tx.conn().execute(sql, &[&message.id]).await?;
        if message.id == "m7" {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let consumer = Consumer::new(&fixture.once(), "c", fixture.shop.source(), handler);
    let consumer = quick(consumer).handler_timeout(SHORT);
    let counts = consumer.counts();
    let running = Running::start(consumer);
    let poisoned = "select count(*) = 1 from pgonce.inbox_poison where message_id = 'm7' \
         and failure_code = 'handler_timeout' and failure_message like '%longer than 2s%' and attempts = 3";
    fixture.world.see.wait_until(poisoned).await;
    fixture.wait_for_acks(20).await;
    fixture.wait_for(19).await;
    running.stop().await.unwrap();
    let left = "select count(*) from seen where id = 'm7'";
    assert_eq!(fixture.world.see.number(left).await, 0);
    let came = (counts.applied(), counts.retried(), counts.poisoned());
    assert_eq!(came, (19, 2, 1), "{counts:?}");
}

/// Slower than its lease, and no slower than it may be: a lane renews what it has in hand, also what is not begun yet.
#[tokio::test]
async fn a_stored_message_stays_with_its_lane_for_longer_than_its_lease() {
    let fixture = Fixture::new().await;
    let see = &fixture.world.see;
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = go_on.clone();
    let handler = move |mut tx: Tx<Db>, message: Arc<Message>| {
        let gate = gate.clone();
        async move {
            let sql = "insert into seen (consumer, id) values ('c', $1)";
            tx.conn().execute(sql, &[&message.id]).await?;
            let _ = gate.acquire().await;
            Ok(())
        }
    };
    let consumer = Consumer::new(&fixture.once(), "c", fixture.shop.source(), handler);
    let consumer = quick(consumer)
        .store_first()
        .handler_timeout(Duration::from_secs(60))
        .lease(Duration::from_secs(6));
    fixture.send(1, 3, 1);
    let running = Running::start(consumer);
    let claimed = "select count(*) > 0 from pgonce.inbox_message where status = 'processing'";
    see.wait_until(claimed).await;
    let ends = "select coalesce(min(due_at)::text, '') from pgonce.inbox_message where status = 'processing'";
    let first = see.text(ends).await;
    let renewed = format!(
        "select min(due_at) > '{first}' from pgonce.inbox_message where status = 'processing'"
    );
    see.wait_until(&renewed).await;
    let attempts = "select max(attempts) from pgonce.inbox_message";
    assert_eq!(see.number(attempts).await, 1, "it was claimed again");
    go_on.close();
    fixture.wait_for(3).await;
    running.stop().await.unwrap();
    assert_eq!(see.number(attempts).await, 1);
}

/// Its head has come, and says that the message is applied.
/// Answers each request with a head and half of a body.
async fn half_a_response() -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let service = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut caller, _)) = listener.accept().await {
            let mut request = [0; 64 * 1024];
            let _ = caller.read(&mut request).await;
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of it";
            let _ = caller.write_all(head.as_bytes()).await;
            open.push(caller);
        }
    });
    (url, service)
}

#[tokio::test]
async fn a_response_whose_body_never_ends_is_judged_by_its_head() {
    let fixture = Fixture::new().await;
    let (url, service) = half_a_response().await;
    let handler = HttpHandler::new("c", &url).unwrap();
    let consumer = Consumer::new(&fixture.once(), "c", fixture.shop.source(), handler);
    let consumer = quick(consumer).handler_timeout(Duration::from_secs(10));
    let running = Running::start(consumer);
    fixture.send(1, 1, 1);
    let see = &fixture.world.see;
    let ended = "select count(*) = 1 from pgonce.inbox_message \
         where status in ('processed', 'failed_retryable', 'failed_final')";
    see.wait_until(ended).await;
    let became = "select status || ' ' || attempts from pgonce.inbox_message";
    assert_eq!(see.text(became).await, "processed 1");
    running.stop().await.unwrap();
    service.abort();
}

/// Of several messages, since one alone may be late by itself on a busy machine.
#[tokio::test]
async fn a_body_that_takes_longer_than_the_handler_may_changes_nothing() {
    let fixture = Fixture::new().await;
    let (url, service) = half_a_response().await;
    let handler = HttpHandler::new("c", &url).unwrap();
    let consumer = Consumer::new(&fixture.once(), "c", fixture.shop.source(), handler);
    let consumer = quick(consumer).handler_timeout(Duration::from_millis(900));
    let running = Running::start(consumer);
    fixture.send(1, 8, 8);
    let see = &fixture.world.see;
    let ended = "select count(*) = 8 from pgonce.inbox_message \
         where status in ('processed', 'failed_final')";
    see.wait_until(ended).await;
    let processed = "select count(*) from pgonce.inbox_message where status = 'processed'";
    assert!(see.number(processed).await > 0);
    running.stop().await.unwrap();
    service.abort();
}

/// Nobody says that its connections are gone: what is sent on them gets no reply, ever.
#[tokio::test]
async fn a_database_that_falls_silent_does_not_hold_a_consumer() {
    let fixture = Fixture::new().await;
    let world = &fixture.world;
    let cutter = Cutter::in_front_of(world.server.port()).await;
    // Else the server would keep the transaction of a dead connection, and the marks in it.
    let url =
        cutter.url_for(world.database()) + "?options=-c%20idle_in_transaction_session_timeout%3D2s";
    let once = world.another_at(&url, 4, |b| b);
    let consumer = Consumer::new(&once, "c", fixture.shop.source(), fixture.witness.clone());
    let consumer = quick(consumer)
        .handler_timeout(Duration::from_secs(1))
        .lease(Duration::from_secs(2));
    let running = Running::start(consumer);
    let mut sent = 0;
    for _ in 0..2 {
        fixture.send(sent + 1, sent + 40, 40);
        sent += 40;
        fixture.wait_for(sent - 30).await;
        cutter.fall_silent();
        cutter.speak();
        fixture.wait_for(sent).await;
        fixture.wait_for_acks(sent).await;
    }
    running.stop().await.unwrap();
    fixture.check().await;
}

/// The database ends it too: else its locks would stay, and a worker that stores the message would wait for them.
async fn a_statement_that_hangs<D: TestDriver>() {
    let fixture = Fixture::new().await;
    fixture.send(1, 8, 8);
    let handler = |mut tx: Tx<D>, message: Arc<Message>| async move {
        let id = &message.id;
        D::exec(
            tx.conn(),
            &format!("insert into seen (consumer, id) values ('c', '{id}')"),
        )
        .await?;
        if id == "m3" {
            D::exec(tx.conn(), "select pg_sleep(3600)").await?;
        }
        Ok(())
    };
    let once = Once::builder(D::connect(&fixture.world.url(), 6))
        .build()
        .unwrap();
    let consumer = Consumer::new(&once, "c", fixture.shop.source(), handler);
    let consumer = quick(consumer).handler_timeout(SHORT);
    let running = Running::start(consumer);
    let poisoned = "select count(*) = 1 from pgonce.inbox_poison where message_id = 'm3' \
         and failure_code in ('handler_timeout', '57014') and attempts = 3";
    fixture.world.see.wait_until(poisoned).await;
    fixture.wait_for(7).await;
    running.stop().await.unwrap();
    let asleep = "select count(*) = 0 from pg_stat_activity where datname = current_database() \
         and state = 'active' and wait_event = 'PgSleep'";
    fixture.world.see.wait_until(asleep).await;
    let left = "select count(*) from seen where id = 'm3'";
    assert_eq!(fixture.world.see.number(left).await, 0);
}

#[tokio::test]
async fn a_statement_that_hangs_is_ended_with_its_handler_by_tokio_postgres() {
    a_statement_that_hangs::<Db>().await;
}

#[tokio::test]
async fn a_statement_that_hangs_is_ended_with_its_handler_by_sqlx() {
    a_statement_that_hangs::<Sqlx>().await;
}

#[tokio::test]
async fn a_consumer_that_waits_for_a_lock_for_too_long_asks_again_and_does_not_end() {
    let fixture = Fixture::new().await;
    let other = Observer::connect(&fixture.world.url()).await;
    other
        .run("begin; select pgonce.accept('c', 'shop', 'm1')")
        .await;
    fixture.send(1, 1, 1);
    let running = Running::start(fixture.consumer().handler_timeout(SHORT));
    // It waits, is turned away, and waits again: in another transaction.
    let waits = "select coalesce(min(xact_start)::text, '') from pg_stat_activity \
         where datname = current_database() and wait_event_type = 'Lock'";
    let see = &fixture.world.see;
    let first = format!("select ({waits}) <> ''");
    see.wait_until(&first).await;
    let began = see.text(waits).await;
    let again = format!("select ({waits}) not in ('', '{began}')");
    see.wait_until(&again).await;
    other.run("rollback").await;
    fixture.wait_for(1).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_shorter_limit_of_the_session_stays() {
    let fixture = Fixture::new().await;
    let url = fixture.world.url();
    let apart = if url.contains('?') { '&' } else { '?' };
    let limited = format!("{url}{apart}options=-c%20statement_timeout%3D7s");
    let [five, fifteen] = [5, 15].map(Duration::from_secs);
    for (url, max, expected) in [
        (&limited, fifteen, "7s"),
        (&limited, five, "5s"),
        (&url, fifteen, "15s"),
    ] {
        let inbox = Once::builder(Db::connect(url, 1)).build().unwrap().inbox();
        let mut batch = inbox.begin_with_timeout(max).await.unwrap();
        let mut tx = batch.lend("").unwrap();
        let shown = Db::fetch(tx.conn(), "show statement_timeout").await;
        assert_eq!(shown.unwrap().as_deref(), Some(expected));
        drop(tx);
        batch.roll_back().await.unwrap();
    }
}
