//! The services that are measured: one handler, without the layer and with it, for each driver.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use http::StatusCode;
use pgonce::driver::Driver;
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Ack, Attempt, Once};
use pgonce_http::{Caller, HandlerError, IdempotencyLayer, Policy, Tx};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::bench::Result;
use crate::bench::business::{Order, SCOPE, answer, intent};
use crate::bench::{with_sqlx, with_tokio_postgres};

/// A service on a port of its own. Dropped, it ends.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Service {
    pub(super) async fn open(router: Router) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let listener = listener.tap_io(|wire| {
            // Without it answers would only be later.
            let _ = wire.set_nodelay(true);
        });
        let task = tokio::spawn(async move {
            // Never ends by itself.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, task })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The layer that joins the handler's transaction, and the one around any handler.
fn layers<D: Driver>(once: &Once<D>) -> pgonce::Result<(IdempotencyLayer<D>, IdempotencyLayer<D>)> {
    let policy = Policy::new(SCOPE, Caller::None).retention(Duration::from_secs(7 * 86_400));
    Ok((
        IdempotencyLayer::atomic(once.clone(), policy.clone())?,
        IdempotencyLayer::leased(once.clone(), policy)?,
    ))
}

type Placed = (StatusCode, Json<Value>);

fn placed(id: i64) -> Placed {
    (StatusCode::CREATED, Json(answer(id)))
}

/// What a handler that is alone with its errors answers.
struct Broken(String);

impl<E: std::fmt::Display> From<E> for Broken {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl IntoResponse for Broken {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0).into_response()
    }
}

/// `/bare`, `/empty`, `/sdk`, `/atomic` and `/leased` with tokio-postgres.
pub(super) fn with_tokio_postgres(shop: with_tokio_postgres::Shop) -> pgonce::Result<Router> {
    type Shop = with_tokio_postgres::Shop;
    async fn alone(
        State(shop): State<Shop>,
        Json(order): Json<Order>,
    ) -> std::result::Result<Placed, Broken> {
        let object = shop.connection().await?;
        let effect = with_tokio_postgres::Effect::prepare(&object).await?;
        object.batch_execute("begin").await?;
        let id = effect.one_by_one(&order).await?;
        object.batch_execute("commit").await?;
        Ok(placed(id))
    }
    async fn empty(
        State(shop): State<Shop>,
        Json(order): Json<Order>,
    ) -> std::result::Result<Placed, Broken> {
        Ok(placed(shop.empty_around(&order).await?))
    }
    async fn atomic(
        mut tx: Tx<TokioPostgres>,
        Json(order): Json<Order>,
    ) -> std::result::Result<Placed, HandlerError> {
        let effect = with_tokio_postgres::Effect::prepare(tx.conn()).await?;
        Ok(placed(effect.one_by_one(&order).await?))
    }
    async fn sdk(
        State(shop): State<Shop>,
        Json(order): Json<Order>,
    ) -> std::result::Result<Placed, Broken> {
        let work = |mut attempt: Attempt<TokioPostgres>| {
            let order = &order;
            async move {
                let id = with_tokio_postgres::Effect::prepare(attempt.conn())
                    .await?
                    .one_by_one(order)
                    .await?;
                attempt.succeed(Ack::value(&answer(id))?).await
            }
        };
        let done = shop.once.run(&intent(&order, false)?, work).await?;
        Ok((
            StatusCode::CREATED,
            Json(done.ack().json().cloned().unwrap_or_default()),
        ))
    }
    let (with, around) = layers(&shop.once)?;
    let routes = Router::new()
        .route("/bare", post(alone))
        .route("/empty", post(empty))
        .route("/sdk", post(sdk))
        .route("/atomic", post(atomic).layer(with))
        .route("/leased", post(alone).layer(around));
    Ok(routes.with_state(shop))
}

/// The same with sqlx, but for `/empty`.
pub(super) fn with_sqlx(shop: with_sqlx::Shop) -> pgonce::Result<Router> {
    type Shop = with_sqlx::Shop;
    async fn alone(
        State(shop): State<Shop>,
        Json(order): Json<Order>,
    ) -> std::result::Result<Placed, Broken> {
        let mut tx = shop.pool.begin().await?;
        let id = with_sqlx::effect(&mut tx, &order).await?;
        tx.commit().await?;
        Ok(placed(id))
    }
    async fn atomic(
        mut tx: Tx<Sqlx>,
        Json(order): Json<Order>,
    ) -> std::result::Result<Placed, HandlerError> {
        Ok(placed(with_sqlx::effect(tx.conn(), &order).await?))
    }
    async fn sdk(
        State(shop): State<Shop>,
        Json(order): Json<Order>,
    ) -> std::result::Result<Placed, Broken> {
        let work = |mut attempt: Attempt<Sqlx>| {
            let order = &order;
            async move {
                let id = with_sqlx::effect(attempt.conn(), order).await?;
                attempt.succeed(Ack::value(&answer(id))?).await
            }
        };
        let done = shop.once.run(&intent(&order, false)?, work).await?;
        Ok((
            StatusCode::CREATED,
            Json(done.ack().json().cloned().unwrap_or_default()),
        ))
    }
    let (with, around) = layers(&shop.once)?;
    let routes = Router::new()
        .route("/bare", post(alone))
        .route("/sdk", post(sdk))
        .route("/atomic", post(atomic).layer(with))
        .route("/leased", post(alone).layer(around));
    Ok(routes.with_state(shop))
}
