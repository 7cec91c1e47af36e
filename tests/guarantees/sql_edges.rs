//! Edges of the SQL functions: odd arguments, settings, encodings and neighbours.

use futures_util::future::join;
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::{Migrator, Part};
use pgonce_testkit::shared;
use pgonce_tests::{Observer, TestDriver as _, World};

#[tokio::test]
async fn a_rerun_after_expiry_publishes_new_ids_and_attempts_of_one_life_the_same() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let publish = "select pgonce.publish('t', 'created', 's', '{}')";
    let mut lives = Vec::new();
    for _ in 0..2 {
        let lease = "select fence from pgonce.claim('s', 'leased', '\\x01', interval '1 minute')";
        let mut ids = Vec::new();
        for _ in 0..2 {
            let fence = see.number(lease).await;
            see.run(&format!(
                "begin; select pgonce.guard('s', 'leased', {fence})"
            ))
            .await;
            ids.push(see.text(publish).await);
            see.run("commit; select pgonce._move_clock(interval '2 minutes')")
                .await;
        }
        assert_eq!(ids[0], ids[1], "the attempts of one life");
        let fence = see.number(lease).await;
        see.run(&format!(
            "select pgonce.succeed('s', 'leased', '\\x01', {fence})"
        ))
        .await;
        lives.push(ids.remove(0));
        see.run("begin; select pgonce.claim('s', 'atomic', '\\x01')")
            .await;
        lives.push(see.text(publish).await);
        see.run("select pgonce.succeed('s', 'atomic', '\\x01', 1); commit; select pgonce._move_clock(interval '8 days')").await;
    }
    lives.sort();
    lives.dedup();
    assert_eq!(lives.len(), 4, "{lives:?}");
}

#[tokio::test]
async fn strict_mode_changes_nothing_that_was_not_asked() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('*', '3 days', p_busy => 'wait', p_note => 'ours')")
        .await;
    let contract = "select c::text from pgonce.scope c where scope = '*'";
    let before = see.text(contract).await;
    see.run("select pgonce.set_strict(false)").await;
    assert_eq!(see.text(contract).await, before);
    assert_eq!(see.code("select pgonce.set_strict(null)").await, "22023");
    assert_eq!(see.text(contract).await, before);
    see.run("select pgonce.set_strict(true); select pgonce.set_strict(true)")
        .await;
    assert_eq!(
        see.code("select pgonce.claim('unknown', 'k', '\\x01')")
            .await,
        "P4000"
    );
    see.run("select pgonce.set_strict(false)").await;
    assert_eq!(see.text(contract).await, before);
}

#[tokio::test]
async fn strict_mode_ends_only_where_it_is_turned_off() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.set_strict(true)").await;
    let define = "select pgonce.define_scope('*', '7 days')";
    let unknown = "select pgonce.claim('unknown', 'k', '\\x01')";
    assert_eq!(see.code(define).await, "22023");
    assert_eq!(see.code(unknown).await, "P4000");
    see.run(&format!("select pgonce.set_strict(false); {define}"))
        .await;
    // As an earlier version left it: both contracts are there.
    see.run(
        "insert into pgonce.scope (scope, retention, defined_at) values ('*off', '1 day', now())",
    )
    .await;
    see.run("select pgonce.set_strict(true)").await;
    assert_eq!(see.code(unknown).await, "P4000");
    see.run("select pgonce.set_strict(false)").await;
    let kept = "select string_agg(scope || ' ' || retention, ', ') from pgonce.scope";
    assert_eq!(see.text(kept).await, "* 7 days");

    // One who was about to define it while strict mode was turned on.
    let other = world.observer().await;
    see.run("begin; select pgonce.set_strict(true)").await;
    let waits = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    let (refused, ()) = join(other.code(define), async {
        see.wait_until(waits).await;
        see.run("commit").await;
    })
    .await;
    assert_eq!(refused, "22023");
    assert_eq!(see.code(unknown).await, "P4000");
}

