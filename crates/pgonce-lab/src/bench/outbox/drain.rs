//! How many events a second leave the log.

use std::time::Instant;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::{LaneLease, Outbox};
use rand::seq::SliceRandom as _;
use tokio_postgres::Client;

use super::{CONSUMER, Result, Size, fill, from_the_start, outbox, sink, usual};
use crate::bench::report::{Budget, Line, Unit};
use crate::bench::rounds::{Measured, Plan};
use crate::bench::server::{Server, connect};

const UPDATE: &str = "outbox: SKIP LOCKED + UPDATE";
const DELETE: &str = "outbox: SKIP LOCKED + DELETE";
const SQL: &str = "outbox: reading windows";
const RELAY: &str = "outbox: relay";
const ONE_BY_ONE: &str = "outbox: relay, a sink that takes one by one";
const HOT: &str = "outbox: relay, one hot subject";
const PINNED: [&str; 4] = [
    "outbox: SKIP LOCKED + UPDATE, xmin pinned",
    "outbox: SKIP LOCKED + DELETE, xmin pinned",
    "outbox: reading windows, xmin pinned",
    "outbox: relay, xmin pinned",
];
const SIDES: [&str; 10] = [
    UPDATE, DELETE, SQL, RELAY, ONE_BY_ONE, HOT, PINNED[0], PINNED[1], PINNED[2], PINNED[3],
];

pub(super) async fn measure(server: &Server, plan: &mut Plan, size: &Size) -> Result<Vec<Line>> {
    let (many, hot) = (
        server.database("drain").await?,
        server.database("hot").await?,
    );
    fill(&many, size.events, size.events).await?;
    fill(&hot, size.events, 1).await?;
    let client = connect(&many).await?;
    client.batch_execute(usual::TABLE).await?;
    client.batch_execute("analyze pgonce.outbox").await?;
    let fixture = Fixture {
        many: outbox(&many)?,
        hot: outbox(&hot)?,
        client,
        url: many.clone(),
        events: size.events,
    };
    let mut rates: Vec<_> = SIDES.iter().map(|side| (*side, Vec::new())).collect();
    let mut order: Vec<usize> = (0..SIDES.len()).collect();
    for round in 0..=size.rounds {
        order.shuffle(&mut plan.random);
        for &side in &order {
            let rate = fixture.turn(SIDES[side]).await?;
            // The first round warms up.
            if round > 0 {
                rates[side].1.push(rate);
            }
        }
    }
    drop(fixture);
    server.remove(&many).await?;
    server.remove(&hot).await?;
    Ok(lines(&Measured::new(rates)))
}

fn lines(measured: &Measured) -> Vec<Line> {
    let ratio = |name: &str, base: &str| {
        let name_of = |name: &str| name.trim_start_matches("outbox: ").to_owned();
        let what = format!("outbox: {} ÷ {}", name_of(name), name_of(base));
        Line::new(what, measured.ratio(name, base), Unit::Ratio)
    };
    let mut lines = vec![
        ratio(RELAY, UPDATE).within(Budget::AtLeast(5.0)),
        ratio(PINNED[3], RELAY).within(Budget::AtLeast(0.9)),
        ratio(SQL, UPDATE),
        ratio(PINNED[2], SQL).within(Budget::AtLeast(0.9)),
        ratio(RELAY, DELETE),
        ratio(PINNED[3], PINNED[0]),
        ratio(PINNED[3], PINNED[1]),
        ratio(PINNED[0], UPDATE),
        ratio(PINNED[1], DELETE),
        ratio(ONE_BY_ONE, RELAY),
        ratio(HOT, RELAY),
    ];
    let rate = |name: &&str| Line::new(*name, measured.median(name), Unit::PerSecond);
    lines.extend(SIDES.iter().map(rate));
    lines
}

struct Fixture {
    many: Outbox<TokioPostgres>,
    hot: Outbox<TokioPostgres>,
    client: Client,
    url: String,
    events: u64,
}

impl Fixture {
    /// Events per second of one side.
    async fn turn(&self, side: &str) -> Result<f64> {
        let pinned = PINNED.contains(&side);
        let by = if pinned {
            side.trim_end_matches(", xmin pinned")
        } else {
            side
        };
        match by {
            UPDATE | DELETE => usual::fill(&self.client, self.events).await?,
            HOT => from_the_start(&self.hot).await?,
            _ => from_the_start(&self.many).await?,
        }
        // Somebody who began before and does not end: no dead row goes.
        let pin = connect(&self.url).await?;
        if pinned {
            pin.batch_execute("begin isolation level repeatable read; select pg_current_xact_id()")
                .await?;
        }
        let begun = Instant::now();
        match by {
            UPDATE => self.all(usual::by_update(&self.client).await?)?,
            DELETE => self.all(usual::by_delete(&self.client).await?)?,
            SQL => self.all(windows(&self.many, self.events).await?)?,
            HOT => sink::relay(self.hot.clone(), self.events, false).await?,
            _ => sink::relay(self.many.clone(), self.events, by == ONE_BY_ONE).await?,
        }
        Ok(self.events as f64 / begun.elapsed().as_secs_f64())
    }

    fn all(&self, events: u64) -> Result<()> {
        if events == self.events {
            return Ok(());
        }
        Err(format!("{events} events came, not {}", self.events).into())
    }
}

/// Reads everything, about a thousand at a time, and keeps the cursors in the end.
async fn windows(outbox: &Outbox<TokioPostgres>, events: u64) -> Result<u64> {
    let lanes = outbox
        .claim_lanes(CONSUMER, "bench", std::time::Duration::from_secs(600))
        .await?;
    let mut held: Vec<LaneLease> = (lanes.into_iter())
        .map(|lane| LaneLease {
            lane: lane.lane,
            epoch: lane.epoch,
            cursor: lane.cursor,
        })
        .collect();
    let mut read = 0;
    while read < events {
        let page = outbox.read(CONSUMER, &held, 1024, 4 << 20).await?;
        if page.messages.is_empty() && read > 0 {
            break;
        }
        read += page.messages.len() as u64;
        for (lane, cursor) in page.cursors {
            for held in held.iter_mut().filter(|held| held.lane == lane) {
                held.cursor = cursor.clone();
            }
        }
    }
    outbox.advance(CONSUMER, &held, true).await?;
    Ok(read)
}
