//! Every published crate can be packaged, offline, and its package has what crates.io and docs.rs show.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::{Path, PathBuf};
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

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Output of a program that checks files in `ops/`, and whether it was content. `variable` names its folder.
fn tool(variable: &str, cache: &str, program: &str, args: &[&str]) -> (bool, String) {
    let folders = [
        std::env::var_os(variable).map(PathBuf::from),
        Some(root().join(".cache").join(cache).join("bin")),
    ];
    let found = folders.into_iter().flatten();
    let found = found
        .map(|folder| folder.join(program))
        .find(|path| path.exists());
    let output = Command::new(found.unwrap_or_else(|| program.into()))
        .args(args)
        .current_dir(root())
        .output()
        .unwrap_or_else(|error| {
            panic!("{program}: {error}; run scripts/setup, or set {variable} to its folder")
        });
    let said = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said + &complaint)
}

fn helm(args: &[&str]) -> (bool, String) {
    tool("PGONCE_HELM_BIN", "helm", "helm", args)
}

const CHART: &str = "ops/helm/pgonce";

/// Everything that the chart can make, as YAML.
fn rendered() -> String {
    let gateway = "gateway.config=[listen]";
    let set = "databaseSecret=db,serve.tokensSecret=tokens,serve.settings.instance=shop,relay.enabled=true,\
        gateway.enabled=true,prometheus.podMonitor=true,prometheus.rules=true,migrate.grants={app=shop}";
    let (good, said) = helm(&[
        "template",
        "shop",
        CHART,
        "--set",
        set,
        "--set",
        gateway,
        "--set-file",
        "relay.config=ops/relay.toml",
    ]);
    assert!(good, "{said}");
    said
}

#[test]
fn the_chart_is_accepted_by_helm_and_says_what_it_needs() {
    let (good, said) = helm(&[
        "lint",
        "--strict",
        CHART,
        "--set",
        "databaseSecret=db,serve.tokensSecret=tokens",
    ]);
    assert!(good, "{said}");
    for (set, needed) in [
        ("serve.tokensSecret=tokens", "databaseSecret is required"),
        ("databaseSecret=db", "serve.tokensSecret is required"),
        (
            "databaseSecret=db,serve.tokensSecret=tokens,relay.enabled=true",
            "relay.config is required",
        ),
    ] {
        let (good, said) = helm(&["template", "shop", CHART, "--set", set]);
        assert!(!good && said.contains(needed), "{set}: {said}");
    }
    let versions = std::fs::read_to_string(root().join(CHART).join("Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(versions.contains(&format!("\nversion: {version}\n")));
    assert!(versions.contains(&format!("\nappVersion: \"{version}\"\n")));
}

#[test]
fn the_chart_writes_settings_that_the_daemon_accepts() {
    let rendered = rendered();
    let text = rendered.split("  serve.toml: |\n").nth(1).unwrap();
    let settings: Vec<_> = text.lines().map_while(|l| l.strip_prefix("    ")).collect();
    assert!(settings.len() >= 4, "{settings:?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), settings.join("\n")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pgonce"))
        .args(["config", "check", "--config"])
        .arg(file.path())
        .env("PGONCE_CONSOLE_TOKENS", "ada:admin:0123456789abcdef")
        .env("DATABASE_URL", "postgres://db/shop")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{settings:?}: {said}");
}

#[test]
fn prometheus_accepts_the_alerts() {
    let args = ["check", "rules", "ops/prometheus/alerts.yml"];
    let (good, said) = tool("PGONCE_PROMETHEUS_BIN", "prometheus", "promtool", &args);
    assert!(good && said.contains("rules found"), "{said}");
}

/// Arguments of each `pgonce` command in the files that start it.
fn commands_in_ops() -> Vec<(String, Vec<String>)> {
    let root = root();
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
    for line in rendered().lines() {
        if let Some(arguments) = line.trim().strip_prefix("args: ") {
            let arguments = serde_json::from_str(arguments).unwrap();
            found.push(("ops/helm".to_owned(), arguments));
        }
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
    assert_eq!(commands.len(), 9, "{commands:?}");
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

/// No builder of images is needed to see that the file asks for what there is.
#[test]
fn the_image_is_built_from_features_and_a_compiler_that_fit_and_runs_without_rights() {
    let file = std::fs::read_to_string(root().join("Dockerfile")).unwrap();
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let program = packages.iter().find(|one| one["name"] == "pgonce-cli");
    let program = program.unwrap();
    let features = file
        .lines()
        .find_map(|line| line.strip_prefix("ARG FEATURES="));
    for feature in features.unwrap().trim_matches('"').split(',') {
        assert!(program["features"][feature].is_array(), "{feature}");
    }
    let compiler = format!("FROM rust:{}-", program["rust_version"].as_str().unwrap());
    assert!(file.contains(&compiler), "{compiler}");
    let user = file.lines().find_map(|line| line.strip_prefix("USER "));
    assert!(user.unwrap().parse::<u32>().unwrap() > 0);
}
