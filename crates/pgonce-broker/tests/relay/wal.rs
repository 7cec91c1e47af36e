//! Relays that are woken by the write-ahead log: what they promise is the same, whatever
//! becomes of the slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use pgonce::Result;
use pgonce_broker::{WalListener, WalListenerError};
use pgonce_testkit::{Postgres, wait_until};
use pgonce_tests::{Observer, install};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{DEADLINE, Running, Witness, publish, relay_to};

const HOUR: Duration = Duration::from_secs(3600);

struct Server {
    postgres: Postgres,
    see: Observer,
}

impl Server {
    async fn new(wal_level: &str) -> Self {
        let postgres = Postgres::builder()
            .setting("wal_level", wal_level)
            .setting("max_slot_wal_keep_size", "16MB")
            .start()
            .await
            .unwrap();
        install(postgres.url()).await.unwrap();
        let see = Observer::connect(&postgres.url()).await;
        see.run("select pgonce.create_subscription('c'); select pgonce._set_wal_publication(true)")
            .await;
        Self { postgres, see }
    }

    async fn tail(&self) -> std::result::Result<WalListener, WalListenerError> {
        WalListener::start(self.postgres.url().parse().unwrap(), None, "pgonce").await
    }

    /// Waits until commits are reply.
    async fn wait_until_live(&self, tail: &WalListener) {
        wait_until("the log to be followed", DEADLINE, || async {
            tail.signal().is_live()
        })
        .await
        .unwrap();
    }

    /// A relay that looks only when it is reply.
    fn start_with_listener(&self, tail: &WalListener, sink: &Witness) -> Running {
        let relay = relay_to(&self.postgres.url(), sink.clone());
        Running::start(relay.wake_on(tail.signal()).max_poll_when_live(HOUR))
    }

    async fn slots(&self) -> i64 {
        self.see
            .number("select count(*) from pgonce.outbox_wal_listeners")
            .await
    }
}

#[tokio::test]
async fn a_relay_that_is_woken_has_every_event_and_no_phantom_without_polling() -> Result<()> {
    let server = Server::new("logical").await;
    // What was there before anybody listened.
    server.see.run(&publish(1, 3)).await;
    let tail = server.tail().await.unwrap();
    server.wait_until_live(&tail).await;
    let sink = Witness::default();
    let running = server.start_with_listener(&tail, &sink);
    sink.wait_for(1).await;

    // Commits out of order, beside somebody who writes and does not end.
    let [late, open] =
        join_all((0..2).map(async |_| Observer::connect(&server.postgres.url()).await))
            .await
            .try_into()
            .unwrap_or_else(|_| panic!("two sessions"));
    late.run(&format!("begin; {}", publish(2, 3))).await;
    open.run("begin; create table unrelated (n int)").await;
    server
        .see
        .run(&format!(
            "begin; {}; rollback; begin; {}; savepoint s; {}; rollback to s; commit",
            publish(97, 3),
            publish(3, 3),
            publish(98, 3)
        ))
        .await;
    wait_until("what committed first", DEADLINE, || async {
        sink.numbers() == [1, 3]
    })
    .await
    .unwrap();
    late.run("commit").await;
    sink.wait_for(3).await;
    for n in 4..=60 {
        server.see.run(&publish(n, 3)).await;
    }
    sink.wait_for(60).await;
    open.run("rollback").await;
    running.stop().await?;
    assert_eq!(sink.check(), 0, "events came twice");
    assert_eq!(server.slots().await, 1);
    drop(tail);
    wait_until("the slot to go", DEADLINE, || async {
        server.slots().await == 0
    })
    .await
    .unwrap();
    Ok(())
}

#[tokio::test]
async fn while_the_log_is_not_followed_a_relay_polls() -> Result<()> {
    let server = Server::new("logical").await;
    // Nobody can listen before this one has ended.
    let open = Observer::connect(&server.postgres.url()).await;
    open.run("begin; create table unrelated (n int)").await;
    let tail = server.tail().await.unwrap();
    let sink = Witness::default();
    let running = server.start_with_listener(&tail, &sink);
    server.see.run(&publish(1, 1)).await;
    sink.wait_for(1).await;
    assert!(!tail.signal().is_live());
    open.run("rollback").await;
    server.wait_until_live(&tail).await;
    server.see.run(&publish(2, 1)).await;
    sink.wait_for(2).await;
    running.stop().await
}

