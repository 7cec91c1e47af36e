//! Processor time that the server spends on a command: what is left when neither waiting nor the client counts.

use std::fs;
use std::time::Instant;

use super::report::{Line, Unit};
use super::rounds::{Plan, Side, median};
use super::server::{Server, connect};
use super::{Result, command, with_sqlx, with_tokio_postgres};

/// Commands in a turn.
const COMMANDS: usize = 100;

pub(super) async fn measure(server: &Server, plan: &Plan) -> Result<Vec<Line>> {
    let url = server.database("cpu").await?;
    let lines = match server.is_private() {
        true => {
            let mut lines = measure_at(&url, plan).await?;
            lines.extend(measure_busy(&url, plan).await?);
            lines
        }
        // The processes of another server may be on another machine.
        false => Vec::new(),
    };
    server.remove(&url).await?;
    Ok(lines)
}

async fn measure_at(url: &str, plan: &Plan) -> Result<Vec<Line>> {
    let one = with_tokio_postgres::Shop::open(url, 1)?;
    let two = with_sqlx::Shop::open(url, 1)?;
    let sides = command::sides(&one, &two);
    for side in &sides {
        side.times(10).await?;
    }
    let backends = backends(url).await?;
    if spent(&backends).is_none() {
        // Only Linux says.
        return Ok(Vec::new());
    }
    let mut least = vec![f64::INFINITY; sides.len()];
    for _ in 0..plan.rounds.clamp(3, 15) {
        for (side, least) in sides.iter().zip(&mut least) {
            *least = least.min(turn(side, &backends).await?);
        }
    }
    let line = |(side, least): (&Side, f64)| {
        let what = format!("{}, server's processor time", side.name);
        Line::new(what, least, Unit::Microseconds)
    };
    Ok(sides.iter().zip(least).map(line).collect())
}

/// The sides whose time is shared out between the server and this program.
const BUSY: [&str; 5] = [
    "tokio-postgres: bare",
    "tokio-postgres: recipe",
    "tokio-postgres: bound",
    "tokio-postgres: atomic",
    "tokio-postgres: one statement",
];

/// The same while every connection is at work: a process that has just been switched to finds its caches cold, so a command costs more than
/// on a connection that is alone.
async fn measure_busy(url: &str, plan: &Plan) -> Result<Vec<Line>> {
    let one = with_tokio_postgres::Shop::open(url, plan.connections)?;
    let two = with_sqlx::Shop::open(url, 1)?;
    let sides = command::sides(&one, &two);
    let mut lines = Vec::new();
    for name in BUSY {
        let Some(side) = sides.iter().find(|side| side.name == name) else {
            continue;
        };
        side.rate(plan.connections, plan.turn).await?;
        let backends = backends(url).await?;
        let (mut server, mut program) = (Vec::new(), Vec::new());
        for _ in 0..plan.rounds.clamp(3, 15) {
            let (Some(theirs), Some(own)) = (spent(&backends), spent_here()) else {
                return Ok(Vec::new());
            };
            let start = Instant::now();
            let rate = side.rate(plan.connections, plan.turn).await?;
            let commands = rate * start.elapsed().as_secs_f64();
            let micros = |now: Option<u64>, before: u64| {
                now.unwrap_or_default().saturating_sub(before) as f64 / 1e3 / commands
            };
            server.push(micros(spent(&backends), theirs));
            program.push(micros(spent_here(), own));
        }
        for (whose, times) in [("server", server), ("program", program)] {
            let what = format!("{name}, all connections at work, the {whose}'s processor time");
            lines.push(Line::new(what, median(times), Unit::Microseconds));
        }
    }
    Ok(lines)
}

/// Nanoseconds that the threads of this program have run for.
fn spent_here() -> Option<u64> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let pids = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    spent(&pids.collect::<Vec<_>>())
}

/// Microseconds of one command.
async fn turn(side: &Side, backends: &[i32]) -> Result<f64> {
    let before = spent(backends).unwrap_or_default();
    side.times(COMMANDS).await?;
    let nanos = spent(backends).unwrap_or_default().saturating_sub(before);
    Ok(nanos as f64 / 1e3 / COMMANDS as f64)
}

/// The server's processes for this database.
async fn backends(url: &str) -> Result<Vec<i32>> {
    let sql = "select pid from pg_stat_activity \
        where datname = current_database() and pid <> pg_backend_pid()";
    let rows = connect(url).await?.query(sql, &[]).await?;
    Ok(rows
        .iter()
        .map(|row| row.try_get(0))
        .collect::<std::result::Result<_, _>>()?)
}

/// Nanoseconds that processes have run for.
fn spent(pids: &[i32]) -> Option<u64> {
    let of = |pid: &i32| -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        stat.split_whitespace().next()?.parse().ok()
    };
    pids.iter().map(of).sum()
}
