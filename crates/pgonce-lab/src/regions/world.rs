//! Regions in a world of their own: a network that is cut, clocks that differ, and clients that try again elsewhere.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::RngExt as _;
use rand::rngs::StdRng;

use super::Mode;
use super::algebra::{Fact, Kind, Verdict, verdict};

type Facts = BTreeMap<u32, BTreeSet<Fact>>;

/// Facts under way: when each arrives, its key, and itself.
type Link = VecDeque<(i64, u32, Fact)>;

/// Answers are kept for longer than any schedule: all effects of a key belong to one life.
const RETENTION: i64 = 1_000_000;

#[derive(Debug, Clone, Default)]
struct Region {
    facts: Facts,
    epoch: u64,
    seq: u64,
    /// How far its clock is ahead.
    skew: i64,
    /// Attempts that have not committed: the key, and when they will.
    open: Vec<(u32, i64)>,
    /// Whether it knows everything that it committed.
    joined: bool,
}

impl Region {
    fn verdict(&self, key: u32) -> Verdict {
        self.facts.get(&key).map(verdict).unwrap_or_default()
    }

    fn learn(&mut self, key: u32, fact: Fact) {
        self.facts.entry(key).or_default().insert(fact);
    }
}

/// What came of a schedule.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    pub(super) effects: usize,
    pub(super) replays: usize,
    pub(super) sent_home: usize,
    pub(super) doubles: usize,
    pub(super) restores: usize,
}

pub(super) struct World<'a> {
    random: &'a mut StdRng,
    mode: Mode,
    keys: u32,
    now: i64,
    regions: Vec<Region>,
    /// What travels from one region to another, in order, and when it arrives.
    links: BTreeMap<(usize, usize), Link>,
    cut: BTreeSet<(usize, usize)>,
    /// Every effect that happened, known to anybody or not.
    effects: BTreeMap<u32, Vec<Fact>>,
    outcome: Outcome,
}

impl<'a> World<'a> {
    pub(super) fn new(random: &'a mut StdRng, count: usize, mode: Mode) -> Self {
        let mut regions = Vec::new();
        for _ in 0..count {
            regions.push(Region {
                skew: random.random_range(-50..50),
                epoch: 1,
                joined: true,
                ..Region::default()
            });
        }
        Self {
            keys: random.random_range(1..20),
            random,
            mode,
            now: 1_000,
            regions,
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            effects: BTreeMap::new(),
            outcome: Outcome::default(),
        }
    }

    /// Runs a random schedule, heals everything, and compares all regions with each other and with what happened.
    pub(super) fn run(mut self, steps: usize) -> Result<Outcome, String> {
        for _ in 0..steps {
            self.now += self.random.random_range(0..5);
            let (region, other) = (self.any(), self.any());
            match self.random.random_range(0..100) {
                0..60 => self.request(region),
                60..75 if region != other => drop(self.cut.insert((region, other))),
                75..90 => self.cut.retain(|_| self.random.random_bool(0.6)),
                90..92 => self.restore(region),
                92..95 => self.join(region),
                _ => {}
            }
            self.commit();
            self.deliver();
        }
        self.heal();
        self.check()
    }

    fn any(&mut self) -> usize {
        self.random.random_range(0..self.regions.len())
    }

    /// The home of a key: all regions agree on it.
    fn home(&self, key: u32) -> usize {
        key as usize % self.regions.len()
    }

    /// A client asks some region, and goes home where it is sent there.
    fn request(&mut self, mut at: usize) {
        let key = self.random.random_range(0..self.keys);
        for _ in 0..2 {
            let region = &self.regions[at];
            if region.verdict(key).kept.is_some() {
                self.outcome.replays += 1;
                return;
            }
            let busy = region.open.iter().any(|(open, _)| *open == key);
            if busy || !region.joined {
                return;
            }
            if self.mode == Mode::Local || at == self.home(key) {
                let takes = self.random.random_range(0..20);
                self.regions[at].open.push((key, self.now + takes));
                return;
            }
            self.outcome.sent_home += 1;
            at = self.home(key);
        }
    }

