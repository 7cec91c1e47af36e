//! A second key for the same business fact still makes one effect, and a violation is never swallowed.

use futures_util::future::join;
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::unique::{Inserted, Violation, classify_violation, insert_or_fetch};
use pgonce::{Ack, Claim, Error};
use pgonce_tests::{
    TestDriver, World, digest_of, for_each_driver, for_each_driver_and_setting, intent,
};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

const FACT: &str = "one_order_per_reference";

async fn two_keys_for_one_fact_make_one_row_and_say_which_made_it<D: TestDriver>(world: World<D>) {
    let mut ids = Vec::new();
    for (key, item) in [("first key", "book"), ("second key", "bicycle")] {
        let request = intent(key);
        let run = world.once.run(&request, async |mut attempt| {
            let row = json!({"customer": "acme", "reference": "r-1", "item": item});
            let made = attempt.insert_or_fetch::<Value>(FACT, &row).await?;
            assert_eq!(made.is_new(), key == "first key");
            let order = made.into_inner();
            assert_eq!(order["item"], "book", "the first one's");
            attempt.succeed(Ack::value(&order["id"])?).await
        });
        ids.push(
            run.await
                .unwrap_or_else(|error| panic!("{:?}: {error:?}", world.setting))
                .read::<i64>()
                .unwrap(),
        );
    }
    assert_eq!(ids[0], ids[1]);
    assert_eq!(world.see.number("select count(*) from orders").await, 1);
}

#[tokio::test]
async fn the_written_statement_says_the_same() {
    let world = World::<Sqlx>::new().await;
    let sql = insert_or_fetch(
        "orders",
        &["customer", "reference"],
        &["customer", "reference", "item"],
        &["id"],
    )
    .unwrap();
    let mut made = Vec::new();
    for item in ["book", "bicycle"] {
        let query = sqlx::query_as::<_, (bool, i64)>(AssertSqlSafe(sql.clone()))
            .bind("acme")
            .bind("r")
            .bind(item);
        made.push(
            Inserted::from_rows(query.fetch_all(world.once.driver().pool()).await.unwrap())
                .unwrap(),
        );
    }
    assert!(made[0].is_new() && !made[1].is_new());
    assert_eq!(made[0].into_inner(), made[1].into_inner());
}

#[tokio::test]
async fn fetching_writes_no_row_version_and_fires_no_trigger() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("create table audit (what text); create function note() returns trigger language plpgsql as \
        'begin insert into audit values (tg_op); return new; end'; \
        create trigger note after insert or update on orders for each row execute function note()").await;
    let call = "select made_now, stored ->> 'id', stored ->> 'item' from pgonce.insert_or_fetch('one_order_per_reference', ";
    let first = see
        .rows(&format!(
            "{call} '{{\"customer\": \"a\", \"reference\": \"r\", \"item\": \"book\"}}')"
        ))
        .await;
    let version = see.text("select xmin || ' ' || ctid from orders").await;
    let again = see
        .rows(&format!(
            "{call} '{{\"customer\": \"a\", \"reference\": \"r\", \"item\": \"other\"}}')"
        ))
        .await;
    assert_eq!(
        (first[0][0].as_deref(), again[0][0].as_deref()),
        (Some("t"), Some("f"))
    );
    assert_eq!(first[0][1..], again[0][1..]);
    assert_eq!(
        see.text("select xmin || ' ' || ctid from orders").await,
        version
    );
    assert_eq!(
        see.text("select string_agg(what, ' ') from audit").await,
        "INSERT"
    );
}

async fn a_row_that_is_in_the_way_but_not_yet_visible_is_looked_for_again<D: TestDriver>(
    world: World<D>,
) {
    let other = world.observer().await;
    other
        .run("begin; insert into orders (customer, reference, item) values ('acme', 'r', 'theirs')")
        .await;
    let slow = world.another("slow", 1, |b| b);
    let Claim::Run(mut attempt) = slow.claim(&intent("k")).await.unwrap() else {
        panic!("fresh")
    };
    let row = json!({"customer": "acme", "reference": "r", "item": "mine"});
    let (made, ()) = join(attempt.insert_or_fetch::<Value>(FACT, &row), async {
        world.see.wait_until_asleep("slow").await;
        other.run("commit").await;
    })
    .await;
    let made = made.unwrap();
    assert!(!made.is_new());
    assert_eq!(made.into_inner()["item"], "theirs");
}

#[tokio::test]
async fn a_unique_violation_is_classified_and_burns_no_key() {
    let world = World::<Sqlx>::new().await;
    world
        .see
        .run("insert into orders (customer, reference, item) values ('acme', 'r', 'book')")
        .await;
    let business = ["one_order_per_reference"];
    let insert = |id: &str| {
        format!(
            "insert into orders (id, customer, reference, item) overriding system value values ({id}, 'acme', 'r{id}', 'x')"
        )
    };
    for (sql, violation) in [
        (
            "insert into orders (customer, reference, item) values ('acme', 'r', 'x')".to_owned(),
            Violation::BusinessDuplicate,
        ),
        (insert("1"), Violation::Bug),
    ] {
        let end = world
            .once
            .run(&intent("k"), async |mut attempt| {
                sqlx::raw_sql(AssertSqlSafe(sql.clone()))
                    .execute(attempt.conn())
                    .await?;
                attempt.succeed(Ack::status()).await
            })
            .await;
        let Err(Error::Database(problem)) = end else {
            panic!("{end:?}")
        };
        assert_eq!(&*problem.code, "23505");
        assert_eq!(
            classify_violation(problem.constraint.as_deref(), &business),
            violation
        );
    }
    // Losing on the intent itself is a lost race, distinguished from both.
    let Claim::Run(blind) = world
        .once
        .claim(&intent("raced").known_first())
        .await
        .unwrap()
    else {
        panic!("fresh")
    };
    let print = digest_of(&intent("raced"));
    world
        .see
        .run(&format!("select finish('orders.create', 'raced', {print})"))
        .await;
    let Err(Error::LostRace(problem)) = blind.succeed(Ack::status()).await else {
        panic!("lost")
    };
    assert_eq!(
        classify_violation(problem.constraint.as_deref(), &business),
        Violation::LostRace
    );
    assert!(!world.run(&intent("k")).await.unwrap().replayed());
}

for_each_driver!(a_row_that_is_in_the_way_but_not_yet_visible_is_looked_for_again);
for_each_driver_and_setting!(two_keys_for_one_fact_make_one_row_and_say_which_made_it);
