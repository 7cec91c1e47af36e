//! The page of runbooks, executed; and the alerts and the dashboard, which may name only what there is.

use deadpool_postgres::{Manager, Pool};
use pgonce::{Ack, Intent, Once};
use pgonce_testkit::wait_until;
use tokio_postgres::{Client, NoTls};

use crate::fixture::Fixture;
use crate::serve::DEADLINE;

const PAGE: &str = include_str!("../../../../docs/src/how-to/runbooks.md");
const METRICS: &str = include_str!("../../../../docs/src/reference/metrics.md");
const ALERTS: &str = include_str!("../../../../ops/prometheus/alerts.yml");
const DASHBOARD: &str = include_str!("../../../../ops/grafana/pgonce.json");

/// The trouble of every section.
async fn troubled() -> Fixture {
    let fixture = Fixture::installed().await;
    // Each statement in a transaction of its own: a relay claims lanes so.
    let trouble = r#"
        select pgonce.define_scope('payments.charge', '30 days', p_stale => 'hold');
        select pgonce.define_scope('orders.create', '30 days');
        select pgonce.claim('payments.charge', 'k-1', '\x01', '1 minute', 'worker-7');
        select pgonce.claim('orders.create', 'k-2', '\x01', '1 minute', 'worker-8');
        update pgonce.intent set lease_until = pgonce.now() - interval '1 second';
        select pgonce.store_message('billing', 'hook', 'e1', '{"n": 1}', 'customer-1',
            p_outcome => 'poison', p_code => 'no_account', p_reason => 'customer 1 has no account');
        select pgonce.store_message('billing', 'hook', 'e2', '{"n": 2}', 'customer-1');
        select pgonce.create_subscription('billing');
        select pgonce.publish('orders', 'order.changed', 'a', jsonb_build_object('n', i)) from generate_series(1, 3) i;
        select pgonce._claim_lanes('billing', 'hand', '1 hour');
        select pgonce._settle_lane('billing', c.lane, c.epoch, null,
            jsonb_build_array(jsonb_build_object('seq', o.seq, 'what', 'dead', 'reason', 'no such address')))
          from (select seq, lane from pgonce.outbox order by seq limit 1) o
          join pgonce.outbox_cursor c on c.subscription = 'billing' and c.lane = o.lane;
        select pgonce._release_lanes('billing', 'hand')"#;
    for statement in trouble.split(";\n") {
        fixture.sql(statement).await;
    }
    deadlock(&fixture).await;
    stampede(&fixture).await;
    fixture
}

async fn connect(fixture: &Fixture) -> Client {
    let url = fixture.database.url();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn is(fixture: &Fixture, sql: &str) {
    let there = async || {
        let row = fixture.client.query_one(sql, &[]).await.unwrap();
        row.get::<_, bool>(0)
    };
    wait_until(sql, DEADLINE, there).await.unwrap();
}

const WAITS: &str = "select exists (select from pg_stat_activity where datname = current_database() \
                     and cardinality(pg_blocking_pids(pid)) > 0)";

fn pay(id: u32) -> String {
    format!("update accounts set balance = balance + 1 where id = {id}")
}

/// Two sessions that lock two rows in different orders: the server ends one of them.
async fn deadlock(fixture: &Fixture) {
    fixture
        .sql("create table accounts (id bigint primary key, balance bigint); insert into accounts values (1, 0), (2, 0)")
        .await;
    let (one, two) = (connect(fixture).await, connect(fixture).await);
    for (session, id) in [(&one, 1), (&two, 2)] {
        let begin = format!("set deadlock_timeout = '10ms'; begin; {}", pay(id));
        session.batch_execute(&begin).await.unwrap();
    }
    let (second, first) = (pay(2), pay(1));
    let (one_said, two_said) = tokio::join!(one.batch_execute(&second), two.batch_execute(&first));
    let failed = [one_said, two_said].into_iter().filter_map(Result::err);
    let codes: Vec<String> = failed
        .map(|error| error.code().unwrap().code().to_owned())
        .collect();
    assert_eq!(codes, ["40P01"]);
    // A session counts what it saw at its end.
    drop((one, two));
    is(
        fixture,
        "select deadlocks = 1 from pg_stat_database where datname = current_database()",
    )
    .await;
}

/// Many requests for one key that is done, and no cache before the database.
async fn stampede(fixture: &Fixture) {
    let config = fixture.database.url().parse().unwrap();
    let pool = Pool::builder(Manager::new(config, NoTls)).max_size(8);
    let once = Once::tokio_postgres(pool.build().unwrap());
    let intent = Intent::new("orders.create", "k-3", &"a book").unwrap();
    for _ in 0..=300 {
        let asked = once.run(&intent, |attempt| async move {
            attempt.succeed(Ack::value(&"ordered")?).await
        });
        let done: pgonce::Done = asked.await.unwrap();
        drop(done);
    }
    once.flush().await.unwrap();
    is(fixture, "select sum(replays) = 300 from pgonce.suppressed").await;
}

/// A session that waits for another one.
struct Waiting {
    holder: Client,
    waiter: tokio::task::JoinHandle<()>,
}

impl Waiting {
    async fn begin(fixture: &Fixture) -> Self {
        let (holder, waiting) = (connect(fixture).await, connect(fixture).await);
        let begin = format!("begin; {}", pay(1));
        holder.batch_execute(&begin).await.unwrap();
        let waiter = tokio::spawn(async move { waiting.batch_execute(&pay(1)).await.unwrap() });
        is(fixture, WAITS).await;
        Self { holder, waiter }
    }

    async fn end(self) {
        self.holder.batch_execute("rollback").await.unwrap();
        self.waiter.await.unwrap();
    }
}

/// The commands of a page, in order, each with the lines that it prints.
pub(crate) fn commands(page: &str) -> Vec<(String, Vec<String>)> {
    let mut commands = Vec::<(String, Vec<String>)>::new();
    for block in page.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push((command.to_owned(), Vec::new())),
                (None, Some((_, printed))) => printed.push(line.to_owned()),
                (None, None) => panic!("a block begins without a command: {line}"),
            }
        }
    }
    commands
}

