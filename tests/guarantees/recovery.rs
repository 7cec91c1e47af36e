//! Work that stopped on the way is found and classified; suppressed duplicates are counted.

use std::time::Duration;

use futures_util::future::join;
use pgonce::scope::{Busy, Contract, Stale};
use pgonce::{Ack, Claim, Classification, Failure, Intent};
use pgonce_testkit::wait_until;
use pgonce_tests::{SCOPE, TestDriver, World, for_each_driver, intent, work};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

async fn stuck_work_is_found_oldest_first_and_classified_by_its_contract<D: TestDriver>(
    world: World<D>,
) {
    for (scope, stale) in [
        ("takeover", Stale::Takeover),
        ("hold", Stale::Hold),
        ("refuse", Stale::Refuse),
    ] {
        world
            .owner
            .define_scope(scope, &Contract::keep(HOUR).stale(stale))
            .await
            .unwrap();
    }
    let named = world.another("named", 1, |b| b.owner("pod-7"));
    for scope in ["takeover", "hold", "refuse"] {
        let request = Intent::new(scope, "vanished", "r")
            .unwrap()
            .tenant("acme")
            .unwrap();
        assert!(matches!(
            named.lease(&request, HOUR).await.unwrap(),
            Claim::Run(_)
        ));
        world
            .see
            .run("select pgonce._move_clock(interval '1 minute')")
            .await;
    }
    let alive = Intent::new("takeover", "alive", "r").unwrap();
    assert!(world.owner.stuck(10).await.unwrap().is_empty());
    world
        .see
        .run("select pgonce._move_clock(interval '2 hours')")
        .await;
    let _ = world
        .once
        .run::<(), _, _>(&intent("failed"), async |_| {
            Err(Failure::transient("down", "m").into())
        })
        .await
        .unwrap_err();
    let _ = world
        .once
        .run::<(), _, _>(&intent("final"), async |_| {
            Err(Failure::permanent("no", "m").into())
        })
        .await
        .unwrap_err();
    let _ = world.run(&intent("done")).await.unwrap();
    assert!(matches!(
        world.once.lease(&alive, HOUR).await.unwrap(),
        Claim::Run(_)
    ));

    let stuck = world.owner.stuck(10).await.unwrap();
    let found: Vec<_> = stuck
        .iter()
        .map(|s| (s.scope.as_str(), s.key.as_str(), s.classification))
        .collect();
    assert_eq!(
        found,
        [
            ("takeover", "vanished", Classification::SafeToRetry),
            ("hold", "vanished", Classification::NeedsManualAction),
            ("refuse", "vanished", Classification::Abandoned),
            ("orders.create", "failed", Classification::SafeToRetry),
        ]
    );
    assert_eq!(
        (
            stuck[0].tenant.as_str(),
            stuck[0].owner.as_deref(),
            stuck[0].attempts
        ),
        ("acme", Some("pod-7"), 1)
    );
    assert!(
        stuck[0].stuck_for > HOUR && stuck[0].stuck_for < 2 * HOUR,
        "{:?}",
        stuck[0].stuck_for
    );
    assert_eq!(stuck[3].failure_code.as_deref(), Some("down"));
    assert_eq!(world.owner.stuck(1).await.unwrap().len(), 1);
}

async fn nothing_unfinished_is_hidden_or_removed_when_its_contract_is_gone<D: TestDriver>(
    world: World<D>,
) {
    world
        .owner
        .define_scope("orphan", &Contract::keep(HOUR))
        .await
        .unwrap();
    let request = Intent::new("orphan", "k", "r").unwrap();
    assert!(matches!(
        world.once.lease(&request, HOUR).await.unwrap(),
        Claim::Run(_)
    ));
    world
        .see
        .run("select pgonce.set_strict(true); select pgonce.drop_scope('orphan')")
        .await;
    world
        .see
        .run("select pgonce._move_clock(interval '100 years')")
        .await;
    assert_eq!(world.owner.purge(10).await.unwrap(), 0);
    let stuck = world.owner.stuck(10).await.unwrap();
    assert_eq!(stuck.len(), 1);
    assert_eq!(stuck[0].classification, Classification::NeedsManualAction);
}

