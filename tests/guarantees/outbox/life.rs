//! A log that moves to another server, or lives past the end of the 32-bit transaction ids.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use pgonce_testkit::{Binaries, Postgres};
use pgonce_tests::{LogReader, Observer, Seen, install, publish};
use rustix::process::{Pid, Signal, kill_process};

/// Gives out so many transaction ids.
pub(super) fn burn(ids: u32) -> String {
    format!(
        "do $$ begin for i in 1..{ids} loop perform pg_current_xact_id(); commit; end loop; end $$"
    )
}

pub(super) async fn private() -> (Postgres, Observer) {
    let server = Postgres::builder().start().await.unwrap();
    let see = Observer::connect(&server.url()).await;
    (server, see)
}

fn program(binaries: &Binaries, name: &str) -> Command {
    Command::new(
        binaries
            .program(name)
            .unwrap_or_else(|| panic!("there is no {name}")),
    )
}

fn must_run(mut command: Command) {
    let done = command.output().unwrap();
    assert!(
        done.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// Dumps one database and restores it into another.
pub(super) fn copy(from: &Postgres, to: &Postgres) {
    copy_between(from, &from.url(), &to.url());
}

fn copy_between(server: &Postgres, from: &str, to: &str) {
    let file = std::env::temp_dir().join(format!("pgonce-dump-{}.sql", uuid::Uuid::new_v4()));
    let mut dump = program(server.binaries(), "pg_dump");
    // Without rights: the roles are those of the server.
    dump.args(["-x", "-d", from, "-f"]).arg(&file);
    must_run(dump);
    let mut restore = program(server.binaries(), "psql");
    restore
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", to, "-f"])
        .arg(&file);
    must_run(restore);
    std::fs::remove_file(file).unwrap();
}

pub(super) fn numbers(seen: &[Seen]) -> Vec<u32> {
    let mut numbers: Vec<u32> = seen.iter().map(|event| event.n.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[tokio::test]
async fn what_was_read_survives_a_crash_although_the_writer_commits_carelessly() {
    let (server, see) = private().await;
    install(server.url()).await.unwrap();
    see.run("create role careless login; alter role careless set synchronous_commit = off; select pgonce.grant_to('careless', 'app'); select pgonce.create_subscription('c')").await;
    let mut reader = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    let url = server.url().replace("postgres@", "careless@");
    let writer = Observer::connect(&url).await;
    // Nobody flushes in the background.
    let pid = see
        .number("select pid from pg_stat_activity where backend_type = 'walwriter'")
        .await;
    let walwriter = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(walwriter, Signal::STOP).unwrap();
    writer.run(&publish("s", 1)).await;
    assert_eq!(reader.read(1000).await.len(), 1);
    server.crash().await.unwrap();
    server.start_again().await.unwrap();
    let see = Observer::connect(&server.url()).await;
    assert_eq!(see.number("select count(*) from pgonce.outbox").await, 1);
}

/// A crash takes transaction ids back that were in nobody's durable record. A cursor that had seen
/// them would call the events of their next owner old.
#[tokio::test]
async fn a_place_never_sees_transaction_ids_that_a_crash_takes_back() {
    let (server, see) = private().await;
    install(server.url()).await.unwrap();
    see.run("create role careless login; alter role careless set synchronous_commit = off; select pgonce.grant_to('careless', 'app'); select pgonce.create_subscription('c', p_topics => '{orders}')").await;
    let mut before = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    let url = server.url().replace("postgres@", "careless@");
    let writer = Observer::connect(&url).await;
    let pid = see
        .number("select pid from pg_stat_activity where backend_type = 'walwriter'")
        .await;
    kill_process(
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(),
        Signal::STOP,
    )
    .unwrap();
    for _ in 0..20 {
        // Not for this subscription: it gets nothing, and its cursor moves.
        writer
            .run("select pgonce.publish('other', 'x', 's', '{}')")
            .await;
    }
    let cursor = before.held.clone();
    assert!(before.read(1000).await.is_empty());
    assert_ne!(before.held, cursor);
    server.crash().await.unwrap();
    server.start_again().await.unwrap();
    let see = Observer::connect(&server.url()).await;
    for n in 1..=10 {
        see.run(&publish("s", n)).await;
    }
    // The relay has lived on, with its cursor in its memory.
    let mut after = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    after.held = before.held;
    assert_eq!(after.numbers().await.len(), 10);
}

/// Whether the old server's transaction ids are ahead of the new one's or behind, a dump takes the
/// cursors along and nothing is skipped.
#[tokio::test]
async fn after_dump_and_restore_nothing_is_skipped_and_what_comes_again_has_its_old_id() {
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
        // It has read while somebody was writing, and keeps that.
        let open = Observer::connect(&old.url()).await;
        open.run(&format!("begin; {}", publish("late", 6))).await;
        let before = reader.read_all(1000).await;
        assert_eq!(numbers(&before), [1, 2, 3, 4, 5]);
        assert_eq!(reader.keep().await, 16);
        open.run("commit").await;
        on_old.run(&publish("s", 7)).await;
        copy(&old, &new);
        drop(old);

        // On the new server people write before the relay comes, and while it comes.
        on_new.run(&publish("s", 8)).await;
        let open = Observer::connect(&new.url()).await;
        open.run(&format!("begin; {}", publish("open", 9))).await;
        let mut reader = LogReader::claim(Observer::connect(&new.url()).await, "c", "r").await;
        assert_eq!(reader.held.len(), 16, "leases from elsewhere are void");
        assert!(
            reader.read_all(1000).await.is_empty(),
            "somebody may yet write below"
        );
        open.run("commit").await;
        assert!(reader.read(1000).await.is_empty(), "it notices");
        let mut after = reader.read_all(1000).await;
        for wanted in [6, 7, 8, 9] {
            assert!(
                numbers(&after).contains(&wanted),
                "{wanted} was skipped: {:?}",
                numbers(&after)
            );
        }
        for event in &before {
            let again = after.iter().find(|again| again.n == event.n);
            assert!(again.is_none_or(|again| again.id == event.id));
        }
        // From then on it is a log like any other.
        let unrelated = Observer::connect(&new.url()).await;
        unrelated
            .run("begin; update account set balance = 0 where id = 1")
            .await;
        for n in 10..=30 {
            on_new.run(&publish("s", n)).await;
            let seen = reader.read_all(1000).await;
            assert_eq!(numbers(&seen), [n]);
            after.extend(seen);
        }
        on_new.run(&burn(4000)).await;
        assert!(
            reader.read_all(1000).await.is_empty(),
            "old ids come up again and mean nothing"
        );
        let of_s: Vec<u32> = (after.iter().filter(|event| event.subject == "s"))
            .map(|event| event.n.parse().unwrap())
            .collect();
        assert!(of_s.is_sorted(), "{of_s:?}");
    }
}

#[tokio::test]
async fn after_dump_and_restore_only_what_was_in_flight_comes_again() {
    let ((old, on_old), (new, on_new)) = (private().await, private().await);
    install(old.url()).await.unwrap();
    on_old.run("select pgonce.create_subscription('c')").await;
    let mut reader = LogReader::claim(Observer::connect(&old.url()).await, "c", "r").await;
    for n in 1..=300 {
        on_old.run(&publish(&format!("s{}", n % 20), n)).await;
    }
    assert_eq!(reader.read_all(1000).await.len(), 300);
    assert_eq!(reader.keep().await, 16);
    for n in 301..=305 {
        on_old.run(&publish("s1", n)).await;
    }
    copy(&old, &new);
    drop(old);
    on_new.run(&publish("s1", 306)).await;
    let mut reader = LogReader::claim(Observer::connect(&new.url()).await, "c", "r").await;
    let after = reader.read_all(1000).await;
    assert_eq!(numbers(&after), (301..=306).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reader_that_finds_another_server_behind_its_address_has_to_claim() {
    let ((old, on_old), (new, on_new)) = (private().await, private().await);
    install(old.url()).await.unwrap();
    on_old.run("select pgonce.create_subscription('c')").await;
    let reader = LogReader::claim(Observer::connect(&old.url()).await, "c", "r").await;
    copy(&old, &new);
    let read = format!("select pgonce._read_lanes('c', {})", reader.held_sql());
    assert_eq!(on_old.code(&read).await, "");
    assert_eq!(on_new.code(&read).await, "P4012");
}

/// A dump of the same server, restored beside the database and then put in its place: same server, same epochs,
/// same leases, fewer events.
#[tokio::test]
async fn an_older_dump_swapped_in_under_a_living_relay_loses_nothing() {
    let (server, see) = private().await;
    see.run("create database shop").await;
    see.run("create database older").await;
    let shop = server.url_for("shop");
    install(shop.clone()).await.unwrap();
    let on_shop = Observer::connect(&shop).await;
    on_shop.run("select pgonce.create_subscription('c')").await;
    let mut relay = LogReader::claim(Observer::connect(&shop).await, "c", "r").await;
    for n in 1..=5 {
        on_shop.run(&publish("s", n)).await;
    }
    assert_eq!(relay.numbers().await.len(), 5);
    assert_eq!(relay.keep().await, 16);
    copy_between(&server, &shop, &server.url_for("older"));
    for n in 6..=30 {
        on_shop.run(&publish("s", n)).await;
    }
    on_shop.run("select pgonce._record_watermark(1)").await;
    assert_eq!(relay.numbers().await.len(), 25);
    relay.read(1000).await;
    assert_eq!(relay.keep().await, 16);
    see.run("select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = 'shop'")
        .await;
    see.run("alter database shop rename to lost").await;
    see.run("alter database older rename to shop").await;

    let on_shop = Observer::connect(&shop).await;
    // More than the relay has seen: its cursor is not beyond them, only of another life.
    for n in 31..=70 {
        on_shop.run(&publish("s", n)).await;
    }
    // It lives on, with its cursors in its memory: nothing that it says counts before it has claimed again.
    let held = relay.held_sql();
    let read = format!("select pgonce._read_lanes('c', {held})");
    assert_eq!(on_shop.code(&read).await, "P4012");
    let kept = format!("select count(*) from pgonce._advance_lanes('c', {held})");
    assert_eq!(on_shop.number(&kept).await, 0);
    let mut relay = LogReader::claim(Observer::connect(&shop).await, "c", "r").await;
    let numbers = numbers(&relay.read_all(1000).await);
    let expected: Vec<u32> = (31..=70).collect();
    assert!(numbers.ends_with(&expected), "{numbers:?}");
}

#[tokio::test]
async fn a_cursor_beyond_everything_that_was_published_is_re_based() {
    let (server, see) = private().await;
    install(server.url()).await.unwrap();
    see.run("select pgonce.create_subscription('c')").await;
    let mut relay = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    for n in 1..=3 {
        see.run(&publish("s", n)).await;
    }
    assert_eq!(relay.numbers().await.len(), 3);
    let beyond: Vec<_> = relay
        .held
        .iter()
        .map(|held| (held.0, held.1, "(99,1:1:,,)".to_owned()))
        .collect();
    let good = std::mem::replace(&mut relay.held, beyond);
    assert_eq!(relay.keep().await, 0, "refused");
    relay.held = good;
    // Put back by hand, or by a restore of some tables only.
    see.run("update pgonce.outbox_cursor set cursor = '(99,1:1:,,)'")
        .await;
    relay.claim_again().await;
    assert_eq!(
        relay.numbers().await,
        ["1", "2", "3"],
        "again rather than never"
    );
}

/// Writers who are at work have numbers below the last one: a cursor that is moved up to there passes them by.
#[tokio::test]
async fn a_cursor_beyond_everything_moves_no_other_and_passes_no_writer_by() {
    let (server, see) = private().await;
    install(server.url()).await.unwrap();
    see.run("select pgonce.create_subscription('c'); select pgonce.create_subscription('d')")
        .await;
    let mut relay = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    let open = Observer::connect(&server.url()).await;
    open.run(&format!("begin; {}", publish("open", 1))).await;
    see.run(&publish("s", 2)).await;
    assert_eq!(relay.numbers().await, ["2"]);
    assert_eq!(relay.keep().await, 16);
    see.run("update pgonce.outbox_cursor set cursor = '(99,1:1:,,)' where subscription = 'd'")
        .await;
    relay.claim_again().await;
    open.run("commit").await;
    assert_eq!(
        relay.numbers().await,
        ["1"],
        "once, and the other not again"
    );
    let mut other = LogReader::claim(Observer::connect(&server.url()).await, "d", "r").await;
    assert_eq!(other.numbers().await.len(), 2, "again rather than never");
}

/// It was connected before the database was restored, and lives on: what it marks is no end of the life before.
#[tokio::test]
async fn a_relay_that_has_not_claimed_since_a_restore_marks_nothing() {
    let (server, see) = private().await;
    install(server.url()).await.unwrap();
    see.run("select pgonce.create_subscription('c')").await;
    let mut relay = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    see.run("update pgonce.outbox_state set database_life = database_life + 1")
        .await;
    let open = Observer::connect(&server.url()).await;
    open.run(&format!("begin; {}", publish("open", 1))).await;
    see.run("select nextval('pgonce.outbox_seq') from generate_series(1, 1000)")
        .await;
    assert_eq!(relay.keep().await, 0);
    relay.claim_again().await;
    open.run("commit").await;
    assert!(relay.read(1000).await.is_empty(), "it notices");
    assert_eq!(relay.numbers().await, ["1"]);
}

#[tokio::test]
async fn after_dump_and_restore_only_what_was_not_marked_comes_again() {
    let ((old, on_old), (new, on_new)) = (private().await, private().await);
    install(old.url()).await.unwrap();
    on_old.run("select pgonce.create_subscription('c')").await;
    on_old.run("select pgonce.publish('t', 'x', 's' || i, jsonb_build_object('n', i)) from generate_series(1, 5000) i").await;
    let mut relay = LogReader::claim(Observer::connect(&old.url()).await, "c", "r").await;
    assert_eq!(relay.numbers().await.len(), 5000);
    assert_eq!(relay.keep().await, 16);
    copy(&old, &new);
    on_new
        .run("select pgonce.publish('t', 'x', 's', '{\"n\": 5001}')")
        .await;
    let mut relay = LogReader::claim(Observer::connect(&new.url()).await, "c", "r").await;
    let again = relay.numbers().await;
    assert!(again.contains(&"5001".to_owned()));
    assert!(again.len() <= 1001, "{} come again", again.len());
}

#[tokio::test]
async fn windows_go_on_past_the_end_of_the_32_bit_transaction_ids() {
    let (server, see) = private().await;
    install(server.url()).await.unwrap();
    see.run("select pgonce.create_subscription('c')").await;
    let mut reader = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    see.run(&publish("s", 1)).await;
    assert_eq!(reader.numbers().await, ["1"]);
    reader.keep().await;

    // A server whose next id is a thousand before the end. What is frozen has no age.
    see.run("vacuum freeze").await;
    server.stop().await.unwrap();
    let (folder, data) = (server.folder(), server.folder().join("data"));
    let owner = std::fs::metadata(folder).unwrap();
    let segment = data.join("pg_xact/0FFF");
    std::fs::write(&segment, vec![0; 256 * 1024]).unwrap();
    std::os::unix::fs::chown(&segment, Some(owner.uid()), Some(owner.gid())).unwrap();
    let mut reset = program(server.binaries(), "pg_resetwal");
    reset
        .args(["-f", "-u", "4294900000", "-x", "4294966296", "-D"])
        .arg(&data)
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        reset.uid(owner.uid()).gid(owner.gid());
    }
    must_run(reset);
    server.start_again().await.unwrap();

    let see = Observer::connect(&server.url()).await;
    let mut reader = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    let xid = "select pg_current_xact_id()::text::bigint";
    assert!((4_294_966_296..1 << 32).contains(&see.number(xid).await));
    let late = Observer::connect(&server.url()).await;
    late.run(&format!("begin; {}", publish("late", 2))).await;
    see.run(&publish("s", 3)).await;
    assert_eq!(reader.numbers().await, ["3"]);
    see.run(&burn(2000)).await;
    assert!(see.number(xid).await > 1 << 32, "past the end");
    see.run(&publish("s", 4)).await;
    assert_eq!(reader.numbers().await, ["4"]);
    reader.keep().await;
    late.run("commit").await;
    assert_eq!(
        reader.numbers().await,
        ["2"],
        "who began before the end and committed after it"
    );
    see.run(&publish("s", 5)).await;
    assert_eq!(reader.numbers().await, ["5"]);
}