    /// Attempts end. One that finds an answer by then has lost on the primary key.
    fn commit(&mut self) {
        for at in 0..self.regions.len() {
            let now = self.now;
            let open = std::mem::take(&mut self.regions[at].open);
            let (done, open): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, end)| *end <= now);
            self.regions[at].open = open;
            for (key, _) in done {
                self.finish(at, key);
            }
        }
    }

    fn finish(&mut self, at: usize, key: u32) {
        let count = self.regions.len();
        let region = &mut self.regions[at];
        if region.verdict(key).kept.is_some() {
            self.outcome.replays += 1;
            return;
        }
        region.seq += 1;
        let time = self.now + region.skew;
        let fact = Fact {
            at: time,
            region: u8::try_from(at + 1).unwrap_or(u8::MAX),
            epoch: region.epoch,
            seq: region.seq,
            kind: Kind::Succeeded,
            expires: time + RETENTION,
        };
        region.learn(key, fact.clone());
        self.effects.entry(key).or_default().push(fact.clone());
        self.outcome.effects += 1;
        for to in (0..count).filter(|to| *to != at) {
            let lag = self.random.random_range(0..30);
            let link = self.links.entry((at, to)).or_default();
            let after = link.back().map_or(0, |last| last.0);
            link.push_back((after.max(self.now + lag), key, fact.clone()));
        }
    }

    fn deliver(&mut self) {
        for ((from, to), link) in &mut self.links {
            if self.cut.contains(&(*from, *to)) {
                continue;
            }
            while let Some((_, key, fact)) = link.pop_front_if(|next| next.0 <= self.now) {
                self.regions[*to].learn(key, fact);
            }
        }
    }

    /// A region is restored from a backup: it forgets some of what it knew, and must join again. What it has committed is
    /// on its way to the others or known to them, unless another was restored and has not joined yet: what all have
    /// forgotten is lost, as with any PostgreSQL.
    fn restore(&mut self, at: usize) {
        let others = self.regions.iter().enumerate().filter(|(to, _)| *to != at);
        if !others.into_iter().all(|(_, region)| region.joined) {
            return;
        }
        self.outcome.restores += 1;
        let keep = self.random.random_range(0.0..1.0);
        let region = &mut self.regions[at];
        region.open.clear();
        region.joined = false;
        for facts in region.facts.values_mut() {
            facts.retain(|_| self.random.random_bool(keep));
        }
        // The sequence goes back too: only the epoch keeps numbers apart.
        region.seq = 0;
    }

    /// It joins again where it reaches all others: it gets what they know, and they get what it knows.
    fn join(&mut self, at: usize) {
        let count = self.regions.len();
        let reaches = |cut: &BTreeSet<_>, to| !cut.contains(&(at, to)) && !cut.contains(&(to, at));
        if self.regions[at].joined || !(0..count).all(|to| reaches(&self.cut, to)) {
            return;
        }
        for to in (0..count).filter(|to| *to != at) {
            // What was under way in the old log has arrived, or the slot's reader got it before the crash.
            for (_, key, fact) in self.links.remove(&(at, to)).unwrap_or_default() {
                self.regions[to].learn(key, fact);
            }
            let theirs = self.regions[to].facts.clone();
            let mine = self.regions[at].facts.clone();
            for (key, fact) in theirs
                .into_iter()
                .flat_map(|(key, facts)| facts.into_iter().map(move |f| (key, f)))
            {
                self.regions[at].learn(key, fact);
            }
            for (key, fact) in mine
                .into_iter()
                .flat_map(|(key, facts)| facts.into_iter().map(move |f| (key, f)))
            {
                self.regions[to].learn(key, fact);
            }
        }
        let known = self.regions.iter().map(|region| region.epoch).max();
        self.regions[at].epoch = known.unwrap_or_default() + 1;
        self.regions[at].joined = true;
    }

    fn heal(&mut self) {
        self.cut.clear();
        self.now += 1_000;
        self.commit();
        for at in 0..self.regions.len() {
            self.join(at);
        }
        self.now += 1_000;
        self.deliver();
    }

    fn check(mut self) -> Result<Outcome, String> {
        for key in 0..self.keys {
            let happened = self.effects.remove(&key).unwrap_or_default();
            let doubles = happened.len().saturating_sub(1);
            self.outcome.doubles += doubles;
            if doubles > 0 && self.mode != Mode::Local {
                return Err(format!(
                    "key {key} happened {} times: {happened:?}",
                    happened.len()
                ));
            }
            let first = self.regions[0].verdict(key);
            for (number, region) in self.regions.iter().enumerate() {
                let verdict = region.verdict(key);
                if verdict != first {
                    return Err(format!(
                        "regions 1 and {} disagree on key {key}",
                        number + 1
                    ));
                }
                let listed: BTreeSet<_> = verdict.surplus.into_iter().collect();
                let kept = verdict.kept.map(|(fact, _)| fact);
                let expected: BTreeSet<_> = happened
                    .iter()
                    .filter(|fact| Some(*fact) != kept.as_ref())
                    .cloned()
                    .collect();
                if listed != expected || kept.is_some() == happened.is_empty() {
                    return Err(format!(
                        "key {key}: {expected:?} were surplus, {listed:?} are listed"
                    ));
                }
            }
        }
        Ok(self.outcome)
    }
}