async fn suppressed_duplicates_are_counted_by_tenant_and_scope<D: TestDriver>(world: World<D>) {
    let request = intent("counted").tenant("acme").unwrap();
    let _ = world.run(&request).await.unwrap();
    for _ in 0..3 {
        assert!(world.run(&request).await.unwrap().replayed());
    }
    assert!(world.once.answer(&request).await.unwrap().is_some());
    let refused = intent("refused").tenant("acme").unwrap();
    for _ in 0..3 {
        let _ = world
            .once
            .run::<(), _, _>(
                &refused,
                async |_| Err(Failure::permanent("no", "m").into()),
            )
            .await
            .unwrap_err();
    }
    let other = Intent::new("orders.create", "counted", "other")
        .unwrap()
        .tenant("acme")
        .unwrap();
    assert!(world.run(&other).await.is_err());
    let held = intent("held").tenant("acme").unwrap();
    let Claim::Run(attempt) = world.once.claim(&held).await.unwrap() else {
        panic!("fresh")
    };
    for _ in 0..2 {
        assert!(world.run(&held).await.is_err());
    }
    let _ = attempt.succeed(Ack::status()).await.unwrap();
    let _ = world.run(&intent("elsewhere")).await.unwrap();
    world.once.flush().await.unwrap();
    world.once.flush().await.unwrap();
    // Some may be on their way since they were counted.
    world
        .see
        .wait_until("select sum(suppressed) = 9 from pgonce.suppression")
        .await;
    let rows = world.see.rows("select tenant, intents, replays, refusals, busy, conflicts, suppressed from pgonce.suppression order by tenant").await;
    let row = |cells: [&str; 7]| cells.map(|cell| Some(cell.to_owned())).to_vec();
    assert_eq!(
        rows,
        [
            row(["", "1", "0", "0", "0", "0", "0"]),
            row(["acme", "3", "4", "2", "2", "1", "9"])
        ]
    );
}

async fn a_count_that_cannot_be_written_keeps_no_other_back<D: TestDriver>(world: World<D>) {
    world
        .see
        .run(
            "create function refuse() returns trigger language plpgsql as 'begin raise exception ''no''; end'; \
             create trigger refuse before insert on pgonce.suppressed for each row when (new.scope = 'b') \
             execute function refuse()",
        )
        .await;
    for scope in ["a", "b", "c"] {
        let request = Intent::new(scope, "counted", "request").unwrap();
        for _ in 0..2 {
            let _ = world.run(&request).await.unwrap();
        }
    }
    let written = "select coalesce(string_agg(scope || replays, ' ' order by scope), '') from pgonce.suppressed";
    // After two seconds counts are written by themselves, too: a call may find nothing to write.
    let flushed = async |fails: bool, counts: &str| {
        let both = || async {
            world.once.flush().await.is_err() == fails && world.see.text(written).await == counts
        };
        wait_until(format_args!("{counts}"), MINUTE, both)
            .await
            .unwrap();
    };
    flushed(true, "a1 c1").await;
    world
        .see
        .run("drop trigger refuse on pgonce.suppressed")
        .await;
    flushed(false, "a1 b1 c1").await;
}

async fn one_that_waits_is_counted_once_by_its_final_answer<D: TestDriver>(world: World<D>) {
    let waiting = Contract::keep(HOUR).busy(Busy::Wait).wait_timeout(HOUR);
    world.owner.define_scope(SCOPE, &waiting).await.unwrap();
    let request = intent("awaited");
    // A lease holds no lock to sleep on: the waiter looks again and again.
    let Claim::Run(lease) = world.once.lease(&request, HOUR).await.unwrap() else {
        panic!("fresh")
    };
    let looks = "select last_value > 3 from looked";
    world
        .see
        .run(
            "create sequence looked; create or replace function pgonce._busy(p_retry_after interval, p_attempts integer) \
             returns pgonce.claimed language sql volatile as $$ select row('busy', null, null, null, null, null, null, interval '1 millisecond', p_attempts)::pgonce.claimed from nextval('public.looked') $$",
        )
        .await;
    let (done, ()) = join(world.run(&request), async {
        world.see.wait_until(looks).await;
        let _ = lease.succeed(Ack::status()).await.unwrap();
    })
    .await;
    assert!(done.unwrap().replayed());
    world.once.flush().await.unwrap();
    let counted = "select busy = 0 and replays = 1 from pgonce.suppressed";
    world.see.wait_until(counted).await;
}

