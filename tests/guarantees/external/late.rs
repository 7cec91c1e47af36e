//! Responses that come late, or that cannot be stored: what a provider said is true all the same.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::external::{
    CallError, Effect, Found, Observed, Provider, Reply, Report, Step, Storage,
};
use pgonce::{Claim, Error, Failure};
use pgonce_tests::{Observer, World, intent};
use serde_json::{Value, json};

use super::bank::{Act, Bank, code, pay, receipt};
use super::{status, take};

/// A provider during whose call another attempt takes the command over.
struct Pausing<'a> {
    bank: &'a Bank,
    see: &'a Observer,
    /// Whether it answers only after the holder has learnt of it.
    waits: bool,
}

impl Provider for Pausing<'_> {
    fn name(&self) -> &str {
        "bank"
    }

    async fn call(&self, effect: &Effect, request: &Value) -> Result<Reply, CallError> {
        let take_over = "select pgonce.intervene('release', 'orders.create', 'k', 'test', true); \
            select from pgonce.claim('orders.create', 'k', (select fingerprint from pgonce.intent where key = 'k'), '1 hour')";
        self.see.run(take_over).await;
        if self.waits {
            self.see.wait_until("select is_called from beats").await;
            for _ in 0..20 {
                self.see.run("select 1").await;
            }
        }
        self.bank.call(effect, request).await
    }

    fn store_request(&self) -> Storage {
        self.bank.store_request()
    }
}

/// Outcome of the provider, status of the call afterwards, what the next attempt gets, and the requests that came by then.
#[tokio::test]
async fn what_a_provider_answers_counts_also_for_who_lost_the_lease_meanwhile() {
    for (act, late, next, came) in [
        (Act::Confirm, "confirmed", "Some(\"ch_1\")", 1),
        (Act::Reject, "failed", "declined", 1),
        (Act::Accept("ch_9"), "unknown", "external_unknown", 1),
        (Act::NotNow, "requested", "Some(\"ch_1\")", 2),
    ] {
        for waits in [false, true] {
            let world = World::<TokioPostgres>::new().await;
            // The holder learns from its heartbeat, or else when it records.
            let fenced = "create sequence beats; grant all on beats to public; \
                create or replace function pgonce.heartbeat(p_scope text, p_key text, p_fence bigint, p_lease interval, p_tenant text default '') \
                returns timestamptz language plpgsql as $$ begin perform nextval('public.beats'); raise 'gone' using errcode = 'P4012'; end $$";
            let bank = Bank::new([act.clone()]);
            let Claim::Run(mut old) = world
                .once
                .lease(&intent("k"), Duration::from_secs(3))
                .await
                .unwrap()
            else {
                panic!("not ours");
            };
            world.see.run(fenced).await;
            let paused = Pausing {
                bank: &bank,
                see: &world.see,
                waits,
            };
            let request = json!({"amount": 5, "card": "4242 4242"});
            let error = old
                .external()
                .call("charge", &paused, &request)
                .await
                .unwrap_err();
            assert!(matches!(error, Error::Fenced(_)), "{error:?}");
            assert_eq!(status(&world.see, "k").await, late);
            let release = "select pgonce.intervene('release', 'orders.create', 'k', 'test', true)";
            world.see.run(release).await;
            let paid = pay(&world.once, &intent("k"), "charge".into(), &bank).await;
            assert_eq!(code(paid), next);
            assert_eq!(bank.came().len(), came);
            if late == "unknown" {
                let webhook = Report::confirmed(receipt().reference("ch_9")).event_id("evt_1");
                let observed = world.once.observe(&bank, webhook).await.unwrap();
                assert_eq!(observed, Observed::Applied, "its reference is known");
            }
        }
    }
}

#[tokio::test]
async fn of_a_try_that_another_followed_only_what_happened_counts() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_provider('bank', p_keys_for => '1 day')")
        .await;
    let call = |function: &str, fence: i64, rest: &str| {
        format!(
            "select action from pgonce.{function}('orders.create', 'k', {fence}, 'charge', {rest})"
        )
    };
    let send = |fence| call("external_send", fence, "'bank', '\\x01'");
    let first = take(&world.once, "k").await.fence();
    assert_eq!(see.text(&send(first)).await, "send");
    see.run("select pgonce.intervene('release', 'orders.create', 'k', 'test', true)")
        .await;
    let second = take(&world.once, "k").await.fence();
    // The new holder has not sent it yet, and says nothing about the try of the old one.
    let unsent = call("external_record", second, "'failed'");
    assert_eq!(see.code(&unsent).await, "55000");
    assert_eq!(see.text(&send(second)).await, "send");
    for (said, status) in [
        ("'not_sent'", "sent "),
        ("'failed', p_code => 'declined'", "sent "),
        ("'unknown', 'ch_9'", "sent ch_9"),
        ("'confirmed'", "confirmed ch_9"),
    ] {
        let late = call("external_record", first, said);
        assert_eq!(see.text(&late).await, "fenced", "{said}");
        let now =
            "select concat(status, ' ', reference) from pgonce.external_calls where sends = 2";
        assert_eq!(see.text(now).await, status, "{said}");
    }
    // A report was faster, and had no reference.
    see.run("update pgonce.external_call set reference = null")
        .await;
    let accepted = call("external_record", second, "'unknown', 'ch_8'");
    assert_eq!(see.text(&accepted).await, "done");
    let reference = "select reference from pgonce.external_calls";
    assert_eq!(see.text(reference).await, "ch_8");
    let nobody = call("external_record", second + 2, "'confirmed'");
    assert_eq!(see.code(&nobody).await, "P4012");
}

