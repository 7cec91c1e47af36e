//! What must not compile, with the compiler's words for it.
//!
//! `PGONCE_UPDATE=1 cargo test -p pgonce-misuse` writes the words anew.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[test]
fn misuse_does_not_compile() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let library = library();
    let mut wrong = Vec::new();
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let case = entry.unwrap().path();
        if case.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        count += 1;
        let (said, kept) = (errors(&library, &case), case.with_extension("stderr"));
        assert_ne!(said, "", "{} compiles", case.display());
        if std::env::var_os("PGONCE_UPDATE").is_some() {
            fs::write(&kept, &said).unwrap();
        }
        let expected = fs::read_to_string(&kept).unwrap_or_default();
        if said != expected {
            wrong.push(format!("{}:\n{said}expected:\n{expected}", case.display()));
        }
    }
    assert!(count > 0, "no cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The library of this package that was built last, which is what this test was built with. No other build of what
/// the cases use is needed then.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let libraries = fs::read_dir(test.parent().unwrap())
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let is_ours = name.starts_with("libpgonce_misuse-") && name.ends_with(".rlib");
            is_ours.then(|| (entry.metadata().unwrap().modified().unwrap(), entry.path()))
        });
    libraries.max().expect("no library beside the test").1
}

/// What the compiler finds wrong with a case: each error with its line, its code, and the notes on it.
fn errors(library: &Path, case: &Path) -> String {
    let output = tempfile::tempdir().unwrap();
    let compiled = Command::new(std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned()))
        .args(["--edition=2024", "--emit=metadata", "--error-format=json"])
        .arg(format!("--extern=pgonce_misuse={}", library.display()))
        .arg(format!(
            "-Ldependency={}",
            library.parent().unwrap().display()
        ))
        .arg("--out-dir")
        .arg(output.path())
        .arg(case)
        .output()
        .expect("rustc is needed to compile the cases");
    let mut said = Vec::new();
    for line in String::from_utf8(compiled.stderr).unwrap().lines() {
        let error: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        let at = &error["spans"][0]["line_start"];
        if error["level"] != "error" || at.is_null() {
            continue;
        }
        let code = error["code"]["code"].as_str().unwrap_or("no code");
        let mut text = format!("line {at}, {code}: {}\n", message(&error));
        for note in error["children"].as_array().unwrap() {
            if note["spans"].as_array().is_some_and(Vec::is_empty) {
                text += &format!("    {}\n", message(note).replace('\n', "\n    "));
            }
        }
        said.push(text);
    }
    // The compiler finds the same fault at several columns.
    said.dedup();
    said.concat()
}

fn message(of: &Value) -> String {
    let message = of["message"].as_str().unwrap();
    message.replace("pgonce_misuse::", "")
}
