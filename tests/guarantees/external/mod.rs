//! Calls to providers: recorded before they are sent, the same key on every attempt, never guessed.

mod bank;
mod doubts;
mod late;
mod limits;
mod lives;
mod operators;
mod reconciling;

use std::time::Duration;

use bank::{Act, Bank, MINUTE, code, locked, pay, receipt};
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::external::{CallError, Effect, Found, Provider, Reply, Rules, Step, Storage};
use pgonce::{AnswerKeys, Claim, Error, Lease, Once};
use pgonce_tests::{Observer, TestDriver, World, for_each_driver, intent};
use serde_json::{Value, json};

async fn take<D: TestDriver>(once: &Once<D>, key: &str) -> Lease<D> {
    match once.lease(&intent(key), MINUTE).await.unwrap() {
        Claim::Run(lease) => lease,
        other => panic!("{other:?}"),
    }
}

async fn status(see: &Observer, key: &str) -> String {
    let sql = format!("select status from pgonce.external_calls where key = '{key}'");
    see.text(&sql).await
}

/// A provider that looks at our own record when a request comes.
struct Looking<'a> {
    see: &'a Observer,
}

impl Provider for Looking<'_> {
    fn name(&self) -> &str {
        "bank"
    }

    async fn call(&self, effect: &Effect, _: &Value) -> Result<Reply, CallError> {
        let sql = format!(
            "select status || ' ' || sends from pgonce.external_calls where effect_key = '{}'",
            effect.key
        );
        assert_eq!(self.see.text(&sql).await, "sent 1");
        Ok(receipt())
    }
}

async fn a_call_is_recorded_before_it_is_sent_and_with_its_outcome<D: TestDriver>(world: World<D>) {
    let mut lease = take(&world.once, "k").await;
    let looking = Looking { see: &world.see };
    let request = json!({"amount": 5});
    let reply = lease.external().call("charge", &looking, &request).await;
    assert_eq!(reply.unwrap(), receipt());
    let recorded = "select concat_ws(' ', status, reference, response ->> 'charged', decided_by, request ->> 'sha256' is not null) \
        from pgonce.external_calls";
    assert_eq!(
        world.see.text(recorded).await,
        "confirmed ch_1 5 response t"
    );
}

async fn a_retried_command_goes_on_after_the_steps_that_are_done<D: TestDriver>(world: World<D>) {
    let bank = &Bank::new([Act::Confirm, Act::NotNow, Act::Confirm]);
    let once = &world.once;
    let work = |mut lease: Lease<D>| async move {
        let reserved = lease.external().call("reserve", bank, &1).await?;
        let charged = lease.external().call("charge", bank, &2).await?;
        lease.succeed(&(reserved.replayed, charged.replayed)).await
    };
    let request = intent("k");
    let error = once.run_leased(&request, work).await.unwrap_err();
    assert_eq!(error.code(), "external_wait");
    let replayed = once.run_leased(&request, work).await.unwrap();
    let replayed: (bool, bool) = replayed.into_answer().unwrap();
    assert_eq!(replayed, (true, false));
    let came = bank.came();
    assert_eq!(came.len(), 3, "the first step once, the second twice");
    assert_ne!(came[0], came[1], "each step has its own key");
    assert_eq!(came[1], came[2], "the same on every attempt");
}

#[tokio::test]
async fn a_step_with_another_request_is_a_conflict_and_is_not_sent() {
    let world = World::<TokioPostgres>::new().await;
    let bank = Bank::new([]);
    let mut lease = take(&world.once, "k").await;
    lease.external().call("charge", &bank, &1).await.unwrap();
    let error = lease
        .external()
        .call("charge", &bank, &2)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Conflict(_)), "{error:?}");
    assert_eq!(error.code(), "P4086");
    let again = lease.external().call("charge", &bank, &1).await.unwrap();
    assert!(again.replayed);
    assert_eq!(bank.came().len(), 1);
}

#[tokio::test]
async fn a_rejection_is_permanent_and_the_same_for_every_attempt() {
    let world = World::<TokioPostgres>::new().await;
    let bank = Bank::new([Act::Reject]);
    for _ in 0..2 {
        let paid = pay(&world.once, &intent("k"), "charge".into(), &bank).await;
        assert_eq!(code(paid), "declined");
    }
    assert_eq!(bank.came().len(), 1);
    assert_eq!(status(&world.see, "k").await, "failed");
}

async fn what_may_have_happened_is_unknown_and_not_sent_again_without_keys<D: TestDriver>(
    world: World<D>,
) {
    let bank = Bank::new([Act::Cut]);
    for _ in 0..3 {
        let paid = pay(&world.once, &intent("k"), "charge".into(), &bank).await;
        assert_eq!(code(paid), "external_unknown");
    }
    assert_eq!(bank.came().len(), 1);
    assert_eq!(status(&world.see, "k").await, "unknown");
    assert_eq!(*locked(&bank.asked), 2, "each retry asks");
    bank.knows(Found::Confirmed(receipt()));
    let paid = pay(&world.once, &intent("k"), "charge".into(), &bank).await;
    assert_eq!(paid.unwrap(), receipt());
    assert_eq!(bank.came().len(), 1);
}

#[tokio::test]
async fn a_provider_that_does_not_answer_in_time_leaves_the_call_unknown() {
    let world = World::<TokioPostgres>::new().await;
    let bank = Bank::new([Act::Hang]);
    let step = Step::new("charge").timeout(Duration::from_millis(20));
    let paid = pay(&world.once, &intent("k"), step, &bank).await;
    assert_eq!(code(paid), "external_unknown");
    assert_eq!(status(&world.see, "k").await, "unknown");
}

