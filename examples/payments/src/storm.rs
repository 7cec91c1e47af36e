//! Many clients that retry and hang up, and then a report: do the provider's book and ours agree?

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pgonce::external::Rules;
use pgonce::sqlx::Once;
use pgonce_testkit::Database;
use reqwest::{Client, StatusCode};
use tokio::net::TcpListener;

use crate::bank::Bank;
use crate::simulator::{Kind, Simulator};
use crate::{Payment, router, set_up};

/// Number of clients at a time.
const CLIENTS: u32 = 12;
/// Minimum number of payments of a client, however slow the machine is.
const MIN_PAYMENTS: u64 = 3;
/// Time after which an undecided call needs an operator.
const DEADLINE: Duration = Duration::from_secs(4);

/// What both books say in the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Payments that clients asked for and that reached the provider's account with us.
    pub payments: usize,
    /// Charged once, and confirmed here.
    pub confirmed: usize,
    /// Declined by the provider, and failed here.
    pub declined: usize,
    /// Waiting for an operator.
    pub waiting: usize,
    /// Never sent: the provider did not take it.
    pub not_sent: usize,
    /// Requests that were sent to the provider.
    pub sends: usize,
    /// What is wrong.
    pub faults: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            payments,
            confirmed,
            declined,
            waiting,
            not_sent,
            sends,
            faults,
        } = self;
        writeln!(
            f,
            "  payments                {payments:>7}   requests to the provider {sends}"
        )?;
        writeln!(f, "  charged once, confirmed {confirmed:>7}")?;
        writeln!(f, "  declined                {declined:>7}")?;
        writeln!(f, "  waiting for an operator {waiting:>7}")?;
        writeln!(f, "  never sent              {not_sent:>7}")?;
        for fault in faults.iter().take(20) {
            writeln!(f, "  FAULT {fault}")?;
        }
        match faults.len() {
            0 => write!(f, "  the provider's book and ours agree"),
            n => write!(f, "  {n} FAULTS: the books do not agree"),
        }
    }
}

/// A database of its own on a private PostgreSQL, which goes with this process.
pub async fn database() -> Result<Database, Box<dyn Error>> {
    let server = pgonce_testkit::shared(None).await?;
    let install = async |url: String| set_up(&url, &Rules::new("bank")).await.map(drop);
    server.template("payments", install).await?;
    Ok(server.database_from("payments").await?)
}

/// Serves the storm for so long, and compares the books.
pub async fn run(url: &str, kind: Kind, time: Duration) -> Result<Verdict, Box<dyn Error>> {
    let mut rules = Rules::new("bank")
        .look_after(Duration::from_millis(300))
        .backoff(Duration::from_millis(100), Duration::from_secs(1))
        .deadline(DEADLINE)
        .circuit_breaker(50, Duration::from_millis(200));
    if kind.keys {
        rules = rules.keys_for(Duration::from_secs(3600));
    }
    let once = set_up(url, &rules).await?;
    let (ours, theirs) = (
        TcpListener::bind("127.0.0.1:0").await?,
        TcpListener::bind("127.0.0.1:0").await?,
    );
    let service = format!("http://{}", ours.local_addr()?);
    let simulator = Simulator::new(kind, format!("{service}/webhooks"));
    let bank = Bank {
        url: format!("http://{}/charges", theirs.local_addr()?),
        http: Client::new(),
    };
    let mut tasks = tokio::task::JoinSet::new();
    let (provider, router) = (simulator.router(), router(once.clone(), bank.clone()));
    tasks.spawn(async move { drop(axum::serve(theirs, provider).await) });
    tasks.spawn(async move { drop(axum::serve(ours, router).await) });
    for _ in 0..2 {
        let reconciler = once.reconciler(bank.clone());
        let reconciler = reconciler
            .poll_interval(Duration::from_millis(50))
            .timeout(Duration::from_millis(300));
        tasks.spawn(reconciler.run(std::future::pending()));
    }
    let until = Instant::now() + time;
    join_all((0..CLIENTS).map(|client| pay_until(until, client, &service))).await;
    settle(&once).await?;
    let verdict = compare(&once, &simulator.book()).await?;
    tasks.shutdown().await;
    Ok(verdict)
}

