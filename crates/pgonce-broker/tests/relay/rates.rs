//! Neighbours keep their rate, whatever becomes of one subject of their lane.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::outbox::{Message, Subscription};
use pgonce_broker::{Delivery, Relay, Sink};
use pgonce_tests::slow_work;
use tokio::sync::watch;
use tokio::time::Instant;

use super::fairness::lane_mates;
use super::fixture::{Fixture, Running};

/// Neighbours that a round publishes, and rounds.
const EVENTS: u64 = 400;
const ROUNDS: usize = 5;

/// What the sink does with the subject `a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Well,
    Failing,
    TimingOut,
    Unavailable,
}

/// Takes a few milliseconds for each event, and counts the neighbours.
#[derive(Clone)]
struct Moody {
    mood: Arc<Mutex<Mood>>,
    neighbours: watch::Sender<u64>,
}

impl Sink for Moody {
    async fn send(&self, message: &Message) -> Delivery {
        slow_work(Duration::from_millis(4)).await;
        if message.subject != "a" {
            if !message.subject.starts_with("dead ") {
                self.neighbours.send_modify(|count| *count += 1);
            }
            return Delivery::Acknowledged;
        }
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Well => Delivery::Acknowledged,
            Mood::Failing => Delivery::Retry {
                reason: "500".into(),
                after: Duration::ZERO,
            },
            Mood::TimingOut => {
                slow_work(Duration::from_secs(5)).await;
                Delivery::Unavailable {
                    reason: "it took too long".into(),
                }
            }
            Mood::Unavailable => Delivery::Unavailable {
                reason: "504".into(),
            },
        }
    }
}

struct Side {
    topic: String,
    sink: Moody,
    running: Running,
    times: Vec<Duration>,
}

impl Side {
    async fn start(fixture: &Fixture, topic: &str, mood: Mood) -> Self {
        let short = Duration::from_millis(200);
        let subscription = Subscription::new(topic)
            .topics([topic])
            .backoff(short, short * 5);
        fixture
            .outbox
            .create_subscription(&subscription)
            .await
            .unwrap();
        let sink = Moody {
            mood: Arc::new(Mutex::new(mood)),
            neighbours: watch::Sender::new(0),
        };
        let relay = Relay::new(fixture.outbox.clone(), topic, sink.clone()).in_flight(8);
        Self {
            topic: topic.to_owned(),
            sink,
            running: Running::start(relay),
            times: Vec::new(),
        }
    }

    /// Publishes for the neighbours and for `a`, and waits until the neighbours have theirs.
    async fn round(&mut self, fixture: &Fixture, mates: &[String]) {
        let mut counted = self.sink.neighbours.subscribe();
        let goal = *counted.borrow() + EVENTS;
        let mates = mates.join(",");
        let publish = format!(
            "select pgonce.publish('{topic}', 'x', case when i % 10 = 0 then 'a' else (string_to_array('{mates}', ','))[1 + i % 16] end, '{{}}') \
             from generate_series(1, {EVENTS} * 10 / 9) i where i % 10 = 0 or i - i / 10 <= {EVENTS}",
            topic = self.topic,
        );
        fixture.world.see.run(&publish).await;
        let began = Instant::now();
        counted.wait_for(|count| *count >= goal).await.unwrap();
        self.times.push(began.elapsed());
    }

    fn median(&mut self) -> Duration {
        self.times.sort();
        self.times[self.times.len() / 2]
    }
}

/// What is parked when the rounds begin, and moves again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parked {
    Nothing,
    /// Events of the subject `a`.
    Behind(u64),
    /// Dead letters of the lane, each of a subject of its own.
    Dead(u64),
}

impl Parked {
    async fn move_again(self, fixture: &Fixture, bad: &Side) {
        let see = &fixture.world.see;
        match self {
            Self::Nothing => {}
            Self::Behind(events) => {
                see.run(&format!(
                    "select pgonce.publish('bad', 'x', 'a', '{{}}') from generate_series(1, {events}) i"
                ))
                .await;
                see.wait_until(&format!("select count(*) = {events} from pgonce.parked"))
                    .await;
                *bad.sink.mood.lock().unwrap() = Mood::Well;
            }
            Self::Dead(events) => {
                see.run(&format!(
                    "insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, parked_at, created_at, size, message_id, topic, type, headers)
                     select '', 'bad', s.name, nextval('pgonce.outbox_seq'), pgonce._lane_of('', 'a'), 'dead', now(), now(), 1, gen_random_uuid(), 'bad', 'x', '{{}}'
                       from (select 'dead ' || i as name from generate_series(1, {events} * 100) i) s
                      where pgonce._lane_of('', s.name) = pgonce._lane_of('', 'a') limit {events}"
                ))
                .await;
                let moved = fixture.outbox.redrive("bad", None).await.unwrap();
                assert_eq!(moved, events);
            }
        }
    }
}

/// Other programs that use the machine may strike one side of a comparison. A relay that lets neighbours starve fails
/// all three.
async fn neighbours_keep_their_rate(mood: Mood, parked: Parked) {
    let mut found = Vec::new();
    for _ in 0..3 {
        match compare(mood, parked).await {
            Ok(()) => return,
            Err(slow) => found.push(slow),
        }
    }
    panic!("{found:#?}");
}

#[expect(
    clippy::print_stderr,
    reason = "the figures, for a run with --nocapture"
)]
async fn compare(mood: Mood, parked: Parked) -> Result<(), String> {
    let fixture = Fixture::new().await;
    let mates = lane_mates(&fixture, 16).await;
    let mut good = Side::start(&fixture, "good", Mood::Well).await;
    let mut bad = Side::start(&fixture, "bad", mood).await;
    parked.move_again(&fixture, &bad).await;
    // The first of each shows whom to blame.
    for _ in 0..=ROUNDS {
        good.round(&fixture, &mates).await;
        bad.round(&fixture, &mates).await;
    }
    let kept = good.median().as_secs_f64() / bad.median().as_secs_f64();
    eprintln!(
        "{mood:?}, {parked:?}: {:.0} % of the rate; rounds without {:?}, with {:?}",
        kept * 100.0,
        good.times,
        bad.times
    );
    let most = *bad.times.last().unwrap();
    let in_time = most < *good.times.last().unwrap() + Duration::from_secs(4);
    for side in [good, bad] {
        side.running.kill().await;
    }
    match kept >= 0.8 && in_time {
        true => Ok(()),
        false => Err(format!(
            "neighbours keep {kept:.2} of their rate; a round took {most:?}"
        )),
    }
}

#[tokio::test]
async fn beside_a_failing_subject_neighbours_keep_their_rate() {
    neighbours_keep_their_rate(Mood::Failing, Parked::Nothing).await;
}

#[tokio::test]
async fn beside_a_subject_that_times_out_neighbours_keep_their_rate() {
    neighbours_keep_their_rate(Mood::TimingOut, Parked::Nothing).await;
}

#[tokio::test]
async fn beside_a_subject_for_which_the_sink_looks_down_neighbours_keep_their_rate() {
    neighbours_keep_their_rate(Mood::Unavailable, Parked::Nothing).await;
}

#[tokio::test]
async fn beside_thousands_of_parked_events_that_are_redriven_neighbours_keep_their_rate() {
    neighbours_keep_their_rate(Mood::Failing, Parked::Behind(5000)).await;
}

/// The rate of a redrive leaves room for them.
#[tokio::test]
async fn beside_thousands_of_dead_letters_that_are_redriven_neighbours_keep_their_rate() {
    neighbours_keep_their_rate(Mood::Well, Parked::Dead(5000)).await;
}