#[tokio::test]
async fn whatever_becomes_of_slot_connection_and_server_nothing_is_skipped() -> Result<()> {
    let server = Server::new("logical").await;
    let tail = server.tail().await.unwrap();
    let sink = Witness::default();
    let running = server.start_with_listener(&tail, &sink);
    let mut n = 0;
    for blow in [
        "terminated",
        "invalidated",
        "crashed",
        "dropped publication",
    ] {
        server.wait_until_live(&tail).await;
        let see = Observer::connect(&server.postgres.url()).await;
        let slot = see
            .text("select slot from pgonce.outbox_wal_listeners")
            .await;
        for _ in 0..10 {
            n += 1;
            see.run(&publish(n, 4)).await;
        }
        match blow {
            "terminated" => {
                see.run("select pg_terminate_backend(pid) from pgonce.outbox_wal_listeners")
                    .await;
            }
            "invalidated" => {
                // An open transaction holds the log back, further than the server allows.
                let open = Observer::connect(&server.postgres.url()).await;
                open.run("begin; select pg_current_xact_id()").await;
                for _ in 0..5 {
                    n += 1;
                    see.run(&publish(n, 4)).await;
                    see.run("select pg_switch_wal()").await;
                }
                see.run("checkpoint").await;
                let gone = format!(
                    "select count(*) from pgonce.outbox_wal_listeners where slot = '{slot}'"
                );
                wait_until("the slot to be lost", DEADLINE, || async {
                    see.number(&gone).await == 0
                })
                .await
                .unwrap();
                n += 1;
                see.run(&publish(n, 4)).await;
                sink.wait_for(n).await;
                open.run("rollback").await;
            }
            "crashed" => {
                server.postgres.crash().await.unwrap();
                server.postgres.start_again().await.unwrap();
            }
            _ => {
                see.run("select pgonce._set_wal_publication(false)").await;
                n += 1;
                see.run(&publish(n, 4)).await;
                see.run("select pg_terminate_backend(pid) from pgonce.outbox_wal_listeners")
                    .await;
            }
        }
        let see = Observer::connect(&server.postgres.url()).await;
        for _ in 0..10 {
            n += 1;
            see.run(&publish(n, 4)).await;
        }
        sink.wait_for(n).await;
    }
    running.stop().await?;
    sink.check();
    Ok(())
}

#[tokio::test]
async fn what_somebody_has_to_put_right_is_said_at_once() {
    let server = Server::new("replica").await;
    let error = server.tail().await.unwrap_err();
    assert_eq!((error.code(), error.lasts()), ("55000", true));
    assert!(
        error.to_string().contains("wal_level is replica"),
        "{error}"
    );

    let server = Server::new("logical").await;
    let see = &server.see;
    see.run("create role plain login; select pgonce.grant_to('plain', 'relay')")
        .await;
    let url = server.postgres.url().replace("postgres@", "plain@");
    let as_plain = || WalListener::start(url.parse().unwrap(), None, "pgonce");
    let error = as_plain().await.unwrap_err();
    assert_eq!((error.code(), error.lasts()), ("42501", true), "{error}");
    assert!(error.hint().contains("replication"));

    see.run("alter role plain replication").await;
    let tail = as_plain().await.unwrap();
    server.wait_until_live(&tail).await;
    drop(tail);

    see.run("select pgonce._set_wal_publication(false)").await;
    let error = as_plain().await.unwrap_err();
    assert_eq!((error.code(), error.lasts()), ("42704", true), "{error}");
    assert!(error.hint().contains("_set_wal_publication"));

    see.run("select pgonce._set_wal_publication(true)").await;
    // No commit may ever wait for a relay as if it were a standby.
    see.run("alter system set synchronous_standby_names = '*'")
        .await;
    see.run("set synchronous_commit = local; select pg_reload_conf()")
        .await;
    wait_until("the setting", DEADLINE, || async {
        as_plain().await.is_err_and(|error| error.code() == "55P02")
    })
    .await
    .unwrap();
}

/// An address of the server that passes on a login, and while it is silent nothing from the first question about settings on.
async fn address_of(port: u16, silent: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let silent = silent.clone();
            tokio::spawn(async move {
                let (mut from, mut to) = client.into_split();
                let server = TcpStream::connect(("127.0.0.1", port)).await?;
                let (mut replies, mut questions) = server.into_split();
                tokio::spawn(async move { copy(&mut replies, &mut to).await });
                let mut bytes = vec![0; 8192];
                loop {
                    let n = from.read(&mut bytes).await?;
                    let asks = bytes[..n].windows(9).any(|part| part == b"wal_level");
                    if asks && silent.load(Ordering::SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    match n {
                        0 => return questions.shutdown().await,
                        n => questions.write_all(&bytes[..n]).await?,
                    }
                }
            });
        }
    });
    address.port()
}

#[tokio::test]
async fn a_server_that_falls_silent_after_the_login_is_waited_for_no_longer_than_one_that_does_not_answer()
 {
    let server = Server::new("logical").await;
    let silent = Arc::new(AtomicBool::new(true));
    let mut address: tokio_postgres::Config = server.postgres.url().parse().unwrap();
    let port = address_of(address.get_ports()[0], silent.clone()).await;
    let user = address.get_user().unwrap().to_owned();
    let database = address.get_dbname().unwrap_or(&user).to_owned();
    address = tokio_postgres::Config::new();
    address.host("127.0.0.1").port(port).user(user);
    address
        .dbname(database)
        .connect_timeout(Duration::from_secs(1));
    let starting = WalListener::start(address, None, "pgonce");
    let tail = tokio::time::timeout(DEADLINE, starting)
        .await
        .unwrap()
        .unwrap();
    assert!(!tail.signal().is_live());
    silent.store(false, Ordering::SeqCst);
    server.wait_until_live(&tail).await;
}
