//! The house stays in order: these read our own files.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Our own files with this ending, without build output.
pub(crate) fn files(under: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(under)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_output = ["target", "book", "node_modules", "dist", "build"].contains(&&*name);
            if path.is_dir() {
                if !name.starts_with('.') && !is_output {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    assert!(
        !found.is_empty(),
        "no *{ending} under {under}: is this test looking in the right place?"
    );
    found.sort();
    found
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Lines without their indentation, empty ones left out.
fn squeezed(code: &str) -> String {
    let lines = code.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_rust_example_of_the_readme_is_code_of_the_tutorial() {
    let tutorial = squeezed(&read(&root().join("examples/tutorial/src/lib.rs")));
    let readme = read(&root().join("README.md"));
    let examples: Vec<_> = readme.split("```rust\n").skip(1).collect();
    assert!(examples.len() >= 4, "command, HTTP, outbox and inbox");
    for example in examples {
        let example = squeezed(example.split("```").next().unwrap());
        assert!(
            tutorial.contains(&example),
            "not in examples/tutorial/src/lib.rs:\n{example}"
        );
    }
}

#[test]
fn every_routine_has_a_header_and_stands_alone() {
    for path in files("crates/pgonce/sql", ".sql") {
        let text = read(&path);
        assert!(
            text.starts_with("-- "),
            "{} has no header that says what it is for",
            path.display()
        );
        if path.parent().unwrap().ends_with("migrations") {
            assert!(
                text.contains("\n-- breaking: "),
                "{} must say whether it breaks",
                path.display()
            );
            continue;
        }
        // Statements that are run once, in the order of their files.
        if path.parent().unwrap().ends_with("citus/scripts") {
            continue;
        }
        let made = text.matches("\ncreate or replace ").count();
        let trigger = text.matches("\ncreate or replace trigger ").count();
        assert_eq!(
            made - trigger,
            1,
            "{}: one function or view per file",
            path.display()
        );
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(
            text.contains(&format!("pgonce.{name}")),
            "{} does not make pgonce.{name}",
            path.display()
        );
    }
}

#[test]
fn no_file_has_become_two_rooms() {
    for ending in [".rs", ".sql"] {
        for path in files(".", ending) {
            let lines = read(&path).lines().count();
            assert!(
                lines <= 500,
                "{} has {lines} lines: split it",
                path.display()
            );
        }
    }
}

#[test]
fn every_client_has_the_version_of_the_workspace() {
    let workspace = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        (
            "clients/python/pyproject.toml",
            format!("\nversion = \"{workspace}\"\n"),
        ),
        (
            "clients/node/package.json",
            format!("\n  \"version\": \"{workspace}\",\n"),
        ),
    ] {
        assert!(
            read(&root().join(file)).contains(&line),
            "{file}: not {workspace}"
        );
    }
}

/// A test waits for a state that it observes. Pauses that are the subject have a name in
/// tests/support/random.rs.
#[test]
fn no_test_sleeps() {
    let mut sources = files("tests", ".rs");
    for folder in ["crates", "examples"] {
        let all = files(folder, ".rs");
        let in_tests = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "tests");
        sources.extend(all.into_iter().filter(in_tests));
    }
    for path in sources {
        if path.ends_with("support/random.rs") {
            continue;
        }
        let text = read(&path);
        for word in ["thread::sleep", "time::sleep", "time::{sleep", ", sleep("] {
            let code = text.lines().filter(|line| !line.contains("for word in"));
            assert!(
                !code.clone().any(|line| line.contains(word)),
                "{} sleeps",
                path.display()
            );
        }
    }
}

#[test]
fn imports_point_down_the_floors() {
    let floors = [
        ("crates/pgonce", 1),
        ("crates/pgonce-broker", 2),
        ("crates/pgonce-http", 2),
        ("crates/pgonce-testkit", 0),
        ("crates/pgonce-probe", 0),
        ("crates/pgonce-lab", 4),
        ("crates/pgonce-console", 4),
        ("crates/pgonce-cli", 5),
    ];
    assert_eq!(
        std::fs::read_dir(root().join("crates")).unwrap().count(),
        floors.len(),
        "a crate has no floor"
    );
    for (crate_path, floor) in floors {
        let manifest = read(&root().join(crate_path).join("Cargo.toml"));
        let used = manifest
            .split("[dependencies]")
            .nth(1)
            .unwrap()
            .split("\n[")
            .next()
            .unwrap();
        let uses = |name: &str| {
            used.lines()
                .any(|l| l.starts_with(&format!("{name} ")) || l.starts_with(&format!("{name}.")))
        };
        assert!(
            !uses("pgonce-testkit") || crate_path == "crates/pgonce-lab",
            "{crate_path} ships the testkit; only pgonce-lab may"
        );
        for example in std::fs::read_dir(root().join("examples")).unwrap() {
            let example = example.unwrap().file_name().into_string().unwrap();
            assert!(
                !uses(&example),
                "{crate_path} depends on the example {example}"
            );
        }
        for (other, other_floor) in floors {
            let name = other.trim_start_matches("crates/");
            let uses = uses(name);
            assert!(
                !uses || other_floor < floor,
                "{crate_path} imports {name}, which is not below it"
            );
        }
    }
}

#[test]
fn every_code_that_sql_raises_has_a_page() {
    for path in files("crates/pgonce/sql", ".sql") {
        for part in read(&path).split("'P4").skip(1) {
            let code = format!("P4{}", &part[..3]);
            let page = root().join(format!("docs/src/reference/errors/{code}.md"));
            assert!(
                page.exists(),
                "{} raises {code}, which has no page",
                path.display()
            );
        }
    }
}

/// Maximum number of public names of the core: commands, leases, contracts, outbox, inbox.
const MAX_CORE_NAMES: usize = 45;

/// Maximum number of public names in the module of one capability that builds on the core.
const MAX_CAPABILITY_NAMES: usize = 13;

/// Maximum number of public names of the SDK, all capabilities together.
const MAX_NAMES: usize = 105;

/// Modules that a service uses only for what they are named after.
const CAPABILITIES: &[&str] = &[
    "external",
    "import",
    "ledger",
    "queue",
    "recovery",
    "region",
    "transition",
    "unique",
];

/// The names that a file of the SDK makes public, without those hidden from its documentation.
fn public_names(path: &str) -> Vec<String> {
    let text = read(&root().join("crates/pgonce/src").join(path));
    let text = text.split("#[cfg(test)]").next().unwrap();
    let mut names = Vec::new();
    let mut hidden = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[doc(hidden)]") {
            hidden = true;
        } else if let Some(item) = line.strip_prefix("pub ") {
            let mut item = item.to_owned();
            while item.starts_with("use ") && !item.ends_with(';') {
                item += lines.next().unwrap();
            }
            let (kind, rest) = item.split_once(' ').unwrap();
            let rest = rest.strip_prefix("fn ").unwrap_or(rest);
            if hidden || kind == "mod" {
                hidden = false;
                continue;
            }
            let listed = match kind {
                "use" => rest.rsplit("::{").next().unwrap(),
                _ => rest.split(['<', '(', ' ', ':', ';', '=']).next().unwrap(),
            };
            let name = |name: &str| name.rsplit("::").next().unwrap().trim().to_owned();
            let listed = listed.trim_end_matches([';', '}']).split(',').map(name);
            names.extend(listed.filter(|name| !name.is_empty()));
        } else if !line.starts_with('#') {
            hidden = false;
        }
    }
    names
}

