//! What the testkit promises, tried on real servers.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use pgonce_testkit::{
    Binaries, DelayProxy, Error, PgBouncer, Postgres, Result, shared, wait_until,
    wait_until_lock_waited,
};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};
use tokio_postgres::{Client, NoTls};

const SOON: Duration = Duration::from_secs(30);
const NOTE: &str = "PGONCE_TESTKIT_NOTE";

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn one<T>(client: &Client, statement: &str) -> T
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    client.query_one(statement, &[]).await.unwrap().get(0)
}

async fn notes(url: String) -> Result<(), tokio_postgres::Error> {
    let client = connect(&url).await;
    client.batch_execute("create table note (text text)").await
}

fn postmaster(folder: &Path) -> Pid {
    let text = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
    let number = text.lines().next().unwrap().parse().unwrap();
    Pid::from_raw(number).unwrap()
}

/// Ended, though perhaps not yet taken note of by the system's first process.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    let zombie = stat.is_ok_and(|text| text.contains(") Z "));
    zombie || test_kill_process(pid).is_err()
}

async fn nothing_is_left(folder: &Path, pid: Pid) {
    let what = format!("server {pid:?} and {} to be gone", folder.display());
    wait_until(what, SOON, async || has_ended(pid) && !folder.exists())
        .await
        .unwrap();
}

#[tokio::test]
async fn every_installed_major_starts_and_says_its_version() {
    for binaries in Binaries::all().unwrap() {
        let major = binaries.major();
        let server = Postgres::builder().binaries(binaries).start().await;
        let server = server.unwrap();
        let client = connect(&server.url()).await;
        let outcome: String = one(&client, "show server_version_num").await;
        let outcome: u32 = outcome.parse().unwrap();
        assert_eq!((outcome / 10_000, server.major()), (major, major));
    }
}

#[test]
fn everything_can_be_awaited_in_a_spawned_task() {
    fn sendable<T: Send>(_: impl Fn(&'static Postgres) -> T) {}
    sendable(|_| shared(None));
    sendable(|_| Postgres::builder().start());
    sendable(|_| wait_until("it", SOON, async || true));
    sendable(|_| wait_until_lock_waited("", 1));
    sendable(|server| PgBouncer::in_front_of(server).start());
    sendable(|server| server.template("t", notes));
    sendable(|server| server.database_from("t"));
    sendable(|server| server.create_database("t"));
    sendable(|server| server.kill_backend(1));
    sendable(|server| async { (server.crash().await, server.restart().await) });
}

#[tokio::test]
async fn a_setting_of_the_caller_wins_and_keeps_its_quotes() {
    let server = Postgres::builder()
        .setting("max_connections", "33")
        .setting("cluster_name", r"it's a \ test")
        .start()
        .await
        .unwrap();
    let client = connect(&server.url()).await;
    assert_eq!(one::<String>(&client, "show max_connections").await, "33");
    let name: String = one(&client, "show cluster_name").await;
    assert_eq!(name, r"it's a \ test");
}

#[tokio::test]
async fn a_server_that_cannot_start_shows_its_log() {
    let attempt = Postgres::builder().setting("no_such_setting", "1");
    let text = attempt.start().await.unwrap_err().to_string();
    assert!(text.contains("no_such_setting"), "{text}");
}

#[tokio::test]
async fn dropping_a_server_leaves_nothing_behind() {
    let server = Postgres::builder().start().await.unwrap();
    let folder = server.folder().to_owned();
    let pid = postmaster(&folder);
    drop(server);
    assert!(test_kill_process(pid).is_err());
    assert!(!folder.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_of_one_template_are_isolated() {
    let server = shared(None).await.unwrap();
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            tokio::spawn(async move {
                let server = shared(None).await.unwrap();
                server.template("isolated", notes).await.unwrap();
                let database = server.database_from("isolated").await.unwrap();
                let client = connect(&database.url()).await;
                let insert = format!("insert into note values ('{number}')");
                client.batch_execute(&insert).await.unwrap();
                let count: i64 = one(&client, "select count(*) from note").await;
                assert_eq!(count, 1);
                database
            })
        })
        .collect();
    let mut kept = Vec::new();
    for task in tasks {
        kept.push(task.await.unwrap());
    }
    let mut names: Vec<_> = kept.iter().map(|each| each.name().to_owned()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 8);

    // Discarded databases go when the next one is made.
    let gone = names[0].clone();
    drop(kept);
    let _next = server.database_from("isolated").await.unwrap();
    let client = connect(&server.url()).await;
    let there = format!("select count(*) from pg_database where datname = '{gone}'");
    assert_eq!(one::<i64>(&client, &there).await, 0);
}

#[test]
fn a_shared_server_outlives_the_runtime_that_started_it() {
    let ports = [(); 2].map(|()| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let server = shared(None).await.unwrap();
            server.template("outlives", notes).await.unwrap();
            let database = server.database_from("outlives").await.unwrap();
            connect(&database.url()).await;
            server.port()
        })
    });
    assert_eq!(ports[0], ports[1]);
}

