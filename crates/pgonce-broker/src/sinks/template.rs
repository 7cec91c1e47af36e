//! Names made of an event's own words.

use pgonce::outbox::Message;

use super::Refusal;

/// Reads a word from an event.
type Word = fn(&Message) -> &str;

const KNOWN: [(&str, Word); 4] = [
    ("topic", |message| &message.topic),
    ("type", |message| &message.kind),
    ("subject", |message| &message.subject),
    ("tenant", |message| &message.tenant),
];

/// The name of a place at the other side, with `{topic}`, `{type}`, `{subject}` and `{tenant}` filled in
/// from the event.
///
/// ```
/// use pgonce_broker::sinks::Template;
///
/// assert!("events.{topic}".parse::<Template>().is_ok());
/// let refusal = "events.{tpoic}".parse::<Template>().unwrap_err();
/// assert!(refusal.to_string().contains("{topic}, {type}, {subject}, {tenant}"));
/// ```
#[derive(Debug, Clone)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Word(Word),
}

impl Template {
    /// `{topic}`: what most people want.
    pub(super) fn topic() -> Self {
        Self {
            text: "{topic}".to_owned(),
            parts: vec![Part::Word(KNOWN[0].1)],
        }
    }

    /// The name for one event.
    pub fn fill(&self, message: &Message) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text,
            Part::Word(word) => word(message),
        });
        parts.collect()
    }

    /// The name, if it is the same for every event.
    pub fn fixed(&self) -> Option<&str> {
        let all = |part: &Part| matches!(part, Part::Text(_));
        self.parts.iter().all(all).then_some(&*self.text)
    }
}

impl std::str::FromStr for Template {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let wrong = || Refusal::BadOption {
            option: "template".to_owned(),
            value: text.to_owned(),
            expected: "a text that may hold {topic}, {type}, {subject}, {tenant}, and is not empty"
                .to_owned(),
        };
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(wrong)?;
            let (_, word) = KNOWN
                .iter()
                .find(|(known, _)| *known == name)
                .ok_or_else(wrong)?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Word(*word));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        if parts.is_empty()
            || text.replace("{", "").matches('}').count() != text.matches('{').count()
        {
            return Err(wrong());
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }
}

impl std::fmt::Display for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}
