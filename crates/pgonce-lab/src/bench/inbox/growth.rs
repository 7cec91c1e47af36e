//! The time to take a batch on while the table of markers grows.

use std::time::{Duration, Instant};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Inbox, Message, Verdict};
use uuid::Uuid;

use super::shop::{CONSUMER, SOURCE};
use super::{Budget, Line, Plan, Result, Server, Size, Unit, connect, say};
use crate::bench::growth::short;
use crate::bench::rounds::Timed;
use crate::bench::with_tokio_postgres;

/// Messages in a batch.
const BATCH: usize = 100;

/// What the message ids are like.
#[derive(Debug, Clone, Copy)]
enum Ids {
    /// UUIDs of version 7: they carry the day, and come in order.
    OfTime,
    /// UUIDs of version 4: anywhere in the index.
    Random,
}

pub(super) async fn measure(server: &Server, plan: &mut Plan, size: &Size) -> Result<Vec<Line>> {
    let grown = short(size.markers);
    let mut sides = Vec::new();
    let mut urls = Vec::new();
    for full in [false, true] {
        let url = server
            .database(if full { "inbox_full" } else { "inbox_empty" })
            .await?;
        let prepare = connect(&url).await?;
        prepare
            .batch_execute("select pgonce._create_inbox_partitions()")
            .await?;
        if full {
            say(&format!("messages at {grown} markers: filling"));
            prepare.batch_execute(&fill(size.markers)).await?;
        }
        prepare
            .batch_execute("vacuum (analyze) pgonce.inbox_marker")
            .await?;
        let inbox = with_tokio_postgres::Shop::open(&url, 1)?.once.inbox();
        for (ids, name) in [
            (
                Ids::OfTime,
                ["time, empty", "time, full"][usize::from(full)],
            ),
            (
                Ids::Random,
                ["random, empty", "random, full"][usize::from(full)],
            ),
        ] {
            let inbox = inbox.clone();
            sides.push(Marking { name, ids, inbox });
        }
        urls.push(url);
    }
    say("messages at all sizes");
    let measured = plan.latencies(&mut sides, 15 * plan.rounds).await?;
    drop(sides);
    for url in &urls {
        server.remove(url).await?;
    }
    let mut lines = Vec::new();
    for (kind, what) in [("time", "UUIDv7"), ("random", "UUIDv4")] {
        let (full, empty) = (format!("{kind}, full"), format!("{kind}, empty"));
        let ratio = measured.median(&full) / measured.median(&empty);
        let name =
            format!("inbox: {BATCH} taken on at {grown} markers ÷ at none, ids {what}, median");
        lines.push(Line::new(name, ratio, Unit::Ratio).within(Budget::AtMost(1.25)));
        for (side, size) in [(full, grown.as_str()), (empty, "no")] {
            let name = format!("inbox: {BATCH} taken on at {size} markers, ids {what}, median");
            lines.push(Line::new(name, measured.median(&side), Unit::Microseconds));
        }
    }
    Ok(lines)
}

/// Takes batches on in a table of one size.
struct Marking {
    name: &'static str,
    ids: Ids,
    inbox: Inbox<TokioPostgres>,
}

impl Timed for Marking {
    fn name(&self) -> &'static str {
        self.name
    }

    /// From BEGIN to COMMIT.
    async fn time(&mut self) -> Result<Duration> {
        let id = |_| match self.ids {
            Ids::OfTime => pgonce::key::fresh(),
            Ids::Random => Uuid::new_v4().to_string(),
        };
        let messages: Vec<Message> = (0..BATCH).map(|n| Message::new(id(n), "{}")).collect();
        let all: Vec<&Message> = messages.iter().collect();
        let start = Instant::now();
        let mut batch = self.inbox.begin().await?;
        let verdicts = batch.dedupe(CONSUMER, SOURCE, &all).await?;
        batch.commit().await?;
        let spent = start.elapsed();
        match verdicts.iter().all(|verdict| *verdict == Verdict::New) {
            true => Ok(spent),
            false => Err("a new message was taken for a copy".into()),
        }
    }
}

/// Markers, half of them with ids of today, half with random ones. The primary key is built afterwards,
/// which is many times faster.
fn fill(markers: u64) -> String {
    let half = markers.div_ceil(2);
    format!(
        "alter table pgonce.inbox_marker drop constraint one_marker_per_message;
         insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
         select now(), (now() at time zone 'UTC')::date, '', '{CONSUMER}', '{SOURCE}',
                overlay(overlay(lpad(to_hex((extract(epoch from date_trunc('day', now() at time zone 'UTC')) * 1000)::bigint + i * 8), 12, '0')
                    placing '-' from 9 for 0) placing
                    '-7' || substr(h, 1, 3) || '-8' || substr(h, 4, 3) || '-' || substr(h, 7, 12) from 14 for 0),
                decode(h || h, 'hex')
           from (select i % 10000000 as i, md5(i::text) as h from generate_series(1::bigint, {half}) i) as numbered;
         insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
         select now(), '-infinity', '', '{CONSUMER}', '{SOURCE}', id, sha256(id::bytea)
           from (select gen_random_uuid()::text as id from generate_series(1::bigint, {half})) as random;
         alter table pgonce.inbox_marker add constraint one_marker_per_message primary key (tenant, message_id, consumer, source, day);"
    )
}
