//! Handlers, connections and servers that fail: nothing is lost, nothing happens twice, nothing spins.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Message, Tx};
use pgonce::migrate::Migrator;
use pgonce::{Error, Failure, Once};
use pgonce_broker::Consumer;
use pgonce_broker::sources::Channel;
use pgonce_testkit::{shared, wait_until};
use pgonce_tests::{Observer, TestDriver as _};

use super::fixture::{DEADLINE, Db, Fixture, Running, Witness, message, quick};

#[tokio::test]
async fn a_forced_error_leaves_neither_mark_nor_effect() {
    let fixture = Fixture::new().await;
    fixture.witness.script(|_| Err(Error::work("no")));
    fixture.send(1, 1, 1);
    let running = fixture.run();
    let poisoned = "select count(*) = 1 from pgonce.inbox_poison where attempts = 3 and failure_message = 'no'";
    fixture.world.see.wait_until(poisoned).await;
    running.stop().await.unwrap();
    let see = &fixture.world.see;
    assert_eq!(see.number("select count(*) from seen").await, 0);
    // The one mark there is says that it is stored.
    assert_eq!(
        see.number("select count(*) from pgonce.inbox_marker").await,
        1
    );
    let payload = "select convert_from(payload, 'UTF8') from pgonce.inbox_poison";
    assert_eq!(see.text(payload).await, "{\"n\": 1}");
}

