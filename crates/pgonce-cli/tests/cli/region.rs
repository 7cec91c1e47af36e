//! `pgonce region` on two servers of its own; and the commands of the page "Regions", each of them executed.

use std::collections::BTreeSet;

use pgonce_testkit::{Binaries, Postgres, wait_until};
use serde_json::Value;
use tokio_postgres::{Client, NoTls};

use crate::fixture::{Run, program};
use crate::runbooks::{check, commands};

const PAGE: &str = include_str!("../../../../docs/src/how-to/regions.md");

struct Place {
    server: Postgres,
    url: String,
    client: Client,
}

impl Place {
    async fn start(binaries: Binaries) -> Self {
        let builder = Postgres::builder().binaries(binaries);
        let server = builder
            .setting("wal_level", "logical")
            .start()
            .await
            .unwrap();
        let database = server.create_database("shop").await.unwrap();
        let url = database.url().to_string();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let place = Self {
            server,
            url,
            client,
        };
        assert_eq!(place.run(&["migrate", "up"]).code, 0);
        place
    }

    fn run(&self, args: &[&str]) -> Run {
        let mut command = program(args);
        Run::of(command.env("DATABASE_URL", &self.url).output().unwrap())
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let run = self.run(args);
        assert_eq!(run.code, 0, "{args:?}: {run:?}");
        run.out
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["--format", "json"]].concat())).unwrap()
    }

    async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    async fn is(&self, sql: &str) {
        let limit = std::time::Duration::from_secs(180);
        let found = wait_until(sql, limit, async || {
            let row = self.client.query_opt(sql, &[]).await.unwrap();
            row.is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true))
        });
        found.await.unwrap();
    }
}

/// The commands of the page that call the program, as they stand there.
fn documented() -> BTreeSet<String> {
    let blocks = PAGE.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    let commands = lines
        .map(str::trim)
        .filter(|line| line.starts_with("pgonce "));
    commands.map(str::to_owned).collect()
}

