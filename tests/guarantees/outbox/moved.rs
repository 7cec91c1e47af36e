//! A log that came to this server by replication: its ids are those of a server that was ahead, its sequence stayed behind.

use pgonce_tests::{LogReader, Observer, install, publish};

use super::life::{burn, copy, numbers, private};

/// Lets everything look as on a physical copy that followed, by logical replication, a server that was 5000 transactions ahead.
const FROM_AHEAD: &str = "update pgonce.outbox set xid = (xid::text::bigint + 5000)::text::xid8; \
     update pgonce.outbox_watermark set xid = (xid::text::bigint + 5000)::text::xid8; \
     update pgonce.outbox_cursor c set cursor = row((c.cursor).floor, format('%1$s:%1$s:', \
         pg_snapshot_xmax((c.cursor).seen)::text::bigint + 5000)::pg_snapshot, null, null)::pgonce.outbox_position";

const CAUGHT_UP: &str = "select pgonce.outbox_caught_up('c', pg_current_snapshot())::integer";

/// A green database that takes over from the blue one has its life and lower ids: the cursors have seen the ids of its next events.
#[tokio::test]
async fn a_copy_that_goes_on_with_lower_ids_skips_nothing() {
    for ids_caught_up in [false, true] {
        let (server, see) = private().await;
        install(server.url()).await.unwrap();
        see.run("select pgonce.create_subscription('c')").await;
        let mut relay = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
        for n in 1..=3 {
            see.run(&publish("s", n)).await;
        }
        assert_eq!(relay.numbers().await, ["1", "2", "3"]);
        assert_eq!(relay.keep().await, 16);
        // Read by nobody where it was published.
        see.run(&publish("s", 4)).await;
        see.run(FROM_AHEAD).await;

        see.run(&publish("s", 5)).await;
        assert_eq!(see.number(CAUGHT_UP).await, 0);
        if ids_caught_up {
            see.run(&burn(6000)).await;
            assert_eq!(see.number(CAUGHT_UP).await, 0);
        }
        // A relay that lives on does nothing with what it holds.
        let read = format!("select pgonce._read_lanes('c', {})", relay.held_sql());
        assert_eq!(see.code(&read).await, "P4012");
        assert_eq!(relay.keep().await, 0);
        let open = Observer::connect(&server.url()).await;
        open.run(&format!("begin; {}", publish("open", 6))).await;
        relay.claim_again().await;
        assert_eq!(relay.held.len(), 16);
        assert!(
            relay.read(1000).await.is_empty(),
            "somebody may yet write below"
        );
        open.run("commit").await;
        assert!(relay.read(1000).await.is_empty(), "it notices");
        assert_eq!(numbers(&relay.read_all(1000).await), [4, 5, 6]);
        // From then on it is a log like any other.
        see.run(&publish("s", 7)).await;
        assert_eq!(relay.numbers().await, ["7"]);
        assert_eq!(relay.keep().await, 16);
        assert_eq!(see.number(CAUGHT_UP).await, 1);
        relay.claim_again().await;
        assert!(relay.numbers().await.is_empty());
    }
}

/// The cursors fit, as where nobody has read for long; the event does not become visible before its id is given out.
#[tokio::test]
async fn an_event_whose_id_is_still_to_come_is_not_withheld() {
    let (server, see) = private().await;
    install(server.url()).await.unwrap();
    see.run("select pgonce.create_subscription('c')").await;
    let mut relay = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    see.run(&publish("s", 1)).await;
    assert_eq!(relay.numbers().await, ["1"]);
    assert_eq!(relay.keep().await, 16);
    see.run(&publish("s", 2)).await;
    see.run("update pgonce.outbox set xid = (xid::text::bigint + 5000)::text::xid8 where seq = 2")
        .await;
    assert!(relay.numbers().await.is_empty());
    relay.claim_again().await;
    assert!(relay.numbers().await.contains(&"2".to_owned()));
}

/// Who claims inside of a transaction, behind savepoints and beside others who are open, sees ids of all kinds: all are of this server.
#[tokio::test]
async fn a_server_does_not_take_its_own_ids_for_those_of_another() {
    let (server, see) = private().await;
    install(server.url()).await.unwrap();
    see.run("select pgonce.create_subscription('c')").await;
    let open = Observer::connect(&server.url()).await;
    open.run(&format!("begin; {}", publish("open", 1))).await;
    see.run(&publish("s", 2)).await;
    let claims = format!(
        "begin; {}; savepoint a; select pgonce.claim_events('c', 'r'); savepoint b; {}; \
         select pgonce.claim_events('c', 'r'); commit",
        publish("s", 3),
        publish("s", 4)
    );
    assert_eq!(see.code(&claims).await, "");
    open.run("commit").await;
    assert_eq!(see.code(&claims).await, "");
    assert_eq!(
        see.text("select coalesce(pgonce._outbox_misfit(), 'nothing')")
            .await,
        "nothing"
    );
    let base = see.number("select base_seq from pgonce.outbox_state").await;
    assert_eq!(base, 0, "never re-based");
}

/// Logical replication takes rows along, and no sequences: the next events would get numbers that the log has.
#[tokio::test]
async fn behind_a_sequence_that_did_not_come_along_nothing_is_skipped() {
    for old_is_ahead in [true, false] {
        let ((old, on_old), (new, on_new)) = (private().await, private().await);
        install(old.url()).await.unwrap();
        (if old_is_ahead { &on_old } else { &on_new })
            .run(&burn(3000))
            .await;
        on_old.run("select pgonce.create_subscription('c')").await;
        let mut reader = LogReader::claim(Observer::connect(&old.url()).await, "c", "r").await;
        for n in 1..=5 {
            on_old.run(&publish("s", n)).await;
        }
        assert_eq!(numbers(&reader.read_all(1000).await), [1, 2, 3, 4, 5]);
        assert_eq!(reader.keep().await, 16);
        on_old.run(&publish("s", 6)).await;
        copy(&old, &new);
        drop(old);
        on_new.run("alter sequence pgonce.outbox_seq restart").await;

        // These get the numbers 1 to 3, which are taken.
        on_new.run(&publish("s", 7)).await;
        on_new
            .run(&format!("begin; savepoint a; {}; commit", publish("s", 8)))
            .await;
        let open = Observer::connect(&new.url()).await;
        open.run(&format!("begin; {}", publish("open", 9))).await;
        let claim = "select pgonce._claim_lanes('c', 'r', interval '1 hour')";
        assert_eq!(on_new.code(claim).await, "55P03", "not under a writer");
        open.run("commit").await;
        // What is rolled back leaves no trace.
        on_new.run(&format!("begin; {claim}; rollback")).await;
        let mut reader = LogReader::claim(Observer::connect(&new.url()).await, "c", "r").await;
        assert_eq!(reader.held.len(), 16);
        let mut after = reader.read_all(1000).await;
        for wanted in [6, 7, 8, 9] {
            assert!(
                numbers(&after).contains(&wanted),
                "{wanted} was skipped: {:?}",
                numbers(&after)
            );
        }
        for n in 10..=20 {
            on_new.run(&publish("s", n)).await;
            let seen = reader.read_all(1000).await;
            assert_eq!(numbers(&seen), [n]);
            after.extend(seen);
        }
        let of_new = after
            .iter()
            .filter(|event| event.n.parse::<u32>().unwrap() >= 10);
        for event in of_new {
            let same = after.iter().filter(|other| other.seq == event.seq);
            assert_eq!(same.count(), 1, "number {} twice", event.seq);
        }
    }
}
