//! Work whose holder vanished is decided by its contract and its probe, and by nobody else; what was tried stays known.

use futures_util::future::join;
use pgonce::Isolation;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::faults::{self, Action, RECOVERY_POINTS};
use pgonce::recovery::Recovered;
use pgonce_tests::{Observer, Setting, World};

/// Scopes by what happens without an effect, and a probe that finds what is in `made`. It waits for `gate` where the key says so.
const SHOP: &str = "
create schema shop;
create table shop.made (key text, id bigint);
create function shop.find(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, ref_type text, ref_id text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_key = 'slow' then
        perform pg_advisory_xact_lock(77);
    elsif p_key = 'broken' then
        raise exception 'no idea';
    end if;
    return query select jsonb_build_object('id', m.id), 'order', m.id::text from shop.made m where m.key = p_key;
end $$;
grant usage, create on schema shop to world_app;
grant all on shop.made to world_app;
alter function shop.find owner to world_app;
select pgonce.define_scope('takeover', '1 day', p_probe => 'shop.find', p_retry_queue => 'again', p_max_attempts => 3);
select pgonce.define_scope('hold', '1 day', p_probe => 'shop.find', p_stale => 'hold');
select pgonce.define_scope('refuse', '1 day', p_probe => 'shop.find', p_stale => 'refuse');
select pgonce.define_scope('plain', '1 day', p_stale => 'refuse');";

const SCOPES: [&str; 3] = ["takeover", "hold", "refuse"];

async fn world() -> World<TokioPostgres> {
    let world = World::new().await;
    world.see.run(SHOP).await;
    world
}

/// A lease whose holder vanishes. Answers its fence.
async fn vanished(see: &Observer, scope: &str, key: &str) -> i64 {
    let claim = format!(
        "select fence from pgonce.claim('{scope}', '{key}', '\\x01', '1 minute', 'worker-7')"
    );
    let fence = see.number(&claim).await;
    // Of this one alone: what recovery holds stays its own.
    see.run(&format!("update pgonce.intent set lease_until = pgonce.now() - interval '1 second' where scope = '{scope}' and key = '{key}'"))
        .await;
    fence
}

async fn expire(see: &Observer) {
    see.run("update pgonce.intent set lease_until = pgonce.now() - interval '1 second' where lease_until is not null")
        .await;
}

async fn outcome(see: &Observer, scope: &str, key: &str) -> String {
    let claim = format!("select outcome from pgonce.claim('{scope}', '{key}', '\\x01')");
    see.text(&claim).await
}

async fn recover(world: &World<TokioPostgres>) -> Recovered {
    world.owner.recovery().run_once().await.unwrap()
}

#[tokio::test]
async fn the_probe_decides_and_its_absence_of_an_effect_leaves_it_to_the_contract() {
    let world = world().await;
    let see = &world.see;
    see.run("insert into shop.made values ('made', 81)").await;
    for scope in SCOPES {
        for key in ["made", "absent"] {
            vanished(see, scope, key).await;
            // Whether it happened is not known: nobody may do it, and nobody may be refused.
            assert_eq!(outcome(see, scope, key).await, "busy", "{scope} {key}");
        }
    }
    vanished(see, "plain", "absent").await;
    let recovered = recover(&world).await;
    assert_eq!(
        (
            recovered.succeeded,
            recovered.released,
            recovered.abandoned,
            recovered.needs_manual_action
        ),
        (3, 1, 2, 1),
        "{recovered:?}"
    );
    for scope in SCOPES {
        let replay = format!(
            "select outcome || ' ' || (answer ->> 'id') || ' ' || ref_type || '/' || ref_id from pgonce.claim('{scope}', 'made', '\\x01')"
        );
        assert_eq!(see.text(&replay).await, "replay 81 order/81", "{scope}");
    }
    for (scope, expected) in [
        ("takeover", "retry"),
        ("hold", "busy"),
        ("refuse", "refused"),
        ("plain", "refused"),
    ] {
        assert_eq!(outcome(see, scope, "absent").await, expected, "{scope}");
    }
    // Every decision is audited, once; what is left to an operator is not asked about again.
    assert_eq!(recover(&world).await, Recovered::default());
    let audited = "select count(*) || ' ' || count(distinct (scope, key)) from pgonce.operator_act \
                   where act = 'recover' and person like 'recovery%' and before ->> 'status' = 'processing'";
    assert_eq!(see.text(audited).await, "7 7");
    let job = "select payload ->> 'scope' || ' ' || (payload ->> 'key') from pgonce.job where queue = 'again'";
    assert_eq!(see.text(job).await, "takeover absent");
    let stuck = "select classification from pgonce.stuck where scope = 'hold' and key = 'absent'";
    assert_eq!(see.text(stuck).await, "needs_manual_action");
}

#[tokio::test]
async fn a_slow_owner_is_refused_once_recovery_has_taken_its_intent() {
    let world = world().await;
    let see = &world.see;
    for scope in SCOPES {
        let fence = vanished(see, scope, "k").await;
        see.run("select pgonce._take_stale(10, 'r', '1 minute')")
            .await;
        for late in [
            format!("select pgonce.succeed('{scope}', 'k', '\\x01', {fence}, '1')"),
            format!("select pgonce.fail('{scope}', 'k', '\\x01', {fence}, false, 'c', 'm')"),
            format!("select pgonce.heartbeat('{scope}', 'k', {fence}, '1 minute')"),
            format!("select pgonce.guard('{scope}', 'k', {fence})"),
        ] {
            assert_eq!(see.code(&late).await, "P4012", "{late}");
        }
    }
}

#[tokio::test]
async fn a_guarded_write_is_seen_by_the_probe_or_refused() {
    let world = world().await;
    let (see, holder) = (&world.see, world.observer().await);
    let fence = vanished(see, "refuse", "k").await;
    // It is inside its write: recovery passes it over.
    see.run("update pgonce.intent set lease_until = pgonce.now() + interval '1 minute'")
        .await;
    holder
        .run(&format!(
            "begin; select pgonce.guard('refuse', 'k', {fence}); insert into shop.made values ('k', 9)"
        ))
        .await;
    see.run("select pgonce._move_clock(interval '1 hour')")
        .await;
    assert_eq!(recover(&world).await, Recovered::default());
    holder.run("commit").await;
    assert_eq!(recover(&world).await.succeeded, 1);
    assert_eq!(outcome(see, "refuse", "k").await, "replay");
}

#[tokio::test]
async fn recovery_that_ends_anywhere_is_made_good_by_another_and_never_decides_twice() {
    let world = world().await;
    let see = &world.see;
    see.run("insert into shop.made select 'k' || n, n from generate_series(0, 9) n")
        .await;
    for (number, place) in RECOVERY_POINTS.iter().enumerate() {
        let key = format!("k{number}");
        vanished(see, "refuse", &key).await;
        faults::arm(place, 1, Action::Error);
        let struck = world.owner.recovery().run_once().await;
        assert!(
            !matches!(struck, Ok(done) if done.succeeded == 1),
            "{place}: {struck:?}"
        );
        // What it held is held until its time is over, and a failed probe is asked again after a while.
        see.run("select pgonce._move_clock(interval '1 hour')")
            .await;
        let second = recover(&world).await;
        let first = u64::from(*place == "recovery.decided");
        assert_eq!(second.succeeded + first, 1, "{place}: {second:?}");
        assert_eq!(outcome(see, "refuse", &key).await, "replay", "{place}");
        let audited = format!(
            "select count(*) from pgonce.operator_act where key = '{key}' and act = 'recover'"
        );
        assert_eq!(see.number(&audited).await, 1, "{place}");
    }
}

#[tokio::test]
async fn a_decision_that_was_overtaken_changes_nothing() {
    let world = world().await;
    let see = &world.see;
    vanished(see, "refuse", "k").await;
    let take = "select fence from pgonce._take_stale(10, 'r', '1 minute')";
    let first = see.number(take).await;
    assert_eq!(see.text_if_any(take).await, None);
    expire(see).await;
    let second = see.number(take).await;
    assert!(second > first);
    let decide = |fence: i64, found: bool, probe: &str| {
        format!(
            "select pgonce._decide_stale('refuse', 'k', {fence}, {probe}, {found}, '1', null, null, null, '', 'r')"
        )
    };
    assert_eq!(
        see.code(&decide(first, false, "'shop.find'")).await,
        "P4012"
    );
    // A contract that has a probe decides nothing that was not asked.
    let unasked = see.text(&decide(second, false, "null")).await;
    assert_eq!(unasked, "unknown");
    assert_eq!(outcome(see, "refuse", "k").await, "busy");
    see.run("update pgonce.intent set last_at = last_at - interval '1 hour'")
        .await;
    let third = see.number(take).await;
    let settle = "select pgonce.intervene('settle', 'refuse', 'k', 'ticket 7', true, '2')";
    see.run(settle).await;
    assert_eq!(
        see.code(&decide(third, false, "'shop.find'")).await,
        "P4012"
    );
    let answer = "select answer from pgonce.claim('refuse', 'k', '\\x01')";
    assert_eq!(see.text(answer).await, "2");
}

#[tokio::test]
async fn a_slow_or_broken_probe_delays_only_itself() {
    let world = world().await;
    let (see, gate) = (&world.see, world.observer().await);
    gate.run("begin; select pg_advisory_xact_lock(77)").await;
    vanished(see, "refuse", "slow").await;
    vanished(see, "refuse", "broken").await;
    for key in 0..6 {
        see.run(&format!("insert into shop.made values ('k{key}', {key})"))
            .await;
        vanished(see, "refuse", &format!("k{key}")).await;
    }
    let recovery = world.owner.recovery().concurrency(2);
    let recovery = recovery.probe_timeout(std::time::Duration::from_secs(600));
    let (recovered, ()) = join(recovery.run_once(), async {
        let others = "select count(*) = 6 from pgonce.intent where status = 'succeeded'";
        see.wait_until(others).await;
        // One that becomes stale while the slow one runs does not wait for it either.
        see.run("insert into shop.made values ('late', 7)").await;
        vanished(see, "refuse", "late").await;
        let late =
            "select count(*) = 1 from pgonce.intent where status = 'succeeded' and key = 'late'";
        see.wait_until(late).await;
        gate.run("rollback").await;
    })
    .await;
    let recovered = recovered.unwrap();
    assert_eq!(
        (recovered.succeeded, recovered.unknown, recovered.abandoned),
        (7, 1, 1),
        "{recovered:?}"
    );
    let broken = "select status || ' ' || failure_code || ' ' || (failure_message ~ 'no idea') from pgonce.intent where key = 'broken'";
    assert_eq!(see.text(broken).await, "processing probe_failed true");
}

#[tokio::test]
async fn a_probe_that_takes_too_long_decides_nothing() {
    let world = world().await;
    let (see, gate) = (&world.see, world.observer().await);
    gate.run("begin; select pg_advisory_xact_lock(77)").await;
    vanished(see, "refuse", "slow").await;
    let recovery = world.owner.recovery();
    let recovery = recovery.probe_timeout(std::time::Duration::from_millis(50));
    assert_eq!(recovery.run_once().await.unwrap().unknown, 1);
    assert_eq!(outcome(see, "refuse", "slow").await, "busy");
}

#[tokio::test]
async fn a_probe_has_its_owners_rights_and_leaves_nothing_behind() {
    let world = world().await;
    let see = &world.see;
    let signature = "(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, ref_type text, ref_id text) language sql";
    let pinned = "set search_path = pg_catalog, pg_temp";
    for (number, (attributes, expected)) in [
        (format!("security definer {pinned}"), ""),
        (format!("security invoker {pinned}"), "22023"),
        ("security definer".to_owned(), "22023"),
    ]
    .into_iter()
    .enumerate()
    {
        let define = format!(
            "create function shop.p{number}{signature} {attributes} as 'select null::jsonb, null::text, null::text'; \
             alter function shop.p{number} owner to world_app; \
             select pgonce.define_scope('refuse', '1 day', p_stale => 'refuse', p_probe => 'shop.p{number}')"
        );
        assert_eq!(see.code(&define).await, expected, "{attributes}");
    }
    see.run(&format!(
        "create function shop.mighty{signature} security definer {pinned} as 'select null::jsonb, null::text, null::text'"
    ))
    .await;
    for unknown in [
        "p0",
        // It belongs to a superuser.
        "shop.mighty",
        "shop.nothing",
        "pg_catalog.concat",
        "shop.find(text)",
        "a.b.c",
    ] {
        let define = format!("select pgonce.define_scope('x', '1 day', p_probe => '{unknown}')");
        assert_eq!(see.code(&define).await, "22023", "{unknown}");
    }
    // Changed since: it is asked no more.
    vanished(see, "refuse", "k").await;
    see.run("alter function shop.p0(text, text, text) security invoker")
        .await;
    assert_eq!(recover(&world).await.unknown, 1);
    // It can write nothing, so it can leave no trigger to the commit.
    see.run(&format!(
        "create function shop.writes{signature} volatile security definer {pinned} \
         as 'insert into shop.made values (''x'', 1) returning null::jsonb, null::text, null::text'; \
         alter function shop.writes owner to world_app; \
         select pgonce.define_scope('refuse', '1 day', p_stale => 'refuse', p_probe => 'shop.writes'); \
         select pgonce._move_clock(interval '2 hours')"
    ))
    .await;
    assert_eq!(recover(&world).await.unknown, 1);
    let why = "select failure_message ~ 'read-only' from pgonce.intent where key = 'k'";
    assert_eq!(see.text(why).await, "t");
    assert_eq!(see.number("select count(*) from shop.made").await, 0);
}

#[tokio::test]
async fn work_that_keeps_failing_gets_no_job_without_end() {
    let world = world().await;
    let see = &world.see;
    vanished(see, "takeover", "k").await;
    for jobs in [1, 1, 1] {
        assert_eq!(recover(&world).await.released, 1);
        let enqueued = "select count(*) from pgonce.jobs where queue = 'again'";
        assert_eq!(see.number(enqueued).await, jobs);
        vanished(see, "takeover", "k").await;
    }
    let audited = "select count(*) from pgonce.operator_act where reason ~ 'no job: it had'";
    assert_eq!(see.number(audited).await, 2);
}

#[tokio::test]
async fn an_outage_of_the_probe_uses_up_no_attempts_and_no_place_in_the_history() {
    let world = world().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('takeover', '1 day', p_probe => 'shop.find', p_retry_queue => 'again', p_max_attempts => 3, p_keep_attempts => 2)")
        .await;
    vanished(see, "takeover", "broken").await;
    for _ in 0..5 {
        assert_eq!(recover(&world).await.unknown, 1);
        see.run("select pgonce._move_clock(interval '2 hours')")
            .await;
    }
    see.run("create or replace function shop.find(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, ref_type text, ref_id text) \
             language sql security definer set search_path = pg_catalog, pg_temp as 'select null::jsonb, null::text, null::text where false'")
        .await;
    assert_eq!(recover(&world).await.released, 1);
    let jobs = "select count(*) from pgonce.jobs where queue = 'again'";
    assert_eq!(see.number(jobs).await, 1);
    assert_eq!(see.number("select attempts from pgonce.intent").await, 2);
    let history = "select string_agg(attempt || ' ' || outcome || ' ' || owner, ', ' order by fence) from pgonce.attempt";
    assert_eq!(see.text(history).await, "1 vanished worker-7");
}

#[tokio::test]
async fn a_scope_whose_probes_are_all_slow_delays_no_other_scope() {
    let world = world().await;
    let (see, gate) = (&world.see, world.observer().await);
    see.run(
        "create function shop.slow(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, ref_type text, ref_id text) \
         language sql security definer set search_path = pg_catalog, pg_temp as 'select null::jsonb, null::text, null::text from pg_advisory_xact_lock(77)'; \
         alter function shop.slow owner to world_app; \
         select pgonce.define_scope('slow', '1 day', p_stale => 'refuse', p_probe => 'shop.slow'); \
         insert into shop.made values ('quick', 1)",
    )
    .await;
    gate.run("begin; select pg_advisory_xact_lock(77)").await;
    for key in 0..12 {
        vanished(see, "slow", &key.to_string()).await;
    }
    vanished(see, "refuse", "quick").await;
    let recovery = world.owner.recovery().concurrency(2);
    let recovery = recovery.probe_timeout(std::time::Duration::from_secs(600));
    let (recovered, ()) = join(recovery.run_once(), async {
        see.wait_until("select status = 'succeeded' from pgonce.intent where key = 'quick'")
            .await;
        gate.run("rollback").await;
    })
    .await;
    assert_eq!(recovered.unwrap().succeeded, 13);
}

#[tokio::test]
async fn a_scope_whose_probes_take_too_long_is_left_to_the_next_run() {
    let world = world().await;
    let (see, gate) = (&world.see, world.observer().await);
    gate.run("begin; select pg_advisory_xact_lock(77)").await;
    see.run("create or replace function shop.find(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, ref_type text, ref_id text) \
             language sql security definer set search_path = pg_catalog, pg_temp as 'select null::jsonb, null::text, null::text from pg_advisory_xact_lock(77)'")
        .await;
    for key in 0..40 {
        vanished(see, "refuse", &key.to_string()).await;
    }
    let recovery = world.owner.recovery().concurrency(2);
    let recovery = recovery.probe_timeout(std::time::Duration::from_millis(600));
    let unknown = recovery.run_once().await.unwrap().unknown;
    assert!((2..=6).contains(&unknown), "{unknown} of 40 were asked");
}

/// Behind a pooler the session of the server goes on.
#[tokio::test]
async fn a_probe_leaves_no_lock_of_the_session_behind_a_pooler() {
    let setting = Setting {
        major: None,
        isolation: Isolation::ReadCommitted,
        pooler: true,
    };
    let world = World::<TokioPostgres>::in_setting(setting).await;
    let see = &world.see;
    see.run(SHOP).await;
    see.run("create or replace function shop.find(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, ref_type text, ref_id text) \
             language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ begin \
             perform pg_advisory_lock(4711); if p_key = 'broken' then raise 'no idea'; end if; end $$")
        .await;
    vanished(see, "refuse", "broken").await;
    vanished(see, "refuse", "k").await;
    let recovery = world.owner.recovery().concurrency(1);
    let recovered = recovery.run_once().await.unwrap();
    assert_eq!((recovered.unknown, recovered.abandoned), (1, 1));
    let held = "select count(*) from pg_locks where locktype = 'advisory' and objid = 4711 \
                and database = (select oid from pg_database where datname = current_database())";
    assert_eq!(see.number(held).await, 0);
}

#[tokio::test]
async fn the_history_has_a_row_for_each_attempt_that_another_followed_and_no_other() {
    let world = world().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('s', '1 day', p_keep_attempts => 3)")
        .await;
    let history = "select coalesce(string_agg(attempt || ' ' || outcome || ' ' || coalesce(owner, '-') || ' ' || coalesce(code, '-'), ', ' order by fence), '') from pgonce.attempt";
    // A first success, atomic or leased, costs none.
    see.run(
        "begin; select pgonce.claim('s', 'atomic', '\\x01'); select pgonce.succeed('s', 'atomic', '\\x01', 1); commit",
    )
    .await;
    let claim = |key: &str, owner: &str| {
        format!("select fence from pgonce.claim('s', '{key}', '\\x01', '1 minute', '{owner}')")
    };
    let fence = see.number(&claim("leased", "a")).await;
    see.run(&format!(
        "select pgonce.heartbeat('s', 'leased', {fence}, '1 minute'); select pgonce.succeed('s', 'leased', '\\x01', {fence})"
    ))
    .await;
    assert_eq!(see.text(history).await, "");
    // Failed, vanished, interrupted by an operator; then it succeeds.
    let fence = see.number(&claim("k", "a")).await;
    see.run(&format!(
        "select pgonce.fail('s', 'k', '\\x01', {fence}, true, 'down', 'm')"
    ))
    .await;
    see.number(&claim("k", "b")).await;
    expire(see).await;
    see.number(&claim("k", "c")).await;
    see.run("select pgonce.intervene('release', 's', 'k', 'ticket 7', true)")
        .await;
    assert_eq!(
        see.text(history).await,
        "1 failed_retryable a down, 2 vanished b -, 3 interrupted c -"
    );
    let times =
        "select bool_and(started_at <= ended_at and started_at <= followed_at) from pgonce.attempt";
    assert_eq!(see.text(times).await, "t");
    // An atomic attempt that follows counts too, and no more are kept than the contract says.
    see.run("begin; select pgonce.claim('s', 'k', '\\x01')")
        .await;
    let fence = see
        .number("select pgonce._next_fence(fence, false) from pgonce.intent where key = 'k'")
        .await;
    see.run(&format!(
        "select pgonce.succeed('s', 'k', '\\x01', {fence}); commit"
    ))
    .await;
    assert_eq!(
        see.text(history).await,
        "2 vanished b -, 3 interrupted c -, 3 failed_retryable c released"
    );
    // It goes with the record.
    see.run("select pgonce._move_clock(interval '2 days'); select pgonce.purge(100)")
        .await;
    assert_eq!(see.number("select count(*) from pgonce.intent").await, 0);
    assert_eq!(see.text(history).await, "");
}
