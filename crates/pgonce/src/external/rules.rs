//! What a provider can do and what it allows.

use std::time::Duration;

use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;
use crate::once::Once;

static DEFINE: Sql = Sql::seldom(
    "select 'done' from pgonce.define_provider($1, $2::text::interval, $3::text::interval, $4::text::interval, \
     $5::text::interval, $6::text::interval, $7::text::integer, $8::text::interval, $9::text::integer, $10::text::interval)",
);

/// What a provider can do and what it allows, for every program that calls it.
///
/// ```
/// use std::time::Duration;
/// use pgonce::external::Rules;
///
/// let bank = Rules::new("bank")
///     .keys_for(Duration::from_secs(24 * 3600))
///     .rate(50, Duration::from_secs(1))
///     .circuit_breaker(10, Duration::from_secs(30));
/// # let _ = bank;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "rules are nothing until Once::define_provider"]
pub struct Rules {
    name: String,
    keys_for: Option<Duration>,
    deadline: Duration,
    look_after: Duration,
    backoff: (Duration, Duration),
    rate: Option<(u32, Duration)>,
    breaker: Option<(u32, Duration)>,
}

impl Rules {
    /// The provider of this name; `*` for all that nobody defined, each with a rate and a circuit of its own.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            keys_for: None,
            deadline: Duration::from_secs(24 * 3600),
            look_after: Duration::from_secs(10),
            backoff: (Duration::from_secs(5), Duration::from_secs(3600)),
            rate: None,
            breaker: None,
        }
    }

    /// How long the provider treats a second request with the same key as the first. Within this time a call is sent again
    /// where its outcome is unknown. Default: it knows no keys, and what may have been sent is never sent again.
    pub fn keys_for(mut self, time: Duration) -> Self {
        self.keys_for = Some(time);
        self
    }

    /// Time after the first send at which an undecided call needs an operator; zero: at once. Default: a day.
    pub fn deadline(mut self, time: Duration) -> Self {
        self.deadline = time;
        self
    }

    /// Time after a send without an answer at which the call is looked up first. Default: 10 seconds.
    pub fn look_after(mut self, time: Duration) -> Self {
        self.look_after = time;
        self
    }

    /// Pause after the first look-up, which doubles with each, and its maximum. Default: 5 seconds, an hour.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.backoff = (first, max);
        self
    }

    /// Maximum number of requests in a period, over all programs. Default: none.
    pub fn rate(mut self, requests: u32, per: Duration) -> Self {
        self.rate = Some((requests, per));
        self
    }

    /// After so many requests in a row without an answer, over all programs, none is sent for this time; then one tries.
    /// Default: none.
    pub fn circuit_breaker(mut self, failures: u32, pause: Duration) -> Self {
        self.breaker = Some((failures, pause));
        self
    }
}

impl<D: Driver> Once<D> {
    /// Says what a provider can do and what it allows. For operators.
    pub async fn define_provider(&self, rules: &Rules) -> Result<()> {
        let args = Args::texts([&rules.name])
            .interval(rules.keys_for)
            .interval(rules.deadline)
            .interval(rules.look_after)
            .interval(rules.backoff.0)
            .interval(rules.backoff.1)
            .int(rules.rate.map(|rate| rate.0.into()))
            .interval(rules.rate.map_or(Duration::from_secs(1), |rate| rate.1))
            .int(rules.breaker.map(|breaker| breaker.0.into()))
            .interval(
                rules
                    .breaker
                    .map_or(Duration::from_secs(30), |breaker| breaker.1),
            );
        self.caller().write(&DEFINE, args).await.map(drop)
    }
}