/// A time that no timestamp can hold would fail when the work is done, or when it is removed.
#[tokio::test]
async fn a_contract_keeps_for_no_longer_than_a_timestamp_can_hold() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run(
        "select pgonce.define_scope('long', '200000000 days'), pgonce.define_scope('s', '1 day')",
    )
    .await;
    see.run("select pgonce.define_scope('gone', '1 day', p_after_expiry => 'gone', p_tombstone_for => '200000000 days')")
        .await;
    for scope in ["long", "gone", "s"] {
        see.run(&format!(
            "begin; select pgonce.claim('{scope}', 'k', '\\x01'); select pgonce.succeed('{scope}', 'k', '\\x01', 1); commit"
        ))
        .await;
    }
    see.run("begin; select pgonce.claim('s', 'l', '\\x01'); select pgonce.succeed('s', 'l', '\\x01', 1, p_keep => '200000000 days'); commit")
        .await;
    // As an earlier version wrote it.
    see.run("update pgonce.scope set tombstone_for = '200000000 days' where scope = 'gone'; select pgonce._move_clock('2 days')")
        .await;
    assert_eq!(see.number("select pgonce.purge()").await, 2);
    let left = "select string_agg(scope || key, ' ' order by scope, key) from pgonce.intent \
        where expires_at > pgonce.now() + interval '4000 years' and isfinite(expires_at)";
    assert_eq!(see.text(left).await, "gonek longk sl");
}

#[tokio::test]
async fn a_contract_that_would_never_be_used_is_refused_and_a_month_is_thirty_days() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    for refused in [
        "define_scope('*', '1 day', p_tenant => 'acme')",
        "define_scope('s', '1 day', p_tenant => null)",
        "drop_scope('s', null)",
    ] {
        assert_eq!(
            see.code(&format!("select pgonce.{refused}")).await,
            "22023",
            "{refused}"
        );
    }
    see.run("select pgonce.define_scope('s', '1 month', p_client_retry => '30 days')")
        .await;
    see.run("select pgonce._set_clock('2026-02-01 12:00+00')")
        .await;
    see.run("begin; select pgonce.claim('s', 'k', '\\x01'); select pgonce.succeed('s', 'k', '\\x01', 1); commit").await;
    see.run("begin; select pgonce.claim('s', 'l', '\\x01'); select pgonce.succeed('s', 'l', '\\x01', 1, p_keep => '1 month'); commit").await;
    let kept =
        "select count(*) from pgonce.intent where expires_at - first_at >= interval '30 days'";
    assert_eq!(see.number(kept).await, 2);
}

#[tokio::test]
async fn any_collation_of_an_argument_works_everywhere() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("create table words (w text collate \"de-x-icu\"); insert into words values ('k')")
        .await;
    for _ in 0..2 {
        see.run("select pgonce.accept(w, w, w, '\\x01') from words")
            .await;
        see.run("select pgonce.accept_batch(w, w, array[w, w || '2']) from words")
            .await;
        see.run("select pgonce.advance_projection(w, w, 1) from words")
            .await;
    }
    see.run("select c.outcome from words, pgonce.claim(w, w, '\\x01', interval '1 minute') c")
        .await;
    let fence = "(select fence from pgonce.intent where key = 'k')";
    see.run(&format!(
        "select pgonce.heartbeat(w, w, {fence}, interval '1 minute') from words"
    ))
    .await;
    see.run(&format!("select pgonce.guard(w, w, {fence}) from words"))
        .await;
    see.run(&format!(
        "select pgonce.succeed(w, w, '\\x01', {fence}) from words"
    ))
    .await;
    see.run("select c.outcome from words, pgonce.claim(w, w, '\\x01') c")
        .await;
    see.run(
        "select pgonce.define_scope(w, '1 day') from words; select pgonce.drop_scope(w) from words",
    )
    .await;
    see.run(
        "select pgonce.publish(w, w, w, '{}') from words; select pgonce.try_lock(w) from words",
    )
    .await;
}

#[tokio::test]
async fn an_expired_holder_inside_its_write_makes_a_claim_busy_not_wait() {
    let world = World::<TokioPostgres>::new().await;
    let (see, holder) = (&world.see, world.observer().await);
    let claim = "from pgonce.claim('s', 'k', '\\x01', interval '1 minute')";
    let fence = see.number(&format!("select fence {claim}")).await;
    see.run("select pgonce._move_clock(interval '50 seconds')")
        .await;
    holder
        .run(&format!("begin; select pgonce.guard('s', 'k', {fence})"))
        .await;
    see.run("select pgonce._move_clock(interval '20 seconds')")
        .await;
    see.run("set lock_timeout = '5s'").await;
    assert_eq!(see.text(&format!("select outcome {claim}")).await, "busy");
    holder.run("commit").await;
    assert_eq!(
        see.text(&format!("select outcome {claim}")).await,
        "takeover"
    );
}

