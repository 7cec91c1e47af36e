//! The book is whole: every page is listed, every link and anchor leads somewhere, every included
//! file is there, every block of code ends. These stand in for mdBook, which takes minutes to install.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use pgonce::driver::sqlx::Sqlx;
use pgonce::{Fingerprint, Intent};
use pgonce_tests::World;

use crate::tidy::{files, read, root};

/// What a Markdown file links to, and what can be linked to in it.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

fn parse(text: &str) -> Page {
    let mut page = Page::default();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::all()) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.to_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let plain = anchor(&heading.take().unwrap());
                let mut unique = plain.clone();
                for n in 1.. {
                    if page.anchors.insert(unique) {
                        break;
                    }
                    unique = format!("{plain}-{n}");
                }
            }
            _ => {}
        }
    }
    page
}

/// The id that mdBook and GitHub give a heading.
fn anchor(heading: &str) -> String {
    heading
        .trim()
        .chars()
        .filter_map(|c| match c {
            c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
            c if c.is_whitespace() => Some('-'),
            _ => None,
        })
        .collect()
}

/// `../a/./b` without detours.
fn tidied(path: &Path) -> PathBuf {
    let mut tidied = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                tidied.pop();
            }
            std::path::Component::CurDir => {}
            part => tidied.push(part),
        }
    }
    tidied
}

/// The text of a page with what mdBook includes into it.
fn with_includes(path: &Path) -> String {
    let text = read(path);
    let mut whole = String::new();
    for line in text.lines() {
        let Some(what) = line.trim().strip_prefix("{{#include ") else {
            whole.push_str(line);
            whole.push('\n');
            continue;
        };
        let what = what.strip_suffix("}}").expect("{{#include PATH:ANCHOR}}");
        let (file, mark) = what.split_once(':').unwrap_or((what, ""));
        let included = read(&path.parent().unwrap().join(file));
        if mark.is_empty() {
            whole.push_str(&included);
            continue;
        }
        let start = format!("ANCHOR: {mark}\n");
        let end = format!("ANCHOR_END: {mark}\n");
        let (_, rest) = included
            .split_once(&start)
            .unwrap_or_else(|| panic!("{}: {file} has no {start}", path.display()));
        let (part, _) = rest
            .split_once(&end)
            .unwrap_or_else(|| panic!("{}: {file} has no {end}", path.display()));
        // The line of the mark is left out whole, with what begins the comment.
        let part = &part[..part.rfind('\n').map_or(0, |end| end + 1)];
        assert!(
            !part.trim().is_empty(),
            "{}: {what} is empty",
            path.display()
        );
        whole.push_str(part);
    }
    whole
}

#[test]
fn every_link_leads_to_a_file_and_an_anchor_that_exist() {
    let mut pages = BTreeMap::new();
    for folder in ["docs", "crates", "examples", "tests", "mutants"] {
        for path in files(folder, "")
            .into_iter()
            .filter(|path| path.extension().is_some_and(|e| e == "md"))
        {
            pages.insert(tidied(&path), parse(&with_includes(&path)));
        }
    }
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        let path = root().join(name);
        pages.insert(tidied(&path), parse(&read(&path)));
    }
    let mut broken = Vec::new();
    let mut checked = 0;
    for (path, page) in &pages {
        for link in page
            .links
            .iter()
            .filter(|link| !link.is_empty() && !link.contains("://"))
        {
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => tidied(&path.parent().unwrap().join(file)),
            };
            let found = match pages.get(&target) {
                Some(page) => anchor.is_empty() || page.anchors.contains(anchor),
                None => anchor.is_empty() && target.exists(),
            };
            if !found {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "these links lead nowhere:\n{}",
        broken.join("\n")
    );
    assert!(
        checked > 100,
        "only {checked} links: is this test looking in the right place?"
    );
}

#[test]
fn the_summary_lists_every_page_of_the_book_once() {
    let book = root().join("docs/src");
    let mut listed = Vec::new();
    for link in parse(&read(&book.join("SUMMARY.md"))).links {
        if !link.is_empty() {
            listed.push(tidied(&book.join(link)));
        }
    }
    let unique: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), unique.len(), "SUMMARY.md lists a page twice");
    let pages: BTreeSet<_> = files("docs/src", ".md")
        .into_iter()
        .filter(|path| !path.ends_with("SUMMARY.md"))
        .map(|path| tidied(&path))
        .collect();
    assert_eq!(
        unique, pages,
        "SUMMARY.md (left) and the pages of docs/src (right) differ"
    );
}

/// The line of a block of code that never ends: all that follows it would be code.
fn unclosed(text: &str) -> Option<usize> {
    let mut open: Option<(usize, char, usize)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start_matches([' ', '>']);
        let mark = line.chars().next().filter(|c| ['`', '~'].contains(c));
        let Some(mark) = mark else { continue };
        let length = line.chars().take_while(|c| *c == mark).count();
        let rest = &line[length..];
        open = match open {
            Some((_, begun, least))
                if begun == mark && length >= least && rest.trim().is_empty() =>
            {
                None
            }
            Some(block) => Some(block),
            // Between backticks on one line it is a word of code.
            None if length >= 3 && !(mark == '`' && rest.contains('`')) => {
                Some((number, mark, length))
            }
            None => None,
        };
    }
    open.map(|(number, ..)| number)
}