#[tokio::test]
async fn every_command_of_the_page_does_what_it_says() {
    let all = Binaries::all().unwrap();
    let eu = Place::start(all[0].clone()).await;
    let us = Place::start(all[all.len() - 1].clone()).await;
    let mut executed = BTreeSet::new();
    let mut page = |place: &Place, command: &str| {
        executed.insert(command.to_owned());
        let command = command
            .replace("\"$EU_DATABASE\"", &eu.url)
            .replace("\"$US_DATABASE\"", &us.url);
        let mut words = Vec::new();
        for (number, part) in command.split('\'').enumerate() {
            match number % 2 {
                0 => words.extend(part.split_whitespace().map(str::to_owned)),
                _ => words.push(part.to_owned()),
            }
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        place.run(&words[1..])
    };
    let mut expect = |place: &Place, command: &str, says: &str| {
        let run = page(place, command);
        assert!(
            run.code == 0 && run.out.contains(says),
            "{command}: {run:?}"
        );
    };

    assert_eq!(
        eu.ok(&["region", "list"]),
        "This database is no region; `pgonce region join` makes it one.\n"
    );
    let join_us = "pgonce region join --id 2 --name us --address https://us.shop.example --with \"$EU_DATABASE\"";
    let too_soon = us.run(&[
        "region", "join", "--id", "2", "--name", "us", "--with", &eu.url,
    ]);
    assert!(too_soon.err.contains("is not a region"), "{too_soon:?}");
    expect(
        &eu,
        "pgonce region join --id 1 --name eu --address https://eu.shop.example",
        "eu has joined 0 others",
    );
    expect(&us, join_us, "us has joined 1 others");
    expect(&us, "pgonce region status", "active");
    for list in ["list", "status"] {
        assert_eq!(eu.ok(&["region", list, "-o", "name"]), "eu\nus\n");
    }
    for mode in ["--dry-run", "--yes"] {
        let unknown = eu.run(&["region", "leave", "nosuch", "--with", &us.url, mode]);
        assert_eq!(unknown.code, 7, "{unknown:?}");
        let incomplete = eu.run(&["region", "leave", "eu", mode]);
        assert_eq!(incomplete.code, 2, "{incomplete:?}");
    }
    let leave = ["region", "leave", "us", "--with", &us.url, "--dry-run"];
    assert_eq!(eu.ok(&leave), "would take region us out of 1 others\n");
    let listed = eu.json(&["region", "list"]);
    assert_eq!(
        (&listed[0]["name"], &listed[1]["name"], &listed[1]["state"]),
        (&"eu".into(), &"us".into(), &"active".into())
    );

    expect(
        &eu,
        "pgonce region rule 'payments.charge' --mode home --home eu --with \"$US_DATABASE\"",
        "in force in 2 regions",
    );
    expect(
        &eu,
        "pgonce region rule 'carts.add' --mode local --max-lag 10m --with \"$US_DATABASE\"",
        "in force in 2 regions",
    );
    expect(
        &eu,
        "pgonce region rule '*' --mode home --home tenant --with \"$US_DATABASE\"",
        "in force in 2 regions",
    );
    let alone = eu.run(&["region", "rule", "x", "--mode", "local"]);
    assert!(
        alone.code == 2 && alone.err.contains("\"us\" was not named"),
        "{alone:?}"
    );
    let nowhere = eu.run(&[
        "region", "rule", "x", "--mode", "home", "--home", "mars", "--with", &us.url,
    ]);
    assert!(
        nowhere.code == 7 && nowhere.err.contains("mars"),
        "{nowhere:?}"
    );
    let wrong = us
        .client
        .batch_execute("select pgonce.claim('payments.charge', 'k-1', '\\x01')")
        .await;
    assert_eq!(wrong.unwrap_err().code().unwrap().code(), "P4110");

    // An operator may set rules, and nothing else of this.
    for place in [&eu, &us] {
        place.sql("create role clerk login").await;
        place.ok(&["migrate", "up", "--grant", "operator=clerk"]);
    }
    let clerk = |place: &Place| place.url.replace("postgres@", "clerk@");
    let (here, there) = (clerk(&eu), clerk(&us));
    let url = ["--database-url", &here, "--with", &there];
    let rule = ["region", "rule", "mail.send", "--mode", "local"];
    eu.ok(&[&rule[..], &url].concat());
    let leave = eu.run(&[&["region", "leave", "us", "--yes"][..], &url].concat());
    assert_eq!(leave.code, 8, "{leave:?}");

    // Both work on one intent while they do not see each other.
    eu.sql("alter subscription pgonce_region_1_2 disable").await;
    us.sql("alter subscription pgonce_region_2_1 disable").await;
    for place in [&eu, &us] {
        place
            .sql("begin; select pgonce.claim('carts.add', 'k-81', '\\x01'); select pgonce.succeed('carts.add', 'k-81', '\\x01', 1, '1'); commit")
            .await;
    }
    eu.sql("alter subscription pgonce_region_1_2 enable").await;
    us.sql("alter subscription pgonce_region_2_1 enable").await;
    for place in [&eu, &us] {
        place
            .is("select count(*) = 1 from pgonce.double_commits")
            .await;
    }
    let status = us.run(&["region", "status"]);
    assert!(
        status.code == 12 && status.out.contains("pgonce region tasks"),
        "{status:?}"
    );
    // What the runbook shows is what is printed then.
    let shown = commands(PAGE);
    assert_eq!(shown.len(), 2, "{shown:?}");
    for (command, lines) in shown {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let mut run = program(&words);
        run.env("DATABASE_URL", &us.url).env("COLUMNS", "80");
        check(&command, &Run::of(run.output().unwrap()).out, &lines);
    }
    expect(&us, "pgonce region tasks", "k-81");
    expect(
        &us,
        "pgonce region resolve carts.add k-81 --resolution 'ticket 7: second cart emptied'",
        "1 surplus effects are resolved",
    );
    assert_eq!(
        us.run(&[
            "region",
            "resolve",
            "carts.add",
            "k-81",
            "--resolution",
            "x"
        ])
        .code,
        7
    );
    assert_eq!(
        us.ok(&["region", "tasks"]),
        "Nothing was committed twice.\n"
    );
    assert!(us.ok(&["region", "tasks", "--all"]).contains("ticket 7"));
    eu.is("select resolved_at is not null from pgonce.double_commits")
        .await;

    let leave = ["region", "leave", "us", "--with", &us.url];
    assert_eq!(eu.run(&leave).code, 11, "it asks first");
    us.sql("begin; select pgonce.claim('carts.add', 'last', '\\x01'); select pgonce.succeed('carts.add', 'last', '\\x01', 1, '1'); commit").await;
    expect(
        &eu,
        "pgonce region leave us --with \"$US_DATABASE\" --yes",
        "the others have all that it committed",
    );
    eu.is("select outcome = 'replay' from pgonce.claim('carts.add', 'last', '\\x01')")
        .await;
    assert!(us.ok(&["region", "list"]).contains("no region"));
    let slots = "select count(*) = 0 from pg_replication_slots";
    eu.is(slots).await;
    us.is(slots).await;

    expect(&us, join_us, "us has joined 1 others");
    us.server.stop().await.unwrap();
    expect(
        &eu,
        "pgonce region leave us --yes",
        "is not known until it joins again",
    );
    eu.is("select outcome = 'fresh' from pgonce.claim('orders.create', 'k', '\\x01')")
        .await;
    eu.is(slots).await;
    assert_eq!(
        executed,
        documented(),
        "the page has other commands than this test"
    );
}
