//! A worker of the queue with the grants of its part.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Part;
use pgonce::queue::Job;
use pgonce::{Failure, Once};
use pgonce_tests::{Observer, TestDriver as _};

use super::roles::{Shop, all_done, count};
use super::test_db::{connect, tokio_driver};

/// It claims, renews, finishes, fails and purges with the part `consumer`, and commits effects of its own.
#[tokio::test]
async fn a_worker_needs_the_part_of_a_consumer() {
    let shop = Shop::open().await;
    let owner = connect(&shop.owner).await;
    let consumer = shop.name(Part::Consumer);
    all_done(
        &owner,
        &[
            "create schema shop; create table shop.made (id bigint)",
            &format!(
                "grant usage on schema shop to {consumer}; grant insert on shop.made to {consumer}"
            ),
        ],
    )
    .await;
    let app = shop.connect(Part::App).await;
    let enqueue = "select count(*) from generate_series(1, 20) n, pgonce.enqueue('q', to_jsonb(n))";
    assert_eq!(count(&app, enqueue).await, 20);
    let once = Once::tokio_postgres(tokio_driver(shop.url(Part::Consumer)).pool().clone());
    let worker = once.worker(["q"], |job: Job<TokioPostgres>| async move {
        let id = job.id();
        if job.payload::<i64>()? == 7 {
            return Err(Failure::permanent("no", "never").into());
        }
        job.transact(async |mut tx| {
            let insert = format!("insert into shop.made values ({id})");
            TokioPostgres::exec(tx.conn(), &insert).await?;
            Ok(id)
        })
        .await
    });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let working = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    let see = Observer::connect(&shop.db.database.url()).await;
    see.wait_until("select count(*) = 0 from pgonce.job_live")
        .await;
    drop(stop);
    working.await.unwrap();
    assert_eq!(
        see.number("select count(distinct id) from shop.made").await,
        19
    );
    let dead = "select count(*) from pgonce.jobs where status = 'dead' and failure_code = 'no'";
    assert_eq!(see.number(dead).await, 1);
}
