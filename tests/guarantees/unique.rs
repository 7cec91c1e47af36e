//! A second key for the same business fact still makes one effect, and a violation is never swallowed.

use futures_util::future::join;
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::unique::{Inserted, Violation, classify_violation, insert_or_fetch};
use pgonce::{Ack, Attempt, Claim, Error};
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

#[tokio::test]
async fn an_id_from_a_natural_name_is_the_same_in_sql_and_rust() {
    let world = World::<TokioPostgres>::new().await;
    let long = "x".repeat(200);
    for (namespace, parts) in [
        ("order", &["shop-7", "2026-000123"][..]),
        ("", &[""]),
        ("größe", &["ä", "€", &long]),
        ("a'b", &[&long[..47], &long[..48], &long[..111]]),
    ] {
        let quoted = parts.iter().map(|part| format!("'{part}'"));
        let quoted = quoted.collect::<Vec<_>>().join(", ");
        let sql = format!(
            "select pgonce.resource_id('{}', {quoted})",
            namespace.replace('\'', "''")
        );
        let id = pgonce::key::resource_id(namespace, parts);
        assert_eq!(world.see.text(&sql).await, id.to_string(), "{sql}");
    }
    let order = world
        .see
        .text("select pgonce.resource_id('order', 'shop-7', '2026-000123')")
        .await;
    assert_eq!(order, "87b42f86-4283-5971-a4dc-c7b1c4dcb368");
    assert_eq!(
        world
            .see
            .code("select pgonce.resource_id('order', null)")
            .await,
        "22004"
    );
}

async fn a_row_is_changed_once_or_says_why_not<D: TestDriver>(world: World<D>) {
    use pgonce::unique::Updated;

    world.see.run("create table public.parcel (number text primary key, state text, version integer, delivered_at date); \
        grant all on public.parcel to public; insert into public.parcel values ('P', 'sent', 1)").await;
    let request = intent("parcel").tenant("acme").unwrap();
    let run = world.once.run(&request, async |mut tx: Attempt<D>| {
        for (row, expected, outcome) in [
            (
                json!({"number": "P", "delivered_at": "2026-01-31"}),
                None,
                Updated::Applied,
            ),
            (
                json!({"number": "P", "delivered_at": "31 Jan 2026"}),
                None,
                Updated::Already,
            ),
            (
                json!({"number": "P", "delivered_at": "2026-02-01"}),
                None,
                Updated::Stale,
            ),
            (
                json!({"number": "P", "state": "lost", "version": 2}),
                Some(json!({"version": 1, "state": "sent"})),
                Updated::Applied,
            ),
            (
                json!({"number": "P", "state": "lost", "version": 2}),
                Some(json!({"version": 1})),
                Updated::Already,
            ),
            (
                json!({"number": "P", "state": "found", "version": 2}),
                Some(json!({"version": 1})),
                Updated::Stale,
            ),
            (
                json!({"number": "Q", "state": "found"}),
                None,
                Updated::Missing,
            ),
        ] {
            let updated = tx.update_once("public.parcel_pkey", &row, expected).await?;
            assert_eq!(updated, outcome, "{row}");
        }
        assert_eq!(
            tx.refer("portal", "c-1", "case", "1").await?,
            Inserted::New("1".to_owned())
        );
        assert_eq!(
            tx.refer("portal", "c-1", "case", "2").await?,
            Inserted::Existing("1".to_owned())
        );
        assert_eq!(
            tx.refer("portal", "c-1", "person", "2").await?,
            Inserted::New("2".to_owned())
        );
        tx.succeed(Ack::value(&"done")?).await
    });
    let _ = run.await.unwrap();
    let stored = "select concat_ws(' ', state, version, delivered_at) from public.parcel";
    assert_eq!(world.see.text(stored).await, "lost 2 2026-01-31");
    assert_eq!(
        world
            .see
            .text("select distinct tenant from pgonce.external_reference")
            .await,
        "acme"
    );
    let nothing = "select pgonce.update_once('public.parcel_pkey', '{\"number\": \"P\"}')";
    assert_eq!(world.see.code(nothing).await, "22023");
}

for_each_driver!(a_row_is_changed_once_or_says_why_not);

#[tokio::test]
async fn who_waits_for_a_row_and_finds_it_changed_has_lost_the_race() {
    let world = World::<TokioPostgres>::new().await;
    world.see.run("create table public.parcel (number text primary key, version integer); insert into public.parcel values ('P', 1)").await;
    let (first, second) = join(world.observer(), world.observer()).await;
    let change = |to: i32| {
        format!(
            "select outcome from pgonce.update_once('public.parcel_pkey', '{{\"number\": \"P\", \"version\": {to}}}', '{{\"version\": 1}}')"
        )
    };
    first.run("begin").await;
    assert_eq!(first.text(&change(2)).await, "applied");
    let (lost, waited) = (
        change(3),
        "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()",
    );
    let (lost, ()) = join(second.text(&lost), async {
        world.see.wait_until(waited).await;
        first.run("commit").await;
    })
    .await;
    assert_eq!(lost, "lost_race");
}

#[tokio::test]
async fn an_expectation_that_names_no_column_is_an_error_and_not_met() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("create table parcel (number text primary key, state text, version integer); insert into parcel values ('P', 'sent', 7)")
        .await;
    let update = |expected: &str| {
        format!(
            "select outcome from pgonce.update_once('parcel_pkey', '{{\"number\": \"P\", \"state\": \"lost\"}}', '{expected}')"
        )
    };
    for wrong in [r#"{"verson": 1}"#, r#"{"version": 7, "Version": 7}"#] {
        assert_eq!(see.code(&update(wrong)).await, "22023", "{wrong}");
    }
    assert_eq!(see.text("select state from parcel").await, "sent");
    assert_eq!(see.text(&update(r#"{"version": 7}"#)).await, "applied");
}

#[tokio::test]
async fn a_row_is_found_as_its_index_compares_it() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("create collation public.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
             create table person (name text, state text); create unique index person_name on person (name collate public.ci); \
             insert into person values ('Bob', 'old')")
        .await;
    let update = |expected: &str| {
        format!(
            "select outcome from pgonce.update_once('person_name', '{{\"name\": \"BOB\", \"state\": \"new\"}}', '{{\"state\": \"{expected}\"}}')"
        )
    };
    assert_eq!(see.text(&update("other")).await, "stale");
    assert_eq!(see.text(&update("old")).await, "applied");
    assert_eq!(
        see.text("select name || ' ' || state from person").await,
        "Bob new"
    );
}
