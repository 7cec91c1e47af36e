//! What a provider has said of a call is not lost, and what was answered stays true.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::World;

use super::lives::{EFFECT, end, later, record, send};
use super::{status, take};

const DISPUTED: &str = "select count(*) from pgonce.external_call where disputed is not null";

/// Of one call that the provider has taken twice, an operator learns, in whichever order it says so.
#[tokio::test]
async fn a_call_that_has_two_references_is_disputed() {
    let observe = |outcome: &str| {
        format!(
            "select pgonce.external_observe('bank', '{outcome}', effect_key, 'ch_2', 'evt_1') from pgonce.external_call"
        )
    };
    for outcome in ["confirmed", "failed", "unknown", "again"] {
        let world = World::<TokioPostgres>::new().await;
        let see = &world.see;
        see.run("select pgonce.define_provider('bank', p_keys_for => '1 day')")
            .await;
        let first = take(&world.once, "k").await.fence();
        assert_eq!(send(see, first, 1).await, "send");
        assert_eq!(record(see, first, "'unknown', 'ch_1'").await, "unknown");
        assert_eq!(see.number(DISPUTED).await, 0);
        match outcome {
            "unknown" => {
                // The answer to a try before the last.
                assert_eq!(record(see, first, "'unknown', 'ch_2'").await, "unknown");
            }
            "again" => {
                see.run(&end("fail", first, "true, 'later', 'later'")).await;
                let second = take(&world.once, "k").await.fence();
                assert_eq!(send(see, second, 1).await, "send ch_1");
                assert_eq!(record(see, second, "'confirmed', 'ch_2'").await, "done");
            }
            _ => assert_eq!(see.text(&observe(outcome)).await, "applied"),
        }
        let says = "select disputed from pgonce.external_calls";
        let says = see.text(says).await;
        assert!(says.contains("ch_1 before ch_2"), "{outcome}: {says}");
        // Who settles it knows both.
        let settle = "select pgonce.external_settle(effect_key, 'confirmed', 'ch_1 is refunded', true, 'ch_2') from pgonce.external_call";
        see.run(settle).await;
        assert_eq!(see.number(DISPUTED).await, 0, "{outcome}");
    }
}

#[tokio::test]
async fn a_report_still_finds_what_an_operator_lets_send_again() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let fence = take(&world.once, "k").await.fence();
    assert_eq!(send(see, fence, 1).await, "send");
    assert_eq!(record(see, fence, "'unknown', 'ch_1'").await, "unknown");
    see.run("select pgonce.external_settle(effect_key, 'resend', 'test', true) from pgonce.external_call")
        .await;
    let report = "select pgonce.external_observe('bank', 'confirmed', p_reference => 'ch_1', p_event_id => 'evt_1')";
    assert_eq!(see.text(report).await, "applied");
    assert_eq!(send(see, fence, 1).await, "done ch_1");
}

/// The claim was replicated, and the call was not.
#[tokio::test]
async fn a_call_that_a_failover_lost_is_not_sent_again_where_the_provider_has_reported_it() {
    for reference in ["null", "'ch_1'"] {
        let world = World::<TokioPostgres>::new().await;
        let see = &world.see;
        let fence = take(&world.once, "k").await.fence();
        assert_eq!(send(see, fence, 1).await, "send");
        let effect = see.text(EFFECT).await;
        see.run("delete from pgonce.external_call").await;
        let report = format!(
            "select pgonce.external_observe('bank', 'confirmed', '{effect}', {reference}, 'evt_1')"
        );
        assert_eq!(see.text(&report).await, "waiting");
        assert_eq!(see.text(&report).await, "known");
        let done = if reference == "null" {
            "done"
        } else {
            "done ch_1"
        };
        assert_eq!(send(see, fence, 1).await, done);
        assert_eq!(see.text(&report).await, "known");
        let by = "select decided_by from pgonce.external_calls";
        assert_eq!(see.text(by).await, "event evt_1");
    }
}

/// The provider has forgotten the key by then, and makes the effect of the next run anew.
#[tokio::test]
async fn a_late_report_of_a_run_that_is_over_says_nothing_of_the_next() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_provider('bank', p_keys_for => '1 day')")
        .await;
    let first = take(&world.once, "k").await.fence();
    assert_eq!(send(see, first, 1).await, "send");
    assert_eq!(record(see, first, "'confirmed', 'ch_1'").await, "done");
    let effect = see.text(EFFECT).await;
    see.run(&end("fail", first, "false, 'no', 'no'")).await;
    later(see, "9 days").await;
    see.run("select pgonce.purge(); select pgonce.purge()")
        .await;
    let report =
        format!("select pgonce.external_observe('bank', 'confirmed', '{effect}', 'ch_1', 'evt_1')");
    assert_eq!(see.text(&report).await, "waiting");
    later(see, "1 minute").await;
    let second = take(&world.once, "k").await.fence();
    assert_eq!(send(see, second, 1).await, "send");
    assert_eq!(record(see, second, "'unknown', 'ch_2'").await, "unknown");
    assert_eq!(status(see, "k").await, "unknown");
}

#[tokio::test]
async fn a_command_that_was_given_up_does_not_succeed_by_a_report() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('orders.create', '1 day', p_stale => 'refuse')")
        .await;
    let fence = take(&world.once, "k").await.fence();
    assert_eq!(send(see, fence, 1).await, "send");
    later(see, "1 hour").await;
    let claim = "select c.outcome || ' ' || c.failure_code from pgonce.intent i, pgonce.claim(i.scope, i.key, i.fingerprint) c";
    let unrecorded = format!(
        "begin; do $$ begin if ({claim}) <> 'refused abandoned' then raise 'no'; end if; end $$; rollback"
    );
    see.run(&unrecorded).await;
    let report = "select pgonce.external_observe('bank', 'confirmed', effect_key, p_answer => '1') from pgonce.external_call";
    assert_eq!(see.text(report).await, "applied");
    assert_eq!(see.text(claim).await, "refused abandoned");
    assert_eq!(status(see, "k").await, "confirmed");
}
