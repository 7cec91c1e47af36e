//! The stored inbox: what was taken on is applied once, by any worker, in the order of its key.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{
    ClaimedMessage, Contract, FailureStatus, Inbox, Message, StoreAs, StoreResult,
};
use pgonce::{Error, Result};
use pgonce_tests::{Observer, TestDriver, World, for_each_driver};

const LEASE: Duration = Duration::from_secs(10);

fn message(n: u64, key: &str) -> Message {
    Message::new(format!("m{n}"), format!("payload {n}")).key(key)
}

async fn store<D: TestDriver>(inbox: &Inbox<D>, message: &Message) -> StoreResult {
    inbox
        .store("c", "hook", message, &StoreAs::Received)
        .await
        .unwrap()
}

async fn claim<D: TestDriver>(inbox: &Inbox<D>, owner: &str) -> Vec<ClaimedMessage> {
    inbox.claim("c", owner, LEASE, 10).await.unwrap()
}

async fn finish<D: TestDriver>(inbox: &Inbox<D>, claimed: &ClaimedMessage) -> Result<()> {
    let mut batch = inbox.begin().await?;
    let sql = format!(
        "insert into effects values ('', 'stored', '{}')",
        claimed.message.id
    );
    D::exec(batch.lend("")?.conn(), &sql).await?;
    batch.commit_finished("c", &[claimed]).await
}

async fn statuses(see: &Observer) -> String {
    see.text("select string_agg(message_id || ' ' || status, ',' order by seq) from pgonce.inbox_message")
        .await
}

async fn what_is_stored_is_applied_once<D: TestDriver>(world: World<D>) {
    let inbox = world.owner.inbox();
    let sent = message(1, "k").kind("paid").header("h", "v");
    assert_eq!(store(&inbox, &sent).await, StoreResult::New);
    assert_eq!(store(&inbox, &sent).await, StoreResult::Duplicate);
    let claimed = claim(&inbox, "me").await;
    assert_eq!(claimed.len(), 1);
    let mut expected = sent.clone();
    expected.source = "hook".to_owned();
    assert_eq!(claimed[0].message, expected);
    assert_eq!(statuses(&world.see).await, "m1 processing");
    assert!(claim(&inbox, "you").await.is_empty());
    finish(&inbox, &claimed[0]).await.unwrap();
    // Nor again by anybody else.
    assert!(matches!(
        finish(&inbox, &claimed[0]).await,
        Err(Error::Fenced(_))
    ));
    assert!(claim(&inbox, "you").await.is_empty());
    assert_eq!(store(&inbox, &sent).await, StoreResult::Duplicate);
    assert_eq!(statuses(&world.see).await, "m1 processed");
    assert_eq!(world.see.number("select count(*) from effects").await, 1);
}

async fn a_worker_whose_lease_ran_out_can_neither_finish_nor_fail<D: TestDriver>(world: World<D>) {
    let inbox = world.owner.inbox();
    store(&inbox, &message(1, "k")).await;
    let zombie = claim(&inbox, "zombie").await.remove(0);
    world.see.run("select pgonce._move_clock('11 s')").await;
    let heir = claim(&inbox, "heir").await.remove(0);
    assert_eq!((heir.attempts, heir.fence > zombie.fence), (2, true));
    assert!(matches!(
        finish(&inbox, &zombie).await,
        Err(Error::Fenced(_))
    ));
    let failed = inbox.fail("c", &zombie, true, "x", "y").await;
    assert!(matches!(failed, Err(Error::Fenced(_))));
    inbox.release("c", &[&zombie]).await.unwrap();
    assert_eq!(statuses(&world.see).await, "m1 processing");
    finish(&inbox, &heir).await.unwrap();
    assert_eq!(world.see.number("select count(*) from effects").await, 1);
}

