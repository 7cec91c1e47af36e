//! An axum service that creates orders once.
//!
//! `POST /orders` with an `Idempotency-Key` makes one order, however often and by however many
//! clients it is sent, and answers all of them alike. A second key for the same business fact, a
//! customer's reference, finds the order that is there.

mod problem;
mod store;

use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use pgonce::driver::sqlx::Sqlx;
use pgonce::migrate::Migrator;
use pgonce::retry::Policy;
use pgonce::scope::{Busy, Contract};
use pgonce::{Ack, Failure, Intent, Once};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

pub use problem::Problem;

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
    // Whoever asked is better told soon to come back than kept on the line.
    let patience = Policy::default().within(Duration::from_secs(4));
    Once::builder(Sqlx::new(pool)).retry(patience).build()
}

/// Installs pgonce where it is not, makes the shop's tables and writes down the contract of [`SCOPE`].
pub async fn set_up(once: &Once<Sqlx>) -> pgonce::Result<()> {
    Migrator::new(once.driver().clone()).up().await?;
    sqlx::raw_sql(SCHEMA).execute(once.driver().pool()).await?;
    let day = Duration::from_secs(24 * 60 * 60);
    // A duplicate that comes while the first is under way gets its answer too, a moment later.
    let contract = Contract::keep(30 * day)
        .client_retry(3 * day)
        .busy(Busy::Wait)
        .wait_at_most(Duration::from_secs(5));
    once.define_scope(SCOPE, &contract).await
}

/// The service.
pub fn router(once: Once<Sqlx>) -> Router {
    Router::new()
        .route("/orders", post(create))
        .route("/orders/{id}", get(show))
        .route("/health", get(health))
        .with_state(once)
}

/// The intent that a request stands for.
pub fn intent(tenant: &str, key: &str, order: &NewOrder) -> pgonce::Result<Intent> {
    Intent::of(SCOPE, key, order)?.tenant(tenant)
}

async fn create(
    State(once): State<Once<Sqlx>>,
    headers: HeaderMap,
    body: Result<Json<NewOrder>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(order) = body?;
    let tenant = tenant(&headers)?;
    let intent = intent(tenant, problem::key(&headers)?, &order)?;
    // Before the claim: whoever mends the request may send it again with the same key.
    if order.amount <= 0 {
        let told = "the amount is not positive; send it in cents, 1 or more";
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "amount_not_positive",
            told,
        ));
    }
    let done = once
        .run(&intent, |mut attempt| {
            let (order, key) = (&order, intent.key());
            async move {
                if order.item == "forbidden" {
                    return Err(
                        Failure::refused("item_forbidden", "this item is not for sale").into(),
                    );
                }
                let made = store::insert_or_fetch(attempt.conn(), tenant, order).await?;
                let made_word = if made.is_now() { "now" } else { "before" };
                let (id, of) = made.into_inner();
                sqlx::query("insert into order_event (order_id, key, made) values ($1, $2, $3)")
                    .bind(id)
                    .bind(key)
                    .bind(made_word)
                    .execute(attempt.conn())
                    .await?;
                let made = made_word.to_owned();
                attempt.succeed(Ack::value(&Order { id, of, made })?).await
            }
        })
        .await?;
    let order: Order = done.read()?;
    let status = match order.made.as_str() {
        "now" => StatusCode::CREATED,
        _ => StatusCode::OK,
    };
    let mut response = (status, Json(order)).into_response();
    problem::mark_replay(response.headers_mut(), done.replayed());
    Ok(response)
}

async fn show(
    State(once): State<Once<Sqlx>>,
    headers: HeaderMap,
    Path(id): Path<i64>,
) -> Result<Json<Order>, Problem> {
    let found = store::find(once.driver().pool(), tenant(&headers)?, id).await?;
    let of = found.ok_or_else(|| {
        let told = "there is no order with this number";
        Problem::new(StatusCode::NOT_FOUND, "order_not_found", told)
    })?;
    let made = "before".to_owned();
    Ok(Json(Order { id, of, made }))
}

async fn health(State(once): State<Once<Sqlx>>) -> Result<&'static str, Problem> {
    let asked = sqlx::query("select 1").execute(once.driver().pool()).await;
    asked.map_err(pgonce::Error::from)?;
    Ok("fine\n")
}

/// In a real service the tenant comes from whoever is logged in, not from a header.
fn tenant(headers: &HeaderMap) -> Result<&str, Problem> {
    let header = headers
        .get("x-tenant")
        .map_or(&b""[..], |value| value.as_bytes());
    std::str::from_utf8(header).map_err(|_| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "tenant_unreadable",
            "the header X-Tenant is not UTF-8",
        )
    })
}
