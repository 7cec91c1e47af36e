//! What replication applies fires no triggers: the merge of another region's facts does what they would. And a home moves only when
//! nothing is left behind that the next one would repeat.

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

const LEFT: &str = "select coalesce(pgonce._end_moved_leases(), 'nothing')";

/// A leased claim of this fence; a call of it that ended so; and the end of its attempt.
async fn calls(see: &Observer, key: &str, outcome: &str, end: &str) {
    let fence = format!("select fence from pgonce.claim('s', '{key}', '\\x01', '1 minute')");
    let fence = see.number(&fence).await;
    see.run(&format!(
        "select from pgonce.external_send('s', '{key}', {fence}, 'charge', 'bank', '\\x01', p_decides => true)"
    ))
    .await;
    see.run(&format!(
        "select from pgonce.external_record('s', '{key}', {fence}, 'charge', '{outcome}')"
    ))
    .await;
    see.run(&end.replace("FENCE", &fence.to_string())).await;
}

/// The home of everything is this region, and begins to move.
async fn moves(see: &Observer) {
    see.run("update pgonce.region_rule set mode = 'home', home = 'eu'")
        .await;
    assert_eq!(see.text(LEFT).await, "nothing");
    see.run("select pgonce.define_region_rule('*', 'home', 'us')")
        .await;
}

#[tokio::test]
async fn a_home_does_not_move_away_from_calls_to_providers_and_they_can_be_settled() {
    let retryable =
        |key: &str| format!("select pgonce.fail('s', '{key}', '\\x01', FENCE, true, 'x', 'm')");
    let refused = "select pgonce.fail('s', 'k', '\\x01', FENCE, false, 'x', 'm')";
    let freed = "select pgonce.release('s', 'k', FENCE, p_forget => true)";
    // That it failed is said by force only: its call happened.
    let intervene = |act: &str| {
        let force = act == "fail";
        format!(
            "select pgonce.intervene('{act}', 's', 'k', 'test', {force}, p_answer => '1', p_code => 'no')"
        )
    };
    let observe = |outcome: &str| {
        format!(
            "select pgonce.external_observe('bank', '{outcome}', effect_key, p_answer => '1') from pgonce.external_call where key = 'k'"
        )
    };
    let settle = |outcome: &str| {
        format!(
            "select pgonce.external_settle(effect_key, '{outcome}', 'test', true, p_answer => '1') from pgonce.external_call where key = 'k'"
        )
    };
    let retryable_k = retryable("k");
    for (outcome, end, act) in [
        ("confirmed", &*retryable_k, intervene("settle")),
        ("confirmed", &retryable_k, intervene("fail")),
        ("unknown", &retryable_k, observe("confirmed")),
        ("unknown", &retryable_k, observe("failed")),
        ("unknown", &retryable_k, settle("failed")),
        ("unknown", &retryable_k, settle("resend")),
        ("unknown", refused, observe("confirmed")),
        ("confirmed", freed, settle("failed")),
    ] {
        let world = eu().await;
        let see = &world.see;
        calls(see, "k", outcome, end).await;
        // It did not reach the provider: nobody waits for it.
        calls(see, "other", "not_sent", &retryable("other")).await;
        moves(see).await;
        let left = see.text(LEFT).await;
        assert!(left.contains("pgonce external list"), "{end} {act}: {left}");
        let claim = "select pgonce.claim('s', 'new', '\\x01')";
        assert_eq!(see.code(claim).await, "P4110");
        see.run(&act).await;
        assert_eq!(see.text(LEFT).await, "nothing", "{end} {act}");
        // From here on it may be at work elsewhere.
        for key in ["k", "other"] {
            let late = format!(
                "update pgonce.intent set status = 'processing', expires_at = null, fence = fence + 2, lease_until = pgonce.now() + interval '1 hour' \
                 where key = '{key}' and status = 'failed_retryable'"
            );
            let found = format!(
                "select count(*) from pgonce.intent where key = '{key}' and status = 'failed_retryable'"
            );
            if see.number(&found).await == 1 {
                assert_eq!(see.code(&late).await, "P4110", "{key} {act}");
            }
        }
    }
}

#[tokio::test]
async fn a_command_that_has_called_a_provider_goes_on_where_it_did_until_it_is_finished() {
    let claim = "select outcome || ' ' || fence from pgonce.claim('s', 'k', '\\x01', '1 minute')";
    let retryable = "select pgonce.fail('s', 'k', '\\x01', FENCE, true, 'x', 'm')";
    for leaves in [false, true] {
        let world = eu().await;
        let see = &world.see;
        calls(see, "k", "confirmed", retryable).await;
        moves(see).await;
        if leaves {
            see.run("select pgonce._activate_region(1::smallint, 'leaving')")
                .await;
        }
        let refused = if leaves { "P4111" } else { "P4110" };
        let other = "select pgonce.claim('s', 'new', '\\x01')";
        assert_eq!(see.code(other).await, refused);
        let claimed = see.text(claim).await;
        let fence = claimed.strip_prefix("retry ").unwrap();
        let send = format!(
            "select action from pgonce.external_send('s', 'k', {fence}, 'charge', 'bank', '\\x01')"
        );
        assert_eq!(see.text(&send).await, "done");
        let left = see.text(LEFT).await;
        assert!(left.contains("held under a lease"), "{left}");
        see.run(&format!(
            "select pgonce.succeed('s', 'k', '\\x01', {fence}, '1')"
        ))
        .await;
        assert_eq!(see.text(LEFT).await, "nothing");
    }
    // It comes back, and others may have done it meanwhile.
    let world = eu().await;
    let see = &world.see;
    calls(see, "k", "confirmed", retryable).await;
    moves(see).await;
    see.run(
        "select pgonce.region_join(1::smallint, 'eu'); select pgonce._activate_region(1::smallint)",
    )
    .await;
    assert_eq!(see.code(claim).await, "P4110");
}

/// Its row was claimed once more, and that failed: recovery and operators settle it where it is.
#[tokio::test]
async fn what_a_vanished_holder_left_is_settled_where_it_is_also_when_its_home_moves() {
    let take = "select count(*) from pgonce._take_stale(10, 'test', '1 minute')";
    for act in ["settle", "fail", "recovery"] {
        let world = eu().await;
        let see = &world.see;
        see.run("select pgonce.claim('s', 'k', '\\x01', '1 minute'); select pgonce._move_clock('1 hour')")
            .await;
        let fence = see
            .number("select fence from pgonce.claim('s', 'k', '\\x01', '1 minute')")
            .await;
        see.run(&format!(
            "select pgonce.fail('s', 'k', '\\x01', {fence}, true, 'x', 'm')"
        ))
        .await;
        moves(see).await;
        let left = see.text(LEFT).await;
        assert!(left.contains("pgonce stuck"), "{left}");
        if act == "recovery" {
            see.run("select pgonce.define_scope('s', '1 day', p_stale => 'refuse')")
                .await;
            assert_eq!(see.number(take).await, 1);
            see.run("select pgonce._decide_stale('s', 'k', fence, null, false, null, null, null, null, '', null) from pgonce.intent")
                .await;
        } else {
            see.run(&format!("select pgonce.intervene('{act}', 's', 'k', 'test', p_answer => '1', p_code => 'no')"))
                .await;
        }
        assert_eq!(see.text(LEFT).await, "nothing", "{act}");
        let facts = "select count(*) from pgonce.region_fact where kind = 'finished'";
        assert_eq!(see.number(facts).await, 1, "{act}");
    }
}
