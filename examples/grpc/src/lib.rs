//! A unary gRPC call that happens once: the key travels in the metadata `idempotency-key`.
//!
//! The messages are written by hand, so that the example needs no protobuf compiler; what tonic
//! generates looks the same. `shop.Orders/Create` takes a [`NewOrder`] and answers an [`Order`].

use std::future::Future;
use std::pin::Pin;

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::response::Response as HttpResponse;
use axum::routing::post;
use pgonce::Once;
use pgonce::driver::sqlx::Sqlx;
use pgonce_http::{Caller, IdempotencyLayer, Policy, Tx};
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The kind of command that is made to happen once.
pub const SCOPE: &str = "shop.orders.create";

/// The path of the call.
pub const CREATE: &str = "/shop.Orders/Create";

/// What a client asks for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NewOrder {
    /// What is ordered.
    #[prost(string, tag = "1")]
    pub item: String,
    /// What it costs, in cents.
    #[prost(int64, tag = "2")]
    pub amount: i64,
}

/// What a client is answered, now and on every retry.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Order {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The service, on any axum server that speaks HTTP/2.
pub fn router(once: Once<Sqlx>) -> pgonce::Result<Router> {
    let layer = IdempotencyLayer::atomic(once, Policy::new(SCOPE, Caller::None))?;
    Ok(Router::new().route(CREATE, post(serve).layer(layer)))
}

async fn serve(request: HttpRequest) -> HttpResponse {
    let mut grpc = Grpc::new(ProstCodec::<Order, NewOrder>::default());
    grpc.unary(Create, request).await.map(axum::body::Body::new)
}

struct Create;

impl UnaryService<NewOrder> for Create {
    type Response = Order;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Order>, Status>> + Send>>;

    fn call(&mut self, request: Request<NewOrder>) -> Self::Future {
        Box::pin(create(request))
    }
}

async fn create(request: Request<NewOrder>) -> Result<Response<Order>, Status> {
    let mut tx = Tx::<Sqlx>::from_extensions(request.extensions())
        .map_err(|problem| Status::internal(problem.code().to_owned()))?;
    let order = request.into_inner();
    if order.amount <= 0 {
        // Nothing is written yet: a corrected request may use the same key.
        return Err(Status::invalid_argument("the amount is not positive"));
    }
    let inserted =
        sqlx::query_scalar("insert into orders (item, amount) values ($1, $2) returning id")
            .bind(&order.item)
            .bind(order.amount)
            .fetch_one(tx.conn())
            .await;
    match inserted {
        Ok(_) if order.item == "forbidden" => {
            Err(Status::failed_precondition("this item is not for sale"))
        }
        Ok(id) => Ok(Response::new(Order { id })),
        Err(error) => {
            // The layer tries again where that helps.
            tx.failed(error);
            Err(Status::unavailable("the order could not be written"))
        }
    }
}
