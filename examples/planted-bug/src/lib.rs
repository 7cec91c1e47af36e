//! Two handlers that pay once per key: one looks right and is not, one is.
//!
//! `tests/storm.rs` lets a storm loose on both: cut connections, lost replies, killed sessions,
//! several clients with the same key. `cargo test -p planted-bug -- --nocapture` shows what it
//! finds.

use pgonce::driver::sqlx::Sqlx;
use pgonce::{Ack, Intent, Once};
use serde_json::json;
use sqlx::PgPool;

/// The tables of both. `paid` is the home-made memory of the wrong one.
pub const SCHEMA: &str = "
    create table payment (
        id bigint generated always as identity primary key,
        key text not null,
        amount bigint not null
    );
    create table paid (key text primary key, payment bigint not null);
";

/// Looks for the key, pays, then remembers the key: three transactions, and any two attempts, or
/// one that breaks between the second and the third, pay twice.
pub async fn pay_wrongly(pool: &PgPool, key: &str, amount: i64) -> Result<i64, sqlx::Error> {
    let known = sqlx::query_scalar("select payment from paid where key = $1")
        .bind(key)
        .fetch_optional(pool)
        .await?;
    if let Some(payment) = known {
        return Ok(payment);
    }
    let payment =
        sqlx::query_scalar("insert into payment (key, amount) values ($1, $2) returning id")
            .bind(key)
            .bind(amount)
            .fetch_one(pool)
            .await?;
    sqlx::query("insert into paid (key, payment) values ($1, $2)")
        .bind(key)
        .bind(payment)
        .execute(pool)
        .await?;
    Ok(payment)
}

/// Claim, payment and answer are one transaction. Says whether the answer is from before.
pub async fn pay(once: &Once<Sqlx>, key: &str, amount: i64) -> pgonce::Result<(i64, bool)> {
    let intent = Intent::new("payments.pay", key, &json!({ "amount": amount }))?;
    let done = once
        .run(&intent, |mut attempt| async move {
            let payment: i64 = sqlx::query_scalar(
                "insert into payment (key, amount) values ($1, $2) returning id",
            )
            .bind(key)
            .bind(amount)
            .fetch_one(attempt.conn())
            .await?;
            attempt.succeed(Ack::value(&payment)?).await
        })
        .await?;
    Ok((done.read()?, done.replayed()))
}
