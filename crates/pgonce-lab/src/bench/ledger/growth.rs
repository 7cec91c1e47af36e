//! The time of a replay while the ledger grows.

use std::time::{Duration, Instant};

use deadpool_postgres::{Manager, Pool};
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::ledger::Group;
use rand::RngExt as _;
use tokio_postgres::NoTls;

use super::super::growth::short;
use super::super::report::{Budget, Line, Unit};
use super::super::rounds::{Plan, Timed};
use super::super::server::{Server, connect};
use super::super::{Result, say};

/// Replays in a row at one size, so that each size works with warm caches of its own.
const BURST: usize = 20;

pub(super) async fn measure(server: &Server, plan: &mut Plan, sizes: &[u64]) -> Result<Vec<Line>> {
    let (Some(&least), Some(&most)) = (sizes.iter().min(), sizes.iter().max()) else {
        return Ok(Vec::new());
    };
    let mut sides = Vec::new();
    let mut urls = Vec::new();
    for entries in [least, most] {
        say(&format!(
            "the ledger at {} entries: filling",
            short(entries)
        ));
        let url = server.database(&format!("ledger_{entries}")).await?;
        let groups = entries.div_ceil(2);
        connect(&url).await?.batch_execute(&fill(groups)).await?;
        let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
            .max_size(1)
            .build()?;
        sides.push(AtSize {
            // As many as there are sizes, so that a name can be distinguished from a number.
            name: String::leak(short(entries)),
            once: Once::tokio_postgres(pool),
            groups,
        });
        urls.push(url);
    }
    say("replays of the ledger at both sizes");
    let measured = plan.latencies(&mut sides, 20 * plan.rounds).await?;
    drop(sides);
    for url in &urls {
        server.remove(url).await?;
    }
    let (least, most) = (short(least), short(most));
    let ratio = measured.median(&most) / measured.median(&least);
    let what = format!("ledger, replay at {most} entries ÷ at {least}, median");
    let mut lines = vec![Line::new(what, ratio, Unit::Ratio).within(Budget::AtMost(1.25))];
    for size in [least, most] {
        let what = format!("ledger, replay at {size} entries, median");
        lines.push(Line::new(what, measured.median(&size), Unit::Microseconds));
    }
    Ok(lines)
}

/// Replays in a ledger of one size.
struct AtSize {
    name: &'static str,
    once: Once<TokioPostgres>,
    groups: u64,
}

impl Timed for AtSize {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn time(&mut self) -> Result<Duration> {
        let mut spent = Duration::ZERO;
        for _ in 0..BURST {
            let n = rand::rng().random_range(1..=self.groups);
            let group = Group::new("bench", format!("group-{n}"))
                .debit(&format!("a{}", n % 1000), 5)
                .credit(&format!("a{}", (n + 1) % 1000), 5);
            let start = Instant::now();
            let recorded = self.once.post(&group, "").await?;
            spent += start.elapsed();
            if recorded.new {
                return Err("a filled group was not known".into());
            }
        }
        Ok(spent / BURST as u32)
    }
}

/// Groups of two entries, as `ledger_post` records them except for their hash chain, which a replay does not read. The primary
/// keys are built afterwards, which is many times faster.
fn fill(groups: u64) -> String {
    format!(
        "alter table pgonce.ledger_group drop constraint one_group_per_operation;
         alter table pgonce.ledger_entry drop constraint one_entry_per_position;
         insert into pgonce.ledger_group (tenant, source, operation, recorded_at, pending, digest, accounts, amounts)
         select '', 'bench', operation, now(), false,
                pgonce._ledger_digest('', 'bench', operation, false, accounts, amounts, null, null, null), accounts, amounts
           from (select 'group-' || n as operation, array['a' || n % 1000, 'a' || (n + 1) % 1000] as accounts,
                        array[5, -5]::numeric[] as amounts
                   from generate_series(1::bigint, {groups}) n) as numbered;
         insert into pgonce.ledger_entry (tenant, account, shard, seq, line, posted_at, source, operation, amount, balance, hash)
         select '', 'a' || (n + line - 1) % 1000, 0, 2 * n + line, line, now(), 'bench', 'group-' || n, 15 - 10 * line, 0, '\\x00'
           from generate_series(1::bigint, {groups}) n, generate_series(1, 2) line;
         alter table pgonce.ledger_group add constraint one_group_per_operation primary key (tenant, source, operation);
         alter table pgonce.ledger_entry add constraint one_entry_per_position primary key (tenant, account, shard, seq);
         analyze pgonce.ledger_group;
         analyze pgonce.ledger_entry"
    )
}