#[tokio::test]
async fn a_template_whose_setup_failed_is_made_anew() {
    let server = shared(None).await.unwrap();
    let broken = async |url: String| {
        notes(url).await.unwrap();
        Err("out of ink")
    };
    let failed = server.template("second_try", broken).await.unwrap_err();
    assert!(matches!(&failed, Error::Template { name, .. } if name == "second_try"));
    assert!(failed.to_string().contains("out of ink"));
    server.template("second_try", notes).await.unwrap();
    server.database_from("second_try").await.unwrap();
}

#[tokio::test]
async fn a_crash_keeps_what_was_committed_and_nothing_else() {
    let server = Postgres::builder().start().await.unwrap();
    let database = server.create_database("ledger").await.unwrap();
    let client = connect(&database.url()).await;
    let prepare = "create table note (text text); insert into note values ('committed')";
    client.batch_execute(prepare).await.unwrap();
    let open = "begin; insert into note values ('open')";
    client.batch_execute(open).await.unwrap();

    server.crash().await.unwrap();
    assert!(!server.is_ready().await);
    assert!(client.batch_execute("commit").await.is_err());
    assert!(matches!(
        server.crash().await,
        Err(Error::WrongState { .. })
    ));

    server.start_again().await.unwrap();
    assert!(server.log().unwrap().contains("automatic recovery"));
    let client = connect(&database.url()).await;
    let text: String = one(&client, "select string_agg(text, ',') from note").await;
    assert_eq!(text, "committed");

    server.restart().await.unwrap();
    let client = connect(&database.url()).await;
    assert_eq!(one::<i64>(&client, "select count(*) from note").await, 1);
}

#[tokio::test]
async fn a_server_that_crashed_and_was_given_up_leaves_nothing_behind() {
    let server = Postgres::builder().start().await.unwrap();
    let folder = server.folder().to_owned();
    let text = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
    let segment = text.lines().nth(6).unwrap().split_whitespace().nth(1);
    let segment = segment.unwrap().to_owned();
    server.crash().await.unwrap();
    drop(server);
    assert!(!folder.exists());
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let mut ids = segments
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    assert!(!ids.any(|id| id == segment), "segment {segment} is left");
}

#[tokio::test]
async fn a_killed_session_takes_the_others_down_and_the_server_recovers() {
    let server = Postgres::builder().start().await.unwrap();
    let (victim, witness) = (connect(&server.url()).await, connect(&server.url()).await);
    let pid: i32 = one(&victim, "select pg_backend_pid()").await;
    server.kill_backend(pid).await.unwrap();
    server.wait_ready().await.unwrap();
    assert!(witness.batch_execute("select 1").await.is_err());
    connect(&server.url()).await;
}

#[tokio::test]
async fn only_sessions_of_the_server_can_be_killed() {
    let server = Postgres::builder().start().await.unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    for pid in [own, 1, 0, -1] {
        let refused = server.kill_backend(pid).await;
        assert!(matches!(refused, Err(Error::NotABackend { .. })), "{pid}");
    }
}

#[tokio::test]
async fn a_terminated_session_ends_alone() {
    let server = shared(None).await.unwrap();
    let (victim, witness) = (connect(&server.url()).await, connect(&server.url()).await);
    let pid: i32 = one(&victim, "select pg_backend_pid()").await;
    server.terminate_backend(pid).await.unwrap();
    wait_until("the session to end", SOON, async || {
        victim.batch_execute("select 1").await.is_err()
    })
    .await
    .unwrap();
    assert_eq!(one::<i32>(&witness, "select 1").await, 1);
}

