//! The ledger: a transfer between two accounts, beside two bare entries and two bare balances.

mod growth;

use deadpool_postgres::{Manager, Pool};
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::ledger::Group;
use pgonce::{Once, key};
use rand::RngExt as _;
use tokio_postgres::NoTls;
use tokio_postgres::types::ToSql;

use super::Result;
use super::report::{Budget, Line, Unit};
use super::rounds::{Plan, Side};
use super::server::{Server, connect};

const ACCOUNTS: i32 = 1000;

/// What people write by hand, without any of the promises.
const BARE: &str = "
create table bare_account (id integer primary key, balance bigint not null default 0) with (fillfactor = 40);
insert into bare_account select generate_series(0, 999);
create table bare_entry (id bigint generated always as identity primary key, account integer not null, operation text not null,
    amount bigint not null, at timestamptz not null default clock_timestamp());
select pgonce.ledger_open('a' || i, 'EUR', 'debit') from generate_series(0, 999) i;
select pgonce.ledger_open('sharded', 'EUR', 'debit', p_shards => 32);
";

#[derive(Debug, Clone)]
struct Bank {
    pool: Pool,
    once: Once<TokioPostgres>,
}

impl Bank {
    async fn bare(self, hot: bool) -> Result<()> {
        let (one, two) = accounts(hot);
        let client = self.pool.get().await?;
        let insert =
            "insert into bare_entry (account, operation, amount) values ($1, $3, 5), ($2, $3, -5)";
        let insert = client.prepare_cached(insert).await?;
        let update = "update bare_account set balance = balance + $2 where id = $1";
        let update = client.prepare_cached(update).await?;
        client.batch_execute("begin").await?;
        let values: [&(dyn ToSql + Sync); 3] = [&one, &two, &key::fresh()];
        client.execute(&insert, &values).await?;
        // In one order, so that nobody deadlocks.
        client.execute(&update, &[&one.min(two), &5_i64]).await?;
        client.execute(&update, &[&one.max(two), &-5_i64]).await?;
        client.batch_execute("commit").await?;
        Ok(())
    }

    async fn post(self, first: Option<&'static str>) -> Result<()> {
        let (one, two) = accounts(first.is_some());
        let first = first.map_or_else(|| format!("a{one}"), str::to_owned);
        let group = Group::new("bench", key::fresh()).debit(&first, 5);
        let recorded = self
            .once
            .post(&group.credit(&format!("a{two}"), 5), "")
            .await?;
        match recorded.new {
            true => Ok(()),
            false => Err("a new group was recorded before".into()),
        }
    }

    async fn replay(self) -> Result<()> {
        let group = Group::new("bench", "same").debit("a1", 5).credit("a2", 5);
        self.once.post(&group, "").await?;
        Ok(())
    }
}

/// Two different accounts; the first is number 0 where it is hot.
fn accounts(hot: bool) -> (i32, i32) {
    let mut random = rand::rng();
    let one = if hot {
        0
    } else {
        random.random_range(0..ACCOUNTS)
    };
    (one, (one + random.random_range(1..ACCOUNTS)) % ACCOUNTS)
}

pub(super) async fn measure(server: &Server, plan: &mut Plan, sizes: &[u64]) -> Result<Vec<Line>> {
    let url = server.database("ledger").await?;
    connect(&url).await?.batch_execute(BARE).await?;
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
        .max_size(plan.connections)
        .build()?;
    let bank = Bank {
        once: Once::tokio_postgres(pool.clone()),
        pool,
    };
    macro_rules! side {
        ($name:literal, $run:ident $(, $argument:expr)*) => {{
            let bank = bank.clone();
            Side::new($name, move || bank.clone().$run($($argument),*))
        }};
    }
    let sides = [
        side!("bare", bare, false),
        side!("post", post, None),
        side!("one hot account: bare", bare, true),
        side!("one hot account: post", post, Some("a0")),
        side!("one hot account: post, 32 shards", post, Some("sharded")),
        side!("replay", replay),
    ];
    let measured = plan.rates(&sides).await?;
    let names: Vec<_> = sides.iter().map(|side| side.name).collect();
    drop((sides, bank));
    server.remove(&url).await?;
    let ratio = |name: &str, base: &str| {
        let what = format!("ledger, {name} ÷ {base}");
        Line::new(what, measured.ratio(name, base), Unit::Ratio)
    };
    let hot = "one hot account: bare";
    let mut lines = vec![
        ratio("post", "bare").within(Budget::AtLeast(0.6)),
        ratio("one hot account: post", hot),
        ratio("one hot account: post, 32 shards", hot),
        ratio("replay", "bare"),
    ];
    for name in names {
        lines.push(Line::new(
            format!("ledger, {name}"),
            measured.median(name),
            Unit::PerSecond,
        ));
    }
    lines.extend(growth::measure(server, plan, sizes).await?);
    Ok(lines)
}
