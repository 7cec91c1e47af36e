//! What the facts of an intent say together: the rules of `pgonce._verdict_of`, written a second time.
//!
//! The state of a region is a set of facts, and merging is the union of two sets: associative, commutative and idempotent.
//! Everything else follows from the set alone.

use std::collections::BTreeSet;

/// What a fact says. The simulation makes successes only; the tests of these rules make all of them.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Succeeded,
    Refused,
    Evicted,
}

/// Something that a region committed. The order of facts is that of their times, then of their regions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fact {
    pub(super) at: i64,
    pub(super) region: u8,
    pub(super) epoch: u64,
    pub(super) seq: u64,
    pub(super) kind: Kind,
    pub(super) expires: i64,
}

/// What a set of facts of one intent says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Verdict {
    /// The fact whose answer counts, and until when it is kept.
    pub(super) kept: Option<(Fact, i64)>,
    /// Effects beside one that counts.
    pub(super) surplus: BTreeSet<Fact>,
}

/// Decides from the facts alone.
pub(super) fn verdict(facts: &BTreeSet<Fact>) -> Verdict {
    let mut verdict = Verdict::default();
    let mut life: Vec<&Fact> = Vec::new();
    let mut end = i64::MIN;
    for fact in facts {
        let ends = life.is_empty() || fact.kind == Kind::Evicted || fact.at >= end;
        if ends {
            close(&life, end, &mut verdict);
            (life, end) = (Vec::new(), i64::MIN);
        }
        if fact.kind == Kind::Evicted {
            verdict.kept = None;
            continue;
        }
        life.push(fact);
        end = end.max(fact.expires);
    }
    close(&life, end, &mut verdict);
    verdict
}

