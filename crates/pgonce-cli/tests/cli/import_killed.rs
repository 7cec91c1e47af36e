//! An import that is killed again and again: every row once, in bounded memory, nearly as fast as COPY.
#![allow(clippy::print_stdout, reason = "what a long run measured")]

use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt as _;
use pgonce_testkit::wait_until;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::fixture::{Fixture, Run};
use crate::import::count;

/// Far above what a run of ten million rows needs.
const LONG: Duration = Duration::from_secs(3600);

/// Rows with a result, of all runs of the import that is killed.
const DONE: &str = "select coalesce(max(row_count), 0) from pgonce.import where job = 'load'";

/// How many rows, and how often the import is killed; `make import-test` has more of both.
fn size() -> (u64, usize) {
    let rows = std::env::var("PGONCE_IMPORT_ROWS").ok();
    let rows = rows.and_then(|rows| rows.parse().ok()).unwrap_or(20_000);
    (rows, if is_long(rows) { 20 } else { 9 })
}

/// Whether speed is measured: nothing else runs then, and the program is not a debug build.
fn is_long(rows: u64) -> bool {
    rows > 1_000_000
}

/// How a run of the import ends.
#[derive(Debug, Clone, Copy)]
enum Strike {
    /// By SIGKILL, after so many rows more.
    Signal,
    /// By itself, when it gets to this point of the protocol.
    Point(&'static str),
}

/// Signals and points in turn; the last is when every row has its result and the import is not done yet.
fn strikes(kills: usize) -> Vec<Strike> {
    let points = [
        "import.held",
        "import.written",
        "import.recorded",
        "import.begun",
    ];
    let strike = |kill: usize| {
        if kill == kills - 1 {
            Strike::Point("import.before_done")
        } else if kill.is_multiple_of(2) {
            Strike::Signal
        } else {
            Strike::Point(points[kill / 2 % points.len()])
        }
    };
    (0..kills).map(strike).collect()
}

/// Where `some_bad`, every thousandth row is.
fn write_rows(path: &Path, rows: u64, some_bad: bool) {
    let mut out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    writeln!(out, "id,name,note,amount").unwrap();
    for n in 0..rows {
        let amount = if some_bad && n % 1000 == 999 {
            "bad".to_owned()
        } else {
            n.to_string()
        };
        writeln!(
            out,
            "{n},name of {n},\"a note, quoted, of some length, {n:030}\",{amount}"
        )
        .unwrap();
    }
    out.flush().unwrap();
}

/// Plain COPY of a file into the empty table.
async fn copy(fixture: &Fixture, path: &Path) -> Duration {
    fixture.sql("truncate load; checkpoint").await;
    let begun = Instant::now();
    let mut file = std::fs::File::open(path).unwrap();
    let statement = "copy load (id, name, note, amount) from stdin (format csv, header)";
    let sink = fixture.client.copy_in::<_, Bytes>(statement).await.unwrap();
    let mut sink = std::pin::pin!(sink);
    let mut piece = vec![0; 256 * 1024];
    loop {
        let n = file.read(&mut piece).unwrap();
        if n == 0 {
            break;
        }
        sink.send(Bytes::copy_from_slice(&piece[..n]))
            .await
            .unwrap();
    }
    sink.finish().await.unwrap();
    begun.elapsed()
}

/// The most memory that a process had, in KiB.
fn peak_of(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Runs of the program, and the most memory that any had, in KiB.
struct Runs<'a> {
    fixture: &'a Fixture,
    peak: u64,
}

impl Runs<'_> {
    fn start(&self, args: &[&str], faults: &str) -> Child {
        let mut command = self.fixture.command(args);
        command
            .env("PGONCE_FAULTS", faults)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn look(&mut self, child: &Child) {
        self.peak = self.peak.max(peak_of(child.id()).unwrap_or(0));
    }

    /// Until it ends by itself.
    async fn ended(&mut self, child: &mut Child) {
        let ended = wait_until("the import to end", LONG, || {
            self.look(child);
            let ended = child.try_wait().unwrap().is_some();
            async move { ended }
        });
        ended.await.unwrap();
    }

    /// Runs the program to its end.
    async fn whole(&mut self, args: &[&str]) -> (Run, Duration) {
        let begun = Instant::now();
        let mut child = self.start(args, "");
        self.ended(&mut child).await;
        let taken = begun.elapsed();
        (Run::of(child.wait_with_output().unwrap()), taken)
    }

    /// Runs the program until it is killed, and until the server has noticed.
    async fn killed(&mut self, args: &[&str], strike: Strike, rows: i64, random: &mut StdRng) {
        let fixture = self.fixture;
        let (child, signal) = match strike {
            Strike::Signal => {
                let wanted = count(fixture, DONE).await + rows - random.random_range(1..100);
                let mut child = self.start(args, "");
                while count(fixture, DONE).await < wanted && child.try_wait().unwrap().is_none() {
                    self.look(&child);
                }
                child.kill().unwrap();
                (child, 9)
            }
            Strike::Point(name) => {
                let nth = match name {
                    "import.begun" | "import.before_done" => 1,
                    _ => random.random_range(1..=3),
                };
                let mut child = self.start(args, &format!("{name}=kill@{nth}"));
                self.ended(&mut child).await;
                (child, 6)
            }
        };
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            output.status.signal(),
            Some(signal),
            "{strike:?} did not kill it (points need the feature pgonce/faults: `make import-test`): {output:?}"
        );
        let others = "select count(*) from pg_stat_activity where datname = current_database() \
                      and pid <> pg_backend_pid() and backend_type = 'client backend'";
        wait_until("its sessions to end", LONG, || async move {
            count(fixture, others).await == 0
        })
        .await
        .unwrap();
    }
}

