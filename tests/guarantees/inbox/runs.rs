//! Several stored messages of one key are claimed together: they are applied in their order, and a long queue behind one
//! message costs no more than a short one.

use std::time::Duration;

use pgonce::Error;
use pgonce::inbox::{ClaimedMessage, Inbox};
use pgonce_tests::{TestDriver, World, for_each_driver};

const LEASE: Duration = Duration::from_secs(10);

/// Stores messages, each written as its number and key.
async fn store(world: &World<impl TestDriver>, messages: &str) {
    for each in messages.split(' ') {
        let (n, key) = each.split_at(each.len() - 1);
        let sql = format!(
            "select pgonce.store_message('c', 'hook', '{n}', '', p_key => nullif('{key}', '-'))"
        );
        world.see.run(&sql).await;
    }
}

async fn claim<D: TestDriver>(
    inbox: &Inbox<D>,
    limit: usize,
    per_key: usize,
) -> Vec<ClaimedMessage> {
    let claimed = inbox.claim_runs("c", "me", LEASE, limit, per_key).await;
    claimed.unwrap()
}

fn ids(claimed: &[ClaimedMessage]) -> String {
    let ids: Vec<_> = claimed.iter().map(|c| c.message.id.as_str()).collect();
    ids.join(" ")
}

async fn finish<D: TestDriver>(
    inbox: &Inbox<D>,
    claimed: &[&ClaimedMessage],
) -> pgonce::Result<()> {
    inbox.begin().await?.commit_finished("c", claimed).await
}

async fn a_run_of_a_key_is_given_in_order_and_ends_where_it_must_wait<D: TestDriver>(
    world: World<D>,
) {
    let inbox = world.owner.inbox();
    store(&world, "1a 2b 3a 4a 5- 6a").await;
    // The first of each key before the second of any.
    assert_eq!(ids(&claim(&inbox, 4, 3).await), "1 2 3 5");
    assert_eq!(ids(&claim(&inbox, 4, 3).await), "", "others wait for those");
    world.see.run("select pgonce._move_clock('11 s')").await;
    // A message whose worker vanished may be what ended it: it goes alone.
    assert_eq!(ids(&claim(&inbox, 9, 3).await), "1 2 5");
    world
        .see
        .run("update pgonce.inbox_message set status = 'received', due_at = pgonce.now()")
        .await;
    world.see.run("update pgonce.inbox_message set due_at = pgonce.now() + interval '1 hour' where message_id = '4'").await;
    assert_eq!(ids(&claim(&inbox, 9, 9).await), "1 2 3 5", "6 waits for 4");
}

async fn a_message_of_a_run_is_not_finished_before_its_turn<D: TestDriver>(world: World<D>) {
    let inbox = world.owner.inbox();
    store(&world, "1a 2a 3a").await;
    let run = claim(&inbox, 9, 9).await;
    let early = finish(&inbox, &[&run[1]]).await;
    assert!(matches!(early, Err(Error::Fenced(_))), "{early:?}");
    finish(&inbox, &[&run[0], &run[1]]).await.unwrap();
    // The lease runs out, and another takes the last one's place.
    world.see.run("select pgonce._move_clock('11 s')").await;
    let heir = claim(&inbox, 9, 9).await;
    assert_eq!(ids(&heir), "3");
    assert!(matches!(
        finish(&inbox, &[&run[2]]).await,
        Err(Error::Fenced(_))
    ));
    finish(&inbox, &[&heir[0]]).await.unwrap();
}

