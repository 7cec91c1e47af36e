//! What an operator decides about an intent by hand holds, and opens no second effect unseen.

use futures_util::future::join;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{Observer, World};

async fn world() -> World<TokioPostgres> {
    let world = World::new().await;
    for stale in ["takeover", "hold", "refuse"] {
        let define =
            format!("select pgonce.define_scope('{stale}', '1 day', p_stale => '{stale}')");
        world.see.run(&define).await;
    }
    world
}

async fn claim(see: &Observer, scope: &str, key: &str) -> i64 {
    let claim = format!("select fence from pgonce.claim('{scope}', '{key}', '\\x01', '1 minute')");
    see.number(&claim).await
}

async fn outcome(see: &Observer, scope: &str, key: &str) -> String {
    let claim = format!("select outcome from pgonce.claim('{scope}', '{key}', '\\x01')");
    see.text(&claim).await
}

async fn expire(see: &Observer) {
    let past = "update pgonce.intent set lease_until = pgonce.now() - interval '1 second' where lease_until is not null";
    see.run(past).await;
}

fn act(act: &str, scope: &str, key: &str, more: &str) -> String {
    let fail = if act == "fail" {
        ", p_code => 'lost'"
    } else {
        ""
    };
    format!("select pgonce.intervene('{act}', '{scope}', '{key}', 'ticket 7'{fail}{more})")
}

/// Whatever the holder does afterwards, the operator's word stands.
#[tokio::test]
async fn an_old_holder_is_turned_away_after_every_act() {
    let world = world().await;
    let see = &world.see;
    for (done, next) in [
        ("settle", "replay"),
        ("fail", "refused"),
        ("release", "retry"),
        ("evict", "fresh"),
    ] {
        let fence = claim(see, "hold", done).await;
        // It is alive: only by force.
        assert_eq!(see.code(&act(done, "hold", done, "")).await, "55000");
        see.run(&act(
            done,
            "hold",
            done,
            ", p_force => true, p_answer => '{\"by\": \"hand\"}'",
        ))
        .await;
        let gone = done == "evict";
        for (late, expected) in [
            (
                format!("select pgonce.succeed('hold', '{done}', '\\x01', {fence}, '1')"),
                if gone { "P4010" } else { "P4012" },
            ),
            (
                format!("select pgonce.fail('hold', '{done}', '\\x01', {fence}, true, 'c', 'm')"),
                if gone { "P4011" } else { "P4012" },
            ),
            (
                format!("select pgonce.heartbeat('hold', '{done}', {fence}, '1 minute')"),
                "P4012",
            ),
            (
                format!("select pgonce.guard('hold', '{done}', {fence})"),
                "P4012",
            ),
        ] {
            assert_eq!(see.code(&late).await, expected, "{done}: {late}");
        }
        assert_eq!(outcome(see, "hold", done).await, next);
        if matches!(done, "release" | "evict") {
            assert!(claim(see, "hold", done).await > fence);
            let late = format!("select pgonce.succeed('hold', '{done}', '\\x01', {fence}, '1')");
            assert_eq!(see.code(&late).await, "P4012", "{done}");
        }
    }
    let answer = "select answer ->> 'by' from pgonce.claim('hold', 'settle', '\\x01')";
    assert_eq!(see.text(answer).await, "hand");
}

#[tokio::test]
async fn an_act_that_could_open_a_second_effect_is_refused_unless_forced() {
    let world = world().await;
    let see = &world.see;
    for scope in ["takeover", "hold", "refuse"] {
        for key in ["settle", "fail", "release", "evict"] {
            claim(see, scope, key).await;
        }
    }
    expire(see).await;
    let forced = ", p_force => true";
    for scope in ["takeover", "hold", "refuse"] {
        for done in ["settle", "fail"] {
            see.run(&act(done, scope, done, "")).await;
            // What is finished stays so; only its record can be removed.
            for again in ["settle", "fail", "release"] {
                let again = act(again, scope, done, forced);
                assert_eq!(see.code(&again).await, "55000", "{again}");
            }
        }
        assert_eq!(see.code(&act("evict", scope, "settle", "")).await, "55000");
        assert_eq!(see.code(&act("evict", scope, "evict", "")).await, "55000");
        see.run(&act("evict", scope, "evict", forced)).await;
        // A permanent failure had no effect.
        see.run(&act("retry", scope, "fail", "")).await;
        assert_eq!(outcome(see, scope, "fail").await, "fresh");
        let release = act("release", scope, "release", "");
        if scope == "takeover" {
            // Anybody may take over; that it did not happen is only said by force.
            see.run(&release).await;
            assert_eq!(outcome(see, scope, "release").await, "takeover");
        } else {
            assert_eq!(see.code(&release).await, "55000");
            see.run(&act("release", scope, "release", forced)).await;
            assert_eq!(outcome(see, scope, "release").await, "retry");
        }
    }
    // Abandoned: it may have happened.
    claim(see, "refuse", "vanished").await;
    expire(see).await;
    assert_eq!(outcome(see, "refuse", "vanished").await, "refused");
    let retry = act("retry", "refuse", "vanished", "");
    assert_eq!(see.code(&retry).await, "55000");
    see.run(&act("retry", "refuse", "vanished", forced)).await;
    assert_eq!(outcome(see, "refuse", "vanished").await, "fresh");
}