#[test]
fn every_block_of_code_ends_and_mdbook_knows_every_directive_and_the_summary() {
    assert_eq!(unclosed("```sql\nselect 1;\n```\n\n~~~\n```\n~~~\n"), None);
    assert_eq!(unclosed("- a list\n\n  ````text\n  ```\n  ````\n"), None);
    assert_eq!(unclosed("text\n```sql\nselect 1;\n"), Some(2));
    assert_eq!(unclosed("````\n```\nall of it is code\n"), Some(1));
    let mut wrong = Vec::new();
    for path in files("docs/src", ".md") {
        let text = with_includes(&path);
        if let Some(line) = unclosed(&text) {
            wrong.push(format!(
                "{}: the block of line {line} does not end",
                path.display()
            ));
        }
        // What is left of it would be shown as it is written.
        if text.contains("{{#") {
            wrong.push(format!(
                "{}: {{{{#include PATH}}}} on a line of its own is all that is checked here",
                path.display()
            ));
        }
    }
    for line in read(&root().join("docs/src/SUMMARY.md")).lines() {
        let link = line.trim_start().trim_start_matches("- ");
        let is_link = link.starts_with('[') && link.contains("](") && link.ends_with(')');
        if !(line.is_empty() || line.starts_with("# ") || is_link) {
            wrong.push(format!("SUMMARY.md: {line:?} is neither a part nor a page"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_page_of_the_book_is_on_a_shelf_and_has_one_title() {
    let book = root().join("docs/src");
    for path in files("docs/src", ".md") {
        let inside = path.strip_prefix(&book).unwrap();
        if inside.components().count() == 1 {
            assert!(
                ["SUMMARY.md", "README.md"]
                    .iter()
                    .any(|name| inside == Path::new(name)),
                "{} is on none of the shelves tutorial, how-to, reference, explanation",
                inside.display()
            );
        }
        let titles = Parser::new_ext(&read(&path), Options::all())
            .filter(|event| {
                matches!(
                    event,
                    Event::Start(Tag::Heading {
                        level: pulldown_cmark::HeadingLevel::H1,
                        ..
                    })
                )
            })
            .count();
        if inside != Path::new("SUMMARY.md") {
            assert_eq!(titles, 1, "{}", inside.display());
        }
    }
    for shelf in ["tutorial", "how-to", "reference", "explanation"] {
        assert!(
            fs::read_dir(book.join(shelf)).unwrap().count() > 0,
            "{shelf}"
        );
    }
}

#[tokio::test]
async fn the_sql_of_the_readme_and_of_the_guide_run_as_shown_and_rust_gets_their_answer() {
    for page in ["README.md", "docs/src/how-to/sql.md"] {
        let world = World::<Sqlx>::new().await;
        world
            .see
            .run(
                "create schema shop;
                 create table shop.orders (id bigint generated always as identity, item text, qty integer);
                 set search_path = shop",
            )
            .await;
        let text = read(&root().join(page));
        let blocks = text.split("```sql\n").skip(1);
        let sql: String = blocks
            .map(|block| block.split("```").next().unwrap())
            .collect();
        let rows = world.see.rows(&sql).await;
        let fresh = [Some("fresh".to_owned()), Some("1".to_owned()), None];
        assert!(rows.iter().any(|row| *row == fresh), "{page}: {rows:?}");
        assert_eq!(
            world.see.number("select count(*) from shop.orders").await,
            1,
            "{page}"
        );

        // The Rust of the README names the same request by the same fingerprint.
        #[derive(serde::Serialize)]
        struct PlaceOrder {
            item: &'static str,
            qty: i32,
        }
        let order = PlaceOrder {
            item: "book",
            qty: 2,
        };
        let intent = Intent::new("orders.create", "key-1", &order).unwrap();
        assert_eq!(*intent.fingerprint(), Fingerprint::of(&order).unwrap());
        let done = world
            .once
            .answer(&intent)
            .await
            .unwrap()
            .expect("a stored answer");
        assert_eq!(
            done.ack().json(),
            Some(&serde_json::json!({ "id": 1 })),
            "{page}"
        );
        if page == "README.md" {
            let replay = [Some("replay".to_owned()), Some("{\"id\": 1}".to_owned())];
            assert_eq!(rows.last().unwrap()[..], replay, "{page}");
        }
    }
}

#[test]
fn the_code_of_the_page_for_go_calls_what_exists_and_passes_vet_where_go_is_installed() {
    let page = read(&root().join("docs/src/how-to/go.md"));
    let blocks: Vec<_> = page.split("```go\n").skip(1).collect();
    let code = blocks.iter().map(|rest| rest.split("```").next().unwrap());
    let code = code.collect::<Vec<_>>().join("\n");
    let headers = pgonce::migrate::public_headers();
    let calls: Vec<_> = code.split("pgonce.").skip(1).collect();
    assert!(calls.len() > 5);
    for call in calls {
        let name: String = (call.chars())
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let is_intent_table = name == "intent";
        assert!(
            is_intent_table || headers.iter().any(|header| header.name == name),
            "pgonce.{name} is not public"
        );
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page-for-go");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("page.go"), code).unwrap();
    fs::write(folder.join("go.mod"), "module page\n\ngo 1.21\n").unwrap();
    let vet = std::process::Command::new("go")
        .args(["vet", "./..."])
        .env("GOTOOLCHAIN", "local")
        .current_dir(&folder)
        .output();
    // Where Go is not installed, its page is not compiled; it says so.
    if let Ok(vet) = vet {
        let said = String::from_utf8_lossy(&vet.stderr);
        assert!(vet.status.success(), "{said}");
    }
}
