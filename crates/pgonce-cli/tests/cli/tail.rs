//! `pgonce tail`, `explain`, `--watch`, and the formats of lists.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use pgonce_testkit::{CuttingProxy, wait_until, wait_until_lock_waited};
use serde_json::Value;

use crate::fixture::{Fixture, program, without_database};
use crate::serve::DEADLINE;

#[tokio::test]
async fn tail_shows_what_happened_by_kind_scope_tenant_and_status() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "select pgonce.claim('s', 'left', '\\x01', '1 hour');
             select pgonce.fail('s', 'no', '\\x01', 1, false, 'declined', 'no');
             begin; select pgonce.claim('other', 'done', '\\x01', p_tenant => 'acme'); select pgonce.succeed('other', 'done', '\\x01', 1, '{}', p_tenant => 'acme'); commit;
             select pgonce.publish('orders', 'order.created', '7', '{}');
             select pgonce.intervene('release', 's', 'left', 'ticket 7', true)",
        )
        .await;
    let tail = |args: &[&str]| -> Vec<Value> {
        let words = [&["tail", "--since", "1h", "-o", "jsonl"], args].concat();
        let out = fixture.ok(&words);
        out.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let all = tail(&["--count", "4"]);
    assert!(
        all.is_sorted_by_key(|row| row["at"].as_str().unwrap().to_owned()),
        "{all:?}"
    );
    let one = |args: &[&str], expected: [&str; 3]| {
        let rows = tail(&[args, &["--count", "1"]].concat());
        let found = ["what", "id", "status"].map(|name| rows[0][name].as_str().unwrap().to_owned());
        assert_eq!(found, expected, "{args:?}");
    };
    one(
        &["--kind", "intent", "--tenant", "acme"],
        ["intent", "done", "succeeded"],
    );
    one(
        &["--kind", "intent", "--scope", "ot*"],
        ["intent", "done", "succeeded"],
    );
    one(
        &["--status", "failed_final"],
        ["intent", "no", "failed_final"],
    );
    one(&["--kind", "act"], ["act", "left", "release"]);
    let events = tail(&["--kind", "event", "--count", "1"]);
    assert_eq!(
        (events[0]["what"].as_str(), events[0]["place"].as_str()),
        (Some("event"), Some("orders"))
    );
    let programs = |format: &str| {
        let of = ["--kind", "intent", "--scope", "s", "--count", "2"];
        let out = fixture.ok(&[&["tail", "--since", "1h", "-o", format][..], &of].concat());
        out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (csv, mut names) = (programs("csv"), programs("name"));
    names.sort();
    assert_eq!(names, ["left", "no"]);
    assert_eq!((csv.len(), csv[0].split(',').count()), (3, 7), "{csv:?}");
    let text = fixture.ok(&["tail", "--since", "1h", "--kind", "act", "--count", "1"]);
    assert!(text.contains("act") && text.contains("ticket 7"), "{text}");
}

#[tokio::test]
async fn tail_goes_on_and_shows_what_happens_meanwhile_and_nothing_twice() {
    let fixture = Fixture::installed().await;
    let mut command =
        fixture.command(&["tail", "-o", "jsonl", "--every", "100ms", "--count", "20"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let number = std::sync::atomic::AtomicU64::new(0);
    let child_ended = std::cell::RefCell::new(&mut child);
    let ended = async || {
        let n = number.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        // Not all of the twenty: intents are shown before duplicates.
        if n < 12 {
            let fail = format!("select pgonce.fail('s', 'k{n}', '\\x01', 1, false, 'c', 'm')");
            fixture.sql(&fail).await;
        }
        fixture
            .sql("select pgonce._count_suppressed('s', 1, 0, 0, 0)")
            .await;
        child_ended.borrow_mut().try_wait().unwrap().is_some()
    };
    wait_until("twenty lines", DEADLINE, ended).await.unwrap();
    let out = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    let rows: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 20);
    let mut keys: Vec<_> = rows
        .iter()
        .filter(|row| row["what"] == "intent")
        .map(|row| row["id"].to_string())
        .collect();
    let shown = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), shown, "{out}");
    assert!(rows.iter().any(|row| row["what"] == "duplicate"), "{out}");
}

