//! The console in a browser: our script runs on every page, nobody else's does, what axe says, and pictures for people.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::console::{CALL, PAGES, fill};
use crate::console_live::history;
use crate::fixture::{Fixture, Run};
use crate::serve::Serving;

/// Debian's chromium, or what the system calls it. `make setup` installs it.
fn browser() -> PathBuf {
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
    found
        .into_iter()
        .find(|program| program.is_file())
        .expect("no chromium: run `make setup`")
}

/// Where its parts from npm are: those of the lock file.
fn parts() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pgonce-console/browser");
    let (lock, installed) = (
        folder.join("package-lock.json"),
        folder.join("node_modules/installed.json"),
    );
    if std::fs::read(&lock).unwrap() != std::fs::read(&installed).unwrap_or_default() {
        let options = [
            "ci",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
        ];
        let mut npm = Command::new("npm");
        npm.args(options).current_dir(&folder).stdin(Stdio::null());
        let run = Run::of(npm.output().expect("no npm: run `make setup`"));
        assert_eq!(run.code, 0, "{run:?}");
        std::fs::copy(lock, installed).unwrap();
    }
    folder
}

/// For people to look at: target/console/*.png, every page at three sizes, light and dark.
#[tokio::test]
async fn a_browser_finds_nothing_wrong_on_any_page_and_a_double_click_acts_once() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    history(&fixture).await;
    let serving = Serving::of(&fixture, &["--instance", "staging"], "");
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/console");
    let call = format!("/call?effect_key={CALL}");
    let mut node = Command::new("node");
    node.arg(parts().join("check.mjs"))
        .arg(browser())
        .args([&serving.url, pictures.to_str().unwrap()])
        .args(PAGES)
        .args([&*call, "/find?q=stuck", "/login"])
        .stdin(Stdio::null());
    let run = Run::of(node.output().expect("no node: run `make setup`"));
    assert_eq!(run.code, 0, "{}\n{}", run.out, run.err);
    let picture = pictures.join("queue-queue-q-phone-dark.png");
    assert!(std::fs::metadata(picture).unwrap().len() > 5_000);
    let acts = "select count(*) from pgonce.operator_act where reason like 'a double click%'";
    let row = fixture.client.query_one(acts, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
}

/// The pictures of the README and the book, with the sample data of `pictures.sql`: `make pictures`.
#[tokio::test]
#[ignore = "writes pictures into docs"]
async fn pictures_for_the_book() {
    let fixture = Fixture::installed().await;
    fixture.sql(include_str!("pictures.sql")).await;
    let serving = Serving::of(
        &fixture,
        &["--roles", "console", "--instance", "staging"],
        "",
    );
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/explanation/images");
    let mut node = Command::new("node");
    node.arg(parts().join("pictures.mjs"))
        .arg(browser())
        .args([&serving.url, images.to_str().unwrap()])
        .args([
            "overview=/",
            "intent=/intent?scope=payments.capture&key=pay-1042",
        ])
        .stdin(Stdio::null());
    let run = Run::of(node.output().expect("no node: run `make setup`"));
    assert_eq!(run.code, 0, "{}\n{}", run.out, run.err);
}
