//! Messages: what it costs to apply each once, beside the same effect bare and the marker table that people
//! usually have.

mod growth;
mod shop;
mod wal;

use super::report::{Budget, Line, Unit};
use super::rounds::{Measured, Plan, Side};
use super::server::{Server, connect};
use super::{Result, say};
use shop::{Effect, Shop};

/// Budgets of the design: as parts of the usual recipe, new and all copies; and of the bare batch.
const UNORDERED: f64 = 1.0;
const COPIES: f64 = 0.8;
const ORDERED: f64 = 0.95;

/// Messages in a transaction, and how the effect is written.
const BATCHES: [(usize, Effect); 4] = [
    (1, Effect::OneByOne),
    (100, Effect::OneByOne),
    (100, Effect::Together),
    (1_000, Effect::Together),
];

/// How much is measured.
#[derive(Debug)]
pub(super) struct Size {
    /// Markers in the table that has grown.
    markers: u64,
}

impl Size {
    /// The largest of the sizes that were asked for.
    pub(super) fn of(sizes: &[u64]) -> Self {
        Self {
            markers: sizes.iter().copied().max().unwrap_or(1),
        }
    }
}

/// One way to have messages applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// As if no message ever came twice.
    Bare,
    /// A marker by hand: `insert … on conflict do nothing returning`, then the effect.
    Recipe,
    /// A consumer's transaction with a marker for each message.
    Unordered,
    /// A consumer's transaction with one cursor.
    Ordered,
    /// [`pgonce::Once::accept_batch`] in the caller's own transaction.
    Accept,
    /// `pgonce.accept` in the very statement of the effect.
    Gate,
    /// A consumer whose handler is one statement, which has the markers in it.
    Statement,
    /// Only messages that are known, to a consumer; and to the recipe.
    Known,
    KnownToRecipe,
}

impl How {
    const ALL: [Self; 9] = [
        Self::Bare,
        Self::Recipe,
        Self::Unordered,
        Self::Ordered,
        Self::Accept,
        Self::Gate,
        Self::Statement,
        Self::Known,
        Self::KnownToRecipe,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Recipe => "recipe",
            Self::Unordered => "unordered",
            Self::Ordered => "ordered",
            Self::Accept => "accept",
            Self::Gate => "accept as a gate",
            Self::Statement => "one statement",
            Self::Known => "all known",
            Self::KnownToRecipe => "recipe, all known",
        }
    }

    /// A gate is for one message, one statement for all; what is known has no effect, however that is written.
    fn goes_with(self, batch: usize, effect: Effect) -> bool {
        match self {
            Self::Gate => batch == 1,
            Self::Statement | Self::Known | Self::KnownToRecipe => {
                batch == 1 || effect == Effect::Together
            }
            _ => true,
        }
    }
}

pub(super) async fn measure(server: &Server, plan: &mut Plan, size: &Size) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (batch, effect) in BATCHES {
        say(&format!("messages, {}", title(batch, effect)));
        lines.extend(rates(server, plan, batch, effect).await?);
    }
    say("WAL of messages");
    lines.extend(wal::measure(server, plan).await?);
    lines.extend(growth::measure(server, plan, size).await?);
    Ok(lines)
}

async fn rates(
    server: &Server,
    plan: &mut Plan,
    batch: usize,
    effect: Effect,
) -> Result<Vec<Line>> {
    let url = server.database("inbox").await?;
    let shop = Shop::open(&url, plan.connections, batch, effect).await?;
    let ways: Vec<How> = How::ALL
        .into_iter()
        .filter(|how| how.goes_with(batch, effect))
        .collect();
    let sides: Vec<Side> = ways.iter().map(|how| side(&shop, *how)).collect();
    let measured = plan.rates(&sides).await?;
    drop((sides, shop));
    server.remove(&url).await?;
    Ok(lines(&measured, &ways, batch, effect))
}

fn side(shop: &Shop, how: How) -> Side {
    let shop = shop.clone();
    Side::new(how.name(), move || shop.clone().deliver(how))
}

fn lines(measured: &Measured, ways: &[How], batch: usize, effect: Effect) -> Vec<Line> {
    let title = title(batch, effect);
    let ratio = |how: How, base: How| {
        let what = format!("inbox, {title}: {} ÷ {}", how.name(), base.name());
        Line::new(what, measured.ratio(how.name(), base.name()), Unit::Ratio)
    };
    let mut lines = vec![
        ratio(How::Unordered, How::Recipe).within(Budget::AtLeast(UNORDERED)),
        ratio(How::Ordered, How::Bare).within(Budget::AtLeast(ORDERED)),
        ratio(How::Recipe, How::Bare),
        ratio(How::Unordered, How::Bare),
    ];
    if ways.contains(&How::Statement) {
        lines.push(ratio(How::Statement, How::Recipe).within(Budget::AtLeast(UNORDERED)));
    }
    if ways.contains(&How::Known) {
        lines.push(ratio(How::Known, How::KnownToRecipe).within(Budget::AtLeast(COPIES)));
    }
    let others = [(How::Accept, How::Bare), (How::Gate, How::Bare)];
    let others = others.into_iter().filter(|(how, _)| ways.contains(how));
    lines.extend(others.map(|(how, base)| ratio(how, base)));
    for how in ways {
        let what = format!("inbox, {title}: {}, messages", how.name());
        let rate = measured.median(how.name()) * batch as f64;
        lines.push(Line::new(what, rate, Unit::PerSecond));
    }
    lines
}

fn title(batch: usize, effect: Effect) -> String {
    match (batch, effect) {
        (1, _) => "1 in a transaction".to_owned(),
        (n, Effect::OneByOne) => format!("{n} in a transaction, a statement each"),
        (n, Effect::Together) => format!("{n} in a transaction, one statement"),
    }
}
