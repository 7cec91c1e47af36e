//! Waiting for an intent that somebody else holds.

use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::call::{Args, Sql};
use crate::contract::Busy;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::intent::Intent;
use crate::once::Once;
use crate::term::in_time;

static WAIT: Sql = Sql::kept("select w::text from pgonce.wait($1, $2, $3::text::interval, $4) w");

/// How long a busy intent was waited for.
pub(crate) struct Waiting {
    until: Option<Instant>,
    pause: Duration,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            until: None,
            pause: Duration::from_millis(10),
        }
    }
}

impl<D: Driver> Once<D> {
    /// Does what the scope's contract says about a busy intent. `limit` is the maximum time of a call, beside what it
    /// waits for.
    pub(crate) async fn wait(
        &self,
        intent: &Intent,
        retry_after: Duration,
        limit: Option<Duration>,
        waiting: &mut Waiting,
    ) -> Result<()> {
        let until = match waiting.until {
            Some(until) => until,
            None => {
                let asking = pin!(self.contract(intent.scope(), intent.tenant_name()));
                let contract = in_time(limit, asking).await?;
                match contract.busy {
                    Busy::Wait => *waiting.until.insert(Instant::now() + contract.wait_timeout),
                    busy => {
                        return Err(Error::Busy {
                            retry_after,
                            accepted: busy == Busy::Accept,
                        });
                    }
                }
            }
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Busy {
                retry_after,
                accepted: false,
            });
        }
        let started = Instant::now();
        if let Ok(_permit) = self.shared.waiters.try_acquire() {
            let limit = limit.map(|limit| limit.saturating_add(left));
            let sleeping = pin!(self.sleep_on_lock(intent, left));
            match in_time(limit, sleeping).await {
                // A timeout of the session is shorter than the wait: look, and sleep again.
                Err(error) if matches!(error.code(), "57014" | "55P03") => {}
                slept => slept?,
            }
        }
        if started.elapsed() < waiting.pause {
            // A lease holds no lock to sleep on: ask again later and later.
            let pause = waiting
                .pause
                .min(left)
                .min(retry_after.max(Duration::from_millis(5)));
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            waiting.pause = (waiting.pause * 2).min(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Sleeps until the transaction that holds the intent has ended.
    async fn sleep_on_lock(&self, intent: &Intent, timeout: Duration) -> Result<()> {
        fault_point!("wait.before_sleep");
        let args = Args::texts([intent.scope(), intent.key()])
            .interval(timeout)
            .text(intent.tenant_name());
        let slept = self.caller().call(&WAIT, args).await.map(drop);
        fault_point!("wait.woken");
        slept
    }
}
