//! What the wallet promises, over real sockets and on a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use futures_util::future::join_all;
use pgonce_testkit::Database;
use reqwest::{Client, StatusCode};
use serde_json::json;
use wallet::{Wallet, router, set_up};

struct Bank {
    address: String,
    client: Client,
    pool: sqlx::PgPool,
    _database: Database,
}

async fn open() -> Bank {
    let server = pgonce_testkit::shared(None).await.unwrap();
    let install = async |url: String| set_up(&url).await.map(drop);
    server.template("wallet", install).await.unwrap();
    let database = server.database_from("wallet").await.unwrap();
    let once = set_up(&database.url()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let app = router(&once).unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let bank = Bank {
        address,
        client: Client::builder().no_proxy().build().unwrap(),
        pool: once.driver().pool().clone(),
        _database: database,
    };
    for name in ["ada", "bob"] {
        let put = bank.client.put(format!("{}/wallets/{name}", bank.address));
        assert_eq!(put.send().await.unwrap().status(), StatusCode::CREATED);
    }
    bank
}

impl Bank {
    async fn transfer(&self, key: &str, from: &str, to: &str, cents: u64) -> StatusCode {
        let post = self.client.post(format!("{}/transfers", self.address));
        let post = post.header("Idempotency-Key", key);
        let body = json!({"from": from, "to": to, "cents": cents});
        post.json(&body).send().await.unwrap().status()
    }

    async fn cents(&self, name: &str) -> i64 {
        let got = self.client.get(format!("{}/wallets/{name}", self.address));
        got.send()
            .await
            .unwrap()
            .json::<Wallet>()
            .await
            .unwrap()
            .cents
    }
}

#[tokio::test]
async fn a_transfer_happens_once_and_never_takes_more_than_there_is() {
    let bank = open().await;
    assert_eq!(
        bank.transfer("in", "cash", "ada", 1000).await,
        StatusCode::CREATED
    );
    // The same transfer ten times, and ten that together are too much.
    let same = (0..10).map(|_| bank.transfer("pay", "ada", "bob", 300));
    for status in join_all(same).await {
        // 409: another attempt is running.
        assert!([StatusCode::CREATED, StatusCode::CONFLICT].contains(&status));
    }
    assert_eq!(
        bank.transfer("pay", "ada", "bob", 300).await,
        StatusCode::CREATED
    );
    assert_eq!(
        (bank.cents("ada").await, bank.cents("bob").await),
        (700, 300)
    );
    let keys: Vec<String> = (0..10).map(|n| format!("all-{n}")).collect();
    join_all(keys.iter().map(|key| bank.transfer(key, "ada", "bob", 100))).await;
    assert_eq!(
        (bank.cents("ada").await, bank.cents("bob").await),
        (0, 1000)
    );
    assert_eq!(
        bank.transfer("more", "ada", "bob", 1).await,
        StatusCode::CONFLICT
    );
    assert_eq!(
        bank.transfer("who", "ada", "nobody", 1).await,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        bank.transfer("zero", "bob", "ada", 0).await,
        StatusCode::BAD_REQUEST
    );
    let wrong: i64 = sqlx::query_scalar("select count(*) from pgonce.ledger_verify()")
        .fetch_one(&bank.pool)
        .await
        .unwrap();
    assert_eq!(wrong, 0);
}
