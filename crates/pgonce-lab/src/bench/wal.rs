//! Bytes of WAL that a command writes.

use super::Result;
use super::command;
use super::report::{Budget, Line, Unit};
use super::rounds::{Plan, Side};
use super::server::{Server, connect};
use super::{with_sqlx, with_tokio_postgres};

/// A budget of the design: what a command may add to the bare transaction.
const MORE: f64 = 350.0;

pub(super) async fn measure(server: &Server, plan: &Plan) -> Result<Vec<Line>> {
    let url = server.database("wal").await?;
    // Whole pages after a checkpoint would drown the difference.
    let exact = server.set("full_page_writes", "off").await?;
    let one = with_tokio_postgres::Shop::open(&url, 1)?;
    let two = with_sqlx::Shop::open(&url, 1)?;
    let commands = (50 * plan.rounds).min(2_000);
    let mut bytes = Vec::new();
    for side in command::sides(&one, &two) {
        side.times(10).await?;
        bytes.push((side.name, per_command(&url, &side, commands).await?));
    }
    drop((one, two));
    if exact {
        server.set("full_page_writes", "on").await?;
    }
    server.remove(&url).await?;

    let of = |name: &str| {
        bytes
            .iter()
            .find(|(side, _)| *side == name)
            .map_or(f64::NAN, |(_, bytes)| *bytes)
    };
    let how = if exact {
        "without full pages"
    } else {
        "with full pages"
    };
    let more = |driver: &str, what: &str| {
        let extra = of(&format!("{driver}: {what}")) - of(&format!("{driver}: bare"));
        Line::new(
            format!("{driver}: WAL of {what} − bare, {how}"),
            extra,
            Unit::Bytes,
        )
    };
    let mut lines = Vec::new();
    for driver in ["tokio-postgres", "sqlx"] {
        lines.extend([
            more(driver, "atomic").within(Budget::AtMost(MORE)),
            more(driver, "optimistic").within(Budget::AtMost(MORE)),
            more(driver, "recipe"),
            more(driver, "leased"),
            Line::new(
                format!("{driver}: WAL of bare"),
                of(&format!("{driver}: bare")),
                Unit::Bytes,
            ),
        ]);
    }
    Ok(lines)
}

/// Bytes of WAL that each of so many commands writes.
pub(super) async fn per_command(url: &str, side: &Side, commands: usize) -> Result<f64> {
    let client = connect(url).await?;
    let start: String = client
        .query_one("select pg_current_wal_insert_lsn()::text", &[])
        .await?
        .try_get(0)?;
    side.times(commands).await?;
    let bytes: i64 = client
        .query_one(
            "select (pg_current_wal_insert_lsn() - $1::text::pg_lsn)::bigint",
            &[&start],
        )
        .await?
        .try_get(0)?;
    Ok(bytes as f64 / commands as f64)
}
