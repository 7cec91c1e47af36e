//! A crash, a lost connection or a second process at any point: every row once.

use std::time::Duration;

use pgonce::faults::{self, Action, IMPORT_POINTS};

use super::*;

fn many(rows: usize) -> Vec<u8> {
    let mut text = String::from("email,name,age\n");
    for n in 0..rows {
        // Every seventh is bad, and every tenth comes twice.
        let age = if n % 7 == 3 { "x" } else { "1" };
        text += &format!("c{}@x,Cy {n},{age}\n", if n % 10 == 9 { n - 1 } else { n });
    }
    text.into_bytes()
}

async fn check(world: &Place, report: &Report, what: &str) {
    let expected: std::collections::BTreeSet<_> = (0..200)
        .filter(|n| n % 7 != 3)
        .map(|n| if n % 10 == 9 { n - 1 } else { n })
        .collect();
    let failed = (0..200).filter(|n| n % 7 == 3).count() as u64;
    let applied = expected.len() as u64;
    assert_eq!(
        (report.rows.rows, report.rows.applied, report.rows.failed),
        (200, applied, failed),
        "{what}"
    );
    let stored = world
        .see
        .number("select count(*) from public.customer")
        .await;
    assert_eq!(u64::try_from(stored).unwrap(), applied, "{what}");
    let results = "select count(*) from pgonce.import_chunk c where c.first_row <> 1 and not exists (select from \
        pgonce.import_chunk b where (b.tenant, b.job, b.number) = (c.tenant, c.job, c.number) and b.last_row = c.first_row - 1)";
    assert_eq!(
        world.see.number(results).await,
        0,
        "{what}: a gap between chunks"
    );
    let hashes = "select count(*) from pgonce.import_chunk where length(hashes) <> 8 * (last_row - first_row + 1)";
    assert_eq!(world.see.number(hashes).await, 0, "{what}");
}

#[tokio::test]
async fn a_connection_that_breaks_anywhere_costs_no_row_and_doubles_none() {
    let (world, _turn) = place().await;
    for point in IMPORT_POINTS {
        for nth in [1, 3] {
            world.see.run("truncate public.customer, pgonce.import, pgonce.import_chunk, pgonce.import_row").await;
            faults::disarm_all();
            faults::arm(point, nth, Action::Error);
            let to = customers().max_rows(25);
            let mut done = import(&world.once, &to, many(200)).await;
            if done.is_err() {
                done = import(&world.once, &to, many(200)).await;
            }
            check(&world, &done.unwrap(), &format!("{point} {nth}")).await;
        }
    }
    faults::disarm_all();
}

#[tokio::test]
async fn a_second_process_waits_takes_over_the_dead_and_fences_the_slow() {
    let (world, _turn) = place().await;
    let to = customers().max_rows(25).lease(Duration::from_secs(600));
    let other = world.another("other", 2, |b| b);
    let paused = faults::pause("import.recorded");
    let slow = async { import(&world.once, &to, many(200)).await };
    let second = async {
        paused.reached().await;
        let busy = import(&other, &to, many(200)).await.unwrap_err();
        assert_eq!(busy.code(), "P4029", "{busy}");
        // Its lease is over.
        world
            .see
            .run("update pgonce.import set leased_until = '-infinity'")
            .await;
        let report = import(&other, &to, many(200)).await.unwrap();
        check(&world, &report, "taken over").await;
        paused.resume();
    };
    let (slow, ()) = tokio::join!(slow, second);
    assert_eq!(slow.unwrap_err().code(), "P4012");
    assert_eq!(
        world.see.number("select count(*) from pgonce.import").await,
        1
    );
}

#[tokio::test]
async fn one_process_at_a_time_imports_a_file_whatever_its_job_is_called() {
    let (world, _turn) = place().await;
    let other = world.another("other", 2, |b| b);
    let [first, second] = ["first", "second"].map(|job| {
        let to = Import::into_table(job, "public.customer").key(["email"]);
        to.max_rows(25).lease(Duration::from_secs(600))
    });
    let (folder, _) = file("a.csv", &many(200));
    let input = || Input::File(folder.path().join("a.csv"));
    let paused = faults::pause("import.recorded");
    let slow = async { world.once.import(&first, input(), |_| ()).await };
    let meanwhile = async {
        paused.reached().await;
        let busy = other.import(&second, input(), |_| ()).await.unwrap_err();
        assert_eq!(busy.code(), "P4029", "{busy}");
        assert!(
            busy.to_string().contains("this file for job \"first\""),
            "{busy}"
        );
        let jobs = "select string_agg(job, ' ') from pgonce.import";
        assert_eq!(world.see.text(jobs).await, "first");
        // Another tenant's file of the same content is another file.
        let theirs = second.clone().tenant("acme");
        let report = other.import(&theirs, input(), |_| ()).await.unwrap();
        assert!(report.new);
        // The lease of the first is over: the file is the second's now.
        world
            .see
            .run("update pgonce.import set leased_until = '-infinity' where job = 'first'")
            .await;
        let report = other.import(&second, input(), |_| ()).await.unwrap();
        assert!(report.new);
        paused.resume();
    };
    let (slow, ()) = tokio::join!(slow, meanwhile);
    assert_eq!(slow.unwrap_err().code(), "P4012");
    // It goes on where it was, and finds its other rows there.
    let report = world.once.import(&first, input(), |_| ()).await.unwrap();
    assert_eq!((report.rows.rows, report.new), (200, true));
    let twice =
        "select (sum(applied) - (select count(*) from public.customer))::bigint from pgonce.import";
    assert_eq!(world.see.number(twice).await, 0);
}

