//! Sinks and connections that fail: nothing is lost, nothing is turned round, nothing spins.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pgonce::outbox::{Message, Subscription, WhenFull};
use pgonce_broker::{Delivery, Relay, Sink};
use pgonce_testkit::wait_until;
use tokio::sync::Semaphore;

use super::fixture::{DEADLINE, Fixture, Running};

fn poison() -> Delivery {
    Delivery::Poison {
        reason: "not JSON enough".into(),
    }
}

#[tokio::test]
async fn a_poisoned_subject_is_parked_the_others_flow_and_a_redrive_keeps_the_order() {
    let fixture = Fixture::new().await;
    // Subject s0 has 4, 8, 12 …; 8 is poison.
    fixture.sink.script(|n| (n == 8).then(poison));
    let running = fixture.run();
    fixture.publish(1, 40, 4).await;
    wait_until("all but the poisoned subject", DEADLINE, || async {
        fixture.sink.numbers().len() == 31
    })
    .await
    .unwrap();
    let letters = wait_for_letters(&fixture, 1).await;
    assert_eq!(
        (letters[0].subject.as_str(), letters[0].reason.as_deref()),
        ("s0", Some("not JSON enough"))
    );
    fixture.sink.heal();
    assert_eq!(fixture.outbox.redrive("c", Some("s0")).await.unwrap(), 1);
    fixture.publish(41, 48, 4).await;
    fixture.sink.wait_for(48).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0);
}

async fn wait_for_letters(fixture: &Fixture, count: usize) -> Vec<pgonce::outbox::DeadLetter> {
    wait_until(format!("{count} dead letters"), DEADLINE, || async {
        fixture.outbox.dead_letters("c", 100).await.unwrap().len() == count
    })
    .await
    .unwrap();
    fixture.outbox.dead_letters("c", 100).await.unwrap()
}

