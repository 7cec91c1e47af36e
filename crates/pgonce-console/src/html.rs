//! HTML that is escaped by construction: text and attributes go through [`Html::text`] and [`el`], and there is no way to
//! put a string in as it is, except for a constant.

use std::fmt::Write as _;

/// A piece of a page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Html(String);

impl Html {
    /// Markup that is part of this program.
    pub(crate) fn constant(markup: &'static str) -> Self {
        Self(markup.to_owned())
    }

    /// Text from anywhere.
    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        let mut html = Self::default();
        html.escape(text.as_ref());
        html
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }

    /// The same, with something behind it.
    pub(crate) fn and(mut self, next: impl Into<Self>) -> Self {
        self.0.push_str(&next.into().0);
        self
    }

    fn escape(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                // Directions that make text read as another, and what terminals and copies choke on.
                '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    self.visible(c);
                }
                c if c.is_control() && !matches!(c, '\n' | '\t') => self.visible(c),
                c => self.0.push(c),
            }
        }
    }

    fn visible(&mut self, c: char) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "\\u{{{:x}}}", u32::from(c));
    }
}

impl From<&str> for Html {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Html {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl FromIterator<Html> for Html {
    fn from_iter<I: IntoIterator<Item = Html>>(pieces: I) -> Self {
        Self(pieces.into_iter().map(|piece| piece.0).collect())
    }
}

const VOID: [&str; 4] = ["img", "input", "link", "meta"];

/// An element. Attributes with an empty name are left out, those with an empty value are flags.
pub(crate) fn el(
    name: &'static str,
    attributes: &[(&'static str, &str)],
    inside: impl Into<Html>,
) -> Html {
    let mut html = Html(format!("<{name}"));
    for (attribute, value) in attributes
        .iter()
        .filter(|(attribute, _)| !attribute.is_empty())
    {
        html.0.push(' ');
        html.0.push_str(attribute);
        if !value.is_empty() {
            html.0.push_str("=\"");
            html.escape(value);
            html.0.push('"');
        }
    }
    html.0.push('>');
    if VOID.contains(&name) {
        return html;
    }
    html = html.and(inside);
    html.0.push_str("</");
    html.0.push_str(name);
    html.0.push('>');
    html
}

/// The query part of an address, `?` included; values that are empty are left out.
pub(crate) fn query(pairs: &[(&str, &str)]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
    match query.finish() {
        none if none.is_empty() => none,
        some => format!("?{some}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_text_or_attributes_is_markup() {
        let bad = "\"><script>alert('x')</script>&\u{202e}\u{0}";
        let html = el("a", &[("href", bad), ("hidden", ""), ("", "left out")], bad).into_string();
        assert_eq!(html.matches('<').count(), 2, "{html}");
        assert_eq!(html.matches('"').count(), 2, "{html}");
        assert!(
            html.contains("\\u{202e}\\u{0}") && html.contains(" hidden>"),
            "{html}"
        );
        assert!(!html.contains("left out"));
    }

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(query(&[("q", "a b&c=/"), ("none", "")]), "?q=a+b%26c%3D%2F");
        assert_eq!(query(&[("none", "")]), "");
    }
}
