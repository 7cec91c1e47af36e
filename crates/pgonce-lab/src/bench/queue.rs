//! The work queue: how fast a backlog burns down, beside the usual recipe, and how soon a job starts at half load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use deadpool_postgres::{Manager, Pool};
use futures_util::future::try_join_all;
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::queue::Job;
use rand::seq::SliceRandom as _;
use tokio::sync::Notify;
use tokio_postgres::{Client, NoTls};

use super::Result;
use super::report::{Budget, Line, Unit};
use super::rounds::{Measured, Plan};
use super::server::{Server, connect};

const BATCHED: &str = "queue: worker, ends recorded together";
const EFFECT: &str = "queue: worker, an effect with each end";
const KEYED: &str = "queue: worker, a thousand keys in order";
const RECIPE: &str = "queue: SKIP LOCKED + UPDATE, twice";
const PINNED: [&str; 2] = [
    "queue: worker, ends recorded together, xmin pinned",
    "queue: SKIP LOCKED + UPDATE, twice, xmin pinned",
];
const SIDES: [&str; 6] = [BATCHED, EFFECT, KEYED, RECIPE, PINNED[0], PINNED[1]];

/// What people write by hand: one table, claimed and ended by updates, a thousand at a time.
const TABLES: &str = "
create table effect (n bigint not null);
create table usual_job (id bigint generated always as identity primary key, payload jsonb not null,
    status text not null default 'ready', attempts int not null default 0, locked_at timestamptz, done_at timestamptz);
create index usual_job_ready on usual_job (id) where status = 'ready';
";

/// How many jobs, and how often.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    jobs: u64,
    rounds: usize,
}

impl Size {
    pub(super) fn of(quick: bool, jobs: Option<u64>) -> Self {
        let (usual, rounds) = if quick { (3_000, 2) } else { (10_000, 3) };
        Self {
            jobs: jobs.unwrap_or(usual),
            rounds,
        }
    }
}

struct Fixture {
    once: Once<TokioPostgres>,
    pool: Pool,
    client: Client,
    url: String,
    jobs: u64,
}

/// Jobs per second of a queue that is almost idle.
const SELDOM: f64 = 4.0;

pub(super) async fn measure(server: &Server, plan: &mut Plan, size: &Size) -> Result<Vec<Line>> {
    let url = server.database("queue").await?;
    let client = connect(&url).await?;
    client.batch_execute(TABLES).await?;
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
        .max_size(plan.connections)
        .build()?;
    let fixture = Fixture {
        once: Once::tokio_postgres(pool.clone()),
        pool,
        client,
        url: url.clone(),
        jobs: size.jobs,
    };
    let mut rates: Vec<_> = SIDES.iter().map(|side| (*side, Vec::new())).collect();
    let mut order: Vec<usize> = (0..SIDES.len()).collect();
    for round in 0..=size.rounds {
        order.shuffle(&mut plan.random);
        for &side in &order {
            let rate = fixture.burn_down(SIDES[side]).await?;
            // The first round warms up.
            if round > 0 {
                rates[side].1.push(rate);
            }
        }
    }
    let measured = Measured::new(rates);
    let enqueued = fixture.enqueue_rate().await?;
    let burnt = measured.median(BATCHED);
    // Those who enqueue and those who work share the machine.
    let load = 0.5 / (1.0 / enqueued + 1.0 / burnt);
    let latency = fixture.start_latency(load).await?;
    let seldom = fixture.start_latency(SELDOM).await?;
    drop(fixture);
    server.remove(&url).await?;
    let ratio = |name: &str, base: &str| {
        let plain = |name: &str| name.trim_start_matches("queue: ").to_owned();
        let what = format!("queue: {} ÷ {}", plain(name), plain(base));
        Line::new(what, measured.ratio(name, base), Unit::Ratio)
    };
    let mut lines = vec![
        ratio(BATCHED, RECIPE),
        ratio(PINNED[0], PINNED[1]),
        ratio(PINNED[0], BATCHED),
        ratio(KEYED, BATCHED),
    ];
    lines.extend(SIDES.map(|name| Line::new(name, measured.median(name), Unit::PerSecond)));
    lines.push(Line::new(
        "queue: enqueued one by one",
        enqueued,
        Unit::PerSecond,
    ));
    lines.push(Line::new("queue: half load", load, Unit::PerSecond));
    lines.push(Line::new(
        "queue: start latency at half load, median",
        latency.0,
        Unit::Microseconds,
    ));
    let p99 = Line::new(
        "queue: start latency at half load, p99",
        latency.1,
        Unit::Microseconds,
    );
    lines.push(p99.within(Budget::AtMost(20_000.0)));
    let seldom = Line::new(
        "queue: start latency of four jobs a second, p99",
        seldom.1,
        Unit::Microseconds,
    );
    lines.push(seldom.within(Budget::AtMost(20_000.0)));
    Ok(lines)
}

impl Fixture {
    async fn fill(&self, side: &str) -> Result<()> {
        let jobs = self.jobs;
        let empty = "truncate pgonce.job, pgonce.job_live, pgonce.job_end, effect, usual_job";
        self.client.batch_execute(empty).await?;
        let fill = match side {
            RECIPE => format!(
                "insert into usual_job (payload) select to_jsonb(n) from generate_series(1, {jobs}) n; analyze usual_job"
            ),
            _ => {
                let key = if side == KEYED {
                    "(n % 1000)::text"
                } else {
                    "null"
                };
                format!(
                    "select from generate_series(1, {jobs}) n, pgonce.enqueue('bench', to_jsonb(n), p_key => {key}); \
                     analyze pgonce.job; analyze pgonce.job_live"
                )
            }
        };
        Ok(self.client.batch_execute(&fill).await?)
    }