#[tokio::test]
async fn a_cancelled_import_stops_and_goes_on_when_it_is_started_again() {
    let (world, _turn) = place().await;
    let to = customers().max_rows(25);
    let paused = faults::pause("import.recorded");
    let running = async { import(&world.once, &to, many(200)).await };
    let cancel = async {
        paused.reached().await;
        world
            .see
            .run("select pgonce.import_cancel('customers')")
            .await;
        paused.resume();
    };
    let (stopped, ()) = tokio::join!(running, cancel);
    assert_eq!(stopped.unwrap_err().code(), "P4082");
    assert_eq!(
        world.see.text("select state from pgonce.imports").await,
        "cancelled"
    );
    // Another stream is not the one that was begun.
    let other = import(&world.once, &to, many(201)[20..].to_vec())
        .await
        .unwrap_err();
    assert!(["P4095", "P4098"].contains(&other.code()), "{other}");
    let mut text = many(200);
    text[17] = b'z';
    let other = import(&world.once, &to, text).await.unwrap_err();
    assert_eq!(other.code(), "P4098", "{other}");
    let report = import(&world.once, &to, many(200)).await.unwrap();
    check(&world, &report, "resumed").await;
}

/// A trigger on `pgonce.import` that fails its first `times` updates as `code`.
fn trouble(times: u32, code: &str) -> String {
    format!(
        "create sequence public.troubles; create function public.trouble() returns trigger language plpgsql as \
         'begin if nextval(''public.troubles'') <= {times} then raise exception ''no'' using errcode = ''{code}''; end if; \
         return new; end'; \
         create trigger trouble before update on pgonce.import for each row execute function public.trouble()"
    )
}

#[tokio::test]
async fn a_transient_error_does_not_revive_a_cancelled_import() {
    let (world, _turn) = place().await;
    let to = customers().max_rows(25);
    let paused = faults::pause("import.recorded");
    let running = async { import(&world.once, &to, many(200)).await };
    let cancel = async {
        paused.reached().await;
        world
            .see
            .run("select pgonce.import_cancel('customers')")
            .await;
        world.see.run(&trouble(1, "55P03")).await;
        paused.resume();
    };
    let (stopped, ()) = tokio::join!(running, cancel);
    assert_eq!(stopped.unwrap_err().code(), "P4082");
    let state = "select state || (row_count < 200) from pgonce.import";
    assert_eq!(world.see.text(state).await, "cancelledtrue");
}

#[tokio::test]
async fn what_a_lost_reply_committed_is_known_before_anything_else_is_written() {
    let (world, _turn) = place().await;
    let once = "for each row when (old.row_count = 25 and new.row_count = 25)";
    let trouble = trouble(1, "53300").replace("for each row", once);
    world.see.run(&trouble).await;
    faults::arm("import.recorded", 1, Action::Error);
    let report = import(&world.once, &customers().max_rows(25), many(200)).await;
    faults::disarm_all();
    check(&world, &report.unwrap(), "went on").await;
    let looks = "select last_value from public.troubles";
    assert!(world.see.number(looks).await > 1, "no look failed");
}

#[tokio::test]
async fn a_trigger_that_refuses_every_statement_ends_the_import() {
    let (world, _turn) = place().await;
    world
        .see
        .run(
            "create function public.never() returns trigger language plpgsql as \
             'begin raise exception ''closed'' using errcode = ''P0001''; end'; \
             create trigger never before insert on public.customer for each statement execute function public.never()",
        )
        .await;
    let error = import(&world.once, &customers(), many(200)).await;
    let error = error.unwrap_err();
    assert_eq!(error.code(), "P0001", "{error}");
    assert!(error.to_string().contains("every row"), "{error}");
}

#[tokio::test]
async fn a_transaction_that_is_cancelled_for_its_time_is_made_smaller() {
    let (world, _turn) = place().await;
    world
        .see
        .run(
            "create function public.slow() returns trigger language plpgsql as \
             'begin if (select count(*) from fresh) > 20 then raise exception ''too long'' using errcode = ''57014''; end if; \
             return null; end'; create trigger slow after insert on public.customer referencing new table as fresh \
             for each statement execute function public.slow()",
        )
        .await;
    let report = import(&world.once, &customers(), many(200)).await.unwrap();
    check(&world, &report, "made smaller").await;
}

