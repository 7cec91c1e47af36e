//! State machines: each command applied or rejected once, with a timeline.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::transition::{Command, Outcome, Rule};
use pgonce::{Ack, Attempt};
use pgonce_tests::{TestDriver, World, for_each_driver, intent, random};
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;

async fn a_command_is_applied_or_rejected_once_with_its_event<D: TestDriver>(world: World<D>) {
    let once = &world.once;
    world.see.run("create function public.may_close(t text, e text, d jsonb) returns boolean language sql as \
        'select coalesce((d ->> ''paid'')::boolean, false)'").await;
    for rule in [
        Rule::new("case", "", "open"),
        Rule::new("case", "open", "closed")
            .guard("public.may_close")
            .topic("cases"),
        Rule::new("case", "open", "overdue"),
    ] {
        world.owner.define_transition(&rule).await.unwrap();
    }
    let request = intent("case").tenant("acme").unwrap();
    let run = once.run(&request, async |mut tx: Attempt<D>| {
        let open = Command::new("case", "7", "open", "c1").expected_version(0);
        let moved = tx.transition(&open).await?;
        assert_eq!(
            (moved.outcome, moved.new, &*moved.state, moved.version),
            (Outcome::Applied, true, "open", 1)
        );
        let again = tx.transition(&open).await?;
        assert_eq!(
            (again.outcome, again.new, &*again.state, again.version),
            (Outcome::Applied, false, "open", 1)
        );
        for (id, to, expected, outcome) in [
            ("c2", "open", None, Outcome::IncompatibleState),
            ("c3", "closed", Some("overdue"), Outcome::Stale),
            ("c4", "closed", None, Outcome::Refused),
        ] {
            let command = Command::new("case", "7", to, id);
            let command = expected
                .iter()
                .fold(command, |c, state| c.expected_state(*state));
            for new in [true, false] {
                let moved = tx.transition(&command).await?;
                assert_eq!(
                    (moved.outcome, moved.new, moved.version),
                    (outcome, new, 1),
                    "{id}"
                );
            }
        }
        let hour = Duration::from_secs(3600);
        assert!(tx.set_timer("case", "7", "sla", "overdue", hour).await?);
        assert!(!tx.set_timer("case", "7", "sla", "overdue", hour).await?);
        let close =
            Command::new("case", "7", "closed", "c5").data(&serde_json::json!({"paid": true}))?;
        assert_eq!(tx.transition(&close).await?.outcome, Outcome::Applied);
        tx.succeed(Ack::value(&"done")?).await
    });
    let _ = run.await.unwrap();
    let timeline =
        "select string_agg(command || ' ' || outcome, ', ' order by seq) from pgonce.timelines";
    assert_eq!(
        world.see.text(timeline).await,
        "c1 applied, c2 incompatible_state, c3 stale, c4 refused, c5 applied"
    );
    let events = "select string_agg(tenant || ' ' || type || ' ' || subject || ' ' || (payload ->> 'version'), ',') from pgonce.outbox";
    assert_eq!(world.see.text(events).await, "acme case.closed 7 2");
    assert_eq!(
        world
            .see
            .text("select outcome from pgonce.transition_timer")
            .await,
        "left"
    );
    let other = "select pgonce.transition('case', '7', 'open', 'c5', p_tenant => 'acme')";
    assert_eq!(world.see.code(other).await, "P4080");
    assert_eq!(
        world
            .see
            .code("delete from pgonce.transition_command")
            .await,
        "P4079"
    );
}

for_each_driver!(a_command_is_applied_or_rejected_once_with_its_event);

#[tokio::test]
async fn of_many_that_expect_the_same_version_one_wins_and_the_others_know_why() {
    let world = World::<TokioPostgres>::new().await;
    world.see.run("select pgonce.define_transition('m', '', 'a'), pgonce.define_transition('m', 'a', 'b'), pgonce.define_transition('m', 'b', 'a')").await;
    world
        .see
        .run("select pgonce.transition('m', '1', 'a', 'first')")
        .await;
    // One holds the entity; the others have begun when it commits.
    let holder = world.observer().await;
    holder
        .run("begin; select pgonce.transition('m', '1', 'b', 'winner', 'a', 1)")
        .await;
    let mut others = Vec::new();
    for n in 0..4 {
        others.push((n, world.observer().await));
    }
    let asking = join_all(others.iter().map(|(n, see)| async move {
        see.text(&format!(
            "select outcome from pgonce.transition('m', '1', 'b', 'loser {n}', 'a', 1)"
        ))
        .await
    }));
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted \
        and database = (select oid from pg_database where datname = current_database())";
    let release = async {
        pgonce_testkit::wait_until("four wait", Duration::from_secs(60), || async {
            world.see.number(waiting).await == 4
        })
        .await
        .unwrap();
        holder.run("commit").await;
    };
    let (outcomes, ()) = futures_util::future::join(asking, release).await;
    assert_eq!(outcomes, ["lost_race"; 4]);
    let late = "select outcome from pgonce.transition('m', '1', 'b', 'late', 'a', 1)";
    assert_eq!(world.see.text(late).await, "stale");
}

