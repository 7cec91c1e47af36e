//! What the layer writes into logs.

use axum::Router;
use axum::routing::post;
use pgonce::Failure;
use pgonce_http::{Caller, HandlerError, Policy, Tx};

use crate::support::{SCOPE, Site, World, made};

/// What the layer logs at any level of requests with a secret in keys, bodies, headers, answers and failures.
#[tokio::test]
async fn no_log_of_the_layer_quotes_a_request() {
    type Sqlx = pgonce::driver::sqlx::Sqlx;
    const CANARY: &str = "c4n4ry";
    let (log, _logging) = crate::support::logged();
    let world: World = World::new().await;
    world
        .run_sql("create table named (name text primary key, size integer)")
        .await;
    let handler = async |mut tx: Tx<Sqlx>, body: String| {
        let (how, name) = body.split_once(' ').unwrap();
        let sql = match how {
            "twice" => "insert into named (name) values ($1), ($1)",
            "number" => "insert into named (name, size) values ($1, $1::text::integer)",
            "panic" => panic!("the test's handler panics"),
            "refuse" => return Err(Failure::permanent("no", name).into()),
            _ => "insert into named (name) values ($1)",
        };
        sqlx::query(sql).bind(name).execute(tx.conn()).await?;
        Ok::<_, HandlerError>(made())
    };
    let layer = world.atomic(Policy::new(SCOPE, Caller::None));
    let site = Site::open(Router::new().route("/effects", post(handler).layer(layer))).await;
    for (how, status) in [
        ("once", 201),
        ("once", 201),
        ("twice", 500),
        ("number", 500),
        ("panic", 500),
        ("refuse", 422),
    ] {
        let key = format!("{CANARY}-{how}");
        let reply = site.post("/effects", &key, format!("{how} {key}")).await;
        assert_eq!(reply.status, status, "{how}");
    }
    let log = String::from_utf8(log.lock().unwrap().clone()).unwrap();
    assert!(log.contains("23505") && log.contains("22P02"), "{log}");
    assert!(!log.contains(CANARY), "{log}");
}
