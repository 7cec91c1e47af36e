//! One event, one subject or one outage delays nobody else, and ends no relay.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::outbox::{Message, Subscription};
use pgonce_broker::{Delivery, Relay, Sink};
use pgonce_testkit::wait_until;
use pgonce_tests::{Cut, Cutter, Observer};
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::fixture::{DEADLINE, Fixture, Running, Witness, relay_to};

fn unavailable() -> Delivery {
    Delivery::Unavailable {
        reason: "504 Gateway Timeout".into(),
    }
}

/// Subjects of one lane: `a` and so many others.
pub(crate) async fn lane_mates(fixture: &Fixture, count: usize) -> Vec<String> {
    let sql = format!(
        "select 's' || i from generate_series(1, 10000) i where pgonce._lane_of('', 's' || i) = pgonce._lane_of('', 'a') limit {count}"
    );
    let rows = fixture.world.see.rows(&sql).await;
    rows.into_iter().flatten().flatten().collect()
}

fn publish(subject: &str, n: u64) -> String {
    format!("select pgonce.publish('orders', 'order.changed', '{subject}', '{{\"n\": {n}}}')")
}

#[tokio::test]
async fn an_event_for_which_the_sink_looks_down_is_blamed_counted_and_given_up_while_its_lane_flows()
 {
    let short = Duration::from_millis(20);
    let subscription = Subscription::new("c").backoff(short, short * 2);
    let fixture = Fixture::with(subscription.max_attempts(3)).await;
    fixture.sink.script(|n| (n == 1).then(unavailable));
    let mates = lane_mates(&fixture, 43).await;
    let running = fixture.run();
    // Nothing else is there at first: nobody knows whose fault it is.
    fixture.world.see.run(&publish("a", 1)).await;
    wait_until("a few tries", DEADLINE, || async {
        fixture.sink.asked() >= 3
    })
    .await
    .unwrap();
    for (subject, n) in mates.iter().zip(2..) {
        fixture.world.see.run(&publish(subject, n)).await;
    }
    fixture.world.see.run(&publish("a", 100)).await;
    wait_until("the neighbours", DEADLINE, || async {
        fixture.sink.numbers().len() == 43
    })
    .await
    .unwrap();
    // Neighbours go on, so that it can be seen that it is the event.
    let dead = "select count(*) = 1 from pgonce.dead_letters where reason like '504%' and attempts = 3 and behind = 1";
    let mut n = 1000;
    while fixture.world.see.text(dead).await.starts_with('f') {
        n += 1;
        fixture.world.see.run(&publish(&mates[0], n)).await;
    }
    running.stop().await.unwrap();
    fixture.sink.check();
}

#[tokio::test]
async fn a_sink_that_is_down_for_everybody_costs_no_attempts_and_makes_no_dead_letters() {
    let short = Duration::from_millis(5);
    let subscription = Subscription::new("c").backoff(short, short);
    let fixture = Fixture::with(subscription.max_attempts(1)).await;
    fixture.sink.script(|_| Some(unavailable()));
    let relay = fixture.relay().backoff(short, short);
    let running = Running::start(relay);
    fixture.publish(1, 60, 20).await;
    wait_until("very many tries", DEADLINE, || async {
        fixture.sink.asked() >= 2000
    })
    .await
    .unwrap();
    let counted = "select count(*) from pgonce.parked where attempts > 0";
    assert_eq!(fixture.world.see.number(counted).await, 0);
    fixture.sink.heal();
    fixture.sink.wait_for(60).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0);
}

/// Takes what is about `a` only when it is allowed to.
#[derive(Clone)]
struct Gated {
    witness: Witness,
    gate: Arc<Semaphore>,
    poison: Arc<AtomicBool>,
}

impl Sink for Gated {
    async fn send(&self, message: &Message) -> Delivery {
        if message.subject == "a" {
            if self.poison.load(Ordering::SeqCst) {
                return Delivery::Poison {
                    reason: "not yet".into(),
                };
            }
            let _ = self.gate.acquire().await;
        }
        self.witness.send(message).await
    }
}