#[tokio::test]
async fn a_session_that_waits_for_a_lock_is_seen_by_number_and_by_name() {
    let server = shared(None).await.unwrap();
    let (holder, waiter) = (connect(&server.url()).await, connect(&server.url()).await);
    let lock = "begin; select pg_advisory_xact_lock(4711)";
    holder.batch_execute(lock).await.unwrap();
    let name = "set application_name = 'the waiting one'";
    waiter.batch_execute(name).await.unwrap();
    let pid: i32 = one(&waiter, "select pg_backend_pid()").await;
    let waiting = tokio::spawn(async move { waiter.batch_execute(lock).await });

    let url = server.url();
    assert_eq!(wait_until_lock_waited(&url, pid).await.unwrap(), pid);
    let seen = wait_until_lock_waited(&url, "the waiting one").await;
    assert_eq!(seen.unwrap(), pid);
    holder.batch_execute("commit").await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn waiting_in_vain_names_what_was_awaited() {
    let brief = Duration::from_millis(20);
    let never = wait_until("pigs to fly", brief, async || false).await;
    assert!(never.unwrap_err().to_string().contains("pigs to fly"));
    let stuck = wait_until("an answer", brief, std::future::pending).await;
    assert!(matches!(stuck, Err(Error::TimedOut { .. })));
}

/// The child process of the two tests below; by itself it does nothing.
#[tokio::test]
#[ignore = "run by other tests, as a process to be killed"]
async fn process_that_holds_a_server() {
    let Some(note) = env::var_os(NOTE).map(PathBuf::from) else {
        return;
    };
    let server = shared(None).await.unwrap();
    let draft = note.with_extension("draft");
    fs::write(&draft, server.folder().display().to_string()).unwrap();
    fs::rename(&draft, &note).unwrap();
    std::future::pending().await
}

async fn holder(note: &Path) -> (Child, PathBuf, Pid) {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "process_that_holds_a_server"])
        .env(NOTE, note)
        .env_remove("NEXTEST_RUN_ID")
        .process_group(0)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the child's server", SOON, async || note.exists())
        .await
        .unwrap();
    let folder = PathBuf::from(fs::read_to_string(note).unwrap());
    let pid = postmaster(&folder);
    (child, folder, pid)
}

#[tokio::test]
async fn a_killed_test_process_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, folder, pid) = holder(&folder.path().join("note")).await;
    child.kill().unwrap();
    child.wait().unwrap();
    nothing_is_left(&folder, pid).await;
}

#[tokio::test]
async fn a_test_process_ended_by_ctrl_c_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, folder, pid) = holder(&folder.path().join("note")).await;
    // A terminal sends it to the whole foreground group.
    kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
    // A run in the background has the signal ignored, and hands that down: then this ends it. What
    // counts is that the guardian outlives the signal and still does its work.
    let _ = child.kill();
    child.wait().unwrap();
    nothing_is_left(&folder, pid).await;
}

/// A process of the run in the test below; by itself it does nothing.
#[tokio::test]
#[ignore = "run by another test, as one process of a run"]
async fn process_of_a_run() {
    let Some(note) = env::var_os(NOTE).map(PathBuf::from) else {
        return;
    };
    let server = shared(None).await.unwrap();
    server.template("of_a_run", notes).await.unwrap();
    let database = server.database_from("of_a_run").await.unwrap();
    let refused = server.crash().await.unwrap_err();
    let client = connect(&server.url()).await;
    let made: i64 = one(
        &client,
        "select count(*) from pg_database where datname like 'of\\_a\\_run\\_%'",
    )
    .await;
    let folder = server.folder().display();
    let line = format!("{folder}|{}|{made}|{refused}\n", database.name());
    let mut file = fs::OpenOptions::new().create(true).append(true).open(note);
    std::io::Write::write_all(file.as_mut().unwrap(), line.as_bytes()).unwrap();
}

