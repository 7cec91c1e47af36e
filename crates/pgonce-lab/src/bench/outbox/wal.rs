//! What an event leaves behind: bytes of WAL from its publishing to its delivery, and rows that a vacuum
//! has to take away.

use tokio_postgres::Client;

use super::publish::{How, with_tokio};
use super::{Result, Size, from_the_start, outbox, sink, usual};
use crate::bench::report::{Line, Unit};
use crate::bench::server::{Server, connect};
use crate::bench::with_tokio_postgres::Shop;

pub(super) async fn measure(server: &Server, size: &Size) -> Result<Vec<Line>> {
    // Whole pages after a checkpoint would drown the difference.
    let exact = server.set("full_page_writes", "off").await?;
    let how = if exact {
        "without full pages"
    } else {
        "with full pages"
    };
    let mut lines = Vec::new();
    for (what, publish) in [
        ("SKIP LOCKED + UPDATE", How::Plain),
        ("SKIP LOCKED + DELETE", How::Plain),
        ("publish and relay", How::Publish),
    ] {
        let url = server.database("leavings").await?;
        let left = leavings(&url, what, publish, size.live.min(5_000)).await?;
        server.remove(&url).await?;
        lines.extend([
            Line::new(
                format!("outbox: WAL of an event, {what}, {how}"),
                left.wal,
                Unit::Bytes,
            ),
            Line::new(
                format!("outbox: of that to deliver it, {what}"),
                left.of_delivery,
                Unit::Bytes,
            ),
            Line::new(
                format!("outbox: dead rows of an event, {what}"),
                left.dead,
                Unit::Each,
            ),
        ]);
    }
    if exact {
        server.set("full_page_writes", "on").await?;
    }
    Ok(lines)
}

struct Leavings {
    wal: f64,
    of_delivery: f64,
    dead: f64,
}

/// Publishes events, delivers them, and looks what is left, for each event.
async fn leavings(url: &str, what: &str, publish: How, events: u64) -> Result<Leavings> {
    let see = connect(url).await?;
    see.batch_execute(usual::TABLE).await?;
    let shop = Shop::open(url, 1)?;
    with_tokio(shop.clone(), publish).await?;
    let (begun, dead) = (wal(&see).await?, dead(&see).await?);
    for _ in 0..events {
        with_tokio(shop.clone(), publish).await?;
    }
    let published = wal(&see).await?;
    // The order of each is no part of the event.
    for _ in 0..events {
        with_tokio(shop.clone(), How::Nothing).await?;
    }
    let (ordered, order) = (wal(&see).await?, wal(&see).await? - published);
    let deliverer = connect(url).await?;
    match what {
        "SKIP LOCKED + UPDATE" => drop(usual::by_update(&deliverer).await?),
        "SKIP LOCKED + DELETE" => drop(usual::by_delete(&deliverer).await?),
        _ => {
            let outbox = outbox(url)?;
            from_the_start(&outbox).await?;
            sink::relay(outbox, events + 1, false).await?;
        }
    }
    let delivered = wal(&see).await?;
    drop((shop, deliverer));
    alone(&see).await?;
    let each = |total: f64| total / events as f64;
    Ok(Leavings {
        wal: each(published - begun - order + delivered - ordered),
        of_delivery: each(delivered - ordered),
        dead: each(self::dead(&see).await? - dead),
    })
}

async fn wal(client: &Client) -> Result<f64> {
    let sql = "select (pg_current_wal_insert_lsn() - '0/0')::double precision";
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

/// Rows of the outbox, or of the usual table, that were changed or deleted.
async fn dead(client: &Client) -> Result<f64> {
    let sql = "select sum(n_tup_upd + n_tup_del)::double precision from pg_stat_user_tables \
         where relname like 'outbox%' or relname in ('parked', 'usual')";
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

/// Waits until the other sessions have ended, which is when they have reported their figures.
async fn alone(client: &Client) -> Result<()> {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    for _ in 0..600 {
        if client.query_one(sql, &[]).await?.try_get::<_, i64>(0)? == 0 {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    Err("sessions of the bench did not end".into())
}
