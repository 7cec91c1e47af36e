//! The usual code: insert and answer. Right when everything goes right.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use sqlx::PgPool;

use super::shop::{NewOrder, Order, insert};

pub(super) fn router(pool: PgPool) -> Router {
    Router::new()
        .route("/orders", post(create))
        .with_state(pool)
}

async fn create(
    State(pool): State<PgPool>,
    headers: HeaderMap,
    Json(of): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), StatusCode> {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok())
        .unwrap_or_default();
    let id = in_transaction(&pool, key, &of)
        .await
        .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok((StatusCode::CREATED, Json(Order { id, of })))
}

async fn in_transaction(pool: &PgPool, key: &str, order: &NewOrder) -> sqlx::Result<i64> {
    let mut transaction = pool.begin().await?;
    let id = insert(&mut transaction, key, order).await?;
    transaction.commit().await?;
    Ok(id)
}