#[tokio::test]
async fn a_process_in_a_long_transaction_is_not_replaced_although_its_lease_is_over() {
    let (world, _turn) = place().await;
    let to = customers().max_rows(25).lease(Duration::from_millis(1));
    let other = world.another("other", 2, |b| b);
    let paused = faults::pause("import.written");
    let long = async { import(&world.once, &to, many(200)).await };
    let second = async {
        paused.reached().await;
        world
            .see
            .wait_until("select leased_until <= pgonce.now() from pgonce.import")
            .await;
        let busy = import(&other, &to, many(200)).await.unwrap_err();
        assert_eq!(busy.code(), "P4029", "{busy}");
        paused.resume();
    };
    let (long, ()) = tokio::join!(long, second);
    check(&world, &long.unwrap(), "alone").await;
}

/// A stream that gives its second half when it is allowed to.
struct Slow(std::io::Cursor<Vec<u8>>, std::sync::mpsc::Receiver<()>);

impl std::io::Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let (at, half) = (self.0.position(), self.0.get_ref().len() as u64 / 2);
        let most = match at < half {
            true => usize::try_from(half - at).unwrap(),
            false => usize::MAX,
        };
        if at == half {
            let _ = self.1.recv();
        }
        let most = most.min(buffer.len());
        self.0.read(&mut buffer[..most])
    }
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_while_the_input_is_slow_is_tried_again() {
    let (world, _turn) = place().await;
    let to = customers().lease(Duration::from_millis(300));
    let (go_on, wait) = std::sync::mpsc::channel();
    let input = Input::Stream(Box::new(Slow(std::io::Cursor::new(many(200)), wait)));
    let running = async { world.once.import(&to, input, |_| ()).await };
    let meanwhile = async {
        world
            .see
            .wait_until("select count(*) = 1 from pgonce.import")
            .await;
        world.see.run(&trouble(2, "53300")).await;
        world
            .see
            .wait_until("select last_value > 3 from public.troubles")
            .await;
        go_on.send(()).unwrap();
    };
    let (report, ()) = tokio::join!(running, meanwhile);
    check(&world, &report.unwrap(), "went on").await;
}

#[tokio::test]
async fn a_stream_without_keys_is_not_passed_to_a_function() {
    let (world, _turn) = place().await;
    world
        .see
        .run("create function public.pay(r jsonb) returns void language sql as ''")
        .await;
    let to = Import::call("payments", "public.pay");
    for to in [to.clone(), to.dry_run(true)] {
        let error = import(&world.once, &to, "a\n1\n").await.unwrap_err();
        assert_eq!(error.code(), "P4097", "{error}");
    }
    // A file is known by its hash.
    let to = Import::call("payments", "public.pay");
    for new in [true, false] {
        let (_folder, input) = file("a.csv", b"a\n1\n");
        let report = world.once.import(&to, input, |_| ()).await.unwrap();
        assert_eq!(report.new, new);
    }
}

/// Rows without a key are known by their place in one file: the file that was fixed is another one.
#[tokio::test]
async fn rows_without_a_key_are_not_passed_again_from_the_file_that_was_fixed() {
    let (world, _turn) = place().await;
    world
        .see
        .run("create table public.paid (amount text); grant all on public.paid to public; \
              create function public.pay(r jsonb) returns void language sql as 'insert into public.paid values (r ->> ''a'')'")
        .await;
    let run = async |to: Import, text: &[u8]| {
        let (_folder, input) = file("a.csv", text);
        let report = world.once.import(&to, input, |_| ()).await;
        report.map_err(|error| error.code().to_owned())
    };
    let to = Import::call("payments", "public.pay").max_rows(1);
    let (broken, fixed) = (b"a\n1\n2\"x\n", b"a\n1\n2\n");
    assert_eq!(run(to.clone(), broken).await.unwrap_err(), "P4090");
    assert_eq!(run(to.clone(), fixed).await.unwrap_err(), "P4098");
    world
        .see
        .run("select pgonce.import_cancel('payments')")
        .await;
    assert_eq!(run(to.clone(), fixed).await.unwrap_err(), "P4098");
    // The rest by itself; and what is done stands in nobody's way.
    for rest in [b"a\n2\n", b"a\n3\n"] {
        let to = Import::call("the rest", "public.pay");
        assert_eq!(counts(&run(to, rest).await.unwrap()), [1, 1, 0, 0, 0]);
    }
    let paid = "select string_agg(amount, ' ' order by amount) from public.paid";
    assert_eq!(world.see.text(paid).await, "1 2 3");
}
