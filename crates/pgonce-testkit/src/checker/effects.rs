use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Error, Result, wait::connect};

/// One durable change, as a query of the user's own tables shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Effect {
    /// The intent that it is the effect of.
    pub intent: String,
    /// The payload that it was made from, if the tables have it: must be the one that was
    /// acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// How much was moved, in whole units: must be `amount` of the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<i64>,
    /// What it is about: effects of one subject must be in order of `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Place of the effect among those of its subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<i64>,
}

impl Effect {
    /// An effect of which only the intent is known.
    pub fn of(intent: impl Into<String>) -> Self {
        Self {
            intent: intent.into(),
            ..Self::default()
        }
    }

    /// Reads the effects with a query. Its column `intent` is needed; `payload` (jsonb),
    /// `amount` (a whole number), `subject` and `sequence` are looked at where they are there.
    /// Where there is a sequence, the query orders the rows as they took place.
    ///
    /// ```no_run
    /// # async fn example(url: &str) -> pgonce_testkit::Result<()> {
    /// use pgonce_testkit::checker::Effect;
    ///
    /// let effects = Effect::read(url, "select key as intent, amount from orders").await?;
    /// # drop(effects);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn read(url: &str, query: &str) -> Result<Vec<Self>> {
        let query = query.trim().trim_end_matches(';');
        let client = connect(url).await?;
        let statement = format!("select to_jsonb(effect) from (\n{query}\n) as effect");
        let rows = client.query(&statement, &[]).await?;
        rows.iter()
            .map(|row| Self::from_row(row.try_get(0)?))
            .collect()
    }

    fn from_row(row: Value) -> Result<Self> {
        let Value::Object(mut columns) = row else {
            return Err(unfit("the query gave a row without columns"));
        };
        let intent = text(&mut columns, "intent").ok_or_else(|| {
            unfit("a row has no column `intent`, or it is null; write `select … as intent`")
        })?;
        Ok(Self {
            intent,
            payload: columns.remove("payload").filter(|value| !value.is_null()),
            amount: whole(&mut columns, "amount")?,
            subject: text(&mut columns, "subject"),
            sequence: whole(&mut columns, "sequence")?,
        })
    }
}

fn text(columns: &mut Map<String, Value>, name: &str) -> Option<String> {
    match columns.remove(name)? {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

fn whole(columns: &mut Map<String, Value>, name: &str) -> Result<Option<i64>> {
    match columns.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| {
            unfit(&format!(
                "`{name}` is {value}, expected a whole number; give amounts in their smallest unit, \
                 such as `(amount * 100)::bigint as amount`"
            ))
        }),
    }
}

fn unfit(why: &str) -> Error {
    Error::Io {
        what: "read the effects".to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_read_by_the_names_of_its_columns() {
        let row = json!({"intent": 7, "amount": 3, "subject": "acme", "sequence": null});
        let effect = Effect::from_row(row).unwrap();
        assert_eq!(effect.intent, "7");
        assert_eq!((effect.amount, effect.sequence), (Some(3), None));
        assert_eq!(effect.subject.as_deref(), Some("acme"));
    }

    #[test]
    fn a_row_that_does_not_fit_says_what_to_write() {
        let error = Effect::from_row(json!({"key": "a"}))
            .unwrap_err()
            .to_string();
        assert!(error.contains("as intent"), "{error}");
        let error = Effect::from_row(json!({"intent": "a", "amount": 0.5})).unwrap_err();
        assert!(error.to_string().contains("whole number"), "{error}");
    }
}
