//! What people usually have: a table of messages with a mark, drained with SKIP LOCKED.

use tokio_postgres::{Client, Row};

use super::{PAYLOAD, Result};

/// Messages, and an index of those that are open.
pub(super) const TABLE: &str = "
create table usual (
    id           bigint generated always as identity primary key,
    message_id   uuid not null default gen_random_uuid(),
    topic        text not null,
    type         text not null,
    subject      text not null,
    headers      jsonb not null default '{}',
    payload      jsonb,
    created_at   timestamptz not null default clock_timestamp(),
    published_at timestamptz
);
create index usual_open on usual (id) where published_at is null;
";

pub(super) const INSERT: &str =
    "insert into usual (topic, type, subject, payload) values ($1, $2, $3, $4)";

/// Empties the table and writes so many messages, fresh and analyzed.
pub(super) async fn fill(client: &Client, events: u64) -> Result<()> {
    let sql = format!(
        "truncate usual; insert into usual (topic, type, subject, payload) \
         select 'orders', 'order.placed', 'order-' || i, {PAYLOAD} from generate_series(1::bigint, {events}) i; \
         analyze usual"
    );
    Ok(client.batch_execute(&sql).await?)
}

const OPEN: &str = "with open as (select id from usual where published_at is null order by id limit 1000 \
     for update skip locked)";

const COLUMNS: &str =
    "message_id::text, topic, type, subject, headers::text, payload::text, created_at::text";

/// Marks messages as published, a thousand at a time.
pub(super) async fn by_update(client: &Client) -> Result<u64> {
    drain(
        client,
        &format!(
            "{OPEN} update usual u set published_at = clock_timestamp() from open \
             where u.id = open.id returning {COLUMNS}"
        ),
    )
    .await
}

/// Deletes messages, a thousand at a time.
pub(super) async fn by_delete(client: &Client) -> Result<u64> {
    drain(
        client,
        &format!("{OPEN} delete from usual u using open where u.id = open.id returning {COLUMNS}"),
    )
    .await
}

/// One statement is one batch and one transaction: the recipe at its best.
async fn drain(client: &Client, batch: &str) -> Result<u64> {
    let batch = client.prepare(batch).await?;
    let mut events = 0;
    loop {
        let rows = client.query(&batch, &[]).await?;
        if rows.is_empty() {
            return Ok(events);
        }
        // What is read is also taken out of the rows, as a publisher has to.
        let messages: Vec<[String; 7]> = rows.iter().map(message).collect::<Result<_>>()?;
        events += messages.len() as u64;
    }
}

fn message(row: &Row) -> Result<[String; 7]> {
    let mut cells: [String; 7] = Default::default();
    for (at, cell) in cells.iter_mut().enumerate() {
        *cell = row.try_get(at)?;
    }
    Ok(cells)
}
