//! The whole log, replayed into what was made of it, and into nothing: the same state, by its hash.
//!
//! `PGONCE_REPLAY_EVENTS` says how many events; `make replay` asks for a million.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{Observer, World};

use super::projections::TABLES;

/// Events of one statement.
const PAGE: i64 = 2_000;

fn events() -> i64 {
    match std::env::var("PGONCE_REPLAY_EVENTS") {
        Ok(text) => text.parse().expect("PGONCE_REPLAY_EVENTS is a number"),
        Err(_) => 5_000,
    }
}

/// Half of the events are deltas, half are versions, about a thousand entities each.
async fn fill(see: &Observer, events: i64) {
    see.run(&format!(
        "insert into pgonce.outbox select e.* from generate_series(1::bigint, {events}) i cross join lateral \
         pgonce._event_row(case i % 2 when 0 then 'money' else 'people' end, 'changed', 'e' || i / 2 % 1000, \
         jsonb_build_object('delta', i % 1009 - 500, 'name', 'n' || i, 'version', i), null, '{{}}', null, '', 100) e"
    ))
    .await;
}

/// Delivers everything, the last page first, each page in disorder, and every fifth event twice. Answers how
/// many were applied.
async fn deliver(see: &Observer, projection: &str, topic: &str, salt: u32) -> i64 {
    let last = see.number("select max(seq) from pgonce.outbox").await;
    let mut applied = 0;
    for page in (0..=last / PAGE).rev() {
        let (from, to) = (page * PAGE, (page + 1) * PAGE);
        applied += see
            .number(&format!(
                "select count(*) filter (where p) from (select pgonce.project('{projection}', id, type, subject, payload, headers) as p \
                 from (select o.message_id::text as id, o.type, o.subject, o.payload, o.headers from pgonce.outbox o, \
                    generate_series(1, case o.seq % 5 when 0 then 2 else 1 end) \
                  where o.topic = '{topic}' and o.seq >= {from} and o.seq < {to} \
                  order by md5(o.message_id::text || {salt})) m) x"
            ))
            .await;
    }
    applied
}

#[tokio::test]
async fn a_full_replay_converges_to_the_identical_state_twice() {
    let world = World::<TokioPostgres>::new().await;
    let (see, inbox) = (&world.see, world.owner.inbox());
    see.run(TABLES).await;
    let events = events();
    fill(see, events).await;
    for (projection, topic, columns, expected) in [
        (
            "balance",
            "money",
            "account, amount",
            "select 'e' || i / 2 % 1000, sum(i % 1009 - 500) from generate_series(2::bigint, $, 2) i group by 1",
        ),
        (
            "profile",
            "people",
            "id, name",
            "select distinct on (1) 'e' || i / 2 % 1000, 'n' || i from generate_series(1::bigint, $, 2) i order by 1, i desc",
        ),
    ] {
        let hash = |of: &str| {
            format!(
                "select md5(string_agg(r::text, ',' order by r::text collate \"C\")) from ({of}) r"
            )
        };
        // What it must come to, without any of our code.
        let right = see
            .text(&hash(&expected.replace('$', &events.to_string())))
            .await;
        let state = hash(&format!("select {columns} from {projection}"));
        let applied = deliver(see, projection, topic, 1).await;
        assert!(applied > 0 && applied <= events / 2, "{applied}");
        assert_eq!(see.text(&state).await, right, "{projection}, live");
        // Replayed into what is there.
        assert_eq!(deliver(see, projection, topic, 2).await, 0);
        assert_eq!(see.text(&state).await, right, "{projection}, replayed");
        // Replayed into nothing, twice, over a table that is wrong each time.
        for spoil in ["delete from", "truncate"] {
            see.run(&format!("{spoil} {projection}")).await;
            let rebuilt = inbox.rebuild(projection).await.unwrap();
            assert_eq!(rebuilt.events, u64::try_from(events / 2).unwrap());
            assert_eq!(see.text(&state).await, right, "{projection}, rebuilt");
        }
        let verified = inbox.verify(projection).await.unwrap();
        assert!(verified.is_equal() && verified.pending == 0, "{verified:?}");
    }
}
