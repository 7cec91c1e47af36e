//! The console in a browser: our script runs on every page, nobody else's does, and pictures for people to look at.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::console::{PAGES, fill};
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

fn chromium(profile: &Path, args: &[&str]) -> Run {
    let mut command = Command::new(browser());
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--disable-dev-shm-usage",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(args)
        .stdin(Stdio::null());
    Run::of(command.output().unwrap())
}

#[tokio::test]
async fn a_browser_runs_our_script_on_every_page_and_nobody_elses() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &["--instance", "staging"], "");
    let profile = tempfile::tempdir().unwrap();
    for page in PAGES {
        let address = format!("{}{page}", serving.url);
        let run = chromium(profile.path(), &["--dump-dom", &address]);
        assert!(
            run.out.contains("<main id=\"main\"")
                && run.out.contains("\u{b7} staging \u{b7} pgonce</title>"),
            "{page}: {run:?}"
        );
        // Our script ran: it says how long ago things were.
        if run.out.contains("<time ") {
            assert!(
                run.out.contains(" ago</small>") || run.out.contains("<small>in "),
                "{page}: {}",
                run.out
            );
        }
        let complaints: Vec<_> = run
            .err
            .lines()
            .filter(|line| line.contains("CONSOLE"))
            .collect();
        assert!(complaints.is_empty(), "{page}: {complaints:?}");
    }
    // For people to look at: target/console/*.png.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/console");
    std::fs::create_dir_all(&folder).unwrap();
    for (page, name) in [
        ("/", "overview"),
        ("/intent?scope=s&key=stuck", "intent"),
        ("/outbox?subscription=s", "outbox"),
    ] {
        for (size, width) in [
            ("390,844", "phone"),
            ("820,1180", "tablet"),
            ("1440,900", "desktop"),
        ] {
            let file = folder.join(format!("{name}-{width}.png"));
            let _ = std::fs::remove_file(&file);
            let shot = format!("--screenshot={}", file.display());
            chromium(
                profile.path(),
                &[
                    &shot,
                    &format!("--window-size={size}"),
                    &format!("{}{page}", serving.url),
                ],
            );
            assert!(
                std::fs::metadata(&file).unwrap().len() > 5_000,
                "{}",
                file.display()
            );
        }
    }
}