#[tokio::test]
async fn tail_shows_nothing_older_than_was_asked_for() {
    let fixture = Fixture::installed().await;
    let fail = |key: &str| format!("select pgonce.fail('s', '{key}', '\\x01', 1, false, 'c', 'm')");
    fixture.sql(&fail("old")).await;
    fixture.sql("select pgonce._move_clock('1 minute')").await;
    fixture.sql(&fail("first")).await;
    let args = [
        "tail", "-o", "jsonl", "--since", "40s", "--every", "50ms", "--count", "2",
    ];
    let mut child = fixture
        .command(&args)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut id = || {
        let row: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        row["id"].as_str().unwrap().to_owned()
    };
    assert_eq!(id(), "first");
    // A later look goes back further than the first one did.
    fixture.sql(&fail("second")).await;
    assert_eq!(id(), "second");
    assert!(child.wait().unwrap().success());
}

#[test]
fn explain_prints_the_page_of_a_code() {
    let page = without_database(&["explain", "p4002"]);
    assert!(
        page.code == 0 && page.out.starts_with("P4002:") && page.out.contains("What to do"),
        "{page:?}"
    );
    assert!(
        !page.out.contains("**") && !page.out.contains("]("),
        "{page:?}"
    );
    let page = without_database(&["explain", "40001"]);
    assert!(page.out.contains("In short: retry"), "{page:?}");
    let page: Value =
        serde_json::from_str(&without_database(&["explain", "P4012", "-o", "json"]).out).unwrap();
    assert!(
        page["page"].as_str().unwrap().starts_with("# P4012"),
        "{page}"
    );
    assert_eq!(without_database(&["explain", "nonsense"]).code, 7);
}

#[tokio::test]
async fn lists_are_lines_of_json_csv_or_names_and_a_list_is_repeated_but_no_act() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("select pgonce.fail('s', 'a,b', '\\x01', 1, false, 'c', 'm'), pgonce.fail('s', 'c', '\\x01', 1, false, 'c', 'm')")
        .await;
    let list = |format: &str| fixture.ok(&["intent", "list", "s", "-o", format]);
    assert_eq!(list("name"), "a,b\nc\n");
    let lines = list("jsonl");
    assert!(
        lines.lines().count() == 2 && lines.starts_with('{'),
        "{lines}"
    );
    let csv = list("csv");
    assert!(csv.lines().count() == 3 && csv.contains("\"a,b\""), "{csv}");
    assert!(list("wide").contains('│'));
    assert_eq!(
        fixture.ok(&["intent", "list", "s", "--status", "succeeded", "-o", "csv"]),
        ""
    );

    let refused = fixture.run(&["purge", "--watch"]);
    assert!(
        refused.code == 2 && refused.err.contains("--watch repeats a list"),
        "{refused:?}"
    );
    let mut command = fixture.command(&["intent", "list", "s", "--watch=10ms", "-o", "name"]);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut child = command.stdout(writer).spawn().unwrap();
    drop(command);
    // Three times the list.
    let mut seen = [0; 18];
    std::io::Read::read_exact(&mut reader, &mut seen).unwrap();
    assert_eq!(String::from_utf8_lossy(&seen), "a,b\nc\n".repeat(3));
    child.kill().unwrap();
    child.wait().unwrap();
    let wrong = program(&["codes", "--watch=x"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    // A queue may have the name of the command with an option of this name.
    let retry = ["job", "retry", "recover", "--all", "--reason", "r"];
    let refused = fixture.run(&[&retry[..], &["--watch", "-o", "json"]].concat());
    let error: Value = serde_json::from_str(&refused.err).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("--watch repeats a list"), "{message}");
    let own = fixture.run(&["recover", "--watch", "--dry-run"]);
    assert!(own.err.contains("cannot be used with"), "{own:?}");
}

#[test]
fn a_pause_of_no_time_a_lone_m_and_what_no_clock_holds_are_refused() {
    let most = u64::MAX.to_string();
    for args in [
        &["tail", "--every", "0s"][..],
        &["tail", "--since", "1M"],
        &["find", "x", "--timeout", "1M"],
        &["recover", "--watch", "--every", "0s"],
        &["recover", "--watch", "--every", "1M"],
        &["recover", "--probe-timeout", &format!("{most}s")],
        &[
            "region",
            "join",
            "--id",
            "1",
            "--name",
            "eu",
            "--timeout",
            &most,
        ],
        &["region", "leave", "eu", "--timeout", &most],
        &["region", "rule", "s", "--mode", "home", "--timeout", &most],
        &["region", "rule", "s", "--mode", "local", "--max-lag", "1M"],
    ] {
        let run = without_database(args);
        let refused = run.code == 2 && run.err.contains("invalid value");
        assert!(refused, "{args:?}: {run:?}");
    }
}

