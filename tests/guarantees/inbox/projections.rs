//! Projections converge, however often and in whatever order their events come.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{World, runner};
use proptest::strategy::{Strategy as _, ValueTree as _};

/// A balance made of deltas, and a profile made of versions.
pub(super) const TABLES: &str = "
create table balance (account text primary key, amount bigint not null);
create function apply_balance(p_into regclass, p_event pgonce.projected) returns void language plpgsql as $$
begin
    execute format('insert into %s as b values ($1, $2) on conflict (account) do update set amount = b.amount + excluded.amount', p_into)
        using p_event.entity, (p_event.payload ->> 'delta')::bigint;
end $$;
create table profile (id text primary key, name text not null, shout text generated always as (upper(name)) stored);
create function apply_profile(p_into regclass, p_event pgonce.projected) returns void language plpgsql as $$
begin
    execute format('insert into %s (id, name) values ($1, $2) on conflict (id) do update set name = excluded.name', p_into)
        using p_event.entity, p_event.payload ->> 'name';
end $$;
select pgonce.define_projection('balance', 'balance', 'apply_balance', 'marker', '{money}');
select pgonce.define_projection('profile', 'profile', 'apply_profile', 'version', '{people}');
";

const BALANCE: &str =
    "select coalesce(string_agg(account || '=' || amount, ' ' order by account), '') from balance";
const PROFILE: &str =
    "select coalesce(string_agg(id || '=' || shout, ' ' order by id), '') from profile";

async fn world() -> World<TokioPostgres> {
    let world = World::<TokioPostgres>::new().await;
    world.see.run(TABLES).await;
    world
}

fn project(projection: &str, filter: &str) -> String {
    format!(
        "select count(*) filter (where p) from (select pgonce.project('{projection}', message_id::text, type, subject, \
         payload, headers) as p from pgonce.outbox where topic = '{}' and {filter}) x",
        if projection == "balance" {
            "money"
        } else {
            "people"
        }
    )
}

#[tokio::test]
async fn deltas_are_applied_once_and_versions_only_forward() {
    let world = world().await;
    let see = &world.see;
    see.run("select pgonce.publish('money', 'moved', 'a' || i % 2, jsonb_build_object('delta', i)) from generate_series(1, 10) i").await;
    for (filter, applied) in [("seq % 3 = 0", 3), ("true", 7), ("true", 0)] {
        assert_eq!(see.number(&project("balance", filter)).await, applied);
    }
    assert_eq!(see.text(BALANCE).await, "a0=30 a1=25");
    let say = |id: &str, name: &str, version: i64| {
        format!(
            "select pgonce.project('profile', gen_random_uuid()::text, 'named', '{id}', '{{\"name\": \"{name}\", \"version\": {version}}}')"
        )
    };
    for (id, name, version, applied) in [
        ("u", "third", 3, "t"),
        ("u", "first", 1, "f"),
        ("u", "third again", 3, "f"),
        ("v", "only", 1, "t"),
        ("u", "fourth", 4, "t"),
        ("u", "second", 2, "f"),
    ] {
        assert_eq!(
            see.text(&say(id, name, version)).await,
            applied,
            "{id} {version}"
        );
    }
    assert_eq!(see.text(PROFILE).await, "u=FOURTH v=ONLY");
    // The header goes before the field; without either it is an error, not a guess.
    let header = "select pgonce.project('profile', 'x', 'named', 'u', '{\"name\": \"x\", \"version\": 9}', '{\"version\": 2}')";
    assert_eq!(see.text(header).await, "f");
    let none = "select pgonce.project('profile', 'x', 'named', 'u', '{\"name\": \"x\"}')";
    assert_eq!(see.code(none).await, "22023");
}

#[tokio::test]
async fn a_stream_moves_only_forward_and_a_rollback_takes_the_gate_back() {
    let world = world().await;
    let see = &world.see;
    let advance =
        |n: i64| format!("select pgonce.advance_projection('totals', 'kafka:orders/7', {n})");
    assert_eq!(see.text(&advance(5)).await, "t");
    see.run("begin").await;
    assert_eq!(see.text(&advance(6)).await, "t");
    see.run("rollback").await;
    for (n, applied) in [(5, "f"), (4, "f"), (6, "t"), (6, "f")] {
        assert_eq!(see.text(&advance(n)).await, applied, "{n}");
    }
    // Tenants and projections have gates of their own.
    assert_eq!(
        see.text("select pgonce.advance_projection('totals', 'kafka:orders/7', 1, 'acme')")
            .await,
        "t"
    );
    assert_eq!(
        see.text("select pgonce.advance_projection('other', 'kafka:orders/7', 1)")
            .await,
        "t"
    );
}

