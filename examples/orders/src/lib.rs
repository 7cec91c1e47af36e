//! An axum service that creates orders once.
//!
//! `POST /orders` with an `Idempotency-Key` makes one order, however often and by however many
//! clients it is sent, and answers all of them alike. A second key for the same business fact, a
//! customer's reference, finds the order that is there.

mod store;

use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use pgonce::driver::sqlx::Sqlx;
use pgonce::migrate::Migrator;
use pgonce::retry::Policy as Retries;
use pgonce::scope::Busy;
use pgonce::{Failure, Once};
use pgonce_http::{Caller, HandlerError, IdempotencyLayer, Key, Policy, Problem, Tx};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

/// The kind of command that is made to happen once.
pub const SCOPE: &str = "orders.create";

/// The shop's tables.
pub const SCHEMA: &str = include_str!("../schema.sql");

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewOrder {
    /// Who orders.
    pub customer: String,
    /// The customer's own name for this order; a customer uses each once.
    pub reference: String,
    /// What is ordered.
    pub item: String,
    /// What it costs, in cents.
    pub amount: i64,
}

/// What a client is answered, now and on every retry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its number.
    pub id: i64,
    /// What it is about.
    #[serde(flatten)]
    pub of: NewOrder,
    /// `now`, or `before` when another key had made the order already.
    pub made: String,
}

/// A pool of connections to the shop's database.
pub fn connect(url: &str) -> pgonce::Result<Once<Sqlx>> {
    // A service that vanishes must not keep its transactions, and their locks, for long.
    let options: PgConnectOptions = url.parse()?;
    let options = options.options([
        ("idle_in_transaction_session_timeout", "10s"),
        ("tcp_user_timeout", "10s"),
    ]);
    let pool = PgPoolOptions::new()
        .max_connections(20)
        .acquire_timeout(Duration::from_secs(2))
        .connect_lazy_with(options);
    // A client is better off with a quick "retry later" than waiting on the line.
    let retries = Retries::default().within(Duration::from_secs(4));
    Once::builder(Sqlx::new(pool)).retry(retries).build()
}

/// Installs pgonce where it is not, makes the shop's tables and writes down the contract of [`SCOPE`].
pub async fn set_up(once: &Once<Sqlx>) -> pgonce::Result<()> {
    Migrator::new(once.driver().clone()).up().await?;
    sqlx::raw_sql(SCHEMA).execute(once.driver().pool()).await?;
    layer(once).agree().await
}

/// What `POST /orders` promises.
fn layer(once: &Once<Sqlx>) -> IdempotencyLayer<Sqlx> {
    let day = Duration::from_secs(24 * 60 * 60);
    let policy = Policy::new(SCOPE, Caller::None)
        .tenant(Caller::with(|head| {
            tenant(&head.headers).ok().map(str::to_owned)
        }))
        // Only this route has the scope, so an operator finds an intent by the client's own key.
        .plain_keys(true)
        .retention(30 * day)
        .client_retry(3 * day)
        // A duplicate that comes while the first is under way gets its answer too, a moment later.
        .busy(Busy::Wait)
        .wait_timeout(Duration::from_secs(5));
    IdempotencyLayer::atomic(once.clone(), policy).expect("the policy does not contradict itself")
}

/// The service.
pub fn router(once: Once<Sqlx>) -> Router {
    Router::new()
        .route("/orders", post(create).layer(layer(&once)))
        .route("/orders/{id}", get(show))
        .route("/health", get(health))
        .with_state(once)
}

async fn create(
    mut tx: Tx<Sqlx>,
    Key(key): Key,
    headers: HeaderMap,
    body: Result<Json<NewOrder>, JsonRejection>,
) -> Result<(StatusCode, Json<Order>), HandlerError> {
    let Json(order) = body.map_err(|rejection| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "order_unreadable",
            rejection.body_text(),
        )
    })?;
    // Before any effect: a corrected request may use the same key.
    if order.amount <= 0 {
        let detail = "the amount is not positive; send it in cents, 1 or more";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "amount_not_positive", detail).into());
    }
    if order.item == "forbidden" {
        return Err(Failure::permanent("item_forbidden", "this item is not for sale").into());
    }
    let made = store::insert_or_fetch(tx.conn(), tenant(&headers)?, &order).await?;
    let (status, made_word) = match made.is_new() {
        true => (StatusCode::CREATED, "now"),
        false => (StatusCode::OK, "before"),
    };
    let (id, of) = made.into_inner();
    sqlx::query("insert into order_event (order_id, key, made) values ($1, $2, $3)")
        .bind(id)
        .bind(&*key)
        .bind(made_word)
        .execute(tx.conn())
        .await?;
    let made = made_word.to_owned();
    Ok((status, Json(Order { id, of, made })))
}

async fn show(
    State(once): State<Once<Sqlx>>,
    headers: HeaderMap,
    Path(id): Path<i64>,
) -> Result<Json<Order>, HandlerError> {
    let found = store::find(once.driver().pool(), tenant(&headers)?, id).await?;
    let of = found.ok_or_else(|| {
        let detail = "there is no order with this number";
        Problem::new(StatusCode::NOT_FOUND, "order_not_found", detail)
    })?;
    let made = "before".to_owned();
    Ok(Json(Order { id, of, made }))
}

async fn health(State(once): State<Once<Sqlx>>) -> Result<&'static str, HandlerError> {
    sqlx::query("select 1")
        .execute(once.driver().pool())
        .await?;
    Ok("fine\n")
}

/// In a real service the tenant comes from the login, not from a header. Requests without one belong to the shop.
fn tenant(headers: &HeaderMap) -> Result<&str, Problem> {
    let header = headers
        .get("x-tenant")
        .map_or(&b"shop"[..], |value| value.as_bytes());
    std::str::from_utf8(header).map_err(|_| {
        let detail = "the header X-Tenant is not UTF-8";
        Problem::new(StatusCode::BAD_REQUEST, "tenant_unreadable", detail)
    })
}