/// Words as a shell makes them, of what the page uses: single and double quotes.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for char in command.chars() {
        match (char, quote) {
            ('\'' | '"', None) => quote = Some(char),
            (_, Some(open)) if char == open => quote = None,
            (' ', None) => words.push(std::mem::take(&mut word)),
            _ => word.push(char),
        }
    }
    words.push(word);
    words
}

/// Whether a line is as expected, where `…` stands for anything.
fn fits(line: &str, expected: &str) -> bool {
    let mut parts = expected.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(last) = parts.next_back() else {
        return line.trim_end() == expected;
    };
    let Some(mut rest) = line
        .strip_prefix(first)
        .and_then(|rest| rest.strip_suffix(last))
    else {
        return false;
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    true
}

/// Every line that the page shows is printed, in that order; a line `…` stands for any number of lines.
pub(crate) fn check(command: &str, printed: &str, expected: &[String]) {
    let mut lines = printed.lines();
    let mut any = false;
    for expected in expected {
        if expected == "…" {
            any = true;
            continue;
        }
        let found = match any {
            true => lines.any(|line| fits(line, expected)),
            false => lines.next().is_some_and(|line| fits(line, expected)),
        };
        assert!(
            found,
            "`{command}` did not print {expected:?}, but:\n{printed}"
        );
        any = false;
    }
    let rest = lines.next();
    assert!(any || rest.is_none(), "`{command}` printed more: {printed}");
}

#[tokio::test]
async fn every_command_of_the_runbooks_prints_what_the_page_shows() {
    let fixture = troubled().await;
    let commands = commands(PAGE);
    assert!(commands.len() > 15, "{commands:?}");
    for (command, expected) in commands {
        let words = words(&command);
        let waiting = match command.contains("pg_blocking_pids") {
            true => Some(Waiting::begin(&fixture).await),
            false => None,
        };
        let printed = match words[0].as_str() {
            "pgonce" => {
                let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
                let output = fixture
                    .command(&args)
                    .env("COLUMNS", "80")
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{command}: {output:?}");
                String::from_utf8(output.stdout).unwrap()
            }
            "psql" => {
                let rows = fixture.client.simple_query(&words[2]).await.unwrap();
                let rows = rows.iter().filter_map(|message| match message {
                    tokio_postgres::SimpleQueryMessage::Row(row) => Some(
                        (0..row.len())
                            .map(|n| row.get(n).unwrap_or_default())
                            .collect::<Vec<_>>()
                            .join(" | "),
                    ),
                    _ => None,
                });
                rows.collect::<Vec<_>>().join("\n")
            }
            other => panic!("the page calls {other}"),
        };
        check(&command, &printed, &expected);
        if let Some(waiting) = waiting {
            waiting.end().await;
        }
    }
}

#[test]
fn alerts_and_dashboard_name_metrics_that_are_documented_and_sections_that_exist() {
    let mut named = 0;
    for text in [ALERTS, DASHBOARD] {
        let expressions = text.lines().filter(|line| line.contains("expr"));
        for word in
            expressions.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        {
            if !word.starts_with("pgonce_") {
                continue;
            }
            let metric = word.trim_end_matches("_bucket");
            assert!(
                METRICS.contains(&format!("`{metric}`")),
                "{metric} is not documented"
            );
            named += 1;
        }
    }
    assert!(named > 20, "{named} metrics");
    serde_json::from_str::<serde_json::Value>(DASHBOARD).unwrap();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook: "));
    let mut count = 0;
    for page in pages {
        let (file, section) = page.split_once('#').unwrap_or((page, ""));
        let text = std::fs::read_to_string(root.join(file))
            .unwrap_or_else(|_| panic!("{file} is missing"));
        let slug = |title: &str| title.to_lowercase().replace(' ', "-");
        let mut titles = text.lines().filter_map(|line| line.strip_prefix("## "));
        assert!(
            section.is_empty() || titles.any(|title| slug(title) == section),
            "{page}"
        );
        count += 1;
    }
    assert_eq!(count, ALERTS.matches("- alert:").count());
}