#[tokio::test]
async fn processes_of_one_run_share_a_server_that_ends_with_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("note");
    let test = "\"$0\" --ignored --exact process_of_a_run";
    let mut runner = Command::new("/bin/sh")
        .args(["-c", &format!("{test}; {test}; read -r line")])
        .arg(env::current_exe().unwrap())
        .env(NOTE, &note)
        .env("NEXTEST_RUN_ID", format!("testkit-{}", std::process::id()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = || fs::read_to_string(&note).unwrap_or_default();
    wait_until("two processes to end", SOON * 2, async || {
        lines().lines().count() == 2
    })
    .await
    .unwrap();
    let lines = lines();
    let lines: Vec<Vec<&str>> = lines.lines().map(|l| l.split('|').collect()).collect();
    assert_eq!(lines[0][0], lines[1][0], "one server for both");
    assert_ne!(lines[0][1], lines[1][1], "each has its own database");
    // The template and one database: that of the first process was removed.
    assert_eq!((lines[0][2], lines[1][2]), ("2", "2"));
    assert!(lines[0][3].contains("shared"), "{}", lines[0][3]);
    let folder = PathBuf::from(lines[0][0]);
    let pid = postmaster(&folder);
    runner.kill().unwrap();
    runner.wait().unwrap();
    nothing_is_left(&folder, pid).await;
}

#[tokio::test]
async fn pgbouncer_gives_one_server_session_to_many_clients_in_turn() {
    let server = shared(None).await.unwrap();
    let pooler = PgBouncer::in_front_of(server)
        .pool_mode_transaction()
        .setting("default_pool_size", "1")
        .start()
        .await
        .unwrap();
    let url = pooler.url_for("postgres");
    let (first, second) = (connect(&url).await, connect(&url).await);
    let mut pids = Vec::new();
    for client in [&first, &second] {
        let messages = client.simple_query("select pg_backend_pid()").await;
        let rows = messages.unwrap().into_iter().find_map(|each| match each {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        pids.push(rows.unwrap());
    }
    assert_eq!(pids[0], pids[1]);

    let admin = connect(&server.url()).await;
    admin
        .batch_execute("create role clerk login")
        .await
        .unwrap();
    let clerk = connect(&url.replace("postgres@", "clerk@")).await;
    clerk.batch_execute("select 1").await.unwrap();
}

#[tokio::test]
async fn the_delay_proxy_counts_round_trips_and_delays_each_only_once() {
    let server = shared(None).await.unwrap();
    let delay = Duration::from_millis(20);
    let proxy = DelayProxy::start(("127.0.0.1", server.port()), delay).unwrap();
    let client = connect(&proxy.url_for("postgres")).await;

    let (before, start) = (proxy.round_trips(), Instant::now());
    for _ in 0..3 {
        client.batch_execute("select 1").await.unwrap();
    }
    assert_eq!(proxy.round_trips() - before, 3);
    assert!(start.elapsed() >= delay * 6);

    // Pipelined: all three travel together, and are answered together.
    let (before, start) = (proxy.round_trips(), Instant::now());
    let query = || client.batch_execute("select 1");
    let answers = tokio::try_join!(query(), query(), query());
    answers.unwrap();
    assert_eq!(proxy.round_trips() - before, 1);
    assert!(start.elapsed() >= delay * 2);

    // Large results pass the delay line as a whole, not chunk by chunk.
    let start = Instant::now();
    let text: String = one(&client, "select repeat('x', 32000000)").await;
    assert_eq!(text.len(), 32_000_000);
    assert!(start.elapsed() < delay * 400, "{:?}", start.elapsed());
    assert!(proxy.bytes_to_client() > 32_000_000 && proxy.bytes_to_server() > 0);
}

#[tokio::test]
async fn cutting_the_proxy_ends_its_connections_but_lets_new_ones_in() {
    let server = shared(None).await.unwrap();
    let target = ("127.0.0.1", server.port());
    let proxy = DelayProxy::start(target, Duration::ZERO).unwrap();
    let client = connect(&proxy.url_for("postgres")).await;
    let pid: i32 = one(&client, "select pg_backend_pid()").await;
    proxy.cut_all();
    assert!(client.batch_execute("select 1").await.is_err());

    let fresh = connect(&proxy.url_for("postgres")).await;
    let there = format!("select count(*) from pg_stat_activity where pid = {pid}");
    wait_until("the server to notice the cut", SOON, async || {
        one::<i64>(&fresh, &there).await == 0
    })
    .await
    .unwrap();
}
