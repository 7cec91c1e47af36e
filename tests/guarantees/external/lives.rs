//! A key that runs again after its retention makes its effects again; what was never sent binds nobody.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{Observer, World};

use super::{status, take};

/// Sends the step of a holder; its action, and the reference that is known.
pub(super) async fn send(see: &Observer, fence: i64, request: u8) -> String {
    let sql = send_sql(fence, request);
    see.text(&format!(
        "select concat_ws(' ', s.action, s.reference) from {sql} s"
    ))
    .await
}

pub(super) fn send_sql(fence: i64, request: u8) -> String {
    format!(
        "pgonce.external_send('orders.create', 'k', {fence}, 'charge', 'bank', '\\x0{request}', p_decides => true)"
    )
}

pub(super) async fn record(see: &Observer, fence: i64, outcome: &str) -> String {
    see.text(&format!(
        "select action from pgonce.external_record('orders.create', 'k', {fence}, 'charge', {outcome})"
    ))
    .await
}

pub(super) async fn later(see: &Observer, time: &str) {
    see.run(&format!("select pgonce._move_clock('{time}')"))
        .await;
}

pub(super) fn end(function: &str, fence: i64, rest: &str) -> String {
    format!(
        "select from pgonce.{function}('orders.create', 'k', (select fingerprint from pgonce.intent where key = 'k'), {fence}, {rest})"
    )
}

fn refuse(fence: i64) -> String {
    end("fail", fence, "false, 'no', 'no'")
}

pub(super) const EFFECT: &str = "select effect_key::text from pgonce.external_call where key = 'k'";
const CALLS: &str = "select count(*) from pgonce.external_call";

#[tokio::test]
async fn a_key_that_runs_again_makes_its_effect_again_however_long_its_answer_was_kept() {
    let contract = "select pgonce.define_scope('orders.create', '1 hour')";
    for (before, function, rest) in [
        ("", "succeed", "'1', p_keep => '1 hour'"),
        ("", "fail", "false, 'no', 'no', p_keep => '1 hour'"),
        (contract, "succeed", "'1'"),
        (contract, "fail", "false, 'no', 'no'"),
    ] {
        for purge in ["", "select pgonce.purge()"] {
            let world = World::<TokioPostgres>::new().await;
            let see = &world.see;
            see.run("select pgonce.define_provider('bank', p_keys_for => '1 day')")
                .await;
            let first = take(&world.once, "k").await.fence();
            assert_eq!(send(see, first, 1).await, "send");
            let key = see.text(EFFECT).await;
            assert_eq!(record(see, first, "'confirmed', 'ch_1'").await, "done");
            see.run(before).await;
            see.run(&end(function, first, rest)).await;
            later(see, "2 hours").await;
            see.run(purge).await;
            let second = take(&world.once, "k").await.fence();
            assert_eq!(send(see, second, 1).await, "send", "{function} {purge}");
            let other = see.text(EFFECT).await;
            assert_ne!(key, other, "the provider still knows the old key");
            // In one life it stays the same, and the step is done once.
            assert_eq!(record(see, second, "'confirmed', 'ch_2'").await, "done");
            see.run(&end("fail", second, "true, 'later', 'later'"))
                .await;
            let third = take(&world.once, "k").await.fence();
            assert_eq!(send(see, third, 1).await, "done ch_2");
            assert_eq!(see.text(EFFECT).await, other);
        }
    }
}

#[tokio::test]
async fn a_key_that_was_freed_before_its_retention_was_over_keeps_what_it_did() {
    let retry = "select pgonce.intervene('retry', 'orders.create', 'k', 'test')";
    let evict = "select pgonce.intervene('evict', 'orders.create', 'k', 'test', true)";
    for freed in ["forget", retry, evict] {
        let world = World::<TokioPostgres>::new().await;
        let see = &world.see;
        let first = take(&world.once, "k").await.fence();
        assert_eq!(send(see, first, 1).await, "send");
        assert_eq!(record(see, first, "'confirmed', 'ch_1'").await, "done");
        if freed == "forget" {
            see.run(&format!(
                "select pgonce.release('orders.create', 'k', {first}, p_forget => true)"
            ))
            .await;
        } else {
            see.run(&refuse(first)).await;
            see.run(freed).await;
        }
        let second = take(&world.once, "k").await.fence();
        assert_eq!(send(see, second, 1).await, "done ch_1", "{freed}");
        let other = format!("select from {}", send_sql(second, 2));
        assert_eq!(see.code(&other).await, "P4086", "{freed}");
    }
}