#[tokio::test]
async fn a_read_only_transaction_replays_and_never_answers_fresh() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select finish('s', 'done', '\\x01')").await;
    see.run("set default_transaction_read_only = on").await;
    let outcome = |key: &str| format!("select outcome from pgonce.claim('s', '{key}', '\\x01')");
    assert_eq!(see.text(&outcome("done")).await, "replay");
    assert_eq!(see.code(&outcome("new")).await, "25006");
    assert_eq!(
        see.text(
            "select coalesce(holds, false) from pgonce._claim_optimistic('s', 'new', '\\x01')"
        )
        .await,
        "f"
    );
}

#[tokio::test]
async fn old_string_syntax_changes_nothing() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("set standard_conforming_strings = off; set escape_string_warning = off")
        .await;
    let fence = see
        .number(
            "select fence from pgonce.claim('s', 'k', decode('01', 'hex'), interval '1 minute')",
        )
        .await;
    see.run(&format!(
        "select pgonce.heartbeat('s', 'k', {fence}, interval '1 minute')"
    ))
    .await;
    see.run("select pgonce.create_subscription('c', p_topics => '{a*}')")
        .await;
    see.run("select pgonce.store_message('c', 's', 'm', decode('01', 'hex'))")
        .await;
    assert_eq!(
        see.code("select pgonce.succeed('s', 'k', decode('01', 'hex'), 2)")
            .await,
        "P4012"
    );
}

#[tokio::test]
async fn a_purge_goes_on_after_its_row_was_lost() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select finish('s', 'k', '\\x01'); select pgonce._move_clock(interval '8 days'); delete from pgonce.sweep").await;
    assert_eq!(see.number("select pgonce.purge()").await, 0);
    assert_eq!(see.number("select pgonce.purge()").await, 1);
    see.run("select pgonce._purge_inbox()").await;
    assert_eq!(see.number("select count(*) from pgonce.sweep").await, 3);
}

#[tokio::test]
async fn two_installations_in_one_database_do_not_meet() {
    let world = World::<TokioPostgres>::new().await;
    let (see, other) = (&world.see, world.observer().await);
    Migrator::new(TokioPostgres::connect(&world.url(), 1))
        .schema("other")
        .up()
        .await
        .unwrap();
    other
        .run("begin; select other.claim('s', 'k', '\\x01'); select other.try_lock('n')")
        .await;
    assert_eq!(
        see.text("select outcome from pgonce.claim('s', 'k', '\\x01')")
            .await,
        "fresh"
    );
    assert_eq!(see.text("select pgonce.try_lock('n')").await, "t");
    // The person of an act is named alike in both.
    see.run("begin; set local pgonce.person = 'ada'; select other.define_queue('mail', p_rate => 5); commit")
        .await;
    let who = "select person from other.operator_act where scope = 'queue mail'";
    assert_eq!(see.text(who).await, "ada");
}

#[tokio::test]
async fn any_number_of_grants_may_run_at_once() {
    let world = World::<TokioPostgres>::new().await;
    world
        .see
        .run("create role grantee_a; create role grantee_b")
        .await;
    let mut grants = Vec::new();
    for n in 0..16 {
        let role = if n % 2 == 0 { "grantee_a" } else { "grantee_b" };
        let migrator = Migrator::new(TokioPostgres::connect(&world.url(), 1));
        let part = Part::ALL[n % Part::ALL.len()];
        grants.push(tokio::spawn(
            async move { migrator.grant(part, role).await },
        ));
    }
    for grant in grants {
        grant.await.unwrap().unwrap();
    }
    world
        .see
        .run("drop owned by grantee_a, grantee_b; drop role grantee_a, grantee_b")
        .await;
}

#[tokio::test]
async fn every_server_encoding_works() {
    let server = shared(None).await.unwrap();
    let see = Observer::connect(&server.url()).await;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let name = format!("in_{}", encoding.to_lowercase());
        see.run(&format!("create database {name} encoding '{encoding}' lc_collate 'C' lc_ctype 'C' template template0")).await;
        let url = server.url_for(&name);
        let migrator = Migrator::new(TokioPostgres::connect(&url, 1));
        migrator.up().await.unwrap();
        let inside = Observer::connect(&url).await;
        inside.run("begin; select pgonce.claim('s', 'k', '\\x01'); select pgonce.publish('t', 'y', 's', '{}'); select pgonce.succeed('s', 'k', '\\x01', 1); commit").await;
        assert_eq!(
            inside
                .text("select outcome from pgonce.claim('s', 'k', '\\x01')")
                .await,
            "replay"
        );
        // A key that is no UTF-8 is listed, and keeps nothing else from being listed.
        if encoding == "SQL_ASCII" {
            inside.run("select pgonce.claim('s', E'bad\\xff', '\\x01', '1 hour'); select pgonce.claim('s', 'good', '\\x01', '1 hour')").await;
            inside.run("update pgonce.intent set lease_until = lease_until - interval '2 hours' where status = 'processing'").await;
            let once = Once::tokio_postgres(TokioPostgres::connect(&url, 1).pool().clone());
            let stuck = once.stuck(10).await.unwrap();
            let mut keys: Vec<_> = stuck.iter().map(|each| each.key.as_str()).collect();
            keys.sort_unstable();
            assert_eq!(keys, ["bad?", "good"]);
        }
        drop((inside, migrator));
        see.run(&format!("drop database {name} with (force)")).await;
    }
}

