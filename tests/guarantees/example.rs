//! The example of a protected command, as a user writes it.

use pgonce::sqlx::Once;
use pgonce::{Error, Event, Failure, Intent};
use pgonce_tests::World;
use serde::{Deserialize, Serialize};

#[derive(Serialize)]
struct PlaceOrder {
    item: String,
    qty: i32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    id: i64,
}

#[rustfmt::skip]
async fn place_order(once: &Once, key: &str, cmd: &PlaceOrder) -> Result<Receipt, Error> {
    let intent = Intent::new("orders.create", key, cmd)?;
    once.run(&intent, |mut tx| async move {
        if cmd.qty < 1 {
            return Err(Failure::permanent("bad_quantity", "qty must be at least 1").into());
        }
        let id = sqlx::query_scalar("insert into orders (item, qty) values ($1, $2) returning id")
            .bind(&cmd.item).bind(cmd.qty)
            .fetch_one(tx.conn()).await?;
        tx.publish(Event::new("orders", "order.created").subject(id).payload(cmd)?).await?;
        tx.succeed(&Receipt { id }).await          // order, event and answer commit together
    })
    .await?
    .into_answer()
}

#[tokio::test]
async fn a_command_leaves_one_order_one_event_and_one_answer() {
    let world = World::<pgonce::driver::sqlx::Sqlx>::new().await;
    let table = "drop table orders;
        create table orders (id bigint generated always as identity, item text, qty int)";
    world.see.run(table).await;
    let mut order = PlaceOrder {
        item: "book".to_owned(),
        qty: 2,
    };
    for _ in 0..2 {
        let receipt = place_order(&world.once, "k1", &order).await.unwrap();
        assert_eq!(receipt, Receipt { id: 1 });
    }
    let left = "select count(*) from orders o, pgonce.outbox e where e.subject = o.id::text and e.payload->>'item' = 'book'";
    assert_eq!(world.see.number(left).await, 1);

    order.qty = 0;
    for _ in 0..2 {
        let refused = place_order(&world.once, "k2", &order).await.unwrap_err();
        assert!(matches!(&refused, Error::Refused(f) if f.code() == "bad_quantity"));
    }
    assert_eq!(world.see.number("select count(*) from orders").await, 1);
}
