//! The orders service, over real sockets and on a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use futures_util::future::join_all;
use pgonce::driver::sqlx::Sqlx;
use pgonce::scope::{AfterExpiry, Busy, Contract};
use pgonce::{Claim, Intent, Once};
use pgonce_testkit::{Database, Postgres};
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A running service and the database behind it.
struct Shop {
    address: String,
    client: Client,
    once: Once<Sqlx>,
    _database: Database,
}

impl Shop {
    async fn open() -> Self {
        Self::open_on(pgonce_testkit::shared(None).await.unwrap()).await
    }

    async fn open_on(server: &Postgres) -> Self {
        let install = async |url: String| orders::set_up(&orders::connect(&url)?).await;
        server.template("shop", install).await.unwrap();
        let database = server.database_from("shop").await.unwrap();
        let once = orders::connect(&database.url()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = orders::router(once.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            address,
            client: Client::builder().no_proxy().build().unwrap(),
            once,
            _database: database,
        }
    }

    async fn post(&self, key: &str, order: &Value) -> Response {
        let request = self.client.post(format!("{}/orders", self.address));
        request
            .header("Idempotency-Key", key)
            .json(order)
            .send()
            .await
            .unwrap()
    }

    async fn count(&self, table: &'static str) -> i64 {
        let sql = match table {
            "orders" => "select count(*) from orders",
            _ => "select count(*) from order_event",
        };
        sqlx::query_scalar(sql)
            .fetch_one(self.once.driver().pool())
            .await
            .unwrap()
    }
}

fn book() -> Value {
    json!({"customer": "ada", "reference": "po-1", "item": "book", "amount": 1250})
}

/// Asserts the problem document of every error, and returns it.
async fn problem(response: Response, status: u16, code: &str) -> Value {
    assert_eq!(response.status().as_u16(), status);
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let document: Value = response.json().await.unwrap();
    assert_eq!(document["code"], code, "{document}");
    assert_eq!(document["status"], status, "{document}");
    assert!(
        document["detail"]
            .as_str()
            .is_some_and(|detail| detail.len() > 10),
        "{document}"
    );
    document
}

#[tokio::test]
async fn a_retry_gets_the_same_status_and_bytes_and_makes_nothing() {
    let shop = Shop::open().await;
    let first = shop.post("k1", &book()).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    assert!(!first.headers().contains_key("idempotent-replayed"));
    let first = first.bytes().await.unwrap();

    // The quoted form of the header is the same key, and the order of fields says nothing.
    let same = json!({"amount": 1250, "item": "book", "reference": "po-1", "customer": "ada"});
    let again = shop.post("\"k1\"", &same).await;
    assert_eq!(again.status(), StatusCode::CREATED);
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(again.bytes().await.unwrap(), first);
    assert_eq!(
        (shop.count("orders").await, shop.count("order_event").await),
        (1, 1)
    );

    let order: Value = serde_json::from_slice(&first).unwrap();
    let shown = shop
        .client
        .get(format!("{}/orders/{}", shop.address, order["id"]));
    let shown: Value = shown.send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&shown["item"], &shown["amount"]),
        (&json!("book"), &json!(1250))
    );
}

#[tokio::test]
async fn many_at_once_make_one_order_and_get_one_answer() {
    let shop = Shop::open().await;
    let book = book();
    let started = std::time::Instant::now();
    let answers = join_all((0..20).map(async |_| {
        loop {
            let response = shop.post("k1", &book).await;
            let answer = (response.status(), response.bytes().await.unwrap());
            // Where no connection was free in time: the same request with the same key again, as it says.
            let is_away = String::from_utf8_lossy(&answer.1).contains("\"08006\"");
            if !is_away || started.elapsed() > Duration::from_secs(60) {
                return answer;
            }
        }
    }))
    .await;
    assert_eq!(answers[0].0, StatusCode::CREATED);
    assert!(
        answers.iter().all(|answer| answer == &answers[0]),
        "{answers:?}"
    );
    assert_eq!(
        (shop.count("orders").await, shop.count("order_event").await),
        (1, 1)
    );
}

#[tokio::test]
async fn a_second_key_for_the_same_reference_finds_the_order() {
    let shop = Shop::open().await;
    let first: Value = shop.post("k1", &book()).await.json().await.unwrap();
    let second = shop.post("k2", &book()).await;
    assert_eq!(second.status(), StatusCode::OK);
    assert!(!second.headers().contains_key("idempotent-replayed"));
    let second: Value = second.json().await.unwrap();
    assert_eq!(second["id"], first["id"]);
    assert_eq!(
        (&first["made"], &second["made"]),
        (&json!("now"), &json!("before"))
    );
    assert_eq!(
        (shop.count("orders").await, shop.count("order_event").await),
        (1, 2)
    );
}

#[tokio::test]
async fn a_key_of_another_tenant_is_another_key() {
    let shop = Shop::open().await;
    let mut ids = Vec::new();
    for tenant in ["red", "blue"] {
        let request = shop
            .client
            .post(format!("{}/orders", shop.address))
            .header("X-Tenant", tenant);
        let response = request
            .header("Idempotency-Key", "k1")
            .json(&book())
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        ids.push(response.json::<Value>().await.unwrap()["id"].clone());
    }
    assert_ne!(ids[0], ids[1]);
    let foreign = shop
        .client
        .get(format!("{}/orders/{}", shop.address, ids[1]));
    let foreign = foreign.header("X-Tenant", "red").send().await.unwrap();
    problem(foreign, 404, "order_not_found").await;
}

