//! Each action does what it says, at the message that it names.

use std::{net::TcpStream, time::Duration};

use pgonce_testkit::{Action, Direction, Fault, FaultPlan, Message, wait_until_lock_waited};
use tokio_postgres::{Client, Error};

use crate::{Fixture, SOON};

const INSERT: &str = "insert into note values ('a', 1)";

/// Messages 0, 1 and 2 to the server.
async fn three_queries(client: &Client) -> Result<(), Error> {
    client.batch_execute("begin").await?;
    client.batch_execute(INSERT).await?;
    client.batch_execute("commit").await
}

async fn cut_at(fault: &str) -> (Fixture, Result<(), Error>) {
    let fixture = Fixture::new().await;
    let client = fixture.client().await;
    fixture.proxy.arm(fault.parse().unwrap());
    let outcome = three_queries(&client).await;
    (fixture, outcome)
}

#[tokio::test]
async fn cut_before_the_commit_leaves_nothing() {
    let (fixture, outcome) = cut_at("c0:s2:cut-before").await;
    assert!(
        outcome.unwrap_err().code().is_none(),
        "the client sees a broken connection"
    );
    fixture.sessions_are_gone().await;
    assert_eq!(fixture.notes().await, 0);
    let fired = fixture.proxy.fired().unwrap();
    assert_eq!(
        (fired.message.name, &*fired.message.text),
        ("Query", "commit")
    );
}

#[tokio::test]
async fn cut_after_the_commit_leaves_the_row() {
    let (fixture, outcome) = cut_at("c0:s2:cut-after").await;
    assert!(outcome.is_err());
    fixture.sessions_are_gone().await;
    assert_eq!(fixture.notes().await, 1);
}

#[tokio::test]
async fn a_dropped_reply_to_the_commit_leaves_the_row_before_the_client_sees_the_cut() {
    let (fixture, outcome) = cut_at("c0:s2:drop-reply").await;
    assert!(outcome.unwrap_err().code().is_none());
    // Not waited for: the cut came after the server was idle.
    assert_eq!(fixture.notes().await, 1);
    fixture.sessions_are_gone().await;
}

#[tokio::test]
async fn a_dropped_reply_to_the_insert_keeps_the_commit_away() {
    let (fixture, outcome) = cut_at("c0:s1:drop-reply").await;
    assert!(outcome.is_err());
    fixture.sessions_are_gone().await;
    assert_eq!(fixture.notes().await, 0);
    let seen = fixture.proxy.transcript();
    assert!(!seen.iter().any(|message| message.text == "commit"));
}

#[tokio::test]
async fn a_cut_on_the_way_to_the_client_comes_when_the_work_is_done() {
    // 0 and 1 answer `begin`, 2 and 3 the insert, 4 the commit, and 5 says that it is idle.
    for fault in [
        "c0:c4:cut-before",
        "c0:c5:drop-reply",
        "c0:c4:drop-reply",
        "c0:c3:cut-after",
    ] {
        let (fixture, outcome) = cut_at(fault).await;
        assert!(outcome.is_err(), "{fault}");
        fixture.sessions_are_gone().await;
        let committed = i64::from(!fault.starts_with("c0:c3"));
        assert_eq!(fixture.notes().await, committed, "{fault}");
    }
    let (fixture, outcome) = cut_at("c0:c5:cut-after").await;
    outcome.unwrap();
    assert_eq!(fixture.notes().await, 1);
}

#[tokio::test]
async fn a_dropped_reply_inside_a_pipeline_lets_the_pipeline_finish() {
    let fixture = Fixture::new().await;
    let client = fixture.client().await;
    let statement = client
        .prepare("insert into note values ('a', 1)")
        .await
        .unwrap();
    let seen = fixture.proxy.transcript();
    let next = seen
        .iter()
        .filter(|m| m.direction == Direction::ToServer)
        .count();
    // Bind, without the Execute and Sync that follow it.
    fixture
        .proxy
        .arm(format!("c0:s{next}:drop-reply").parse().unwrap());
    assert!(client.execute(&statement, &[]).await.is_err());
    assert_eq!(fixture.proxy.fired().unwrap().message.name, "Bind");
    assert_eq!(fixture.notes().await, 1);
}

