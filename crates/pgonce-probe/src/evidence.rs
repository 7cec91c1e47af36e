//! From answers and counts to conclusions.

use super::answer::{Answer, Response};
use super::finding::{Finding, Found};
use super::prober::{Intent, Prober};

/// One intent, asked for twice.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) intent: Intent,
    pub(super) first: Answer,
    pub(super) again: Response,
    /// Effects that the first request made, and those that the second one made.
    pub(super) made: Option<(i64, i64)>,
}

/// How answers show that something was done a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// Each effect has an id or a place of its own.
    Ids,
    /// Answers differ, though they name one effect or none.
    Bytes,
    /// Not at all.
    Nothing,
}

/// Whether two intents were taken for one.
#[derive(Debug)]
pub(super) enum Meeting {
    Apart,
    Met(String),
    Unclear(String),
}

impl Prober {
    /// The sample that all cases about replays look at.
    pub(super) async fn sample(&self) -> Found<&Sample> {
        self.sample
            .get_or_try_init(async || {
                let before = self.count().await?;
                let intent = self.intent();
                let first = self.accepted(&self.ask(&intent)).await?;
                let made_first = self.made_since(before).await?;
                let between = self.count().await?;
                let again = self.send(&self.ask(&intent)).await;
                let made_again = self.made_since(between).await?;
                Ok(Sample {
                    intent,
                    first,
                    again,
                    made: made_first.zip(made_again),
                })
            })
            .await
    }

    /// Two answers to two intents.
    pub(super) async fn fresh_answers(&self) -> Found<&(Answer, Answer)> {
        self.fresh
            .get_or_try_init(async || {
                let one = self.accepted(&self.ask(&self.intent())).await?;
                let two = self.accepted(&self.ask(&self.intent())).await?;
                Ok((one, two))
            })
            .await
    }

    /// Finds out how answers would show a second run: by doing the same under another key.
    async fn naming(&self) -> Found<Naming> {
        let found = self.naming.get_or_try_init(async || {
            let one = self.intent();
            let two = Intent {
                key: self.token(),
                ..one.clone()
            };
            let one = self.accepted(&self.ask(&one)).await?;
            let two = self.accepted(&self.ask(&two)).await?;
            Ok(if !one.is_of_the_effect_of(&two) {
                Naming::Ids
            } else if !one.is_identical_to(&two) {
                Naming::Bytes
            } else {
                Naming::Nothing
            })
        });
        found.await.copied()
    }

    /// Whether two answers to one intent cannot both be true. Where effects are counted, answers that
    /// merely look different are another case's concern.
    pub(super) fn contradict(&self, one: &Answer, two: &Answer) -> bool {
        match one.names_the_effect_of(two) {
            Some(same) => !same,
            None => !self.counts() && !one.is_identical_to(two),
        }
    }

    /// Whether these answers to one intent come from one effect.
    pub(super) async fn one_effect(&self, answers: &[Answer], made: Option<i64>) -> Found {
        let Some(first) = answers.first() else {
            return Err(Finding::inconclusive("there was no answer to judge"));
        };
        match made {
            Some(1) => {}
            Some(0) => {
                return Err(Finding::fail(format!(
                    "accepted ({first}), and no effect was counted"
                )));
            }
            Some(n) => {
                return Err(Finding::fail(format!(
                    "{n} effects were counted for one key"
                )));
            }
            None => {}
        }
        if let Some(other) = answers.iter().find(|answer| self.contradict(first, answer)) {
            return Err(Finding::fail(format!(
                "one key was given two answers: {first} and {other}"
            )));
        }
        if made.is_some() {
            return Ok(Finding::pass("one effect was counted"));
        }
        let identical = answers.iter().all(|answer| answer.is_identical_to(first));
        match self.naming().await? {
            Naming::Ids => Ok(Finding::pass("all answers name one effect").weak()),
            Naming::Bytes if identical => Ok(Finding::pass("all answers are identical").weak()),
            _ => Err(Finding::inconclusive(
                "the answers are alike, but so are those to two keys: give --count-url, or --id-pointer",
            )),
        }
    }

    /// Whether the second of two intents, whose keys have nothing to do with each other, was taken
    /// for the first.
    pub(super) async fn meeting(
        &self,
        first: &Answer,
        second: &Answer,
        made: Option<i64>,
    ) -> Found<Meeting> {
        if let Some(mark) = second.replay_mark() {
            return Ok(Meeting::Met(format!(
                "the second was answered as a replay ({mark})"
            )));
        }
        if !self.accepts(second) {
            return Ok(match second.status {
                400 | 409 | 422 => Meeting::Met(format!("the second was refused: {second}")),
                _ => Meeting::Unclear(format!("the second was answered {second}")),
            });
        }
        match made {
            Some(2) => return Ok(Meeting::Apart),
            Some(n @ ..=1) => {
                return Ok(Meeting::Met(format!(
                    "both were accepted, and {n} effects were counted"
                )));
            }
            _ => {}
        }
        if !first.is_of_the_effect_of(second) {
            return Ok(Meeting::Apart);
        }
        let (one, two) = self.fresh_answers().await?;
        Ok(if one.is_of_the_effect_of(two) {
            Meeting::Unclear(
                "answers to different intents look alike: give --count-url, or --id-pointer".into(),
            )
        } else {
            Meeting::Met(format!(
                "the second was given the answer of the first: {second}"
            ))
        })
    }
}
