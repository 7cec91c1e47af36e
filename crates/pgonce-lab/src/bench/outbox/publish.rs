//! What publishing costs the writer: one order and one event in a transaction.

use pgonce::outbox::Event;
use sqlx::Connection as _;
use tokio_postgres::types::ToSql;

use super::{Result, usual};
use crate::bench::business::{INSERT_ORDER, MESSAGE, Order, TOPIC};
use crate::bench::report::{Budget, Line, Unit};
use crate::bench::rounds::{Plan, Side};
use crate::bench::server::{Server, connect};
use crate::bench::{with_sqlx, with_tokio_postgres};

const PLAIN: [&str; 2] = [
    "outbox, tokio-postgres: plain insert",
    "outbox, sqlx: plain insert",
];
const PUBLISH: [&str; 2] = ["outbox, tokio-postgres: publish", "outbox, sqlx: publish"];
const CALL: [&str; 2] = [
    "outbox, tokio-postgres: select pgonce.publish",
    "outbox, sqlx: select pgonce.publish",
];

const KIND: &str = "order.placed";
pub(super) const CALL_SQL: &str = "select pgonce.publish($1, $2, $3, $4)";

/// How the message is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum How {
    /// Not at all.
    Nothing,
    Plain,
    Publish,
    Call,
}

pub(super) async fn measure(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let url = server.database("publish").await?;
    connect(&url).await?.batch_execute(usual::TABLE).await?;
    let one = with_tokio_postgres::Shop::open(&url, plan.connections)?;
    let two = with_sqlx::Shop::open(&url, plan.connections)?;
    let ways = [How::Plain, How::Publish, How::Call];
    let names = [PLAIN, PUBLISH, CALL];
    let mut sides = Vec::new();
    for (how, names) in ways.into_iter().zip(names) {
        let shop = one.clone();
        sides.push(Side::new(names[0], move || with_tokio(shop.clone(), how)));
        let shop = two.clone();
        sides.push(Side::new(names[1], move || sqlx_order(shop.clone(), how)));
    }
    let measured = plan.rates(&sides).await?;
    drop((sides, one, two));
    server.remove(&url).await?;
    let mut lines = Vec::new();
    for driver in [0, 1] {
        for side in [PUBLISH[driver], CALL[driver]] {
            let ratio = measured.ratio(side, PLAIN[driver]);
            let what = format!("{side} ÷ plain insert");
            lines.push(Line::new(what, ratio, Unit::Ratio).within(Budget::AtLeast(0.90)));
        }
    }
    for side in names.as_flattened() {
        lines.push(Line::new(*side, measured.median(side), Unit::PerSecond));
    }
    Ok(lines)
}

/// An event about an order.
fn event(order: &Order) -> Result<Event> {
    let event = Event::new(TOPIC, KIND).subject(order.number.as_str());
    Ok(event.payload(&*MESSAGE)?)
}

/// One order, and a message about it.
pub(super) async fn with_tokio(shop: with_tokio_postgres::Shop, how: How) -> Result<()> {
    let mut object = shop.connection().await?;
    let mut tx = object.transaction().await?;
    let order = Order::new();
    let values: [&(dyn ToSql + Sync); 3] = [&order.number, &order.customer, &order.amount];
    let insert = tx.prepare_cached(INSERT_ORDER).await?;
    tx.query_one(&insert, &values).await?;
    let message: [&(dyn ToSql + Sync); 4] = [&TOPIC, &KIND, &order.number, &*MESSAGE];
    match how {
        How::Nothing => {}
        How::Plain => {
            let insert = tx.prepare_cached(usual::INSERT).await?;
            tx.execute(&insert, &message).await?;
        }
        How::Call => {
            let call = tx.prepare_cached(CALL_SQL).await?;
            tx.query_one(&call, &message).await?;
        }
        How::Publish => drop(shop.once.publish(&mut tx, &event(&order)?).await?),
    }
    Ok(tx.commit().await?)
}

/// The same with sqlx.
async fn sqlx_order(shop: with_sqlx::Shop, how: How) -> Result<()> {
    let mut conn = shop.pool.acquire().await?;
    let mut tx = conn.begin().await?;
    let order = Order::new();
    sqlx::query(INSERT_ORDER)
        .bind(&order.number)
        .bind(&*order.customer)
        .bind(order.amount)
        .fetch_one(&mut *tx)
        .await?;
    let by_hand = |sql| {
        sqlx::query(sql)
            .bind(TOPIC)
            .bind(KIND)
            .bind(&order.number)
            .bind(&*MESSAGE)
    };
    match how {
        How::Nothing => {}
        How::Plain => {
            by_hand(usual::INSERT).execute(&mut *tx).await?;
        }
        How::Call => drop(by_hand(CALL_SQL).fetch_one(&mut *tx).await?),
        How::Publish => drop(shop.once.publish(&mut tx, &event(&order)?).await?),
    }
    Ok(tx.commit().await?)
}