#[tokio::test]
async fn with_keys_a_call_is_sent_again_under_the_same_key_while_the_provider_remembers_it() {
    let world = World::<TokioPostgres>::new().await;
    let rules = Rules::new("bank").keys_for(Duration::from_secs(3600));
    world.owner.define_provider(&rules).await.unwrap();
    let bank = Bank::new([Act::Cut, Act::NotNow, Act::Cut]);
    let pay = async || code(pay(&world.once, &intent("k"), "charge".into(), &bank).await);
    assert_eq!(pay().await, "external_unknown");
    // That one try was not taken says nothing about the one before.
    assert_eq!(pay().await, "external_unknown");
    assert_eq!(status(&world.see, "k").await, "unknown");
    assert_eq!(pay().await, "external_unknown");
    let came = bank.came();
    assert!(
        came.len() == 3 && came.iter().all(|key| *key == came[0]),
        "{came:?}"
    );
    world
        .see
        .run("select pgonce._move_clock(interval '2 hours')")
        .await;
    assert_eq!(pay().await, "external_unknown");
    assert_eq!(bank.came().len(), 3, "the provider has forgotten the key");
}

#[tokio::test]
async fn a_try_whose_record_lost_its_reply_is_sent_once() {
    let world = World::<TokioPostgres>::new().await;
    let lease = take(&world.once, "k").await;
    let send = |id: u8| {
        format!(
            "select action from pgonce.external_send('orders.create', 'k', {}, 'charge', 'bank', '\\x01', \
             p_send => '00000000-0000-0000-0000-00000000000{id}')",
            lease.fence()
        )
    };
    for (id, action) in [(1, "send"), (1, "send"), (2, "unknown")] {
        assert_eq!(world.see.text(&send(id)).await, action);
    }
    assert_eq!(
        world
            .see
            .number("select sends from pgonce.external_call")
            .await,
        1
    );
}

#[tokio::test]
async fn what_is_stored_of_requests_and_responses_is_the_providers_policy() {
    let expected = [
        (
            Storage::Full,
            "{\"card\": \"4242 4242\", \"amount\": 5}",
            true,
        ),
        (
            Storage::redacted(["card"]),
            "{\"card\": \"[redacted]\", \"amount\": 5}",
            true,
        ),
        (Storage::Digest, "sha256", false),
        (Storage::None, "", false),
    ];
    for (storage, request, has_body) in expected {
        let world = World::<TokioPostgres>::new().await;
        let redacts = storage != Storage::Full;
        let mut bank = Bank::new([]);
        bank.storage = storage;
        pay(&world.once, &intent("k"), "charge".into(), &bank)
            .await
            .unwrap();
        let stored = "select coalesce(request::text, '') from pgonce.external_calls";
        let stored = world.see.text(stored).await;
        assert!(stored.contains(request), "{stored}");
        let all = "select to_jsonb(c)::text from pgonce.external_call c";
        let all = world.see.text(all).await;
        assert_eq!(all.contains("4242 4242"), !redacts, "{all}");
        assert_eq!(all.contains("\"charged\": 5"), has_body, "{all}");
    }
}

#[tokio::test]
async fn with_keys_for_answers_nothing_of_a_call_is_readable_in_the_database() {
    let world = World::<TokioPostgres>::new().await;
    let keys = AnswerKeys::new("k1", [1; 32]).unwrap();
    let once = world.another("sealed", 3, |builder| builder.encrypt_answers(keys));
    let bank = Bank::new([Act::Confirm]);
    let mut lease = take(&once, "k").await;
    let request = json!({"card": "4242 4242"});
    for _ in 0..2 {
        let reply = lease
            .external()
            .call("charge", &bank, &request)
            .await
            .unwrap();
        assert_eq!(reply.body, receipt().body);
    }
    let all = "select to_jsonb(c)::text from pgonce.external_call c";
    let all = world.see.text(all).await;
    assert!(
        !all.contains("4242 4242") && all.contains("pgonce_sealed"),
        "{all}"
    );
}

#[tokio::test]
async fn after_its_retention_a_key_that_may_run_again_sends_again() {
    let world = World::<TokioPostgres>::new().await;
    let bank = Bank::new([]);
    for (later, sent) in [("0", 1), ("1 day", 1), ("7 days", 2)] {
        let later = format!("select pgonce._move_clock(interval '{later}')");
        world.see.run(&later).await;
        let paid = pay(&world.once, &intent("k"), "charge".into(), &bank).await;
        assert_eq!(code(paid), "Some(\"ch_1\")");
        assert_eq!(bank.came().len(), sent, "{later}");
    }
    let calls = "select count(*) from pgonce.external_call";
    world.see.run("select pgonce.purge()").await;
    assert_eq!(world.see.number(calls).await, 1);
    world
        .see
        .run("select pgonce._move_clock(interval '8 days'); select pgonce.purge(); select pgonce.purge()")
        .await;
    assert_eq!(world.see.number(calls).await, 0);
}

for_each_driver!(
    a_call_is_recorded_before_it_is_sent_and_with_its_outcome,
    a_retried_command_goes_on_after_the_steps_that_are_done,
    what_may_have_happened_is_unknown_and_not_sent_again_without_keys,
);