#[tokio::test]
async fn a_key_with_another_order_is_a_conflict() {
    let shop = Shop::open().await;
    let _first = shop.post("k1", &book()).await;
    let mut other = book();
    other["amount"] = json!(1);
    problem(shop.post("k1", &other).await, 422, "P4002").await;
    assert_eq!(shop.count("orders").await, 1);
}

#[tokio::test]
async fn a_request_that_cannot_be_an_intent_is_refused() {
    let shop = Shop::open().await;
    let url = format!("{}/orders", shop.address);
    let keyless = shop.client.post(&url).json(&book()).send().await.unwrap();
    problem(keyless, 400, "P4001").await;
    problem(shop.post("\"\"", &book()).await, 400, "P4001").await;
    problem(shop.post(&"k".repeat(256), &book()).await, 400, "22023").await;
    problem(
        shop.post("k1", &json!({"item": "book"})).await,
        400,
        "order_unreadable",
    )
    .await;
    assert_eq!(shop.count("order_event").await, 0);
}

#[tokio::test]
async fn validation_before_the_claim_does_not_burn_the_key() {
    let shop = Shop::open().await;
    let mut free = book();
    free["amount"] = json!(0);
    problem(shop.post("k1", &free).await, 400, "amount_not_positive").await;
    assert_eq!(shop.post("k1", &book()).await.status(), StatusCode::CREATED);
}

#[tokio::test]
async fn a_refusal_is_permanent() {
    let shop = Shop::open().await;
    let mut forbidden = book();
    forbidden["item"] = json!("forbidden");
    let first = problem(shop.post("k1", &forbidden).await, 422, "P4030").await;
    assert_eq!(first["reason"], "item_forbidden");
    let again = problem(shop.post("k1", &forbidden).await, 422, "P4030").await;
    assert_eq!(again, first);
    problem(shop.post("k1", &book()).await, 422, "P4002").await;
    assert_eq!(
        (shop.count("orders").await, shop.count("order_event").await),
        (0, 0)
    );
}

#[tokio::test]
async fn a_busy_key_says_when_to_retry() {
    let shop = Shop::open().await;
    let intent = Intent::new(orders::SCOPE, "k1", &book())
        .unwrap()
        .tenant("shop")
        .unwrap();
    let month = Duration::from_secs(30 * 86_400);
    shop.once
        .define_scope(orders::SCOPE, &Contract::keep(month).busy(Busy::Reject))
        .await
        .unwrap();
    let Claim::Run(held) = shop.once.claim(&intent).await.unwrap() else {
        panic!("nobody else knows this key");
    };
    let busy = shop.post("k1", &book()).await;
    assert_eq!(busy.headers()["retry-after"], "1");
    problem(busy, 409, "P4029").await;

    // With busy = wait, the duplicate outlasts the holder and does the work that was given up.
    shop.once
        .define_scope(orders::SCOPE, &Contract::keep(month).busy(Busy::Wait))
        .await
        .unwrap();
    let book = book();
    let waiting = shop.post("k1", &book);
    let giving_up = async {
        pgonce_testkit::wait_until("a session to wait for the key", Duration::from_secs(20), || {
            let asked = sqlx::query_scalar::<_, bool>(
                "select exists (select from pg_locks where locktype = 'advisory' and not granted \
                 and database = (select oid from pg_database where datname = current_database()))",
            );
            async { asked.fetch_one(shop.once.driver().pool()).await.unwrap() }
        })
        .await
        .unwrap();
        held.abandon().await.unwrap();
    };
    let (answered, ()) = tokio::join!(waiting, giving_up);
    assert_eq!(answered.status(), StatusCode::CREATED);
    assert_eq!(shop.count("order_event").await, 1);
}

#[tokio::test]
async fn an_answer_past_its_retention_is_gone_where_the_contract_says_so() {
    let shop = Shop::open().await;
    let contract = Contract::keep(Duration::from_secs(60)).after_expiry(AfterExpiry::Gone(None));
    shop.once
        .define_scope(orders::SCOPE, &contract)
        .await
        .unwrap();
    assert_eq!(shop.post("k1", &book()).await.status(), StatusCode::CREATED);
    let pool = shop.once.driver().pool();
    sqlx::query("select pgonce._move_clock(interval '2 minutes')")
        .execute(pool)
        .await
        .unwrap();
    problem(shop.post("k1", &book()).await, 410, "P4031").await;
    assert_eq!(shop.count("order_event").await, 1);
}

#[tokio::test]
async fn without_its_database_the_service_says_come_back_and_then_goes_on() {
    let server = Postgres::builder().start().await.unwrap();
    let shop = Shop::open_on(&server).await;
    let first = shop.post("k1", &book()).await.bytes().await.unwrap();
    server.crash().await.unwrap();
    let down = shop.post("k2", &book()).await;
    assert!(down.headers().contains_key("retry-after"));
    assert_eq!(down.status(), StatusCode::SERVICE_UNAVAILABLE);
    server.start_again().await.unwrap();
    let health = shop
        .client
        .get(format!("{}/health", shop.address))
        .send()
        .await
        .unwrap();
    assert_eq!(health.status(), StatusCode::OK);
    let again = shop.post("k1", &book()).await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(again.bytes().await.unwrap(), first);
}
