//! Wallets with transfers over HTTP, on a double-entry ledger.
//!
//! `POST /transfers` with an `Idempotency-Key` moves money once, however often it is sent, and never more
//! than there is. The group in the ledger and the response commit together.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use pgonce::driver::sqlx::Sqlx;
use pgonce::ledger::{Account, Group, Side};
use pgonce::sqlx::{Migrator, Once};
use pgonce_http::{Caller, HandlerError, IdempotencyLayer, Key, Policy, Problem, Tx};
use serde::{Deserialize, Serialize};

/// The account of the bank, where money comes from.
const CASH: &str = "cash";

/// Money that moves from one wallet to another, in cents.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Transfer {
    /// Who pays; the bank where it is `cash`.
    pub from: String,
    /// Who is paid.
    pub to: String,
    /// How much, in cents.
    pub cents: u64,
}

/// What a wallet has, in cents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wallet {
    /// Its owner.
    pub name: String,
    /// What it has.
    pub cents: i64,
}

/// Connects, installs pgonce where it is missing, and opens the account of the bank.
pub async fn set_up(url: &str) -> pgonce::Result<Once> {
    let pool = sqlx::PgPool::connect_with(pgonce::sqlx::with_limits(url.parse()?)).await?;
    let once = Once::new(pool.clone());
    Migrator::new(once.driver().clone()).up().await?;
    let mut tx = pool.begin().await?;
    let cash = Account::new(CASH, "EUR", Side::Debit);
    once.tx(&mut tx, "").ledger().open(&cash).await?;
    tx.commit().await?;
    Ok(once)
}

/// The service.
pub fn router(once: &Once) -> pgonce::Result<Router> {
    let policy = Policy::new("wallet.transfer", Caller::None);
    let layer = IdempotencyLayer::atomic(once.clone(), policy)?;
    Ok(Router::new()
        .route("/transfers", post(transfer).layer(layer))
        .route("/wallets/{name}", put(open))
        .route("/wallets/{name}", get(show))
        .with_state(once.clone()))
}

/// Moves money: what the payer's wallet owes less, the payee's owes more.
async fn transfer(
    mut tx: Tx<Sqlx>,
    Key(key): Key,
    Json(transfer): Json<Transfer>,
) -> Result<(StatusCode, Json<Transfer>), HandlerError> {
    let group = Group::new("transfers", &*key)
        .debit(&transfer.from, transfer.cents.into())
        .credit(&transfer.to, transfer.cents.into())
        .memo(&transfer)?;
    let posted = tx.ledger().post(&group).await;
    posted.map_err(|error| match error.code() {
        "P4077" => problem(
            StatusCode::CONFLICT,
            "not_enough",
            "the wallet does not have that much",
        ),
        "P4072" => problem(
            StatusCode::NOT_FOUND,
            "no_wallet",
            "there is no such wallet",
        ),
        "P4074" | "22023" => problem(
            StatusCode::BAD_REQUEST,
            "bad_transfer",
            "send at least 1 cent, to somebody else",
        ),
        _ => error.into(),
    })?;
    Ok((StatusCode::CREATED, Json(transfer)))
}

/// Opens a wallet. It cannot go below zero; opening it again changes nothing.
async fn open(
    State(once): State<Once>,
    Path(name): Path<String>,
) -> Result<StatusCode, HandlerError> {
    let wallet = Account::new(name, "EUR", Side::Credit).floor(0);
    let mut tx = once.driver().pool().begin().await?;
    let new = once.tx(&mut tx, "").ledger().open(&wallet).await?;
    tx.commit().await?;
    Ok(if new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    })
}

async fn show(
    State(once): State<Once>,
    Path(name): Path<String>,
) -> Result<Json<Wallet>, HandlerError> {
    let mut tx = once.driver().pool().begin().await?;
    let found = once.tx(&mut tx, "").ledger().balance(&name).await;
    let balance = found.map_err(|error| match error.code() {
        "P4072" => problem(
            StatusCode::NOT_FOUND,
            "no_wallet",
            "there is no such wallet",
        ),
        _ => error.into(),
    })?;
    let cents = i64::try_from(balance.balance).unwrap_or(i64::MAX);
    Ok(Json(Wallet { name, cents }))
}

fn problem(status: StatusCode, code: &'static str, why: &'static str) -> HandlerError {
    Problem::new(status, code, why).into()
}
