//! What leased work did is recorded, whatever passes in between, for as long as the lease holds and can be renewed.

use std::time::Duration;

use futures_util::future::{join, join_all};
use pgonce::driver::{Connection as _, Session as _};
use pgonce::retry::Policy;
use pgonce::scope::Contract;
use pgonce::{Claim, Error, Failure, Isolation};
use pgonce_tests::{Cutter, SCOPE, TestDriver, World, effect, for_each_driver, in_time, intent};

const MINUTE: Duration = Duration::from_secs(60);

const ASLEEP: &str = "select exists (select from pg_stat_activity where datname = current_database() \
    and application_name = 'recording' and wait_event_type = 'Lock')";

/// Holds the intent's row until a timeout has struck the recording.
async fn strike<D: TestDriver, T>(
    world: &World<D>,
    recording: impl Future<Output = pgonce::Result<T>>,
) -> pgonce::Result<T> {
    let mut holder = world.owner.driver().acquire().await.unwrap();
    holder.open("begin").await.unwrap();
    let lock = "select from pgonce.intent for update";
    D::exec(holder.raw(), lock).await.unwrap();
    let strikes = async {
        world.see.wait_until(ASLEEP).await;
        let awake = format!("select not ({})", ASLEEP.trim_start_matches("select "));
        world.see.wait_until(&awake).await;
        holder.rollback().await.unwrap();
        holder.keep();
    };
    join(recording, strikes).await.0
}

async fn set_for_new_sessions<D: TestDriver>(world: &World<D>, setting: &str) {
    let database = world.see.text("select current_database()").await;
    let sql = format!("alter database \"{database}\" set {setting}");
    world.see.run(&sql).await;
}

async fn a_timeout_while_recording_is_tried_again<D: TestDriver>(world: World<D>) {
    // Opened before the timeouts are set.
    let _ = world.run(&intent("first")).await.unwrap();
    for (setting, end) in [
        ("statement_timeout = '3s'", "succeed"),
        ("statement_timeout = '3s'", "fail"),
        ("lock_timeout = '2s'", "transact"),
    ] {
        set_for_new_sessions(&world, setting).await;
        let wanted = intent(end);
        let once = world.another("recording", 2, |b| b);
        let Claim::Run(lease) = once.lease(&wanted, MINUTE).await.unwrap() else {
            panic!("fresh")
        };
        let recording = async {
            match end {
                "succeed" => lease.succeed("done").await.map(drop),
                "fail" => lease.fail(Failure::permanent("no", "not this one")).await,
                _ => {
                    let work = |mut tx: pgonce::Attempt<D>| async move {
                        effect(&mut tx).await?;
                        tx.succeed("done").await
                    };
                    lease.transact(work).await.map(drop)
                }
            }
        };
        strike(&world, recording).await.unwrap();
        let status = world.see.record(&wanted, "status").await;
        let ended = if end == "fail" {
            "failed_final"
        } else {
            "succeeded"
        };
        assert_eq!(status, ended, "{end}");
    }
}

/// What may strike a recording and go away again, each once before it gets through.
const STRIKES: [&str; 5] = ["40001", "40P01", "55P03", "57014", "53300"];

