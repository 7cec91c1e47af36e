//! Events: what publishing costs the writer, how fast a relay drains the log, how soon an event is at
//! the sink, and what is left behind, beside the table with SKIP LOCKED that people usually have.

mod drain;
mod live;
mod memory;
mod metered;
mod publish;
mod sink;
mod usual;
mod wal;

use deadpool_postgres::{Manager, Pool};
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::{Outbox, Subscription};
use tokio_postgres::NoTls;

pub(super) use metered::metered;

use super::report::Line;
use super::rounds::Plan;
use super::server::{Server, connect};
use super::{Result, say};

/// How much is measured.
#[derive(Debug)]
pub(super) struct Size {
    /// Events that are drained in one turn.
    events: u64,
    /// How often each side has a turn.
    rounds: usize,
    /// The backlog at which memory is looked at.
    backlog: u64,
    /// Events that are published one by one, a thousand a second.
    live: u64,
}

impl Size {
    pub(super) fn of(quick: bool, events: Option<u64>) -> Self {
        let (drained, rounds, backlog, live) = match quick {
            true => (10_000, 2, 100_000, 2_000),
            false => (100_000, 2, 1_000_000, 5_000),
        };
        Self {
            events: events.unwrap_or(drained),
            rounds,
            backlog: events.map_or(backlog, |events| events.min(backlog)),
            live: events.map_or(live, |events| events.min(live)),
        }
    }
}

pub(super) async fn measure(server: &Server, plan: &mut Plan, size: &Size) -> Result<Vec<Line>> {
    // First, while nothing else has filled this process.
    say(&format!(
        "a relay's memory with {} events before it",
        size.backlog
    ));
    let memory = memory::measure(server, size).await?;
    say("how fast the log is drained");
    let mut lines = drain::measure(server, plan, size).await?;
    say("publishing in the writer's transaction");
    lines.extend(publish::measure(server, plan).await?);
    say("how soon events are at the sink");
    lines.extend(live::measure(server, size).await?);
    lines.extend(memory);
    say("WAL and dead rows of events");
    lines.extend(wal::measure(server, size).await?);
    Ok(lines)
}

/// The outbox of a database, over connections of its own.
fn outbox(url: &str) -> Result<Outbox<TokioPostgres>> {
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
        .max_size(2)
        .build()?;
    Ok(Once::tokio_postgres(pool).outbox())
}

/// The name of the only subscription.
const CONSUMER: &str = "bench";

/// Lets the subscription begin with the oldest event.
async fn from_the_start(outbox: &Outbox<TokioPostgres>) -> Result<()> {
    outbox.drop_subscription(CONSUMER).await?;
    Ok(outbox
        .create_subscription(&Subscription::new(CONSUMER))
        .await?)
}

/// The payload of a message of 200 bytes, as SQL; `i` is its number.
const PAYLOAD: &str = "jsonb_build_object('n', i, 'type', 'order.placed', 'customer', 'customer-' || i, \
     'currency', 'EUR', 'note', repeat('leave it with the neighbours ', 3), 'channel', 'web')";

/// Publishes so many events about so many subjects.
async fn fill(url: &str, events: u64, subjects: u64) -> Result<()> {
    let sql = format!(
        "insert into pgonce.outbox select e.* from generate_series(1::bigint, {events}) i \
         cross join lateral pgonce._event_row('orders', 'order.placed', 'order-' || i % {subjects}, {PAYLOAD}, \
         null, '{{}}', null, '', 250) e"
    );
    Ok(connect(url).await?.batch_execute(&sql).await?)
}