#[tokio::test]
async fn any_interleaving_of_copies_and_late_events_ends_in_the_same_state() {
    let world = world().await;
    let see = &world.see;
    // Versions 1 to 6 of three entities, each as often and wherever chance puts it, but each at least once.
    let events = (0..3usize, 1..=6i64);
    let orders = proptest::collection::vec(events, 0..60);
    let mut runner = runner(8);
    let mut strategies = Vec::new();
    for _ in 0..8 {
        strategies.push(orders.new_tree(&mut runner).unwrap().current());
    }
    for (round, mut order) in strategies.into_iter().enumerate() {
        order.extend((0..3).flat_map(|entity| (1..=6).rev().map(move |version| (entity, version))));
        let calls: Vec<_> = order
            .iter()
            .map(|(entity, version)| {
                format!(
                    "pgonce.project('profile', 'r{round}-{entity}-{version}', 'named', 'r{round}-{entity}', \
                     '{{\"name\": \"v{version}\", \"version\": {version}}}'), \
                     pgonce.project('balance', 'r{round}-{entity}-{version}', 'moved', 'r{round}-{entity}', '{{\"delta\": {version}}}')"
                )
            })
            .collect();
        for chunk in calls.chunks(20) {
            see.run(&format!("select {}", chunk.join(", "))).await;
        }
        let names = format!(
            "select string_agg(name, ' ' order by id) from profile where id like 'r{round}-%'"
        );
        assert_eq!(see.text(&names).await, "v6 v6 v6", "{order:?}");
        let sums = format!(
            "select string_agg(amount::text, ' ' order by account) from balance where account like 'r{round}-%'"
        );
        assert_eq!(see.text(&sums).await, "21 21 21", "{order:?}");
    }
}

async fn publish(see: &pgonce_tests::Observer, from: i64, to: i64) {
    see.run(&format!(
        "select pgonce.publish('money', 'moved', 'a' || i % 5, jsonb_build_object('delta', i)), \
         pgonce.publish('people', 'named', 'u' || i % 5, jsonb_build_object('name', 'n' || i, 'version', i)) \
         from generate_series({from}, {to}) i"
    ))
    .await;
}

#[tokio::test]
async fn a_rebuilt_projection_equals_the_live_one_and_corrects_a_wrong_one() {
    let world = world().await;
    let (see, inbox) = (&world.see, world.owner.inbox());
    publish(see, 1, 100).await;
    for (projection, state) in [("balance", BALANCE), ("profile", PROFILE)] {
        see.run(&project(projection, "true")).await;
        let before = see.text(state).await;
        let verified = inbox.verify(projection).await.unwrap();
        assert!(verified.is_equal() && verified.pending == 0, "{verified:?}");
        assert_eq!(verified.rows, (5, 5));
        let rebuilt = inbox.rebuild(projection).await.unwrap();
        assert_eq!((rebuilt.removed, rebuilt.added), (0, 0), "{projection}");
        assert_eq!(see.text(state).await, before);
        // Bent by hand: a row wrong, one missing, one too many.
        let (table, key, value) = match projection {
            "balance" => ("balance", "account", "amount = 1"),
            _ => ("profile", "id", "name = 'bent'"),
        };
        see.run(&format!("update {table} set {value} where {key} like '%1'; delete from {table} where {key} like '%2'")).await;
        see.run(&format!(
            "insert into {table} ({key}, {}) values ('stranger', '7')",
            value.split(' ').next().unwrap()
        ))
        .await;
        let verified = inbox.verify(projection).await.unwrap();
        assert_eq!(
            (verified.missing, verified.surplus, verified.is_equal()),
            (2, 2, false)
        );
        let rebuilt = inbox.rebuild(projection).await.unwrap();
        assert_eq!((rebuilt.removed, rebuilt.added), (2, 2));
        assert_eq!(see.text(state).await, before);
        assert!(inbox.verify(projection).await.unwrap().is_equal());
        // What was replayed is not applied again by a late consumer.
        assert_eq!(see.number(&project(projection, "true")).await, 0);
    }
}

