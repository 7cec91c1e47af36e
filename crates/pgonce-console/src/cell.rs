//! What a table shows in a cell.

use crate::html::{Html, el};

/// A column: its heading, the field, and how it is shown.
pub(crate) type Column = (&'static str, &'static str, Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// A key, an id, a code: in a face of equal widths, not broken.
    Code,
    Number,
    /// A number that was counted up to this one: from there on it is at least that.
    Counted(u64),
    Time,
    Status,
}

impl Kind {
    pub(crate) const fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::Counted(_))
    }
}

pub(crate) fn cell(text: &str, kind: Kind) -> Html {
    match kind {
        _ if text.is_empty() => el("span", &[("class", "muted")], "\u{2013}"),
        Kind::Text => Html::text(text),
        Kind::Code => el("code", &[("title", text)], text),
        Kind::Number => Html::text(grouped(text)),
        Kind::Counted(max) if text.parse().is_ok_and(|count: u64| count >= max) => {
            Html::text(format!("{}+", grouped(text)))
        }
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
        let counted = |text| cell(text, Kind::Counted(1000)).into_string();
        assert_eq!(
            ["999", "1000", "2500"].map(counted),
            ["999", "1,000+", "2,500+"]
        );
    }
}
