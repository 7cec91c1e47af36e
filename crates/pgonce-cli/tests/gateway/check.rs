//! What is wrong is said before anything starts.

use serde_json::Value;

use crate::place::{Place, Setup, Told, file, program};

const NOBODY: &str = "http://127.0.0.1:9";

async fn run(args: &[&str]) -> Told {
    Told::of(program(args).output().await.unwrap())
}

#[tokio::test]
async fn the_printed_example_passes_the_check_without_a_database() {
    let example = run(&["gateway", "--print-example"]).await;
    assert_eq!(example.code, 0, "{example:?}");
    let (_folder, path) = file(&example.out);
    let told = run(&["gateway", "--check", path.to_str().unwrap()]).await;
    assert_eq!(told.code, 0, "{told:?}");
    assert!(
        told.out
            .contains("is right: 2 routes, 1 of them happen once, in 1 scopes"),
        "{told:?}"
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
        let told = run(&["gateway", "--check", path]).await;
        assert_eq!(told.code, 0, "{told:?}");
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
        let told = run(args).await;
        assert_eq!(told.code, 2, "{told:?}");
        assert_eq!(
            told.err
                .matches("there is no scope \"orders.crate\"")
                .count(),
            2,
            "{told:?}"
        );
        assert_eq!(told.err.matches("error: ").count(), 2, "{told:?}");
        assert!(
            told.err.starts_with(&format!("error: {path}:18:9: ")),
            "{told:?}"
        );
        assert!(
            told.err.contains(
                "\n 18 | scope = \"orders.crate\"\n    |         ^^^^^^^^^^^^^^\n   do: "
            ),
            "{told:?}"
        );
    }
    let told = run(&["gateway", "--check", "--format", "json", path]).await;
    let error: Value = serde_json::from_str(&told.err).unwrap();
    assert_eq!(error["error"]["faults"][0]["line"], 18);
    assert_eq!(error["error"]["exit"], 2);
}

#[tokio::test]
async fn what_is_missing_around_the_file_is_said_too() {
    let told = run(&["gateway", "/no/such/file.toml"]).await;
    assert!(
        told.code == 2 && told.err.contains("cannot be read"),
        "{told:?}"
    );
    assert_eq!(run(&["gateway"]).await.code, 2);

    let (folder, path) = file(&Setup::default().in_front_of(NOBODY));
    let told = run(&["gateway", path.to_str().unwrap()]).await;
    assert!(
        told.code == 2
            && told
                .err
                .contains("the variable DATABASE_URL: it is not set"),
        "{told:?}"
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
    let told = run(&["gateway", path.to_str().unwrap()]).await;
    assert!(
        told.code == 3 && told.err.contains("08006") && !told.err.contains("secret"),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_database_without_pgonce_is_exit_4() {
    let place = Place::new().await;
    place.sql("drop schema pgonce cascade").await;
    let (_folder, path) = file(&Setup::default().in_front_of(NOBODY));
    let told = place.run(&["gateway", path.to_str().unwrap()]).await;
    assert!(
        told.code == 4 && told.err.contains("pgonce migrate up"),
        "{told:?}"
    );
}

#[tokio::test]
async fn scopes_are_defined_at_the_start_and_a_contradiction_is_reported() {
    let place = Place::new().await;
    let kept = "select (retention, stale, boundary, busy, lease)::text from pgonce.scope where scope = 'orders.create'";
    let check = async |config: &Setup<'_>| {
        let (_folder, path) = file(&config.in_front_of(NOBODY));
        place
            .run(&["gateway", "--check-scopes", path.to_str().unwrap()])
            .await
    };
    let told = check(&Setup::default()).await;
    assert!(
        told.code == 1 && told.err.contains("scope \"orders.create\" is not defined"),
        "{told:?}"
    );
    assert!(place.sql(kept).await.is_empty(), "a check wrote something");

    drop(place.gateway(&Setup::default().in_front_of(NOBODY)).await);
    assert_eq!(
        place.sql(kept).await,
        ["(\"1 day\",refuse,external,reject,00:00:30)"]
    );
    let told = check(&Setup::default()).await;
    assert_eq!(told.code, 0, "{told:?}");
    // A day and 24 hours are the same promise.
    place
        .sql("update pgonce.scope set retention = '24:00' where scope = 'orders.create'")
        .await;
    drop(place.gateway(&Setup::default().in_front_of(NOBODY)).await);

    let other = Setup {
        scope: "stale = \"takeover\"\nlease = \"40s\"",
        ..Setup::default()
    };
    for told in [check(&other).await, {
        let (_folder, path) = file(&other.in_front_of(NOBODY));
        place.run(&["gateway", path.to_str().unwrap()]).await
    }] {
        assert_eq!(told.code, 1, "{told:?}");
        assert!(
            told.err
                .contains("stale is takeover in the file and refuse in the database"),
            "{told:?}"
        );
        assert!(
            told.err
                .contains("lease is 00:00:40 in the file and 00:00:30 in the database"),
            "{told:?}"
        );
    }
    let replace = Setup {
        database: "contracts = \"replace\"",
        ..other
    };
    drop(place.gateway(&replace.in_front_of(NOBODY)).await);
    assert_eq!(
        place.sql(kept).await,
        ["(\"1 day\",takeover,external,reject,00:00:40)"]
    );
}
