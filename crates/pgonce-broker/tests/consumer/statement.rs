//! Handlers that are one SQL statement: one effect for each message, in one statement with its marker.

use std::time::Duration;

use pgonce::inbox::Message;
use pgonce::sqlx::Once;
use pgonce_broker::sources::ChannelSource;
use pgonce_broker::{Consumer, Handler};
use pgonce_tests::TestDriver as _;

use super::fixture::{Db, Fixture, Running, message, quick};

const SEEN: &str = "insert into seen (consumer, id, key) select 'c', m.id, m.key from messages m;";

async fn consumer(
    fixture: &Fixture,
    sql: &str,
) -> Consumer<Db, ChannelSource, impl Handler<Db> + use<>> {
    let once = fixture.once();
    let made = Consumer::statement(&once, "c", fixture.shop.source(), sql);
    quick(made.await.unwrap())
}

fn plain(n: u64) -> Message {
    Message::new(format!("m{n}"), format!("{{\"n\": {n}}}"))
}

#[tokio::test]
async fn copies_in_a_batch_and_after_it_have_no_effect() {
    let fixture = Fixture::new().await;
    for copy in 0..6 {
        for n in 1..=60 {
            // Some come for the first time late, among copies.
            if n % 6 <= copy {
                fixture.shop.send(plain(n));
            }
        }
    }
    let sent = fixture.shop.waiting() as u64;
    let first = consumer(&fixture, SEEN).await;
    let first = first.batch(11, Duration::from_millis(1));
    let second = consumer(&fixture, SEEN).await.concurrency(2);
    let counts = [first.counts(), second.counts()];
    let workers = [Running::start(first), Running::start(second)];
    fixture.wait_for_acks(sent).await;
    fixture.wait_for(60).await;
    for worker in workers {
        worker.stop().await.unwrap();
    }
    fixture.check().await;
    let sum =
        |of: fn(&pgonce_broker::ConsumerCounts) -> u64| counts.iter().map(|c| of(c)).sum::<u64>();
    assert_eq!(sum(|c| c.applied()), 60);
    assert_eq!(sum(|c| c.duplicates()), sent - 60);
}

#[tokio::test]
async fn order_is_kept_inside_a_key_and_behind_what_failed() {
    let fixture = Fixture::new().await;
    // m5 fails: what comes for its key waits behind it, also where it is alone in its batch.
    let sql = "insert into seen (consumer, id, key) select 'c', m.id, m.key from messages m \
         where 1 / (case when m.id = 'm5' and not exists (select from healed) then 0 else 1 end) = 1";
    fixture.world.see.run("create table healed ()").await;
    fixture.send(1, 200, 7);
    let running = Running::start(
        consumer(&fixture, sql)
            .await
            .batch(20, Duration::from_millis(1)),
    );
    fixture.wait_for_acks(200).await;
    let poisoned = "select count(*) = 1 from pgonce.inbox_poison where message_id = 'm5' and failure_code = '22012' \
         and behind = 27";
    fixture.world.see.wait_until(poisoned).await;
    fixture.wait_for(172).await;
    fixture.shop.send(message(201 + 4 * 7, 7));
    fixture.wait_for_acks(201).await;
    fixture
        .world
        .see
        .run("insert into healed default values")
        .await;
    assert_eq!(fixture.inbox.retry("c", None, "healed").await.unwrap(), 1);
    fixture.wait_for(201).await;
    running.stop().await.unwrap();
    fixture.check().await;
}

