//! What a table shows in a cell.

use crate::db::{Row, flag, text};
use crate::html::{Html, el};

/// A column: its heading, the field, and how it is shown.
pub(crate) type Column = (&'static str, &'static str, Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// A key, an id, a code: in a face of equal widths, not broken.
    Code,
    Number,
    /// A number that was counted up to a bound, which several may share: where the column of this name is true, it is at least that.
    Counted(&'static str),
    Time,
    Status,
}

impl Kind {
    pub(crate) const fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::Counted(_))
    }
}

pub(crate) fn cell(row: &Row, field: &str, kind: Kind) -> Html {
    let text = text(row, field);
    let text = text.as_str();
    match kind {
        _ if text.is_empty() => el("span", &[("class", "muted")], "\u{2013}"),
        Kind::Text => Html::text(text),
        Kind::Code => el("code", &[("title", text)], text),
        Kind::Number => Html::text(grouped(text)),
        Kind::Counted(cut) if flag(row, cut) => Html::text(format!("{}+", grouped(text))),
        Kind::Counted(_) => Html::text(grouped(text)),
        Kind::Time => time(text),
        Kind::Status => el(
            "span",
            &[("class", "status"), ("data-status", text)],
            text.replace('_', " "),
        ),
    }
}

/// To the second; the whole of it where the pointer rests. The script adds how long ago.
pub(crate) fn time(text: &str) -> Html {
    let short = text.get(..19).unwrap_or(text).replace('T', " ");
    el("time", &[("datetime", text), ("title", text)], short)
}

/// 1234567 as 1,234,567.
pub(crate) fn grouped(number: &str) -> String {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", number),
    };
    if !digits.bytes().all(|c| c.is_ascii_digit()) {
        return number.to_owned();
    }
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_a_count_that_stopped_says_so() {
        for (number, expected) in [
            ("0", "0"),
            ("999", "999"),
            ("1000", "1,000"),
            ("-1234567", "-1,234,567"),
            ("1.5", "1.5"),
        ] {
            assert_eq!(grouped(number), expected);
        }
        let counted = |n: i64, cut: bool| {
            let row = serde_json::json!({"n": n, "n_cut": cut});
            let row = row.as_object().cloned().unwrap_or_default();
            cell(&row, "n", Kind::Counted("n_cut")).into_string()
        };
        assert_eq!(
            [counted(333, true), counted(1000, true)],
            ["333+", "1,000+"]
        );
        assert_eq!(counted(2500, false), "2,500");
    }
}
