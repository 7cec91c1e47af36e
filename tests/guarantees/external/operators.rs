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

/// What an operator looks at before a decision.
async fn seen(world: &World<TokioPostgres>, key: &str) -> String {
    let seen = "select json_build_object('status', status, 'sends', sends, 'fence', fence)::text from pgonce.external_call";
    world.see.text(&format!("{seen} where key = '{key}'")).await
}

#[tokio::test]
async fn a_decision_about_what_was_seen_is_refused_where_it_is_no_longer_so() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    // Somebody decides to send it again, although it may have happened. Meanwhile: it has.
    let effect = unknown(&world, "confirmed", "charge".into()).await;
    let before = seen(&world, "confirmed").await;
    let report = format!(
        "select pgonce.external_observe('bank', 'confirmed', '{effect}', p_reference => 'ch_5')"
    );
    assert_eq!(see.text(&report).await, "applied");
    let more = format!(", p_force => true, p_before => '{before}'");
    assert_eq!(see.code(&settle(&effect, "resend", &more)).await, "55000");
    // An error comes before the server has let go of the record: the next answer comes after.
    assert_eq!(status(see, "confirmed").await, "confirmed");
    let bank = Bank::new([]);
    let paid = pay(&world.once, &intent("confirmed"), "charge".into(), &bank).await;
    assert_eq!(code(paid), "Some(\"ch_5\")");
    assert!(bank.came().is_empty(), "sent a second time");
    // By force alone it is about whatever there is.
    let forced = settle(&effect, "resend", ", p_force => true");
    assert_eq!(see.text(&forced).await, "confirmed");

    // Where the provider honours keys, a retry sends it again, and it is unknown as before.
    see.run("select pgonce.define_provider('bank', p_keys_for => '1 hour')")
        .await;
    let step = || Step::new("charge").decides_command();
    let effect = unknown(&world, "sent again", step()).await;
    let before = seen(&world, "sent again").await;
    let bank = Bank::new([Act::Cut]);
    let paid = pay(&world.once, &intent("sent again"), step(), &bank).await;
    assert_eq!(code(paid), "external_unknown");
    assert_eq!(bank.came().len(), 1);
    assert_eq!(status(see, "sent again").await, "unknown");
    let fail = |before: String| {
        let more = format!(", p_code => 'lost', p_before => '{before}'");
        settle(&effect, "failed", &more)
    };
    assert_eq!(see.code(&fail(before)).await, "55000");
    let ended = async || see.record(&intent("sent again"), "status").await;
    assert_eq!(ended().await, "failed_retryable");
    // What is as it was seen is decided, also when its deadline is over.
    let fail = fail(seen(&world, "sent again").await);
    see.run("select pgonce._move_clock('2 days')").await;
    assert_eq!(see.text(&fail).await, "needs_operator");
    assert_eq!(ended().await, "failed_final");
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
