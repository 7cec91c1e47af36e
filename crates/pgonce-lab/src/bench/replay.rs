//! Answers to duplicates, beside a plain look-up of a row of the same size.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Claim, Done, Fingerprint, Intent, Once, ReplayCache};
use pgonce_testkit::Redis;
use rand::seq::SliceRandom as _;
use serde_json::Value;

use super::Result;
use super::business::SCOPE;
use super::growth::{FINGERPRINT, fill};
use super::report::{Budget, Line, Unit};
use super::rounds::{Plan, Side};
use super::server::{Server, connect};
use super::{with_sqlx, with_tokio_postgres};

/// Existing intents, or fewer where no table is to grow that large.
const MAX_INTENTS: u64 = 100_000;
/// How a duplicate is asked for, and the least of a plain look-up that it is to reach.
const BUDGETS: [(&str, Budget); 2] = [
    ("answer", Budget::AtLeast(0.80)),
    ("claim", Budget::AtLeast(0.60)),
];
/// Intents that are asked for again and again.
const HOT: usize = 1_000;
const CACHED: [&str; 2] = ["cache in process", "cache in Redis"];

/// The same answers under the same keys, in a table that knows nothing of pgonce.
const PLAIN: &str = "
create table answers (key text collate \"C\" primary key, fingerprint bytea not null, made_at timestamptz, answer jsonb);
insert into answers select key, fingerprint, first_at, answer from pgonce.intent;
";
const LOOK_UP: &str = "select answer from answers where key = $1";

/// Existing keys in random order, for all connections.
#[derive(Debug)]
struct Keys {
    keys: Vec<String>,
    next: AtomicUsize,
}

impl Keys {
    fn next(&self) -> &str {
        &self.keys[self.next.fetch_add(1, Ordering::Relaxed) % self.keys.len()]
    }

    fn intent(&self) -> Result<Intent> {
        Ok(Intent::with_fingerprint(
            SCOPE,
            self.next(),
            Fingerprint::custom(FINGERPRINT),
        )?)
    }
}

pub(super) async fn measure(server: &Server, plan: &mut Plan, sizes: &[u64]) -> Result<Vec<Line>> {
    let url = server.database("replay").await?;
    let largest = sizes.iter().copied().max().unwrap_or(MAX_INTENTS);
    fill(&url, largest.min(MAX_INTENTS)).await?;
    let client = connect(&url).await?;
    client.batch_execute(PLAIN).await?;
    client.batch_execute("vacuum (analyze)").await?;
    let rows = client.query("select key from pgonce.intent", &[]).await?;
    let mut keys = rows
        .iter()
        .map(|row| Ok(row.try_get(0)?))
        .collect::<Result<Vec<String>>>()?;
    keys.shuffle(&mut plan.random);
    let keys = Arc::new(Keys {
        keys,
        next: AtomicUsize::new(0),
    });

    let one = with_tokio_postgres::Shop::open(&url, plan.connections)?;
    let two = with_sqlx::Shop::open(&url, plan.connections)?;
    let redis = Redis::start().await?;
    let hot = Arc::new(Keys {
        keys: keys.keys.iter().take(HOT).cloned().collect(),
        next: AtomicUsize::new(0),
    });
    let cached = [
        cached(&one, &hot, ReplayCache::in_process()).await?,
        cached(&one, &hot, ReplayCache::redis(&redis.url(), [7; 32])?).await?,
    ];
    let mut all = Vec::from(sides(&one, &two, &keys));
    for (name, once) in CACHED.into_iter().zip(cached) {
        let hot = hot.clone();
        all.push(Side::new(name, move || {
            let (once, hot) = (once.clone(), hot.clone());
            async move { must_be_a_replay(once.answer(&hot.intent()?).await?) }
        }));
    }
    let measured = plan.rates(&all).await?;
    drop((one, two, all));
    server.remove(&url).await?;

    let mut lines = Vec::new();
    for name in CACHED {
        lines.push(Line::new(
            format!("{name}: replays"),
            measured.median(name),
            Unit::PerSecond,
        ));
        lines.push(Line::new(
            format!("{name} ÷ replay by answer"),
            measured.ratio(name, "tokio-postgres: answer"),
            Unit::Ratio,
        ));
    }
    for driver in ["tokio-postgres", "sqlx"] {
        let base = format!("{driver}: select");
        for (what, budget) in BUDGETS {
            let name = format!("{driver}: {what}");
            let line = Line::new(
                format!("{driver}: replay by {what} ÷ bare primary-key select"),
                measured.ratio(&name, &base),
                Unit::Ratio,
            );
            lines.push(line.within(budget));
        }
        lines.push(Line::new(
            format!("{driver}: bare primary-key select"),
            measured.median(&base),
            Unit::PerSecond,
        ));
    }
    Ok(lines)
}

fn sides(one: &with_tokio_postgres::Shop, two: &with_sqlx::Shop, keys: &Arc<Keys>) -> [Side; 6] {
    // Each call of a side starts from the shop and gives a future of its own.
    macro_rules! side {
        ($name:literal, $shop:ident, $run:expr) => {{
            let (shop, keys) = ($shop.clone(), keys.clone());
            Side::new($name, move || $run(shop.clone(), keys.clone()))
        }};
    }
    [
        side!(
            "tokio-postgres: select",
            one,
            async |shop: with_tokio_postgres::Shop, keys: Arc<Keys>| {
                let object = shop.connection().await?;
                let look_up = object.prepare_cached(LOOK_UP).await?;
                let answer: Value = object
                    .query_one(&look_up, &[&keys.next()])
                    .await?
                    .try_get(0)?;
                must_be_the_answer(&answer)
            }
        ),
        side!(
            "tokio-postgres: answer",
            one,
            async |shop: with_tokio_postgres::Shop, keys: Arc<Keys>| {
                must_be_a_replay(shop.once.answer(&keys.intent()?).await?)
            }
        ),
        side!(
            "tokio-postgres: claim",
            one,
            async |shop: with_tokio_postgres::Shop, keys: Arc<Keys>| {
                match shop.once.claim(&keys.intent()?).await? {
                    Claim::Replay(done) => must_be_a_replay(Some(done)),
                    _ => must_be_a_replay(None),
                }
            }
        ),
        side!(
            "sqlx: select",
            two,
            async |shop: with_sqlx::Shop, keys: Arc<Keys>| {
                let answer: Value = sqlx::query_scalar(LOOK_UP)
                    .bind(keys.next())
                    .fetch_one(&shop.pool)
                    .await?;
                must_be_the_answer(&answer)
            }
        ),
        side!(
            "sqlx: answer",
            two,
            async |shop: with_sqlx::Shop, keys: Arc<Keys>| {
                must_be_a_replay(shop.once.answer(&keys.intent()?).await?)
            }
        ),
        side!(
            "sqlx: claim",
            two,
            async |shop: with_sqlx::Shop, keys: Arc<Keys>| {
                match shop.once.claim(&keys.intent()?).await? {
                    Claim::Replay(done) => must_be_a_replay(Some(done)),
                    _ => must_be_a_replay(None),
                }
            }
        ),
    ]
}

/// One with a cache that has all of these answers.
async fn cached(
    shop: &with_tokio_postgres::Shop,
    keys: &Keys,
    cache: ReplayCache,
) -> Result<Once<TokioPostgres>> {
    let once = Once::builder(shop.once.driver().clone())
        .cache(cache)
        .build()?;
    let hits = || once.cache_counts().map_or(0, |counts| counts.hits);
    for _ in 0..keys.keys.len() {
        let (intent, before) = (keys.intent()?, hits());
        while hits() == before {
            must_be_a_replay(once.answer(&intent).await?)?;
            tokio::task::yield_now().await;
        }
    }
    Ok(once)
}

fn must_be_a_replay(done: Option<Done>) -> Result<()> {
    let done = done.ok_or("an existing intent was not replayed")?;
    must_be_the_answer(done.ack().json().ok_or("a replay without its answer")?)
}

fn must_be_the_answer(answer: &Value) -> Result<()> {
    if answer["order"].is_i64() {
        Ok(())
    } else {
        Err(format!("{answer} is not the answer").into())
    }
}
