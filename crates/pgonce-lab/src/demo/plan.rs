//! What the storm will do, drawn from a seed: the same seed gives the same plan.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::shop::NewOrder;

/// Everybody in a burst comes at about the same time, so that duplicates meet.
const BURST_EVERY: Duration = Duration::from_millis(500);
const BURST_WIDTH_MS: u64 = 40;

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) length: Duration,
    pub(super) intents: Vec<Intent>,
    pub(super) disasters: Vec<Disaster>,
}

/// One thing that somebody wants once, and everybody who asks for it.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    pub(super) at: Duration,
    pub(super) key: String,
    pub(super) order: NewOrder,
    pub(super) clients: Vec<Client>,
}

/// One sender of an intent.
#[derive(Debug, Clone, Default)]
pub(super) struct Client {
    pub(super) lag: Duration,
    /// Sends the same key with another amount.
    pub(super) changes: bool,
    /// Hangs up on its first try.
    pub(super) cut: Option<Cut>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// With half of the request sent.
    HalfSent,
    /// With all of it sent, so long before the answer is read.
    Unread(Duration),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Disaster {
    pub(super) at: Duration,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// SIGKILL to the service.
    KillService,
    /// `pg_terminate_backend` to every session of the service.
    EndSessions,
    /// SIGKILL to PostgreSQL and all its sessions.
    CrashDatabase,
}

impl Plan {
    pub(super) fn draw(seed: u64, seconds: u64, intents: usize) -> Self {
        let mut chance = StdRng::seed_from_u64(seed);
        let length = Duration::from_secs(seconds);
        let bursts = (length.as_millis() / BURST_EVERY.as_millis()).max(1) as u32;
        let intents = (0..intents)
            .map(|number| {
                let burst = (number as u64 * u64::from(bursts) / intents as u64) as u32;
                Intent::draw(&mut chance, number, BURST_EVERY * burst)
            })
            .collect();
        Self {
            length,
            intents,
            disasters: disasters(&mut chance, seconds, bursts),
        }
    }

    pub(super) fn clients(&self) -> impl Iterator<Item = &Client> {
        self.intents.iter().flat_map(|intent| &intent.clients)
    }

    pub(super) fn disasters_of(&self, kind: Kind) -> usize {
        self.disasters
            .iter()
            .filter(|disaster| disaster.kind == kind)
            .count()
    }
}

impl Intent {
    fn draw(chance: &mut StdRng, number: usize, burst: Duration) -> Self {
        let honest = chance.random_range(2..=4);
        let mut clients: Vec<_> = (0..honest).map(|_| Client::draw(chance)).collect();
        // Every eighth key is also used for something else; the first to come has it.
        if number.is_multiple_of(8) {
            clients.push(Client {
                changes: true,
                lag: millis(chance, 0..BURST_WIDTH_MS),
                cut: None,
            });
        }
        let items = ["book", "lamp", "chair", "kettle"];
        Self {
            at: burst + millis(chance, 0..BURST_WIDTH_MS),
            key: uuid::Builder::from_random_bytes(chance.random())
                .into_uuid()
                .to_string(),
            order: NewOrder {
                customer: format!("customer-{}", chance.random_range(1..=50)),
                reference: reference(number),
                item: items[chance.random_range(0..items.len())].to_owned(),
                amount: chance.random_range(100..100_000),
            },
            clients,
        }
    }

    /// What a client of this intent sends.
    pub(super) fn sent_by(&self, client: &Client) -> NewOrder {
        let mut order = self.order.clone();
        if client.changes {
            order.amount += 1;
        }
        order
    }
}

impl Client {
    fn draw(chance: &mut StdRng) -> Self {
        let cut = match chance.random_range(0..10) {
            0 => Some(Cut::HalfSent),
            1 | 2 => Some(Cut::Unread(millis(chance, 0..15))),
            _ => None,
        };
        // Half of them come together, the others as retries do: a little later.
        let lag = match chance.random() {
            true => Duration::ZERO,
            false => millis(chance, 0..BURST_WIDTH_MS),
        };
        Self {
            lag,
            changes: false,
            cut,
        }
    }
}

/// The customer's reference of an intent; by it the oracle knows an effect again.
pub(super) fn reference(number: usize) -> String {
    format!("po-{number}")
}

fn disasters(chance: &mut StdRng, seconds: u64, bursts: u32) -> Vec<Disaster> {
    let how_many = |every: u64| (seconds / every).max(1) as usize;
    let mut kinds = [
        vec![Kind::KillService; how_many(4)],
        vec![Kind::EndSessions; how_many(5)],
        vec![Kind::CrashDatabase; how_many(10)],
    ]
    .concat();
    kinds.shuffle(chance);
    let total = kinds.len() as u32;
    kinds
        .into_iter()
        .zip(0..)
        .map(|(kind, n)| Disaster {
            // Spread over the bursts, each a moment after its burst began.
            at: BURST_EVERY * (bursts * (2 * n + 1) / (2 * total))
                + millis(chance, 5..BURST_WIDTH_MS),
            kind,
        })
        .collect()
}

fn millis(chance: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(chance.random_range(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_plan_and_another_seed_another() {
        let text = |seed| format!("{:?}", Plan::draw(seed, 20, 200));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn the_shortest_plan_still_has_every_kind_of_trouble() {
        let plan = Plan::draw(1, 2, 40);
        for kind in [Kind::KillService, Kind::EndSessions, Kind::CrashDatabase] {
            assert_eq!(plan.disasters_of(kind), 1);
        }
        assert!(plan.clients().any(|client| client.changes));
        assert!(plan.clients().any(|client| client.cut.is_some()));
        assert!(
            plan.intents
                .iter()
                .all(|intent| intent.clients.len() > 1 && intent.at < plan.length)
        );
    }
}
