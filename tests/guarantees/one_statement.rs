//! A command of one statement: claim, effect and acknowledgement commit together, without a transaction around them.

use std::time::Duration;

use futures_util::future::{join, join_all};
use pgonce::retry::Policy;
use pgonce::scope::{Busy, Contract};
use pgonce::{Claim, Done, Error, Failure, Intent, Result};
use pgonce_tests::{
    Cut, Cutter, SCOPE, TestDriver, World, for_each_driver, for_each_driver_and_setting, intent,
};

/// Nothing but pgonce keeps it from happening twice.
const INSERT: &str = "insert into effects (tenant, scope, key, note) \
    select '', 'orders.create', $1, 'one' returning key, note -- the row is the answer";

async fn execute<D: TestDriver>(world: &World<D>, request: &Intent) -> Result<Done> {
    D::execute(&world.once, request, INSERT, request.key()).await
}

async fn its_row_is_the_answer_now_and_ever_after<D: TestDriver>(world: World<D>) {
    for request in [intent("looking"), intent("first").known_first()] {
        let done = execute(&world, &request).await.unwrap();
        assert!(!done.replayed());
        let answer = serde_json::json!({"key": request.key(), "note": "one"});
        assert_eq!(done.ack().json(), Some(&answer));
        for again in [request.clone(), request.clone().known_first()] {
            let done = execute(&world, &again).await.unwrap();
            assert!(done.replayed());
            assert_eq!(done.ack().json(), Some(&answer));
        }
        assert_eq!(world.see.effects(&request).await, 1);
        let row = world
            .see
            .record(&request, "status::text || attempts || fence");
        assert_eq!(row.await, "succeeded11");
        // The transaction of another caller knows it too.
        assert!(world.run(&request).await.unwrap().replayed());
    }
}

async fn a_crowd_makes_one_effect_in_every_setting<D: TestDriver>(world: World<D>) {
    for request in [intent("crowd"), intent("all first").known_first()] {
        let answers = join_all((0..12).map(|_| execute(&world, &request))).await;
        for answer in &answers {
            assert!(
                matches!(answer, Ok(_) | Err(Error::Busy { .. })),
                "{} {:?}: {answer:?}",
                D::NAME,
                world.setting
            );
        }
        let new = answers.iter().flatten().filter(|done| !done.replayed());
        assert_eq!((new.count(), world.see.effects(&request).await), (1, 1));
    }
}

async fn another_request_under_the_key_is_a_conflict<D: TestDriver>(world: World<D>) {
    let request = intent("key");
    let _ = execute(&world, &request).await.unwrap();
    let other = Intent::new(SCOPE, "key", "another request").unwrap();
    for other in [other.clone(), other.known_first()] {
        let end = execute(&world, &other).await;
        assert!(matches!(end, Err(Error::Conflict(_))), "{end:?}");
    }
    assert_eq!(world.see.effects(&request).await, 1);
}

async fn what_cannot_be_one_statement_with_one_row_is_an_error_and_leaves_nothing<D: TestDriver>(
    world: World<D>,
) {
    for (sql, code) in [
        ("create table t (a text default $1)", "22023"),
        ("begin", "22023"),
        ("with a as (select $1), select * from a", "22023"),
        (
            "with a as (insert into effects select '', '', $1 returning 1) select 1 / (select 0 from a)",
            "22012",
        ),
        (
            "with recursive pgonce_answer as (select $1) select * from pgonce_answer",
            "22023",
        ),
        ("insert into effects select '', '', $1", "0A000"),
        (
            "insert into effects select '', '', $1 returning 1; insert into effects select '', '', ''",
            "42601",
        ),
        (
            "insert into effects select '', '', $1 where false returning 1",
            "22023",
        ),
        (
            "insert into effects select '', '', $1 from generate_series(1, 2) returning 1",
            "21000",
        ),
    ] {
        for request in [intent("key"), intent("key").known_first()] {
            let end = D::execute(&world.once, &request, sql, "value").await;
            match end {
                Err(error) => assert_eq!(error.code(), code, "{sql}"),
                Ok(done) => panic!("{sql}: {done:?}"),
            }
            // The error comes before the server has let go of the key.
            world.see.wait_until_clean().await;
        }
    }
    let all = "select count(*) from effects";
    assert_eq!(world.see.number(all).await, 0);
    assert_eq!(world.see.records(&intent("key")).await, 0);
    // The key is not burnt.
    assert!(!execute(&world, &intent("key")).await.unwrap().replayed());
}

