use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, Write},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, Result, error::Attempt};

/// What came of an attempt, as its client knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is done, and this is the answer.
    Success(Value),
    /// This attempt has definitely done nothing: a code, such as `busy` or `P4002`. Another
    /// attempt may have, or may still.
    Failed(String),
    /// Nobody knows whether it was done: why, such as a lost connection.
    Unknown(String),
}

/// A line of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Entry {
    /// Somebody asked.
    Invoke {
        /// What is asked for; the same over all attempts.
        intent: String,
        /// Which attempt; unique in the history.
        attempt: u64,
        /// The payload of this attempt.
        payload: Value,
        /// Microseconds since the history began.
        at: u64,
    },
    /// Somebody was answered, or gave up.
    Outcome {
        /// Which attempt.
        attempt: u64,
        /// What came of it.
        outcome: Outcome,
        /// Microseconds since the history began.
        at: u64,
    },
    /// Something rare was seen, that a test must not miss.
    Saw {
        /// Name of the state.
        state: String,
        /// How many times.
        times: u64,
    },
}

/// Who asked for what, when, and what they got as answers: everything that clients know, and nothing
/// that the system under test says about itself. Kept outside of the database, so that no fault
/// can take it along.
///
/// ```
/// use pgonce_testkit::{History, Outcome};
/// use serde_json::json;
///
/// let history = History::new();
/// let attempt = history.invoke("order-1", json!({"amount": 3}));
/// history.outcome(attempt, Outcome::Success(json!({"id": 7})));
///
/// let kept = history.to_json_lines();
/// let again = History::read(kept.as_bytes())?;
/// assert_eq!(again.entries(), history.entries());
/// # Ok::<(), pgonce_testkit::Error>(())
/// ```
#[derive(Debug)]
pub struct History {
    began: Instant,
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    attempts: u64,
    entries: Vec<Entry>,
    file: Option<File>,
    trouble: Option<std::io::Error>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            written: Mutex::default(),
        }
    }
}

impl History {
    /// An empty history in memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty history that also writes every line to a new file at once, so that it survives
    /// the end of this process.
    pub fn in_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::create(path).attempt(|| format!("create {}", path.display()))?;
        let history = Self::new();
        history.lock().file = Some(file);
        Ok(history)
    }

    /// A history from its JSON lines.
    pub fn read(lines: impl BufRead) -> Result<Self> {
        let history = Self::new();
        for (index, line) in lines.lines().enumerate() {
            let which = || format!("read line {} of a history", index + 1);
            let line = line.attempt(which)?;
            if line.trim().is_empty() {
                continue;
            }
            let entry: Entry = serde_json::from_str(&line).attempt(which)?;
            let mut written = history.lock();
            if let Entry::Invoke { attempt, .. } = &entry {
                written.attempts = written.attempts.max(attempt + 1);
            }
            written.entries.push(entry);
        }
        Ok(history)
    }

    /// Somebody asks; to be called before anything is sent. Gives the attempt's number.
    pub fn invoke(&self, intent: impl Into<String>, payload: Value) -> u64 {
        let mut written = self.lock();
        let attempt = written.attempts;
        written.attempts += 1;
        let intent = intent.into();
        let at = self.now();
        written.add(Entry::Invoke {
            intent,
            attempt,
            payload,
            at,
        });
        attempt
    }

    /// An attempt has ended for its client. An attempt without an outcome counts as unknown.
    pub fn outcome(&self, attempt: u64, outcome: Outcome) {
        let mut written = self.lock();
        let at = self.now();
        written.add(Entry::Outcome {
            attempt,
            outcome,
            at,
        });
    }

    /// Something rare was seen once: see [`Coverage`](crate::checker::Coverage).
    pub fn saw(&self, state: impl Into<String>) {
        self.saw_times(state, 1);
    }

    /// Something rare was seen so many times.
    pub fn saw_times(&self, state: impl Into<String>, times: u64) {
        let state = state.into();
        self.lock().add(Entry::Saw { state, times });
    }

    /// All lines so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().entries.clone()
    }

    /// All lines as JSON, one each.
    pub fn to_json_lines(&self) -> String {
        let written = self.lock();
        written.entries.iter().map(line_of).collect()
    }

    /// Whether every line reached the file, where there is one.
    pub fn written(&self) -> Result<()> {
        match self.lock().trouble.take() {
            None => Ok(()),
            Some(source) => Err(Error::Io {
                what: "write a line of the history".to_owned(),
                source,
            }),
        }
    }

    /// The attempts in the order in which they were made.
    pub(crate) fn attempts(&self) -> Vec<Attempted> {
        let written = self.lock();
        let mut attempts = BTreeMap::new();
        for entry in &written.entries {
            match entry {
                Entry::Invoke {
                    intent,
                    attempt,
                    payload,
                    at,
                } => {
                    attempts.insert(*attempt, Attempted::new(*attempt, intent, payload, *at));
                }
                Entry::Outcome {
                    attempt,
                    outcome,
                    at,
                } => {
                    if let Some(found) = attempts.get_mut(attempt) {
                        found.outcome = Some((outcome.clone(), *at));
                    }
                }
                Entry::Saw { .. } => {}
            }
        }
        attempts.into_values().collect()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    fn add(&mut self, entry: Entry) {
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(line_of(&entry).as_bytes())
        {
            self.trouble.get_or_insert(error);
        }
        self.entries.push(entry);
    }
}

fn line_of(entry: &Entry) -> String {
    let text = serde_json::to_string(entry).expect("texts, numbers and JSON values always fit");
    text + "\n"
}

/// One attempt, with its outcome and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempted {
    /// Number of the attempt.
    pub attempt: u64,
    /// The intent that it was about.
    pub intent: String,
    /// Payload of the attempt.
    pub payload: Value,
    /// When it asked, in microseconds since the history began.
    pub asked_at: u64,
    /// Its outcome, and when; nothing if the client never got one.
    pub outcome: Option<(Outcome, u64)>,
}

impl Attempted {
    fn new(attempt: u64, intent: &str, payload: &Value, asked_at: u64) -> Self {
        Self {
            attempt,
            intent: intent.to_owned(),
            payload: payload.clone(),
            asked_at,
            outcome: None,
        }
    }

    pub(crate) fn answer(&self) -> Option<&Value> {
        match &self.outcome {
            Some((Outcome::Success(answer), _)) => Some(answer),
            _ => None,
        }
    }

    /// Its outcome is that it has done nothing.
    pub(crate) fn failed(&self) -> bool {
        matches!(self.outcome, Some((Outcome::Failed(_), _)))
    }

    pub(crate) fn ended_at(&self) -> u64 {
        self.outcome.as_ref().map_or(u64::MAX, |(_, at)| *at)
    }
}