async fn whatever_strikes_while_recording_it_is_recorded<D: TestDriver>(world: World<D>) {
    // A sequence counts: what a trigger writes is undone with the statement that it fails.
    let trap = format!(
        "create sequence struck; \
         create function strike() returns trigger language plpgsql security definer as $$ \
         declare c text := (array['{}'])[nextval('public.struck')]; \
         begin if c is not null then raise exception 'struck' using errcode = c; end if; return new; end $$; \
         create trigger strike before update on pgonce.intent for each row when (new.status <> 'processing') execute function strike()",
        STRIKES.join("','")
    );
    world.see.run(&trap).await;
    for (isolation, level) in [
        (Isolation::ReadCommitted, "read committed"),
        (Isolation::Serializable, "serializable"),
    ] {
        let once = world.another("struck", 2, |b| b.isolation(isolation));
        for end in ["succeed", "fail", "transact"] {
            world.see.run("alter sequence struck restart").await;
            let wanted = intent(&format!("{end} {level}"));
            let ended = once.run_leased(&wanted, |lease| end_by(end, lease));
            match (end, ended.await) {
                ("fail", Err(Error::Refused(_))) => {}
                ("succeed" | "transact", Ok(done)) => assert!(!done.replayed()),
                (_, other) => panic!("{end}, {level}: {other:?}"),
            }
            let ended = if end == "fail" {
                "failed_final"
            } else {
                "succeeded"
            };
            assert_eq!(world.see.record(&wanted, "status").await, ended);
            assert_eq!(world.see.record(&wanted, "attempts").await, "1");
            let effects = i64::from(end == "transact");
            assert_eq!(world.see.effects(&wanted).await, effects, "{end}, {level}");
            let struck = world.see.number("select last_value from struck").await;
            assert_eq!(struck, 6, "{end}, {level}: all five, then none");
        }
    }
}

/// Refuses every record of an end with the code in the gate. One statement reads the gate, so that
/// it may open at any moment.
const GATE: &str = "create table gate (code text); insert into gate values ('40001'); \
    create function refuse() returns trigger language plpgsql security definer as $$ \
    declare refused text; begin select code into refused from public.gate; \
    if refused is null then return new; end if; \
    raise exception 'not now' using errcode = refused; end $$; \
    create trigger refuse before update on pgonce.intent for each row \
    when (new.status <> 'processing') execute function refuse()";

async fn end_by<D: TestDriver>(
    end: &str,
    lease: pgonce::Lease<D>,
) -> pgonce::Result<pgonce::Done<str>> {
    match end {
        "succeed" => lease.succeed("done").await,
        "fail" => Err(Failure::permanent("no", "not this one").into()),
        _ => {
            let work = |mut tx: pgonce::Attempt<D>| async move {
                effect(&mut tx).await?;
                tx.succeed("done").await
            };
            lease.transact(work).await
        }
    }
}

async fn a_lease_is_renewed_while_its_work_is_being_recorded<D: TestDriver>(world: World<D>) {
    world.see.run(GATE).await;
    let contract = Contract::keep(MINUTE).lease(Duration::from_secs(6));
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    let once = world.another("recording", 4, |b| b);
    let ends = ["succeed", "fail", "transact"];
    let run = |end: &'static str| {
        let once = &once;
        async move {
            let wanted = intent(end);
            once.run_leased(&wanted, |lease| end_by(end, lease)).await
        }
    };
    let opened = async {
        for end in ends {
            let renewed = format!(
                "select exists (select from pgonce.intent \
                 where key = '{end}' and lease_until > first_at + interval '12 seconds')"
            );
            world.see.wait_until(&renewed).await;
            let other = world.once.lease(&intent(end), MINUTE).await.unwrap();
            assert!(matches!(other, Claim::Busy { .. }), "{end}: {other:?}");
        }
        world.see.run("delete from gate").await;
    };
    let (ended, ()) = join(join_all(ends.map(run)), opened).await;
    for (end, ended) in ends.into_iter().zip(ended) {
        match (end, ended) {
            ("fail", Err(Error::Refused(_))) => {}
            ("succeed" | "transact", Ok(done)) => assert!(!done.replayed()),
            (_, other) => panic!("{end}: {other:?}"),
        }
        let wanted = intent(end);
        assert_eq!(world.see.record(&wanted, "attempts").await, "1", "{end}");
        let effects = i64::from(end == "transact");
        assert_eq!(world.see.effects(&wanted).await, effects, "{end}");
    }
}

