//! The relay as its users run it: processes and signals.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce_testkit::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::fixture::{Fixture, Run, program, without_database};

/// Long enough for a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A relay that runs. Dropped, it is killed.
pub(crate) struct Running {
    child: Child,
    out: Arc<Mutex<Vec<String>>>,
    log: Arc<Mutex<Vec<String>>>,
}

fn collect(from: impl AsyncRead + Unpin + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = lines.clone();
    tokio::spawn(async move {
        let mut from = BufReader::new(from).lines();
        while let Ok(Some(line)) = from.next_line().await {
            kept.lock().unwrap().push(line);
        }
    });
    lines
}

impl Running {
    pub(crate) fn start(fixture: &Fixture, args: &[&str]) -> Self {
        Self::of(fixture, "relay", args)
    }

    /// Another command that runs on.
    pub(crate) fn of(fixture: &Fixture, command: &str, args: &[&str]) -> Self {
        Self::with(fixture, command, args, &[])
    }

    /// With these variables.
    pub(crate) fn with(
        fixture: &Fixture,
        command: &str,
        args: &[&str],
        variables: &[(&str, String)],
    ) -> Self {
        let database = ("DATABASE_URL", fixture.database.url());
        Self::spawn(command, args, &[&[database], variables].concat())
    }

    /// On another database.
    pub(crate) fn with_url(url: &str, command: &str, args: &[&str]) -> Self {
        Self::spawn(command, args, &[("DATABASE_URL", url.to_owned())])
    }

    fn spawn(command: &str, args: &[&str], variables: &[(&str, String)]) -> Self {
        let args = [&[command], args].concat();
        let mut child = Command::from(program(&args))
            .envs(variables.iter().cloned())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            out: collect(child.stdout.take().unwrap()),
            log: collect(child.stderr.take().unwrap()),
            child,
        }
    }

    pub(crate) fn billing(fixture: &Fixture, more: &[&str]) -> Self {
        let args = [
            "--subscription",
            "billing",
            "--sink",
            "stdout:",
            "--log-format",
            "json",
        ];
        Self::start(fixture, &[&args, more].concat())
    }

    pub(crate) fn numbers(&self) -> Vec<i64> {
        let lines = self.out.lock().unwrap();
        lines.iter().map(|line| number(line)).collect()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    pub(crate) async fn wait_for(&self, count: usize) {
        wait_until(format!("{count} events"), DEADLINE, || async {
            self.numbers().len() >= count
        })
        .await
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", self.numbers(), self.log()));
    }

    /// Where it serves health and metrics.
    pub(crate) async fn admin(&self) -> String {
        let found = Mutex::new(String::new());
        wait_until("the address", DEADLINE, || async {
            let address = self.log.lock().unwrap().iter().find_map(|line| {
                let line: Value = serde_json::from_str(line).ok()?;
                line["address"].as_str().map(str::to_owned)
            });
            *found.lock().unwrap() = address.clone().unwrap_or_default();
            address.is_some()
        })
        .await
        .unwrap_or_else(|error| panic!("{error}: {}", self.log()));
        found.into_inner().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Asks it to stop, and gives its exit code. A signal at a process that does not listen to it yet would just end that.
    pub(crate) async fn stop(&mut self) -> i32 {
        let started = async || self.log().contains(" starts");
        wait_until("its start", DEADLINE, started)
            .await
            .unwrap_or_else(|error| panic!("{error}: {}", self.log()));
        self.signal(Signal::TERM);
        self.end().await
    }

    pub(crate) async fn end(&mut self) -> i32 {
        let ended = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        let ended = ended.unwrap().unwrap();
        let killed = || panic!("{ended}: {}", self.log());
        ended.code().unwrap_or_else(killed)
    }
}

fn number(line: &str) -> i64 {
    let event: Value = serde_json::from_str(line).unwrap();
    event["data"]["n"].as_i64().unwrap()
}

pub(crate) async fn get(admin: &str, path: &str) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client
        .get(format!("http://{admin}{path}"))
        .send()
        .await
        .unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// Publishes events with these numbers, each about a subject of its own.
pub(crate) async fn publish(fixture: &Fixture, from: i64, to: i64) {
    let sql = format!(
        "select pgonce.publish('orders', 'order.changed', 's' || i, jsonb_build_object('n', i)) from generate_series({from}, {to}) i"
    );
    fixture.sql(&sql).await;
}

pub(crate) async fn with_subscription() -> Fixture {
    let fixture = Fixture::installed().await;
    fixture.ok(&["outbox", "subscriptions", "create", "billing"]);
    fixture
}

fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn once_delivers_what_is_there_and_nothing_twice() {
    let fixture = Fixture::installed().await;
    publish(&fixture, 1, 40).await;
    fixture
        .sql("select pgonce.publish('other', 'x', 's', '{\"n\": 99}')")
        .await;
    let args = [
        "relay",
        "--subscription",
        "billing",
        "--sink",
        "stdout:",
        "--source",
        "/shop",
        "--once",
        "--create",
        "--topics",
        "ord*",
        "--lease",
        "30s",
        "--in-flight",
        "3",
    ];
    let out = fixture.ok(&args);
    let event: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&event["specversion"], &event["source"]),
        (&"1.0".into(), &"/shop".into())
    );
    let numbers = sorted(out.lines().map(number).collect());
    assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
    // The subscription is there now, and stays as it is.
    publish(&fixture, 41, 43).await;
    let out = fixture.ok(&args);
    assert_eq!(sorted(out.lines().map(number).collect()), [41, 42, 43]);
    assert_eq!(fixture.ok(&args), "");
}