/// The call's own retention begins when it is decided, the command's when it is finished.
#[tokio::test]
async fn a_key_that_was_freed_keeps_what_it_did_also_when_that_was_longer_ago_than_its_retention() {
    let retry = "select pgonce.intervene('retry', 'orders.create', 'k', 'test')";
    let evict = "select pgonce.intervene('evict', 'orders.create', 'k', 'test')";
    let again = end("fail", 0, "true, 'later', 'later'");
    for (ended, freed) in [
        (again.as_str(), evict),
        (refuse(0).as_str(), retry),
        ("select 1", "forget"),
    ] {
        let world = World::<TokioPostgres>::new().await;
        let see = &world.see;
        see.run("select pgonce.define_scope('orders.create', '1 hour')")
            .await;
        let first = take(&world.once, "k").await.fence();
        assert_eq!(send(see, first, 1).await, "send");
        assert_eq!(record(see, first, "'confirmed', 'ch_1'").await, "done");
        see.run(&format!(
            "select pgonce.heartbeat('orders.create', 'k', {first}, '1 day')"
        ))
        .await;
        later(see, "2 hours").await;
        see.run(&ended.replace(" 0,", &format!(" {first},"))).await;
        if freed == "forget" {
            see.run(&format!(
                "select pgonce.release('orders.create', 'k', {first}, p_forget => true)"
            ))
            .await;
        } else {
            see.run(freed).await;
        }
        see.run("select pgonce.purge()").await;
        later(see, "30 minutes").await;
        let second = take(&world.once, "k").await.fence();
        assert_eq!(send(see, second, 1).await, "done ch_1", "{freed}");
        // As long as the record would have been kept, and no longer.
        see.run(&format!(
            "select pgonce.release('orders.create', 'k', {second}, p_forget => true)"
        ))
        .await;
        later(see, "61 minutes").await;
        let third = take(&world.once, "k").await.fence();
        assert_eq!(send(see, third, 1).await, "send", "{freed}");
    }
}

#[tokio::test]
async fn what_may_have_happened_in_an_earlier_life_is_not_sent_again_and_ends_no_command_that_did_not_come_to_it()
 {
    for asks in [false, true] {
        let world = World::<TokioPostgres>::new().await;
        let see = &world.see;
        let first = take(&world.once, "k").await.fence();
        assert_eq!(send(see, first, 1).await, "send");
        assert_eq!(record(see, first, "'unknown'").await, "unknown");
        see.run(&refuse(first)).await;
        later(see, "8 days").await;
        see.run("select pgonce.purge()").await;
        let second = take(&world.once, "k").await.fence();
        if asks {
            assert_eq!(send(see, second, 1).await, "unknown");
        }
        see.run(&end("fail", second, "true, 'later', 'later'"))
            .await;
        let effect = see.text(EFFECT).await;
        let observe = format!(
            "select pgonce.external_observe('bank', 'confirmed', '{effect}', 'ch_1', p_answer => '1')"
        );
        assert_eq!(see.text(&observe).await, "applied");
        let command = "select status from pgonce.intent where key = 'k'";
        if asks {
            assert_eq!(see.text(command).await, "succeeded");
        } else {
            assert_eq!(see.text(command).await, "failed_retryable");
            let third = take(&world.once, "k").await.fence();
            assert_eq!(send(see, third, 1).await, "done ch_1");
        }
    }
}

/// An operator decides about a call that was reported otherwise, when its command is over.
#[tokio::test]
async fn what_an_operator_settles_of_an_earlier_life_decides_nothing_in_the_next() {
    for outcome in ["confirmed", "failed"] {
        for released in [false, true] {
            let world = World::<TokioPostgres>::new().await;
            let see = &world.see;
            see.run("select pgonce.define_scope('orders.create', '1 hour')")
                .await;
            let first = take(&world.once, "k").await.fence();
            assert_eq!(send(see, first, 1).await, "send");
            assert_eq!(record(see, first, "'confirmed', 'ch_1'").await, "done");
            let effect = see.text(EFFECT).await;
            let settle = |outcome: &str| {
                format!(
                    "select pgonce.external_settle('{effect}', '{outcome}', 'test', true, p_answer => '1')"
                )
            };
            let report = format!("select pgonce.external_observe('bank', 'failed', '{effect}')");
            if released {
                let release = format!(
                    "select pgonce.release('orders.create', 'k', {first}, p_forget => true)"
                );
                see.run(&release).await;
            } else {
                see.run(&refuse(first)).await;
            }
            later(see, "2 hours").await;
            see.run(&format!("{report}; select pgonce.purge()")).await;
            assert_eq!(see.number(CALLS).await, 1, "an operator is asked");
            assert_eq!(see.code(&settle("resend")).await, "55000");
            assert_eq!(see.text(&settle(outcome)).await, "confirmed");
            let second = take(&world.once, "k").await.fence();
            assert_eq!(send(see, second, 1).await, "send", "{outcome} {released}");
            assert_ne!(see.text(EFFECT).await, effect);
        }
    }
}

