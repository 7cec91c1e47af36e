//! The tutorial's promises, over real sockets and on a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use futures_util::future::join_all;
use pgonce::sqlx::Once;
use pgonce_testkit::{Database, wait_until};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tutorial::{PlaceOrder, keep_stock, place_order, router, set_up};

const IN_TIME: std::time::Duration = std::time::Duration::from_secs(30);

struct Shop {
    address: String,
    once: Once,
    client: Client,
    _database: Database,
}

async fn open() -> Shop {
    let server = pgonce_testkit::shared(None).await.unwrap();
    let install = async |url: String| set_up(&url).await.map(drop);
    server.template("tutorial", install).await.unwrap();
    let database = server.database_from("tutorial").await.unwrap();
    let once = set_up(&database.url()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/orders", listener.local_addr().unwrap());
    let app = router(&once).unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = Client::builder().no_proxy().build().unwrap();
    Shop {
        address,
        once,
        client,
        _database: database,
    }
}

impl Shop {
    async fn post(&self, key: &str, body: &Value) -> Response {
        let request = self
            .client
            .post(&self.address)
            .header("Idempotency-Key", key);
        request.json(body).send().await.unwrap()
    }

    async fn number(&self, sql: &'static str) -> i64 {
        let pool = self.once.driver().pool();
        sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
    }
}

const ORDERS: &str = "select count(*) from orders";
const WAITING: &str =
    "select waiting::bigint from pgonce.outbox_backlog where subscription = 'stock'";
const STOCK: &str = "select qty::bigint from stock where item = 'book'";

// ANCHOR: test
#[tokio::test]
async fn a_duplicate_gets_the_first_response_and_has_no_effect() {
    let shop = open().await;
    let body = json!({ "item": "book", "qty": 2 });
    let responses = join_all((0..10).map(|_| shop.post("order-1", &body))).await;
    for response in responses {
        // 409: another attempt is running. Every client may send it again.
        assert!([201, 409].contains(&response.status().as_u16()));
    }
    let again = shop.post("order-1", &body).await;
    assert_eq!(again.status(), 201);
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(again.json::<Value>().await.unwrap(), json!({ "id": 1 }));
    assert_eq!(shop.number(ORDERS).await, 1);

    let other = shop
        .post("order-1", &json!({ "item": "book", "qty": 3 }))
        .await;
    assert_eq!(other.status(), 422);
    assert_eq!(other.json::<Value>().await.unwrap()["code"], "P4002");
}
// ANCHOR_END: test

#[tokio::test]
async fn a_command_is_answered_from_its_stored_receipt_and_a_permanent_failure_stays() {
    let shop = open().await;
    let book = |qty| PlaceOrder {
        item: "book".to_owned(),
        qty,
    };
    let first = place_order(&shop.once, "line-1", &book(1)).await.unwrap();
    let again = place_order(&shop.once, "line-1", &book(1)).await.unwrap();
    assert_eq!(first, again);
    assert_eq!(shop.number(ORDERS).await, 1);

    for _ in 0..2 {
        let error = place_order(&shop.once, "line-2", &book(0))
            .await
            .unwrap_err();
        assert_eq!(error.code(), "P4030", "{error}");
        let response = shop
            .post("order-2", &json!({ "item": "book", "qty": 0 }))
            .await;
        assert_eq!(response.status(), 422);
    }
    assert_eq!(shop.number(ORDERS).await, 1);
}

#[tokio::test]
async fn an_event_that_is_delivered_again_is_applied_once_also_after_a_restart() {
    let shop = open().await;
    let start = || {
        let stop = CancellationToken::new();
        (
            tokio::spawn(keep_stock(shop.once.clone(), stop.clone())),
            stop,
        )
    };
    let (running, stop) = start();
    for key in ["order-1", "order-2", "order-1"] {
        let response = shop.post(key, &json!({ "item": "book", "qty": 5 })).await;
        assert_eq!(response.status(), 201);
    }
    wait_until("the stock", IN_TIME, || async {
        shop.number(STOCK).await == 90
    })
    .await
    .unwrap();
    stop.cancel();
    running.await.unwrap().unwrap();

    // From now on both events wait again.
    shop.number("select pgonce.replay('stock')").await;
    assert_eq!(shop.number(WAITING).await, 2);
    let (running, stop) = start();
    wait_until("both again", IN_TIME, || async {
        shop.number(WAITING).await == 0
    })
    .await
    .unwrap();
    assert_eq!(shop.number(STOCK).await, 90);
    stop.cancel();
    running.await.unwrap().unwrap();
}