async fn a_business_key_in_the_way_is_an_error_unless_the_intent_is_done<D: TestDriver>(
    world: World<D>,
) {
    let order =
        "insert into orders (customer, reference, item) values ('c', $1, 'book') returning id";
    let request = intent("mine").known_first();
    let done = D::execute(&world.once, &request, order, "r1")
        .await
        .unwrap();
    let again = D::execute(&world.once, &request, order, "r1")
        .await
        .unwrap();
    assert_eq!((again.replayed(), again.ack()), (true, done.ack()));
    let other = D::execute(&world.once, &intent("another"), order, "r1").await;
    assert_eq!(other.unwrap_err().code(), "23505");
}

async fn failures_leases_and_strictness_count_as_for_every_command<D: TestDriver>(world: World<D>) {
    let failing = async |key: &str, failure: Failure| {
        let request = intent(key);
        let end = world
            .once
            .run::<(), _, _>(&request, async |_| Err(failure.clone().into()));
        let _ = end.await.unwrap_err();
    };
    failing("refused", Failure::permanent("no", "m")).await;
    failing("retry", Failure::transient("later", "m")).await;
    let leased = intent("leased");
    let lease = world.once.lease(&leased, Duration::from_secs(60));
    let Claim::Run(_lease) = lease.await.unwrap() else {
        panic!("fresh")
    };
    for first in [false, true] {
        let of = |key: &str| match first {
            true => intent(key).known_first(),
            false => intent(key),
        };
        let end = execute(&world, &of("refused")).await;
        assert!(matches!(end, Err(Error::Refused(_))), "{end:?}");
        let end = execute(&world, &of("leased")).await;
        assert!(matches!(end, Err(Error::Busy { .. })), "{end:?}");
        let done = execute(&world, &of("retry")).await.unwrap();
        assert_eq!((done.replayed(), done.attempts()), (first, 2));
        assert_eq!(world.see.effects(&intent("retry")).await, 1);
    }
    world.see.run("select pgonce.set_strict(true)").await;
    for request in [intent("strict"), intent("strict").known_first()] {
        let end = execute(&world, &request).await;
        assert_eq!(end.unwrap_err().code(), "P4000");
    }
    assert_eq!(world.see.effects(&intent("strict")).await, 0);
}

async fn tenants_do_not_meet_and_the_contract_says_what_is_kept<D: TestDriver>(world: World<D>) {
    let keep_status =
        Contract::keep(Duration::from_secs(60)).storage(pgonce::scope::Storage::Status);
    world.owner.define_scope(SCOPE, &keep_status).await.unwrap();
    for tenant in ["", "a", "b"] {
        let request = intent("key").tenant(tenant).unwrap().correlation("c7");
        assert!(!execute(&world, &request).await.unwrap().replayed());
        let kept = world
            .see
            .record(&request, "answer is null and correlation_id = 'c7'");
        assert_eq!(kept.await, "t");
    }
    assert_eq!(world.see.effects(&intent("key")).await, 3);
}

async fn a_duplicate_waits_for_the_one_in_flight_as_its_contract_says<D: TestDriver>(
    world: World<D>,
) {
    let wait = Contract::keep(Duration::from_secs(60))
        .busy(Busy::Wait)
        .wait_timeout(Duration::from_secs(20));
    world.owner.define_scope(SCOPE, &wait).await.unwrap();
    let request = intent("key").known_first();
    let Claim::Run(mut attempt) = world.once.claim(&intent("key")).await.unwrap() else {
        panic!("fresh")
    };
    pgonce_tests::effect(&mut attempt).await.unwrap();
    let waiter = world.another("one-waits", 2, |b| b);
    let (waited, ()) = join(
        D::execute(&waiter, &request, INSERT, request.key()),
        async {
            world.see.wait_until_asleep("one-waits").await;
            let _ = attempt.succeed(&"the first").await.unwrap();
        },
    )
    .await;
    let waited = waited.unwrap();
    assert!(waited.replayed());
    assert_eq!(waited.read::<String>().unwrap(), "the first");
    assert_eq!(world.see.effects(&intent("key")).await, 1);
}

