//! The gRPC example, over real sockets and on a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use futures_util::future::join_all;
use grpc_orders::{CREATE, NewOrder, Order};
use pgonce::Once;
use pgonce::migrate::Migrator;
use pgonce_testkit::{Database, shared};
use sqlx::PgPool;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

struct Shop {
    channel: Channel,
    pool: PgPool,
    _database: Database,
}

impl Shop {
    async fn open() -> Self {
        let server = shared(None).await.unwrap();
        let install = async |url: String| {
            let once = Once::sqlx(PgPool::connect_lazy(&url)?);
            Migrator::new(once.driver().clone()).up().await?;
            let table = "create table orders (id bigint generated always as identity, item text, amount bigint)";
            sqlx::raw_sql(table).execute(once.driver().pool()).await?;
            Ok::<_, pgonce::Error>(())
        };
        server.template("grpc", install).await.unwrap();
        let database = server.database_from("grpc").await.unwrap();
        let pool = PgPool::connect_lazy(&database.url()).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = grpc_orders::router(Once::sqlx(pool.clone())).unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let channel = Endpoint::from_shared(address).unwrap().connect_lazy();
        Self {
            channel,
            pool,
            _database: database,
        }
    }

    async fn create(
        &self,
        key: Option<&str>,
        item: &str,
        amount: i64,
    ) -> Result<Response<Order>, Status> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.unwrap();
        let mut request = Request::new(NewOrder {
            item: item.to_owned(),
            amount,
        });
        if let Some(key) = key {
            request
                .metadata_mut()
                .insert("idempotency-key", key.parse().unwrap());
        }
        let codec = ProstCodec::<NewOrder, Order>::default();
        client.unary(request, CREATE.parse().unwrap(), codec).await
    }

    async fn orders(&self) -> i64 {
        sqlx::query_scalar("select count(*) from orders")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

fn replayed(metadata: &tonic::metadata::MetadataMap) -> bool {
    metadata.contains_key("idempotent-replayed")
}

#[tokio::test]
async fn a_retried_call_gets_the_same_message_and_makes_nothing() {
    let shop = Shop::open().await;
    let first = shop.create(Some("k1"), "book", 1250).await.unwrap();
    let again = shop.create(Some("k1"), "book", 1250).await.unwrap();
    assert!(replayed(again.metadata()) && !replayed(first.metadata()));
    assert_eq!(first.into_inner(), again.into_inner());
    assert_eq!(shop.orders().await, 1);
}

#[tokio::test]
async fn many_calls_at_once_make_one_order() {
    let shop = Shop::open().await;
    let answers = join_all((0..20).map(|_| shop.create(Some("k1"), "book", 1250))).await;
    for one in &answers {
        // A call in between is busy.
        assert!(
            one.as_ref().is_ok() || one.as_ref().is_err_and(|s| s.code() == Code::Aborted),
            "{one:?}"
        );
    }
    assert!(answers.iter().any(Result::is_ok));
    assert_eq!(shop.orders().await, 1);
}

#[tokio::test]
async fn a_refusal_is_replayed_with_its_own_status() {
    let shop = Shop::open().await;
    for again in [false, true] {
        let refused = shop.create(Some("k1"), "forbidden", 1).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::FailedPrecondition, "this item is not for sale")
        );
        assert_eq!(replayed(refused.metadata()), again);
    }
    assert_eq!(shop.orders().await, 0);
}

#[tokio::test]
async fn what_is_refused_before_any_effect_does_not_burn_the_key() {
    let shop = Shop::open().await;
    let refused = shop.create(Some("k1"), "book", 0).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(
        shop.create(Some("k1"), "book", 5)
            .await
            .unwrap()
            .into_inner()
            .id,
        1
    );
}

#[tokio::test]
async fn the_layers_own_words_are_a_grpc_status() {
    let shop = Shop::open().await;
    let keyless = shop.create(None, "book", 1250).await.unwrap_err();
    assert_eq!(keyless.code(), Code::InvalidArgument);
    assert!(keyless.message().ends_with("[P4001]"), "{keyless}");
    let _ = shop.create(Some("k1"), "book", 1250).await.unwrap();
    let conflict = shop.create(Some("k1"), "pen", 1250).await.unwrap_err();
    assert_eq!(conflict.code(), Code::FailedPrecondition);
    assert!(conflict.message().ends_with("[P4002]"), "{conflict}");
    assert_eq!(shop.orders().await, 1);
}
