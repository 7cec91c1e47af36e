//! Commands over a network: round trips, and the time they take.

use std::time::Duration;

use pgonce_testkit::DelayProxy;

use super::Result;
use super::command;
use super::report::{Budget, Line, Unit};
use super::rounds::{Plan, Side};
use super::server::Server;
use super::{with_sqlx, with_tokio_postgres};

/// Each way; a round trip takes twice that.
const WIRE: Duration = Duration::from_micros(500);

/// Sides of `command`, each beside another, and how many more round trips it may need.
const COMPARED: [(&str, &str, Option<f64>); 10] = [
    (
        "tokio-postgres: one statement",
        "tokio-postgres: bare",
        Some(-2.0),
    ),
    ("sqlx: one statement", "sqlx: bare", Some(-2.0)),
    ("tokio-postgres: atomic", "tokio-postgres: bare", Some(0.0)),
    (
        "tokio-postgres: optimistic",
        "tokio-postgres: bare",
        Some(0.0),
    ),
    ("tokio-postgres: atomic", "tokio-postgres: recipe", None),
    (
        "tokio-postgres: pipelined atomic",
        "tokio-postgres: pipelined bare",
        None,
    ),
    (
        "tokio-postgres: pipelined atomic",
        "tokio-postgres: pipelined recipe",
        None,
    ),
    ("sqlx: atomic", "sqlx: bare", Some(1.0)),
    ("sqlx: optimistic", "sqlx: bare", Some(1.0)),
    ("sqlx: atomic", "sqlx: recipe", None),
];

pub(super) async fn measure(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let url = server.database("network").await?;
    let (proxy, through) = server.through_wire(&url, WIRE)?;
    let one = with_tokio_postgres::Shop::open(&through, 1)?;
    let two = with_sqlx::Shop::open(&through, 1)?;
    let mut sides: Vec<Side> = command::sides(&one, &two)
        .into_iter()
        .filter(|side| {
            COMPARED
                .iter()
                .any(|(name, base, _)| side.name == *name || side.name == *base)
        })
        .collect();
    let measured = plan.latencies(&mut sides, 5 * plan.rounds).await?;
    let mut trips = Vec::new();
    for side in &sides {
        trips.push((side.name, round_trips(&proxy, side).await?));
    }
    drop((sides, one, two, proxy));
    server.remove(&url).await?;

    let of = |name: &str| {
        let found = trips.iter().find(|(side, _)| *side == name);
        found.map_or(f64::NAN, |(_, trips)| *trips)
    };
    let mut lines = Vec::new();
    for (name, base, budget) in COMPARED {
        let line = Line::new(
            format!(
                "{name}: round trips − {base} ({:.0} − {:.0})",
                of(name),
                of(base)
            ),
            of(name) - of(base),
            Unit::RoundTrips,
        );
        lines.push(match budget {
            Some(most) => line.within(Budget::AtMost(most)),
            None => line,
        });
    }
    for (name, base, _) in COMPARED {
        lines.push(Line::new(
            format!("{name}: time ÷ {base}, with 1 ms more a round trip"),
            measured.ratio(name, base),
            Unit::Ratio,
        ));
    }
    Ok(lines)
}

/// Round trips per command, to a tenth: what a pool does after the last command of a side is
/// counted for the next one.
async fn round_trips(proxy: &DelayProxy, side: &Side) -> Result<f64> {
    let commands = 50;
    side.once().await?;
    let before = proxy.round_trips();
    side.times(commands).await?;
    let trips = (proxy.round_trips() - before) as f64 / commands as f64;
    Ok((trips * 10.0).round() / 10.0)
}