#[test]
fn the_sdk_shows_no_more_names_than_a_user_can_learn() {
    let lib = read(&root().join("crates/pgonce/src/lib.rs"));
    let mut names = public_names("lib.rs");
    // The aliases of the drivers show none of the methods of what they stand for.
    for shown in [
        "Once", "Tx", "Attempt", "Lease", "Joined", "Inbox", "Outbox", "Migrator",
    ] {
        assert!(
            names.contains(&shown.to_owned()),
            "{shown} is hidden, and so are its methods"
        );
    }
    let (mut hidden, mut of_capabilities) = (false, 0);
    for line in lib.lines() {
        if let Some(module) = line.strip_prefix("pub mod ").filter(|_| !hidden) {
            let module = module.trim_end_matches([';', '{', ' ']);
            let path = [format!("{module}.rs"), format!("{module}/mod.rs")];
            let exists = |path: &&String| root().join("crates/pgonce/src").join(path).exists();
            let of_module = public_names(path.iter().find(exists).unwrap());
            if CAPABILITIES.contains(&module) {
                assert!(
                    of_module.len() <= MAX_CAPABILITY_NAMES,
                    "{module}: {of_module:?}"
                );
                of_capabilities += of_module.len();
            } else {
                names.extend(of_module);
            }
        }
        hidden = line == "#[doc(hidden)]" || (hidden && line.starts_with("#["));
    }
    // Both drivers have the same names.
    names.sort();
    names.dedup();
    assert!(names.contains(&"Once".to_owned()) && names.contains(&"Intent".to_owned()));
    assert!(
        names.len() <= MAX_CORE_NAMES,
        "{} public names; move what services do not need to `unstable`: {names:?}",
        names.len()
    );
    let all = names.len() + of_capabilities;
    assert!(all <= MAX_NAMES, "{all} public names");
}