    /// Jobs per second of one side.
    async fn burn_down(&self, side: &str) -> Result<f64> {
        let by = side.trim_end_matches(", xmin pinned");
        self.fill(by).await?;
        // Somebody who began before and does not end: no dead row goes.
        let pin = connect(&self.url).await?;
        if PINNED.contains(&side) {
            pin.batch_execute("begin isolation level repeatable read; select pg_current_xact_id()")
                .await?;
        }
        let begun = Instant::now();
        match by {
            RECIPE => self.recipe().await?,
            EFFECT => self.work(16, 16, true).await?,
            _ => self.work(64, 2000, false).await?,
        }
        let rate = self.jobs as f64 / begun.elapsed().as_secs_f64();
        let left = "select (select count(*) from pgonce.job_live) + (select count(*) from usual_job where status <> 'done')";
        let left: i64 = self.client.query_one(left, &[]).await?.get(0);
        match left {
            0 => Ok(rate),
            left => Err(format!("{left} jobs are left").into()),
        }
    }

    /// A worker until everything is done.
    async fn work(&self, concurrency: usize, prefetch: usize, effect: bool) -> Result<()> {
        let (jobs, done, all) = (self.jobs, AtomicU64::new(0), Arc::new(Notify::new()));
        let over = all.clone();
        let done = Arc::new(done);
        let handler = move |job: Job<TokioPostgres>| {
            let (done, over) = (done.clone(), over.clone());
            async move {
                let finished = match effect {
                    true => {
                        let n = job.payload::<i64>()?;
                        let write = async |mut tx: pgonce::tokio_postgres::Tx| {
                            let insert = tx
                                .conn()
                                .prepare_cached("insert into effect values ($1)")
                                .await?;
                            tx.conn().execute(&insert, &[&n]).await?;
                            Ok(())
                        };
                        job.transact(write).await?
                    }
                    false => job.done(&())?,
                };
                if done.fetch_add(1, Ordering::Relaxed) + 1 == jobs {
                    over.notify_one();
                }
                Ok(finished)
            }
        };
        let worker = self.once.worker(["bench"], handler);
        let worker = worker.concurrency(concurrency).prefetch(prefetch);
        let stop = async move { all.notified().await };
        worker.run(stop).await;
        Ok(())
    }

    /// The recipe at its best: a thousand jobs a statement.
    async fn recipe(&self) -> Result<()> {
        let claim = "update usual_job j set status = 'running', attempts = attempts + 1, locked_at = clock_timestamp() \
            from (select id from usual_job where status = 'ready' order by id limit 1000 for update skip locked) r \
            where j.id = r.id returning j.id, j.payload::text";
        let claim = self.client.prepare(claim).await?;
        let end =
            "update usual_job set status = 'done', done_at = clock_timestamp() where id = any ($1)";
        let end = self.client.prepare(end).await?;
        loop {
            let rows = self.client.query(&claim, &[]).await?;
            if rows.is_empty() {
                return Ok(());
            }
            let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            self.client.execute(&end, &[&ids]).await?;
        }
    }

    /// Jobs per second that are enqueued one by one, each in its transaction.
    async fn enqueue_rate(&self) -> Result<f64> {
        let begun = Instant::now();
        let mut count = 0;
        while begun.elapsed() < Duration::from_secs(2) {
            let some = (0..8).map(|_| self.enqueue("idle"));
            count += try_join_all(some).await?.len();
        }
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }

    async fn enqueue(&self, queue: &str) -> Result<()> {
        let client = self.pool.get().await?;
        let call = "select id from pgonce.enqueue($1, $2::text::jsonb)";
        let call = client.prepare_cached(call).await?;
        let now = micros().to_string();
        client.query_one(&call, &[&queue, &now]).await?;
        Ok(())
    }

    /// Median and 99th percentile, in microseconds, of the time from enqueuing to the start of the handler.
    async fn start_latency(&self, load: f64) -> Result<(f64, f64)> {
        let (sent, seen) = tokio::sync::mpsc::unbounded_channel();
        let handler = move |job: Job<TokioPostgres>| {
            let sent = sent.clone();
            async move {
                let late = micros().saturating_sub(job.payload::<u64>()?);
                // The receiver is gone when enough was measured.
                let _ = sent.send(late);
                job.done(&())
            }
        };
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let worker = self.once.worker(["live"], handler).concurrency(32);
        let worker = tokio::spawn(worker.run(async move { stopped.notified().await }));
        let begun = tokio::time::Instant::now();
        let pause = Duration::from_secs_f64(1.0 / load);
        let count = (load * 6.0) as u32;
        let mut calls = Vec::new();
        for n in 0..count {
            tokio::time::sleep_until(begun + pause * n).await;
            calls.push(self.enqueue("live"));
            if calls.len() >= 4 {
                try_join_all(calls.drain(..)).await?;
            }
        }
        try_join_all(calls).await?;
        let mut seen = seen;
        let mut times = Vec::new();
        while times.len() < count as usize {
            let next = tokio::time::timeout(Duration::from_secs(30), seen.recv()).await?;
            times.push(next.ok_or("the worker ended")?);
        }
        stop.notify_one();
        worker.await?;
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64;
        Ok((at(0.5), at(0.99)))
    }
}

fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
