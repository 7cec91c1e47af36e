//! `pgonce codes`.

use pgonce::retry::{self, Entry, GROUPS, TABLE};
use serde_json::json;

use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

/// Which codes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this SQLSTATE, such as 40001.
    code: Option<String>,
}

pub(crate) fn run(args: &Args, format: Format) -> Result {
    let entries: Vec<&Entry> = match &args.code {
        None => TABLE.iter().chain(GROUPS).collect(),
        Some(code) => vec![retry::lookup(&code.to_ascii_uppercase()).ok_or_else(|| {
            CliError::new(
                exit::NOT_FOUND,
                format!("there is no entry for code {code:?}"),
                "Whatever is not in the table is final: report it. `pgonce codes` prints the table.",
            )
        })?],
    };
    let rows: Vec<String> = entries
        .into_iter()
        .map(|entry| {
            // Two characters stand for all codes that start with them. Written by hand, for the order.
            let code = if entry.code.len() < 5 {
                format!("{}...", entry.code)
            } else {
                entry.code.to_owned()
            };
            format!(
                r#"{{"code":{},"name":{},"class":{},"advice":{}}}"#,
                json!(code),
                json!(entry.name),
                json!(entry.class.as_str()),
                json!(entry.advice)
            )
        })
        .collect();
    output::rows(format, &rows, "no codes")
}
