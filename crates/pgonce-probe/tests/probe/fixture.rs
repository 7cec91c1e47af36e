//! Services on free ports, and what the probe said about them.

use std::collections::BTreeSet;
use std::process::Stdio;

use axum::Router;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::Command;

/// Serves until the test's runtime ends; gives the address.
pub(crate) async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the program as its users do.
pub(crate) async fn probe(args: &[&str]) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_pgonce-probe"))
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    Run {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Run {
    /// The report, where it was asked for as JSON.
    pub(crate) fn report(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The cases with this outcome.
    pub(crate) fn with_outcome(&self, outcome: &str) -> BTreeSet<String> {
        let report = self.report();
        let cases = report["cases"].as_array().unwrap();
        cases
            .iter()
            .filter(|case| case["outcome"] == outcome)
            .map(|case| case["case"].as_str().unwrap().to_owned())
            .collect()
    }

    /// All that is not a pass, a line each.
    pub(crate) fn blamed(&self) -> String {
        let report = self.report();
        let cases = report["cases"].as_array().unwrap().iter();
        cases
            .filter(|case| case["outcome"] != "pass")
            .map(|case| {
                format!(
                    "  {} {} {}\n",
                    case["case"], case["outcome"], case["observed"]
                )
            })
            .collect()
    }

    /// One case of the report.
    pub(crate) fn case(&self, name: &str) -> Value {
        let report = self.report();
        let cases = report["cases"].as_array().unwrap();
        let found = cases.iter().find(|case| case["case"] == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {report}"))
            .clone()
    }
}

pub(crate) fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// All that the probe can be given about the payments API.
pub(crate) fn everything_about(address: &str) -> Vec<String> {
    let words = [
        &format!("{address}/payments"),
        "--body",
        r#"{"to": "bob", "amount": {{number}}}"#,
        "--error-body",
        r#"{"amount": -1}"#,
        "--late",
        "3s",
        "--header",
        "X-User: ada",
        "--other-header",
        "X-User: bob",
        "--other-url",
        &format!("{address}/refunds"),
        "--count-url",
        &format!("{address}/count"),
        "--count-pointer",
        "/count",
        "--settle",
        "150ms",
        "--format",
        "json",
    ];
    words.map(str::to_owned).to_vec()
}

/// Probes it with all of it, and more options.
pub(crate) async fn probe_all(address: &str, more: &[&str]) -> Run {
    let words = everything_about(address);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    probe(&[&words[..], more].concat()).await
}