async fn what_its_with_changes_is_a_part_of_the_effect<D: TestDriver>(world: World<D>) {
    // One is read by the statement, one by nobody; names of pgonce's own parts do not get in the way.
    let sql = "with answer as (insert into effects (tenant, scope, key, note) select '', 'orders.create', $1, ')' \
            returning key), \
        done as (insert into orders (customer, reference, item) values ('c', $1, 'book')) \
        select a.key, 2 as parts from answer a";
    let orders = "select count(*) from orders";
    for (n, request) in [intent("looking"), intent("first").known_first()]
        .iter()
        .enumerate()
    {
        let answer = serde_json::json!({"key": request.key(), "parts": 2});
        let run = || D::execute(&world.once, request, sql, request.key());
        let crowd = join_all((0..6).map(|_| run())).await;
        for end in &crowd {
            assert!(matches!(end, Ok(_) | Err(Error::Busy { .. })), "{end:?}");
        }
        let again = run().await.unwrap();
        assert_eq!(
            (again.replayed(), again.ack().json()),
            (true, Some(&answer))
        );
        assert_eq!(world.see.effects(request).await, 1);
        assert_eq!(world.see.number(orders).await, n as i64 + 1);
    }
    // In a transaction too: there is a record of a failure.
    let request = intent("failed before");
    let failed = world
        .once
        .run::<(), _, _>(&request, |_| async {
            Err(Failure::transient("later", "m").into())
        })
        .await;
    assert!(failed.is_err());
    let done = D::execute(&world.once, &request, sql, request.key()).await;
    assert!(!done.unwrap().replayed());
    assert_eq!(world.see.number(orders).await, 3);
}

async fn an_event_of_the_statement_exists_once<D: TestDriver>(world: World<D>) {
    let sql = "insert into effects (tenant, scope, key) select '', 'orders.create', $1 \
        returning key, pgonce.publish('orders', 'order.created', key, jsonb_build_object('key', key)) as message_id";
    let request = intent("key");
    for _ in 0..2 {
        let done = D::execute(&world.once, &request, sql, "key").await.unwrap();
        let id = &done.ack().json().unwrap()["message_id"];
        let events = "select string_agg(message_id::text, ',') from pgonce.outbox";
        assert_eq!(id, &world.see.text(events).await);
    }
}

async fn a_lost_reply_is_resolved_by_what_is_stored<D: TestDriver>(world: World<D>) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 4, |b| b);
    for cut in [Cut::Reply, Cut::Request] {
        for first in [false, true] {
            let key = format!("{cut:?}-{first}");
            let request = match first {
                true => intent(&key).known_first(),
                false => intent(&key),
            };
            let sql =
                "insert into effects select '', 'orders.create', substr($1, 16) returning key;";
            cutter.arm("sent-only-here", cut);
            let value = format!("sent-only-here {key}");
            let done = D::execute(&once, &request, sql, &value).await.unwrap();
            assert!(!cutter.is_armed());
            assert_eq!(done.replayed(), cut == Cut::Reply);
            assert_eq!(world.see.effects(&request).await, 1);
        }
    }
    let once = world.another_at(&cutter.url_for(world.database()), 4, |b| {
        b.retry(Policy::none())
    });
    for (cut, effects) in [(Cut::Reply, 1), (Cut::Request, 0)] {
        let request = intent(&format!("not retried {cut:?}"));
        cutter.arm("sent-only-here", cut);
        let sql = "insert into effects select '', 'orders.create', substr($1, 16) returning key";
        let value = format!("sent-only-here {}", request.key());
        let end = D::execute(&once, &request, sql, &value).await;
        assert!(matches!(end, Err(Error::Uncertain(_))), "{cut:?}: {end:?}");
        world.see.wait_until_clean().await;
        assert_eq!(world.see.effects(&request).await, effects);
    }
}

