//! Homes that move, by a rule or because a region joins or leaves: what is under way ends first, and nothing is committed twice.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::region::{Mode, Rule, define_rule, join, leave};
use pgonce_tests::{Observer, intent, work};

use super::link::Network;
use super::places::{Place, Places, TIMEOUT};

/// Short: what it waits for stays.
const SHORT: Duration = Duration::from_secs(5);

/// A session at a place, with a transaction in which an intent is claimed.
async fn claimed(place: &Place, begin: &str, key: &str) -> Observer {
    let session = Observer::connect(&place.url()).await;
    session.run(begin).await;
    let claim = format!("select outcome from pgonce.claim('orders.create', '{key}', '\\x01')");
    assert_eq!(session.text(&claim).await, "fresh");
    session
}

fn succeed(key: &str, fence: i64) -> String {
    format!("select pgonce.succeed('orders.create', '{key}', '\\x01', {fence}, '1')")
}

/// The fence of a new lease.
async fn leased(place: &Place, key: &str, length: &str) -> i64 {
    let lease =
        format!("select fence from pgonce.claim('orders.create', '{key}', '\\x01', '{length}')");
    place.see.number(&lease).await
}

async fn outcome(place: &Place, key: &str) -> String {
    let claim = format!("select outcome from pgonce.claim('orders.create', '{key}', '\\x01')");
    place.see.text(&claim).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_moves_after_its_leases_and_transactions_have_ended_and_refuses_those_that_had_not_written()
 {
    let places = Places::start(2).await;
    places.rule(Rule::new("*", Mode::Home).home("eu")).await;
    let [eu, us] = &places.all[..] else { panic!() };
    let held = leased(eu, "held", "1 hour").await;
    let stale = leased(eu, "stale", "1 microsecond").await;
    let open = claimed(eu, "begin", "open").await;
    let repeatable = claimed(eu, "begin isolation level repeatable read", "repeatable").await;
    let written = claimed(eu, "begin", "written").await;
    written.run(&succeed("written", 1)).await;

    let members = places.members();
    let rule = Rule::new("*", Mode::Home).home("us");
    let error = define_rule(&members, &rule, SHORT).await.unwrap_err();
    assert_eq!(error.code(), "55P03");
    assert!(error.to_string().contains("pid"), "{error}");
    // It is not in force, and forbids already.
    assert_eq!(eu.refusal("new").await, "P4110");
    assert_eq!(us.refusal("new").await, "P4111");
    assert_eq!(open.code(&succeed("open", 1)).await, "P4110");
    assert_eq!(repeatable.code(&succeed("repeatable", 1)).await, "40001");
    let pending = "select pending_rules from pgonce.regions where is_self";
    assert_eq!(us.see.text(pending).await, "*");
    let other = define_rule(&members, &Rule::new("*", Mode::Local), SHORT).await;
    assert_eq!(other.unwrap_err().code(), "55000");

    written.run("commit").await;
    let error = define_rule(&members, &rule, SHORT).await.unwrap_err();
    assert!(
        error.to_string().contains("1 held under a lease"),
        "{error}"
    );
    assert!(
        error.to_string().contains("1 whose holder vanished"),
        "{error}"
    );
    // The lease ends as it would have; whether the holder that vanished did its work is for an operator to say.
    eu.see.run(&succeed("held", held)).await;
    eu.see
        .run("select pgonce.intervene('release', 'orders.create', 'stale', 'nothing was done', p_force => true)")
        .await;
    assert_eq!(eu.see.code(&succeed("stale", stale)).await, "P4012");
    define_rule(&members, &rule, TIMEOUT).await.unwrap();

    for (key, expected) in [
        ("held", "replay"),
        ("written", "replay"),
        ("open", "fresh"),
        ("stale", "fresh"),
    ] {
        assert_eq!(outcome(us, key).await, expected, "{key}");
    }
    assert_eq!(eu.refusal("new").await, "P4110");
    for session in [open, repeatable] {
        session.run("rollback").await;
    }
    places.settle().await;
    let tasks = "select count(*) from pgonce.double_commits";
    assert_eq!(us.see.number(tasks).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_an_operator_is_waited_for_and_an_abandoned_lease_stays_abandoned() {
    let places = Places::start(2).await;
    let [eu, us] = &places.all[..] else { panic!() };
    places.rule(Rule::new("*", Mode::Home).home("eu")).await;
    for place in &places.all {
        place
            .see
            .run("select pgonce.define_scope('hold', '1 day', p_stale => 'hold'), pgonce.define_scope('refuse', '1 day', p_stale => 'refuse')")
            .await;
    }
    eu.see
        .run("select pgonce.claim('hold', 'a', '\\x01', '1 microsecond'), pgonce.claim('refuse', 'a', '\\x01', '1 microsecond')")
        .await;
    let (members, rule) = (places.members(), Rule::new("*", Mode::Home).home("us"));
    let error = define_rule(&members, &rule, SHORT).await.unwrap_err();
    assert!(error.to_string().contains("pgonce stuck"), "{error}");
    eu.see
        .run("select pgonce.intervene('fail', 'hold', 'a', 'ticket 7', p_code => 'lost')")
        .await;
    define_rule(&members, &rule, TIMEOUT).await.unwrap();
    for scope in ["hold", "refuse"] {
        let claim = format!("select outcome from pgonce.claim('{scope}', 'a', '\\x01')");
        assert_eq!(us.see.text(&claim).await, "refused", "{scope}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_leaves_ends_its_work_and_the_others_have_the_last_of_it() {
    let places = Places::start(2).await;
    places.rule(Rule::new("*", Mode::Home).home("us")).await;
    let [eu, us] = &places.all[..] else { panic!() };
    us.link.set(Network::Silent);
    let _ = us
        .once
        .run(&intent("last"), work::<TokioPostgres>)
        .await
        .unwrap();
    let held = leased(us, "held", "1 hour").await;
    let open = claimed(us, "begin", "open").await;
    let leaving = tokio::spawn({
        let (eu, us) = (eu.member(), us.member());
        async move { leave("us", &[eu], Some(&us), TIMEOUT).await }
    });
    let state = "select state = 'leaving' from pgonce.region where is_self";
    us.see.wait_until(state).await;
    assert_eq!(us.refusal("new").await, "P4111");
    assert_eq!(open.code(&succeed("open", 1)).await, "P4111");
    us.see.run(&succeed("held", held)).await;
    assert_eq!(
        eu.refusal("last").await,
        "P4110",
        "it knows nothing of it yet"
    );
    us.link.set(Network::Open);
    assert_eq!(leaving.await.unwrap().unwrap(), None);
    let done = eu.once.run(&intent("last"), work::<TokioPostgres>).await;
    assert!(done.unwrap().replayed());
    assert_eq!(outcome(eu, "held").await, "replay");
    assert_eq!(outcome(eu, "open").await, "fresh");
    assert!(us.once.regions().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn survivors_share_what_any_of_them_received_of_a_lost_region() {
    let places = Places::start(3).await;
    places.rule(Rule::new("*", Mode::Home).home("us")).await;
    let [eu, us, ap] = &places.all[..] else {
        panic!()
    };
    ap.see
        .run("alter subscription pgonce_region_3_2 disable")
        .await;
    let _ = us
        .once
        .run(&intent("seen by one"), work::<TokioPostgres>)
        .await
        .unwrap();
    let arrived = "select exists (select from pgonce.intent where key = 'seen by one')";
    eu.see.wait_until(arrived).await;
    us.link.set(Network::Cut);
    let error = leave("us", &[eu.member()], None, TIMEOUT).await;
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("\"ap\" was not named")
    );
    let survivors = [eu.member(), ap.member()];
    let unknown_after = leave("us", &survivors, None, TIMEOUT).await.unwrap();
    assert!(unknown_after.is_some());
    for place in [eu, ap] {
        let done = place
            .once
            .run(&intent("seen by one"), work::<TokioPostgres>)
            .await;
        assert!(done.unwrap().replayed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_names_whom_it_waits_for_and_gives_up_in_time() {
    let places = Places::start(1).await;
    let eu = &places.all[0];
    let us = Place::start(1, 0).await;
    let join_us = async |timeout| {
        join(
            &us.member(),
            2,
            "us",
            "https://us.example",
            &[eu.member()],
            timeout,
        )
        .await
    };
    let other = Observer::connect(&eu.url()).await;
    other.run("begin; select pg_current_xact_id()").await;
    let error = join_us(SHORT).await.unwrap_err();
    assert_eq!(error.code(), "55P03");
    assert!(error.to_string().contains("idle in transaction"), "{error}");
    other.run("rollback").await;

    let other = Observer::connect(&us.url()).await;
    other
        .run("begin; lock table pgonce.intent in row exclusive mode")
        .await;
    let error = join_us(SHORT).await.unwrap_err();
    assert_eq!(error.code(), "55P03");
    assert!(error.to_string().contains("idle in transaction"), "{error}");
    let by_hand = "select pgonce.region_leave('us')";
    assert_eq!(us.see.code(by_hand).await, "55P03");
    other.run("rollback").await;
    for network in [Network::Silent, Network::OneWay] {
        us.link.set(network);
        assert_eq!(join_us(SHORT).await.unwrap_err().code(), "55P03");
    }
    us.link.set(Network::Open);
    join_us(TIMEOUT).await.unwrap();
    let _ = eu.once.beat_region().await.unwrap();
}
