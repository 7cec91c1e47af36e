//! What callers see in a setting, by code: what it explains, and how much must go well all the same. A setting in which
//! everything merely fails has no double effects either.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use pgonce::{Error, Result};

/// What callers do to each other in every setting: somebody holds it, it was asked with another payload, work failed as it
/// was to, a lease ran out under its holder.
const AMONG_CALLERS: [&str; 7] = [
    "P4029", "P4002", "P4050", "no_luck", "P4010", "P4011", "P4012",
];

/// Of a hundred operations so many are answered where nothing but other callers is in their way, at the least.
pub(crate) const QUIET: u64 = 40;

/// Operations of a path that must go well, where so many are to be expected, for the path to count as tried.
const ENOUGH: u64 = 12;

/// Errors of one setting, and operations by path.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Codes that the setting explains, beside those among callers.
    allowed: &'static [&'static str],
    /// Of a hundred operations so many are answered.
    share: u64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// By path: tried, answered.
    paths: BTreeMap<String, (u64, u64)>,
    errors: BTreeMap<String, u64>,
    /// Those that nothing explains, each with all that is known.
    unexpected: Vec<String>,
}

impl Tally {
    /// Nothing is explained. Callers are in each other's way: somebody who comes at the same time as another is rejected.
    pub(crate) fn new() -> Self {
        Self {
            allowed: &[],
            share: QUIET,
            seen: Mutex::default(),
        }
    }

    pub(crate) fn allow(&mut self, codes: &'static [&'static str], share: u64) {
        (self.allowed, self.share) = (codes, share);
    }

    /// Counts what came of an operation.
    pub(crate) fn count<T>(&self, key: &str, path: &str, made: &Result<T>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (tried, answered) = seen.paths.entry(path.to_owned()).or_default();
        *tried += 1;
        let Err(error) = made else {
            *answered += 1;
            return;
        };
        *seen.errors.entry(error.code().to_owned()).or_default() += 1;
        if !self.explains(error) {
            seen.unexpected.push(format!("{key}, {path}: {error:?}"));
        }
    }

    fn explains(&self, error: &Error) -> bool {
        AMONG_CALLERS.contains(&error.code()) || self.allowed.contains(&error.code())
    }

    /// Panics where an error is not explained, too little was answered, or a path never was.
    pub(crate) fn check(&self, seed: u64) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let first: Vec<_> = seen.unexpected.iter().take(5).collect();
        assert!(
            first.is_empty(),
            "seed {seed}: {} errors that should not be, such as {first:#?}; {seen}",
            seen.unexpected.len()
        );
        let (tried, answered) = seen.all();
        assert!(
            answered * 100 >= tried * self.share,
            "seed {seed}: fewer than {} of a hundred are answered: {seen}",
            self.share
        );
        for (path, (tried, answered)) in &seen.paths {
            assert!(
                *answered > 0 || tried * self.share < ENOUGH * 100,
                "seed {seed}: {path} is never answered: {seen}"
            );
        }
    }
}

impl Seen {
    fn all(&self) -> (u64, u64) {
        let sums = self.paths.values();
        sums.fold((0, 0), |(tried, answered), path| {
            (tried + path.0, answered + path.1)
        })
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tried, answered) = self.all();
        let (paths, errors) = (&self.paths, &self.errors);
        write!(
            f,
            "{answered} of {tried} answered, by path {paths:?}, errors {errors:?}"
        )
    }
}

/// For a run with --nocapture.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    fn panics(tally: &Tally) -> bool {
        catch_unwind(std::panic::AssertUnwindSafe(|| tally.check(7))).is_err()
    }

    fn disconnected() -> Result<()> {
        Err(Error::Disconnected("cut".into()))
    }

    #[test]
    fn a_setting_in_which_everything_fails_does_not_pass() {
        let mut tally = Tally::new();
        tally.allow(&["08006"], 10);
        for _ in 0..100 {
            tally.count("k", "atomic", &disconnected());
        }
        assert!(panics(&tally));
        for _ in 0..20 {
            tally.count("k", "leased", &Ok(()));
        }
        assert!(!panics(&tally), "{tally}");
        for _ in 0..20 {
            tally.count("k", "atomic", &disconnected());
        }
        assert!(panics(&tally), "one path alone never goes well");
    }

    #[test]
    fn an_error_that_the_setting_does_not_explain_does_not_pass() {
        let tally = Tally::new();
        for _ in 0..100 {
            tally.count("k", "atomic", &Ok(()));
        }
        assert!(!panics(&tally));
        tally.count("k", "atomic", &disconnected());
        assert!(panics(&tally));
    }
}
