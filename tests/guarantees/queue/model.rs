//! Random operations on a queue against a model of a few lines.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{World, random};
use rand::RngExt as _;

use super::finish;

const LEASE: i64 = 60;
const MAX_ATTEMPTS: i32 = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// From this time on; the flag says that it was tried before.
    Waits(i64, bool),
    /// Until this time, under this fence.
    Runs(i64, i64),
    Ended(&'static str),
}

#[derive(Debug)]
struct Modelled {
    id: i64,
    key: Option<u32>,
    priority: i32,
    attempts: i32,
    state: State,
}

#[derive(Default)]
struct Model {
    now: i64,
    jobs: Vec<Modelled>,
}

impl Model {
    /// Leases that are over.
    fn wake(&mut self) {
        for job in &mut self.jobs {
            if let State::Runs(until, _) = job.state
                && until <= self.now
            {
                job.state = match job.attempts >= MAX_ATTEMPTS {
                    true => State::Ended("dead"),
                    false => State::Waits(self.now, true),
                };
            }
        }
    }

    /// Whether a job of the same key comes before it.
    fn is_behind(&self, job: &Modelled) -> bool {
        self.jobs.iter().any(|other| {
            other.key == job.key
                && other.id != job.id
                && match other.state {
                    State::Runs(..) => true,
                    State::Waits(from, tried) => {
                        (from <= self.now && other.id < job.id) || (from > self.now && tried)
                    }
                    State::Ended(_) => false,
                }
        })
    }

    /// The jobs that a claim must give, in their order.
    fn claim(&mut self, limit: usize) -> Vec<i64> {
        self.wake();
        let due = |job: &&Modelled| matches!(job.state, State::Waits(from, _) if from <= self.now);
        let mut turn: Vec<_> = self
            .jobs
            .iter()
            .filter(due)
            .filter(|job| job.key.is_none() || !self.is_behind(job))
            .map(|job| (-job.priority, job.id))
            .collect();
        turn.sort_unstable();
        turn.into_iter().take(limit).map(|(_, id)| id).collect()
    }

    fn running(&self) -> Vec<(i64, i64)> {
        let held = |job: &Modelled| match job.state {
            State::Runs(_, fence) => Some((job.id, fence)),
            _ => None,
        };
        self.jobs.iter().filter_map(held).collect()
    }

    fn get(&mut self, id: i64) -> &mut Modelled {
        self.jobs.iter_mut().find(|job| job.id == id).unwrap()
    }
}

#[tokio::test]
async fn a_queue_does_what_its_model_does() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run(&format!(
        "select pgonce.define_queue('q', p_max_attempts => {MAX_ATTEMPTS}); select pgonce._set_clock('2026-01-01')"
    ))
    .await;
    let mut random = random();
    let mut model = Model::default();
    for step in 0..700 {
        match random.random_range(0..100) {
            0..40 => {
                let key = random.random_bool(0.7).then(|| random.random_range(0..6));
                let delay = match random.random_bool(0.2) {
                    true => random.random_range(1..200),
                    false => 0,
                };
                let priority = random.random_range(-1..2);
                let named = key.map_or("null".to_owned(), |key: u32| format!("'{key}'"));
                let sql = format!(
                    "select id from pgonce.enqueue('q', '1', p_key => {named}, p_priority => {priority}, \
                     p_run_at => pgonce.now() + interval '{delay} seconds')"
                );
                let id = see.number(&sql).await;
                model.jobs.push(Modelled {
                    id,
                    key,
                    priority,
                    attempts: 0,
                    state: State::Waits(model.now + delay, false),
                });
            }
            40..65 => {
                let limit = random.random_range(1..6);
                let expected = model.claim(limit);
                let sql = format!(
                    "select id, fence from pgonce.claim_jobs('{{q}}', 'w', '{LEASE} seconds', {limit})"
                );
                let mut given = Vec::new();
                for row in see.rows(&sql).await {
                    let cells: Vec<i64> = row
                        .iter()
                        .map(|c| c.as_deref().unwrap().parse().unwrap())
                        .collect();
                    given.push(cells[0]);
                    let until = model.now + LEASE;
                    let job = model.get(cells[0]);
                    job.attempts += 1;
                    job.state = State::Runs(until, cells[1]);
                }
                // One call gives them in an order of its own where it took them in several steps.
                let (mut expected, mut sorted) = (expected, given.clone());
                expected.sort_unstable();
                sorted.sort_unstable();
                assert_eq!(sorted, expected, "step {step}: {:#?}", model.jobs);
            }
            65..85 => {
                let running = model.running();
                if let Some((id, fence)) = running.first().copied() {
                    see.run(&finish(&[(id, fence)])).await;
                    model.get(id).state = State::Ended("succeeded");
                }
            }
            85..92 => {
                let running = model.running();
                if let Some((id, fence)) = running.last().copied() {
                    let retryable = random.random_bool(0.7);
                    let delay = random.random_range(1..120);
                    let sql = format!(
                        "select pgonce.fail_job({id}, {fence}, {retryable}, 'x', 'y', '{delay} seconds')"
                    );
                    let now = model.now;
                    let job = model.get(id);
                    let dead = !retryable || job.attempts >= MAX_ATTEMPTS;
                    job.state = match dead {
                        true => State::Ended("dead"),
                        false => State::Waits(now + delay, true),
                    };
                    assert_eq!(see.text(&sql).await, if dead { "dead" } else { "retrying" });
                }
            }
            92..95 => {
                let count = model.jobs.len();
                if count > 0 {
                    let id = model.jobs[random.random_range(0..count)].id;
                    let job = model.get(id);
                    let open = !matches!(job.state, State::Ended("succeeded" | "cancelled"));
                    if open {
                        job.state = State::Ended("cancelled");
                    }
                    let sql = format!("select pgonce.cancel_job({id}, 'x')");
                    assert_eq!(see.text(&sql).await, if open { "t" } else { "f" });
                }
            }
            _ => {
                let seconds = random.random_range(1..90);
                model.now += seconds;
                see.run(&format!(
                    "select pgonce._move_clock(interval '{seconds} seconds')"
                ))
                .await;
            }
        }
    }
    model.claim(0);
    see.run("select pgonce._wake_jobs(100000)").await;
    for job in &model.jobs {
        let status = super::status(see, job.id).await;
        let expected = match job.state {
            State::Ended(end) => status == end,
            State::Runs(..) => status == "running",
            State::Waits(..) => ["ready", "blocked", "scheduled", "retrying"].contains(&&*status),
        };
        assert!(expected, "{job:?} is {status}");
    }
}
