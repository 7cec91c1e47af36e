//! Operators settle what nobody else can, with a reason, and open no second effect by mistake.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::external::Step;
use pgonce_tests::{World, intent};

use super::bank::{Act, Bank, code, pay};
use super::{status, take};

async fn unknown(world: &World<TokioPostgres>, key: &str, step: Step) -> String {
    let bank = Bank::new([Act::Cut]);
    let paid = pay(&world.once, &intent(key), step, &bank).await;
    assert_eq!(code(paid), "external_unknown");
    bank.came().remove(0)
}

fn settle(effect: &str, outcome: &str, more: &str) -> String {
    format!("select pgonce.external_settle('{effect}', '{outcome}', 'ticket 7'{more})")
}

#[tokio::test]
async fn an_operator_decides_a_call_and_every_decision_is_audited() {
    let world = World::<TokioPostgres>::new().await;
    for (key, outcome, paid) in [
        ("a", "confirmed", "Some(\"ch_5\")"),
        ("b", "failed", "lost"),
    ] {
        let effect = unknown(&world, key, "charge".into()).await;
        let more = ", p_reference => 'ch_5', p_code => 'lost', p_person => 'ada'";
        assert_eq!(
            world.see.text(&settle(&effect, outcome, more)).await,
            "unknown"
        );
        let bank = Bank::new([]);
        assert_eq!(
            code(pay(&world.once, &intent(key), "charge".into(), &bank).await),
            paid
        );
        assert!(bank.came().is_empty());
        let audit = format!(
            "select concat_ws(' ', act, reason, person, forced, before ->> 'status') from pgonce.operator_act where key = '{key}'"
        );
        assert_eq!(
            world.see.text(&audit).await,
            format!("external {outcome} ticket 7 ada f unknown")
        );
    }
}

#[tokio::test]
async fn what_is_to_be_resent_is_not_sent_after_its_provider_forgot_the_key() {
    let world = World::<TokioPostgres>::new().await;
    let define = "select pgonce.define_provider('bank', p_keys_for => '1 hour')";
    world.see.run(define).await;
    let effect = unknown(&world, "a", "charge".into()).await;
    world.see.run(&settle(&effect, "resend", "")).await;
    world.see.run("select pgonce._move_clock('2 hours')").await;
    let bank = Bank::new([Act::Confirm]);
    let paid = pay(&world.once, &intent("a"), "charge".into(), &bank).await;
    assert_eq!(code(paid), "external_unknown");
    assert!(bank.came().is_empty(), "sent although it may have happened");
}

#[tokio::test]
async fn a_report_that_could_mean_two_calls_decides_neither() {
    let world = World::<TokioPostgres>::new().await;
    let (a, b) = (
        unknown(&world, "a", "charge".into()).await,
        unknown(&world, "b", "charge".into()).await,
    );
    let same = "update pgonce.external_call set reference = 'ch_7'";
    world.see.run(same).await;
    let observe = "select pgonce.external_observe('bank', 'failed', p_reference => 'ch_7', p_event_id => 'evt_1', p_code => 'no')";
    assert_eq!(world.see.text(observe).await, "waiting");
    // A decision of one of them looks for reports that waited.
    world.see.run(&settle(&a, "confirmed", "")).await;
    let status = format!("select status from pgonce.external_call where effect_key = '{b}'");
    assert_eq!(world.see.text(&status).await, "unknown");
    let disputed = "select count(*) from pgonce.external_call where disputed is not null";
    assert_eq!(world.see.number(disputed).await, 0);
}

#[tokio::test]
async fn what_could_open_a_second_effect_is_refused_unless_it_is_forced() {
    let world = World::<TokioPostgres>::new().await;
    let effect = unknown(&world, "a", "charge".into()).await;
    assert_eq!(
        world.see.code(&settle(&effect, "resend", "")).await,
        "55000"
    );
    world
        .see
        .run(&settle(&effect, "resend", ", p_force => true"))
        .await;
    let bank = Bank::new([Act::Confirm]);
    let paid = pay(&world.once, &intent("a"), "charge".into(), &bank).await;
    assert_eq!(code(paid), "Some(\"ch_1\")");
    assert_eq!(bank.came().len(), 1, "sent again");
    for outcome in ["resend", "failed"] {
        assert_eq!(world.see.code(&settle(&effect, outcome, "")).await, "55000");
    }
    assert_eq!(
        world.see.text(&settle(&effect, "confirmed", "")).await,
        "confirmed"
    );

    let mut lease = take(&world.once, "b").await;
    let send = format!(
        "select effect_key from pgonce.external_send('orders.create', 'b', {}, 'charge', 'bank', '\\x01')",
        lease.fence()
    );
    let effect = world.see.text(&send).await;
    for outcome in ["confirmed", "failed", "resend"] {
        assert_eq!(
            world.see.code(&settle(&effect, outcome, "")).await,
            "55000",
            "its sender is alive"
        );
    }
    lease.heartbeat().await.unwrap();
    for (sql, code) in [
        (settle(&effect, "maybe", ""), "22023"),
        (
            settle("00000000-0000-0000-0000-000000000000", "failed", ""),
            "42704",
        ),
        (
            settle(&effect, "failed", ", p_force => true").replace("ticket 7", " "),
            "22023",
        ),
    ] {
        assert_eq!(world.see.code(&sql).await, code, "{sql}");
    }
}

#[tokio::test]
async fn a_decision_ends_the_command_where_the_call_decides_it() {
    let world = World::<TokioPostgres>::new().await;
    let step = || Step::new("charge").decides_command();
    let effect = unknown(&world, "a", step()).await;
    world
        .see
        .run(&settle(&effect, "confirmed", ", p_answer => '7'"))
        .await;
    assert_eq!(
        world
            .see
            .record(&intent("a"), "status || ' ' || answer")
            .await,
        "succeeded 7"
    );
    let effect = unknown(&world, "b", step()).await;
    world
        .see
        .run(&settle(&effect, "failed", ", p_code => 'lost'"))
        .await;
    assert_eq!(
        world
            .see
            .record(&intent("b"), "status || ' ' || failure_code")
            .await,
        "failed_final lost"
    );
    // Without an answer the next attempt ends it.
    let effect = unknown(&world, "c", step()).await;
    world.see.run(&settle(&effect, "confirmed", "")).await;
    assert_eq!(
        world.see.record(&intent("c"), "status").await,
        "failed_retryable"
    );
    assert_eq!(status(&world.see, "c").await, "confirmed");
}