/// What stands for the life that runs still does when an operator has decided about it.
#[tokio::test]
async fn what_an_operator_settles_of_the_life_that_runs_counts_in_it() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('orders.create', '1 hour')")
        .await;
    let first = take(&world.once, "k").await.fence();
    assert_eq!(send(see, first, 1).await, "send");
    assert_eq!(record(see, first, "'confirmed', 'ch_1'").await, "done");
    see.run(&format!(
        "select pgonce.release('orders.create', 'k', {first}, p_forget => true)"
    ))
    .await;
    later(see, "59 minutes").await;
    let second = take(&world.once, "k").await.fence();
    see.run(&end("fail", second, "true, 'later', 'later'"))
        .await;
    // The call's own retention ends while its command runs.
    later(see, "2 minutes").await;
    let settle =
        "select pgonce.external_settle(effect_key, 'confirmed', 'test') from pgonce.external_call";
    assert_eq!(see.text(settle).await, "confirmed");
    let third = take(&world.once, "k").await.fence();
    assert_eq!(send(see, third, 1).await, "done ch_1");
}

#[tokio::test]
async fn a_response_that_comes_after_the_life_of_its_call_decides_nothing_in_the_next() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let first = take(&world.once, "k").await.fence();
    assert_eq!(send(see, first, 1).await, "send");
    let effect = see.text(EFFECT).await;
    see.run(&format!(
        "select pgonce.external_observe('bank', 'failed', '{effect}', p_code => 'no')"
    ))
    .await;
    see.run(&refuse(first)).await;
    later(see, "8 days").await;
    let second = take(&world.once, "k").await.fence();
    assert_eq!(send(see, second, 1).await, "send");
    let late = format!(
        "select pgonce.external_record('orders.create', 'k', {first}, 'charge', 'confirmed', 'ch_1')"
    );
    assert_eq!(see.code(&late).await, "P4012");
    assert_eq!(status(see, "k").await, "sent");
}

#[tokio::test]
async fn what_was_never_sent_binds_nobody_and_is_purged() {
    let limits = "select pgonce.define_provider('bank', p_rate => 1, p_rate_per => '1 year'); \
        select from pgonce.claim('pay', 'first', '\\x01', '1 hour') c, pgonce.external_send('pay', 'first', c.fence, 'charge', 'bank', '\\x01'); \
        select pgonce.external_settle(effect_key, 'confirmed', 'test', true) from pgonce.external_call";
    for refused in [true, false] {
        let world = World::<TokioPostgres>::new().await;
        let see = &world.see;
        if refused {
            see.run(limits).await;
        }
        let wait = async |fence: i64, request: u8| {
            if refused {
                assert_eq!(send(see, fence, request).await, "wait");
            } else {
                // The provider did not take it.
                assert_eq!(send(see, fence, request).await, "send");
                assert_eq!(record(see, fence, "'not_sent'").await, "wait");
            }
            assert_eq!(status(see, "k").await, "requested");
        };
        let first = take(&world.once, "k").await.fence();
        wait(first, 1).await;
        // Also not the command itself.
        wait(first, 2).await;
        see.run(&format!(
            "select pgonce.release('orders.create', 'k', {first}, p_forget => true)"
        ))
        .await;
        let second = take(&world.once, "k").await.fence();
        wait(second, 3).await;
        // While its command is known it stays, and then it goes.
        see.run("select pgonce.purge()").await;
        assert_eq!(status(see, "k").await, "requested");
        see.run(&refuse(second)).await;
        later(see, "8 days").await;
        see.run("select pgonce.purge(); select pgonce.purge()")
            .await;
        assert_eq!(see.number(&format!("{CALLS} where key = 'k'")).await, 0);
        let third = take(&world.once, "k").await.fence();
        wait(third, 4).await;
    }
}

#[tokio::test]
async fn what_an_operator_lets_send_again_is_purged_with_its_command() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let first = take(&world.once, "k").await.fence();
    assert_eq!(send(see, first, 1).await, "send");
    let resend = "select pgonce.external_settle(effect_key, 'resend', 'test', true) from pgonce.external_call";
    see.run(resend).await;
    see.run(&refuse(first)).await;
    see.run("select pgonce.purge()").await;
    assert_eq!(status(see, "k").await, "requested");
    later(see, "8 days").await;
    see.run("select pgonce.purge()").await;
    assert_eq!(see.number(CALLS).await, 0);
}