async fn a_long_answer_is_kept_where_its_contract_allows_it<D: TestDriver>(world: World<D>) {
    let contract = Contract::keep(Duration::from_secs(3600)).max_answer(30_000);
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    let sql = |length: usize| {
        format!(
            "insert into effects (tenant, scope, key, note) select '', 'orders.create', $1, 'one' \
             returning key, repeat('x', {length}) as long"
        )
    };
    // Twice, since the second time the SDK remembers the contract.
    for n in 0..2 {
        let request = intent(&format!("short {n}"));
        let _ = execute(&world, &request).await.unwrap();
        for length in [17_000, 29_000] {
            let request = intent(&format!("long {length} {n}")).known_first();
            for replayed in [false, true] {
                let done = D::execute(&world.once, &request, &sql(length), request.key()).await;
                let done = done.unwrap();
                assert_eq!(done.replayed(), replayed);
                let answer = done.ack().json().unwrap();
                assert_eq!(answer["long"].as_str().map(str::len), Some(length));
            }
            assert_eq!(world.see.effects(&request).await, 1);
        }
        let above = intent(&format!("above {n}"));
        let end = D::execute(&world.once, &above, &sql(31_000), above.key()).await;
        assert_eq!(end.unwrap_err().code(), "P4040");
        assert_eq!(world.see.effects(&above).await, 0);
    }
}

async fn keys_and_answers_stay_out_of_the_servers_log<D: TestDriver>(world: World<D>) {
    let tag = format!("one-s3cr3t-{}-{}", D::NAME, std::process::id());
    let request = intent(&tag);
    for request in [request.clone(), request.clone().known_first(), request] {
        let _ = execute(&world, &request).await.unwrap();
    }
    let other = Intent::new(SCOPE, &*tag, "another").unwrap().known_first();
    let end = execute(&world, &other).await;
    assert!(matches!(end, Err(Error::Conflict(_))), "{end:?}");
    let leaked = world.server.log().unwrap();
    assert_eq!(leaked.lines().find(|line| line.contains(&tag)), None);
}

/// A concurrent duplicate finds what it would change changed already: by the attempt that it repeats.
async fn what_an_earlier_attempt_left_nothing_to_do_for_is_answered<D: TestDriver>(
    world: World<D>,
) {
    let pay = "update stock set state = 'paid' where item = $1 and state = 'new' returning item";
    let refuse = "select refuse_twice($1) as item";
    let setup = "create table stock (item text primary key, state text default 'new'); \
        insert into stock (item) values ('book'), ('pen'); grant all on stock to public; \
        create function refuse_twice(p_item text) returns text language plpgsql as $$ begin \
        update public.stock set state = 'paid' where item = p_item and state = 'new'; \
        if not found then raise exception 'paid' using errcode = 'P4080'; end if; return p_item; end $$";
    world.see.run(setup).await;
    for (sql, item, code) in [(pay, "book", "22023"), (refuse, "pen", "P4080")] {
        let request = intent(item).known_first();
        let done = D::execute(&world.once, &request, sql, item).await.unwrap();
        let again = D::execute(&world.once, &request, sql, item).await.unwrap();
        assert_eq!(
            (again.replayed(), again.ack()),
            (true, done.ack()),
            "{item}"
        );
        // Of another intent nothing is stored.
        let other = intent(&format!("another {item}")).known_first();
        let other = D::execute(&world.once, &other, sql, item).await;
        assert_eq!(other.unwrap_err().code(), code);
    }
}

for_each_driver!(
    what_an_earlier_attempt_left_nothing_to_do_for_is_answered,
    a_long_answer_is_kept_where_its_contract_allows_it,
    keys_and_answers_stay_out_of_the_servers_log,
    its_row_is_the_answer_now_and_ever_after,
    another_request_under_the_key_is_a_conflict,
    what_cannot_be_one_statement_with_one_row_is_an_error_and_leaves_nothing,
    a_business_key_in_the_way_is_an_error_unless_the_intent_is_done,
    failures_leases_and_strictness_count_as_for_every_command,
    tenants_do_not_meet_and_the_contract_says_what_is_kept,
    a_duplicate_waits_for_the_one_in_flight_as_its_contract_says,
    what_its_with_changes_is_a_part_of_the_effect,
    an_event_of_the_statement_exists_once,
    a_lost_reply_is_resolved_by_what_is_stored,
);
for_each_driver_and_setting!(a_crowd_makes_one_effect_in_every_setting);