#[tokio::test]
async fn a_dropped_reply_in_a_copy_ends_as_well() {
    let copy = async |fixture: &Fixture| {
        let client = fixture.client().await;
        let mut sink = Box::pin(client.copy_in("copy note from stdin").await?);
        let line = bytes::Bytes::from_static(b"a\t1\n");
        futures_util::SinkExt::send(&mut sink, line).await?;
        sink.as_mut().finish().await
    };
    let fixture = Fixture::new().await;
    copy(&fixture).await.unwrap();
    let seen = fixture.proxy.transcript();
    let plan = FaultPlan::every(&seen, &[Action::DropReply]);
    assert!(plan.trials.len() >= 5, "{plan:?}");
    for trial in &plan.trials {
        fixture.proxy.start_over();
        fixture.proxy.arm_trial(trial);
        let outcome = tokio::time::timeout(SOON, copy(&fixture)).await;
        assert!(
            outcome.unwrap_or_else(|_| panic!("{trial} hangs")).is_err(),
            "{trial}"
        );
        assert!(fixture.proxy.fired().is_some(), "{trial}");
        fixture.sessions_are_gone().await;
    }
}

#[tokio::test]
async fn every_message_of_a_path_can_be_cut_and_the_path_never_hangs() {
    let fixture = Fixture::new().await;
    let path = async |fixture: &Fixture| {
        let mut client = fixture.client().await;
        let transaction = client.transaction().await?;
        let insert = "insert into note values ($1, $2)";
        transaction.execute(insert, &[&"a", &1_i64]).await?;
        transaction.commit().await
    };
    path(&fixture).await.unwrap();
    let cuts = [Action::CutBefore, Action::CutAfter, Action::DropReply];
    let plan = FaultPlan::every(&fixture.proxy.transcript(), &cuts);
    let mut fired = 0;
    for trial in &plan.trials {
        fixture.proxy.start_over();
        fixture.proxy.arm_trial(trial);
        let before = fixture.notes().await;
        let outcome = tokio::time::timeout(SOON, path(&fixture)).await;
        let outcome = outcome.unwrap_or_else(|_| panic!("{trial} hangs"));
        fixture.sessions_are_gone().await;
        let made = fixture.notes().await - before;
        assert!(
            outcome.is_err() || made == 1,
            "{trial}: success without an effect"
        );
        fired += u32::from(fixture.proxy.fired().is_some());
    }
    // The client's good-bye is a message too, and may come after the end of the trial.
    assert!(
        fired as usize >= plan.trials.len() - 3,
        "{fired} of {}",
        plan.trials.len()
    );
}

#[tokio::test]
async fn a_held_message_waits_for_its_release_and_nothing_is_lost() {
    let fixture = Fixture::new().await;
    let client = fixture.client().await;
    fixture.proxy.arm("c0:s2:hold".parse().unwrap());
    let writing = tokio::spawn(async move { three_queries(&client).await });
    let held = fixture.proxy.held().await;
    assert_eq!(held.message.text, "commit");
    assert_eq!(fixture.notes().await, 0);
    assert!(!writing.is_finished());
    fixture.proxy.release();
    writing.await.unwrap().unwrap();
    assert_eq!(fixture.notes().await, 1);
}

#[tokio::test]
async fn a_held_message_does_not_outlive_its_connection() {
    let fixture = Fixture::new().await;
    let client = fixture.client().await;
    fixture.proxy.arm("c0:s0:hold".parse().unwrap());
    let asking = tokio::spawn(async move { client.batch_execute("select 1").await });
    fixture.proxy.held().await;
    fixture.proxy.cut_all();
    assert!(asking.await.unwrap().is_err());
    let again = fixture.client().await;
    again.batch_execute("select 1").await.unwrap();
    let held = tokio::time::timeout(Duration::ZERO, fixture.proxy.held()).await;
    assert!(held.is_err(), "nothing is held any more");
}

