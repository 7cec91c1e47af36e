//! Operations of the console: as many intents as were confirmed, once, across a reload too.

use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};

use crate::console::{OPERATOR, VIEWER, sign_in};
use crate::fixture::Fixture;
use crate::serve::{DEADLINE, Serving, TOKENS};

/// Intents that failed permanently, in two scopes, the first of which somebody holds: an operation waits there.
async fn held(fixture: &Fixture) -> Client {
    fixture
        .sql("select pgonce.fail(s, 'k' || n, '\\x01', 1, false, 'c', 'no') from generate_series(1, 60) n, unnest(array['s', 'other']) s")
        .await;
    hold(fixture, "k1").await
}

async fn hold(fixture: &Fixture, key: &str) -> Client {
    let (holder, connection) = tokio_postgres::connect(&fixture.database.url(), NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let lock = format!("begin; select from pgonce.intent where key = '{key}' for update");
    holder.batch_execute(&lock).await.unwrap();
    holder
}

fn bulk(scope: &str, key: &str, confirm: u32) -> Value {
    json!({"op": "retry", "scope": scope, "key": key, "reason": "r", "confirm": confirm.to_string()})
}

async fn operations(serving: &Serving) -> Vec<Value> {
    let answer = serving.get("/api/v1/operations", VIEWER).await;
    let said: Value = answer.json().await.unwrap();
    said["sections"][0]["rows"].as_array().unwrap().clone()
}

async fn ended(serving: &Serving, state: &str) {
    let over = async || operations(serving).await.last().unwrap()["state"] == state;
    pgonce_testkit::wait_until(state, DEADLINE, over)
        .await
        .unwrap();
}

#[tokio::test]
async fn of_two_operations_over_the_same_intents_one_begins() {
    let fixture = Fixture::installed().await;
    let holder = held(&fixture).await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let all = bulk("s", "", 60);
    let (first, second) = tokio::join!(
        serving.act("bulk", OPERATOR, &all),
        serving.act("bulk", OPERATOR, &all)
    );
    let mut statuses = [first.status(), second.status()];
    statuses.sort();
    assert_eq!(statuses, [StatusCode::OK, StatusCode::CONFLICT]);
    let (_, late) = match first.status() {
        StatusCode::OK => (first, second),
        _ => (second, first),
    };
    let said: Value = late.json().await.unwrap();
    assert_eq!(said["code"], "already_running", "{said}");
    // A part of the same; another scope is none of it.
    let part = serving.act("bulk", OPERATOR, &bulk("s", "k1", 11)).await;
    assert_eq!(part.status(), 409);
    assert_eq!(
        part.json::<Value>().await.unwrap()["code"],
        "already_running"
    );
    let other = serving
        .act("bulk", OPERATOR, &bulk("other", "k2", 11))
        .await;
    assert_eq!(other.status(), 200);
    assert_eq!(operations(&serving).await.len(), 2);
    holder.batch_execute("rollback").await.unwrap();
    ended(&serving, "finished").await;
    // What was confirmed is done: the number that was typed is no longer right.
    let again = serving.act("bulk", OPERATOR, &all).await;
    assert_eq!(
        again.json::<Value>().await.unwrap()["code"],
        "count_changed"
    );
    let acts = "select count(*) from pgonce.operator_act where act = 'retry' and scope = 's'";
    let acts = fixture.client.query_one(acts, &[]).await.unwrap();
    assert_eq!(acts.get::<_, i64>(0), 60);
}

#[tokio::test]
async fn an_operation_acts_on_those_that_were_confirmed_and_on_none_that_comes_later() {
    let fixture = Fixture::installed().await;
    let fail = |key: &str, n: u32| {
        format!(
            "select pgonce.fail('s', {key}, '\\x01', 1, false, 'c', 'no') from generate_series(1, {n}) n"
        )
    };
    fixture
        .sql(&fail("'k' || lpad(n::text, 3, '0')", 150))
        .await;
    let holder = hold(&fixture, "k001").await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let started = serving.act("bulk", OPERATOR, &bulk("s", "", 150)).await;
    assert_eq!(started.status(), 200);
    // It waits at the first. This one is between those that it has not reached.
    fixture.sql(&fail("'k120a'", 1)).await;
    holder.batch_execute("rollback").await.unwrap();
    ended(&serving, "finished").await;
    let left = "select string_agg(key, ' ') from pgonce.intent where scope = 's'";
    let left = fixture.client.query_one(left, &[]).await.unwrap();
    assert_eq!(left.get::<_, Option<&str>>(0), Some("k120a"));
}

#[tokio::test]
async fn a_reload_loses_neither_an_operation_nor_a_login() {
    let fixture = Fixture::installed().await;
    let holder = held(&fixture).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pgonce.toml");
    let write = |instance: &str| {
        let text = format!("roles = [\"console\"]\ninstance = \"{instance}\"\n");
        std::fs::write(&file, text).unwrap();
    };
    write("first");
    let serving = Serving::of(&fixture, &["--config", file.to_str().unwrap()], TOKENS);
    let (cookie, csrf) = sign_in(&serving, OPERATOR).await;
    let started = serving.act("bulk", OPERATOR, &bulk("s", "", 60)).await;
    assert_eq!(started.status(), 200);
    write("second");
    serving.signal(Signal::HUP);
    while !serving.text("/scopes", VIEWER).await.contains("second") {}

    let known = operations(&serving).await;
    assert_eq!(
        (known.len(), &known[0]["state"]),
        (1, &json!("running")),
        "{known:?}"
    );
    let second = serving.act("bulk", OPERATOR, &bulk("s", "", 60)).await;
    assert_eq!(
        second.json::<Value>().await.unwrap()["code"],
        "already_running"
    );
    // The form of a page that was loaded before, by who signed in before.
    let body = format!("csrf={csrf}&id=1");
    let stopped = serving.form("/act/cancel-bulk", &cookie, &body).await;
    assert_eq!(stopped.status(), StatusCode::SEE_OTHER);
    assert_eq!(
        stopped.headers()["location"],
        "/operations?done=cancel-bulk"
    );
    holder.batch_execute("rollback").await.unwrap();
    ended(&serving, "cancelled").await;
}
