//! A consumer that fails, or is killed, at any of its fault points applies everything once and loses nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::faults::{self, Action, CONSUMER_POINTS};
use pgonce::inbox::{ClaimedMessage, Message, StoreAs, Tx};
use pgonce_broker::sources::Nothing;
use pgonce_broker::{Consumer, Handler};
use pgonce_tests::consumer::{Fixture, Running, message, quick};
use tokio::sync::Notify;

use super::ONE_AT_A_TIME;

/// Forty messages of four keys; one fails with a transient error, so that the stored inbox is used as well.
async fn failing_fixture() -> Fixture {
    let fixture = Fixture::new().await;
    // More attempts than faults can take away.
    fixture.world.see.run("select pgonce.define_inbox('c', p_max_attempts => 100, p_backoff => '10 ms', p_max_backoff => '40 ms')").await;
    let failed = std::sync::atomic::AtomicBool::new(false);
    fixture.witness.script(move |id| {
        if id == "m5" && !failed.swap(true, std::sync::atomic::Ordering::SeqCst) {
            return Err(pgonce::Error::work("later"));
        }
        Ok(())
    });
    fixture.send(1, 40, 4);
    fixture
}

/// A consumer that nobody disturbs does what is left.
async fn finish(fixture: &Fixture, place: &str) {
    faults::disarm_all();
    // Leases of those who were killed run out.
    fixture
        .world
        .see
        .run("select pgonce._move_clock('1 minute')")
        .await;
    let running = fixture.run();
    fixture.send(41, 48, 4);
    fixture.wait_for(48).await;
    fixture
        .wait(place, || async { fixture.shop.waiting() == 0 })
        .await;
    running.stop().await.unwrap();
    fixture.check().await;
    let left = "select count(*) from pgonce.inbox_message where status <> 'processed'";
    assert_eq!(fixture.world.see.number(left).await, 0, "{place}");
}

#[tokio::test]
async fn killed_at_any_point_the_next_consumer_goes_on() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in CONSUMER_POINTS {
        let fixture = failing_fixture().await;
        let paused = faults::pause(place);
        let running = fixture.run();
        paused.reached().await;
        running.kill().await;
        finish(&fixture, place).await;
    }
}

async fn with_a_stored_message() -> Fixture {
    let fixture = Fixture::new().await;
    let message = Message::new("m1", "{}");
    let stored = fixture
        .inbox
        .store("c", "shop", &message, &StoreAs::Received);
    stored.await.unwrap();
    fixture
}

/// As where a lane of the outbox changes hands: another consumer stores the first of a key for a retry, between the look at what is
/// stored and the markers.
#[tokio::test]
async fn a_message_waits_for_one_of_its_key_that_was_stored_just_now() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let fixture = Fixture::new().await;
    let see = &fixture.world.see;
    see.run("select pgonce.define_inbox('c', p_backoff => '1 hour', p_max_backoff => '1 hour')")
        .await;
    fixture.send(1, 2, 1);
    let paused = faults::pause("consumer.held");
    let running = fixture.run();
    paused.reached().await;
    let later = StoreAs::Retry {
        code: "later".to_owned(),
        reason: "not now".to_owned(),
    };
    let first = message(1, 1);
    let stored = fixture.inbox.store("c", "shop", &first, &later);
    stored.await.unwrap();
    paused.resume();
    fixture.wait_for_acks(2).await;
    let kept = "select string_agg(message_id || ' ' || status, ', ' order by seq) from pgonce.inbox_message";
    assert_eq!(see.text(kept).await, "m1 failed_retryable, m2 received");
    assert_eq!(see.number("select count(*) from seen").await, 0);
    see.run("update pgonce.inbox_message set due_at = pgonce.now()")
        .await;
    fixture.wait_for(2).await;
    running.stop().await.unwrap();
}

/// Calls out, and records the claim of each call.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<i64>>>);

impl<D: Driver> Handler<D> for Calls {
    const CALLS_OUT: bool = true;

    async fn call_out(&self, _: &Message, claimed: &ClaimedMessage) -> pgonce::Result<()> {
        self.0.lock().unwrap().push(claimed.fence);
        Ok(())
    }

    async fn apply(&self, _: Tx<D>, _: Arc<Message>) -> pgonce::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_database_that_is_away_after_the_call_is_no_reason_to_call_again() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in [
        "consumer.before_begin",
        "consumer.begun",
        "consumer.before_commit",
    ] {
        let fixture = with_a_stored_message().await;
        let calls = Calls::default();
        let before = faults::reached(place);
        faults::arm(place, 1, Action::Error);
        let consumer = Consumer::new(&fixture.once(), "c", Nothing, calls.clone());
        let running = Running::start(quick(consumer));
        let done = "select count(*) > 0 from pgonce.inbox_message where status = 'processed'";
        fixture.world.see.wait_until(done).await;
        running.stop().await.unwrap();
        assert!(faults::reached(place) >= before + 2, "{place}");
        let calls = calls.0.lock().unwrap().clone();
        assert_eq!(calls.len(), 1, "{place}: {calls:?}");
        faults::disarm_all();
    }
}

