//! Regions: servers of different versions, and a network between them that is cut. Whatever happened, all regions agree in
//! the end, and every intent that two of them committed is listed.
//!
//! `REGION_SCHEDULES` says how many random schedules run; `make region-tests` asks for fifty.

mod hands;
mod link;
mod moves;
mod places;
mod schedules;

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::region::{Home, Mode, Rule, define_rule, join, leave};
use pgonce::{Claim, Error, Once};
use pgonce_testkit::Replication;
use pgonce_tests::{TestDriver as _, intent, work};

use self::link::Network;
use self::places::{Places, TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_one_region_is_replayed_in_the_other_and_two_effects_become_a_task() {
    let places = Places::start(2).await;
    places.rule(Rule::new("*", Mode::Local)).await;
    let [eu, us] = &places.all[..] else { panic!() };
    let _ = eu
        .once
        .run(&intent("first"), work::<TokioPostgres>)
        .await
        .unwrap();
    places.settle().await;
    let done = us
        .once
        .run(&intent("first"), work::<TokioPostgres>)
        .await
        .unwrap();
    assert!(done.replayed());

    eu.link.set(Network::Cut);
    us.link.set(Network::Silent);
    for place in [eu, us] {
        let _ = place
            .once
            .run(&intent("twice"), work::<TokioPostgres>)
            .await
            .unwrap();
    }
    places.settle().await;
    for place in &places.all {
        let tasks =
            "select kept_region || ',' || surplus_region || ',' || key from pgonce.double_commits";
        assert_eq!(place.see.text(tasks).await, "eu,us,twice");
    }
    // Only the region of the surplus effect publishes it.
    let events = "select count(*) from pgonce.outbox where type = 'region.double_commit'";
    assert_eq!(
        (eu.see.number(events).await, us.see.number(events).await),
        (0, 1)
    );

    let resolve = "select pgonce.resolve_double_commit('orders.create', 'twice', 'refunded')";
    assert_eq!(eu.see.number(resolve).await, 1);
    places.settle().await;
    let open = "select count(*) from pgonce.double_commits where resolved_at is null";
    assert_eq!(us.see.number(open).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_home_mode_another_region_names_the_home_and_a_driver_for_it_is_used() {
    let places = Places::start(2).await;
    let [eu, us] = &places.all[..] else { panic!() };
    places.rule(Rule::new("*", Mode::Home).home("us")).await;
    let error = eu
        .once
        .run(&intent("a"), work::<TokioPostgres>)
        .await
        .unwrap_err();
    let home = Home::from_error(&error).unwrap();
    assert_eq!(
        (error.code(), &*home.name, &*home.address),
        ("P4110", "us", "https://us.example")
    );
    assert!(home.forward);
    for claim in ["lease", "optimistic", "one statement"] {
        let request = intent("a");
        let error = match claim {
            "lease" => eu
                .once
                .lease(&request, Duration::from_secs(9))
                .await
                .unwrap_err(),
            "optimistic" => eu.once.claim(&request.known_first()).await.unwrap_err(),
            _ => TokioPostgres::execute(&eu.once, &request, "select $1::text as a", "x")
                .await
                .unwrap_err(),
        };
        assert!(matches!(error, Error::WrongRegion(_)), "{claim}: {error:?}");
    }
    let both = Once::builder(TokioPostgres::connect(&eu.url(), 2))
        .region("us", TokioPostgres::connect(&us.url(), 2));
    let both = both.build().unwrap();
    let _ = both.run(&intent("a"), work::<TokioPostgres>).await.unwrap();
    assert_eq!(
        (
            eu.see.effects(&intent("a")).await,
            us.see.effects(&intent("a")).await
        ),
        (0, 1)
    );
    places.settle().await;
    let done = eu
        .once
        .run(&intent("a"), work::<TokioPostgres>)
        .await
        .unwrap();
    assert!(done.replayed());

    places.rule(Rule::new("*", Mode::ReadOnly).home("us")).await;
    let error = eu
        .once
        .run(&intent("b"), work::<TokioPostgres>)
        .await
        .unwrap_err();
    assert!(!Home::from_error(&error).unwrap().forward);

    // A region without a heartbeat of the home for too long sends requests there.
    places
        .rule(
            Rule::new("*", Mode::Local)
                .home("us")
                .max_lag(Duration::from_secs(3600)),
        )
        .await;
    let _ = eu
        .once
        .run(&intent("c"), work::<TokioPostgres>)
        .await
        .unwrap();
    eu.see.run("select pgonce._move_clock('2 hours')").await;
    let error = eu
        .once
        .run(&intent("d"), work::<TokioPostgres>)
        .await
        .unwrap_err();
    assert_eq!(Home::from_error(&error).unwrap().name, "us");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_forgot_its_newest_commits_works_only_after_it_knows_them_again_and_repeats_no_fence()
 {
    let mut places = Places::start(2).await;
    places.rule(Rule::new("*", Mode::Home).home("eu")).await;
    let standby = places.all[0]
        .server
        .standby(Replication::Asynchronous)
        .await
        .unwrap();
    standby
        .wait_until_caught_up_with(&places.all[0].server)
        .await
        .unwrap();
    standby.fall_behind().await.unwrap();
    let old = places.all[0].lease("leased before").await;
    let _ = places.all[0]
        .once
        .run(&intent("forgotten"), work::<TokioPostgres>)
        .await
        .unwrap();
    places.settle().await;
    let before = places.all[1]
        .see
        .number("select epoch from pgonce.region where name = 'eu'")
        .await;

    places.all[0].server.crash().await.unwrap();
    standby.promote().await.unwrap();
    places.replace(0, standby).await;
    let [eu, us] = &places.all[..] else { panic!() };
    let error = eu.once.claim(&intent("forgotten")).await.unwrap_err();
    assert_eq!(error.code(), "P4111");
    let state = "select state from pgonce.regions where is_self";
    assert_eq!(eu.see.text(state).await, "restored");
    // It cannot say what it committed: no home moves from it, and nothing is left half-way.
    let away = Rule::new("*", Mode::Home).home("us");
    let error = define_rule(&places.members(), &away, TIMEOUT).await;
    assert_eq!(error.unwrap_err().code(), "55000");
    let pending = "select count(*) from pgonce.region_rule where pending";
    assert_eq!(us.see.number(pending).await, 0);

    let others = [us.member()];
    join(
        &eu.member(),
        1,
        "eu",
        "https://eu.example",
        &others,
        TIMEOUT,
    )
    .await
    .unwrap();
    let done = eu
        .once
        .run(&intent("forgotten"), work::<TokioPostgres>)
        .await
        .unwrap();
    assert!(done.replayed(), "it was done, and the other region knew");
    let new = eu.lease("leased after").await;
    assert!(new > old, "{new} after {old}");
    assert!(
        eu.see
            .number("select epoch from pgonce.region where is_self")
            .await
            > before
    );
    assert_eq!(
        new / (1 << 37) % 64,
        1,
        "the number of the region is part of its fences"
    );
    us.once
        .run(&intent("d"), work::<TokioPostgres>)
        .await
        .unwrap_err();
    places.settle().await;
    let tasks = "select count(*) from pgonce.double_commits";
    assert_eq!(eu.see.number(tasks).await, 0);
}

/// A reader that comes back between the look at its slot and the drop is ended, and the slot dropped, by the next call.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_reader_comes_back_while_it_is_dropped_is_dropped_all_the_same() {
    let places = Places::start(2).await;
    let [eu, _] = &places.all[..] else { panic!() };
    eu.link.set(Network::Cut);
    let idle = "select count(*) = 0 from pg_replication_slots where active";
    eu.see.wait_until(idle).await;
    // The name is asked for after the look: the first time, only once the reader is back.
    eu.see
        .run(
            "create sequence looks; \
             alter function pgonce._region_slot(smallint) rename to _named_slot; \
             create function pgonce._region_slot(p_reader smallint) returns name language plpgsql as $$ begin \
             if nextval('public.looks') = 1 then \
             while not exists (select from pg_catalog.pg_replication_slots s where s.active) loop \
             perform pg_catalog.pg_sleep(0.01); end loop; end if; \
             return pgonce._named_slot(p_reader); end $$",
        )
        .await;
    let left = async {
        let survivors = [eu.member()];
        leave("us", &survivors, None, TIMEOUT).await.unwrap();
    };
    let back = async {
        eu.see.wait_until("select is_called from looks").await;
        eu.link.set(Network::Open);
    };
    tokio::join!(left, back);
    let slots = "select count(*) from pg_replication_slots";
    assert_eq!(eu.see.number(slots).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn intents_of_a_lost_region_get_another_home_and_one_that_leaves_is_a_single_database() {
    let places = Places::start(2).await;
    let [eu, us] = &places.all[..] else { panic!() };
    places.rule(Rule::new("*", Mode::Home).home("us")).await;
    let _ = us
        .once
        .run(&intent("a"), work::<TokioPostgres>)
        .await
        .unwrap();
    places.settle().await;
    us.link.set(Network::Cut);
    let unknown_after = leave("us", &[eu.member()], None, TIMEOUT).await.unwrap();
    assert!(unknown_after.unwrap() > std::time::UNIX_EPOCH);
    us.link.set(Network::Open);
    assert!(matches!(
        eu.once.claim(&intent("b")).await,
        Ok(Claim::Run(_))
    ));
    assert!(
        eu.once
            .run(&intent("a"), work::<TokioPostgres>)
            .await
            .unwrap()
            .replayed()
    );
    let left = leave("us", &[eu.member()], Some(&us.member()), TIMEOUT).await;
    assert_eq!(left.unwrap(), None);
    assert!(matches!(
        us.once.claim(&intent("b")).await,
        Ok(Claim::Run(_))
    ));
    assert!(us.once.regions().await.unwrap().is_empty());
    let slots = "select count(*) from pg_replication_slots";
    assert_eq!(
        (eu.see.number(slots).await, us.see.number(slots).await),
        (0, 0)
    );
    // And back.
    join(
        &us.member(),
        2,
        "us",
        "https://us.example",
        &[eu.member()],
        TIMEOUT,
    )
    .await
    .unwrap();
    places.settle().await;
}
