//! `pgonce outbox tail`: relays that follow the write-ahead log.

use crate::database::Database;
use crate::exit::Result;
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Allow it, or no longer; left out: show what there is.
    #[arg(value_parser = ["on", "off"])]
    turn: Option<String>,
}

pub(super) async fn run(database: &Database, args: &Args) -> Result {
    if let Some(turn) = &args.turn {
        let query = "select 'done' from pgonce._set_wal_publication($1::text::boolean)";
        database.rows(query, &[Some(turn)]).await?;
    }
    let query = "select current_setting('wal_level') as wal_level, \
         exists (select from pg_catalog.pg_publication where pubname = $1) as allowed, \
         (select count(*) from pgonce.outbox_wal_listeners) as relays, \
         (select max(held_back) from pgonce.outbox_wal_listeners) as held_back, \
         current_setting('max_slot_wal_keep_size') as max_held_back";
    let publication = format!("{}_outbox", database.schema);
    let row = match args.turn {
        Some(_) => {
            database
                .read_after_act(query, &[Some(&publication)])
                .await?
        }
        None => database.read_row(query, &[Some(&publication)]).await?,
    };
    match row {
        Some(row) => output::fields(database.format, &row),
        None => Ok(()),
    }
}

/// A line for people, where any relay does.
pub(super) async fn mention(database: &Database) -> Result {
    if database.format != Format::Table {
        return Ok(());
    }
    let query = "select count(*) as relays, pg_size_pretty(max(held_back)) as held_back \
         from pgonce.outbox_wal_listeners having count(*) > 0";
    let Some(row) = database.read_row(query, &[]).await? else {
        return Ok(());
    };
    let row: serde_json::Value = serde_json::from_str(&row)?;
    let held_back = row["held_back"].as_str().unwrap_or("nothing");
    output::line(&format!(
        "Relays that follow the write-ahead log: {}. WAL retained for them: {held_back}.",
        row["relays"]
    ))
}
