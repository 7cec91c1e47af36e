//! Webhooks, look-ups and deadlines: what decides a call that nobody has an answer to.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::external::{CallError, Effect, Found, Observed, Provider, Reply, Report, Rules, Step};
use pgonce::{Claim, Failure};
use pgonce_testkit::wait_until;
use pgonce_tests::{TestDriver, World, for_each_driver, intent};
use serde_json::Value;

use super::bank::{Act, Bank, MINUTE, code, locked, pay, receipt};
use super::status;

async fn look_ups_go_on_later_and_later_until_one_decides<D: TestDriver>(world: World<D>) {
    let rules = Rules::new("bank").backoff(MINUTE, MINUTE * 60);
    world.owner.define_provider(&rules).await.unwrap();
    let bank = Bank::new([Act::Cut]);
    let paid = pay(&world.once, &intent("k"), "charge".into(), &bank).await;
    assert_eq!(code(paid), "external_unknown");
    let reconciler = world.once.reconciler(bank).timeout(MINUTE / 60);
    assert_eq!(reconciler.pass().await.unwrap().looked_up, 0, "not yet");
    for (later, looked_up) in [
        ("11 seconds", 1),
        ("20 seconds", 0),
        ("60 seconds", 1),
        ("50 seconds", 0),
        ("80 seconds", 1),
    ] {
        world
            .see
            .run(&format!("select pgonce._move_clock(interval '{later}')"))
            .await;
        assert_eq!(
            reconciler.pass().await.unwrap().looked_up,
            looked_up,
            "{later}"
        );
    }
    assert_eq!(status(&world.see, "k").await, "unknown");
}

