//! The usual code: insert and answer. Right when everything goes right.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use orders::{NewOrder, Order};
use sqlx::PgPool;

/// The shop's tables without the constraint on references, which the usual code has not either.
pub(super) const SCHEMA: &str = "alter table orders drop constraint one_order_per_reference";

pub(super) fn router(pool: PgPool) -> Router {
    Router::new()
        .route("/orders", post(create))
        .with_state(pool)
}

async fn create(
    State(pool): State<PgPool>,
    headers: HeaderMap,
    Json(order): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), StatusCode> {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok())
        .unwrap_or_default();
    match insert(&pool, key, order).await {
        Ok(order) => Ok((StatusCode::CREATED, Json(order))),
        Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
    }
}

async fn insert(pool: &PgPool, key: &str, of: NewOrder) -> sqlx::Result<Order> {
    let mut transaction = pool.begin().await?;
    let id = sqlx::query_scalar(
        "insert into orders (tenant, customer, reference, item, amount) values ('', $1, $2, $3, $4) returning id",
    )
    .bind(&of.customer)
    .bind(&of.reference)
    .bind(&of.item)
    .bind(of.amount)
    .fetch_one(&mut *transaction)
    .await?;
    sqlx::query("insert into order_event (order_id, key, made) values ($1, $2, 'now')")
        .bind(id)
        .bind(key)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(Order {
        id,
        of,
        made: "now".to_owned(),
    })
}
