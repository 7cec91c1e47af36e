//! A connection of the test's own, beside those that are tested.

use std::time::Duration;

use pgonce::Intent;
use pgonce_testkit::wait_until;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Far longer than any state takes, even on a machine that is busy.
const DEADLINE: Duration = Duration::from_secs(180);

/// Looks at the database, and plays the second actor in SQL.
#[derive(Debug)]
pub struct Observer {
    client: Client,
}

impl Observer {
    /// Connects.
    pub async fn connect(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self { client }
    }

    /// Runs statements that must not fail.
    pub async fn run(&self, sql: &str) {
        if let Err(error) = self.client.batch_execute(sql).await {
            panic!("{sql}: {error:?}");
        }
    }

    /// The SQLSTATE that statements end with; empty when they succeed.
    pub async fn code(&self, sql: &str) -> String {
        match self.client.batch_execute(sql).await {
            Ok(()) => String::new(),
            Err(error) => error
                .code()
                .unwrap_or_else(|| panic!("{sql}: {error:?}"))
                .code()
                .to_owned(),
        }
    }

    /// The rows of a query, every column as text.
    pub async fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let messages = match self.client.simple_query(sql).await {
            Ok(messages) => messages,
            Err(error) => panic!("{sql}: {error:?}"),
        };
        messages
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(
                    (0..row.len())
                        .map(|i| row.get(i).map(str::to_owned))
                        .collect(),
                ),
                _ => None,
            })
            .collect()
    }

    /// The first column of the first row; empty for null. Panics where there is no row.
    pub async fn text(&self, sql: &str) -> String {
        self.text_if_any(sql)
            .await
            .unwrap_or_else(|| panic!("no row: {sql}"))
    }

    /// The first column of the first row; empty for null, nothing where there is no row (yet).
    pub async fn text_if_any(&self, sql: &str) -> Option<String> {
        let row = self.rows(sql).await.into_iter().next()?;
        Some(row.into_iter().next()?.unwrap_or_default())
    }

    /// The same as a number.
    pub async fn number(&self, sql: &str) -> i64 {
        let text = self.text(sql).await;
        text.parse()
            .unwrap_or_else(|_| panic!("{sql}: {text:?} is not a number"))
    }

    /// How often the effect of an intent happened.
    pub async fn effects(&self, intent: &Intent) -> i64 {
        self.number(&format!(
            "select count(*) from effects where {}",
            names_are(intent)
        ))
        .await
    }

    /// A column of an intent's record; panics when there is none.
    pub async fn record(&self, intent: &Intent, expression: &str) -> String {
        self.text(&format!(
            "select {expression} from pgonce.intent where {}",
            names_are(intent)
        ))
        .await
    }

    /// How many records an intent has.
    pub async fn records(&self, intent: &Intent) -> i64 {
        self.number(&format!(
            "select count(*) from pgonce.intent where {}",
            names_are(intent)
        ))
        .await
    }

    /// Everything that pgonce remembers about intents, to compare.
    pub async fn dump(&self) -> String {
        self.text(
            "select string_agg(i::text, E'\\n' order by tenant, scope, key) from pgonce.intent i",
        )
        .await
    }

    /// Waits until no other session of this database is in a transaction or holds an advisory
    /// lock. (One that waits for nothing and does nothing is clean.)
    pub async fn wait_until_clean(&self) {
        wait_until("no session in a transaction, no advisory lock", DEADLINE, || async {
            let busy = self
                .number(
                    "select (select count(*) from pg_stat_activity where datname = current_database() \
                     and pid <> pg_backend_pid() and backend_type = 'client backend' and state <> 'idle') \
                     + (select count(*) from pg_locks where locktype = 'advisory' \
                     and database = (select oid from pg_database where datname = current_database()))",
                )
                .await;
            busy == 0
        })
        .await
        .unwrap();
    }

    /// Waits until a session of this database and application sleeps on a lock. (The server is
    /// shared: other tests have sessions of the same name.)
    pub async fn wait_until_asleep(&self, application: &str) {
        let sleeps = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' \
                      and state = 'active' and datname = current_database() and application_name";
        self.wait_until(&format!("{sleeps} = '{application}'"))
            .await;
    }

    /// Waits until a query returns true. No row counts as "not yet".
    pub async fn wait_until(&self, sql: &str) {
        let holds = || async { self.text_if_any(sql).await.as_deref() == Some("t") };
        wait_until(sql, DEADLINE, holds).await.unwrap();
    }
}

/// The condition that picks an intent's rows.
pub(crate) fn names_are(intent: &Intent) -> String {
    format!(
        "tenant = {} and scope = {} and key = {}",
        hex_text(intent.tenant_name()),
        hex_text(intent.scope()),
        hex_text(intent.key())
    )
}

/// The fingerprint of an intent, as SQL.
pub fn digest_of(intent: &Intent) -> String {
    let bytes = intent.fingerprint().as_bytes();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("decode('{hex}', 'hex')")
}

/// A text as an SQL expression that needs no quoting rules.
pub fn hex_text(text: &str) -> String {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("convert_from(decode('{hex}', 'hex'), 'UTF8')")
}
