//! Imports, as an operator meets them.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use pgonce_testkit::wait_until;

use crate::fixture::{Fixture, Run};

const EXAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/customer-import"
);

pub(crate) async fn count(fixture: &Fixture, sql: &str) -> i64 {
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
async fn the_file_of_rejects_takes_the_place_of_no_other_file() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("create table item (id bigint primary key, name text not null)")
        .await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // What a file of rejects was called until it was whole.
    let (input, rejects) = (path("items.part"), path("items.csv"));
    let rows = "id,name\n1,a\nx,b\n";
    std::fs::write(&input, rows).unwrap();
    let run = |rejects: &str| {
        let args = ["import", &input, "--job", "items", "--into", "item"];
        let more = ["--file-format", "csv", "--rejects", rejects];
        fixture.run(&[&args[..], &more].concat())
    };
    assert_eq!(run(&input).code, 2);
    assert_eq!(count(&fixture, "select count(*) from item").await, 0);
    let done = run(&rejects);
    assert_eq!(done.code, 13, "{done:?}");
    assert_eq!(std::fs::read_to_string(&input).unwrap(), rows);
    assert!(std::fs::read_to_string(&rejects).unwrap().contains("x"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
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

#[tokio::test]
async fn of_two_processes_that_import_one_file_at_once_under_two_names_one_runs() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("create table item (id bigint primary key, name text not null)")
        .await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("items.csv");
    std::fs::write(&path, "id,name\n1,a\n2,b\n3,c\n").unwrap();
    let file = path.to_str().unwrap();
    // Whichever begins cannot end before the other has begun too.
    fixture.sql("begin; lock table item").await;
    let jobs = ["one", "two"];
    let mut children = jobs.map(|job| {
        fixture
            .command(&["import", file, "--job", job, "--into", "item"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let mut ended = None;
    wait_until("one of them to end", Duration::from_secs(60), || {
        ended = children
            .iter_mut()
            .position(|child| child.try_wait().unwrap().is_some());
        let is_over = ended.is_some();
        async move { is_over }
    })
    .await
    .unwrap();
    fixture.sql("rollback").await;
    let refused = ended.unwrap();
    let runs = children.map(|child| Run::of(child.wait_with_output().unwrap()));
    assert_eq!(runs[refused].code, 1, "{runs:?}");
    let expected = format!("imports this file for job \"{}\"", jobs[1 - refused]);
    assert!(
        runs[refused].err.contains(&expected) && runs[refused].err.contains("P4029"),
        "{runs:?}"
    );
    let ran = &runs[1 - refused];
    assert_eq!(ran.code, 0, "{runs:?}");
    assert!(ran.out.contains("3 rows: 3 applied"), "{ran:?}");
    assert_eq!(
        count(&fixture, "select count(*) from pgonce.import").await,
        1
    );
    // Now it may: what is there is skipped.
    let later = fixture.ok(&["import", file, "--job", jobs[refused], "--into", "item"]);
    assert!(later.contains("0 applied, 3 skipped"), "{later}");
}
