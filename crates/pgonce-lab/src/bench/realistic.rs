//! What most users have: a disk to wait for, a database one millisecond away, more connections than cores.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::report::{Budget, Line, Unit};
use super::rounds::{Measured, Plan, Side, percentile};
use super::server::Server;
use super::{Result, command, with_sqlx, with_tokio_postgres};

/// Each way; a round trip takes twice that.
const WIRE: Duration = Duration::from_micros(500);

const CONNECTIONS: usize = 64;

/// Sides of `command`, the bare one of each driver, and how long a command may take beside it.
const SIDES: [(&str, &str, Option<f64>); 8] = [
    ("tokio-postgres: bare", "tokio-postgres: bare", None),
    ("tokio-postgres: recipe", "tokio-postgres: bare", None),
    ("tokio-postgres: SQL callers", "tokio-postgres: bare", None),
    ("tokio-postgres: atomic", "tokio-postgres: bare", Some(1.10)),
    (
        "tokio-postgres: one statement",
        "tokio-postgres: bare",
        None,
    ),
    ("sqlx: bare", "sqlx: bare", None),
    ("sqlx: atomic", "sqlx: bare", Some(1.25)),
    ("sqlx: one statement", "sqlx: bare", None),
];

pub(super) async fn measure(server: &Server, plan: &Plan) -> Result<Vec<Line>> {
    let url = server.database("realistic").await?;
    let (proxy, through) = server.through_wire(&url, WIRE)?;
    let one = with_tokio_postgres::Shop::open(&through, CONNECTIONS)?;
    let two = with_sqlx::Shop::open(&through, CONNECTIONS)?;
    let all = command::sides(&one, &two);
    let sides: Vec<Side> = all
        .into_iter()
        .filter(|side| SIDES.iter().any(|(name, ..)| side.name == *name))
        .collect();
    let flushed = server.set("fsync", "on").await?;
    let measured = turns(&sides, plan).await;
    if flushed {
        server.set("fsync", "off").await?;
    }
    let measured = measured?;
    drop((sides, one, two, proxy));
    server.remove(&url).await?;

    let [medians, slowest, rates] = measured;
    let mut lines = Vec::new();
    for (name, base, budget) in SIDES {
        if name != base {
            let what = format!("realistic: {name}, time ÷ {base}");
            let line = Line::new(what, medians.ratio(name, base), Unit::Ratio);
            lines.push(match budget {
                Some(most) => line.within(Budget::AtMost(most)),
                None => line,
            });
        }
    }
    for (name, ..) in SIDES {
        lines.extend([
            Line::new(
                format!("realistic: {name}, median"),
                medians.median(name),
                Unit::Microseconds,
            ),
            Line::new(
                format!("realistic: {name}, p99"),
                slowest.median(name),
                Unit::Microseconds,
            ),
            Line::new(
                format!("realistic: {name}"),
                rates.median(name),
                Unit::PerSecond,
            ),
        ]);
    }
    Ok(lines)
}

/// Medians, 99th percentiles and rates of each side in each round.
async fn turns(sides: &[Side], plan: &Plan) -> Result<[Measured; 3]> {
    let rounds = (plan.rounds / 3).clamp(1, 5);
    // Long enough for some thousand commands of a few milliseconds.
    let length = plan.turn * 5;
    let empty = || -> Vec<_> { sides.iter().map(|side| (side.name, Vec::new())).collect() };
    let [mut medians, mut slowest, mut rates] = [empty(), empty(), empty()];
    for round in 0..=rounds {
        for (n, side) in sides.iter().enumerate() {
            let (times, rate) = turn(side, length).await?;
            // The first opens connections and prepares statements.
            if round > 0 {
                medians[n].1.push(percentile(times.clone(), 0.5));
                slowest[n].1.push(percentile(times, 0.99));
                rates[n].1.push(rate);
            }
        }
    }
    Ok([medians, slowest, rates].map(Measured::new))
}

/// Times of single commands in microseconds, and commands per second.
async fn turn(side: &Side, length: Duration) -> Result<(Vec<f64>, f64)> {
    let start = Instant::now();
    let workers = (0..CONNECTIONS).map(|_| {
        let side = side.clone();
        tokio::spawn(async move {
            let mut times = Vec::new();
            while times.is_empty() || start.elapsed() < length {
                let sent = Instant::now();
                side.once().await?;
                times.push(sent.elapsed().as_secs_f64() * 1e6);
            }
            Result::Ok(times)
        })
    });
    let times = try_join_all(workers).await?;
    let times: Vec<Vec<f64>> = times.into_iter().collect::<Result<_>>()?;
    let times = times.concat();
    let rate = times.len() as f64 / start.elapsed().as_secs_f64();
    Ok((times, rate))
}
