//! Every help text, as it is; and what goes with it: completions, manual pages, colours, options anywhere.
//!
//! `INSTA_UPDATE=always` rewrites the snapshots; look at the difference before you commit it.

use crate::fixture::{Fixture, program, without_database};

fn help(path: &[String]) -> String {
    let mut words: Vec<&str> = path.iter().map(String::as_str).collect();
    words.push("--help");
    let run = without_database(&words);
    assert_eq!(run.code, 0, "{run:?}");
    run.out
}

/// The commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| line.starts_with("  "));
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    names.map(str::to_owned).collect()
}

fn walk(path: &mut Vec<String>, seen: &mut usize) {
    let text = help(path);
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{path:?} has a line that is too long"
    );
    let name = format!("pgonce {}", path.join(" "))
        .trim()
        .replace(' ', "-");
    insta::with_settings!({snapshot_path => "help", prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!(name, text);
    });
    *seen += 1;
    for command in commands(&text) {
        path.push(command);
        walk(path, seen);
        path.pop();
    }
}

#[test]
fn every_help_text_is_the_one_that_was_reviewed() {
    let mut seen = 0;
    walk(&mut Vec::new(), &mut seen);
    assert!(seen > 40, "{seen}");
}

#[test]
fn completions_and_manual_pages_are_there_for_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let run = without_database(&["completions", shell]);
        assert!(run.code == 0 && run.out.contains("suppression"), "{shell}");
    }
    assert!(without_database(&["man"]).out.contains("pgonce"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    assert_eq!(without_database(&["man", "--dir", path]).code, 0);
    for page in [
        "pgonce.1",
        "pgonce-intent-show.1",
        "pgonce-outbox-subscriptions-create.1",
    ] {
        assert!(folder.path().join(page).is_file(), "{page}");
    }
}

#[test]
fn colours_are_used_where_they_are_wanted_and_nowhere_else() {
    let escape = '\u{1b}';
    for (words, colour) in [
        (&["codes", "XXXXX"][..], false),
        (&["--color", "always", "codes", "XXXXX"], true),
    ] {
        let run = without_database(words);
        assert_eq!((run.code, run.err.contains(escape)), (7, colour), "{run:?}");
    }
    let never = program(&["codes", "--color", "never"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&never.stdout).contains(escape));
}

#[tokio::test]
async fn options_about_the_connection_are_accepted_anywhere() {
    let fixture = Fixture::installed().await;
    let url = fixture.database.url();
    for words in [
        &["--database-url", &url, "intent", "stuck"][..],
        &["intent", "--database-url", &url, "stuck"],
        &["intent", "stuck", "--database-url", &url],
        &["--format", "json", "--database-url", &url, "stuck"],
    ] {
        let run = without_database(words);
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
    }
}

#[tokio::test]
async fn a_narrow_terminal_gets_a_list_and_no_key_is_broken() {
    let fixture = Fixture::installed().await;
    let key = "0190f5a2-7c3e-7000-8000-000000000001".repeat(2);
    fixture
        .sql(&format!(
            "select pgonce.claim('s', '{key}', '\\x01', '1 microsecond')"
        ))
        .await;
    let mut narrow = fixture.command(&["intent", "list", "s"]);
    let narrow = narrow.env("COLUMNS", "80").output().unwrap();
    let narrow = String::from_utf8(narrow.stdout).unwrap();
    assert!(
        narrow
            .lines()
            .any(|line| line == format!("key       {key}")),
        "{narrow}"
    );
    let mut wide = fixture.command(&["intent", "list", "s", "--wide"]);
    let wide = wide.env("COLUMNS", "80").output().unwrap();
    let wide = String::from_utf8(wide.stdout).unwrap();
    assert!(wide.contains(&key) && wide.contains('│'), "{wide}");
}

#[test]
fn the_help_names_every_exit_code_and_the_page_of_the_docs_says_the_same() {
    let help = without_database(&["--help"]).out;
    let page = include_str!("../../../../docs/src/reference/cli.md");
    for code in 0..=12 {
        let line = help
            .lines()
            .find_map(|line| line.strip_prefix(&format!("  {code}  ")))
            .unwrap();
        assert!(
            page.contains(&format!("| {code} | {line} |")),
            "docs/src/reference/cli.md lacks: | {code} | {line} |"
        );
    }
}
