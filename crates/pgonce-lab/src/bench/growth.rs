//! The time of a claim while the table grows.

use std::time::{Duration, Instant};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Claim, Once};

use super::business::{Order, SCOPE, intent};
use super::report::{Budget, Line, Unit};
use super::rounds::{Plan, Timed};
use super::server::{Server, connect};
use super::{Result, say, with_tokio_postgres};

/// The fingerprint of every filled intent.
pub(super) const FINGERPRINT: [u8; 32] = [7; 32];

/// Claims in a row at one size, so that each size works with warm caches of its own.
const BURST: usize = 20;

/// Reads `10k`, `1m` or a plain number.
pub(super) fn size(text: &str) -> std::result::Result<u64, String> {
    let small = text.trim().to_ascii_lowercase();
    let (digits, unit) = match small.as_bytes().last() {
        Some(b'k') => (&small[..small.len() - 1], 1_000),
        Some(b'm') => (&small[..small.len() - 1], 1_000_000),
        _ => (&*small, 1),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .filter(|n| (1..=1_000_000_000).contains(n))
        .ok_or_else(|| format!("{text:?} is not a size such as 10k, 1m or 250000, at most 1000m"))
}

pub(super) async fn measure(server: &Server, plan: &mut Plan, sizes: &[u64]) -> Result<Vec<Line>> {
    let mut sides = Vec::new();
    let mut urls = Vec::new();
    for &size in sizes {
        say(&format!("claims at {} intents: filling", short(size)));
        let url = server.database(&format!("growth_{size}")).await?;
        fill(&url, size).await?;
        let shop = with_tokio_postgres::Shop::open(&url, 1)?;
        sides.push(AtSize {
            // As many as there are sizes, so that a name can be distinguished from a number.
            name: String::leak(short(size)),
            once: shop.once,
        });
        urls.push(url);
    }
    say("claims at all sizes");
    let measured = plan.latencies(&mut sides, 20 * plan.rounds).await?;
    drop(sides);
    for url in &urls {
        server.remove(url).await?;
    }

    let mut lines = Vec::new();
    if let (Some(&least), Some(&most)) = (sizes.iter().min(), sizes.iter().max())
        && least < most
    {
        let ratio = measured.median(&short(most)) / measured.median(&short(least));
        let line = Line::new(
            format!(
                "claim at {} intents ÷ at {}, median",
                short(most),
                short(least)
            ),
            ratio,
            Unit::Ratio,
        );
        lines.push(line.within(Budget::AtMost(1.25)));
    }
    for &size in sizes {
        let name = short(size);
        for (part, word) in [(0.5, "median"), (0.99, "p99")] {
            let time = measured.percentile(&name, part);
            lines.push(Line::new(
                format!("claim at {name} intents, {word}"),
                time,
                Unit::Microseconds,
            ));
        }
    }
    Ok(lines)
}

/// Claims in a table of one size.
struct AtSize {
    name: &'static str,
    once: Once<TokioPostgres>,
}

impl Timed for AtSize {
    fn name(&self) -> &'static str {
        self.name
    }

    /// The claim alone: intent and rollback are not counted.
    async fn time(&mut self) -> Result<Duration> {
        let mut spent = Duration::ZERO;
        for _ in 0..BURST {
            let intent = intent(&Order::new(), false)?;
            let start = Instant::now();
            let claim = self.once.claim(&intent).await?;
            spent += start.elapsed();
            let Claim::Run(attempt) = claim else {
                return Err("a fresh claim was not given".into());
            };
            attempt.abandon().await?;
        }
        Ok(spent / BURST as u32)
    }
}

/// Fills the table with finished intents, as an atomic success writes them, their keys in order of
/// time. The primary key is built afterwards, which is many times faster.
pub(super) async fn fill(url: &str, intents: u64) -> Result<()> {
    let client = connect(url).await?;
    client
        .batch_execute(&format!(
            "alter table pgonce.intent drop constraint one_row_per_intent;
             insert into pgonce.intent (tenant, scope, key, fingerprint, status, attempts, fence, first_at, expires_at, answer)
             select '', '{SCOPE}',
                    overlay(overlay(lpad(to_hex(1700000000000 + i), 12, '0') placing '-' from 9 for 0) placing
                        '-7' || substr(h, 1, 3) || '-8' || substr(h, 4, 3) || '-' || substr(h, 7, 12) from 14 for 0),
                    decode(repeat('07', 32), 'hex'), 'succeeded', 1, 1,
                    now(), now() + interval '7 days', jsonb_build_object('order', i)
               from (select i, md5(i::text) as h from generate_series(1::bigint, {intents}) i) as numbered;
             alter table pgonce.intent add constraint one_row_per_intent primary key (tenant, scope, key);"
        ))
        .await?;
    Ok(client
        .batch_execute("vacuum (analyze) pgonce.intent")
        .await?)
}

pub(super) fn short(size: u64) -> String {
    match size {
        n if n % 1_000_000 == 0 => format!("{} m", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{} k", n / 1_000),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(size("10k"), Ok(10_000));
        assert_eq!(size("10M"), Ok(10_000_000));
        assert_eq!(size("250"), Ok(250));
        for wrong in ["", "k", "-1", "10g", "0", "1.5m", "99999999999m"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_size_is_shown_as_it_is_read() {
        for size in [10_000, 1_000_000, 1_234] {
            assert_eq!(super::size(&short(size).replace(' ', "")), Ok(size));
        }
    }
}