#[tokio::test]
async fn a_due_timer_fires_once_however_many_ask() {
    let world = World::<TokioPostgres>::new().await;
    world.see.run("select pgonce.define_transition('m', '', 'a'), pgonce.define_transition('m', 'a', 'late')").await;
    for n in 0..5 {
        world.see.run(&format!("select pgonce.transition('m', '{n}', 'a', 'c{n}'), pgonce.set_timer('m', '{n}', 'sla', 'late', '1 hour')")).await;
    }
    assert_eq!(world.once.fire_timers(100).await.unwrap(), 0);
    world.see.run("select pgonce._move_clock('2 hours')").await;
    // A firing that is rolled back has fired nothing.
    world
        .see
        .run("begin; select pgonce.fire_timers(); rollback")
        .await;
    let fired = join_all((0..4).map(|_| world.once.fire_timers(100))).await;
    assert_eq!(fired.into_iter().map(Result::unwrap).sum::<u64>(), 5);
    assert_eq!(world.see.number("select count(*) from pgonce.timelines where to_state = 'late' and outcome = 'applied'").await, 5);
    assert_eq!(
        world
            .see
            .code("select pgonce.set_timer('m', 'nobody', 'sla', 'late', '1 hour')")
            .await,
        "P4081"
    );
}

/// A guard that fails holds back its own timer only, and nobody takes the id of a timer's command.
#[tokio::test]
async fn a_timer_that_fails_is_tried_again_and_delays_no_other() {
    let world = World::<TokioPostgres>::new().await;
    world.see.run("create table public.broken (entity text); insert into public.broken values ('0'); \
        create function public.fails(t text, e text, d jsonb) returns boolean language plpgsql as \
        $$ begin return 1 / (case when exists (select from public.broken b where b.entity = e) then 0 else 1 end) = 1; end $$").await;
    world.see.run("select pgonce.define_transition('m', '', 'a'), pgonce.define_transition('m', 'a', 'late', 'public.fails')").await;
    for n in 0..3 {
        world.see.run(&format!("select pgonce.transition('m', '{n}', 'a', 'c{n}'), pgonce.set_timer('m', '{n}', 'sla', 'late', '1 hour')")).await;
    }
    let command = "(select 'timer ' || number from pgonce.transition_timer where entity = '1')";
    let taken = format!("select pgonce.transition('m', '1', 'late', {command})");
    assert_eq!(world.see.code(&taken).await, "22023");
    world.see.run("select pgonce._move_clock('2 hours')").await;
    let fired = "select coalesce(string_agg(entity || ' ' || outcome, ', ' order by entity), 'none') from pgonce.fire_timers()";
    assert_eq!(
        world.see.text(fired).await,
        "0 failed, 1 applied, 2 applied"
    );
    assert_eq!(world.see.text(fired).await, "none");
    world
        .see
        .run("delete from public.broken; select pgonce._move_clock('1 minute')")
        .await;
    assert_eq!(world.see.text(fired).await, "0 applied");
}