#[tokio::test]
async fn thousands_of_parked_events_are_redriven_in_order_while_their_lane_flows() {
    let fixture = Fixture::new().await;
    let sink = Gated {
        witness: fixture.sink.clone(),
        gate: Arc::new(Semaphore::new(0)),
        poison: Arc::new(AtomicBool::new(true)),
    };
    let see = &fixture.world.see;
    see.run(
        "select pgonce.publish('orders', 'x', 'a', jsonb_build_object('n', i)) from generate_series(1, 5000) i",
    )
    .await;
    let outbox = fixture.outbox.clone();
    let relay = Relay::new(outbox, "c", sink.clone());
    let counts = relay.counts();
    let running = Running::start(relay);
    see.wait_until("select count(*) = 5000 from pgonce.parked")
        .await;
    sink.poison.store(false, Ordering::SeqCst);
    fixture.outbox.redrive("c", Some("a")).await.unwrap();
    // The parked ones are held up; neighbours are not.
    let mates = lane_mates(&fixture, 10).await;
    for (subject, n) in mates.iter().zip(5001..) {
        see.run(&publish(subject, n)).await;
    }
    wait_until("the neighbours", DEADLINE, || async { counts.sent() == 10 })
        .await
        .unwrap();
    sink.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    wait_until("all of them", DEADLINE, || async { counts.sent() == 5010 })
        .await
        .unwrap();
    fixture.sink.wait_for(5010).await;
    see.wait_until("select count(*) = 0 from pgonce.parked")
        .await;
    running.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0);
}

#[tokio::test]
async fn no_error_that_may_go_away_ends_a_relay_and_it_shows_what_it_waits_for() {
    let fixture = Fixture::new().await;
    let (url, database) = (fixture.world.url(), fixture.world.database().to_owned());
    let admin = Observer::connect(&url.replace(&format!("/{database}"), "/postgres")).await;
    let relay = relay_to(&url, fixture.sink.clone());
    let counts = relay.counts();
    let running = Running::start(relay);
    fixture.publish(1, 10, 3).await;
    fixture.sink.wait_for(10).await;
    let cut = format!(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '{database}' and pid <> pg_backend_pid()"
    );
    let waits_for = |code: &'static str| {
        let counts = counts.clone();
        async move {
            wait_until(format!("error {code}"), DEADLINE, || async {
                let error = counts.database_error();
                error.is_some_and(|error| error.contains(code))
            })
            .await
            .unwrap();
        }
    };
    // The database lets nobody in.
    admin
        .run(&format!(
            "alter database {database} allow_connections false"
        ))
        .await;
    admin.run(&cut).await;
    waits_for("55000").await;
    // It has another name.
    admin
        .run(&format!(
            "alter database {database} rename to {database}_away"
        ))
        .await;
    waits_for("3D000").await;
    admin
        .run(&format!(
            "alter database {database}_away rename to {database}"
        ))
        .await;
    // Every statement is cancelled.
    admin
        .run(&format!(
            "alter database {database} allow_connections true; alter database {database} set statement_timeout = '100ms'"
        ))
        .await;
    let see = Observer::connect(&url).await;
    see.run("set statement_timeout = 0; begin; lock table pgonce.outbox_cursor in access exclusive mode")
        .await;
    waits_for("57014").await;
    see.run("commit").await;
    for n in 11..=20 {
        see.run(&super::fixture::publish(n, 3)).await;
    }
    fixture.sink.wait_for(20).await;
    wait_until("no error", DEADLINE, || async {
        counts.database_error().is_none()
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_relay_that_stops_asks_again_where_the_database_is_late() {
    let fixture = Fixture::new().await;
    let relay = relay_to(&fixture.world.url(), fixture.sink.clone()).lease(Duration::from_secs(1));
    let running = Running::start(relay);
    fixture.publish(1, 10, 3).await;
    fixture.sink.wait_for(10).await;
    let holder = fixture.world.observer().await;
    holder
        .run("begin; lock table pgonce.outbox_relay in access exclusive mode")
        .await;
    let late = async {
        let leaving = "select coalesce(max(query_start), '-infinity')::text from pg_stat_activity \
            where datname = current_database() and wait_event_type = 'Lock' and query like '%_release_lanes%'";
        let first = Mutex::new(String::new());
        // Half a lease later it is given up for another try.
        wait_until("a second try to leave", DEADLINE, || async {
            let began = fixture.world.see.text(leaving).await;
            let mut first = first.lock().unwrap();
            if first.is_empty() && began != "-infinity" {
                first.clone_from(&began);
            }
            !first.is_empty() && began > *first
        })
        .await
        .unwrap();
        holder.run("commit").await;
    };
    let (stopped, ()) = tokio::join!(running.stop(), late);
    stopped.unwrap();
    let left = "select count(*) from pgonce.outbox_relay";
    assert_eq!(fixture.world.see.number(left).await, 0);
    let held = "select count(*) from pgonce.outbox_cursor where owner is not null";
    assert_eq!(fixture.world.see.number(held).await, 0);
}

/// Its lease is long; its calls are not.
#[tokio::test]
async fn dead_connections_do_not_hold_a_relay_for_as_long_as_its_lease() {
    let fixture = Fixture::new().await;
    let cutter = Cutter::in_front_of(fixture.world.server.port()).await;
    let relay = relay_to(
        &cutter.url_for(fixture.world.database()),
        fixture.sink.clone(),
    );
    let running = Running::start(relay.lease(Duration::from_secs(3600)));
    fixture.publish(1, 10, 3).await;
    fixture.sink.wait_for(10).await;
    cutter.fall_silent();
    cutter.speak();
    fixture.publish(11, 20, 3).await;
    let came = || async { fixture.sink.numbers().contains(&20) };
    wait_until("the events behind dead connections", DEADLINE * 2, came)
        .await
        .unwrap();
    fixture.sink.wait_for(20).await;
    fixture.sink.check();
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_failure_whose_record_lost_its_reply_counts_once() {
    let short = Duration::from_millis(5);
    let subscription = Subscription::new("c").max_attempts(3).backoff(short, short);
    let fixture = Fixture::with(subscription).await;
    let cutter = Cutter::in_front_of(fixture.world.server.port()).await;
    cutter.arm("strange try 2", Cut::Reply);
    let tries = AtomicU64::new(0);
    fixture.sink.script(move |_| {
        let number = tries.fetch_add(1, Ordering::SeqCst) + 1;
        (number < 3).then(|| Delivery::Retry {
            reason: format!("strange try {number}"),
            after: Duration::ZERO,
        })
    });
    let url = cutter.url_for(fixture.world.database());
    let running = Running::start(relay_to(&url, fixture.sink.clone()));
    fixture.publish(1, 1, 1).await;
    fixture.sink.wait_for(1).await;
    assert!(!cutter.is_armed());
    running.stop().await.unwrap();
    let parked = "select count(*) from pgonce.parked";
    assert_eq!(fixture.world.see.number(parked).await, 0);
}

/// Carries until it is frozen; then it is silent.
async fn freezable(port: u16) -> (u16, watch::Sender<bool>) {
    let frozen = watch::Sender::new(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (ours, state) = (listener.local_addr().unwrap().port(), frozen.clone());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mut state = state.subscribe();
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let ((mut from, mut to), (mut back, mut out)) =
                    (client.into_split(), server.into_split());
                tokio::select! {
                    _ = copy(&mut from, &mut out) => {}
                    _ = copy(&mut back, &mut to) => {}
                    () = async { drop(state.wait_for(|frozen| *frozen).await) } => {
                        // Both sockets stay open.
                        std::future::pending::<()>().await;
                    }
                }
            });
        }
    });
    (ours, frozen)
}

