//! A handler that is one statement: what it reads are the messages whose markers it makes.

use std::time::Duration;

use pgonce::inbox::{Message, Statement};
use pgonce_tests::{TestDriver, World, for_each_driver};

const EFFECT: &str =
    "insert into effects select m.tenant, 'inbox', m.id from messages m -- each once";
const TOGETHER: &str = "select count(*) from effects e join pgonce.inbox_marker m on m.message_id = e.key and m.xmin = e.xmin";

fn message(n: u64) -> Message {
    Message::new(format!("m{n}"), format!("{{\"n\": {n}}}"))
}

async fn markers_and_effect_are_one_statement<D: TestDriver>(world: World<D>) {
    let (inbox, effect) = (world.once.inbox(), Statement::new(EFFECT).unwrap());
    inbox.check(&effect).await.unwrap();
    let apply = async |messages: &[Message]| {
        let messages: Vec<&Message> = messages.iter().collect();
        let wait = Duration::from_secs(20);
        let applied = inbox.apply_at_once(&effect, "c", "shop", &messages, wait);
        applied.await.unwrap()
    };
    assert_eq!(apply(&[message(2), message(1)]).await, [true, true]);
    let some = [message(2), message(3), message(1)];
    assert_eq!(apply(&some).await, [false, true, false]);
    // The same id with another payload, the same id twice, two of one key, two tenants.
    let other = [Message::new("m3", "{}"), message(4)];
    assert_eq!(apply(&other).await, [false, true]);
    assert_eq!(apply(&[message(5), message(5)]).await, [false, false]);
    let of_key = |n, key: &str| message(n).key(key);
    assert_eq!(apply(&[of_key(6, "k"), of_key(7, "k")]).await, [false; 2]);
    assert_eq!(apply(&[of_key(6, "k"), of_key(7, "l")]).await, [true; 2]);
    assert_eq!(
        apply(&[message(8), message(9).tenant("acme")]).await,
        [false; 2]
    );
    assert_eq!(apply(&[message(1).tenant("acme")]).await, [true]);
    assert_eq!(world.see.number(TOGETHER).await, 7);
    assert_eq!(world.see.number("select count(*) from effects").await, 7);
    // After nothing but copies a look-up goes first.
    assert_eq!(apply(&[message(1)]).await, [false]);
    assert_eq!(apply(&[message(10)]).await, [false]);
}

async fn a_key_with_a_stored_message_that_is_not_done_holds_back_the_next<D: TestDriver>(
    world: World<D>,
) {
    let store = "select pgonce.store_message('c', 'shop', 'm1', '{}', p_key => 'k')";
    world.see.run(store).await;
    let (inbox, effect) = (world.once.inbox(), Statement::new(EFFECT).unwrap());
    let wait = Duration::from_secs(20);
    let (blocked, free) = (message(2).key("k"), message(3).key("l"));
    for (message, applied) in [(&blocked, false), (&free, true)] {
        let one = [message];
        let done = inbox.apply_at_once(&effect, "c", "shop", &one, wait);
        assert_eq!(done.await.unwrap(), [applied]);
    }
    let marked = "select count(*) from pgonce.inbox_marker where message_id = 'm2'";
    assert_eq!(world.see.number(marked).await, 0);
}

