//! Runs the examples of the SQL reference the way psql would.

use tokio_postgres::{Client, Error, SimpleQueryMessage};

/// Runs an example in a transaction that is rolled back, so that examples do not meet. `begin` and
/// `commit` of the example itself count for nothing; `\gset` stores the columns of a row under
/// their names, and `:name` puts a value in.
pub async fn run_example(client: &Client, example: &str) -> Result<(), Error> {
    client.batch_execute("begin").await?;
    let ran = run(client, example).await;
    client.batch_execute("rollback").await?;
    ran
}

async fn run(client: &Client, example: &str) -> Result<(), Error> {
    let mut values: Vec<(String, String)> = Vec::new();
    let mut pending = String::new();
    for line in example.lines() {
        if line.starts_with("--") || matches!(line, "begin;" | "commit;") {
            continue;
        }
        let (text, stores) = match line.strip_suffix("\\gset") {
            Some(text) => (text, true),
            None => (line, false),
        };
        pending.push_str(text);
        pending.push('\n');
        if !stores && !text.ends_with(';') {
            continue;
        }
        let mut sql = std::mem::take(&mut pending);
        for (name, value) in &values {
            let quoted = format!("'{}'", value.replace('\'', "''"));
            sql = sql.replace(&format!(":'{name}'"), &quoted);
            sql = sql.replace(&format!(":{name}"), value);
        }
        let messages = client.simple_query(&sql).await?;
        if stores {
            let row = messages.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row),
                _ => None,
            });
            let row = row.expect("\\gset needs a row");
            for (column, n) in row.columns().iter().zip(0..) {
                let value = row.get(n).unwrap_or("null").to_owned();
                values.push((column.name().to_owned(), value));
            }
        }
    }
    assert_eq!(pending, "", "a statement without its end");
    Ok(())
}
