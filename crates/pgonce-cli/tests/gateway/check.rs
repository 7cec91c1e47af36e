//! What is wrong is said before anything starts.

use serde_json::Value;

use crate::fixture::{Fixture, RunOutput, Setup, file, program};

const NOBODY: &str = "http://127.0.0.1:9";

async fn run(args: &[&str]) -> RunOutput {
    RunOutput::of(program(args).output().await.unwrap())
}

#[tokio::test]
async fn the_printed_example_passes_the_check_without_a_database() {
    let example = run(&["gateway", "--print-example"]).await;
    assert_eq!(example.code, 0, "{example:?}");
    let (_folder, path) = file(&example.out);
    let output = run(&["gateway", "--check", path.to_str().unwrap()]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(
        output
            .out
            .contains("is right: 2 routes, 1 of them happen once, in 1 scopes"),
        "{output:?}"
    );
}

#[tokio::test]
async fn the_file_in_the_book_and_the_one_of_the_python_example_pass_the_check() {
    let book = include_str!("../../../../docs/src/how-to/gateway.md");
    let shown = book.split("```toml\n").nth(1).unwrap();
    let (_folder, path) = file(shown.split("```").next().unwrap());
    let example = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/gateway-python/gateway.toml"
    );
    for path in [path.to_str().unwrap(), example] {
        let output = run(&["gateway", "--check", path]).await;
        assert_eq!(output.code, 0, "{output:?}");
    }
}

#[tokio::test]
async fn a_wrong_file_is_exit_2_and_every_fault_is_shown_in_its_line() {
    let text = Setup::default()
        .in_front_of(NOBODY)
        .replace("scope = \"orders.create\"", "scope = \"orders.crate\"");
    let (_folder, path) = file(&text);
    let path = path.to_str().unwrap();
    for args in [&["gateway", path][..], &["gateway", "--check", path]] {
        let output = run(args).await;
        assert_eq!(output.code, 2, "{output:?}");
        assert_eq!(
            output
                .err
                .matches("there is no scope \"orders.crate\"")
                .count(),
            2,
            "{output:?}"
        );
        assert_eq!(output.err.matches("error: ").count(), 2, "{output:?}");
        assert!(
            output.err.starts_with(&format!("error: {path}:18:9: ")),
            "{output:?}"
        );
        assert!(
            output.err.contains(
                "\n 18 | scope = \"orders.crate\"\n    |         ^^^^^^^^^^^^^^\n   do: "
            ),
            "{output:?}"
        );
    }
    let output = run(&["gateway", "--check", "--format", "json", path]).await;
    let error: Value = serde_json::from_str(&output.err).unwrap();
    assert_eq!(error["error"]["faults"][0]["line"], 18);
    assert_eq!(error["error"]["exit"], 2);
}

#[tokio::test]
async fn what_is_missing_around_the_file_is_said_too() {
    let output = run(&["gateway", "/no/such/file.toml"]).await;
    assert!(
        output.code == 2 && output.err.contains("cannot be read"),
        "{output:?}"
    );
    assert_eq!(run(&["gateway"]).await.code, 2);

    let (folder, path) = file(&Setup::default().in_front_of(NOBODY));
    let output = run(&["gateway", path.to_str().unwrap()]).await;
    assert!(
        output.code == 2
            && output
                .err
                .contains("the variable DATABASE_URL: it is not set"),
        "{output:?}"
    );

    std::fs::write(
        folder.path().join("address"),
        "postgres://x:secret@127.0.0.1:1/nowhere\n",
    )
    .unwrap();
    let config = Setup {
        database: "url_file = \"address\"\ntimeout = \"5s\"",
        ..Setup::default()
    };
    std::fs::write(&path, config.in_front_of(NOBODY)).unwrap();
    let output = run(&["gateway", path.to_str().unwrap()]).await;
    assert!(
        output.code == 3 && output.err.contains("08006") && !output.err.contains("secret"),
        "{output:?}"
    );
}

#[tokio::test]
async fn a_database_without_pgonce_is_exit_4() {
    let fixture = Fixture::new().await;
    fixture.sql("drop schema pgonce cascade").await;
    let (_folder, path) = file(&Setup::default().in_front_of(NOBODY));
    let output = fixture.run(&["gateway", path.to_str().unwrap()]).await;
    assert!(
        output.code == 4 && output.err.contains("pgonce migrate up"),
        "{output:?}"
    );
}

#[tokio::test]
async fn scopes_are_defined_at_the_start_and_a_contradiction_is_reported() {
    let fixture = Fixture::new().await;
    let kept = "select (retention, stale, boundary, busy, lease)::text from pgonce.scope where scope = 'orders.create'";
    let check = async |config: &Setup<'_>| {
        let (_folder, path) = file(&config.in_front_of(NOBODY));
        fixture
            .run(&["gateway", "--check-scopes", path.to_str().unwrap()])
            .await
    };
    let output = check(&Setup::default()).await;
    assert!(
        output.code == 1
            && output
                .err
                .contains("scope \"orders.create\" is not defined"),
        "{output:?}"
    );
    assert!(
        fixture.sql(kept).await.is_empty(),
        "a check wrote something"
    );

    drop(fixture.gateway(&Setup::default().in_front_of(NOBODY)).await);
    assert_eq!(
        fixture.sql(kept).await,
        ["(\"1 day\",refuse,external,reject,00:00:30)"]
    );
    let output = check(&Setup::default()).await;
    assert_eq!(output.code, 0, "{output:?}");
    // A day and 24 hours are the same promise.
    fixture
        .sql("update pgonce.scope set retention = '24:00' where scope = 'orders.create'")
        .await;
    drop(fixture.gateway(&Setup::default().in_front_of(NOBODY)).await);

    let other = Setup {
        scope: "stale = \"takeover\"\nlease = \"40s\"",
        ..Setup::default()
    };
    for output in [check(&other).await, {
        let (_folder, path) = file(&other.in_front_of(NOBODY));
        fixture.run(&["gateway", path.to_str().unwrap()]).await
    }] {
        assert_eq!(output.code, 1, "{output:?}");
        assert!(
            output
                .err
                .contains("stale is takeover in the file and refuse in the database"),
            "{output:?}"
        );
        assert!(
            output
                .err
                .contains("lease is 00:00:40 in the file and 00:00:30 in the database"),
            "{output:?}"
        );
    }
    let replace = Setup {
        database: "contracts = \"replace\"",
        ..other
    };
    drop(fixture.gateway(&replace.in_front_of(NOBODY)).await);
    assert_eq!(
        fixture.sql(kept).await,
        ["(\"1 day\",takeover,external,reject,00:00:40)"]
    );
}
