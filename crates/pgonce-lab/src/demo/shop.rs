//! The service that the demo storms: `POST /orders` makes one order per `Idempotency-Key`.
//! `examples/orders` is the same with tenants, validation and more routes.

use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use pgonce::Once;
use pgonce::driver::sqlx::Sqlx;
use pgonce::migrate::Migrator;
use pgonce::retry::Policy as Retries;
use pgonce::scope::Busy;
use pgonce_http::{Caller, HandlerError, IdempotencyLayer, Key, Policy, Tx};
use pgonce_testkit::Postgres;
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::Result;

/// `order_event` has one row for each committed run of the handler, and nothing in it is unique, on
/// purpose: a repeated effect shows there.
const SCHEMA: &str = "
    create table orders (
        id        bigint generated always as identity primary key,
        customer  text not null,
        reference text not null,
        item      text not null,
        amount    bigint not null
    );
    create table order_event (order_id bigint not null, key text not null)";

/// The body of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NewOrder {
    pub(super) customer: String,
    pub(super) reference: String,
    pub(super) item: String,
    pub(super) amount: i64,
}

/// The response, the same for every retry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) id: i64,
    #[serde(flatten)]
    pub(super) of: NewOrder,
}

/// `wait` is how long a request waits for a connection.
pub(super) fn connect(url: &str, wait: Duration) -> Result<Once<Sqlx>> {
    // A service that vanishes must not keep its transactions, and their locks, for long.
    let options: PgConnectOptions = url.parse()?;
    let options = options.options([
        ("idle_in_transaction_session_timeout", "10s"),
        ("tcp_user_timeout", "10s"),
    ]);
    let pool = PgPoolOptions::new()
        .max_connections(20)
        .acquire_timeout(wait)
        .connect_lazy_with(options);
    // A client does better to get an error soon and to retry than to wait.
    let retries = Retries::default().within(Duration::from_secs(4));
    Ok(Once::builder(Sqlx::new(pool)).retry(retries).build()?)
}

/// A new database with pgonce, the tables and the scope; gives its address.
pub(super) async fn database(server: &Postgres, name: &str) -> Result<String> {
    let url = server.create_database(name).await?.url();
    // The server has only just started, and the machine may be busy with something else.
    let once = connect(&url, Duration::from_secs(60))?;
    Migrator::new(once.driver().clone()).up().await?;
    sqlx::raw_sql(SCHEMA).execute(once.driver().pool()).await?;
    layer(&once)?.agree().await?;
    once.driver().pool().close().await;
    Ok(url)
}

fn layer(once: &Once<Sqlx>) -> pgonce::Result<IdempotencyLayer<Sqlx>> {
    let day = Duration::from_secs(24 * 60 * 60);
    let policy = Policy::new("orders.create", Caller::None)
        .plain_keys(true)
        .retention(30 * day)
        .client_retry(3 * day)
        // A duplicate that comes while the first is in progress gets its response too.
        .busy(Busy::Wait)
        .wait_timeout(Duration::from_secs(5));
    IdempotencyLayer::atomic(once.clone(), policy)
}

pub(super) fn router(once: &Once<Sqlx>) -> Result<Router> {
    Ok(Router::new().route("/orders", post(create).layer(layer(once)?)))
}

async fn create(
    mut tx: Tx<Sqlx>,
    Key(key): Key,
    Json(of): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), HandlerError> {
    let id = insert(tx.conn(), &key, &of).await?;
    Ok((StatusCode::CREATED, Json(Order { id, of })))
}

/// The work itself, the same with and without pgonce.
pub(super) async fn insert(
    conn: &mut sqlx::PgConnection,
    key: &str,
    order: &NewOrder,
) -> sqlx::Result<i64> {
    let id = sqlx::query_scalar(
        "insert into orders (customer, reference, item, amount) values ($1, $2, $3, $4) returning id",
    )
    .bind(&order.customer)
    .bind(&order.reference)
    .bind(&order.item)
    .bind(order.amount)
    .fetch_one(&mut *conn)
    .await?;
    sqlx::query("insert into order_event (order_id, key) values ($1, $2)")
        .bind(id)
        .bind(key)
        .execute(conn)
        .await?;
    Ok(id)
}