#[tokio::test]
async fn random_commands_leave_what_a_model_leaves() {
    let world = World::<TokioPostgres>::new().await;
    let mut random = random();
    let states = ["", "a", "b", "c", "d"];
    let mut rules = Vec::new();
    for from in states {
        for to in &states[1..] {
            if random.random_ratio(2, 5) || (from.is_empty() && *to == "a") {
                rules.push((from, *to));
                world
                    .see
                    .run(&format!(
                        "select pgonce.define_transition('m', '{from}', '{to}')"
                    ))
                    .await;
            }
        }
    }
    let mut entities: HashMap<u32, (&str, i64)> = HashMap::new();
    let mut decided: HashMap<u32, (String, String)> = HashMap::new();
    for _ in 0..250 {
        let id = random.random_range(0..200);
        let entity = random.random_range(0..4);
        let to = *states[1..].choose(&mut random).unwrap();
        let state = random
            .random_ratio(1, 2)
            .then(|| *states.choose(&mut random).unwrap());
        let version = random
            .random_ratio(1, 3)
            .then(|| random.random_range(0..6_i64));
        let sql =
            |value: Option<String>| value.map_or("null".to_owned(), |value| format!("'{value}'"));
        let call = format!(
            "pgonce.transition('m', '{entity}', '{to}', '{id}', {}, {})",
            sql(state.map(str::to_owned)),
            sql(version.map(|v| v.to_string()))
        );
        let answer = format!("select outcome || ' ' || state || ' ' || version from {call}");
        if let Some((before, outcome)) = decided.get(&id) {
            match *before == call {
                true => assert_eq!(world.see.text(&answer).await, *outcome),
                false => assert_eq!(world.see.code(&answer).await, "P4080"),
            }
            continue;
        }
        let (now, at) = entities.get(&entity).copied().unwrap_or_default();
        let expected =
            state.is_none_or(|state| state == now) && version.is_none_or(|version| version == at);
        let outcome = match (expected, rules.contains(&(now, to))) {
            (false, _) => format!("stale {now} {at}"),
            (true, false) => format!("incompatible_state {now} {at}"),
            (true, true) => {
                entities.insert(entity, (to, at + 1));
                format!("applied {to} {}", at + 1)
            }
        };
        assert_eq!(world.see.text(&answer).await, outcome, "{call}");
        decided.insert(id, (call, outcome));
    }
    for (entity, (state, version)) in entities {
        let found = format!(
            "select state || version from pgonce.transition_entity where entity = '{entity}'"
        );
        assert_eq!(world.see.text(&found).await, format!("{state}{version}"));
    }
}

/// One id for two entities is a conflict also side by side; what an old snapshot does not show makes its transaction start again.
#[tokio::test]
async fn a_command_that_a_snapshot_does_not_show_is_a_conflict_or_a_reason_to_begin_again() {
    let world = World::<TokioPostgres>::new().await;
    let (see, one, two) = (&world.see, world.observer().await, world.observer().await);
    see.run("select pgonce.define_transition('m', '', 'a', p_topic => 'moves')")
        .await;
    for (level, code) in [
        ("read committed", "P4080"),
        ("repeatable read", "40001"),
        ("serializable", "40001"),
    ] {
        let send = |entity: &str, to: &str| {
            format!(
                "select outcome from pgonce.transition('m', '{entity} {level}', '{to}', '{to} {level}')"
            )
        };
        // Two entities at the same time.
        one.run("begin").await;
        assert_eq!(one.text(&send("one", "a")).await, "applied");
        two.run(&format!(
            "begin isolation level {level}; select from pgonce.timelines"
        ))
        .await;
        let second = send("two", "a");
        let (found, ()) = futures_util::future::join(two.code(&second), async {
            see.wait_until("select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()")
                .await;
            one.run("commit").await;
        })
        .await;
        assert_eq!(found, code, "{level}");
        two.run("rollback").await;
        assert_eq!(two.code(&second).await, "P4080", "{level}");
        // One that was rejected elsewhere.
        two.run(&format!(
            "begin isolation level {level}; select from pgonce.timelines"
        ))
        .await;
        assert_eq!(
            one.text(&send("one", "nowhere")).await,
            "incompatible_state"
        );
        match level {
            "read committed" => assert_eq!(
                two.text(&send("one", "nowhere")).await,
                "incompatible_state"
            ),
            _ => assert_eq!(two.code(&send("one", "nowhere")).await, code, "{level}"),
        }
        two.run("rollback").await;
    }
    let moved = "select string_agg(entity, ', ' order by entity) from pgonce.transition_entity";
    assert_eq!(
        see.text(moved).await,
        "one read committed, one repeatable read, one serializable"
    );
    assert_eq!(see.number("select count(*) from pgonce.outbox").await, 3);
}

/// The first may end the second: then that one neither fires nor fails.
#[tokio::test]
async fn of_the_due_timers_of_an_entity_one_fires_at_a_time() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_transition('m', '', 'a'), pgonce.define_transition('m', 'a', 'b'), pgonce.define_transition('m', 'a', 'c')")
        .await;
    for (entity, first) in [("moves", "b"), ("stays", "nowhere")] {
        see.run(&format!(
            "select pgonce.transition('m', '{entity}', 'a', 'new {entity}'), \
             pgonce.set_timer('m', '{entity}', 'second', 'c', '-1 minute'), pgonce.set_timer('m', '{entity}', 'first', '{first}', '-2 minutes')"
        ))
        .await;
    }
    let fire = "select coalesce(string_agg(entity || ' ' || kind || ' ' || outcome, ', ' order by entity), 'none') from pgonce.fire_timers()";
    assert_eq!(
        see.text(fire).await,
        "moves first applied, stays first incompatible_state"
    );
    assert_eq!(see.text(fire).await, "stays second applied");
    assert_eq!(see.text(fire).await, "none");
    let ended = "select string_agg(entity || ' ' || kind || ' ' || outcome, ', ' order by entity, kind) from pgonce.transition_timer";
    assert_eq!(
        see.text(ended).await,
        "moves first applied, moves second left, stays first incompatible_state, stays second applied"
    );
}

