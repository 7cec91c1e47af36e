//! Which scopes may have their probes asked: slow ones delay only themselves.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Time after which a probe counts as slow, and leaves its place to another.
pub(super) const SLOW: Duration = Duration::from_millis(500);

/// The probes that run.
#[derive(Debug)]
pub(super) struct Slots {
    concurrency: usize,
    next: u64,
    running: HashMap<u64, (String, Instant)>,
    /// Probes of a scope that decided nothing in a row, each after a long time.
    lost: HashMap<String, usize>,
}

impl Slots {
    pub(super) fn new(concurrency: usize) -> Self {
        Self {
            concurrency,
            next: 0,
            running: HashMap::new(),
            lost: HashMap::new(),
        }
    }

    /// How many may begin. Slow ones do not count, up to as many as there are places; beside them one at a time begins, so
    /// that a slow scope does not get more than its share.
    pub(super) fn free(&self) -> usize {
        let slow = self.running.values().filter(|run| is_slow(run)).count();
        let free = self
            .concurrency
            .saturating_sub(self.running.len() - slow)
            .min((self.concurrency * 2).saturating_sub(self.running.len()));
        if slow > 0 { free.min(1) } else { free }
    }

    /// Scopes of which none may begin: those that have their share, which is half of the places where one of their probes is
    /// slow, and those whose probes take too long each time.
    pub(super) fn full_scopes(&self) -> Vec<String> {
        let mut scopes: HashMap<&str, (usize, bool)> = HashMap::new();
        for run in self.running.values() {
            let (count, slow) = scopes.entry(&run.0).or_default();
            *count += 1;
            *slow |= is_slow(run);
        }
        let share = (self.concurrency / 2).max(2);
        let full = scopes
            .into_iter()
            .filter(|(_, (count, slow))| *slow && *count >= share)
            .map(|(scope, _)| scope);
        let lost = self.lost.iter();
        let lost = lost.filter(|(_, count)| **count >= self.concurrency.max(2));
        full.chain(lost.map(|(scope, _)| scope.as_str()))
            .map(str::to_owned)
            .collect()
    }

    /// The probe of an intent of this scope begins.
    pub(super) fn begin(&mut self, scope: &str) -> u64 {
        self.next += 1;
        self.running
            .insert(self.next, (scope.to_owned(), Instant::now()));
        self.next
    }

    /// A probe ended, with a decision or without.
    pub(super) fn end(&mut self, slot: u64, decided: bool) {
        let Some(run) = self.running.remove(&slot) else {
            return;
        };
        if decided {
            self.lost.remove(&run.0);
        } else if is_slow(&run) {
            *self.lost.entry(run.0).or_default() += 1;
        }
    }
}

fn is_slow((_, began): &(String, Instant)) -> bool {
    began.elapsed() >= SLOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_scopes_leave_places_to_others() {
        let mut slots = Slots::new(4);
        assert_eq!(slots.free(), 4);
        let slow: Vec<u64> = (0..4).map(|_| slots.begin("slow")).collect();
        assert_eq!(slots.free(), 0);
        assert!(slots.full_scopes().is_empty());
        tokio::time::advance(SLOW).await;
        assert_eq!(
            (slots.free(), slots.full_scopes()),
            (1, vec!["slow".to_owned()])
        );
        let others: Vec<u64> = (0..4).map(|_| slots.begin("other")).collect();
        assert_eq!(slots.free(), 0, "twice as many at most");
        for slot in others {
            slots.end(slot, true);
        }
        for slot in slow {
            slots.end(slot, false);
        }
        assert_eq!(slots.free(), 4);
        assert_eq!(slots.full_scopes(), ["slow"], "they all took too long");
        let slot = slots.begin("slow");
        slots.end(slot, true);
        assert!(slots.full_scopes().is_empty());
    }
}
