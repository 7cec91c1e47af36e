//! A handler that is a function of the database.

use std::sync::Arc;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Message, Tx};
use pgonce::{Error, Failure, Result};
use pgonce_broker::Handler;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::types::{ToSql, Type};

/// Calls a function with a message, or with many, in the transaction that marks them as applied.
#[derive(Debug)]
pub(super) struct SqlFunction {
    statement: String,
    batches: bool,
}

/// What the function gets. The payload stays as it is written: numbers keep all their digits.
#[derive(serde::Serialize)]
struct Argument<'m> {
    id: &'m str,
    source: &'m str,
    tenant: &'m str,
    key: Option<&'m str>,
    #[serde(rename = "type")]
    kind: Option<&'m str>,
    headers: &'m serde_json::Map<String, Value>,
    payload: &'m RawValue,
}

impl SqlFunction {
    pub(super) fn new(function: &str, batches: bool) -> Self {
        Self {
            statement: format!("select {function}($1::pg_catalog.text::pg_catalog.jsonb)"),
            batches,
        }
    }

    fn argument(message: &Message) -> Result<Argument<'_>> {
        let unreadable = |error| Error::from(Failure::permanent("not_json", format!("{error}")));
        let payload = serde_json::from_slice(&message.payload);
        Ok(Argument {
            id: &message.id,
            source: &message.source,
            tenant: &message.tenant,
            key: message.key.as_deref(),
            kind: message.kind.as_deref(),
            headers: &message.headers,
            payload: payload.map_err(unreadable)?,
        })
    }

    async fn call(&self, tx: &mut Tx<TokioPostgres>, messages: &[Arc<Message>]) -> Result<()> {
        let all: Vec<_> = messages
            .iter()
            .map(|message| Self::argument(message))
            .collect::<Result<_>>()?;
        let text = match (self.batches, all.as_slice()) {
            (false, [one]) => serde_json::to_string(one)?,
            _ => serde_json::to_string(&all)?,
        };
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&text, Type::TEXT)];
        let called = tx.conn().query_typed(&self.statement, &params);
        called
            .await
            .map(drop)
            .map_err(|error| match error.as_db_error() {
                // What the function raises to say that it never will be.
                Some(raised) if raised.code().code() == "P4030" => {
                    Failure::permanent("P4030", raised.message()).into()
                }
                _ => error.into(),
            })
    }
}

impl Handler<TokioPostgres> for SqlFunction {
    async fn apply(&self, mut tx: Tx<TokioPostgres>, message: Arc<Message>) -> Result<()> {
        self.call(&mut tx, &[message]).await
    }

    async fn apply_all(
        &self,
        mut tx: Tx<TokioPostgres>,
        messages: Vec<Arc<Message>>,
    ) -> Option<Result<()>> {
        match self.batches {
            true => Some(self.call(&mut tx, &messages).await),
            false => None,
        }
    }

    fn applies_batches(&self) -> bool {
        self.batches
    }
}

/// Whether it is a name, or a name in a schema, that needs no quotes.
pub(crate) fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let mut chars = part.chars();
        chars
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    (1..=2).contains(&text.split('.').count()) && text.split('.').all(is_part)
}