#[tokio::test]
async fn of_a_command_that_is_gone_no_request_and_no_response_is_kept() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('orders.create', '1 day', p_after_expiry => 'gone')")
        .await;
    let fence = take(&world.once, "k").await.fence();
    assert_eq!(send(see, fence, 1).await, "send");
    assert_eq!(
        record(see, fence, "'confirmed', 'ch_1', '\"secret\"'").await,
        "done"
    );
    see.run(&end("succeed", fence, "'1'")).await;
    see.run("select pgonce.purge()").await;
    assert_eq!(see.number(CALLS).await, 1);
    later(see, "400 days").await;
    see.run("select pgonce.purge(); select pgonce.purge()")
        .await;
    let gone = "select count(*) from pgonce.intent where gone_at is not null";
    assert_eq!(see.number(gone).await, 1);
    assert_eq!(see.number(CALLS).await, 0);
}

/// It knows its charges by our reference, and does not honour keys: what it finds must be of this run.
#[tokio::test]
async fn a_key_that_runs_again_calls_under_another_name_also_where_nothing_is_known_of_its_last_run()
 {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let first = take(&world.once, "k").await.fence();
    assert_eq!(send(see, first, 1).await, "send");
    let key = see.text(EFFECT).await;
    // The same on every attempt of a run.
    see.run("select pgonce.external_settle(effect_key, 'resend', 'test', true) from pgonce.external_call")
        .await;
    see.run(&end("fail", first, "true, 'later', 'later'")).await;
    let second = take(&world.once, "k").await.fence();
    assert_eq!(send(see, second, 1).await, "send");
    assert_eq!(see.text(EFFECT).await, key);
    see.run("delete from pgonce.external_call").await;
    see.run("set timezone = 'Asia/Tokyo'").await;
    assert_eq!(send(see, second, 1).await, "send");
    assert_eq!(see.text(EFFECT).await, key);
    assert_eq!(record(see, second, "'confirmed', 'ch_1'").await, "done");
    see.run(&refuse(second)).await;
    later(see, "9 days").await;
    see.run("select pgonce.purge(); select pgonce.purge()")
        .await;
    assert_eq!(see.number(CALLS).await, 0);
    let third = take(&world.once, "k").await.fence();
    assert_eq!(send(see, third, 1).await, "send");
    assert_ne!(see.text(EFFECT).await, key, "a look-up would find ch_1");
}

#[tokio::test]
async fn a_disputed_call_stays_until_an_operator_has_settled_it_also_when_its_key_runs_again() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let first = take(&world.once, "k").await.fence();
    assert_eq!(send(see, first, 1).await, "send");
    assert_eq!(record(see, first, "'confirmed', 'ch_1'").await, "done");
    let effect = see.text(EFFECT).await;
    let report =
        format!("select pgonce.external_observe('bank', 'confirmed', '{effect}', 'ch_2', 'evt_1')");
    assert_eq!(see.text(&report).await, "disputed");
    see.run(&refuse(first)).await;
    later(see, "8 days").await;
    let second = take(&world.once, "k").await.fence();
    assert_eq!(send(see, second, 1).await, "send");
    let disputed = "select effect_key::text from pgonce.external_calls where disputed is not null";
    assert_eq!(see.text(disputed).await, effect);
    // It is of no run any more.
    assert_eq!(record(see, second, "'confirmed', 'ch_3'").await, "done");
    assert_eq!(send(see, second, 1).await, "done ch_3");
    let settle =
        format!("select pgonce.external_settle('{effect}', 'confirmed', 'ch_2 is refunded')");
    assert_eq!(see.text(&settle).await, "confirmed");
    see.run(&refuse(second)).await;
    later(see, "8 days").await;
    see.run("select pgonce.purge(); select pgonce.purge()")
        .await;
    assert_eq!(see.number(CALLS).await, 0);
}

/// Its first key is still that of the disputed call.
#[tokio::test]
async fn a_key_whose_first_call_is_disputed_runs_any_number_of_times() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_provider('bank', p_keys_for => '1 day')")
        .await;
    let mut keys = Vec::new();
    for life in 1..=4 {
        let fence = take(&world.once, "k").await.fence();
        assert_eq!(send(see, fence, 1).await, "send", "life {life}");
        let key = see.text(&format!("{EFFECT} and step = 'charge'")).await;
        assert_eq!(send(see, fence, 1).await, "send", "life {life}");
        let record_as = format!("'confirmed', 'ch_{life}'");
        assert_eq!(record(see, fence, &record_as).await, "done");
        if life == 1 {
            let report = format!(
                "select pgonce.external_observe('bank', 'confirmed', '{key}', 'other', 'evt_1')"
            );
            assert_eq!(see.text(&report).await, "disputed");
        }
        keys.push(key);
        see.run(&refuse(fence)).await;
        later(see, "8 days").await;
        see.run("select pgonce.purge(); select pgonce.purge()")
            .await;
    }
    assert!(keys[1..].iter().all(|key| *key != keys[0]), "{keys:?}");
    let disputed = "select effect_key::text from pgonce.external_calls where disputed is not null";
    assert_eq!(see.text(disputed).await, keys[0]);
}
