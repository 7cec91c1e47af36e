//! The public SQL surface: small, documented in the database and in the book, with examples that run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::{Header, public_headers};
use pgonce_tests::{World, run_example};

/// Maximum number of functions of the core: what a user has to know of before anything else.
const MAX_CORE_FUNCTIONS: usize = 50;

/// Maximum number of functions of one capability that builds on the core.
const MAX_CAPABILITY_FUNCTIONS: usize = 9;

/// Maximum number of functions of all parts together.
const MAX_FUNCTIONS: usize = 93;

/// Capabilities that a user learns one by one, when needed.
const CAPABILITIES: &[&str] = &[
    "external",
    "import",
    "ledger",
    "queue",
    "region",
    "role",
    "transition",
    "unique",
];

#[test]
fn each_part_of_the_public_surface_can_be_learnt() {
    let mut counts = BTreeMap::<&str, usize>::new();
    for header in public_headers() {
        if header.kind == "function" {
            let built_on_core = CAPABILITIES.contains(&header.capability);
            let part = if built_on_core {
                header.capability
            } else {
                "core"
            };
            *counts.entry(part).or_default() += 1;
        }
    }
    let all: usize = counts.values().sum();
    assert!(all <= MAX_FUNCTIONS, "{all} public functions");
    for (part, count) in counts {
        let max = if part == "core" {
            MAX_CORE_FUNCTIONS
        } else {
            MAX_CAPABILITY_FUNCTIONS
        };
        assert!(
            count <= max,
            "{part} has {count} public functions, {max} at most"
        );
    }
}

#[tokio::test]
async fn all_of_the_public_surface_is_documented() {
    let world = World::<TokioPostgres>::new().await;
    let of_functions =
        "from pg_proc p where p.pronamespace = 'pgonce'::regnamespace and p.proname !~ '^_'";
    let names = format!("select count(distinct p.proname) {of_functions}");
    let count = world.see.number(&names).await;
    let overloaded = format!("select count(*) - count(distinct p.proname) {of_functions}");
    assert_eq!(
        world.see.number(&overloaded).await,
        0,
        "one name, one function"
    );
    for header in public_headers() {
        let comment = match header.kind {
            "view" => format!(
                "obj_description('pgonce.{}'::regclass, 'pg_class')",
                header.name
            ),
            _ => format!(
                "obj_description('pgonce.{}'::regproc, 'pg_proc')",
                header.name
            ),
        };
        let start: String = header.what.chars().take(20).collect();
        let start = start.replace('\'', "''");
        let documented = format!("select count(*) where {comment} ^@ '{start}'");
        assert_eq!(world.see.number(&documented).await, 1, "{}", header.name);
    }
    let headers = public_headers();
    let documented = |kind| headers.iter().filter(|h| h.kind == kind).count();
    assert_eq!(count, i64::try_from(documented("function")).unwrap());
    let views = "select count(*) from pg_class where relnamespace = 'pgonce'::regnamespace and relkind = 'v' and relname !~ '^_'";
    let views = world.see.number(views).await;
    assert_eq!(views, i64::try_from(documented("view")).unwrap());
}

#[tokio::test]
async fn every_example_of_the_sql_reference_runs() {
    let world = World::<TokioPostgres>::new().await;
    let (client, connection) = tokio_postgres::connect(&world.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    for header in public_headers() {
        let example = header.section("example").unwrap();
        if let Err(error) = run_example(&client, example).await {
            panic!("{}: {error:?}\n{example}", header.name);
        }
    }
}

#[test]
fn the_sql_reference_is_what_the_headers_say() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/reference/sql.md");
    let reference = reference();
    if std::env::var_os("PGONCE_UPDATE").is_some() {
        std::fs::write(&page, &reference).unwrap();
    }
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(
        written == reference,
        "docs/src/reference/sql.md is stale. Run this test again with PGONCE_UPDATE=1."
    );
}

/// Capabilities in the order of the page, with their titles.
const CHAPTERS: &[(&str, &str)] = &[
    ("intent", "Intents"),
    ("scope", "Scopes"),
    ("unique", "Uniqueness"),
    ("lock", "Locks"),
    ("ledger", "Ledger"),
    ("import", "Import"),
    ("transition", "State machines"),
    ("outbox", "Outbox"),
    ("inbox", "Inbox"),
    ("projection", "Projections"),
    ("queue", "Work queue"),
    ("external", "External calls"),
    ("region", "Regions"),
    ("recovery", "Recovery"),
    ("retention", "Retention"),
    ("role", "Roles"),
    ("clock", "Clock"),
];

fn reference() -> String {
    let mut page = "# SQL functions and views\n\n\
        Every public function and view of pgonce, for callers in any language. The same text is in the \
        database: `\\df+ pgonce.claim`. Functions whose names begin with `_` are internal and may change.\n\n\
        This page is generated from the headers of the SQL files; the examples are run by the test suite \
        and written for psql (`\\gset` stores a row's columns for `:name`).\n"
        .to_owned();
    let headers = public_headers();
    let mut written = 0;
    for (capability, title) in CHAPTERS {
        writeln!(page, "\n## {title}").unwrap();
        for header in headers.iter().filter(|h| h.capability == *capability) {
            entry(&mut page, header);
            written += 1;
        }
    }
    assert_eq!(written, headers.len(), "a capability has no chapter");
    page
}

fn entry(page: &mut String, header: &Header) {
    let mut what = header.what.chars();
    let first = what.next().unwrap().to_ascii_uppercase();
    writeln!(page, "\n### pgonce.{}\n", header.name).unwrap();
    if header.kind == "function" {
        writeln!(page, "```sql\n{}\n```\n", signature(header.sql)).unwrap();
    }
    writeln!(page, "{first}{}\n", what.as_str()).unwrap();
    for (name, text) in &header.sections {
        match *name {
            "example" => writeln!(page, "\n```sql\n{text}\n```").unwrap(),
            name if text.contains('\n') => {
                writeln!(page, "- **{name}**\n\n  ```text").unwrap();
                for line in text.lines() {
                    writeln!(page, "  {line}").unwrap();
                }
                writeln!(page, "  ```\n").unwrap();
            }
            name => writeln!(page, "- **{name}**: {text}").unwrap(),
        }
    }
}

/// From the name to what it returns, as it is written in the file.
fn signature(sql: &str) -> String {
    let start = sql.find("create or replace function ").unwrap();
    let text = &sql[start + "create or replace function ".len()..];
    text[..text.find("\nlanguage ").unwrap()].to_owned()
}
