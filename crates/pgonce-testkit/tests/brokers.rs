//! Private brokers: they answer, they are killed and come back, they leave nothing behind.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use pgonce_testkit::{Error, Nats, RabbitMq, Redis, wait_until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const SOON: Duration = Duration::from_secs(60);
const NOTE: &str = "PGONCE_TESTKIT_BROKERS_NOTE";

/// Says something and listens until the answer ends with these words.
async fn ask(port: u16, words: &str, end: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(words.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&received).contains(end) {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0, "hung up");
        }
    };
    tokio::time::timeout(SOON, read).await.unwrap();
    String::from_utf8_lossy(&received).into_owned()
}

fn is_listening(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Processes that run in this folder or have it in their arguments.
fn processes_of(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let runs = !stat.contains(") Z ");
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let inside =
            fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
        let named = line.contains(&*folder.to_string_lossy());
        (runs && (inside || named)).then(|| format!("{number}: {line}"))
    });
    lines.collect()
}

async fn nothing_is_left(folder: &Path) {
    wait_until(
        format!("{} to be gone", folder.display()),
        SOON,
        async || !folder.exists() && processes_of(folder).is_empty(),
    )
    .await
    .unwrap_or_else(|error| panic!("{error}; left: {:?}", processes_of(folder)));
}

#[tokio::test]
async fn redis_keeps_what_it_acknowledged_over_a_kill() {
    let server = Redis::start().await.unwrap();
    ask(server.port(), "XADD s * a 1\r\n", "\r\n").await;
    server.kill().await.unwrap();
    assert!(!is_listening(server.port()));
    assert!(matches!(server.kill().await, Err(Error::WrongState { .. })));
    server.restart().await.unwrap();
    assert!(
        ask(server.port(), "XLEN s\r\n", "\r\n")
            .await
            .contains(":1")
    );
    // One that runs is killed first.
    server.restart().await.unwrap();
    assert!(
        ask(server.port(), "XLEN s\r\n", "\r\n")
            .await
            .contains(":1")
    );
    let folder = server.folder().to_owned();
    drop(server);
    nothing_is_left(&folder).await;
}

#[tokio::test]
async fn nats_keeps_a_stream_over_a_kill() {
    let server = Nats::start().await.unwrap();
    let stream = r#"{"name":"S","subjects":["s.>"],"storage":"file"}"#;
    let create = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB r 1\r\nPUB $JS.API.STREAM.CREATE.S r {}\r\n{stream}\r\n",
        stream.len()
    );
    ask(server.port(), &create, "stream_create_response").await;
    let publish = "CONNECT {\"verbose\":false}\r\nSUB r 1\r\nPUB s.a r 2\r\nhi\r\n";
    ask(server.port(), publish, "\"seq\":1").await;
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    let info = "CONNECT {\"verbose\":false}\r\nSUB r 1\r\nPUB $JS.API.STREAM.INFO.S r 0\r\n\r\n";
    assert!(
        ask(server.port(), info, "\"state\"")
            .await
            .contains("\"messages\":1")
    );
    let folder = server.folder().to_owned();
    drop(server);
    nothing_is_left(&folder).await;
}

#[tokio::test]
async fn rabbitmq_comes_back_after_a_kill_and_leaves_no_name_server() {
    let server = RabbitMq::start().await.unwrap();
    let names = processes_of(server.folder());
    assert!(
        !names.is_empty(),
        "the process that was started is the node's"
    );
    server.kill().await.unwrap();
    assert!(!is_listening(server.port()));
    server.restart().await.unwrap();
    ask(server.port(), "AMQP\0\0\u{9}\u{1}", "PLAIN").await;
    let folder = server.folder().to_owned();
    drop(server);
    nothing_is_left(&folder).await;
}

#[tokio::test]
async fn a_wrong_line_of_configuration_shows_the_servers_log() {
    let error = Redis::start_with("no-such-directive 1").await.unwrap_err();
    assert!(error.to_string().contains("no-such-directive"), "{error}");
    let error = Nats::start_with("no_such_setting: {").await.unwrap_err();
    assert!(error.to_string().contains("nats-server ended"), "{error}");
}

/// The child process of the test below; by itself it does nothing.
#[tokio::test]
#[ignore = "run by another test, as a process to be killed"]
async fn process_that_holds_brokers() {
    let Some(note) = env::var_os(NOTE).map(PathBuf::from) else {
        return;
    };
    let nats = pgonce_testkit::shared_nats().await.unwrap();
    let redis = pgonce_testkit::shared_redis().await.unwrap();
    let rabbitmq = pgonce_testkit::shared_rabbitmq().await.unwrap();
    let folders = [nats.folder(), redis.folder(), rabbitmq.folder()].map(Path::to_string_lossy);
    let draft = note.with_extension("draft");
    fs::write(&draft, folders.join("\n")).unwrap();
    fs::rename(&draft, &note).unwrap();
    std::future::pending().await
}

#[tokio::test]
async fn brokers_end_with_a_test_process_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("note");
    let mut child: Child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "process_that_holds_brokers"])
        .env(NOTE, &note)
        .env_remove("NEXTEST_RUN_ID")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Three, one after the other, and each may take a minute and a half of its own on a busy machine.
    let ready = wait_until("the child's brokers", SOON * 4, async || note.exists()).await;
    child.kill().unwrap();
    child.wait().unwrap();
    ready.unwrap();
    for folder in fs::read_to_string(note).unwrap().lines() {
        nothing_is_left(Path::new(folder)).await;
    }
}