/// A slow endpoint that remembers which relay called it.
#[derive(Clone)]
struct Slow {
    relay: &'static str,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Sink for Slow {
    async fn send(&self, _: &Message) -> Delivery {
        self.calls.lock().unwrap().push(self.relay);
        pgonce_tests::slow_work(Duration::from_millis(20)).await;
        Delivery::Acknowledged
    }
}

#[tokio::test]
async fn a_relay_that_is_cut_off_in_silence_delivers_nothing_after_its_lease() {
    let fixture = Fixture::new().await;
    let see = &fixture.world.see;
    see.run("select pgonce.publish('t', 'x', 'a', '{\"n\": 1}') from generate_series(1, 2000) i")
        .await;
    let port = see
        .number("select setting::integer from pg_settings where name = 'port'")
        .await;
    let (ours, frozen) = freezable(u16::try_from(port).unwrap()).await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let lease = Duration::from_secs(2);
    let relay = |relay: &'static str, url: &str| {
        let calls = calls.clone();
        let once = pgonce::Once::tokio_postgres(pool(url));
        Relay::new(once.outbox(), "c", Slow { relay, calls }).lease(lease)
    };
    let by_proxy = format!(
        "postgres://postgres@127.0.0.1:{ours}/{}",
        fixture.world.database()
    );
    let first = Running::start(relay("first", &by_proxy));
    wait_until("some calls", DEADLINE, || async {
        calls.lock().unwrap().len() > 5
    })
    .await
    .unwrap();
    frozen.send_replace(true);
    let second = Running::start(relay("second", &fixture.world.url()));
    wait_until("calls of the second", DEADLINE, || async {
        calls
            .lock()
            .unwrap()
            .iter()
            .filter(|by| **by == "second")
            .count()
            > 100
    })
    .await
    .unwrap();
    first.kill().await;
    second.kill().await;
    let calls = calls.lock().unwrap();
    let taken_over = calls.iter().position(|by| *by == "second").unwrap();
    assert!(
        calls[taken_over..].iter().all(|by| *by == "second"),
        "both delivered at once"
    );
}

fn pool(url: &str) -> deadpool_postgres::Pool {
    use pgonce_tests::TestDriver as _;
    pgonce::driver::tokio_postgres::TokioPostgres::connect(url, 2)
        .pool()
        .clone()
}
