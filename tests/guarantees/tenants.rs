//! Whatever hands a transaction out, it works for the tenant of the intent or the message.

use std::time::Duration;

use pgonce::driver::Connection;
use pgonce::unique::Inserted;
use pgonce::{Claim, Event, Message, Tx};
use pgonce_tests::{TestDriver, World, for_each_driver, intent};
use serde_json::{Value, json};

/// What everybody may do in a transaction; answers whether the row was new.
async fn use_all<C: Connection>(tx: &mut Tx<C>, message: &str) -> pgonce::Result<bool> {
    tx.publish(Event::new("orders", "order.created").subject("7"))
        .await?;
    assert!(tx.try_lock("close").await?);
    assert!(tx.lock("import", Duration::from_secs(1)).await?);
    assert!(
        tx.accept("billing", "shop", &Message::new(message, "1"))
            .await?
    );
    let row = json!({"name": message});
    let inserted = tx.insert_or_fetch::<Value>("one_fact", &row).await?;
    Ok(matches!(inserted, Inserted::New(_)))
}

const LEFT: &str = "select (select count(*) from pgonce.outbox where tenant = 'acme')
    + 10 * (select count(*) from pgonce.inbox_marker where tenant = 'acme')
    + 100 * (select count(*) from fact)";

async fn every_transaction_publishes_locks_and_accepts_under_its_tenant<D: TestDriver>(
    world: World<D>,
) {
    world
        .see
        .run("create table fact (name text); create unique index one_fact on fact (name)")
        .await;
    let acme = |key: &str| intent(key).tenant("acme").unwrap();
    let done = world
        .once
        .run(&acme("attempt"), |mut tx| async move {
            let new = use_all(&mut tx, "a").await?;
            tx.succeed(&new).await
        })
        .await
        .unwrap();
    assert!(done.into_answer().unwrap());
    assert_eq!(world.see.number(LEFT).await, 111);

    let Claim::Run(lease) = world
        .once
        .lease(&acme("lease"), Duration::from_secs(60))
        .await
        .unwrap()
    else {
        panic!("fresh")
    };
    let done = lease.transact(|mut tx| async move {
        let new = use_all(&mut tx, "b").await?;
        tx.succeed(&new).await
    });
    assert!(done.await.unwrap().into_answer().unwrap());
    assert_eq!(world.see.number(LEFT).await, 222);

    let mut batch = world.once.inbox().begin().await.unwrap();
    assert!(
        use_all(&mut batch.lend("acme").unwrap(), "c")
            .await
            .unwrap()
    );
    batch.commit().await.unwrap();
    assert_eq!(world.see.number(LEFT).await, 333);
}

for_each_driver!(every_transaction_publishes_locks_and_accepts_under_its_tenant);

#[tokio::test]
async fn a_transaction_given_by_value_comes_back_with_its_success() {
    let world = World::<pgonce::driver::sqlx::Sqlx>::new().await;
    world
        .see
        .run("create table fact (name text); create unique index one_fact on fact (name)")
        .await;
    let wanted = intent("joined").tenant("acme").unwrap();
    let pool = world.once.driver().pool();
    let tx = pool.begin().await.unwrap();
    let Claim::Run(mut joined) = world.once.join(tx, &wanted).await.unwrap() else {
        panic!("fresh")
    };
    assert!(use_all(&mut joined, "a").await.unwrap());
    let (_, tx) = joined.succeed("done").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.see.number(LEFT).await, 111);
    let tx = pool.begin().await.unwrap();
    assert!(matches!(
        world.once.join(tx, &wanted).await.unwrap(),
        Claim::Replay(_)
    ));
}
