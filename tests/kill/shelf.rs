//! A source for the kill tests' consumers: a table whose rows are delivered, to everybody, until somebody
//! acknowledges them.

use std::collections::BTreeSet;
use std::time::Duration;

use pgonce::inbox::{Message, Position};
use pgonce_broker::{Incoming, Order, Source, SourceError};
use tokio_postgres::{Client, NoTls};

pub(crate) struct Shelf {
    client: Client,
    ordered: bool,
    /// Pulled, and neither acknowledged nor given back.
    pending: BTreeSet<i64>,
    /// In order: where the last pull began, and where it ended.
    from: i64,
    at: i64,
}

impl Shelf {
    pub(crate) async fn open(url: &str, ordered: bool) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self {
            client,
            ordered,
            pending: BTreeSet::new(),
            from: 0,
            at: 0,
        }
    }
}

fn away(error: tokio_postgres::Error) -> SourceError {
    SourceError::Unavailable(error.to_string())
}

impl Source for Shelf {
    type Ticket = i64;

    fn name(&self) -> &str {
        "shelf"
    }

    fn order(&self) -> Order {
        match self.ordered {
            true => Order::Ordered,
            false => Order::Unordered,
        }
    }

    async fn pull(&mut self, limit: usize, _: Duration) -> Result<Vec<Incoming<i64>>, SourceError> {
        let pending: Vec<i64> = self.pending.iter().copied().collect();
        // In order there is a position to go on from, and what others acknowledged comes all the same.
        let sql = match self.ordered {
            true => {
                "select n from letters where n > $1 and n <> all ($2::bigint[]) order by n limit $3"
            }
            false => {
                "select n from letters where n > $1 and not acked and n <> all ($2::bigint[]) order by n limit $3"
            }
        };
        let after = if self.ordered { self.at } else { 0 };
        let limit = i64::try_from(limit).unwrap();
        let rows = self.client.query(sql, &[&after, &pending, &limit]).await;
        let numbers: Vec<i64> = rows.map_err(away)?.iter().map(|row| row.get(0)).collect();
        if let Some(last) = numbers.last() {
            (self.from, self.at) = (self.at, *last);
        } else {
            pgonce_tests::poll_pause().await;
        }
        self.pending.extend(&numbers);
        let letter = |n: i64| {
            let message =
                Message::new(format!("letter-{n}"), n.to_string()).key((n % 10).to_string());
            Incoming {
                message: if self.ordered {
                    message.at("0", n)
                } else {
                    message
                },
                ticket: n,
            }
        };
        Ok(numbers.into_iter().map(letter).collect())
    }

    async fn ack(&mut self, tickets: Vec<i64>) -> Result<(), SourceError> {
        let sql = "update letters set acked = true where n = any ($1) and not acked";
        self.client.execute(sql, &[&tickets]).await.map_err(away)?;
        self.pending.retain(|n| !tickets.contains(n));
        Ok(())
    }

    async fn nack(&mut self, tickets: Vec<i64>, _: Duration) -> Result<(), SourceError> {
        if let Some(first) = tickets.iter().min() {
            self.at = self.at.min(first - 1);
        }
        self.pending.retain(|n| !tickets.contains(n));
        Ok(())
    }

    async fn seek(&mut self, _: &str, after: Option<Position>) -> Result<bool, SourceError> {
        let after = after.map_or(0, |position| position.major);
        if (self.from..=self.at).contains(&after) {
            return Ok(false);
        }
        (self.from, self.at) = (after, after);
        self.pending.clear();
        Ok(true)
    }
}