#[tokio::test]
async fn a_transient_failure_is_retried_its_key_waits_and_the_others_flow() {
    let fixture = Fixture::new().await;
    let left = Arc::new(AtomicU64::new(2));
    let script = left.clone();
    fixture.witness.script(move |id| {
        let fails = id == "m5"
            && script
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok();
        if fails {
            Err(Error::work("later"))
        } else {
            Ok(())
        }
    });
    fixture.send(1, 100, 5);
    let running = fixture.run();
    fixture.wait_for(100).await;
    fixture.wait_for_acks(100).await;
    running.stop().await.unwrap();
    fixture.check().await;
    assert_eq!(left.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_failing_batch_loses_none_of_the_others() {
    let fixture = Fixture::new().await;
    fixture.witness.script(|id| match id {
        "m17" | "m60" => Err(Failure::permanent("no", "never").into()),
        "m40" => panic!("the test's handler panics"),
        _ => Ok(()),
    });
    for n in 1..=100 {
        fixture.shop.send(Message::new(format!("m{n}"), "{}"));
    }
    let consumer = fixture.consumer().concurrency(1);
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture.wait_for_acks(100).await;
    let poisoned = "select count(*) = 3 from pgonce.inbox_poison";
    fixture.world.see.wait_until(poisoned).await;
    running.stop().await.unwrap();
    fixture.wait_for(97).await;
    // The one that failed is known: each is taken out at the first try.
    assert_eq!(counts.splits(), 3, "{counts:?}");
    let panicked = "select failure_message from pgonce.inbox_poison where message_id = 'm40'";
    assert!(fixture.world.see.text(panicked).await.contains("panics"));
}

#[tokio::test]
async fn a_retry_or_a_skip_lets_the_key_move_again_in_order() {
    let fixture = Fixture::new().await;
    fixture.witness.script(|id| match id {
        "m2" | "m4" => Err(Failure::permanent("no", "never").into()),
        _ => Ok(()),
    });
    fixture.send(1, 10, 1);
    let running = fixture.run();
    fixture.wait_for_acks(10).await;
    let poisoned = "select count(*) = 1 from pgonce.inbox_poison where behind = 8";
    fixture.world.see.wait_until(poisoned).await;
    let first = fixture.inbox.poison("c", 10).await.unwrap()[0].seq;
    assert!(fixture.inbox.skip("c", first, "test").await.unwrap());
    let next = "select count(*) = 1 from pgonce.inbox_poison where message_id = 'm4'";
    fixture.world.see.wait_until(next).await;
    fixture.witness.heal();
    assert_eq!(fixture.inbox.retry("c", None, "healed").await.unwrap(), 1);
    // What comes meanwhile queues up behind.
    fixture.send(11, 15, 1);
    fixture.wait_for(14).await;
    running.stop().await.unwrap();
    fixture.check().await;
    let acts = "select string_agg(act, ',' order by number) from pgonce.operator_act where scope = 'inbox c' and key <> '*'";
    assert_eq!(fixture.world.see.text(acts).await, "skip,retry");
}

#[tokio::test]
async fn cut_connections_are_survived() {
    let fixture = Fixture::new().await;
    let running = fixture.run();
    for round in 0..5 {
        fixture.send(round * 40 + 1, round * 40 + 40, 6);
        let others = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid()";
        fixture.world.see.number(others).await;
    }
    fixture.wait_for(200).await;
    fixture.wait_for_acks(200).await;
    running.stop().await.unwrap();
    fixture.check().await;
}

#[tokio::test]
async fn a_handler_cannot_end_its_transaction_by_hand() {
    let fixture = Fixture::new().await;
    fixture.send(1, 1, 1);
    let handler = |mut tx: Tx<Db>, _: Arc<Message>| async move {
        tx.conn().batch_execute("commit").await?;
        Ok(())
    };
    let consumer = Consumer::new(&fixture.once(), "c", fixture.shop.source(), handler);
    let running = Running::start(quick(consumer));
    // Its mark is committed, so it is not stored as one that failed; it is reported, and acknowledged.
    fixture.wait_for_acks(1).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn an_error_that_the_handler_swallowed_is_not_taken_for_success() {
    let fixture = Fixture::new().await;
    fixture.send(1, 3, 3);
    let handler = |mut tx: Tx<Db>, message: Arc<Message>| async move {
        if message.id == "m2" {
            let _ = tx.conn().batch_execute("select 1/0").await;
            return Ok(());
        }
        let sql = "insert into seen (consumer, id) values ('c', $1)";
        tx.conn().execute(sql, &[&message.id]).await?;
        Ok(())
    };
    let consumer = Consumer::new(&fixture.once(), "c", fixture.shop.source(), handler);
    let running = Running::start(quick(consumer));
    let poisoned = "select count(*) = 1 from pgonce.inbox_poison where message_id = 'm2' and failure_code = '25P02'";
    fixture.world.see.wait_until(poisoned).await;
    fixture.wait_for(2).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_vanishes_leaves_its_stored_messages_to_the_next_and_not_for_ever() {
    let fixture = Fixture::new().await;
    let see = &fixture.world.see;
    see.run("select pgonce.store_message('c', 'shop', 'm1', '{}')")
        .await;
    for attempt in 1..=3 {
        let claimed = fixture
            .inbox
            .claim("c", "vanishes", Duration::from_secs(10), 5)
            .await
            .unwrap();
        assert_eq!((claimed.len(), claimed[0].attempts), (1, attempt));
        see.run("select pgonce._move_clock('11 s')").await;
    }
    let running = fixture.run();
    let poisoned = "select count(*) = 1 from pgonce.inbox_poison where failure_code = 'abandoned'";
    see.wait_until(poisoned).await;
    running.stop().await.unwrap();
    assert_eq!(see.number("select count(*) from seen").await, 0);
}

#[tokio::test]
async fn a_consumer_without_rights_ends_with_a_reason() {
    let fixture = Fixture::new().await;
    let see = &fixture.world.see;
    let role = format!("stranger_{}", uuid::Uuid::new_v4().simple());
    see.run(&format!("create role {role} login")).await;
    let url = fixture
        .world
        .url()
        .replace("postgres@", &format!("{role}@"));
    let once = fixture.world.another_at(&url, 2, |b| b);
    let consumer = Consumer::new(&once, "c", fixture.shop.source(), fixture.witness.clone());
    let ended = Running::start(consumer).ended().await.unwrap_err();
    assert_eq!(ended.code(), "42501");
}

#[tokio::test]
async fn lag_is_known_where_the_source_says_when_it_was_sent() {
    let fixture = Fixture::new().await;
    let mut late = message(1, 1);
    late.sent_at = Some(std::time::SystemTime::now() - Duration::from_secs(30));
    fixture.shop.send(late);
    let consumer = fixture.consumer();
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture.wait_for(1).await;
    fixture
        .wait("the lag", || async {
            counts.lag() >= Duration::from_secs(30)
        })
        .await;
    assert!(counts.lag() < DEADLINE * 2);
    running.stop().await.unwrap();
}

/// Errors that nobody knows, a database that lets nobody in, and one that has another name: no message is blamed, and
/// the consumer goes on when they are over.
#[tokio::test]
async fn no_error_of_the_database_that_may_go_away_ends_a_consumer_or_blames_a_message() {
    let fixture = Fixture::new().await;
    let (url, database) = (fixture.world.url(), fixture.world.database().to_owned());
    let admin = Observer::connect(&url.replace(&format!("/{database}"), "/postgres")).await;
    let consumer = fixture.consumer();
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture.send(1, 5, 5);
    fixture.wait_for(5).await;
    let more_errors = async || {
        let before = counts.database_errors();
        wait_until("errors", DEADLINE, || async {
            counts.database_errors() > before + 4
        })
        .await
        .unwrap();
    };
    let see = &fixture.world.see;
    see.run(
        "create function strange() returns trigger language plpgsql as $$ begin raise exception 'strange' using errcode = 'XX123'; end $$; \
         create trigger strange before insert on pgonce.inbox_marker for each row execute function strange()",
    )
    .await;
    fixture.send(6, 10, 5);
    more_errors().await;
    see.run("drop trigger strange on pgonce.inbox_marker").await;
    fixture.wait_for(10).await;
    close(&admin, &database).await;
    fixture.send(11, 15, 5);
    more_errors().await;
    let away = format!("alter database {database} rename to {database}_away");
    admin.run(&away).await;
    more_errors().await;
    let back = format!("alter database {database}_away rename to {database}");
    admin.run(&back).await;
    admin
        .run(&format!("alter database {database} allow_connections true"))
        .await;
    let see = Observer::connect(&url).await;
    see.wait_until("select count(distinct id) = 15 and count(*) = 15 from seen")
        .await;
    assert_eq!(
        see.number("select count(*) from pgonce.inbox_poison").await,
        0
    );
    running.stop().await.unwrap();
}

/// Nothing is known of its role yet: it asks until it is let in.
#[tokio::test]
async fn a_consumer_that_starts_before_its_database_lets_anybody_in_waits() {
    let fixture = Fixture::new().await;
    let (url, database) = (fixture.world.url(), fixture.world.database().to_owned());
    let admin = Observer::connect(&url.replace(&format!("/{database}"), "/postgres")).await;
    let consumer = fixture.consumer();
    close(&admin, &database).await;
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture.send(1, 5, 5);
    wait_until("errors", DEADLINE, || async {
        counts.database_errors() > 2
    })
    .await
    .unwrap();
    admin
        .run(&format!("alter database {database} allow_connections true"))
        .await;
    let see = Observer::connect(&url).await;
    see.wait_until("select count(distinct id) = 5 and count(*) = 5 from seen")
        .await;
    running.stop().await.unwrap();
}

/// Names and reasons come from messages and handlers: one that the server's encoding lacks stops nobody else.
#[tokio::test]
async fn what_the_server_cannot_write_down_is_kept_without_it_and_the_others_flow() {
    let server = shared(None).await.unwrap();
    let see = Observer::connect(&server.url()).await;
    see.run("create database consumer_in_latin1 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0").await;
    let url = server.url_for("consumer_in_latin1");
    let migrator = Migrator::new(TokioPostgres::connect(&url, 1));
    migrator.up().await.unwrap();
    let inside = Observer::connect(&url).await;
    inside
        .run("create table seen (consumer text, id text, key text)")
        .await;
    let once = Once::tokio_postgres(TokioPostgres::connect(&url, 6).pool().clone());
    let shop = Channel::new("shop");
    let witness = Witness::of("c");
    witness.script(|id| match id {
        "fails" | "typed" => Err(Failure::permanent("nein", "\u{6f22} is no letter here").into()),
        _ => Ok(()),
    });
    for n in 1..=5 {
        shop.send(message(n, 2));
    }
    for bad in [
        message(0, 1).key("\u{6f22}"),
        Message::new("\u{6f22}1", "{}").key("behind"),
        Message::new("\u{6f22}2", "{}"),
        Message::new("fails", "{}"),
        Message::new("typed", "{}").kind("\u{6f22}").key("ordered"),
        // Its key waits.
        Message::new("waits", "{}").key("ordered"),
    ] {
        shop.send(bad.clone());
        shop.send(bad);
    }
    for n in 6..=20 {
        shop.send(message(n, 5));
    }
    let consumer = Consumer::new(&once, "c", shop.source(), witness);
    let running = Running::start(quick(consumer).concurrency(1));
    inside
        .wait_until("select count(distinct id) = 20 from seen")
        .await;
    wait_until("acknowledgements", DEADLINE, || async {
        shop.acked() == 32
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
    assert_eq!(inside.number("select count(*) from seen").await, 20);
    let kept = "select string_agg(concat_ws(' ', case when message_id ~ '^without-id:' then 'unnamed' else message_id end, \
         key, type, failure_code, failure_message like '%: ? is no letter here%'), ', ' order by message_id, key) \
         from pgonce.inbox_message where status = 'failed_final'";
    assert_eq!(
        inside.text(kept).await,
        "fails nein t, m0 22P05 f, typed ordered 22P05 f, unnamed behind 22P05 f, unnamed 22P05 f"
    );
    let behind = "select behind from pgonce.inbox_poison where message_id = 'typed'";
    assert_eq!(inside.number(behind).await, 1);
    drop((inside, migrator, once));
    see.run("drop database consumer_in_latin1 with (force)")
        .await;
}

/// The limits of names are counted in the server's encoding, in which some letters have more bytes than in UTF-8.
#[tokio::test]
async fn names_that_are_too_long_for_the_server_stop_nobody_else() {
    let server = shared(None).await.unwrap();
    let see = Observer::connect(&server.url()).await;
    see.run("create database consumer_in_euc_jp encoding 'EUC_JP' lc_collate 'C' lc_ctype 'C' template template0").await;
    let url = server.url_for("consumer_in_euc_jp");
    let migrator = Migrator::new(TokioPostgres::connect(&url, 1));
    migrator.up().await.unwrap();
    let inside = Observer::connect(&url).await;
    inside
        .run("create table seen (consumer text, id text, key text)")
        .await;
    let once = Once::tokio_postgres(TokioPostgres::connect(&url, 6).pool().clone());
    let shop = Channel::new("shop");
    let long = "\u{e9}".repeat(127);
    for n in 1..=5 {
        shop.send(message(n, 2));
    }
    for bad in [
        Message::new(long.as_str(), "{}"),
        Message::new(long.replace('\u{e9}', "\u{e8}"), "{}").key("behind"),
        Message::new("tenant", "{}").tenant(long.as_str()),
    ] {
        shop.send(bad.clone());
        shop.send(bad);
    }
    for n in 6..=20 {
        shop.send(message(n, 5));
    }
    let consumer = Consumer::new(&once, "c", shop.source(), Witness::of("c"));
    let running = Running::start(quick(consumer).concurrency(1));
    wait_until("acknowledgements", DEADLINE, || async {
        shop.acked() == 26
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
    assert_eq!(inside.number("select count(*) from seen").await, 20);
    let kept = "select string_agg(concat_ws(' ', left(message_id, 11), key, failure_code), ', ' order by key) \
         from pgonce.inbox_message where status = 'failed_final'";
    assert_eq!(
        inside.text(kept).await,
        "without-id: behind 22023, without-id: 22023, without-id: 22023"
    );
    drop((inside, migrator, once));
    see.run("drop database consumer_in_euc_jp with (force)")
        .await;
}

async fn close(admin: &Observer, database: &str) {
    for statement in [
        format!("alter database {database} allow_connections false"),
        format!(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '{database}'"
        ),
    ] {
        admin.run(&statement).await;
    }
}
