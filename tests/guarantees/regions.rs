//! What replication applies fires no triggers: the merge of another region's facts does what they would.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{Observer, World};

/// This database is region eu, and knows of us. Both may work on everything.
async fn eu() -> World<TokioPostgres> {
    let world = World::<TokioPostgres>::new().await;
    world
        .see
        .run("select pgonce.region_join(1::smallint, 'eu'), pgonce._add_region(2::smallint, 'us', ''); \
              insert into pgonce.region_rule (scope, mode, home) values ('*', 'local', 'key'); \
              select pgonce._activate_region(1::smallint), pgonce._activate_region(2::smallint)")
        .await;
    world
}

/// Fails once, so that the key has a history.
async fn fails(see: &Observer, key: &str) {
    see.run(&format!(
        "select pgonce.fail('s', '{key}', '\\x01', 1, true, 'x', 'm')"
    ))
    .await;
}

async fn succeeds(see: &Observer, key: &str) {
    see.run(&format!(
        "begin; do $$ begin perform pgonce.succeed('s', '{key}', '\\x01', (pgonce.claim('s', '{key}', '\\x01')).fence, '1'); end $$; commit"
    ))
    .await;
}

/// A fact of us arrives, as replication applies it.
async fn arrives(see: &Observer, fact: &str) {
    see.run(&format!(
        "begin; set local session_replication_role = replica; \
         insert into pgonce.region_fact (region, epoch, seq, kind, tenant, scope, key, at, expires_at, record) {fact}; commit"
    ))
    .await;
    let pending = "select coalesce(string_agg(reason, ', '), '') from pgonce.region_pending";
    assert_eq!(see.text(pending).await, "");
}

const HISTORY: &str = "select count(*) from pgonce.attempt";
const STATE: &str = "select state from pgonce._replay_state()";

#[tokio::test]
async fn an_eviction_that_arrives_takes_the_history_and_what_caches_know() {
    let world = eu().await;
    let see = &world.see;
    fails(see, "k").await;
    succeeds(see, "k").await;
    assert_eq!(see.number(HISTORY).await, 1);
    let before = see.text(STATE).await;
    arrives(
        see,
        "select 2, 1, 1, 'evicted', '', 's', 'k', pgonce.now(), null, null",
    )
    .await;
    assert_eq!(see.number("select count(*) from pgonce.intent").await, 0);
    assert_eq!(see.number(HISTORY).await, 0);
    assert_ne!(see.text(STATE).await, before);
    // The next life of the key is like the first.
    fails(see, "k").await;
    succeeds(see, "k").await;
    assert_eq!(see.number(HISTORY).await, 1);
}

/// The record of another region has one attempt: its purge would not look for the history of another.
#[tokio::test]
async fn an_answer_that_replaces_unfinished_work_leaves_no_history_behind() {
    let world = eu().await;
    let see = &world.see;
    fails(see, "k").await;
    see.run("select pgonce.claim('s', 'k', '\\x01', '30 s')")
        .await;
    assert_eq!(see.number(HISTORY).await, 1);
    arrives(
        see,
        "select 2, 1, 1, 'finished', '', 's', 'k', n.at, n.at + interval '1 hour', jsonb_build_object('fence', 1, 'first_at', n.at, \
         'expires_at', n.at + interval '1 hour', 'attempts', 1, 'status', 'succeeded', 'tenant', '', 'scope', 's', 'key', 'k', \
         'fingerprint', '\\x01', 'answer', 7) from (select pgonce.now() as at) n",
    )
    .await;
    assert_eq!(see.text("select answer from pgonce.intent").await, "7");
    see.run("select pgonce._move_clock('2 hours')").await;
    assert_eq!(see.number("select pgonce.purge()").await, 1);
    assert_eq!(see.number(HISTORY).await, 0);
    fails(see, "k").await;
    succeeds(see, "k").await;
}