async fn a_lease_is_not_renewed_for_longer_than_the_policy_allows<D: TestDriver>(world: World<D>) {
    world.see.run(GATE).await;
    let contract = Contract::keep(MINUTE).lease(Duration::from_millis(300));
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    let policy = Policy::default().within(Duration::from_millis(600));
    let once = world.another("recording", 4, |b| b.retry(policy));
    // The second is no error that may pass anywhere else.
    for code in ["40001", "57014"] {
        let refuse = format!("update gate set code = '{code}'");
        world.see.run(&refuse).await;
        for end in ["succeed", "fail", "transact"] {
            let wanted = intent(&format!("{end} {code}"));
            let ended = once.run_leased(&wanted, |lease| end_by(end, lease)).await;
            let is_uncertain = matches!(ended, Err(Error::Uncertain(_)));
            assert!(is_uncertain, "{end}, {code}: {ended:?}");
            assert_eq!(world.see.effects(&wanted).await, 0, "{end}, {code}");
            assert_eq!(world.see.record(&wanted, "status").await, "processing");
        }
    }
}

/// Nobody says that the connection is gone: what was sent on it gets no reply, ever.
async fn what_a_silent_connection_swallows_is_recorded_on_another<D: TestDriver>(world: World<D>) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let ends = ["succeed", "fail", "transact"];
    let mut leases = Vec::new();
    for end in ends {
        let once = world.another_at(&cutter.url_for(world.database()), 2, |b| b);
        let lease = once.lease(&intent(end), Duration::from_secs(6)).await;
        let Claim::Run(lease) = lease.unwrap() else {
            panic!("fresh")
        };
        leases.push((end, lease));
    }
    cutter.fall_silent();
    cutter.speak();
    let recorded = leases.into_iter().map(|(end, lease)| async move {
        match end {
            "fail" => lease.fail(Failure::permanent("no", "not this one")).await,
            _ => end_by(end, lease).await.map(drop),
        }
    });
    for (end, ended) in ends.iter().zip(in_time(join_all(recorded)).await) {
        ended.unwrap_or_else(|error| panic!("{end}: {error}"));
        let settled = world.see.record(&intent(end), "status").await;
        assert_ne!(settled, "processing", "{end}");
    }
}

async fn work_begins_under_a_lease_that_is_over_only_where_nobody_took_over<D: TestDriver>(
    world: World<D>,
) {
    for is_taken in [false, true] {
        let wanted = intent(&format!("taken: {is_taken}"));
        let short = Duration::from_secs(3);
        let Claim::Run(mut lease) = world.once.lease(&wanted, short).await.unwrap() else {
            panic!("fresh")
        };
        let over = format!(
            "select lease_until < clock_timestamp() from pgonce.intent where key = '{}'",
            wanted.key()
        );
        world.see.wait_until(&over).await;
        if is_taken {
            let next = world.owner.lease(&wanted, MINUTE).await.unwrap();
            assert!(matches!(next, Claim::Run(_)), "{next:?}");
        }
        let mut has_begun = false;
        let ended = lease.renew_while(async { has_begun = true }).await;
        match is_taken {
            false => ended.unwrap(),
            true => assert!(matches!(ended, Err(Error::Fenced(_))), "{ended:?}"),
        }
        assert_eq!(has_begun, !is_taken);
    }
}

async fn leased_work_ends_where_serializable_is_the_default<D: TestDriver>(world: World<D>) {
    set_for_new_sessions(&world, "default_transaction_isolation = serializable").await;
    let once = world.another("strict", 8, |b| b);
    let run = |n: usize| {
        let once = once.clone();
        async move {
            let wanted = intent(&format!("strict-{n}"));
            let ended = once.run_leased(&wanted, |mut lease| async move {
                lease.renew_while(async {}).await?;
                match n % 3 {
                    0 => lease.succeed(&n).await,
                    1 => {
                        lease
                            .transact(|mut tx| async move {
                                effect(&mut tx).await?;
                                tx.succeed(&n).await
                            })
                            .await
                    }
                    _ => Err(Failure::permanent("no", "not this one").into()),
                }
            });
            match ended.await {
                Ok(done) => assert_eq!(done.into_answer().unwrap(), n),
                Err(Error::Refused(_)) => assert_eq!(n % 3, 2),
                Err(error) => panic!("{n}: {error}"),
            }
        }
    };
    join_all((0..60).map(run)).await;
    let open = "select count(*) from pgonce.intent where status = 'processing'";
    assert_eq!(world.see.number(open).await, 0);
}

