//! Limits that a provider sets: how many requests in a time, and none while it does not answer.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::external::{Rules, Step};
use pgonce_tests::{World, intent};

use super::bank::{Act, Bank, MINUTE, code, pay};
use super::status;

fn at_once() -> Step {
    Step::new("charge").wait_timeout(Duration::ZERO)
}

#[tokio::test]
async fn no_more_requests_are_sent_than_the_rate_allows_and_the_next_one_later() {
    let world = World::<TokioPostgres>::new().await;
    let rules = Rules::new("bank").rate(2, MINUTE);
    world.owner.define_provider(&rules).await.unwrap();
    world
        .see
        .run("select pgonce._set_clock(pgonce.now())")
        .await;
    let bank = Bank::new([]);
    let pay = async |key: &str| code(pay(&world.once, &intent(key), at_once(), &bank).await);
    for key in ["a", "b"] {
        assert_eq!(pay(key).await, "Some(\"ch_1\")");
    }
    assert_eq!(pay("c").await, "external_wait");
    assert_eq!(status(&world.see, "c").await, "requested");
    assert_eq!(bank.came().len(), 2);
    world
        .see
        .run("select pgonce._move_clock(interval '31 seconds')")
        .await;
    assert_eq!(pay("c").await, "Some(\"ch_1\")");
    assert_eq!(pay("d").await, "external_wait");
}

#[tokio::test]
async fn a_command_waits_for_the_rate_within_its_limit() {
    let world = World::<TokioPostgres>::new().await;
    let rules = Rules::new("bank").rate(1, Duration::from_millis(50));
    world.owner.define_provider(&rules).await.unwrap();
    let bank = Bank::new([]);
    for key in ["a", "b", "c"] {
        let paid = pay(&world.once, &intent(key), "charge".into(), &bank).await;
        assert_eq!(code(paid), "Some(\"ch_1\")");
    }
}

#[tokio::test]
async fn a_provider_that_does_not_answer_gets_nothing_for_a_while_and_then_one_request() {
    let world = World::<TokioPostgres>::new().await;
    let rules = Rules::new("bank").circuit_breaker(2, MINUTE);
    world.owner.define_provider(&rules).await.unwrap();
    world
        .see
        .run("select pgonce._set_clock(pgonce.now())")
        .await;
    let bank = Bank::new([Act::Cut, Act::Cut, Act::Cut, Act::Reject]);
    let pay = async |key: &str| code(pay(&world.once, &intent(key), at_once(), &bank).await);
    assert_eq!(pay("a").await, "external_unknown");
    assert_eq!(pay("b").await, "external_unknown");
    assert_eq!(pay("c").await, "external_wait");
    world
        .see
        .run("select pgonce._move_clock(interval '61 seconds')")
        .await;
    assert_eq!(pay("c").await, "external_unknown", "one tries");
    assert_eq!(pay("d").await, "external_wait");
    world
        .see
        .run("select pgonce._move_clock(interval '61 seconds')")
        .await;
    assert_eq!(pay("d").await, "declined", "any answer closes the circuit");
    for key in ["e", "f"] {
        assert_eq!(pay(key).await, "Some(\"ch_1\")");
    }
}

#[tokio::test]
async fn a_provider_that_accepts_and_decides_later_answers() {
    let world = World::<TokioPostgres>::new().await;
    let rules = Rules::new("bank").circuit_breaker(2, MINUTE);
    world.owner.define_provider(&rules).await.unwrap();
    let bank = Bank::new(["ch_1", "ch_2", "ch_3", "ch_4"].map(Act::Accept));
    for key in ["a", "b", "c", "d"] {
        let paid = pay(&world.once, &intent(key), at_once(), &bank).await;
        assert_eq!(code(paid), "external_unknown", "{key}");
    }
    assert_eq!(bank.came().len(), 4);
}

