//! What `redact` names is hidden, however a document says it.

use pgonce::unstable::json::read_exact;
use serde_json::Value;

use crate::db::Row;

const HIDDEN: &str = "\u{2022}\u{2022}\u{2022}";

/// How deep texts that are JSON themselves are looked into, such as the body of a response of HTTP.
const TEXTS: u8 = 4;

/// Replaces the values of members with these names, in a column that is a JSON document. What could have such a member and cannot be
/// searched is hidden whole.
pub(super) fn hide(row: &mut Row, column: &str, members: &[String]) {
    if members.is_empty() {
        return;
    }
    let Some(text) = row.get(column).and_then(Value::as_str) else {
        return;
    };
    let shown = match read_exact(text) {
        Ok(mut answer) => {
            walk(&mut answer, members, TEXTS);
            format!("{answer:#}")
        }
        Err(_) => HIDDEN.to_owned(),
    };
    row.insert(column.to_owned(), Value::from(shown));
}

fn walk(value: &mut Value, members: &[String], texts: u8) {
    match value {
        // Bytes that are no text, or a text that was compressed.
        Value::Object(map) if map.len() == 1 && map.contains_key("base64") => {
            *value = HIDDEN.into();
        }
        Value::Object(map) => {
            for (name, value) in map {
                match members.contains(name) {
                    true => *value = HIDDEN.into(),
                    false => walk(value, members, texts),
                }
            }
        }
        Value::Array(list) => {
            let parts = list.iter_mut();
            parts.for_each(|value| walk(value, members, texts));
        }
        // What was nested too deeply to be read is text too.
        Value::String(text) => {
            let is_json = text.trim_start().starts_with(['{', '[', '"']);
            match read_exact(text) {
                // Written again, since of two members with one name only one was searched.
                Ok(mut read) if is_json && texts > 0 => {
                    walk(&mut read, members, texts - 1);
                    *text = read.to_string();
                }
                Ok(_) if !is_json => {}
                Err(_) if !text.contains('{') => {}
                _ => *text = HIDDEN.to_owned(),
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::db::text;

    #[test]
    fn no_way_to_write_a_text_shows_a_hidden_member() {
        for body in [
            "\n{\"pan\":\"4111\"}".to_owned(),
            r#"{"p\u0061n":"4111"}"#.to_owned(),
            r#"{"a":{"pan":"4111"},"a":1}"#.to_owned(),
            "\u{feff}{\"pan\":\"4111\"}".to_owned(),
            "{\"id\":1}\n{\"pan\":\"4111\"}".to_owned(),
            "data: {\"pan\":\"4111\"}".to_owned(),
            json!(json!({"pan": "4111"}).to_string()).to_string(),
            r#""\u007b\"pan\":\"4111\"}""#.to_owned(),
        ] {
            let answer = json!({"status": 201, "body": body}).to_string();
            let mut row = Row::from_iter([("answer".to_owned(), Value::from(answer))]);
            hide(&mut row, "answer", &["pan".to_owned()]);
            let shown = text(&row, "answer");
            assert!(!shown.contains("4111") && shown.contains("201"), "{shown}");
        }
        // A member and its value, in base64.
        let answer = r#"{"status": 201, "body": {"base64": "eyJwYW4iOiI0MTExIn0="}}"#;
        let mut row = Row::from_iter([("answer".to_owned(), Value::from(answer))]);
        hide(&mut row, "answer", &["pan".to_owned()]);
        let shown = text(&row, "answer");
        assert!(!shown.contains("eyJw") && shown.contains("201"), "{shown}");
        // A text without end, or within texts without end, is not searched without end.
        let mut nested = json!({"pan": "4111"});
        (0..10).for_each(|_| nested = nested.to_string().into());
        for body in [Value::from("[".repeat(1_000_000)), nested] {
            let answer = json!({ "body": body }).to_string();
            let mut row = Row::from_iter([("answer".to_owned(), Value::from(answer))]);
            hide(&mut row, "answer", &["pan".to_owned()]);
            assert!(!text(&row, "answer").contains("4111"));
        }
    }

    #[test]
    fn what_has_no_hidden_member_is_shown() {
        let answer = json!({"body": "{\"id\":7,\"name\":\"ada\"}", "note": "no such order", "list": "[1, 2", "n": "12"}).to_string();
        let mut row = Row::from_iter([("answer".to_owned(), Value::from(answer.as_str()))]);
        hide(&mut row, "answer", &["pan".to_owned()]);
        let shown: Value = serde_json::from_str(&text(&row, "answer")).unwrap();
        assert_eq!(shown, serde_json::from_str::<Value>(&answer).unwrap());
    }

    #[test]
    fn hidden_members_are_hidden_at_any_depth() {
        let mut row = Row::new();
        row.insert(
            "answer".to_owned(),
            Value::from(r#"{"card":{"pan":"4111 1111","a":[{"pan":1}]},"id":7}"#),
        );
        hide(&mut row, "answer", &["pan".to_owned()]);
        let shown = text(&row, "answer");
        assert!(
            !shown.contains("4111 1111")
                && shown.matches('\u{2022}').count() == 6
                && shown.contains("\"id\": 7"),
            "{shown}"
        );
    }

    #[test]
    fn what_no_value_holds_is_shown_without_what_is_hidden() {
        let deep = format!(
            r#"{}{{"pan":"4111 1111"}}{}"#,
            "[".repeat(300),
            "]".repeat(300)
        );
        let answer = format!(r#"{{"far":1e400,"sum":12345678901234567.25,"pan":1,"deep":{deep}}}"#);
        let mut row = Row::from_iter([("answer".to_owned(), Value::from(answer))]);
        hide(&mut row, "answer", &["pan".to_owned()]);
        let shown = text(&row, "answer");
        assert!(!shown.contains("4111 1111"), "{shown}");
        assert!(
            shown.contains("1e400") && shown.contains("12345678901234567.25"),
            "{shown}"
        );
    }
}