#[tokio::test]
async fn insert_or_fetch_finds_the_row_that_a_trigger_a_generated_key_or_nulls_decide() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run(
        "create table mail (address text unique, n integer);
         create function normalise() returns trigger language plpgsql as 'begin new.address := lower(new.address); return new; end';
         create trigger normalise before insert on mail for each row execute function normalise();
         create table made (x integer, y integer generated always as (x % 10) stored unique);
         create table pairs (x integer, y integer, unique nulls not distinct (x, y));
         create table late (x integer unique deferrable)",
    )
    .await;
    for (index, rows) in [
        (
            "mail_address_key",
            [
                "{\"address\": \"A@x\", \"n\": 1}",
                "{\"address\": \"a@X\", \"n\": 2}",
            ],
        ),
        ("made_y_key", ["{\"x\": 1}", "{\"x\": 11}"]),
        ("pairs_x_y_key", ["{\"x\": 1}", "{\"x\": 1}"]),
    ] {
        for (row, made) in rows.iter().zip(["t", "f"]) {
            let call = format!("select made_now from pgonce.insert_or_fetch('{index}', '{row}')");
            assert_eq!(see.text(&call).await, made, "{index} {row}");
        }
    }
    assert_eq!(see.text("select stored ->> 'n' from pgonce.insert_or_fetch('mail_address_key', '{\"address\": \"A@X\"}')").await, "1");
    assert_eq!(
        see.code("select pgonce.insert_or_fetch('late_x_key', '{\"x\": 1}')")
            .await,
        "22023"
    );
    see.run(
        "insert into mail values ('hidden', 7); alter table mail enable row level security; create role confined;
         create policy own on mail using (n = 1) with check (true); grant select, insert, update on mail to confined;
         select pgonce.grant_to('confined', 'app'); set role confined",
    )
    .await;
    assert_eq!(
        see.code("select pgonce.insert_or_fetch('mail_address_key', '{\"address\": \"hidden\"}')")
            .await,
        "42501"
    );
    see.run("reset role; drop owned by confined; drop role confined")
        .await;
}

#[test]
fn sql_files_are_ascii() {
    fn check(folder: &std::path::Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                check(&path);
            } else {
                let text = std::fs::read(&path).unwrap();
                assert!(text.is_ascii(), "{}", path.display());
            }
        }
    }
    check(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/pgonce/sql"));
}

/// An index has the correlation id: one that is too long for it is left out, and the failure recorded.
#[tokio::test]
async fn a_failure_with_a_correlation_id_that_is_too_long_is_recorded() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let long =
        "(select string_agg(sha512(n::text::bytea)::text, '') from generate_series(1, 100) n)";
    for retryable in [true, false] {
        let key = format!("leased {retryable}");
        let claim =
            format!("select fence from pgonce.claim('s', '{key}', '\\x01', interval '1 minute')");
        let fence = see.number(&claim).await;
        see.run(&format!(
            "select pgonce.fail('s', '{key}', '\\x01', {fence}, {retryable}, 'no', 'm', p_correlation => {long})"
        ))
        .await;
        let key = format!("atomic {retryable}");
        see.run(&format!(
            "select pgonce.fail('s', '{key}', '\\x01', 1, {retryable}, 'no', 'm', p_correlation => {long})"
        ))
        .await;
    }
    let recorded = "select string_agg(concat_ws(' ', key, status, failure_code, correlation_id), ', ' order by key) from pgonce.intent";
    assert_eq!(
        see.text(recorded).await,
        "atomic false failed_final no, atomic true failed_retryable no, leased false failed_final no, leased true failed_retryable no"
    );
}
