//! A transaction that somebody left open on a connection of the pool is none of ours: neither do we commit it, nor does its end undo
//! what we said is done.

use deadpool_postgres::{Manager, Pool};
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Error, Once};
use pgonce_tests::{TestDriver, World, effect, intent};
use sqlx::postgres::PgPoolOptions;

const LEFT: [&str; 3] = [
    "begin; insert into public.transfer values (1)",
    "begin; select count(*) from public.transfer",
    "begin; select 1 / 0",
];

async fn costs_no_call<D: TestDriver>(
    world: &World<D>,
    once: &Once<D>,
    leave: impl AsyncFn(&'static str),
) {
    let see = &world.see;
    see.run("create table public.transfer (n integer); grant all on public.transfer to public")
        .await;
    for (n, left) in LEFT.into_iter().enumerate() {
        leave(left).await;
        let request = intent(&format!("run {n}"));
        let done = once
            .run(&request, |mut tx| async move {
                effect(&mut tx).await?;
                tx.succeed("done").await
            })
            .await;
        assert!(done.is_ok(), "{left}: {done:?}");
        assert_eq!(see.effects(&request).await, 1, "{left}");
        leave(left).await;
        let published = async || {
            let batch = once.inbox().begin().await?;
            batch.commit().await
        };
        let refused = published().await;
        let is_refused = matches!(&refused, Err(Error::Disconnected(_)));
        assert!(is_refused, "{left}: {refused:?}");
    }
    // One that failed is replaced before a call of its own.
    leave(LEFT[2]).await;
    let job = once.job("", 1).await;
    assert!(matches!(job, Ok(None)), "{job:?}");
    assert_eq!(see.number("select count(*) from public.transfer").await, 0);
}

#[tokio::test]
async fn a_transaction_left_open_in_a_pool_of_sqlx_costs_no_call() {
    let world = World::<Sqlx>::new().await;
    let options = PgPoolOptions::new().max_connections(1);
    let pool = options.connect(&world.url()).await.unwrap();
    let once = pgonce::sqlx::Once::new(pool.clone());
    costs_no_call(&world, &once, async |left| {
        let mut conn = pool.acquire().await.unwrap();
        let _ = sqlx::raw_sql(left).execute(&mut *conn).await;
    })
    .await;
}

#[tokio::test]
async fn a_transaction_left_open_in_a_pool_of_tokio_postgres_costs_no_call() {
    let world = World::<TokioPostgres>::new().await;
    let config = world.url().parse().unwrap();
    let pool = Pool::builder(Manager::new(config, tokio_postgres::NoTls))
        .max_size(1)
        .build()
        .unwrap();
    let once = pgonce::tokio_postgres::Once::new(pool.clone());
    costs_no_call(&world, &once, async |left| {
        let client = pool.get().await.unwrap();
        let _ = client.batch_execute(left).await;
    })
    .await;
}