#[tokio::test]
async fn a_holder_inside_its_guarded_write_comes_first() {
    let world = world().await;
    let (see, holder) = (&world.see, world.observer().await);
    let fence = claim(see, "hold", "k").await;
    expire(see).await;
    holder
        .run(&format!("begin; select pgonce.guard('hold', 'k', {fence})"))
        .await;
    let settle = act("settle", "hold", "k", ", p_answer => '1'");
    let finish = async {
        see.wait_until_asleep("operator").await;
        let succeed = format!("select pgonce.succeed('hold', 'k', '\\x01', {fence}, '2'); commit");
        holder.run(&succeed).await;
    };
    let operator = world.observer().await;
    operator.run("set application_name = 'operator'").await;
    let (code, ()) = join(operator.code(&settle), finish).await;
    assert_eq!(code, "55000", "it had happened");
    let answer = "select answer::text from pgonce.claim('hold', 'k', '\\x01')";
    assert_eq!(see.text(answer).await, "2");
    assert_eq!(
        see.number("select count(*) from pgonce.operator_act where key = 'k'")
            .await,
        0
    );
}

#[tokio::test]
async fn every_act_is_recorded_with_its_reason_and_a_refused_one_is_not() {
    let world = world().await;
    let (see, other) = (&world.see, world.observer().await);
    claim(see, "hold", "k").await;
    expire(see).await;
    for wrong in [
        "select pgonce.intervene('settle', 'hold', 'k', ' ')",
        "select pgonce.intervene('erase', 'hold', 'k', 'r')",
        "select pgonce.intervene(null, 'hold', 'k', 'r')",
        "select pgonce.intervene('fail', 'hold', 'k', 'r')",
    ] {
        assert_eq!(see.code(wrong).await, "22023", "{wrong}");
    }
    assert_eq!(see.code(&act("settle", "hold", "none", "")).await, "42704");
    // Two operators at once: one decides, the other learns that it is decided.
    let settle = act(
        "settle",
        "hold",
        "k",
        ", p_answer => '\"secret\"', p_person => 'ada'",
    );
    let fail = act("fail", "hold", "k", "");
    let (one, two) = join(see.code(&settle), other.code(&fail)).await;
    let mut codes = [one, two];
    codes.sort();
    assert_eq!(codes, ["", "55000"]);
    let rows = "select count(*) from pgonce.operator_act where reason = 'ticket 7' and not forced and role = session_user \
                and before ->> 'status' = 'processing' and not before ? 'answer' and before::text !~ 'secret'";
    assert_eq!(see.number(rows).await, 1);
}