#[tokio::test]
async fn a_second_client_comes_between() {
    let fixture = Fixture::new().await;
    let (first, second) = (fixture.client().await, fixture.client().await);
    fixture.proxy.arm("c0:s1:second-client".parse().unwrap());
    let writing = tokio::spawn(async move { three_queries(&first).await });
    fixture
        .proxy
        .while_held(|_| async { three_queries(&second).await.unwrap() })
        .await;
    writing.await.unwrap().unwrap();
    assert_eq!(fixture.notes().await, 2);
}

#[tokio::test]
async fn a_second_client_that_waits_for_the_first_can_be_seen_waiting() {
    let fixture = Fixture::new().await;
    fixture
        .directly()
        .await
        .batch_execute("create unique index on note (key)")
        .await
        .unwrap();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let pid: i32 = second
        .query_one("select pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    fixture.proxy.arm("c0:s2:second-client".parse().unwrap());
    let writing = tokio::spawn(async move { three_queries(&first).await });
    fixture.proxy.held().await;
    let late = tokio::spawn(async move { three_queries(&second).await });
    wait_until_lock_waited(&fixture.database.url(), pid)
        .await
        .unwrap();
    fixture.proxy.release();
    writing.await.unwrap().unwrap();
    assert_eq!(
        late.await.unwrap().unwrap_err().code().unwrap().code(),
        "23505"
    );
}

#[tokio::test]
async fn a_fault_that_was_taken_back_does_not_happen() {
    let fixture = Fixture::new().await;
    let client = fixture.client().await;
    fixture.proxy.arm("c0:s0:cut-before".parse().unwrap());
    fixture.proxy.disarm();
    three_queries(&client).await.unwrap();
    assert!(fixture.proxy.fired().is_none());
}

#[tokio::test]
async fn only_the_named_connection_is_cut() {
    let fixture = Fixture::new().await;
    let (first, second) = (fixture.client().await, fixture.client().await);
    fixture.proxy.arm("c1:s1:cut-before".parse().unwrap());
    three_queries(&first).await.unwrap();
    assert!(three_queries(&second).await.is_err());
    three_queries(&first).await.unwrap();
    let third = fixture.client().await;
    three_queries(&third).await.unwrap();
}

#[tokio::test]
async fn nothing_is_left_of_a_proxy_that_was_dropped() {
    let fixture = Fixture::new().await;
    let client = fixture.client().await;
    let held = fixture.client().await;
    fixture.proxy.arm("c1:s0:hold".parse().unwrap());
    let waiting = tokio::spawn(async move { held.batch_execute("select 1").await });
    fixture.proxy.held().await;
    let Fixture { database, proxy } = fixture;
    let address = proxy.addr();
    drop(proxy);
    assert!(TcpStream::connect(address).is_err());
    assert!(waiting.await.unwrap().is_err());
    assert!(client.batch_execute("select 1").await.is_err());
    let server = pgonce_testkit::shared(None).await.unwrap();
    let proxy = pgonce_testkit::CuttingProxy::start(("127.0.0.1", server.port())).unwrap();
    Fixture { database, proxy }.sessions_are_gone().await;
}

#[test]
fn a_trial_takes_little_time() {
    // Clients on runtimes that come and go, as in a process of many tests.
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let shared = runtime();
    let fixture = shared.block_on(Fixture::new());
    let began = std::time::Instant::now();
    let trials = 100;
    for _ in 0..trials {
        fixture.proxy.start_over();
        fixture
            .proxy
            .arm("c0:s2:drop-reply".parse::<Fault>().unwrap());
        let outcome = runtime().block_on(async { three_queries(&fixture.client().await).await });
        assert!(outcome.is_err());
    }
    assert_eq!(shared.block_on(fixture.notes()), trials);
    // 10 ms each is the aim; this is for a machine that does much else.
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn a_message_is_shown_as_what_it_is() {
    let message = Message {
        connection: 2,
        direction: Direction::ToClient,
        number: 5,
        kind: 'C',
        name: "CommandComplete",
        text: "COMMIT".to_owned(),
    };
    assert_eq!(message.to_string(), "c2:c5 CommandComplete COMMIT");
    let fault = Fault::at(&message, Action::CutAfter);
    assert_eq!(fault.to_string(), "c2:c5:cut-after");
}