/// A transaction that moves an entity, or a guard that meets a lock, holds back no timer but its own.
#[tokio::test]
async fn a_timer_that_cannot_fire_holds_back_no_other() {
    let world = World::<TokioPostgres>::new().await;
    let (see, busy) = (&world.see, world.observer().await);
    see.run("create table held (id integer); insert into held values (1); \
             create function public.unlocked(text, text, jsonb) returns boolean language plpgsql as \
                 'begin perform from public.held for update nowait; return true; end'; \
             create function public.waits(text, text, jsonb) returns boolean language plpgsql as \
                 'begin perform from public.held for update; return true; end'; \
             select pgonce.define_transition('m', '', 'a'), pgonce.define_transition('m', 'a', 'b'), \
                 pgonce.define_transition('m', 'a', 'c', 'public.unlocked'), pgonce.define_transition('m', 'a', 'd', 'public.waits')")
        .await;
    for (entity, to, since) in [
        ("moved", "b", 4),
        ("nowait", "c", 3),
        ("waits", "d", 2),
        ("free", "b", 1),
    ] {
        see.run(&format!(
            "select pgonce.transition('m', '{entity}', 'a', 'new {entity}'); \
             select pgonce.set_timer('m', '{entity}', 'sla', '{to}', '-{since} minutes')"
        ))
        .await;
    }
    busy.run("begin; select pgonce.transition('m', 'moved', 'nowhere', 'slow'); select from held for update")
        .await;
    let fire = "select string_agg(entity || ' ' || outcome, ', ') from pgonce.fire_timers(1)";
    for fired in ["nowait failed", "waits failed", "free applied"] {
        assert_eq!(see.text(fire).await, fired);
    }
    let left = "select count(*) from pgonce.transition_timer where ended_at is null";
    assert_eq!(see.number(left).await, 3);
    busy.run("rollback").await;
    see.run("select pgonce._move_clock(interval '2 minutes')")
        .await;
    assert_eq!(
        see.number("select count(*) from pgonce.fire_timers() where outcome = 'applied'")
            .await,
        3
    );
    // The setting of the session is as it was.
    let kept = "begin; set local lock_timeout = '7s'; select pgonce.fire_timers(); do $$ begin assert current_setting('lock_timeout') = '7s'; end $$; commit";
    see.run(kept).await;
}

/// Neither is among the errors that PL/pgSQL calls others: a guard that asserts, and one that is cancelled for being slow.
#[tokio::test]
async fn a_guard_that_asserts_or_never_ends_holds_back_no_other_timer() {
    let world = World::<TokioPostgres>::new().await;
    let (see, firer) = (&world.see, world.observer().await);
    see.run("create function public.asserts(t text, e text, d jsonb) returns boolean language plpgsql as \
                 'begin assert d is not null; return true; end'; \
             create function public.never_ends(t text, e text, d jsonb) returns boolean language plpgsql as \
                 'begin perform pg_sleep(3600); return true; end'; \
             select pgonce.define_transition('m', '', 'a'), pgonce.define_transition('m', 'a', 'b'), \
                 pgonce.define_transition('m', 'a', 'c', 'public.asserts'), pgonce.define_transition('m', 'a', 'd', 'public.never_ends')")
        .await;
    for (entity, to, since) in [
        ("asserts", "c", 4),
        ("first", "b", 3),
        ("slow", "d", 2),
        ("last", "b", 1),
    ] {
        see.run(&format!(
            "select pgonce.transition('m', '{entity}', 'a', 'new {entity}'); \
             select pgonce.set_timer('m', '{entity}', 'sla', '{to}', '-{since} minutes')"
        ))
        .await;
    }
    let fire = "select coalesce(string_agg(entity || ' ' || outcome, ', '), 'none') from pgonce.fire_timers()";
    let asleep =
        "from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()";
    // As statement_timeout does it.
    let (fired, ()) = futures_util::future::join(firer.text(fire), async {
        see.wait_until(&format!("select count(*) > 0 {asleep}"))
            .await;
        see.run(&format!("select pg_cancel_backend(pid) {asleep}"))
            .await;
    })
    .await;
    assert_eq!(fired, "asserts failed, first applied, slow failed");
    assert_eq!(firer.text(fire).await, "last applied");
    assert_eq!(firer.text(fire).await, "none");
    let left = "select count(*) from pgonce.transition_timer where ended_at is null and due_at > pgonce.now()";
    assert_eq!(see.number(left).await, 2, "both fire again in a minute");
}