#[tokio::test]
async fn an_act_on_what_was_seen_is_refused_where_it_is_no_longer_so() {
    let world = world().await;
    let see = &world.see;
    let seen = "select json_build_object('status', status, 'fence', fence, 'lease_until', lease_until)::text from pgonce.intent \
                where scope = 'hold' and key";
    for key in ["succeeded", "revived"] {
        claim(see, "hold", key).await;
    }
    let claimed = claim(see, "takeover", "taken over").await;
    expire(see).await;
    let fence = see
        .number("select fence from pgonce.intent where key = 'succeeded'")
        .await;
    let mut evict = Vec::new();
    for key in ["succeeded", "revived"] {
        let before = see.text(&format!("{seen} = '{key}'")).await;
        evict.push((key, before));
    }
    // Meanwhile: the holder comes back, under a contract that allows it.
    see.run(&format!(
        "select pgonce.succeed('hold', 'succeeded', '\\x01', {fence}, '\"done\"')"
    ))
    .await;
    let fence = see
        .number("select fence from pgonce.intent where key = 'revived'")
        .await;
    see.run(&format!(
        "select pgonce.heartbeat('hold', 'revived', {fence}, '1 minute')"
    ))
    .await;
    claim(see, "takeover", "taken over").await;
    for (key, before) in &evict {
        let more = format!(", p_force => true, p_before => '{before}'");
        assert_eq!(
            see.code(&act("evict", "hold", key, &more)).await,
            "55000",
            "{key}"
        );
    }
    let by_fence = format!(", p_force => true, p_before => '{{\"fence\": {claimed}}}'");
    let release = act("release", "takeover", "taken over", &by_fence);
    assert_eq!(see.code(&release).await, "55000");
    let acts = "select count(*) from pgonce.operator_act where act in ('evict', 'release')";
    assert_eq!(see.number(acts).await, 0);
    assert_eq!(outcome(see, "hold", "succeeded").await, "replay");
    // What is as it was seen is acted on.
    let before = see.text(&format!("{seen} = 'succeeded'")).await;
    let more = format!(", p_force => true, p_before => '{before}'");
    see.run(&act("evict", "hold", "succeeded", &more)).await;
    assert_eq!(outcome(see, "hold", "succeeded").await, "fresh");
}

/// The word is free for applications, too: only where a holder vanished it means that.
#[tokio::test]
async fn a_failure_that_an_application_calls_abandoned_is_a_refusal() {
    let world = world().await;
    let see = &world.see;
    see.run(
        "select pgonce.fail('refuse', 'own', '\\x01', 1, false, 'abandoned', 'the cart was left')",
    )
    .await;
    claim(see, "refuse", "vanished").await;
    expire(see).await;
    assert_eq!(outcome(see, "refuse", "vanished").await, "refused");
    // Given up after a retry, under a number that is no lease's.
    let fence = claim(see, "takeover", "later").await;
    expire(see).await;
    assert_eq!(fence % 2, 0);
    let fence = claim(see, "takeover", "later").await;
    see.run(&format!(
        "select pgonce.fail('takeover', 'later', '\\x01', {fence}, true, 'down', 'm')"
    ))
    .await;
    see.run("select pgonce.define_scope('takeover', '1 day', p_stale => 'refuse')")
        .await;
    assert_eq!(outcome(see, "takeover", "later").await, "refused");
    for (scope, key, verdict, forced) in [
        ("refuse", "own", "It was refused, finally.", false),
        ("refuse", "vanished", "Its holder vanished", true),
        ("takeover", "later", "Its holder vanished", true),
    ] {
        let said = format!("select pgonce._verdict(i) from pgonce.intent i where key = '{key}'");
        let said = see.text(&said).await;
        assert!(said.starts_with(verdict), "{key}: {said}");
        let code = see.code(&act("retry", scope, key, "")).await;
        assert_eq!(code, if forced { "55000" } else { "" }, "{key}");
    }
}

/// A call to a provider that happened, or may have, is no refusal.
#[tokio::test]
async fn a_command_whose_call_may_have_happened_fails_by_force_only() {
    let world = world().await;
    let see = &world.see;
    for (outcome, open) in [
        ("confirmed", true),
        ("unknown", true),
        ("failed", false),
        ("not_sent", false),
    ] {
        let fence = claim(see, "hold", outcome).await;
        let names = format!("'hold', '{outcome}', {fence}, 'charge'");
        see.run(&format!(
            "select from pgonce.external_send({names}, 'bank', '\\x01'); select from pgonce.external_record({names}, '{outcome}')"
        ))
        .await;
        expire(see).await;
        let fail = act("fail", "hold", outcome, "");
        if open {
            assert_eq!(see.code(&fail).await, "55000", "{outcome}");
        }
        let forced = format!(", p_force => {open}");
        see.run(&act("fail", "hold", outcome, &forced)).await;
        let verdict = format!(
            "select pgonce._verdict(i) like '%but a call%' from pgonce.intent i where i.key = '{outcome}'"
        );
        assert_eq!(
            see.text(&verdict).await,
            if open { "t" } else { "f" },
            "{outcome}"
        );
    }
}