#[tokio::test]
async fn a_skip_lets_the_rest_of_the_subject_go() {
    let fixture = Fixture::new().await;
    fixture.sink.script(|n| (n == 1).then(poison));
    let running = fixture.run();
    fixture.publish(1, 5, 1).await;
    let letters = wait_for_letters(&fixture, 1).await;
    assert!(
        fixture
            .outbox
            .skip("c", letters[0].seq, "test")
            .await
            .unwrap()
    );
    wait_until("the rest", DEADLINE, || async {
        fixture.sink.numbers() == [2, 3, 4, 5]
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_transient_failure_is_retried_and_the_subject_waits_for_it() {
    let short = Duration::from_millis(20);
    let fixture = Fixture::with(Subscription::new("c").backoff(short, short * 4)).await;
    let left = Arc::new(AtomicU64::new(3));
    let script = left.clone();
    fixture.sink.script(move |n| {
        let fails = n == 2
            && script
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok();
        fails.then(|| Delivery::Retry {
            reason: "later".into(),
            after: Duration::ZERO,
        })
    });
    let running = fixture.run();
    fixture.publish(1, 10, 1).await;
    fixture.sink.wait_for(10).await;
    running.stop().await.unwrap();
    assert_eq!((fixture.sink.check(), left.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(fixture.sink.numbers(), (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_unreachable_sink_is_waited_for_without_spinning() {
    let fixture = Fixture::new().await;
    fixture.sink.script(|_| {
        Some(Delivery::Unavailable {
            reason: "down".into(),
        })
    });
    let relay = fixture
        .relay()
        .backoff(Duration::from_millis(1), Duration::from_millis(1000));
    let running = Running::start(relay);
    fixture.publish(1, 20, 5).await;
    wait_until("many tries", DEADLINE, || async {
        fixture.sink.asked() >= 15
    })
    .await
    .unwrap();
    // Nothing is parked for it: it is no fault of the events.
    assert_eq!(
        fixture
            .world
            .see
            .number("select count(*) from pgonce.parked")
            .await,
        0
    );
    fixture.sink.heal();
    fixture.sink.wait_for(20).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0);
    assert!(
        fixture.sink.asked() < 2000,
        "{} tries",
        fixture.sink.asked()
    );
}

#[tokio::test]
async fn a_sink_that_panics_loses_nothing() {
    let fixture = Fixture::new().await;
    let left = AtomicU64::new(3);
    fixture.sink.script(move |_| {
        let panics = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok();
        assert!(!panics, "the test's sink panics");
        None
    });
    let running = fixture.run();
    fixture.publish(1, 20, 3).await;
    fixture.sink.wait_for(20).await;
    running.stop().await.unwrap();
    fixture.sink.check();
}

#[tokio::test]
async fn an_event_that_a_sink_panics_on_fails_and_its_neighbours_flow() {
    let short = Duration::from_millis(5);
    let subscription = Subscription::new("c").max_attempts(3).backoff(short, short);
    let fixture = Fixture::with(subscription).await;
    // In one batch: s0 has 4, 8, 12 …
    fixture.sink.script(|n| {
        assert!(n != 8, "the test's sink panics");
        None
    });
    fixture.publish(1, 40, 4).await;
    let running = fixture.run();
    let letters = wait_for_letters(&fixture, 1).await;
    let reason = letters[0].reason.clone().unwrap();
    assert!(reason.contains("panics"), "{reason}");
    assert_eq!((letters[0].subject.as_str(), letters[0].behind), ("s0", 8));
    wait_until("all but its subject", DEADLINE, || async {
        let numbers: std::collections::HashSet<u64> = fixture.sink.numbers().into_iter().collect();
        numbers.len() == 31
    })
    .await
    .unwrap();
    fixture.sink.heal();
    fixture.outbox.redrive("c", None).await.unwrap();
    fixture.sink.wait_for(40).await;
    running.stop().await.unwrap();
    fixture.sink.check();
}

#[tokio::test]
async fn a_sink_that_always_panics_is_unavailable_and_costs_no_event_its_attempts() {
    // The first subject may lose attempts until others have failed too.
    let pause = Duration::from_millis(100);
    let subscription = Subscription::new("c")
        .max_attempts(20)
        .backoff(pause, pause);
    let fixture = Fixture::with(subscription).await;
    fixture.sink.script(|_| panic!("the test's sink panics"));
    fixture.publish(1, 20, 5).await;
    let running = fixture.run();
    // More than all attempts of the first event of each subject.
    wait_until("many tries", DEADLINE, || async {
        fixture.sink.asked() >= 250
    })
    .await
    .unwrap();
    let letters = fixture.outbox.dead_letters("c", 100).await.unwrap();
    assert_eq!(letters.len(), 0);
    fixture.sink.heal();
    fixture.sink.wait_for(20).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0);
}

#[tokio::test]
async fn a_relay_that_stops_keeps_its_lanes_for_as_long_as_it_drains() {
    let fixture = Fixture::new().await;
    let go_on = Arc::new(Semaphore::new(0));
    let sink = Held {
        go_on: go_on.clone(),
        began: Arc::default(),
        witness: fixture.sink.clone(),
    };
    let began = sink.began.clone();
    fixture.publish(1, 1, 1).await;
    let relay = Relay::new(fixture.outbox.clone(), "c", sink)
        .lease(Duration::from_secs(3))
        .drain_timeout(DEADLINE);
    let running = Running::start(relay);
    wait_until("the delivery", DEADLINE, || async {
        began.load(Ordering::SeqCst) == 1
    })
    .await
    .unwrap();
    let see = &fixture.world.see;
    let ends = "select min(lease_until)::text from pgonce.outbox_cursor where owner is not null";
    let first = see.text(ends).await;
    let stopping = tokio::spawn(running.stop());
    // Longer than the lease that it had when it was asked to stop.
    let past = format!("select clock_timestamp() > '{first}'::timestamptz + interval '2 seconds'");
    see.wait_until(&past).await;
    go_on.add_permits(1);
    stopping.await.unwrap().unwrap();
    assert_eq!(fixture.sink.numbers(), [1]);
    let left = "select count(*) from pgonce.outbox_cursor where owner is not null";
    assert_eq!(see.number(left).await, 0);
    assert_eq!(began.load(Ordering::SeqCst), 1, "it was sent again");
}

/// Acknowledges when it may.
struct Held {
    go_on: Arc<Semaphore>,
    began: Arc<AtomicU64>,
    witness: super::fixture::Witness,
}

impl Sink for Held {
    async fn send(&self, message: &Message) -> Delivery {
        self.began.fetch_add(1, Ordering::SeqCst);
        let _turn = self.go_on.acquire().await;
        self.witness.send(message).await
    }
}

#[tokio::test]
async fn cut_connections_are_survived() {
    let fixture = Fixture::new().await;
    let running = fixture.run();
    for round in 0..5 {
        fixture.publish(round * 20 + 1, round * 20 + 20, 5).await;
        let others = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid()";
        fixture.world.see.number(others).await;
    }
    fixture.sink.wait_for(100).await;
    running.stop().await.unwrap();
    fixture.sink.check();
}

#[tokio::test]
async fn full_dead_letters_stop_a_lane_until_there_is_room() {
    let fixture = Fixture::with(Subscription::new("c").dead_letters(2, WhenFull::Stop)).await;
    fixture.sink.script(|n| n.is_multiple_of(4).then(poison));
    let relay = fixture.relay();
    let counts = relay.counts();
    let running = Running::start(relay);
    fixture.publish(4, 4, 4).await;
    wait_for_letters(&fixture, 1).await;
    fixture.publish(8, 8, 4).await;
    fixture
        .world
        .see
        .wait_until("select count(*) = 2 from pgonce.parked")
        .await;
    fixture.publish(12, 12, 4).await;
    let held = || async { counts.held() == 2 };
    wait_until("8 and 12 to be held", DEADLINE, held)
        .await
        .unwrap();
    // The relay goes round for others; only then could it have parked 12 as well.
    for other in [1, 5] {
        fixture.publish(other, other, 4).await;
        let delivered = || async { fixture.sink.numbers().contains(&other) };
        wait_until("the other lane", DEADLINE, delivered)
            .await
            .unwrap();
    }
    let see = &fixture.world.see;
    assert_eq!(see.number("select count(*) from pgonce.parked").await, 2);
    let waiting = "select sum(waiting) from pgonce.outbox_lanes \
                   where lane = pgonce._lane_of('', 's0')";
    assert_eq!(see.number(waiting).await, 1);
    fixture.sink.heal();
    fixture.outbox.redrive("c", None).await.unwrap();
    wait_until("all three", DEADLINE, || async {
        let numbers = fixture.sink.numbers();
        let of_the_lane = numbers.iter().filter(|n| n.is_multiple_of(4));
        of_the_lane.eq(&[4, 8, 12])
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_delayed_event_waits_and_nobody_waits_for_it() {
    let fixture = Fixture::new().await;
    let running = fixture.run();
    fixture
        .world
        .see
        .run("select pgonce.publish('t', 'x', 's0', '{\"n\": 2}', p_deliver_at => pgonce.now() + interval '1 minute')")
        .await;
    fixture.publish(1, 1, 1).await;
    wait_until("the one that is due", DEADLINE, || async {
        fixture.sink.numbers() == [1]
    })
    .await
    .unwrap();
    fixture
        .world
        .see
        .wait_until("select count(*) = 1 from pgonce.parked where state = 'delayed'")
        .await;
    fixture
        .world
        .see
        .run("select pgonce._move_clock('61 s')")
        .await;
    fixture.sink.wait_for(2).await;
    running.stop().await.unwrap();
}

/// Holds every event until it is let go, and counts how many it holds at once.
#[derive(Clone)]
struct Slow {
    gate: Arc<Semaphore>,
    holding: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
}

impl Sink for Slow {
    async fn send(&self, _: &Message) -> Delivery {
        let holding = self.holding.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(holding, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.holding.fetch_sub(1, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
        Delivery::Acknowledged
    }
}

#[tokio::test]
async fn a_slow_sink_holds_no_more_than_the_cap_whatever_the_backlog() {
    let fixture = Fixture::new().await;
    let sql =
        "select pgonce.publish('orders', 'x', 's' || i, '{}') from generate_series(1, 3000) i";
    fixture.world.see.run(sql).await;
    let slow = Slow {
        gate: Arc::new(Semaphore::new(0)),
        holding: Arc::default(),
        most: Arc::default(),
        done: Arc::default(),
    };
    let relay = Relay::new(fixture.outbox.clone(), "c", slow.clone()).in_flight(2);
    let counts = relay.counts();
    let running = Running::start(relay.drain_timeout(Duration::ZERO));
    wait_until("every lane to be full", DEADLINE, || async {
        slow.holding.load(Ordering::SeqCst) == 32
    })
    .await
    .unwrap();
    // Between two rounds the sink holds all that it gets: any more than the cap would show.
    for done in (100..=3000).step_by(100) {
        slow.gate.add_permits(100);
        wait_until("what may go to go", DEADLINE, || async {
            slow.done.load(Ordering::SeqCst) == done
        })
        .await
        .unwrap();
    }
    wait_until("everything to be counted", DEADLINE, || async {
        counts.sent() == 3000
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
    assert_eq!(slow.most.load(Ordering::SeqCst), 32);
}

/// A database that refuses what came of one subject, or to say what is due.
#[tokio::test]
async fn what_the_database_refuses_of_one_lane_does_not_hold_the_others() {
    let fixture = Fixture::new().await;
    let see = &fixture.world.see;
    // Of sixteen lanes, the events of s0 are in one, and most of the others in others.
    see.run(
        "create function refused() returns trigger language plpgsql as $$ begin raise exception 'no' using errcode = '54000'; end $$;
         create trigger refused before insert on pgonce.parked for each row when (new.subject = 's0') execute function refused();
         create or replace function pgonce._due_parked(p_subscription text, p_held jsonb, p_limit integer default 100,
             p_bytes integer default 4194304)
         returns table (lane smallint, cursor text, seq bigint, act text, message_id uuid, tenant text, topic text,
             type text, subject text, headers jsonb, payload jsonb, created_at timestamptz, deliver_at timestamptz)
         language plpgsql as $$ begin raise exception 'no' using errcode = '54000'; end $$",
    )
    .await;
    // Of each subject the last one fails, so that each lane has something to write down.
    fixture.sink.script(|n| (n > 16).then(poison));
    let running = fixture.run();
    fixture.publish(1, 32, 16).await;
    let missing = "select count(*) from generate_series(1, 15) i where pgonce._lane_of('', 's' || i) <> pgonce._lane_of('', 's0') \
         and not exists (select from pgonce.parked k where k.subject = 's' || i and k.state = 'dead')";
    wait_until("the other lanes are recorded", DEADLINE, || async {
        see.number(missing).await == 0
    })
    .await
    .unwrap();
    fixture.publish(33, 48, 16).await;
    fixture.sink.heal();
    let lane = "select count(distinct subject) from pgonce.parked where state = 'behind'";
    wait_until("and the log is read on", DEADLINE, || async {
        see.number(lane).await > 0
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}