/// One client: payment after payment, each tried until it is answered or given up.
async fn pay_until(until: Instant, client: u32, service: &str) {
    let http = Client::new();
    let mut n = 0_u64;
    while n < MIN_PAYMENTS || Instant::now() < until {
        n += 1;
        let key = format!("client-{client}-payment-{n}");
        let payment = Payment {
            amount: 100 + n,
            card: "4242 4242 4242 4242".to_owned(),
        };
        for _ in 0..6 {
            // Some hang up in the middle, as a client or a process that dies does.
            let timeout = Duration::from_millis(rand::random_range(20..900));
            let post = || {
                let post = http.post(format!("{service}/payments"));
                post.header("idempotency-key", &key)
                    .json(&payment)
                    .timeout(timeout)
                    .send()
            };
            // And some ask twice at once.
            let (one, _) = match rand::random_bool(0.2) {
                true => tokio::join!(post(), async { post().await.ok() }),
                false => (post().await, None),
            };
            if one
                .is_ok_and(|r| matches!(r.status(), StatusCode::OK | StatusCode::PAYMENT_REQUIRED))
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(rand::random_range(10..200))).await;
        }
    }
}

/// Waits until every call is decided or waits for an operator, and until what the provider does late is done.
async fn settle(once: &Once) -> Result<(), Box<dyn Error>> {
    let open = "select count(*) from pgonce.external_calls where status in ('sent', 'unknown')";
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        let left: i64 = sqlx::query_scalar(open)
            .fetch_one(once.driver().pool())
            .await?;
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Effect key, status, reference, number of sends, and the status of the command.
type Recorded = (String, String, Option<String>, i32, Option<String>);

async fn compare(
    once: &Once,
    book: &HashMap<String, crate::simulator::Entry>,
) -> Result<Verdict, Box<dyn Error>> {
    let calls = "select c.effect_key::text, c.status, c.reference, c.sends, i.status::text from pgonce.external_calls c \
        left join pgonce.intent i using (tenant, scope, key)";
    let rows: Vec<Recorded> = sqlx::query_as(calls)
        .fetch_all(once.driver().pool())
        .await?;
    let mut verdict = Verdict {
        payments: rows.len(),
        ..Verdict::default()
    };
    for key in book.keys() {
        if !rows.iter().any(|row| row.0 == *key) {
            verdict
                .faults
                .push(format!("{key} is in the provider's book alone"));
        }
    }
    for (key, status, reference, sends, intent) in rows {
        verdict.sends += usize::try_from(sends)?;
        let entry = book.get(&key).cloned().unwrap_or_default();
        let mut fault = |what: &str| verdict.faults.push(format!("{key} ({status}): {what}"));
        if entry.charges.len() > 1 {
            fault("charged twice");
        }
        match status.as_str() {
            "confirmed" if entry.charges.is_empty() => fault("never charged"),
            "confirmed" if entry.charges.first() != reference.as_ref() => fault("another charge"),
            "failed" if !entry.charges.is_empty() => fault("charged"),
            "failed" if entry.declined == 0 => fault("never declined"),
            "requested" if !entry.charges.is_empty() => fault("charged"),
            "sent" | "unknown" => fault("neither decided nor waiting"),
            _ => {}
        }
        if status != "confirmed" && intent.as_deref() == Some("succeeded") {
            fault("the command succeeded");
        }
        match status.as_str() {
            "confirmed" => verdict.confirmed += 1,
            "failed" => verdict.declined += 1,
            "needs_operator" => verdict.waiting += 1,
            _ => verdict.not_sent += 1,
        }
    }
    Ok(verdict)
}