#[tokio::test]
async fn a_rebuild_takes_in_what_is_applied_meanwhile_and_what_was_not_applied_yet() {
    let world = world().await;
    let (see, inbox) = (&world.see, world.owner.inbox());
    publish(see, 1, 40).await;
    see.run(&project("balance", "seq % 2 = 0")).await;
    let verified = inbox.verify("balance").await.unwrap();
    assert!(verified.is_equal(), "compared with what it has applied");
    assert_eq!(
        verified.pending
            + u64::try_from(
                see.number("select applied from pgonce.projections where projection = 'balance'")
                    .await
            )
            .unwrap(),
        40
    );
    // Somebody publishes and applies while the rebuild is under way, and holds it up.
    let writer = world.observer().await;
    writer
        .run("begin; select pgonce.project('balance', pgonce.publish('money', 'moved', 'a0', '{\"delta\": 1000}')::text, 'moved', 'a0', '{\"delta\": 1000}')")
        .await;
    let url = format!("{}?application_name=rebuilder", world.url());
    let other = world.another_at(&url, 1, |b| b).inbox();
    let (rebuilt, ()) = futures_util::future::join(other.rebuild("balance"), async {
        see.wait_until_asleep("rebuilder").await;
        writer.run("commit").await;
    })
    .await;
    assert_eq!(rebuilt.unwrap().events, 41);
    let sum = "select sum(amount) from balance";
    assert_eq!(see.number(sum).await, 820 + 1000);
    assert_eq!(see.number(&project("balance", "true")).await, 0);
    let verified = inbox.verify("balance").await.unwrap();
    assert!(verified.is_equal() && verified.pending == 0, "{verified:?}");
}

const END: &str =
    "select events || ' ' || removed || ' ' || added from pgonce._end_rebuild('balance')";

#[tokio::test]
async fn what_came_while_a_rebuild_ran_is_taken_in_before_it_locks_the_projection() {
    let world = world().await;
    let see = &world.see;
    publish(see, 1, 10).await;
    see.run(&project("balance", "true")).await;
    see.run("select pgonce._begin_build('balance', 'rebuild')")
        .await;
    let step = "select pgonce._step_build('balance', 'rebuild', 100)";
    assert_eq!(see.number(step).await, 10);
    publish(see, 11, 130).await;
    see.run(&project("balance", "true")).await;
    // As many as fit into a step, or more: a further step looks at what came meanwhile.
    assert_eq!(see.number(step).await, 120);
    // As many again: they come as fast as they are looked at, and further steps would never end.
    publish(see, 131, 250).await;
    assert_eq!(see.number(step).await, 0);
    // Few: that is the end, too.
    publish(see, 251, 260).await;
    assert_eq!(see.number(step).await, 0);
    let built = "select events from pgonce.projection_build where projection = 'balance'";
    assert_eq!(see.number(built).await, 260);
    publish(see, 261, 262).await;
    see.run(&project("balance", "true")).await;
    assert_eq!(see.text(END).await, "262 0 0");
}

#[tokio::test]
async fn a_rebuild_ends_although_the_log_came_from_a_cluster_whose_transactions_had_higher_ids() {
    let world = world().await;
    let see = &world.see;
    publish(see, 1, 150).await;
    see.run(&project("balance", "true")).await;
    see.run("update pgonce.outbox set xid = '1000000000000'")
        .await;
    see.run("select pgonce._begin_build('balance', 'rebuild')")
        .await;
    let step = "select pgonce._step_build('balance', 'rebuild', 100)";
    let mut looked = 0;
    for _ in 0..10 {
        looked = see.number(step).await;
        if looked == 0 {
            break;
        }
    }
    assert_eq!(looked, 0);
    assert_eq!(see.text(END).await, "150 0 0");
}

#[tokio::test]
async fn a_rebuild_of_many_rows_ends_soon_although_memory_is_short() {
    let world = world().await;
    let see = &world.see;
    publish(see, 1, 10).await;
    see.run(&project("balance", "true")).await;
    see.run("select pgonce._begin_build('balance', 'rebuild')")
        .await;
    while see
        .number("select pgonce._step_build('balance', 'rebuild')")
        .await
        > 0
    {}
    let fresh = see
        .text("select fresh from pgonce.projection_build where projection = 'balance'")
        .await;
    for table in [fresh.as_str(), "balance"] {
        see.run(&format!("insert into {table} select 'x' || i, i from generate_series(1, 50000) i; analyze {table}"))
            .await;
    }
    // With each row looked for among all others this would take minutes.
    see.run("set work_mem = '64kB'; set statement_timeout = '30 s'")
        .await;
    assert_eq!(see.text(END).await, "10 0 0");
}