/// How fast COPY and the import load the same file into the same table, in rows a second.
async fn speeds(runs: &mut Runs<'_>, path: &Path, rows: u64) -> (f64, f64) {
    write_rows(path, rows, false);
    let fixture = runs.fixture;
    let before = copy(fixture, path).await;
    fixture.sql("truncate load; checkpoint").await;
    let file = path.to_str().unwrap();
    let args = [
        "import", file, "--job", "measured", "--into", "load", "--quiet",
    ];
    let (run, taken) = runs.whole(&args).await;
    assert_eq!(run.code, 0, "{run:?}");
    let stored = count(fixture, "select count(*) from load where amount = id").await;
    assert_eq!(u64::try_from(stored).unwrap(), rows);
    // The faster of one before and one after: the server gets neither slower nor faster unnoticed.
    let plain = before.min(copy(fixture, path).await);
    fixture.sql("truncate load; checkpoint").await;
    let rate = |taken: Duration| rows as f64 / taken.as_secs_f64();
    (rate(plain), rate(taken))
}

#[tokio::test]
async fn killed_again_and_again_an_import_does_every_row_once_in_bounded_memory() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("create table load (id bigint primary key, name text not null, note text, amount bigint)")
        .await;
    let (rows, kills) = size();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("load.csv");
    let mut runs = Runs {
        fixture: &fixture,
        peak: 0,
    };
    let (plain, undisturbed) = speeds(&mut runs, &path, rows).await;

    if !is_long(rows) {
        // A tenth of a second for each chunk: what is to be killed must not be over before anybody looks.
        fixture
            .sql(
                "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.1); return null; end $$; \
                 create trigger slow before insert on load for each statement execute function slow()",
            )
            .await;
    }
    write_rows(&path, rows, true);
    let bytes = std::fs::metadata(&path).unwrap().len();
    let file = path.to_str().unwrap();
    let (chunk, bad) = ((rows / 100).clamp(100, 50_000).to_string(), rows / 1000);
    let allowed = bad.to_string();
    let how = ["--max-rows", &chunk, "--max-failed", &allowed, "--quiet"];
    let begin = [
        &["import", file, "--job", "load", "--into", "load"],
        &how[..],
    ]
    .concat();
    let resume = [&["import", "resume", "load"], &how[..]].concat();
    let strikes = strikes(kills);
    let signals = strikes.iter().filter(|s| matches!(s, Strike::Signal));
    let signals = signals.count();
    // Signals share two thirds of the rows, so that a process is far from its end when it is killed.
    let portion = i64::try_from(rows).unwrap() * 2 / 3 / i64::try_from(signals).unwrap();
    let mut random = StdRng::seed_from_u64(7);
    let begun = Instant::now();
    for (kill, strike) in strikes.iter().enumerate() {
        let args = if kill % 3 == 0 { &begin } else { &resume };
        runs.killed(args, *strike, portion, &mut random).await;
    }
    let (last, _) = runs.whole(&resume).await;
    let taken = begun.elapsed();
    assert_eq!(last.code, if bad > 0 { 13 } else { 0 }, "{last:?}");
    let expected = format!(
        "{rows} rows: {} applied, 0 skipped (0 of them changed), {bad} failed",
        rows - bad
    );
    assert!(last.out.contains(&expected), "{last:?}");
    let stored = count(
        &fixture,
        "select count(*) from load where amount = id and note like '%' || id",
    )
    .await;
    assert_eq!(u64::try_from(stored).unwrap(), rows - bad);
    let listed = count(
        &fixture,
        "select count(*) from pgonce.import_row where status = 'failed' and field = 'amount'",
    )
    .await;
    assert_eq!(u64::try_from(listed).unwrap(), bad);
    let again = fixture.run(&begin);
    assert!(again.out.starts_with("Imported before"), "{again:?}");

    let (ratio, peak) = (undisturbed / plain, runs.peak);
    println!(
        "{rows} rows, {} MB: killed {kills} times, {signals} of them by signal, and every row has one result",
        bytes / 1_000_000
    );
    println!(
        "peak memory {:.1} MiB, at most 96 are allowed",
        peak as f64 / 1024.0
    );
    println!(
        "plain COPY {plain:.0} rows a second; import {undisturbed:.0}, {ratio:.2} of COPY, at least 0.50 are wanted; \
         with kills, restarts and bad rows {:.0}",
        rows as f64 / taken.as_secs_f64()
    );
    assert!(peak > 0 && peak < 96 * 1024, "{peak} KiB");
    assert!(!is_long(rows) || ratio >= 0.5, "{ratio:.2} of COPY");
}