async fn of_each_key_only_the_first_is_given_and_others_flow<D: TestDriver>(world: World<D>) {
    let inbox = world.owner.inbox();
    for (n, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "a")] {
        store(&inbox, &message(n, key)).await;
    }
    store(&inbox, &Message::new("m5", "")).await;
    store(&inbox, &Message::new("m6", "")).await;
    let ids = |claimed: &[ClaimedMessage]| {
        let ids: Vec<_> = claimed.iter().map(|c| c.message.id.clone()).collect();
        ids.join(" ")
    };
    let first = claim(&inbox, "me").await;
    assert_eq!(ids(&first), "m1 m3 m5 m6");
    let failed = inbox
        .fail("c", &first[0], false, "no", "never")
        .await
        .unwrap();
    assert_eq!(failed, FailureStatus::FailedFinal);
    assert!(claim(&inbox, "me").await.is_empty(), "key a waits");
    // A key of another tenant is another key.
    store(&inbox, &message(7, "a").tenant("acme")).await;
    assert_eq!(ids(&claim(&inbox, "me").await), "m7");
    assert!(inbox.skip("c", first[0].seq, "not needed").await.unwrap());
    assert_eq!(ids(&claim(&inbox, "me").await), "m2");
}

async fn a_header_that_no_value_holds_keeps_nobody_from_the_messages_beside_it<D: TestDriver>(
    world: World<D>,
) {
    let inbox = world.owner.inbox();
    store(&inbox, &message(1, "k1")).await;
    world
        .see
        .run("select pgonce.store_message('c', 'hook', 'm2', '', p_headers => '{\"n\": 1e400, \"m\": 1}')")
        .await;
    store(&inbox, &message(3, "k3")).await;
    let claimed = claim(&inbox, "me").await;
    assert_eq!(claimed.len(), 3);
    let headers = &claimed[1].message.headers;
    assert_eq!(headers["n"].as_str().map(str::len), Some(401));
    assert_eq!(headers["m"], 1);
}

for_each_driver!(
    a_header_that_no_value_holds_keeps_nobody_from_the_messages_beside_it,
    what_is_stored_is_applied_once,
    a_worker_whose_lease_ran_out_can_neither_finish_nor_fail,
    of_each_key_only_the_first_is_given_and_others_flow,
);

#[tokio::test]
async fn a_transient_failure_waits_longer_each_time_and_ends_as_poison() {
    let world = World::<TokioPostgres>::new().await;
    let inbox = world.owner.inbox();
    let contract = Contract::default()
        .max_attempts(4)
        .backoff(Duration::from_secs(10), Duration::from_secs(25));
    inbox.define("c", &contract).await.unwrap();
    world
        .see
        .run("select pgonce._set_clock('2026-01-01')")
        .await;
    store(&inbox, &message(1, "k")).await;
    for (attempt, longest) in [(1, 10), (2, 20), (3, 25)] {
        let claimed = claim(&inbox, "me").await.remove(0);
        assert_eq!(claimed.attempts, attempt);
        let failed = inbox
            .fail("c", &claimed, true, "later", "not now")
            .await
            .unwrap();
        assert_eq!(failed, FailureStatus::FailedRetryable);
        let pause = format!(
            "select due_at - pgonce.now() between interval '{} s' / 2 and interval '{longest} s' from pgonce.inbox_message",
            longest
        );
        assert_eq!(world.see.text(&pause).await, "t", "attempt {attempt}");
        assert!(claim(&inbox, "me").await.is_empty(), "not due yet");
        world.see.run("select pgonce._move_clock('26 s')").await;
    }
    let last = claim(&inbox, "me").await.remove(0);
    let failed = inbox
        .fail("c", &last, true, "later", "not now")
        .await
        .unwrap();
    assert_eq!(failed, FailureStatus::FailedFinal);
    let poison = inbox.poison("c", 10).await.unwrap();
    assert_eq!(
        (poison[0].attempts, poison[0].reason.as_deref()),
        (4, Some("not now"))
    );
    let backlog = inbox.backlog().await.unwrap();
    assert_eq!((backlog.len(), backlog[0].counts), (1, [0, 0, 0, 1]));
    // An operator retries, and that is written down. An earlier attempt may have reached the outside world.
    assert_eq!(
        inbox
            .retry("c", Some(poison[0].seq), "fixed")
            .await
            .unwrap(),
        1
    );
    assert_eq!(claim(&inbox, "me").await[0].attempts, 2);
    let audit = "select concat_ws(' ', act, reason, before ->> 'status', before ->> 'attempts', role) from pgonce.operator_act where scope = 'inbox c' and key <> '*'";
    assert_eq!(
        world.see.text(audit).await,
        "retry fixed failed_final 4 postgres"
    );
}