/// Calls out, and never gets an answer.
#[derive(Clone, Default)]
struct Hangs(Arc<Notify>);

impl<D: Driver> Handler<D> for Hangs {
    const CALLS_OUT: bool = true;

    async fn call_out(&self, _: &Message, _: &ClaimedMessage) -> pgonce::Result<()> {
        self.0.notify_one();
        std::future::pending().await
    }

    async fn apply(&self, _: Tx<D>, _: Arc<Message>) -> pgonce::Result<()> {
        Ok(())
    }
}

/// The service may have got it: the next attempt is the second one, and not at once.
#[tokio::test]
async fn a_consumer_that_stops_does_not_give_back_what_it_has_called_out_for() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for is_answered in [true, false] {
        let fixture = with_a_stored_message().await;
        let once = fixture.once();
        if is_answered {
            let paused = faults::pause("consumer.before_begin");
            let consumer = Consumer::new(&once, "c", Nothing, Calls::default());
            let running = Running::start(quick(consumer).drain_timeout(Duration::ZERO));
            paused.reached().await;
            running.stop().await.unwrap();
            faults::disarm_all();
        } else {
            let hangs = Hangs::default();
            let consumer = Consumer::new(&once, "c", Nothing, hangs.clone());
            let running = Running::start(quick(consumer).drain_timeout(Duration::ZERO));
            hangs.0.notified().await;
            running.stop().await.unwrap();
        }
        let left = "select concat_ws(' ', attempts, status = 'received', due_at > pgonce.now()) from pgonce.inbox_message";
        let left = fixture.world.see.text(left).await;
        assert_eq!(left, "1 f t", "answered: {is_answered}");
    }
}

#[tokio::test]
async fn paused_at_any_point_while_another_does_the_work_it_does_no_harm() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in CONSUMER_POINTS {
        let fixture = failing_fixture().await;
        let paused = faults::pause(place);
        let zombie = Running::start(fixture.consumer().drain_timeout(Duration::from_secs(30)));
        paused.reached().await;
        // The broker gives up on it and delivers everything to somebody else.
        fixture
            .world
            .see
            .run("select pgonce._move_clock('1 minute')")
            .await;
        let heir = fixture.run();
        fixture.send(1, 40, 4);
        paused.resume();
        fixture.wait_for(40).await;
        fixture
            .wait(place, || async { fixture.shop.waiting() == 0 })
            .await;
        heir.stop().await.unwrap();
        zombie.stop().await.unwrap();
        finish(&fixture, place).await;
    }
}

#[tokio::test]
async fn failing_at_any_point_it_goes_on_by_itself() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in CONSUMER_POINTS {
        let fixture = failing_fixture().await;
        let before = faults::reached(place);
        faults::arm(place, 1, Action::Error);
        let running = Running::start(fixture.consumer().lease(Duration::from_millis(300)));
        fixture
            .wait(place, || async { faults::reached(place) > before })
            .await;
        // A claim that was lost on the way ends with its lease.
        fixture
            .world
            .see
            .run("select pgonce._move_clock('1 minute')")
            .await;
        fixture.wait_for(40).await;
        running.stop().await.unwrap();
        finish(&fixture, place).await;
    }
}

#[tokio::test]
async fn a_handler_of_one_statement_is_killed_or_fails_around_it_and_nothing_happens_twice() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let sql = "insert into seen (consumer, id) select 'c', m.id from messages m";
    for place in [
        "consumer.before_begin",
        "consumer.committed",
        "consumer.before_ack",
    ] {
        for killed in [true, false] {
            let fixture = Fixture::new().await;
            for n in 1..=40 {
                fixture.shop.send(Message::new(format!("m{n}"), "{}"));
            }
            let (once, shop) = (fixture.once(), fixture.shop.source());
            let consumer = Consumer::statement(&once, "c", shop, sql).await.unwrap();
            let before = faults::reached(place);
            if killed {
                let paused = faults::pause(place);
                let running = Running::start(quick(consumer));
                paused.reached().await;
                running.kill().await;
                faults::disarm_all();
            } else {
                faults::arm(place, 1, Action::Error);
                let running = Running::start(quick(consumer));
                fixture
                    .wait(place, || async { faults::reached(place) > before })
                    .await;
                fixture.wait_for(40).await;
                running.stop().await.unwrap();
                faults::disarm_all();
            }
            let consumer = Consumer::statement(&once, "c", fixture.shop.source(), sql);
            let running = Running::start(quick(consumer.await.unwrap()));
            fixture.wait_for(40).await;
            fixture
                .wait(place, || async { fixture.shop.waiting() == 0 })
                .await;
            running.stop().await.unwrap();
            fixture.check().await;
        }
    }
}