/// Runs a command until it ends, and what it said.
async fn end_of(mut child: std::process::Child) -> (Option<i32>, String) {
    wait_until("its end", DEADLINE, || {
        std::future::ready(child.try_wait().unwrap().is_some())
    })
    .await
    .unwrap();
    let err = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    (child.wait().unwrap().code(), err)
}

fn terminate(child: &std::process::Child) {
    let pid = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

#[tokio::test]
async fn tail_ends_with_a_signal_although_the_database_lets_it_wait() {
    let fixture = Fixture::installed().await;
    fixture.sql("begin; lock table pgonce.intent").await;
    let mut command = fixture.command(&["tail"]);
    let url = format!("{}?application_name=tailing", fixture.database.url());
    command.env("DATABASE_URL", url).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_until_lock_waited(&fixture.database.url(), "tailing")
        .await
        .unwrap();
    terminate(&child);
    let (code, err) = end_of(child).await;
    assert_eq!((code, &*err), (Some(0), ""));
    fixture.sql("rollback").await;
    let none = fixture.run(&["tail", "--count", "0"]);
    assert_eq!(none.code, 2, "{none:?}");
}

#[tokio::test]
async fn tail_and_watch_go_on_when_the_database_is_back_and_say_once_that_it_was_away() {
    let fixture = Fixture::installed().await;
    let proxy = CuttingProxy::start(("127.0.0.1", fixture.server.port())).unwrap();
    let start = |args: &[&str]| {
        let mut command = fixture.command(args);
        command.env("DATABASE_URL", proxy.url_for(fixture.database.name()));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let fail = |key: &str| format!("select pgonce.fail('s', '{key}', '\\x01', 1, false, 'c', 'm')");
    fixture.sql(&fail("first")).await;
    let mut tail = start(&[
        "tail", "-o", "jsonl", "--every", "20ms", "--since", "1h", "--count", "2",
    ]);
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut id = || {
        let row: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        row["id"].as_str().unwrap().to_owned()
    };
    assert_eq!(id(), "first");
    let mut watch = start(&["intent", "list", "s", "--watch=20ms", "-o", "name"]);
    let mut watched = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert_eq!(watched.next().unwrap().unwrap(), "first");
    // Both are turned away several times.
    proxy.set_reachable(false);
    let before = proxy.refused();
    wait_until("tries", DEADLINE, async || proxy.refused() > before + 6)
        .await
        .unwrap();
    fixture.sql(&fail("second")).await;
    proxy.set_reachable(true);
    assert_eq!(id(), "second");
    assert!(watched.any(|line| line.unwrap() == "second"));
    let (code, err) = end_of(tail).await;
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(err.matches("08006").count(), 1, "{err}");
    drop(watched);
    watch.kill().unwrap();
    let (_, err) = end_of(watch).await;
    assert!(err.matches("no connection").count() <= 1, "{err}");
}

#[tokio::test]
async fn watch_goes_on_where_a_list_finds_nothing_or_something_that_needs_attention() {
    let fixture = Fixture::installed().await;
    let start = |args: &[&str]| {
        let mut command = fixture.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut find = start(&["find", "later", "--quick", "--watch=20ms", "-o", "name"]);
    let mut errors = BufReader::new(find.stderr.take().unwrap()).lines();
    // Twice that nothing has this name.
    for _ in 0..2 {
        assert!(errors.any(|line| line.unwrap().contains("\"exit\":7")));
    }
    std::thread::spawn(move || errors.for_each(drop));
    let fail = "select pgonce.fail('s', 'later', '\\x01', 1, false, 'c', 'm')";
    fixture.sql(fail).await;
    let mut found = BufReader::new(find.stdout.take().unwrap()).lines();
    assert_eq!(found.next().unwrap().unwrap(), "later");
    find.kill().unwrap();
    find.wait().unwrap();

    fixture
        .sql("select pgonce.create_subscription('stuck')")
        .await;
    fixture
        .sql("select pgonce.publish('t', 'x', 's', '{}')")
        .await;
    fixture.sql("select pgonce._move_clock('1 day')").await;
    assert_eq!(fixture.run(&["doctor"]).code, 12);
    let mut doctor = start(&["doctor", "--watch=20ms", "-o", "json"]);
    let mut lines = BufReader::new(doctor.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        assert!(lines.any(|line| line.unwrap().contains("stuck")));
    }
    doctor.kill().unwrap();
    doctor.wait().unwrap();
}