#[tokio::test]
async fn what_is_stored_and_what_is_applied_directly_share_one_memory() {
    let world = World::<TokioPostgres>::new().await;
    let inbox = world.owner.inbox();
    let direct = async |sent: &Message| {
        let mut batch = inbox.begin().await.unwrap();
        let held = batch.held("c", &[sent]).await.unwrap()[0];
        let verdict = batch.dedupe("c", "hook", &[sent]).await.unwrap()[0];
        batch.commit().await.unwrap();
        (held, verdict)
    };
    use pgonce::inbox::Verdict::{Duplicate, New};
    assert_eq!(direct(&message(1, "a")).await, (false, New));
    assert_eq!(
        store(&inbox, &message(1, "a")).await,
        StoreResult::Duplicate
    );
    store(&inbox, &message(2, "b")).await;
    // A copy is known, and what comes for its key has to wait behind it.
    assert_eq!(direct(&message(2, "b")).await, (true, Duplicate));
    assert_eq!(direct(&message(3, "b")).await, (true, New));
    assert_eq!(direct(&message(4, "c")).await, (false, New));
    let claimed = claim(&inbox, "me").await.remove(0);
    let held = direct(&message(5, "b")).await.0;
    assert!(held, "in hand is not yet applied");
    finish(&inbox, &claimed).await.unwrap();
    assert_eq!(direct(&message(6, "b")).await, (false, New));
}

#[tokio::test]
async fn another_payload_under_the_same_id_is_stored_once_for_an_operator() {
    let world = World::<TokioPostgres>::new().await;
    let inbox = world.owner.inbox();
    store(&inbox, &Message::new("m1", "one")).await;
    for _ in 0..3 {
        assert_eq!(
            store(&inbox, &Message::new("m1", "two")).await,
            StoreResult::Conflict
        );
    }
    assert_eq!(
        store(&inbox, &Message::new("m1", "three")).await,
        StoreResult::Conflict
    );
    assert_eq!(
        statuses(&world.see).await,
        "m1 received,m1 failed_final,m1 failed_final"
    );
    let poison = inbox.poison("c", 10).await.unwrap();
    assert!(
        poison.iter().all(|p| p.code.as_deref() == Some("P4050")),
        "{poison:?}"
    );
    // What came first is applied: what came under its id later is none of those that are all retried together.
    finish(&inbox, &claim(&inbox, "me").await[0]).await.unwrap();
    let no_id = StoreAs::Poison {
        code: "no_id".to_owned(),
        reason: "it has none".to_owned(),
        keep_bytes: 100,
    };
    let stored = inbox
        .store("c", "hook", &Message::new("", "four"), &no_id)
        .await;
    assert_eq!(stored.unwrap(), StoreResult::New);
    assert_eq!(inbox.retry("c", None, "all").await.unwrap(), 1);
    assert_eq!(&*claim(&inbox, "me").await[0].message.payload, b"four");
    let one = inbox.retry("c", Some(poison[0].seq), "looked at").await;
    assert_eq!(one.unwrap(), 1);
    assert_eq!(&*claim(&inbox, "me").await[0].message.payload, b"two");
}

#[tokio::test]
async fn a_replay_needs_no_source_and_another_consumer_applies_each_once_for_itself() {
    let world = World::<TokioPostgres>::new().await;
    let inbox = world.owner.inbox();
    for n in 1..=3 {
        store(&inbox, &message(n, "k")).await;
        finish(&inbox, &claim(&inbox, "me").await[0]).await.unwrap();
    }
    assert_eq!(
        inbox
            .replay("c", Some("d"), None, "a second reader")
            .await
            .unwrap(),
        3
    );
    assert_eq!(
        inbox
            .replay("c", Some("d"), None, "once more")
            .await
            .unwrap(),
        0
    );
    let mine =
        "select count(*) from pgonce.inbox_message where consumer = 'd' and status = 'received'";
    assert_eq!(world.see.number(mine).await, 3);
    // By your word: the same consumer applies again.
    assert_eq!(
        inbox
            .replay("c", None, None, "the table was lost")
            .await
            .unwrap(),
        3
    );
    for n in 1..=3 {
        let claimed = claim(&inbox, "me").await.remove(0);
        assert_eq!(claimed.message.id, format!("m{n}"), "in order");
        finish(&inbox, &claimed).await.unwrap();
    }
    assert_eq!(world.see.number("select count(*) from effects").await, 6);
    assert_eq!(
        world
            .see
            .number("select count(*) from pgonce.operator_act where act = 'replay' and scope like 'inbox %'")
            .await,
        6
    );
}
