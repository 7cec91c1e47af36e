//! What conformance/ holds, and the page of the book that is made from it.

use serde_json::Value;

use crate::conformance::{list, text};
use crate::tidy::{read, root};

/// Every case, in the order of the files' names.
pub(crate) fn cases() -> Vec<Value> {
    let folder = root().join("conformance/cases");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let cases: Vec<Value> = paths
        .iter()
        .flat_map(|path| serde_json::from_str::<Vec<Value>>(&read(path)).unwrap())
        .collect();
    assert!(cases.len() > 30);
    cases
}

/// What conformance/matrix.json says that the cases are run over.
pub(crate) fn matrix() -> Vec<Value> {
    serde_json::from_str(&read(&root().join("conformance/matrix.json"))).unwrap()
}

/// The page of the cases and where they pass; `PGONCE_UPDATE=1` writes it.
#[test]
fn the_conformance_page_shows_every_case_and_every_run() {
    let mut page = String::from(
        "# Conformance\n\n\
         Rust, Python and Node pass the same cases. The suite of each language starts a PostgreSQL of its own with the \
         repository's SQL, a PgBouncer in transaction mode, and a proxy that cuts connections at a chosen message; every \
         transaction that holds work of the caller has the row's isolation level. This page is made from `conformance/`, which the test suite of each \
         language reads: `make test` runs every case in every row of the first table. What the steps of a case mean is in \
         `conformance/README.md`.\n\n\
         ## Where the cases are run\n\n\
         | language | library | isolation | PgBouncer |\n|---|---|---|---|\n",
    );
    for run in matrix() {
        page += &format!(
            "| {} | {} | {} | {} |\n",
            text(&run, "language"),
            text(&run, "library"),
            run["isolation"].as_str().unwrap_or("read committed"),
            if run["pooler"] == true { "yes" } else { "no" }
        );
    }
    page += "\n## What holds\n\n| case | steps |\n|---|---|\n";
    for case in cases() {
        let mut steps: Vec<_> = list(&case["steps"]).iter().map(|s| text(s, "do")).collect();
        steps.sort_unstable();
        steps.dedup();
        page += &format!("| {} | {} |\n", text(&case, "name"), steps.join(", "));
    }
    let path = root().join("docs/src/reference/conformance.md");
    if std::env::var_os("PGONCE_UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert_eq!(read(&path), page, "run the test again with PGONCE_UPDATE=1");
}