#[tokio::test]
async fn columns_without_an_equality_are_verified_and_rebuilt() {
    let world = World::<TokioPostgres>::new().await;
    let (see, inbox) = (&world.see, world.owner.inbox());
    see.run(
        "create table seen (id text primary key, doc json not null, at point);
         create function apply_seen(p_into regclass, p_event pgonce.projected) returns void language plpgsql as $$
         begin
             execute format('insert into %s values ($1, $2, point(1, 2)) on conflict (id) do update set doc = excluded.doc', p_into)
                 using p_event.entity, p_event.payload::json;
         end $$;
         select pgonce.define_projection('seen', 'seen', 'apply_seen', 'marker', '{money}')",
    )
    .await;
    publish(see, 1, 10).await;
    see.run(&project("balance", "true").replace("'balance'", "'seen'"))
        .await;
    assert!(inbox.verify("seen").await.unwrap().is_equal());
    see.run("update seen set at = point(3, 4) where id = 'a1'")
        .await;
    assert!(!inbox.verify("seen").await.unwrap().is_equal());
    let rebuilt = inbox.rebuild("seen").await.unwrap();
    assert_eq!((rebuilt.removed, rebuilt.added), (1, 1));
    assert!(inbox.verify("seen").await.unwrap().is_equal());
    let left = "select count(*) from pg_class where relname like 'pgonce_rebuild%' or relname like 'pgonce_verify%'";
    assert_eq!(see.number(left).await, 0);
}

#[tokio::test]
async fn it_is_rebuilt_from_the_stored_inbox_too() {
    let world = world().await;
    let (see, inbox) = (&world.see, world.owner.inbox());
    see.run("select pgonce.define_projection('balance', 'balance', 'apply_balance', 'marker', p_from_consumer => 'bank')").await;
    see.run(
        "select pgonce.store_message('bank', 'hook', 'm' || i, convert_to(jsonb_build_object('delta', i)::text, 'UTF8'), 'a' || i % 3) \
         from generate_series(1, 9) i",
    )
    .await;
    for _ in 0..9 {
        see.run(
            "with c as (select * from pgonce.claim_messages('bank', 'me', '1 minute', 10)), \
             p as (select pgonce.project('balance', message_id, null, key, convert_from(payload, 'UTF8')::jsonb) from c), \
             n as (select count(*) from p) \
             select pgonce.finish_messages('bank', coalesce((select jsonb_agg(to_jsonb(c) - 'payload') from c), '[]')) from n",
        )
        .await;
    }
    assert_eq!(see.text(BALANCE).await, "a0=18 a1=12 a2=15");
    assert!(inbox.verify("balance").await.unwrap().is_equal());
    see.run("delete from balance").await;
    let rebuilt = inbox.rebuild("balance").await.unwrap();
    assert_eq!((rebuilt.events, rebuilt.added), (9, 3));
    assert_eq!(see.text(BALANCE).await, "a0=18 a1=12 a2=15");
}

