//! What the daemon does beside commands at full load: it purges what is over, and it is asked for its metrics.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::seq::SliceRandom as _;
use tokio_util::sync::CancellationToken;

use super::business::Order;
use super::report::{Budget, Line, Unit};
use super::rounds::{Measured, Plan, Side};
use super::server::{Server, connect};
use super::with_tokio_postgres::Shop;
use super::{Result, outbox, say};

const RETENTION: [&str; 2] = ["retention: commands alone", "retention: commands beside it"];
const METRICS: [&str; 2] = ["metrics: commands alone", "metrics: commands beside them"];

/// As `pgonce serve` does by default.
const BATCH: u32 = 10_000;

/// Expired records, so that a turn never runs out of them.
const EXPIRED: u64 = 200_000;

/// What is asked for `/metrics`, fifteen times as often as usual.
const EVERY: Duration = Duration::from_secs(1);

const FIGURES: [&str; 3] = [
    "select * from pgonce.outbox_backlog",
    "select * from pgonce.inbox_backlog",
    "select * from pgonce._figures()",
];

/// Commands per second of both sides, turn by turn; `other` runs while the second has its turn.
async fn rounds<F, W>(
    plan: &mut Plan,
    names: [&'static str; 2],
    side: &Side,
    other: F,
) -> Result<Measured>
where
    F: Fn(CancellationToken) -> W,
    W: Future<Output = Result<()>> + Send + 'static,
{
    // Longer turns than others have: what runs beside them is bursts.
    let turn = plan.turn * 7;
    let mut rates: [Vec<f64>; 2] = Default::default();
    let mut order = [0, 1];
    for round in 0..=plan.rounds {
        order.shuffle(&mut plan.random);
        for which in order {
            let stop = CancellationToken::new();
            let beside = (which == 1).then(|| tokio::spawn(other(stop.clone())));
            let rate = side.rate(plan.connections, turn).await;
            stop.cancel();
            if let Some(beside) = beside {
                beside.await??;
            }
            let rate = rate?;
            // The first round warms up.
            if round > 0 {
                rates[which].push(rate);
            }
        }
    }
    let [alone, beside] = rates;
    Ok(Measured::new(vec![(names[0], alone), (names[1], beside)]))
}

fn lines(measured: &Measured, names: [&'static str; 2], least: f64) -> Vec<Line> {
    let what = format!("{} ÷ {}", names[1], names[0]);
    let ratio = Line::new(what, measured.ratio(names[1], names[0]), Unit::Ratio);
    let mut lines = vec![ratio.within(Budget::AtLeast(least))];
    let rate = |name| Line::new(name, measured.median(name), Unit::PerSecond);
    lines.extend(names.map(rate));
    lines
}

fn commands(shop: &Shop) -> Side {
    let shop = shop.clone();
    Side::new("commands", move || shop.clone().atomic(Order::new(), false))
}

pub(super) async fn retention(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let url = server.database("retention").await?;
    let shop = Shop::open(&url, plan.connections)?;
    let purger = Shop::open(&url, 1)?;
    let (left, purged) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let taken = Arc::new(AtomicU64::new(0));
    let other = |stop: CancellationToken| {
        let (once, url) = (purger.once.clone(), url.clone());
        let (left, purged, took) = (left.clone(), purged.clone(), taken.clone());
        async move {
            let start = Instant::now();
            once.outbox().maintain().await?;
            once.inbox().maintain().await?;
            while !stop.is_cancelled() {
                let began = Instant::now();
                let count = once.purge(BATCH).await?;
                purged.fetch_add(count, Ordering::Relaxed);
                let known = left.load(Ordering::Relaxed);
                left.store(known.saturating_sub(count), Ordering::Relaxed);
                // As much time between two of them as each took.
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(began.elapsed()) => {}
                }
            }
            took.fetch_add(start.elapsed().as_millis() as u64, Ordering::Relaxed);
            // After its turn, so that the next one has enough.
            while left.load(Ordering::Relaxed) < EXPIRED {
                expire(&url, EXPIRED).await?;
                left.fetch_add(EXPIRED, Ordering::Relaxed);
            }
            Ok(())
        }
    };
    expire(&url, EXPIRED).await?;
    left.store(EXPIRED, Ordering::Relaxed);
    let measured = rounds(plan, RETENTION, &commands(&shop), other).await?;
    drop((shop, purger));
    server.remove(&url).await?;
    let mut lines = lines(&measured, RETENTION, 0.95);
    let seconds = taken.load(Ordering::Relaxed).max(1) as f64 / 1000.0;
    let rate = purged.load(Ordering::Relaxed) as f64 / seconds;
    lines.push(Line::new(
        "retention: records purged beside commands",
        rate,
        Unit::PerSecond,
    ));
    Ok(lines)
}

/// Records whose retention is over, with the answer of a command.
async fn expire(url: &str, count: u64) -> Result<()> {
    let sql = format!(
        "insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer) \
         select 1, now() - interval '8 days', now() - interval '1 day', 1, 'succeeded', '', 'orders.create', gen_random_uuid()::text, \
         sha256('x'), '{{\"order\": 4711}}' from generate_series(1, {count})"
    );
    Ok(connect(url).await?.batch_execute(&sql).await?)
}

pub(super) async fn metrics(
    server: &Server,
    plan: &mut Plan,
    size: &outbox::Size,
) -> Result<Vec<Line>> {
    let url = server.database("metrics").await?;
    let shop = Shop::open(&url, plan.connections)?;
    let subscribe = "select pgonce.create_subscription('s' || n) from generate_series(1, 4) n";
    connect(&url).await?.batch_execute(subscribe).await?;
    let other = |stop: CancellationToken| {
        let url = url.clone();
        async move {
            let client = connect(&url).await?;
            while !stop.is_cancelled() {
                for figure in FIGURES {
                    client.query(figure, &[]).await?;
                }
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(EVERY) => {}
                }
            }
            Ok(())
        }
    };
    let measured = rounds(plan, METRICS, &commands(&shop), other).await?;
    drop(shop);
    server.remove(&url).await?;
    let mut lines = lines(&measured, METRICS, 0.98);
    say("a relay with and without metrics");
    lines.extend(outbox::metered(server, plan, size).await?);
    Ok(lines)
}