/// A response whose text PostgreSQL's JSON cannot hold, under a reference that nothing can hold.
fn unstorable() -> Reply {
    let long = "x".repeat(2000);
    Reply::new(&json!({"text": "a\0b"}))
        .unwrap()
        .reference(long)
}

#[tokio::test]
async fn what_cannot_be_stored_hides_no_outcome() {
    let world = World::<TokioPostgres>::new().await;
    let once = &world.once;
    // In the response, and in the request.
    let bank = Bank::new([Act::Say(unstorable()), Act::Cut, Act::Cut, Act::Cut]);
    let mut lease = take(once, "said").await;
    let request = json!({"text": "a\0b"});
    let said = lease.external().call("charge", &bank, &request).await;
    assert_eq!(said.unwrap(), unstorable());
    assert_eq!(status(&world.see, "said").await, "confirmed");
    // In what a look-up finds, and in what a webhook reports.
    for key in ["found", "failed", "reported"] {
        let paid = pay(once, &intent(key), "charge".into(), &bank).await;
        assert_eq!(code(paid), "external_unknown");
    }
    let effect = bank.came().remove(3);
    let report = Report::confirmed(unstorable()).effect_key(effect);
    let observed = once.observe(&bank, report.event_id("evt_1")).await.unwrap();
    assert_eq!(observed, Observed::Applied);
    assert_eq!(status(&world.see, "reported").await, "confirmed");
    bank.knows(Found::Confirmed(unstorable()));
    let due = "update pgonce.external_call set next_look_at = pgonce.now() where key = ";
    world.see.run(&format!("{due} 'found'")).await;
    let reconciler = once.reconciler(bank);
    assert_eq!(reconciler.pass().await.unwrap().decided, 1);
    assert_eq!(status(&world.see, "found").await, "confirmed");
    let bank = Bank::new([]);
    bank.knows(Found::Failed(Failure::permanent("declined", "no\0funds")));
    world.see.run(&format!("{due} 'failed'")).await;
    let reconciler = once.reconciler(bank);
    assert_eq!(reconciler.pass().await.unwrap().decided, 1);
    assert_eq!(status(&world.see, "failed").await, "failed");
}

#[tokio::test]
async fn what_an_operator_lets_send_again_is_not_failed_by_the_try_before() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let fence = take(&world.once, "k").await.fence();
    let send = format!(
        "select effect_key::text from pgonce.external_send('orders.create', 'k', {fence}, 'charge', 'bank', '\\x01')"
    );
    let effect = see.text(&send).await;
    see.run(&format!(
        "select pgonce.intervene('release', 'orders.create', 'k', 'test', true); \
         select pgonce.external_settle('{effect}', 'resend', 'it is not in the book', true)"
    ))
    .await;
    let late = format!(
        "select action from pgonce.external_record('orders.create', 'k', {fence}, 'charge', 'failed')"
    );
    assert_eq!(see.text(&late).await, "fenced");
    assert_eq!(status(see, "k").await, "requested");
}

#[tokio::test]
async fn what_a_look_up_found_says_nothing_against_a_later_try() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let first = take(&world.once, "k").await.fence();
    let send = |fence| {
        format!(
            "select effect_key::text from pgonce.external_send('orders.create', 'k', {fence}, 'charge', 'bank', '\\x01')"
        )
    };
    let effect = see.text(&send(first)).await;
    let sent_at = see
        .text("select sent_at::text from pgonce.external_call")
        .await;
    see.run(&format!(
        "select pgonce.intervene('release', 'orders.create', 'k', 'test', true); \
         select pgonce.external_settle('{effect}', 'resend', 'it is not in the book', true)"
    ))
    .await;
    let found = format!(
        "select pgonce.external_observe('bank', 'failed', '{effect}', p_source => 'look_up', p_sent_at => '{sent_at}')"
    );
    assert_eq!(see.text(&found).await, "no_call");
    assert_eq!(status(see, "k").await, "requested");
    let second = take(&world.once, "k").await.fence();
    assert_eq!(see.text(&send(second)).await, effect);
    assert_eq!(see.text(&found).await, "no_call");
    let confirmed = format!(
        "select action from pgonce.external_record('orders.create', 'k', {second}, 'charge', 'confirmed')"
    );
    assert_eq!(see.text(&confirmed).await, "done");
}

