use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Entry, Name, ReplayCache, Tier, lock};

/// Answers in the memory of this process.
///
/// Two halves: new ones and those that were used go into the young one; when it is full, the old half is dropped and
/// the young one is the old one. So what is used stays, and nothing needs to be kept in order.
#[derive(Debug)]
pub(super) struct Local {
    max_entries: usize,
    max_bytes: usize,
    halves: Mutex<Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    young: HashMap<Name, Arc<Entry>>,
    old: HashMap<Name, Arc<Entry>>,
    /// Of the young half.
    bytes: usize,
}

impl Local {
    pub(super) fn new(settings: &ReplayCache) -> Self {
        Self {
            max_entries: settings.max_entries / 2,
            max_bytes: settings.max_bytes / 2,
            halves: Mutex::default(),
        }
    }

    fn insert(&self, halves: &mut Halves, name: Name, entry: Arc<Entry>) {
        let bytes = entry.bytes();
        if self.max_entries == 0 || bytes > self.max_bytes {
            return;
        }
        if let Some(before) = halves.young.remove(&name) {
            halves.bytes -= before.bytes();
        }
        if halves.young.len() >= self.max_entries || halves.bytes + bytes > self.max_bytes {
            halves.old = std::mem::take(&mut halves.young);
            halves.bytes = 0;
        }
        halves.bytes += bytes;
        halves.old.remove(&name);
        halves.young.insert(name, entry);
    }
}

impl Tier for Local {
    async fn get(&self, name: &Name) -> Option<Arc<Entry>> {
        let mut halves = lock(&self.halves);
        if let Some(entry) = halves.young.get(name) {
            return Some(entry.clone());
        }
        let entry = halves.old.remove(name)?;
        self.insert(&mut halves, *name, entry.clone());
        Some(entry)
    }

    async fn put(&self, name: &Name, entry: &Entry, _: Duration) {
        self.insert(&mut lock(&self.halves), *name, Arc::new(entry.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(size: usize) -> Entry {
        Entry {
            state: "s".into(),
            fingerprint: vec![1],
            from_ms: 0,
            until_ms: 10,
            renewable: true,
            fence: 1,
            attempts: 1,
            answer: Some("x".repeat(size)),
            reference: None,
        }
    }

    fn name(number: u16) -> Name {
        let mut name = [0; 32];
        name[..2].copy_from_slice(&number.to_be_bytes());
        Name(name)
    }

    #[tokio::test]
    async fn it_never_holds_more_than_its_bounds_and_keeps_what_is_used() {
        let local = Local::new(
            &ReplayCache::in_process()
                .max_entries(100)
                .max_bytes(80 * 1_024),
        );
        for number in 0..1_000 {
            local.put(&name(number), &entry(512), Duration::ZERO).await;
            assert!(local.get(&name(0)).await.is_some(), "after {number}");
            let halves = lock(&local.halves);
            let held: usize = [&halves.young, &halves.old]
                .iter()
                .flat_map(|half| half.values())
                .map(|entry| entry.bytes())
                .sum();
            assert!(held <= 80 * 1_024 && halves.young.len() + halves.old.len() <= 100);
        }
        assert!(local.get(&name(1)).await.is_none());
        local
            .put(&name(7), &entry(64 * 1_024), Duration::ZERO)
            .await;
        assert!(local.get(&name(7)).await.is_none(), "too large");
    }
}