async fn a_look_up_decides_the_call_and_where_it_may_the_command<D: TestDriver>(world: World<D>) {
    let failed = Found::Failed(Failure::permanent("declined", "no funds"));
    let cases = [
        (
            "left",
            false,
            Found::Confirmed(receipt()),
            "failed_retryable",
            "confirmed",
        ),
        (
            "ended",
            true,
            Found::Confirmed(receipt()),
            "succeeded",
            "confirmed",
        ),
        ("failed", true, failed, "failed_final", "failed"),
    ];
    for (key, decides, found, intent_status, call_status) in cases {
        let step = match decides {
            true => Step::new("charge").decides_command(),
            false => Step::new("charge"),
        };
        let bank = Bank::new([Act::Cut]);
        bank.knows(Found::Unknown);
        let request = intent(key);
        assert_eq!(
            code(pay(&world.once, &request, step, &bank).await),
            "external_unknown"
        );
        bank.knows(found);
        world
            .see
            .run("select pgonce._move_clock(interval '11 seconds')")
            .await;
        let reconciler = world.once.reconciler(bank);
        assert_eq!(reconciler.pass().await.unwrap().decided, 1, "{key}");
        assert_eq!(status(&world.see, key).await, call_status);
        assert_eq!(world.see.record(&request, "status").await, intent_status);
        let audit = format!(
            "select count(*) from pgonce.operator_act where act = 'reconcile' and key = '{key}'"
        );
        assert_eq!(world.see.number(&audit).await, i64::from(decides));
    }
    match world.once.lease(&intent("ended"), MINUTE).await.unwrap() {
        Claim::Replay(done) => assert_eq!(
            Reply::new(&done.read::<serde_json::Value>().unwrap())
                .unwrap()
                .body,
            receipt().body
        ),
        other => panic!("{other:?}"),
    }
    match world.once.lease(&intent("failed"), MINUTE).await.unwrap() {
        Claim::Refused(failure) => assert_eq!(failure.code(), "declined"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_command_whose_holder_is_alive_is_left_to_it() {
    let world = World::<TokioPostgres>::new().await;
    let bank = Bank::new([Act::Cut]);
    let mut lease = super::take(&world.once, "k").await;
    let step = Step::new("charge").decides_command();
    let error = lease
        .external()
        .call(step.clone(), &bank, &1)
        .await
        .unwrap_err();
    assert_eq!(error.code(), "external_unknown");
    let effect = bank.came().remove(0);
    let report = Report::confirmed(receipt()).effect_key(effect);
    assert_eq!(
        world.once.observe(&bank, report).await.unwrap(),
        Observed::Applied
    );
    assert_eq!(world.see.record(&intent("k"), "status").await, "processing");
    let reply = lease.external().call(step, &bank, &1).await.unwrap();
    assert!(reply.replayed);
    let _ = lease.succeed(&1).await.unwrap();
}

#[tokio::test]
async fn past_its_deadline_a_call_needs_an_operator_after_a_last_look_up() {
    let world = World::<TokioPostgres>::new().await;
    let rules = Rules::new("bank").deadline(MINUTE * 60).look_after(MINUTE);
    world.owner.define_provider(&rules).await.unwrap();
    let bank = Bank::new([Act::Cut]);
    let paid = pay(&world.once, &intent("k"), "charge".into(), &bank).await;
    assert_eq!(code(paid), "external_unknown");
    let reconciler = world.once.reconciler(bank);
    for (later, looked_up, then) in [
        ("2 minutes", 1, "unknown"),
        ("58 minutes", 1, "needs_operator"),
        ("1 minute", 1, "needs_operator"),
        ("1 minute", 1, "needs_operator"),
        ("1 year", 0, "needs_operator"),
    ] {
        world
            .see
            .run(&format!("select pgonce._move_clock(interval '{later}')"))
            .await;
        assert_eq!(
            reconciler.pass().await.unwrap().looked_up,
            looked_up,
            "{later}"
        );
        assert_eq!(status(&world.see, "k").await, then);
    }
    let paid = pay(&world.once, &intent("k"), "charge".into(), &Bank::new([])).await;
    assert_eq!(code(paid), "external_needs_operator");
    world.see.run("select pgonce._purge_external(100)").await;
    assert_eq!(status(&world.see, "k").await, "needs_operator", "kept");
}

#[tokio::test]
async fn the_look_at_the_deadline_is_made_also_where_who_took_it_ended() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let rules = Rules::new("bank").deadline(MINUTE * 60).look_after(MINUTE);
    world.owner.define_provider(&rules).await.unwrap();
    let bank = Bank::new([Act::Cut, Act::Cut]);
    for key in ["k", "unseen"] {
        let paid = pay(&world.once, &intent(key), "charge".into(), &bank).await;
        assert_eq!(code(paid), "external_unknown");
    }
    see.run("update pgonce.external_call set next_look_at = deadline_at, first_sent_at = sent_at")
        .await;
    see.run("select pgonce._move_clock(interval '60 minutes 1 second')")
        .await;
    assert_eq!(status(see, "k").await, "unknown", "it is looked up first");
    // Two processes take it, and end before they look.
    for _ in 0..2 {
        let taken = "select count(*) from pgonce.external_due('bank', 1, '1 second')";
        assert_eq!(see.number(taken).await, 1);
        see.run("update pgonce.external_call set next_look_at = pgonce.now() + interval '1 day' where late_looks = 0")
            .await;
        see.run("select pgonce._move_clock(interval '6 seconds')")
            .await;
    }
    let taken = see
        .text("select key from pgonce.external_call where late_looks = 2")
        .await;
    let waits = if taken == "k" { "unseen" } else { "k" };
    assert_eq!(status(see, waits).await, "unknown");
    bank.knows(Found::Confirmed(receipt()));
    let reconciler = world.once.reconciler(bank);
    assert_eq!(reconciler.pass().await.unwrap().decided, 1);
    assert_eq!(status(see, &taken).await, "confirmed");
    // Where nobody looks it still reaches an operator.
    see.run("select pgonce._move_clock(interval '1 minute')")
        .await;
    assert_eq!(status(see, waits).await, "needs_operator");
}

/// A bank that never answers when it is asked about one of its calls.
struct Silent {
    bank: Bank,
    about: String,
}

impl Provider for Silent {
    fn name(&self) -> &str {
        "bank"
    }

    async fn call(&self, effect: &Effect, request: &Value) -> Result<Reply, CallError> {
        self.bank.call(effect, request).await
    }

    async fn look_up(
        &self,
        effect: &Effect,
    ) -> Result<Found, Box<dyn std::error::Error + Send + Sync>> {
        if effect.key == self.about {
            std::future::pending::<()>().await;
        }
        self.bank.look_up(effect).await
    }
}

#[tokio::test]
async fn a_slow_look_up_delays_no_other_and_an_unreadable_command_none_at_all() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let bank = Bank::new((0..7).map(|_| Act::Cut));
    for n in 0..7 {
        let paid = pay(&world.once, &intent(&n.to_string()), "charge".into(), &bank).await;
        assert_eq!(code(paid), "external_unknown");
    }
    see.run("set session_replication_role = replica; update pgonce.intent set fingerprint = '' where key = '3'; \
             reset session_replication_role; select pgonce._move_clock(interval '11 seconds')")
        .await;
    bank.knows(Found::Confirmed(receipt()));
    let about = bank.came().remove(0);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let reconciler = world
        .once
        .reconciler(Silent { bank, about })
        .concurrency(2)
        .timeout(MINUTE * 60)
        .poll_interval(Duration::from_millis(5));
    let running = tokio::spawn(reconciler.run(async { drop(stopped.await) }));
    see.wait_until("select count(*) = 6 from pgonce.external_call where status = 'confirmed'")
        .await;
    assert_eq!(status(see, "0").await, "unknown");
    drop(stop);
    running.await.unwrap();
}

#[tokio::test]
async fn without_look_up_a_deadline_of_zero_asks_an_operator_at_once() {
    let world = World::<TokioPostgres>::new().await;
    let rules = Rules::new("bank").deadline(Duration::ZERO);
    world.owner.define_provider(&rules).await.unwrap();
    let bank = Bank::new([Act::Cut]);
    let paid = pay(&world.once, &intent("k"), "charge".into(), &bank).await;
    assert_eq!(code(paid), "external_needs_operator");
}

#[tokio::test]
async fn of_many_reconcilers_one_looks_a_call_up() {
    let world = World::<TokioPostgres>::new().await;
    let bank = Bank::new((0..20).map(|_| Act::Cut));
    for n in 0..20 {
        let paid = pay(&world.once, &intent(&n.to_string()), "charge".into(), &bank).await;
        assert_eq!(code(paid), "external_unknown");
    }
    *locked(&bank.asked) = 0;
    world
        .see
        .run("select pgonce._move_clock(interval '11 seconds')")
        .await;
    let due = || async {
        let see = world.observer().await;
        see.number("select count(*) from pgonce.external_due('bank', 20, '1 minute')")
            .await
    };
    let all = futures_util::future::join_all((0..4).map(|_| due())).await;
    assert_eq!(all.iter().sum::<i64>(), 20, "{all:?}");
}

async fn a_webhook_counts_once_also_before_the_response<D: TestDriver>(world: World<D>) {
    let bank = Bank::new([Act::Accept("ch_9"), Act::Accept("ch_9")]);
    let once = &world.once;
    let webhook = || Report::confirmed(receipt().reference("ch_9")).event_id("evt_1");
    assert_eq!(
        once.observe(&bank, webhook()).await.unwrap(),
        Observed::Waiting
    );
    assert_eq!(
        once.observe(&bank, webhook()).await.unwrap(),
        Observed::Known
    );
    // The response says "accepted": the event that waited for the reference decides.
    let paid = pay(once, &intent("k"), "charge".into(), &bank)
        .await
        .unwrap();
    assert_eq!(
        (paid.reference.as_deref(), paid.body),
        (Some("ch_9"), receipt().body)
    );
    let decided = "select decided_by from pgonce.external_calls";
    assert_eq!(world.see.text(decided).await, "event evt_1");
    assert_eq!(
        once.observe(&bank, webhook()).await.unwrap(),
        Observed::Known
    );
    let second = webhook().event_id("evt_2");
    assert_eq!(once.observe(&bank, second).await.unwrap(), Observed::Known);
    let other = Report::failed(Failure::permanent("x", "y"))
        .reference("ch_9")
        .event_id("evt_1");
    assert_eq!(
        once.observe(&bank, other).await.unwrap_err().code(),
        "P4050"
    );
    let other = Report::failed(Failure::permanent("x", "y"))
        .reference("ch_9")
        .event_id("evt_3");
    assert_eq!(
        once.observe(&bank, other).await.unwrap(),
        Observed::Disputed
    );
    let disputed = "select status || ' ' || disputed from pgonce.external_calls";
    assert_eq!(
        world.see.text(disputed).await,
        "confirmed failed, reference ch_9, by event evt_3"
    );
    let nobody =
        Report::confirmed(Reply::default()).effect_key("00000000-0000-0000-0000-000000000000");
    assert_eq!(once.observe(&bank, nobody).await.unwrap(), Observed::NoCall);
}

/// The webhook's transaction is open while the response is recorded: one of them must see the other.
#[tokio::test]
async fn a_webhook_and_the_response_that_cross_still_meet() {
    let world = World::<TokioPostgres>::new().await;
    let lease = super::take(&world.once, "k").await;
    let fence = lease.fence();
    let send = format!(
        "select from pgonce.external_send('orders.create', 'k', {fence}, 'charge', 'bank', '\\x01')"
    );
    world.see.run(&send).await;
    let webhook = world.observer().await;
    webhook
        .run("begin; select pgonce.external_observe('bank', 'confirmed', p_reference => 'ch_7', p_event_id => 'e')")
        .await;
    let response = world.observer().await;
    let record = tokio::spawn(async move {
        let record = format!(
            "select action from pgonce.external_record('orders.create', 'k', {fence}, 'charge', 'unknown', 'ch_7')"
        );
        response.text(&record).await
    });
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%external_record%' and datname = current_database()";
    wait_until("the response to wait", Duration::from_secs(60), || async {
        world.see.number(waits).await == 1
    })
    .await
    .unwrap();
    webhook.run("commit").await;
    assert_eq!(record.await.unwrap(), "done");
}

/// The same where sessions see what was committed before they began only, by default: a report that is answered must count.
#[tokio::test]
async fn a_webhook_and_the_response_that_cross_meet_under_every_isolation() {
    for level in ["repeatable read", "serializable"] {
        let world = World::<TokioPostgres>::new().await;
        let see = &world.see;
        let database = see.text("select current_database()").await;
        see.run(&format!(
            "alter database \"{database}\" set default_transaction_isolation = '{level}'"
        ))
        .await;
        let fence = super::take(&world.once, "k").await.fence();
        see.run(&format!("select from pgonce.external_send('orders.create', 'k', {fence}, 'charge', 'bank', '\\x01')"))
            .await;
        // The webhook waits for the response, which is committed meanwhile.
        let first = world.observer().await;
        let record = format!(
            "select action from pgonce.external_record('orders.create', 'k', {fence}, 'charge', 'unknown', 'ch_7')"
        );
        first
            .run(&format!("begin isolation level read committed; {record}"))
            .await;
        let once = world.another("strict", 2, |b| b);
        let webhook = tokio::spawn(async move {
            let bank = Bank::new([]);
            let report = Report::confirmed(Reply::default().reference("ch_7")).event_id("e");
            once.observe(&bank, report).await.unwrap()
        });
        let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%external_observe%' and datname = current_database()";
        wait_until("the webhook to wait", Duration::from_secs(60), || async {
            see.number(waits).await == 1
        })
        .await
        .unwrap();
        first.run("commit").await;
        assert_eq!(webhook.await.unwrap(), Observed::Applied, "{level}");
        assert_eq!(super::status(see, "k").await, "confirmed");
        // In a transaction of yours it is refused, and not lost.
        for call in [
            record.as_str(),
            "select pgonce.external_observe('bank', 'confirmed', p_reference => 'ch_8', p_event_id => 'f')",
        ] {
            let strict = world.observer().await;
            strict.run(&format!("begin isolation level {level}")).await;
            assert_eq!(strict.code(call).await, "25000", "{level} {call}");
        }
    }
}

#[tokio::test]
async fn a_reconciler_survives_a_database_that_is_away_and_ends_with_its_shutdown() {
    let world = World::<TokioPostgres>::new().await;
    let bank = Bank::new([Act::Cut]);
    assert_eq!(
        code(pay(&world.once, &intent("k"), "charge".into(), &bank).await),
        "external_unknown"
    );
    bank.knows(Found::Confirmed(receipt()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let reconciler = world
        .once
        .reconciler(bank)
        .poll_interval(Duration::from_millis(5));
    let running = tokio::spawn(reconciler.run(async { drop(stopped.await) }));
    // Every connection breaks, and its next call fails.
    world
        .see
        .run("alter function pgonce.external_due(text, integer, interval) rename to away")
        .await;
    world
        .see
        .run("select pgonce._move_clock(interval '11 seconds')")
        .await;
    let failed = "select count(*) from pg_stat_activity where query like '%external_due%' and datname = current_database() and pid <> pg_backend_pid()";
    wait_until("a failed look", Duration::from_secs(60), || async {
        world.see.number(failed).await > 0
    })
    .await
    .unwrap();
    world
        .see
        .run("alter function pgonce.away(text, integer, interval) rename to external_due")
        .await;
    wait_until(
        "the call to be decided",
        Duration::from_secs(60),
        || async { status(&world.see, "k").await == "confirmed" },
    )
    .await
    .unwrap();
    drop(stop);
    running.await.unwrap();
}

for_each_driver!(
    look_ups_go_on_later_and_later_until_one_decides,
    a_look_up_decides_the_call_and_where_it_may_the_command,
    a_webhook_counts_once_also_before_the_response,
);
