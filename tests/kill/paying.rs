//! Payments through a provider whose book is a table.

use std::time::Duration;

use pgonce::external::{CallError, Effect, Found, Provider, Reply, Step};
use pgonce::{Intent, Lease, Once, Result};
use pgonce_tests::TestDriver;
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

/// Charges by a row of `book`. Each fourth request is lost, each third answer is.
pub(crate) struct Bank {
    book: Client,
    keys: bool,
}

impl Bank {
    pub(crate) async fn open(url: &str, keys: bool) -> Self {
        let (book, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self { book, keys }
    }
}

impl Provider for Bank {
    fn name(&self) -> &str {
        "bank"
    }

    async fn call(&self, effect: &Effect, request: &Value) -> Result<Reply, CallError> {
        let n = request["n"].as_i64().unwrap_or_default();
        if n % 4 == 0 && effect.sends == 1 {
            return Err(CallError::unknown("lost on its way"));
        }
        let charge = "insert into book (effect_key) select $1 where not $2 or not exists (select from book where effect_key = $1)";
        let charged = self.book.execute(charge, &[&effect.key, &self.keys]).await;
        charged?;
        match n % 3 == 0 && effect.sends == 1 {
            true => Err(CallError::unknown("its answer was lost")),
            false => Ok(Reply::new(&n)?),
        }
    }

    async fn look_up(
        &self,
        effect: &Effect,
    ) -> Result<Found, Box<dyn std::error::Error + Send + Sync>> {
        let find = "select count(*) from book where effect_key = $1";
        let row = self.book.query_one(find, &[&effect.key]).await?;
        match row.get::<_, i64>(0) {
            0 => Ok(Found::Unknown),
            _ => Ok(Found::Confirmed(Reply::new("found")?)),
        }
    }
}

/// Makes every payment, again and again, and reconciles meanwhile, until it is asked to stop: then it ends its round, which
/// may have charged, and looks in one more for what was charged without an answer.
pub(crate) async fn pay<D: TestDriver>(
    once: &Once<D>,
    url: &str,
    keys: bool,
    stop: CancellationToken,
) {
    let bank = Bank::open(url, keys).await;
    let payer = async {
        let mut rounds_to_go = 2;
        while rounds_to_go > 0 {
            for n in 1..=20 {
                // What went wrong is tried again in the next round.
                let _ = charge(once, &bank, n).await;
            }
            rounds_to_go -= i32::from(stop.is_cancelled());
            tokio::task::yield_now().await;
        }
    };
    let reconciling = async {
        let bank = Bank::open(url, keys).await;
        let reconciler = once
            .reconciler(bank)
            .poll_interval(Duration::from_millis(10));
        let reconciler = reconciler.timeout(Duration::from_millis(500));
        reconciler.run(std::future::pending()).await;
    };
    tokio::select! {
        () = payer => {}
        () = reconciling => {}
    }
}

async fn charge<D: TestDriver>(once: &Once<D>, bank: &Bank, n: i64) -> Result<()> {
    let intent = Intent::new("payments", n.to_string(), &n)?;
    let work = |mut lease: Lease<D>| async move {
        let step = Step::new("charge").decides_command();
        let reply = lease
            .external()
            .call(step, bank, &json!({ "n": n }))
            .await?;
        lease.succeed(&reply.replayed).await
    };
    once.run_leased(&intent, work).await.map(drop)
}