#[tokio::test]
async fn on_sigterm_it_finishes_gives_its_lanes_back_and_ends_well() {
    for signal in [Signal::TERM, Signal::INT] {
        let fixture = with_subscription().await;
        let mut relay = Running::billing(&fixture, &[]);
        publish(&fixture, 1, 10).await;
        relay.wait_for(10).await;
        relay.signal(signal);
        assert_eq!(relay.end().await, 0, "{}", relay.log());
        let status = fixture.json(&["outbox", "status"]);
        assert_eq!(
            (&status[0]["lanes_held"], &status[0]["waiting"]),
            (&0.into(), &0.into())
        );
        let again = fixture.ok(&[
            "relay",
            "--subscription",
            "billing",
            "--sink",
            "stdout:",
            "--once",
        ]);
        assert_eq!(again, "");
    }
}

#[tokio::test]
async fn a_relay_that_is_killed_is_replaced_by_the_other() {
    let fixture = with_subscription().await;
    let mut first = Running::billing(&fixture, &["--lease", "1s"]);
    publish(&fixture, 1, 20).await;
    first.wait_for(20).await;
    let second = Running::billing(&fixture, &["--lease", "1s"]);
    wait_until("shared lanes", DEADLINE, || async {
        fixture.json(&["outbox", "status"])[0]["relays"] == 2
    })
    .await
    .unwrap();
    first.signal(Signal::KILL);
    let _ = first.child.wait().await;
    publish(&fixture, 21, 60).await;
    let all = || sorted([first.numbers(), second.numbers()].concat());
    wait_until("everything", DEADLINE, || async {
        let mut all = all();
        all.dedup();
        all == (1..=60).collect::<Vec<_>>()
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {:?}", all()));
}

#[tokio::test]
async fn a_relay_through_a_transaction_pooler_delivers() {
    let fixture = with_subscription().await;
    let pooler = pgonce_testkit::PgBouncer::in_front_of(fixture.server)
        .pool_mode_transaction()
        .start()
        .await
        .unwrap();
    publish(&fixture, 1, 5).await;
    let url = pooler.url_for(fixture.database.name());
    let run = without_database(&[
        "relay",
        "--subscription",
        "billing",
        "--sink",
        "stdout:",
        "--once",
        "--behind-pooler",
        "--database-url",
        &url,
    ]);
    assert_eq!((run.code, run.out.lines().count()), (0, 5), "{run:?}");
}

/// The first run with `--within` that had the time to say this. The start counts in it, and takes long on a busy machine.
#[track_caller]
fn with_time_to_say(words: &str, run: impl Fn(&str) -> Run) -> Run {
    let mut runs = Vec::new();
    for within in ["300ms", "3s", "30s"] {
        let run = run(within);
        if run.err.contains(words) {
            return run;
        }
        runs.push(run);
    }
    panic!("{words}: {runs:?}");
}

#[tokio::test]
async fn what_it_cannot_do_is_said_at_once_and_how_to_fix_it() {
    let fixture = Fixture::installed().await;
    let relay = |args: &[&str]| fixture.run(&[&["relay"], args].concat());
    let missing = relay(&["--subscription", "billing", "--sink", "stdout:", "--once"]);
    assert!(
        missing.code == 7 && missing.err.contains("--create"),
        "{missing:?}"
    );
    let run = relay(&[
        "--subscription",
        "billing",
        "--sink",
        "mqtt://user:hunter2@host",
    ]);
    assert!(run.code == 2 && run.err.contains("mqtt:"), "{run:?}");
    assert!(!run.err.contains("hunter2"), "{run:?}");
    for (sink, code) in [
        ("nats://127.0.0.1:1", "sink-missing-option"),
        ("stdout:?colour=red", "sink-unknown-option"),
        ("https:", "sink-bad-url"),
    ] {
        let run = relay(&["--subscription", "billing", "--sink", sink]);
        assert!(run.code == 2 && run.err.contains(code), "{run:?}");
    }
    // Nobody there is no reason to give up at once.
    let nobody = "nats://127.0.0.1:1?stream=ORDERS";
    let given = [
        "--subscription",
        "billing",
        "--create",
        "--sink",
        nobody,
        "--once",
    ];
    let run = with_time_to_say("unavailable, trying again", |within| {
        relay(&[&given[..], &["--within", within]].concat())
    });
    assert_eq!(run.code, 1, "{run:?}");
    for args in [
        &[][..],
        &["--subscription", "billing"],
        &[
            "--subscription",
            "billing",
            "--sink",
            "stdout:",
            "--topics",
            "orders",
        ],
        &[
            "--subscription",
            "billing",
            "--sink",
            "stdout:",
            "--within",
            "1s",
        ],
        &[
            "--subscription",
            "billing",
            "--sink",
            "stdout:",
            "--lease",
            "10ms",
        ],
        &[
            "--subscription",
            "billing",
            "--sink",
            "stdout:",
            "--in-flight",
            "0",
        ],
        &["no-such-file.toml"],
        &["file.toml", "--subscription", "billing"],
        &["--check"],
        &[
            "--subscription",
            "billing",
            "--sink",
            "stdout:",
            "--option",
            "source",
        ],
        &[
            "--subscription",
            "billing",
            "--sink",
            "stdout:",
            "--option-env",
            "source=NO_SUCH_VARIABLE",
        ],
    ] {
        let run = relay(args);
        assert_eq!(run.code, 2, "{args:?}: {run:?}");
    }
    let empty = Fixture::empty().await;
    let run = empty.run(&["relay", "--subscription", "c", "--sink", "stdout:"]);
    assert!(run.code == 4 && run.err.contains("migrate up"), "{run:?}");
}

#[tokio::test]
async fn an_unreachable_sink_is_not_waited_for_longer_than_allowed() {
    let fixture = with_subscription().await;
    publish(&fixture, 1, 3).await;
    let args = [
        "relay",
        "--subscription",
        "billing",
        "--sink",
        "stdout:",
        "--once",
        "--drain-timeout",
        "0s",
    ];
    let run = with_time_to_say("not everything was delivered", |within| {
        fixture.run_unread(&[&args[..], &["--within", within]].concat())
    });
    assert_eq!(run.code, 1, "{run:?}");
    // Nothing was lost, nothing is parked.
    let out = fixture.ok(&[
        "relay",
        "--subscription",
        "billing",
        "--sink",
        "stdout:",
        "--once",
    ]);
    assert_eq!(sorted(out.lines().map(number).collect()), [1, 2, 3]);
}

#[tokio::test]
async fn the_start_counts_in_the_time_that_one_run_may_take() {
    // It accepts connections and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://u@{}/d", silent.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relay.toml");
    let text =
        "[database]\ntimeout = \"1h\"\n[[relays]]\nsubscription = \"s\"\nsink = \"stdout:\"\n";
    std::fs::write(&file, text).unwrap();
    let once = [file.to_str().unwrap(), "--once", "--within", "500ms"];
    let mut running = Running::with_url(&url, "relay", &once);
    assert_eq!(running.end().await, 1, "{}", running.log());
    let said = async || running.log().contains("before anything was delivered");
    wait_until("why it ended", DEADLINE, said)
        .await
        .unwrap_or_else(|error| panic!("{error}: {}", running.log()));
}

#[tokio::test]
async fn a_program_that_starts_ends_with_a_signal_although_its_broker_says_nothing() {
    let fixture = Fixture::installed().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let broker = format!("nats://{}?stream=ORDERS", silent.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("consume.toml");
    let text = format!(
        "[[consumers]]\nconsumer = \"c\"\nsource = \"{broker}&durable=c\"\nsql = \"apply\"\n"
    );
    std::fs::write(&file, text).unwrap();
    fixture
        .sql("create function apply(p_message jsonb) returns void language sql as ''")
        .await;
    let consume = [file.to_str().unwrap()];
    let relay = ["--subscription", "s", "--create", "--sink", &*broker];
    for (command, args) in [("relay", &relay[..]), ("consume", &consume)] {
        let mut running = Running::of(&fixture, command, args);
        let held = tokio::time::timeout(DEADLINE, silent.accept()).await;
        let _held = held
            .unwrap_or_else(|_| panic!("{command}: {}", running.log()))
            .unwrap();
        running.signal(Signal::TERM);
        assert_eq!(running.end().await, 0, "{command}: {}", running.log());
        // It was not waited for until the broker counted as unavailable.
        let log = running.log();
        assert!(!log.contains("is unavailable"), "{command}: {log}");
    }
}