async fn what_waits_behind_one_message_costs_others_nothing<D: TestDriver>(world: World<D>) {
    let inbox = world.owner.inbox();
    store(&world, "1a").await;
    let poison = claim(&inbox, 1, 1).await;
    inbox
        .fail("c", &poison[0], false, "no", "never")
        .await
        .unwrap();
    world
        .see
        .run(
            "insert into pgonce.inbox_message select (jsonb_populate_record(m, jsonb_build_object(
                'seq', nextval('pgonce.inbox_seq'), 'message_id', 'behind ' || n, 'status', 'received',
                'due_at', pgonce.now()))).* from pgonce.inbox_message m, generate_series(1, 5000) n;
             analyze pgonce.inbox_message",
        )
        .await;
    store(&world, "7b 8b 9-").await;
    let explain = "explain (analyze, buffers, format json) select * from pgonce._claim_messages('c', 'me', '10 s', 10, 2)";
    let plan = world.see.text(explain).await;
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let plan = &plan[0]["Plan"];
    assert_eq!(plan["Actual Rows"].as_f64(), Some(3.0), "{plan}");
    let pages =
        plan["Shared Hit Blocks"].as_u64().unwrap() + plan["Shared Read Blocks"].as_u64().unwrap();
    // A look at each of them would be three pages.
    assert!(pages < 3000, "{pages} pages");
    world.see.run("select pgonce._move_clock('11 s')").await;
    assert_eq!(ids(&claim(&inbox, 10, 2).await), "7 9");
    // With nothing else to do, too.
    let claimed = inbox.claim("c", "me", LEASE, 10).await.unwrap();
    assert_eq!(ids(&claimed), "");
}

/// Messages that need manual action, of no key, and more of a blocked key than a claim looks at first.
async fn what_needs_manual_action_costs_others_nothing<D: TestDriver>(world: World<D>) {
    let inbox = world.owner.inbox();
    store(&world, "1a").await;
    let head = claim(&inbox, 1, 1).await;
    inbox
        .fail("c", &head[0], false, "no", "never")
        .await
        .unwrap();
    let add = async |count: u64, changed: &str| {
        let sql = format!(
            "insert into pgonce.inbox_message select (jsonb_populate_record(m, jsonb_build_object(
                'seq', nextval('pgonce.inbox_seq'), 'message_id', gen_random_uuid(), {changed}))).*
             from pgonce.inbox_message m, generate_series(1, {count}) n where m.message_id = '1'"
        );
        world.see.run(&sql).await;
    };
    add(500, "'status', 'received', 'due_at', pgonce.now()").await;
    let mut pages = Vec::new();
    for (poison, free) in [(1000, "7b 8b 9-"), (20_000, "4c 5c 6-")] {
        add(poison, "'key', null").await;
        world.see.run("analyze pgonce.inbox_message").await;
        store(&world, free).await;
        let explain = "explain (analyze, buffers, format json) select * from pgonce._claim_messages('c', 'me', '1 hour', 10, 2)";
        let plan: serde_json::Value = serde_json::from_str(&world.see.text(explain).await).unwrap();
        let plan = &plan[0]["Plan"];
        assert_eq!(plan["Actual Rows"].as_f64(), Some(3.0), "{plan}");
        let read = |kind: &str| plan[kind].as_u64().unwrap();
        pages.push(read("Shared Hit Blocks") + read("Shared Read Blocks"));
    }
    assert!(pages[1] < pages[0] + 300, "{pages:?} pages");
}

/// Nobody waits for its reply any longer, and the next one may fare no better.
async fn a_claim_that_takes_longer_than_its_lease_is_ended<D: TestDriver>(world: World<D>) {
    let inbox = world.owner.inbox();
    store(&world, "1a").await;
    let other = world.observer().await;
    other.run("begin; lock table pgonce.inbox_message").await;
    let lease = Duration::from_secs(1);
    let ended = inbox.claim("c", "me", lease, 10).await.unwrap_err();
    assert_eq!(ended.code(), "57014");
    other.run("rollback").await;
    assert_eq!(inbox.claim("c", "me", lease, 10).await.unwrap().len(), 1);
}

for_each_driver!(
    a_claim_that_takes_longer_than_its_lease_is_ended,
    what_needs_manual_action_costs_others_nothing,
    a_run_of_a_key_is_given_in_order_and_ends_where_it_must_wait,
    a_message_of_a_run_is_not_finished_before_its_turn,
    what_waits_behind_one_message_costs_others_nothing,
);