async fn the_most_retried_intents_come_first<D: TestDriver>(world: World<D>) {
    for (key, failures) in [("often", 3), ("once", 1), ("never", 0)] {
        for _ in 0..failures {
            let _ = world
                .once
                .run::<(), _, _>(&intent(key), async |_| {
                    Err(Failure::transient("down", "m").into())
                })
                .await
                .unwrap_err();
        }
        let _ = world.once.run(&intent(key), work::<D>).await.unwrap();
    }
    let rows = world
        .see
        .rows("select key, attempts, status from pgonce.most_retried")
        .await;
    let found: Vec<String> = rows
        .into_iter()
        .map(|row| row.into_iter().flatten().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(found, ["often 4 succeeded", "once 2 succeeded"]);
}

/// Dead leases that only the next claim may take over, and work that an operator must decide, however much there is of both.
async fn recovery_reads_only_what_it_can_act_on<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run("select pgonce.define_scope('refuse', '1 day', p_stale => 'refuse')")
        .await;
    let unfinished = |scope: &str, from: i32, to: i32, code: &str| {
        format!(
            "insert into pgonce.intent (tenant, scope, key, fingerprint, status, attempts, fence, first_at, last_at, lease_until, failure_code) \
             select '', '{scope}', n::text, '\\x01', 'processing', 1, 2 * n, pgonce.now() - interval '2 days', \
                 pgonce.now() - interval '2 days', pgonce.now() - interval '1 day' + n * interval '1 ms', {code} \
             from generate_series({from}, {to}) n"
        )
    };
    see.run(&unfinished("refuse", 90_001, 90_004, "null")).await;
    let pages = async || {
        see.run("vacuum analyze pgonce.intent").await;
        let take = "explain (analyze, buffers, format json) select key from pgonce._take_stale(4, 'me', '1 minute')";
        let mut plan = String::new();
        // The first call also reads the catalogue.
        for _ in 0..2 {
            see.run("begin").await;
            plan = see.text(take).await;
            see.run("rollback").await;
        }
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let plan = &plan[0]["Plan"];
        assert_eq!(plan["Actual Rows"].as_f64(), Some(4.0), "{plan}");
        plan["Shared Hit Blocks"].as_u64().unwrap() + plan["Shared Read Blocks"].as_u64().unwrap()
    };
    let few = pages().await;
    for scope in ["dead 1", "dead 2"] {
        see.run(&unfinished(scope, 1, 10_000, "null")).await;
    }
    see.run(&unfinished("refuse", 1, 10_000, "'needs_manual_action'"))
        .await;
    see.run("insert into pgonce.intent (tenant, scope, key, fingerprint, status, attempts, fence, first_at, last_at) \
             select '', 'refuse', 'failed ' || n, '\\x01', 'failed_retryable', 1, 1, pgonce.now(), pgonce.now() - interval '3 days' \
             from generate_series(1, 10000) n")
        .await;
    let many = pages().await;
    // A look at each of them would be tens of thousands of pages.
    assert!(many < few + 1000, "{few} pages, then {many}");
    assert_eq!(
        world.owner.recovery().run_once().await.unwrap().abandoned,
        4
    );
    // Where the contract of all other scopes can be acted on, so can they.
    see.run("select pgonce.define_scope('*', '1 day', p_stale => 'refuse'); select pgonce.define_scope('dead 2', '1 day'); \
             delete from pgonce.intent where key::text not in ('7', '8') and scope like 'dead%'")
        .await;
    assert_eq!(
        world.owner.recovery().run_once().await.unwrap().abandoned,
        2
    );
}

for_each_driver!(
    recovery_reads_only_what_it_can_act_on,
    a_count_that_cannot_be_written_keeps_no_other_back,
    stuck_work_is_found_oldest_first_and_classified_by_its_contract,
    nothing_unfinished_is_hidden_or_removed_when_its_contract_is_gone,
    suppressed_duplicates_are_counted_by_tenant_and_scope,
    one_that_waits_is_counted_once_by_its_final_answer,
    the_most_retried_intents_come_first,
);
