//! Turns, taken alternately: a noisy machine disturbs all sides alike, and each round gives one
//! honest ratio.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, try_join_all};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use super::Result;

/// How much is measured.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) connections: usize,
    pub(super) rounds: usize,
    pub(super) turn: Duration,
    pub(super) random: StdRng,
}

/// One way of doing something, to be compared with others.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) name: &'static str,
    command: Arc<dyn Fn() -> BoxFuture<'static, Result<()>> + Send + Sync>,
}

impl Side {
    pub(super) fn new<F, W>(name: &'static str, command: F) -> Self
    where
        F: Fn() -> W + Send + Sync + 'static,
        W: Future<Output = Result<()>> + Send + 'static,
    {
        Self {
            name,
            command: Arc::new(move || Box::pin(command())),
        }
    }

    pub(super) async fn once(&self) -> Result<()> {
        (self.command)()
            .await
            .map_err(|error| format!("{}: {error}", self.name).into())
    }

    pub(super) async fn times(&self, n: usize) -> Result<()> {
        for _ in 0..n {
            self.once().await?;
        }
        Ok(())
    }

    /// Commands per second, all connections busy.
    pub(super) async fn rate(&self, connections: usize, turn: Duration) -> Result<f64> {
        let start = Instant::now();
        let workers = (0..connections).map(|_| {
            let side = self.clone();
            tokio::spawn(async move {
                // Once at least: on a busy machine a short turn may be over before it has begun.
                let mut done = 0_u64;
                loop {
                    side.once().await?;
                    done += 1;
                    if start.elapsed() >= turn {
                        return Result::Ok(done);
                    }
                }
            })
        });
        let done = try_join_all(workers)
            .await?
            .into_iter()
            .sum::<Result<u64>>()?;
        Ok(done as f64 / start.elapsed().as_secs_f64())
    }
}

/// What each side did in each round.
#[derive(Debug)]
pub(super) struct Measured(Vec<(&'static str, Vec<f64>)>);

impl Measured {
    /// What somebody measured who takes turns in another way.
    pub(super) fn new(rounds: Vec<(&'static str, Vec<f64>)>) -> Self {
        Self(rounds)
    }

    fn of(&self, name: &str) -> &[f64] {
        self.0
            .iter()
            .find(|(side, _)| *side == name)
            .map_or(&[], |(_, values)| values)
    }

    pub(super) fn median(&self, name: &str) -> f64 {
        median(self.of(name).to_vec())
    }

    pub(super) fn percentile(&self, name: &str, part: f64) -> f64 {
        percentile(self.of(name).to_vec(), part)
    }

    /// The median over the rounds of `name` divided by `base`.
    pub(super) fn ratio(&self, name: &str, base: &str) -> f64 {
        median(
            self.of(name)
                .iter()
                .zip(self.of(base))
                .map(|(a, b)| a / b)
                .collect(),
        )
    }
}

impl Plan {
    /// Lets all sides have their turns and gives commands per second.
    pub(super) async fn rates(&mut self, sides: &[Side]) -> Result<Measured> {
        // Connections open, statements prepared and planned finally.
        for side in sides {
            side.rate(self.connections, self.turn).await?;
        }
        let mut rates: Vec<_> = sides.iter().map(|side| (side.name, Vec::new())).collect();
        let mut order: Vec<usize> = (0..sides.len()).collect();
        for _ in 0..self.rounds {
            order.shuffle(&mut self.random);
            for &i in &order {
                rates[i]
                    .1
                    .push(sides[i].rate(self.connections, self.turn).await?);
            }
        }
        Ok(Measured(rates))
    }

    /// Times `samples` single commands of each side, alternately, in microseconds. Each side times
    /// itself, so that it can leave out what does not belong to it.
    pub(super) async fn latencies<T: Timed>(
        &mut self,
        sides: &mut [T],
        samples: usize,
    ) -> Result<Measured> {
        for side in &mut *sides {
            for _ in 0..10 {
                side.time().await?;
            }
        }
        let mut times: Vec<_> = sides.iter().map(|side| (side.name(), Vec::new())).collect();
        let mut order: Vec<usize> = (0..sides.len()).collect();
        for _ in 0..samples {
            order.shuffle(&mut self.random);
            for &i in &order {
                times[i].1.push(sides[i].time().await?.as_secs_f64() * 1e6);
            }
        }
        Ok(Measured(times))
    }
}

/// Something that times one run of itself.
pub(super) trait Timed {
    fn name(&self) -> &'static str;

    fn time(&mut self) -> impl Future<Output = Result<Duration>> + Send;
}

impl Timed for Side {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn time(&mut self) -> Result<Duration> {
        let start = Instant::now();
        self.once().await?;
        Ok(start.elapsed())
    }
}

pub(super) fn median(values: Vec<f64>) -> f64 {
    percentile(values, 0.5)
}

/// The value below which this part of the values lies, between neighbours in proportion.
pub(super) fn percentile(mut values: Vec<f64>, part: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    let place = part * (values.len() - 1) as f64;
    let (below, above) = (
        values[place.floor() as usize],
        values[place.ceil() as usize],
    );
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_lies_between_its_neighbours() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(percentile(vec![1.0, 2.0], 1.0), 2.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn a_ratio_pairs_the_rounds() {
        // The machine was busy in the second round: the ratio does not care.
        let measured = Measured(vec![
            ("a", vec![80.0, 8.0, 80.0]),
            ("b", vec![100.0, 10.0, 100.0]),
        ]);
        assert!((measured.ratio("a", "b") - 0.8).abs() < 1e-9);
    }
}