async fn a_connection_that_lost_its_statements_is_replaced<D: TestDriver>(world: World<D>) {
    let once = world.another("forgetful", 1, |b| b);
    for key in ["a", "b"] {
        let wanted = intent(key);
        let done = once.run(&wanted, |mut tx| async move {
            effect(&mut tx).await?;
            tx.succeed("done").await
        });
        assert!(!done.await.unwrap().replayed());
        let mut session = once.driver().acquire().await.unwrap();
        D::exec(session.raw(), "deallocate all").await.unwrap();
        session.keep();
    }
    let wanted = intent("c");
    let done = once.run(&wanted, |mut tx| async move {
        effect(&mut tx).await?;
        tx.succeed("done").await
    });
    assert!(!done.await.unwrap().replayed());
}

/// A changed result type is 0A000 for a session that has prepared the statement, and stays so: the session is closed.
async fn a_connection_whose_statements_are_out_of_date_is_replaced<D: TestDriver>(world: World<D>) {
    let once = world.another("outdated", 1, |b| b);
    world.see.run("select pgonce.enqueue('q')").await;
    assert_eq!(once.job("", 1).await.unwrap().unwrap().status, "ready");
    let other = "drop function pgonce._job(text, bigint); \
        create function pgonce._job(p_tenant text, p_id bigint) \
        returns table (status name, attempts integer, failure_code text, failure_message text, progress jsonb, result jsonb) \
        language sql as $$ select 'changed'::name, 0, null::text, null::text, null::jsonb, null::jsonb $$; \
        grant execute on function pgonce._job(text, bigint) to public";
    world.see.run(other).await;
    if let Err(error) = once.job("", 1).await {
        assert_eq!(error.code(), "08006", "{error:?}");
    }
    assert_eq!(once.job("", 1).await.unwrap().unwrap().status, "changed");
}

async fn what_is_stored_counts_not_what_the_work_says_afterwards<D: TestDriver>(world: World<D>) {
    let wanted = intent("contradicts itself");
    let done = world.once.run(&wanted, |mut tx| async move {
        effect(&mut tx).await?;
        let _ = tx.succeed("done").await?;
        Err::<pgonce::Done<str>, _>(Failure::permanent("no", "not this one").into())
    });
    assert_eq!(done.await.unwrap().read::<String>().unwrap(), "done");
    assert_eq!(world.see.effects(&wanted).await, 1);
}

async fn idle_work_that_the_server_ended_is_done_again<D: TestDriver>(world: World<D>) {
    let wanted = intent("idles");
    let mut tries = 0;
    let see = &world.see;
    let done = world.once.run(&wanted, |mut tx| {
        tries += 1;
        let first = tries == 1;
        async move {
            effect(&mut tx).await?;
            if first {
                D::exec(
                    tx.conn(),
                    "set idle_in_transaction_session_timeout = '50ms'",
                )
                .await?;
                let pid = D::fetch(tx.conn(), "select pg_backend_pid()")
                    .await?
                    .unwrap();
                see.wait_until(&format!(
                    "select not exists (select from pg_stat_activity where pid = {pid})"
                ))
                .await;
            }
            tx.succeed("done").await
        }
    });
    assert!(!done.await.unwrap().replayed());
    assert_eq!(world.see.effects(&wanted).await, 1);
}

for_each_driver!(
    a_timeout_while_recording_is_tried_again,
    whatever_strikes_while_recording_it_is_recorded,
    a_lease_is_renewed_while_its_work_is_being_recorded,
    a_lease_is_not_renewed_for_longer_than_the_policy_allows,
    what_a_silent_connection_swallows_is_recorded_on_another,
    work_begins_under_a_lease_that_is_over_only_where_nobody_took_over,
    a_connection_whose_statements_are_out_of_date_is_replaced,
    leased_work_ends_where_serializable_is_the_default,
    a_connection_that_lost_its_statements_is_replaced,
    what_is_stored_counts_not_what_the_work_says_afterwards,
    idle_work_that_the_server_ended_is_done_again,
);
