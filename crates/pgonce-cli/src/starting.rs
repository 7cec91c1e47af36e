//! Waiting for a database that is away while a daemon starts.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::exit::{CliError, Result};

/// First and maximum pause before a part is started again whose database was away.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Tries until the database answers, with growing pauses; nothing when stopped before. `shown` gets what is waited for, and
/// nothing when that is over.
pub(crate) async fn until_answered<T, F: Future<Output = Result<T>>>(
    part: &str,
    stop: &CancellationToken,
    may_pass: fn(&CliError) -> bool,
    attempt: impl Fn() -> F,
    shown: impl Fn(Option<&str>),
) -> Result<Option<T>> {
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(tried) = stop.run_until_cancelled(attempt()).await else {
            return Ok(None);
        };
        match tried {
            Err(error) if may_pass(&error) => {
                let (why, _) = error.words();
                tracing::warn!(part, error = why, ?pause, "it is waited for the database");
                shown(Some(why));
            }
            ended => {
                shown(None);
                return ended.map(Some);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(MAX_PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::FAILED;

    #[test]
    fn what_may_pass_ends_no_daemon_at_its_start() {
        let is_transient = |code| CliError::new(FAILED, "x", "y").coded(code).is_transient();
        for code in [
            "08006", "57P03", "53300", "57014", "55P03", "40001", "40P01", "25006",
        ] {
            assert!(is_transient(code), "{code}");
        }
        for code in [
            "28P01", "3D000", "42501", "42704", "22023", "P4101", "P4104",
        ] {
            assert!(!is_transient(code), "{code}");
        }
    }
}