#[tokio::test]
async fn each_provider_that_nobody_defined_has_the_limits_of_the_star_for_itself() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let limits = Rules::new("*").rate(2, MINUTE).circuit_breaker(1, MINUTE);
    world.owner.define_provider(&limits).await.unwrap();
    see.run("select pgonce._set_clock(pgonce.now())").await;
    let bank = Bank::new([Act::Cut]);
    let pay = async |key: &str| code(pay(&world.once, &intent(key), at_once(), &bank).await);
    assert_eq!(pay("a").await, "external_unknown");
    assert_eq!(pay("b").await, "external_wait", "its circuit is open");
    see.run("select from pgonce.claim('pay', 'k', '\\x01', '1 day')")
        .await;
    let send = |step: &str| {
        format!(
            "select action from pgonce.external_send('pay', 'k', (select fence from pgonce.intent where key = 'k'), '{step}', 'mail', '\\x01')"
        )
    };
    for (step, action) in [("1", "send"), ("2", "send"), ("3", "wait")] {
        assert_eq!(see.text(&send(step)).await, action, "{step}");
    }
    see.run("select pgonce._move_clock('61 seconds')").await;
    assert_eq!(pay("b").await, "Some(\"ch_1\")");
    // Later rules of the star hold for all of them, and their own rules once they have some.
    let limits = Rules::new("*").rate(1, MINUTE);
    world.owner.define_provider(&limits).await.unwrap();
    assert_eq!(see.text(&send("4")).await, "send");
    assert_eq!(see.text(&send("5")).await, "wait");
    let limits = Rules::new("mail").rate(9, MINUTE);
    world.owner.define_provider(&limits).await.unwrap();
    assert_eq!(see.text(&send("5")).await, "send");
    let providers =
        "select string_agg(provider, ' ' order by provider) from pgonce.external_provider";
    assert_eq!(see.text(providers).await, "* bank mail");
    see.run("select pgonce._move_clock('31 days'); select pgonce.purge()")
        .await;
    assert_eq!(see.text(providers).await, "* mail", "nobody called it");
}

#[tokio::test]
async fn rules_for_longer_than_there_are_times_stop_no_purge() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let long = "interval '300000 years'";
    for provider in ["*", "bank"] {
        see.run(&format!(
            "select pgonce.define_provider('{provider}', p_keys_for => {long}, p_deadline => {long}, p_look_after => {long}, \
                 p_backoff => {long}, p_max_backoff => {long}, p_rate => 2, p_rate_per => {long}, p_trip_after => 1, \
                 p_trip_for => {long}, p_keep => {long})"
        ))
        .await;
    }
    for provider in ["bank", "mail"] {
        see.run(&format!(
            "select from pgonce.claim('pay', '{provider}', '\\x01', '1 day') c, \
                 pgonce.external_send('pay', '{provider}', c.fence, 'charge', '{provider}', '\\x01'); \
             select from pgonce.intent i, pgonce.external_record('pay', '{provider}', i.fence, 'charge', 'unknown') where i.key = '{provider}'; \
             select pgonce.external_observe('{provider}', 'confirmed', p_reference => 'ch_8', p_event_id => 'evt_1')"
        ))
        .await;
    }
    let sent =
        "select count(*) from pgonce.external_call where sends = 1 and deadline_at > '5000-01-01'";
    assert_eq!(see.number(sent).await, 2);
    see.run("select pgonce.purge(); select from pgonce.external_due('bank', 9, '30 seconds')")
        .await;
    let kept = "select count(*) from pgonce.external_event";
    assert_eq!(see.number(kept).await, 2);
}

/// Services define their providers at every start.
#[tokio::test]
async fn the_same_limits_again_let_no_request_more_through() {
    let world = World::<TokioPostgres>::new().await;
    let rules = || {
        Rules::new("bank")
            .rate(1, Duration::from_secs(3600))
            .circuit_breaker(1, MINUTE)
    };
    world.owner.define_provider(&rules()).await.unwrap();
    let kept = "select concat_ws(' ', tokens < 1, failures, open_until is not null) from pgonce.external_provider where provider = 'bank'";
    let bank = Bank::new([Act::Cut]);
    let pay = async |key: &str| code(pay(&world.once, &intent(key), at_once(), &bank).await);
    assert_eq!(pay("a").await, "external_unknown");
    assert_eq!(world.see.text(kept).await, "t 1 t");
    world.owner.define_provider(&rules()).await.unwrap();
    assert_eq!(world.see.text(kept).await, "t 1 t");
    assert_eq!(pay("b").await, "external_wait");
    // Other limits count anew, each by itself.
    let more = rules().rate(2, Duration::from_secs(3600));
    world.owner.define_provider(&more).await.unwrap();
    assert_eq!(pay("b").await, "external_wait", "the circuit is open");
    world
        .owner
        .define_provider(&more.circuit_breaker(2, MINUTE))
        .await
        .unwrap();
    assert_eq!(pay("b").await, "Some(\"ch_1\")");
}
