//! Every published crate can be packaged, offline, and its package has what crates.io and docs.rs show.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const PUBLISHED: [&str; 8] = [
    "pgonce",
    "pgonce-broker",
    "pgonce-cli",
    "pgonce-console",
    "pgonce-http",
    "pgonce-lab",
    "pgonce-probe",
    "pgonce-testkit",
];

fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(args)
        .args(["--offline", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_published_crate_says_what_a_registry_shows_and_nothing_else_is_published() {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])).unwrap();
    let mut published = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        if package["publish"] == serde_json::json!([]) {
            continue;
        }
        published.push(name);
        for field in [
            "description",
            "license",
            "repository",
            "readme",
            "rust_version",
        ] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        assert!(
            !package["keywords"].as_array().unwrap().is_empty(),
            "{name}"
        );
        assert_eq!(
            package["metadata"]["docs"]["rs"]["all-features"], true,
            "{name} is not documented with all its features"
        );
        // A path without a version is left out of the package, which only tests can bear.
        for dependency in package["dependencies"].as_array().unwrap() {
            assert!(
                dependency["kind"] == "dev" || dependency["req"] != "*",
                "{name} depends on a {} of any version",
                dependency["name"]
            );
        }
    }
    published.sort_unstable();
    assert_eq!(published, PUBLISHED);
}

#[test]
fn every_published_crate_can_be_packaged_with_its_licences_and_a_readme() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().to_str().unwrap();
    let crates = PUBLISHED.map(|name| ["-p", name]).concat();
    let package = [
        "package",
        "--no-verify",
        "--allow-dirty",
        "--target-dir",
        target,
    ];
    cargo(&[&package[..], &crates].concat());
    for name in PUBLISHED {
        let list = cargo(&["package", "--list", "--allow-dirty", "-p", name]);
        for file in ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
            assert!(list.lines().any(|line| line == file), "{name} lacks {file}");
        }
    }
}

/// Arguments of each `pgonce` command in the files that start it.
fn commands_in_ops() -> Vec<(String, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let mut found = Vec::new();
    for unit in ["relay", "gateway", "purge", "serve"] {
        let path = format!("ops/systemd/pgonce-{unit}.service");
        let text = read(&path);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/pgonce "));
        let words = line
            .unwrap_or_else(|| panic!("{path} starts nothing"))
            .split(' ');
        found.push((path, words.map(str::to_owned).collect()));
    }
    // In compose.yaml a service of ours is built, and its command is a list.
    for service in read("compose.yaml")
        .split("\n\n")
        .filter(|part| part.contains("build: ."))
    {
        let line = service
            .lines()
            .find_map(|line| line.trim().strip_prefix("command: "));
        found.push((
            "compose.yaml".to_owned(),
            serde_json::from_str(line.unwrap()).unwrap(),
        ));
    }
    found
}

#[test]
fn units_and_containers_start_commands_that_the_program_has() {
    let commands = commands_in_ops();
    assert_eq!(commands.len(), 6, "{commands:?}");
    for (file, arguments) in commands {
        let output = Command::new(env!("CARGO_BIN_EXE_pgonce"))
            .args(&arguments)
            .arg("--help")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{file}: {arguments:?}: {said}");
    }
    let relay = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/relay.toml");
    let output = Command::new(env!("CARGO_BIN_EXE_pgonce"))
        .args(["relay", "--check"])
        .arg(relay)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ops/relay.toml: {said}");
}
