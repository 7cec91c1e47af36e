//! Imports, beside plain COPY of the same file into the same table.

use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use deadpool_postgres::{Manager, Pool};
use futures_util::SinkExt as _;
use pgonce::import::{Import, Input};
use pgonce::tokio_postgres::Once;
use tokio::io::AsyncReadExt as _;
use tokio_postgres::{Client, NoTls};

use super::Result;
use super::report::{Budget, Line, Unit};
use super::server::{Server, connect};

const TABLE: &str = "create table load (id bigint primary key, name text not null, note text, amount bigint, at timestamptz)";
const COPY: &str = "copy load from stdin (format csv, header)";

/// Turns of each side.
const ROUNDS: usize = 3;

fn write(path: &Path, rows: u64) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::fs::File::create(path)?);
    writeln!(out, "id,name,note,amount,at")?;
    for n in 0..rows {
        writeln!(
            out,
            "{n},name of {n},\"a note, in quotes, of some length, {n:012}\",{},2026-01-01T00:00:00Z",
            n * 7
        )?;
    }
    out.flush()
}

async fn copy(client: &Client, path: &Path) -> Result<()> {
    let mut file = tokio::fs::File::open(path).await?;
    let mut sink = std::pin::pin!(client.copy_in::<_, Bytes>(COPY).await?);
    let mut piece = vec![0; 256 * 1024];
    loop {
        let n = file.read(&mut piece).await?;
        if n == 0 {
            break;
        }
        sink.send(Bytes::copy_from_slice(&piece[..n])).await?;
    }
    sink.finish().await?;
    Ok(())
}

pub(super) async fn measure(server: &Server, rows: u64) -> Result<Vec<Line>> {
    let url = server.database("import").await?;
    let client = connect(&url).await?;
    client.batch_execute(TABLE).await?;
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
        .max_size(2)
        .build()?;
    let once = Once::tokio_postgres(pool);
    let path = std::env::temp_dir().join(format!("pgonce-bench-{}.csv", std::process::id()));
    let file = path.clone();
    tokio::task::spawn_blocking(move || write(&file, rows)).await??;
    let (mut plain, mut imported, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        client.batch_execute("truncate load; checkpoint").await?;
        let begun = Instant::now();
        copy(&client, &path).await?;
        plain.push(rows as f64 / begun.elapsed().as_secs_f64());

        client.batch_execute("truncate load; checkpoint").await?;
        for (rates, job, applied) in [(&mut imported, "first", rows), (&mut again, "again", 0)] {
            let import = Import::into_table(format!("{job}-{round}"), "public.load");
            let begun = Instant::now();
            let report = once
                .import(&import, Input::File(path.clone()), |_| ())
                .await?;
            rates.push(rows as f64 / begun.elapsed().as_secs_f64());
            if (report.rows.rows, report.rows.applied) != (rows, applied) {
                return Err(format!("the import did something else: {report:?}").into());
            }
        }
    }
    let _ = std::fs::remove_file(&path);
    drop((once, client));
    server.remove(&url).await?;
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let (plain, imported, again) = (
        median(&mut plain),
        median(&mut imported),
        median(&mut again),
    );
    Ok(vec![
        Line::new("import ÷ plain COPY", imported / plain, Unit::Ratio)
            .within(Budget::AtLeast(0.5)),
        Line::new(
            "import of rows that are there ÷ plain COPY",
            again / plain,
            Unit::Ratio,
        ),
        Line::new("import, rows", imported, Unit::PerSecond),
        Line::new("plain COPY, rows", plain, Unit::PerSecond),
    ])
}
