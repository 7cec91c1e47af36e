//! Work whose holder vanished, and that is safe to retry, is done again by a registered worker, without its client.

use std::sync::Arc;
use std::time::Duration;

use pgonce::queue::Job;
use pgonce::{Claim, Error, Intent, Once, Result};
use pgonce_tests::{TestDriver, World, for_each_driver};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const SHOP: &str = "
select pgonce.define_scope('orders.create', '1 day', p_retry_queue => 'again', p_max_attempts => 3);
create table request (key text primary key, body jsonb);
create table made (key text);
grant all on request, made to public;";

/// The command, as the service runs it for a client and as the worker runs it again.
async fn place_order<D: TestDriver>(once: &Once<D>, intent: &Intent) -> Result<Value> {
    let insert = format!("insert into made values ('{}')", intent.key());
    let done = once
        .run_leased(intent, |lease| {
            let insert = insert.clone();
            async move {
                lease
                    .transact(|mut attempt| {
                        let insert = insert.clone();
                        async move {
                            D::exec(attempt.conn(), &insert).await?;
                            attempt.succeed(&json!({"made": true})).await
                        }
                    })
                    .await
            }
        })
        .await?;
    done.into_answer()
}

async fn a_registered_worker_does_again_what_is_safe_to_retry<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run(SHOP).await;
    // What a request said is kept by its key: recovery knows the key only.
    let body = json!({"item": "lamp"});
    see.run(&format!(
        "insert into request values ('order-7', '{body}'), ('order-8', '{body}')"
    ))
    .await;
    for key in ["order-7", "order-8"] {
        let intent = Intent::new("orders.create", key, &body).unwrap();
        let lease = Duration::from_secs(60);
        let Claim::Run(lease) = world.once.lease(&intent, lease).await.unwrap() else {
            panic!("it is the first")
        };
        // Its process ends without a word.
        std::mem::forget(lease);
    }
    see.run("update pgonce.intent set lease_until = pgonce.now() - interval '1 second'")
        .await;
    let recovered = world.owner.recovery().run_once().await.unwrap();
    assert_eq!(recovered.released, 2, "{recovered:?}");

    let requests = Arc::new(world.observer().await);
    let again = world.once.clone();
    let handler = move |job: Job<D>| {
        let (once, requests) = (again.clone(), requests.clone());
        async move {
            let of: Value = job.payload()?;
            let text = |name: &str| of[name].as_str().unwrap_or_default().to_owned();
            let key = text("key");
            let body = format!("select body::text from request where key = '{key}'");
            let body = requests.text(&body).await;
            let body: Value = serde_json::from_str(&body).map_err(|_| Error::work("a bad body"))?;
            let intent = Intent::new(text("scope"), key, &body)?;
            place_order(&once, &intent).await?;
            job.done(&())
        }
    };
    let stop = CancellationToken::new();
    let worker = world.once.worker(["again"], handler);
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    see.wait_until("select count(*) = 2 from pgonce.jobs where status = 'succeeded'")
        .await;
    stop.cancel();
    running.await.unwrap();
    let made = "select string_agg(key, ',' order by key) from made";
    assert_eq!(see.text(made).await, "order-7,order-8");
    // Who vanished, recovery, and the worker: to decide about stale work is an attempt of its own.
    let ended = "select string_agg(distinct status || ' ' || attempts, ', ') from pgonce.intent";
    assert_eq!(see.text(ended).await, "succeeded 3");
    // A client that comes back gets the answer of the worker's attempt.
    let intent = Intent::new("orders.create", "order-7", &body).unwrap();
    let answer = place_order(&world.once, &intent).await.unwrap();
    assert_eq!(answer, json!({"made": true}));
    assert_eq!(see.number("select count(*) from made").await, 2);
}

for_each_driver!(a_registered_worker_does_again_what_is_safe_to_retry);
