//! How long pages of the console and lists of the program take with ten million intents and ten million events.

#![allow(clippy::print_stdout, reason = "what was measured")]

use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use crate::plans::{LISTS, fill, pages};
use crate::serve::Serving;

/// What each may take, at the median.
const MOST: Duration = Duration::from_millis(300);

const ROUNDS: usize = 7;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test]
#[ignore = "fills ten million rows: `make lists-test`"]
async fn every_page_and_every_list_answers_soon_however_many_rows_there_are() {
    let rows = std::env::var("PGONCE_LISTS_ROWS").ok();
    let rows = rows.map_or(10_000_000, |rows| rows.parse().unwrap());
    let fixture = Fixture::installed().await;
    let began = Instant::now();
    fill(&fixture, rows, rows / 10).await;
    println!(
        "{rows} intents and events, {} of each other thing, filled in {:?}",
        rows / 10,
        began.elapsed()
    );
    let mut taken = Vec::new();
    let mut failed = Vec::new();
    let serving = Serving::of(&fixture, &["--roles", "console"], "");
    for page in pages() {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let answer = serving.get(page, "").await;
            let status = answer.status();
            let body = answer.text().await.unwrap();
            times.push(began.elapsed());
            // The others are timed all the same.
            if status != 200 {
                failed.push(format!(
                    "{page}: {status} after {:?}: {body}",
                    began.elapsed()
                ));
            }
        }
        taken.push((format!("console {page}"), median(times)));
    }
    for list in LISTS {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            fixture.ok(list);
            times.push(began.elapsed());
        }
        taken.push((format!("pgonce {}", list.join(" ")), median(times)));
    }
    println!("| page or list | median |\n|---|---|");
    for (what, time) in &taken {
        println!("| `{what}` | {} ms |", time.as_millis());
    }
    assert!(failed.is_empty(), "{failed:?}");
    taken.retain(|(_, time)| *time > MOST);
    assert!(taken.is_empty(), "slower than {MOST:?}: {taken:?}");
}
