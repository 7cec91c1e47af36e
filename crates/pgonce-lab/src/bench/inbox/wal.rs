//! Bytes of WAL that a message writes.

use super::shop::{Effect, Shop};
use super::{How, Result, side};
use crate::bench::report::{Line, Unit};
use crate::bench::rounds::Plan;
use crate::bench::server::Server;
use crate::bench::wal::per_command;

pub(super) async fn measure(server: &Server, plan: &Plan) -> Result<Vec<Line>> {
    // Whole pages after a checkpoint would drown the difference.
    let exact = server.set("full_page_writes", "off").await?;
    let pages = if exact { "without" } else { "with" };
    let mut lines = Vec::new();
    for (batch, effect) in [(1, Effect::OneByOne), (100, Effect::Together)] {
        let url = server.database("inbox_wal").await?;
        let shop = Shop::open(&url, 1, batch, effect).await?;
        let commands = (50 * plan.rounds).min(2_000).div_ceil(batch).max(20);
        for how in [
            How::Bare,
            How::Recipe,
            How::Unordered,
            How::Statement,
            How::Ordered,
        ] {
            let side = side(&shop, how);
            side.times(5).await?;
            let bytes = per_command(&url, &side, commands).await? / batch as f64;
            let what = format!(
                "inbox: WAL of a message, {batch} in a transaction, {}, {pages} full pages",
                how.name()
            );
            lines.push(Line::new(what, bytes, Unit::Bytes));
        }
        drop(shop);
        server.remove(&url).await?;
    }
    if exact {
        server.set("full_page_writes", "on").await?;
    }
    Ok(lines)
}