#[tokio::test]
async fn a_bad_message_is_poison_and_delays_none_of_the_others() {
    let fixture = Fixture::new().await;
    for n in 1..=100 {
        fixture.shop.send(plain(n));
    }
    fixture.shop.send(Message::new("m101", "no JSON"));
    fixture
        .shop
        .send(Message::new("m102", r#"{"n": "\u0000"}"#));
    let sql = "insert into seen (consumer, id) select 'c', m.id from messages m \
         where (m.payload ->> 'n')::integer / ((m.payload ->> 'n')::integer - 40) is not null";
    let consumer = consumer(&fixture, sql).await.concurrency(1);
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture.wait_for_acks(102).await;
    let poisoned = "select string_agg(message_id || ' ' || failure_code, ', ' order by message_id) = \
         'm101 not_json, m102 22P05, m40 22012' from pgonce.inbox_poison";
    fixture.world.see.wait_until(poisoned).await;
    fixture.wait_for(99).await;
    running.stop().await.unwrap();
    assert_eq!((counts.applied(), counts.poisoned()), (99, 3), "{counts:?}");
}

#[tokio::test]
async fn an_update_gets_one_message_at_a_time() {
    let fixture = Fixture::new().await;
    let see = &fixture.world.see;
    see.run("create table stock (item text primary key, qty integer); insert into stock values ('book', 1000)")
        .await;
    for n in 1..=50 {
        fixture.shop.send(plain(n));
    }
    let sql = "update stock set qty = qty - (m.payload ->> 'n')::integer from messages m where item = 'book'";
    let running = Running::start(consumer(&fixture, sql).await);
    fixture.wait_for_acks(50).await;
    running.stop().await.unwrap();
    let left = 1000 - (1..=50).sum::<i64>();
    assert_eq!(see.number("select qty from stock").await, left);
}

#[tokio::test]
async fn a_select_that_nobody_reads_is_run_for_each_message() {
    let fixture = Fixture::new().await;
    let see = &fixture.world.see;
    see.run(
        "create function apply(p_id text, p_payload jsonb, p_headers jsonb, p_type text, p_tenant text) returns void language sql as \
         $$insert into seen (consumer, id, key) values ('c', p_id, concat_ws(' ', p_payload ->> 'n', p_headers ->> 'a', p_type, p_tenant))$$",
    )
    .await;
    let rich = |n| {
        plain(n)
            .header("a", "b\0")
            .kind("paid \"x\"")
            .tenant("acme")
    };
    for n in 1..=20 {
        fixture.shop.send(rich(n));
        fixture.shop.send(rich(n));
    }
    let sql = "select apply(m.id, m.payload, m.headers, m.type, m.tenant) from messages m";
    let running = Running::start(consumer(&fixture, sql).await);
    fixture.wait_for_acks(40).await;
    running.stop().await.unwrap();
    let whole =
        "select count(*) from seen where key = substr(id, 2) || E' b\\uFFFD paid \"x\" acme'";
    assert_eq!(see.number(whole).await, 20);
    assert_eq!(see.number("select count(*) from seen").await, 20);
}

#[tokio::test]
async fn what_cannot_be_a_part_of_another_statement_is_refused_at_once() {
    let fixture = Fixture::new().await;
    for (sql, code) in [
        ("", "22023"),
        ("commit", "22023"),
        ("create table messages ()", "22023"),
        (
            "with m as (select * from messages) insert into seen (id) select id from m",
            "22023",
        ),
        ("insert into seen (id) values ('x')", "22023"),
        ("insert into seen (id) select $1 from messages", "22023"),
        (
            "insert into seen (id) select id from messages; delete from seen",
            "42601",
        ),
        (
            "insert into seen (id) select id from messages); delete from seen; --",
            "42601",
        ),
        ("insert into nowhere (id) select id from messages", "42P01"),
        (
            "insert into seen (id) select m.colour from messages m",
            "42703",
        ),
    ] {
        let made = Consumer::statement(&fixture.once(), "c", fixture.shop.source(), sql).await;
        let error = made.map(drop).unwrap_err();
        assert_eq!(error.code(), code, "{sql}: {error}");
    }
}

#[tokio::test]
async fn connections_that_are_cut_at_any_moment_part_no_effect_from_its_marker() {
    let fixture = Fixture::new().await;
    let running = Running::start(
        consumer(&fixture, SEEN)
            .await
            .batch(10, Duration::from_millis(1)),
    );
    for round in 0..8 {
        for n in round * 50 + 1..=round * 50 + 50 {
            fixture.shop.send(plain(n));
        }
        let others = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid()";
        fixture.world.see.number(others).await;
    }
    fixture.wait_for(400).await;
    fixture.wait_for_acks(400).await;
    running.stop().await.unwrap();
    fixture.check().await;
    let parted = "select count(*) from seen s full join pgonce.inbox_marker m on m.message_id = s.id and m.xmin = s.xmin \
         where s.id is null or m.message_id is null";
    assert_eq!(fixture.world.see.number(parted).await, 0);
}

#[tokio::test]
async fn a_statement_that_hangs_is_ended_in_the_database() {
    let fixture = Fixture::new().await;
    for n in 1..=8 {
        fixture.shop.send(plain(n));
    }
    let sql = "insert into seen (consumer, id) select 'c', m.id from messages m \
         where pg_sleep(case when m.id = 'm3' then 3600 else 0 end) is not null";
    let consumer = consumer(&fixture, sql).await;
    let running = Running::start(consumer.handler_timeout(Duration::from_millis(150)));
    let poisoned = "select count(*) = 1 from pgonce.inbox_poison where message_id = 'm3' \
         and failure_code in ('handler_timeout', '57014') and attempts = 3";
    fixture.world.see.wait_until(poisoned).await;
    fixture.wait_for(7).await;
    running.stop().await.unwrap();
    let asleep = "select count(*) = 0 from pg_stat_activity where datname = current_database() \
         and state = 'active' and wait_event = 'PgSleep'";
    fixture.world.see.wait_until(asleep).await;
}

#[tokio::test]
async fn a_consumer_with_sqlx_applies_each_once() {
    let fixture = Fixture::new().await;
    for n in 1..=30 {
        fixture.shop.send(plain(n % 15));
    }
    let once: Once =
        pgonce::Once::builder(pgonce::driver::sqlx::Sqlx::connect(&fixture.world.url(), 4))
            .build()
            .unwrap();
    let made = Consumer::statement(&once, "c", fixture.shop.source(), SEEN);
    let running = Running::start(quick(made.await.unwrap()));
    fixture.wait_for_acks(30).await;
    fixture.wait_for(15).await;
    running.stop().await.unwrap();
}
