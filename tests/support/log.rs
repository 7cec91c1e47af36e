//! A relay in slow motion: reads the outbox step by step, by the same SQL functions.

use serde_json::json;

use crate::Observer;

/// One event as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its number in the log.
    pub seq: i64,
    /// Its lane.
    pub lane: i64,
    /// send, hold or wait.
    pub act: String,
    /// What it is about.
    pub subject: String,
    /// The field `n` of its payload.
    pub n: String,
    /// Its message id.
    pub id: String,
}

/// Holds lanes of a consumer and remembers how far they are.
#[derive(Debug)]
pub struct LogReader {
    see: Observer,
    consumer: String,
    owner: String,
    /// Lane, epoch, cursor.
    pub held: Vec<(i64, i64, String)>,
}

impl LogReader {
    /// Claims what it can get of a consumer's lanes, for an hour.
    pub async fn claim(see: Observer, consumer: &str, owner: &str) -> Self {
        let mut reader = Self {
            see,
            consumer: consumer.to_owned(),
            owner: owner.to_owned(),
            held: Vec::new(),
        };
        reader.claim_again().await;
        reader
    }

    /// Asks for its share again; begins at the kept cursors.
    pub async fn claim_again(&mut self) {
        let rows = (self.see)
            .rows(&format!(
                "select lane, epoch, cursor from pgonce._claim_lanes('{}', '{}', interval '1 hour')",
                self.consumer, self.owner
            ))
            .await;
        self.held = rows
            .into_iter()
            .map(|row| {
                let mut cells = row.into_iter().map(Option::unwrap);
                let mut number = || cells.next().unwrap().parse().unwrap();
                (number(), number(), cells.next().unwrap())
            })
            .collect();
    }

    /// What it holds, as an SQL literal.
    pub fn held_sql(&self) -> String {
        let held: Vec<_> = (self.held.iter())
            .map(|(lane, epoch, cursor)| json!({"lane": lane, "epoch": epoch, "cursor": cursor}))
            .collect();
        format!("'{}'", json!(held))
    }

    /// Reads once and goes on to the cursors that it gets, as if all were delivered.
    pub async fn read(&mut self, limit: u32) -> Vec<Seen> {
        let rows = (self.see)
            .rows(&format!(
                "select lane, cursor, seq, act, subject, payload ->> 'n', message_id \
                 from pgonce._read_lanes('{}', {}, {limit})",
                self.consumer,
                self.held_sql()
            ))
            .await;
        let mut seen = Vec::new();
        for mut row in rows {
            let mut cell = |at: usize| row[at].take();
            let lane: i64 = cell(0).unwrap().parse().unwrap();
            match cell(2) {
                Some(seq) => seen.push(Seen {
                    seq: seq.parse().unwrap(),
                    lane,
                    act: cell(3).unwrap(),
                    subject: cell(4).unwrap(),
                    n: cell(5).unwrap_or_default(),
                    id: cell(6).unwrap(),
                }),
                None => {
                    let held = self.held.iter_mut().find(|held| held.0 == lane).unwrap();
                    held.2 = cell(1).unwrap();
                }
            }
        }
        seen
    }

    /// Reads until nothing more is there.
    pub async fn read_all(&mut self, limit: u32) -> Vec<Seen> {
        let mut all = Vec::new();
        loop {
            let inside = |held: &(i64, i64, String)| !held.2.ends_with(",,)");
            let in_windows = self.held.iter().any(inside);
            let seen = self.read(limit).await;
            if seen.is_empty() && !in_windows {
                return all;
            }
            all.extend(seen);
        }
    }

    /// The field `n` of everything that is there now, in the order in which it came.
    pub async fn numbers(&mut self) -> Vec<String> {
        let seen = self.read_all(1000).await;
        seen.into_iter().map(|event| event.n).collect()
    }

    /// Keeps its cursors; answers how many lanes were kept.
    pub async fn keep(&self) -> i64 {
        self.see
            .number(&format!(
                "select count(*) from pgonce._advance_lanes('{}', {})",
                self.consumer,
                self.held_sql()
            ))
            .await
    }

    /// Settles outcomes of one lane; answers the SQLSTATE, empty for none.
    pub async fn settle(&self, lane: i64, outcomes: &serde_json::Value) -> String {
        let held = self.held.iter().find(|held| held.0 == lane).unwrap();
        let sql = format!(
            "select pgonce._settle_lane('{}', {lane}, {}, '{}', '{outcomes}')",
            self.consumer, held.1, held.2
        );
        self.see.code(&sql).await
    }

    /// Parked events whose time has come: seq and `n`.
    pub async fn due(&self) -> Vec<(i64, String)> {
        let rows = (self.see)
            .rows(&format!(
                "select seq, payload ->> 'n' from pgonce._due_parked('{}', {})",
                self.consumer,
                self.held_sql()
            ))
            .await;
        rows.into_iter()
            .map(|mut row| {
                (
                    row[0].take().unwrap().parse().unwrap(),
                    row[1].take().unwrap(),
                )
            })
            .collect()
    }

    /// The lane that a subject is in.
    pub async fn lane_of(&self, subject: &str) -> i64 {
        self.see
            .number(&format!("select pgonce._lane_of('', '{subject}')"))
            .await
    }
}

/// An SQL call that publishes an event about a subject, with a number to know it by.
pub fn publish(subject: &str, n: u32) -> String {
    format!("select pgonce.publish('orders', 'order.changed', '{subject}', '{{\"n\": {n}}}')")
}
