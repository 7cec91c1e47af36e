//! Random schedules of commands, cuts and clocks.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::region::{Home, Mode, Rule};
use pgonce::{Error, Intent};
use pgonce_tests::{intent, random, work};
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::link::Network;
use super::places::Places;

fn schedules() -> usize {
    match std::env::var("REGION_SCHEDULES") {
        Ok(text) => text.parse().expect("REGION_SCHEDULES is a number"),
        Err(_) => 2,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_any_cuts_all_regions_agree_and_exactly_the_double_commits_are_listed() {
    let mut random = random();
    let places = Places::start(3).await;
    places.rule(Rule::new("*", Mode::Local)).await;
    let (mut doubles, mut done) = (0, 0);
    for schedule in 0..schedules() {
        skew(&places, &mut random).await;
        // One is certain: nobody sees the other.
        for place in &places.all {
            place.link.set(Network::Cut);
        }
        for place in &places.all[1..] {
            let request = intent(&format!("{schedule}-both"));
            done += acknowledged(place.once.run(&request, work::<TokioPostgres>).await);
        }
        for _ in 0..30 {
            let request = intent(&format!("{schedule}-{}", random.random_range(0..8)));
            let place = &places.all[random.random_range(0..3)];
            match random.random_range(0..10) {
                0..4 => place.link.set(network(&mut random)),
                4 => assert!(place.once.beat_region().await.unwrap()),
                5 => done += acknowledged(place.once.run_leased(&request, leased).await),
                _ => done += acknowledged(place.once.run(&request, work::<TokioPostgres>).await),
            }
        }
        places.settle().await;
        let (effects, twice) = check(&places).await;
        assert_eq!(effects, done, "every effect was acknowledged once");
        assert!(twice > doubles, "schedule {schedule} has a double commit");
        doubles = twice;
    }
    println!(
        "local: {} schedules, {done} effects, {doubles} double commits, all listed; PostgreSQL {}",
        schedules(),
        versions(&places).await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn in_home_mode_nothing_is_committed_twice_whatever_is_cut() {
    let mut random = random();
    let places = Places::start_from(3, 1).await;
    places.rule(Rule::new("*", Mode::Home)).await;
    let mut done = 0;
    for schedule in 0..schedules() {
        skew(&places, &mut random).await;
        for _ in 0..30 {
            let request = intent(&format!("{schedule}-{}", random.random_range(0..8)));
            let number = random.random_range(0..3);
            match random.random_range(0..10) {
                0..4 => places.all[number].link.set(network(&mut random)),
                _ => done += follow(&places, number, &request).await,
            }
        }
        places.settle().await;
        assert_eq!(check(&places).await, (done, 0));
    }
    assert!(done > 0);
    println!(
        "home: {} schedules, {done} effects, none twice; PostgreSQL {}",
        schedules(),
        versions(&places).await
    );
}

/// How many effects a reply stands for. A region may say that it has not merged what it received; nothing else may go wrong.
fn acknowledged<T>(reply: Result<pgonce::Done<T>, Error>) -> i64 {
    match reply {
        Ok(done) => i64::from(!done.replayed()),
        Err(error) if error.code() == "P4111" => 0,
        Err(error) => panic!("{error:?}"),
    }
}

async fn versions(places: &Places) -> String {
    let mut versions = Vec::new();
    for place in &places.all {
        versions.push(place.see.text("show server_version").await);
    }
    versions.join(", ")
}

/// A client that goes where it is sent. Answers how many effects it made.
async fn follow(places: &Places, number: usize, request: &Intent) -> i64 {
    let mut at = &places.all[number];
    loop {
        let reply = at.once.run(request, work::<TokioPostgres>).await;
        let Some(home) = reply.as_ref().err().and_then(Home::from_error) else {
            return acknowledged(reply);
        };
        at = match &*home.name {
            "eu" => &places.all[0],
            "us" => &places.all[1],
            _ => &places.all[2],
        };
    }
}

async fn leased(lease: pgonce::Lease<TokioPostgres>) -> Result<pgonce::Done, Error> {
    let effect = "insert into effects values ('', 'orders.create', $1, 'leased')";
    let key = lease.intent().key().to_owned();
    let mut write = lease.begin().await?;
    write.conn().execute(effect, &[&key]).await?;
    write.succeed(&serde_json::json!(key)).await
}

fn network(random: &mut StdRng) -> Network {
    [
        Network::Open,
        Network::Cut,
        Network::Silent,
        Network::OneWay,
    ][random.random_range(0..4)]
}

/// Clocks differ by up to a minute.
async fn skew(places: &Places, random: &mut StdRng) {
    for place in &places.all {
        let seconds = random.random_range(-30..30);
        place.see.run("select pgonce._reset_clock()").await;
        place
            .see
            .run(&format!("select pgonce._move_clock('{seconds} seconds')"))
            .await;
    }
}

/// Every effect but one of each key is listed, and nothing else is. Answers how many effects there are, and how many too many.
async fn check(places: &Places) -> (i64, i64) {
    let mut effects = std::collections::BTreeMap::<String, i64>::new();
    for place in &places.all {
        for row in place.see.rows("select key from effects").await {
            *effects.entry(row[0].clone().unwrap()).or_default() += 1;
        }
    }
    for place in &places.all {
        let tasks = "select key, count(*) from pgonce.double_commits group by key";
        let mut listed = std::collections::BTreeMap::new();
        for row in place.see.rows(tasks).await {
            let count: i64 = row[1].as_deref().unwrap().parse().unwrap();
            listed.insert(row[0].clone().unwrap(), count + 1);
        }
        let twice = effects.iter().filter(|(_, count)| **count > 1);
        let twice = twice.map(|(key, count)| (key.clone(), *count)).collect();
        assert_eq!(listed, twice);
    }
    let all: i64 = effects.values().sum();
    (all, all - i64::try_from(effects.len()).unwrap())
}
