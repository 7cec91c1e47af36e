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
    let mut doubles = 0;
    for schedule in 0..schedules() {
        skew(&places, &mut random).await;
        for _ in 0..30 {
            let request = intent(&format!("{schedule}-{}", random.random_range(0..8)));
            let place = &places.all[random.random_range(0..3)];
            match random.random_range(0..10) {
                0..4 => place.link.set(network(&mut random)),
                4 => drop(place.once.beat_region().await.unwrap()),
                5 => drop(place.once.run_leased(&request, leased).await),
                _ => drop(place.once.run(&request, work::<TokioPostgres>).await),
            }
        }
        places.settle().await;
        doubles += check(&places).await;
    }
    println!(
        "{} schedules, {doubles} double commits, all listed",
        schedules()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn in_home_mode_nothing_is_committed_twice_whatever_is_cut() {
    let mut random = random();
    let places = Places::start(3).await;
    places.rule(Rule::new("*", Mode::Home)).await;
    for schedule in 0..schedules() {
        skew(&places, &mut random).await;
        for _ in 0..30 {
            let request = intent(&format!("{schedule}-{}", random.random_range(0..8)));
            let number = random.random_range(0..3);
            match random.random_range(0..10) {
                0..4 => places.all[number].link.set(network(&mut random)),
                _ => follow(&places, number, &request).await,
            }
        }
        places.settle().await;
        assert_eq!(check(&places).await, 0);
    }
}

/// A client that goes where it is sent.
async fn follow(places: &Places, number: usize, request: &Intent) {
    let mut at = &places.all[number];
    loop {
        let Err(error) = at.once.run(request, work::<TokioPostgres>).await else {
            return;
        };
        let home = Home::from_error(&error).unwrap_or_else(|| panic!("{error:?}"));
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

/// Every effect but one of each key is listed, and nothing else is. Answers how many.
async fn check(places: &Places) -> i64 {
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
    effects.values().map(|count| count - 1).sum()
}
