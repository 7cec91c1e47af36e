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
