//! Imports, as an operator meets them, and killed on the way.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::fixture::{Fixture, Run};

const EXAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/customer-import"
);

async fn count(fixture: &Fixture, sql: &str) -> i64 {
    fixture.client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn the_example_does_what_its_page_says() {
    let fixture = Fixture::installed().await;
    let schema = std::fs::read_to_string(Path::new(EXAMPLE).join("schema.sql")).unwrap();
    fixture.sql(&schema).await;
    let folder = tempfile::tempdir().unwrap();
    let rejects = folder.path().join("rejects.csv");
    let run = |file: &str, more: &[&str]| {
        let file = format!("{EXAMPLE}/{file}");
        let args = [
            "import",
            &file,
            "--job",
            "customers",
            "--into",
            "customer",
            "--key",
            "email",
        ];
        fixture.run(&[&args, more].concat())
    };
    let dry = run(
        "customers.csv",
        &["--dry-run", "--rejects", rejects.to_str().unwrap()],
    );
    assert_eq!(dry.code, 13, "{dry:?}");
    assert!(
        std::fs::read_to_string(&rejects)
            .unwrap()
            .contains(",failed,")
    );
    assert_eq!(count(&fixture, "select count(*) from customer").await, 0);

    let readme = std::fs::read_to_string(Path::new(EXAMPLE).join("README.md")).unwrap();
    let expected: Vec<_> = readme
        .lines()
        .filter(|line| line.starts_with("Imported "))
        .collect();
    let first = run("customers.csv", &["--rejects", rejects.to_str().unwrap()]);
    let again = run("customers.csv", &[]);
    let fixed = run("fixed.csv", &[]);
    for (run, (code, words)) in [first, again, fixed]
        .iter()
        .zip([13, 13, 0].into_iter().zip(expected))
    {
        assert_eq!((run.code, run.out.trim_end()), (code, words), "{run:?}");
    }
    assert_eq!(
        std::fs::read_to_string(&rejects).unwrap(),
        "row,line,status,key,column,code,reason\n\
         3,4,failed,\"[\"\"cy@example.org\"\"]\",born,22008,\"date/time field value out of range: \"\"1928-04-31\"\"\"\n\
         4,5,skipped,\"[\"\"ada@example.org\"\"]\",,changed,a row with this key is there with other content\n"
    );
    assert_eq!(count(&fixture, "select count(*) from customer").await, 4);

    let list = fixture.json(&["import", "list"]);
    assert_eq!(
        (&list[0]["state"], &list[0]["number"]),
        (&"done".into(), &2.into())
    );
    let shown = fixture.json(&["import", "show", "customers", "--number", "1"]);
    assert_eq!(shown["attention"][0]["field"], "born");
    let row = fixture.json(&["import", "show", "customers", "--number", "1", "--row", "3"]);
    assert_eq!(row["status"], "failed");
    assert_eq!(fixture.run(&["import", "show", "nothing"]).code, 7);
    assert_eq!(fixture.run(&["import", "cancel", "customers"]).code, 7);
    assert_eq!(run("customers.csv", &["--delimiter", "ab"]).code, 2);
    let unknown = fixture.run(&["import", "nothing.csv", "--job", "j", "--into", "customer"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
}

#[tokio::test]
async fn resume_and_rejects_name_the_import_that_is_meant() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("create table item (id bigint primary key, name text not null)")
        .await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (one, two, rejects) = (path("one.csv"), path("two.csv"), path("rejects.csv"));
    let good = "id,name\n1,a\nx,b\n3,c\n";
    std::fs::write(&one, good).unwrap();
    std::fs::write(&two, "id,name\n4,d\ny,e\n").unwrap();
    let run = |file: &str, more: &[&str]| {
        let args = ["import", file, "--job", "items", "--into", "item"];
        fixture.run(&[&args, more].concat())
    };
    let stopped = run(
        &one,
        &[
            "--max-failed",
            "0",
            "--max-rows",
            "1",
            "--rejects",
            &rejects,
        ],
    );
    assert!(stopped.err.contains("P4083"), "{stopped:?}");
    assert_eq!(run(&two, &[]).code, 13);
    // The last one is done: it is the first that is gone on with, and whose rows are listed.
    std::fs::write(&one, "id,name\n1,a\nx,b\n5,other\n").unwrap();
    let other = fixture.run(&["import", "resume", "items"]);
    assert!(other.err.contains("P4098"), "{other:?}");
    std::fs::write(&one, good).unwrap();
    let resumed = fixture.run(&["import", "resume", "items", "--rejects", &rejects]);
    assert_eq!(resumed.code, 13, "{resumed:?}");
    let listed = std::fs::read_to_string(&rejects).unwrap();
    assert!(listed.contains("2,3,failed,\"[\"\"x\"\"]\""), "{listed}");
    assert_eq!(count(&fixture, "select count(*) from item").await, 3);
    assert_eq!(
        count(&fixture, "select max(number)::bigint from pgonce.import").await,
        2
    );
    let again = fixture.run(&[
        "import",
        "resume",
        "items",
        "--number",
        "1",
        "--rejects",
        &rejects,
    ]);
    assert!(again.out.contains("Imported before"), "{again:?}");
    assert_eq!(std::fs::read_to_string(&rejects).unwrap(), listed);
}

/// How many rows, and how often the import is killed; `make import-test` says more.
fn size() -> (u64, u32) {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let rows = number("PGONCE_IMPORT_ROWS").unwrap_or(20_000);
    (rows, if rows > 1_000_000 { 20 } else { 5 })
}

/// Every thousandth row is bad.
fn write_rows(path: &Path, rows: u64) {
    let mut out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    writeln!(out, "id,name,note,amount").unwrap();
    for n in 0..rows {
        let amount = if n % 1000 == 999 {
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

/// The most memory that a process had, in KiB.
#[cfg(target_os = "linux")]
fn peak_of(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn killed_again_and_again_an_import_does_every_row_once_in_bounded_memory() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("create table load (id bigint primary key, name text not null, note text, amount bigint)")
        .await;
    let (rows, kills) = size();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("load.csv");
    write_rows(&file, rows);
    let file = file.to_str().unwrap();
    let chunk = (rows / 50).clamp(100, 50_000).to_string();
    let failed = (rows / 1000).to_string();
    let begin = [
        "import",
        file,
        "--job",
        "load",
        "--into",
        "load",
        "--max-rows",
        &chunk,
        "--max-failed",
        &failed,
        "--quiet",
    ];
    let resume = [
        "import",
        "resume",
        "load",
        "--max-rows",
        &chunk,
        "--max-failed",
        &failed,
        "--quiet",
    ];
    let mut random = StdRng::seed_from_u64(7);
    let mut peak = 0;
    let mut killed = 0;
    // By signal, when so many more rows have their result; and at each point of the protocol.
    for kill in 0..kills {
        let mut child = fixture
            .command(if kill % 2 == 0 { &begin } else { &resume })
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let done = "select coalesce(max(row_count), 0) from pgonce.import";
        let wanted = (count(&fixture, done).await
            + i64::try_from(rows).unwrap() / i64::from(kills + 1))
        .min(i64::try_from(rows).unwrap() - random.random_range(1..100));
        while count(&fixture, done).await < wanted && child.try_wait().unwrap().is_none() {
            peak = peak.max(peak_of(child.id()).unwrap_or(0));
        }
        child.kill().unwrap();
        killed += u32::from(child.wait().unwrap().code().is_none());
    }
    assert!(
        killed >= kills / 2,
        "{killed} of {kills} were alive to be killed"
    );
    for point in [
        "import.begun",
        "import.held@2",
        "import.written@2",
        "import.recorded@2",
    ] {
        let (name, nth) = point.split_once('@').unwrap_or((point, "1"));
        let mut command = fixture.command(&resume);
        command.env("PGONCE_FAULTS", format!("{name}=kill@{nth}"));
        let _ = command.output().unwrap();
    }
    let mut child = fixture
        .command(&resume)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(peak_of(child.id()).unwrap_or(0));
        // Asks the database, which takes its time.
        count(&fixture, "select count(*) from pgonce.import_chunk").await;
    }
    let last = Run::of(child.wait_with_output().unwrap());
    let bad = rows / 1000;
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
    assert!(peak > 0 && peak < 96 * 1024, "{peak} KiB");
    let again = fixture.run(&begin);
    assert!(again.out.starts_with("Imported before"), "{again:?}");
}