#[tokio::test]
async fn what_was_made_of_stored_messages_that_are_purged_is_kept() {
    let world = world().await;
    let (see, inbox) = (&world.see, world.owner.inbox());
    let define = "select pgonce.define_projection('balance', 'balance', 'apply_balance', 'marker', p_from_consumer => 'bank')";
    see.run(define).await;
    // As a consumer does: stored, applied and finished. The last one comes later.
    let store = "select pgonce.store_message('bank', 'hook', 'm' || i, convert_to(jsonb_build_object('delta', i)::text, 'UTF8'), 'a' || i) \
         from generate_series(1, 4) i";
    see.run(store).await;
    see.run(
        "select pgonce.project('balance', 'm' || i, null, 'a' || i, jsonb_build_object('delta', i)) from generate_series(1, 3) i; \
         update pgonce.inbox_message set status = 'processed', settled_at = pgonce.now(), settled_xid = pg_current_xact_id() \
             where message_id <> 'm4'",
    )
    .await;
    let purge = "select pgonce._purge_inbox()";
    assert_eq!(see.number(purge).await, 0);
    // Those that are applied again were applied, whatever comes of it.
    let replay = "select pgonce.replay_messages('bank', 'test')";
    assert_eq!(see.number(replay).await, 3);
    assert!(inbox.verify("balance").await.unwrap().is_equal());
    let rebuilt = inbox.rebuild("balance").await.unwrap();
    assert_eq!((rebuilt.events, rebuilt.removed), (3, 0));
    see.run("update pgonce.inbox_message set status = 'processed', settled_at = pgonce.now(), settled_xid = pg_current_xact_id() \
             where message_id <> 'm4'")
        .await;
    assert_eq!(inbox.rebuild("balance").await.unwrap().events, 3);
    // Also where it is purged while the build runs: what was read before is not all that there was.
    see.run("select pgonce._begin_build('balance', 'rebuild')")
        .await;
    while see
        .number("select pgonce._step_build('balance', 'rebuild')")
        .await
        > 0
    {}
    see.run("update pgonce.inbox_message set settled_at = pgonce.now() - interval '31 days' where message_id <> 'm4'")
        .await;
    assert_eq!(see.number(purge).await, 3);
    assert_eq!(see.code(END).await, "P4031");
    // And when it is defined anew, as it is with every deployment.
    see.run(define).await;
    assert_eq!(inbox.rebuild("balance").await.unwrap_err().code(), "P4031");
    assert_eq!(inbox.verify("balance").await.unwrap_err().code(), "P4031");
    assert_eq!(see.text(BALANCE).await, "a1=1 a2=2 a3=3");
    // One that begins later never had them.
    see.run("create table later (like balance including all); \
             select pgonce.define_projection('later', 'later', 'apply_balance', 'marker', p_from_consumer => 'bank')")
        .await;
    assert_eq!(inbox.rebuild("later").await.unwrap().events, 0);
}

#[tokio::test]
async fn an_event_without_a_version_does_not_keep_a_projection_from_being_rebuilt() {
    let world = world().await;
    let (see, inbox) = (&world.see, world.owner.inbox());
    publish(see, 1, 5).await;
    see.run(&project("profile", "true")).await;
    see.run("select pgonce.publish('people', 'named', 'u1', '{\"name\": \"nobody\"}')")
        .await;
    let before = see.text(PROFILE).await;
    assert!(inbox.verify("profile").await.unwrap().is_equal());
    let rebuilt = inbox.rebuild("profile").await.unwrap();
    assert_eq!((rebuilt.events, rebuilt.removed, rebuilt.added), (5, 0, 0));
    assert_eq!(see.text(PROFILE).await, before);
}

#[tokio::test]
async fn a_log_that_does_not_reach_back_is_refused_and_so_are_odd_definitions() {
    let world = world().await;
    let (see, inbox) = (&world.see, world.owner.inbox());
    see.run("create table keyless (a int)").await;
    for (call, code) in [
        ("'x', 'nowhere', 'apply_balance', 'marker'", "42P01"),
        ("'x', 'balance', 'nothing', 'marker'", "42883"),
        ("'x', 'keyless', 'apply_balance', 'marker'", "42P10"),
        ("'x', 'balance', 'apply_balance', 'perhaps'", "23514"),
    ] {
        let sql = format!("select pgonce.define_projection({call})");
        assert_eq!(see.code(&sql).await, code, "{call}");
    }
    assert_eq!(inbox.rebuild("nobody").await.unwrap_err().code(), "42704");
    for (purpose, level) in [("rebuild", "repeatable read"), ("verify", "read committed")] {
        let end = format!("select pgonce._end_{purpose}('balance')");
        assert_eq!(see.code(&end).await, "42704");
        see.run(&format!(
            "select pgonce._begin_build('balance', '{purpose}')"
        ))
        .await;
        let right = match purpose {
            "rebuild" => "read committed",
            _ => "repeatable read",
        };
        see.run(&format!("begin isolation level {right}")).await;
        assert_eq!(see.code(&end).await, "55000", "not a step was made");
        see.run("rollback").await;
        see.run(&format!("begin isolation level {level}")).await;
        assert_eq!(see.code(&end).await, "25001");
        see.run("rollback").await;
        assert_eq!(
            see.text(&format!(
                "select pgonce._drop_build('balance', '{purpose}')"
            ))
            .await,
            "t"
        );
    }
    let left = "select count(*) from pg_class where relname like 'pgonce_rebuild_%' or relname like 'pgonce_verify_%'";
    assert_eq!(see.number(left).await, 0);
    see.run("delete from pgonce.outbox_partition where from_seq = 1")
        .await;
    assert_eq!(inbox.rebuild("balance").await.unwrap_err().code(), "P4031");
    assert_eq!(inbox.verify("balance").await.unwrap_err().code(), "P4031");
}
