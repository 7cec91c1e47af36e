//! `pgonce lost`: acknowledged intents that the database does not know as acknowledged.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

/// Which intents were acknowledged.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Acknowledged intents, one JSON object a line: scope and key, and where they are known
    /// tenant, fingerprint (in hex) and answer. `-` reads stdin.
    file: PathBuf,
    /// Show at most so many in the table; with --format json all are printed.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

/// So many are asked about at once, and so long may a line be: memory stays bounded whatever the
/// length of the file.
const BATCH: usize = 1000;
const MAX_LINE_BYTES: u64 = 1 << 20;

/// A line of the file. What else a log has in a line is not looked at.
#[derive(Debug, Serialize, Deserialize)]
struct Acknowledged {
    #[serde(default)]
    tenant: String,
    scope: String,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    /// Absent is "not known"; null is an answer. As it is written: a number may have more digits than a float.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    answer: Option<Box<RawValue>>,
}

fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(deserializer).map(Some)
}

/// A stored answer is compared only where both sides have one: a contract may keep none, and a
/// tombstone has lost its own.
const LOST: &str = "
select case
           when i.key is null then 'missing'
           when a.fingerprint is not null and i.fingerprint <> decode(a.fingerprint, 'hex') then 'other request'
           when i.status = 'failed_final' then 'refused'
           when i.status <> 'succeeded' then 'unfinished'
           else 'other answer'
       end as finding,
       a.tenant, a.scope, a.key, i.status, a.answer as acknowledged, i.answer as recorded
  from jsonb_array_elements($1::text::jsonb) with ordinality as e (line, place)
  cross join lateral (
    select e.line ->> 'tenant' as tenant, e.line ->> 'scope' as scope, e.line ->> 'key' as key,
           e.line ->> 'fingerprint' as fingerprint, e.line -> 'answer' as answer
  ) as a
  left join pgonce.intent i on i.tenant = a.tenant and i.scope = a.scope and i.key = a.key
 where i.key is null or i.status <> 'succeeded'
    or i.fingerprint <> decode(a.fingerprint, 'hex')
    or i.answer <> a.answer
 order by e.place";

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let mut lines = Lines::open(&args.file)?;
    let database = target.installed().await?;
    database.require_intents().await?;
    let (mut checked, mut lost, mut shown) = (0_usize, 0_usize, Vec::new());
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    loop {
        let batch = lines.batch()?;
        if batch.is_empty() {
            break;
        }
        checked += batch.len();
        for row in ask(&database, &batch).await? {
            lost += 1;
            match database.format {
                Format::Json => exit::before_verdict(output::next_row(&row))?,
                Format::Table if shown.len() < limit => shown.push(row),
                Format::Table => {}
            }
        }
    }
    if checked == 0 {
        return Err(CliError::new(
            exit::USAGE,
            format!("{} holds no acknowledged intent", lines.name),
            "Nothing was checked. Give it the acknowledged intents, one JSON object a line.",
        ));
    }
    if lost == 0 {
        let words = format!("All {checked} acknowledged intents are here.");
        return match database.format {
            Format::Table => output::line(&words),
            Format::Json => Ok(()),
        };
    }
    if database.format == Format::Table {
        exit::before_verdict(output::rows(Format::Table, &shown, ""))?;
    }
    Err(CliError::new(
        exit::FAILED,
        format!(
            "{lost} of {checked} acknowledged intents are not here as they were acknowledged{}",
            if shown.len() < lost && database.format == Format::Table {
                format!("; the first {} are shown", shown.len())
            } else {
                String::new()
            }
        ),
        "Send the missing and unfinished ones again, each under its old key, or reconcile them with the \
         callers: see the page on failover.",
    ))
}

async fn ask(database: &Database, batch: &[Acknowledged]) -> Result<Vec<String>> {
    let batch = serde_json::to_string(batch)?;
    database.read(LOST, &[Some(&batch)]).await
}

/// The lines of the file, some at a time.
struct Lines {
    from: Box<dyn BufRead>,
    name: String,
    read: usize,
}

impl Lines {
    fn open(file: &PathBuf) -> Result<Self> {
        let name = file.display().to_string();
        let from: Box<dyn BufRead> = if name == "-" {
            Box::new(BufReader::new(io::stdin()))
        } else {
            let opened = File::open(file).map_err(|error| {
                CliError::new(
                    exit::USAGE,
                    format!("{name} cannot be read: {error}"),
                    "Name a file of JSON lines, or - for stdin.",
                )
            })?;
            Box::new(BufReader::new(opened))
        };
        let name = if name == "-" {
            "stdin".to_owned()
        } else {
            name
        };
        Ok(Self {
            from,
            name,
            read: 0,
        })
    }

    fn batch(&mut self) -> Result<Vec<Acknowledged>> {
        let mut batch = Vec::new();
        // Long answers count too, not only how many they are.
        let mut bytes = 0;
        while batch.len() < BATCH && bytes < MAX_LINE_BYTES {
            let Some(line) = self.line()? else { break };
            bytes += line.len() as u64;
            if !line.trim().is_empty() {
                batch.push(self.parse(&line)?);
            }
        }
        Ok(batch)
    }

    fn line(&mut self) -> Result<Option<String>> {
        self.read += 1;
        let mut line = String::new();
        let read = (&mut self.from)
            .take(MAX_LINE_BYTES + 1)
            .read_line(&mut line)
            .map_err(|error| self.unfit(&format!("cannot be read: {error}")))?;
        match read as u64 {
            0 => Ok(None),
            1..=MAX_LINE_BYTES => Ok(Some(line)),
            _ => Err(self.unfit("is longer than 1 MiB")),
        }
    }

    fn parse(&self, line: &str) -> Result<Acknowledged> {
        let read: Acknowledged = serde_json::from_str(line)
            .map_err(|error| self.unfit(&format!("does not fit: {error}")))?;
        let hex = |text: &String| {
            text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if !read.fingerprint.as_ref().is_none_or(hex) {
            return Err(self.unfit("has a fingerprint that is not hexadecimal"));
        }
        if [&read.tenant, &read.scope, &read.key]
            .iter()
            .any(|name| name.contains('\0'))
        {
            return Err(
                self.unfit("has a name with a NUL character, which PostgreSQL cannot store")
            );
        }
        Ok(read)
    }

    fn unfit(&self, why: &str) -> CliError {
        CliError::new(
            exit::USAGE,
            format!("line {} of {} {why}", self.read, self.name),
            r#"Write one object a line: {"scope": "orders.create", "key": "0190f5a2-7c3e", "answer": {"id": 7}}"#,
        )
    }
}