#[tokio::test]
async fn a_late_record_that_nothing_was_sent_does_not_free_the_next_try_of_its_fence() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let fence = take(&world.once, "k").await.fence();
    let call = |name, more: &str, send| {
        format!(
            "select action from pgonce.{name}('orders.create', 'k', {fence}, 'charge', {more}, p_send => '{send}')"
        )
    };
    let (first, second) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
    let send = |id| call("external_send", "'bank', '\\x01'", id);
    let unsent = call("external_record", "'not_sent'", first);
    assert_eq!(see.text(&send(first)).await, "send");
    assert_eq!(see.text(&unsent).await, "wait");
    assert_eq!(see.text(&send(second)).await, "send");
    see.run(&unsent).await;
    assert_eq!(status(see, "k").await, "sent");
    assert_eq!(see.text(&send(uuid::Uuid::new_v4())).await, "unknown");
}

#[tokio::test]
async fn a_report_stores_no_more_than_the_policy_of_its_provider() {
    for (storage, kept) in [
        (Storage::redacted(["card"]), true),
        (Storage::Digest, false),
        (Storage::None, false),
    ] {
        let world = World::<TokioPostgres>::new().await;
        let mut bank = Bank::new([Act::Cut]);
        bank.storage = storage;
        // It waits for its call.
        let report = Report::confirmed(receipt().reference("ch_5")).event_id("evt_1");
        let observed = world.once.observe(&bank, report).await.unwrap();
        assert_eq!(observed, Observed::Waiting);
        // It ends the command.
        let step = Step::new("charge").decides_command();
        let paid = pay(&world.once, &intent("k"), step, &bank).await;
        assert_eq!(code(paid), "external_unknown");
        bank.knows(Found::Confirmed(receipt()));
        world
            .see
            .run("update pgonce.external_call set next_look_at = pgonce.now()")
            .await;
        assert_eq!(world.once.reconciler(bank).pass().await.unwrap().decided, 1);
        let all = "select concat((select to_jsonb(e) from pgonce.external_event e), (select to_jsonb(c) from pgonce.external_call c), \
                   (select to_jsonb(i) from pgonce.intent i))";
        let all = world.see.text(all).await;
        assert!(!all.contains("4242 4242"), "{all}");
        let ended = world.see.record(&intent("k"), "status").await;
        let expected = if kept {
            "succeeded"
        } else {
            "failed_retryable"
        };
        assert_eq!(ended, expected);
    }
}

/// The call is not begun after the lease was lost, though it was recorded as sent: the next holder decides.
#[tokio::test]
async fn a_call_whose_record_took_longer_than_the_lease_is_not_begun_by_who_lost_it() {
    let world = World::<TokioPostgres>::new().await;
    let (bank, see) = (Bank::new([]), &world.see);
    let Claim::Run(mut old) = world
        .once
        .lease(&intent("k"), Duration::from_secs(1))
        .await
        .unwrap()
    else {
        panic!("not ours");
    };
    see.run(
        "create function public.until_over() returns trigger language plpgsql as $$ begin
             while exists (select from pgonce.intent i where i.key = 'k' and i.lease_until > pgonce.now()) loop
                 perform pg_sleep(0.02);
             end loop;
             return new;
         end $$;
         create trigger slow before insert or update on pgonce.external_call for each row execute function public.until_over();
         create or replace function pgonce.heartbeat(p_scope text, p_key text, p_fence bigint, p_lease interval, p_tenant text default '')
             returns timestamptz language plpgsql as $$ begin raise 'gone' using errcode = 'P4012'; end $$",
    )
    .await;
    let request = json!({"amount": 5});
    let lost = old.external().call("charge", &bank, &request).await;
    assert_eq!(code(lost), "P4012");
    assert_eq!(bank.came(), [""; 0]);
    assert_eq!(status(see, "k").await, "requested");
}

/// A provider that looks up for so long that an operator lets the request be sent again meanwhile.
struct Settled<'a> {
    bank: &'a Bank,
    see: &'a Observer,
}

impl Provider for Settled<'_> {
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
        let key = &effect.key;
        let resend = format!(
            "select pgonce.external_settle('{key}', 'resend', 'it is not in the book', true)"
        );
        self.see.run(&resend).await;
        Ok(Found::Failed(Failure::permanent("declined", "no funds")))
    }
}

#[tokio::test]
async fn a_look_up_by_a_command_says_nothing_against_what_an_operator_allowed_meanwhile() {
    let world = World::<TokioPostgres>::new().await;
    let bank = Bank::new([Act::Cut]);
    let request = json!({"amount": 5});
    let mut lease = take(&world.once, "k").await;
    let cut = lease.external().call("charge", &bank, &request).await;
    assert_eq!(code(cut), "external_unknown");
    let settled = Settled {
        bank: &bank,
        see: &world.see,
    };
    let reply = lease.external().call("charge", &settled, &request).await;
    assert_eq!(reply.unwrap().reference.as_deref(), Some("ch_1"));
    assert_eq!(bank.came().len(), 2);
    assert_eq!(status(&world.see, "k").await, "confirmed");
}