/// The statement has its snapshot, and waits; what its key waits for is done meanwhile.
async fn what_was_applied_of_a_key_since_the_statement_began_is_seen_by_the_next<D: TestDriver>(
    world: World<D>,
) {
    world
        .see
        .run(
            "alter function pgonce._insert_new_markers rename to _insert_at_last; \
             create function pgonce._insert_new_markers(text, text, text[], bytea[], integer[], text[], bigint, text) \
             returns setof text language plpgsql volatile security definer as $$ begin \
                 perform pg_advisory_xact_lock(77); \
                 return query select * from pgonce._insert_at_last($1, $2, $3, $4, $5, $6, $7, $8); \
             end $$; \
             select pgonce.store_message('c', 'shop', 'm1', '{}', p_key => 'k')",
        )
        .await;
    let count = "insert into effects select '', 'inbox', (select count(*) from effects)::text from messages m";
    let (inbox, effect) = (world.once.inbox(), Statement::new(count).unwrap());
    let (next, wait) = (message(2).key("k"), Duration::from_secs(60));
    let one = [&next];
    let apply = inbox.apply_at_once(&effect, "c", "shop", &one, wait);
    let meanwhile = async {
        let waits = "select count(*) = 1 from pg_locks where locktype = 'advisory' and objid = 77 and not granted \
             and database = (select oid from pg_database where datname = current_database())";
        world.see.wait_until(waits).await;
        for done in [
            "insert into effects values ('', 'inbox', '0')",
            "select pgonce.finish_messages('c', (select jsonb_agg(c) from pgonce.claim_messages('c', 'w', '1 hour', 1) c))",
            "select pg_advisory_unlock(77)",
        ] {
            world.see.run(done).await;
        }
    };
    world.see.run("select pg_advisory_lock(77)").await;
    let (applied, ()) = tokio::join!(apply, meanwhile);
    assert_eq!(applied.unwrap(), [false]);
    let apply = inbox.apply_at_once(&effect, "c", "shop", &one, wait);
    assert_eq!(apply.await.unwrap(), [true]);
    let seen = "select string_agg(key, ' ' order by key) from effects";
    assert_eq!(world.see.text(seen).await, "0 1");
}

async fn a_merge_is_refused_at_once_before_postgresql_17<D: TestDriver>(world: World<D>) {
    let merge = "merge into effects e using messages m on e.key = m.id \
         when not matched then insert values (m.tenant, 'inbox', m.id)";
    let (inbox, effect) = (world.once.inbox(), Statement::new(merge).unwrap());
    let checked = inbox.check(&effect).await;
    let version = "select current_setting('server_version_num')::bigint";
    if world.see.number(version).await < 170_000 {
        assert_eq!(checked.unwrap_err().code(), "0A000");
        return;
    }
    checked.unwrap();
    let (message, wait) = (message(1), Duration::from_secs(20));
    for applied in [true, false] {
        let one = [&message];
        let done = inbox.apply_at_once(&effect, "c", "shop", &one, wait);
        assert_eq!(done.await.unwrap(), [applied]);
    }
    assert_eq!(world.see.number(TOGETHER).await, 1);
}

async fn an_effect_that_fails_leaves_no_marker<D: TestDriver>(world: World<D>) {
    let fails = "insert into effects select '', 'inbox', (1 / (m.payload ->> 'n')::integer)::text from messages m";
    let (inbox, effect) = (world.once.inbox(), Statement::new(fails).unwrap());
    let wait = Duration::from_secs(20);
    let messages = [message(1), message(0)];
    let messages: Vec<&Message> = messages.iter().collect();
    let applied = inbox.apply_at_once(&effect, "c", "shop", &messages, wait);
    assert_eq!(applied.await.unwrap_err().code(), "22012");
    let marked = "select count(*) from pgonce.inbox_marker";
    assert_eq!(world.see.number(marked).await, 0);
}

async fn a_statement_without_an_end_is_cancelled_in_the_database<D: TestDriver>(world: World<D>) {
    let sleeps = "select pg_sleep(3600) from messages m";
    let (inbox, effect) = (world.once.inbox(), Statement::new(sleeps).unwrap());
    let (message, wait) = (message(1), Duration::from_secs(3));
    let one = [&message];
    let applied = inbox.apply_at_once(&effect, "c", "shop", &one, wait);
    assert!(matches!(applied.await, Err(pgonce::Error::Uncertain(_))));
    let asleep = "select count(*) = 0 from pg_stat_activity where datname = current_database() \
         and state = 'active' and wait_event = 'PgSleep'";
    world.see.wait_until(asleep).await;
    let marked = "select count(*) from pgonce.inbox_marker";
    assert_eq!(world.see.number(marked).await, 0);
}

for_each_driver!(
    markers_and_effect_are_one_statement,
    a_key_with_a_stored_message_that_is_not_done_holds_back_the_next,
    what_was_applied_of_a_key_since_the_statement_began_is_seen_by_the_next,
    a_merge_is_refused_at_once_before_postgresql_17,
    an_effect_that_fails_leaves_no_marker,
    a_statement_without_an_end_is_cancelled_in_the_database,
);