/// The first success of a life is kept, or else its first refusal.
fn close(life: &[&Fact], end: i64, verdict: &mut Verdict) {
    let mut successes = life.iter().filter(|fact| fact.kind == Kind::Succeeded);
    let kept = successes.next().or(life.first());
    if let Some(kept) = kept {
        verdict.kept = Some(((*kept).clone(), end));
    }
    verdict
        .surplus
        .extend(successes.map(|fact| (*fact).clone()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgonce::driver::sqlx::Sqlx;
    use pgonce::migrate::Migrator;
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _, seq::SliceRandom as _};
    use sqlx::{Connection as _, PgConnection};

    /// Facts that are close to each other, so that lives touch, overlap and tie.
    fn random_facts(random: &mut StdRng) -> Vec<Fact> {
        let count = random.random_range(0..8);
        let fact = |seq| {
            let at = random.random_range(0..12);
            Fact {
                at,
                region: random.random_range(1..4),
                epoch: random.random_range(1..3),
                seq,
                kind: match random.random_range(0..10) {
                    0 => Kind::Evicted,
                    1 | 2 => Kind::Refused,
                    _ => Kind::Succeeded,
                },
                expires: at + random.random_range(1..8),
            }
        };
        (0..count).map(fact).collect()
    }

    #[expect(clippy::print_stderr, reason = "the seed of a run that fails")]
    fn seed() -> u64 {
        let given = std::env::var("PGONCE_SEED").ok();
        let seed = given.and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(rand::random::<u64>);
        eprintln!("to repeat this run: PGONCE_SEED={seed}");
        seed
    }

    /// Lets a state receive facts one by one and look after each, as a region does.
    fn received(facts: &[Fact]) -> Verdict {
        let mut state = BTreeSet::new();
        let mut seen = Verdict::default();
        for fact in facts {
            state.insert(fact.clone());
            seen = verdict(&state);
        }
        seen
    }

    #[test]
    fn merging_is_associative_commutative_and_idempotent() {
        let mut random = StdRng::seed_from_u64(seed());
        for _ in 0..20_000 {
            let mut facts = random_facts(&mut random);
            let expected = received(&facts);
            facts.shuffle(&mut random);
            assert_eq!(received(&facts), expected, "another order: {facts:?}");
            let again: Vec<_> = facts.iter().chain(&facts).cloned().collect();
            assert_eq!(received(&again), expected, "twice: {facts:?}");
            let cut = random.random_range(0..=facts.len());
            let (left, right) = facts.split_at(cut);
            let left: BTreeSet<_> = left.iter().cloned().collect();
            let right: BTreeSet<_> = right.iter().cloned().collect();
            assert_eq!(verdict(&(&left | &right)), expected);
            assert_eq!(verdict(&(&right | &left)), expected);
        }
    }

    #[test]
    fn what_was_surplus_stays_surplus_when_more_arrives() {
        let mut random = StdRng::seed_from_u64(seed());
        for _ in 0..20_000 {
            let mut facts = random_facts(&mut random);
            // An eviction says that the next attempt may happen again: it can part what was one life.
            facts.retain(|fact| fact.kind != Kind::Evicted);
            let mut state = BTreeSet::new();
            let mut surplus = BTreeSet::new();
            for fact in &facts {
                state.insert(fact.clone());
                let now = verdict(&state).surplus;
                // Its place among equals may be taken by an earlier one, never its being one too many.
                assert!(now.len() >= surplus.len(), "{facts:?}");
                surplus = now;
            }
        }
    }

    #[tokio::test]
    async fn the_database_decides_as_these_rules_do() {
        let server = pgonce_testkit::shared(None).await.unwrap();
        let install = |url: String| async move {
            let pool = sqlx::PgPool::connect_lazy(&url)?;
            Migrator::new(Sqlx::new(pool.clone())).up().await?;
            pool.close().await;
            Ok::<_, pgonce::Error>(())
        };
        server.template("regions", install).await.unwrap();
        let database = server.database_from("regions").await.unwrap();
        let mut conn = PgConnection::connect(&database.url()).await.unwrap();
        for id in 1..4_i16 {
            sqlx::query("select pgonce._add_region($1, 'r' || $1, '')")
                .bind(id)
                .execute(&mut conn)
                .await
                .unwrap();
        }
        let mut random = StdRng::seed_from_u64(seed());
        for number in 0..300 {
            let mut facts = random_facts(&mut random);
            // A number of a region is used once, whatever the intent.
            for fact in &mut facts {
                fact.seq += number * 10;
            }
            let key = format!("k{number}");
            for fact in &facts {
                land(&mut conn, &key, fact).await;
            }
            let expected = verdict(&facts.iter().cloned().collect());
            let asked: Vec<(String, i64, i64)> = sqlx::query_as(
                "select verdict, (fact).seq, extract(epoch from life_end)::bigint from pgonce._verdict_of('', 's', $1) \
                 where verdict in ('kept', 'surplus') order by 2",
            )
            .bind(&key)
            .fetch_all(&mut conn)
            .await
            .unwrap();
            let kept = asked.iter().find(|row| row.0 == "kept");
            let kept = kept.map(|(_, seq, end)| (*seq, *end - BASE));
            let ours = expected.kept.map(|(fact, end)| (fact.seq as i64, end));
            assert_eq!(kept, ours, "{facts:?}");
            let surplus: BTreeSet<i64> = asked
                .iter()
                .filter(|row| row.0 == "surplus")
                .map(|row| row.1)
                .collect();
            let ours = expected
                .surplus
                .iter()
                .map(|fact| fact.seq as i64)
                .collect();
            assert_eq!(surplus, ours, "{facts:?}");
            // And so do the tasks, which were made while the facts arrived.
            let tasks: Vec<(i64,)> =
                sqlx::query_as("select seq from pgonce.region_task where key = $1")
                    .bind(&key)
                    .fetch_all(&mut conn)
                    .await
                    .unwrap();
            assert_eq!(
                tasks
                    .into_iter()
                    .map(|task| task.0)
                    .collect::<BTreeSet<_>>(),
                ours
            );
        }
    }

    /// Far ahead, so that nothing has expired.
    const BASE: i64 = 4_000_000_000;

    async fn land(conn: &mut PgConnection, key: &str, fact: &Fact) {
        let status = match fact.kind {
            Kind::Succeeded => Some("succeeded"),
            Kind::Refused => Some("failed_final"),
            Kind::Evicted => None,
        };
        sqlx::query(
            "insert into pgonce.region_fact select $1, $2, $3, case when $4 is null then 'evicted' else 'finished' end, '', 's', $5, \
             to_timestamp($6::float8), to_timestamp($7::float8), case when $4 is not null then jsonb_build_object('status', $4, 'fence', 1, \
             'attempts', 1, 'tenant', '', 'scope', 's', 'key', $5, 'fingerprint', '\\x01', 'first_at', to_timestamp($6::float8)) end",
        )
        .bind(i16::from(fact.region))
        .bind(fact.epoch as i64)
        .bind(fact.seq as i64)
        .bind(status)
        .bind(key)
        .bind(BASE + fact.at)
        .bind(BASE + fact.expires)
        .execute(conn)
        .await
        .unwrap();
    }
}
