//! What is done for one tenant is done by one server.

use crate::cluster::Cluster;
use crate::load::prepared;

const GROUP: &str =
    "'[{\"account\": \"cash\", \"debit\": 5}, {\"account\": \"ada\", \"credit\": 5}]'";

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn every_call_for_messages_and_the_ledger_is_one_task_on_the_server_of_the_tenant() {
    let db = prepared(Cluster::shared().await, "one_shard").await;
    let see = db.see().await;
    let calls = [
        "select pgonce.accept('c', 's', 'm', null, 'a')",
        "select r::text operator(pg_catalog.||) '' from pgonce.accept('c', 's', 'm', null, 'a') r",
        "select r::text operator(pg_catalog.||) '' from pgonce.try_lock('n', 'a') r",
        "select * from pgonce.accept_batch('c', 's', '{m,n}', null, 'a')",
        "select a from pgonce._accept_texts('c', 's', '{m,n}', null, 'a') a",
        "select pgonce.ledger_open('bob', 'EUR', 'credit', null, 1, 'a')",
        "select pgonce.ledger_close('bob', 'a')",
        "select pgonce.ledger_settle('shop', '1', 'posted', 1, 'a')",
        "select made_now::text, state from pgonce.ledger_reverse('shop', '2', 'shop', '1', null, 'a')",
        "select * from pgonce.ledger_balance('ada', null, 'a')",
        "select * from pgonce.ledger_statement('ada', '2026-01-01', '2026-02-01', 'a')",
    ];
    let mut statements: Vec<String> = calls.map(str::to_owned).into();
    statements.push(format!(
        "select made_now::text, state from pgonce.ledger_post('shop', '1', {GROUP}, null, null, 'a')"
    ));
    // What they run there.
    for sql in [
        "insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id) \
         values (now(), '-infinity', 'a', 'c', 's', 'm'), (now(), '2026-01-01', 'a', 'c', 's', 'n') on conflict do nothing returning message_id",
        "select message_id, hash from pgonce.inbox_marker where tenant = 'a' and consumer = 'c' and source = 's' and message_id = any ('{m,n}')",
        "insert into pgonce.ledger_group (tenant, source, operation, recorded_at, pending, digest, accounts, amounts) \
         values ('a', 's', 'o', now(), false, '', '{}', '{}') on conflict (tenant, source, operation) do nothing",
        "select * from pgonce.ledger_account where tenant = 'a' and account = 'ada' and shard = 7 % shards for no key update",
        "update pgonce.ledger_account set balance = 1 where tenant = 'a' and account = 'ada' and shard = 0",
        "insert into pgonce.ledger_entry (tenant, account, shard, seq, line, posted_at, source, operation, amount, balance, hash) \
         values ('a', 'ada', 0, 1, 1, now(), 's', 'o', 1, 1, '')",
    ] {
        statements.push(sql.to_owned());
    }
    let node = "select nodeport from pg_dist_shard_placement where shardid = get_shard_id_for_distribution_column('orders', 'a')";
    let port = format!("port={}", see.text(node).await);
    for statement in statements {
        let plan = see.rows(&format!("explain (costs off) {statement}")).await;
        let plan: Vec<String> = plan.into_iter().flatten().flatten().collect();
        let plan = plan.join("\n");
        assert!(plan.contains("Task Count: 1"), "{statement}:\n{plan}");
        assert!(plan.contains(&port), "{statement}: not on {port}:\n{plan}");
    }
    // One server is written, so a commit needs no second phase. What prepared transactions there were is from before.
    let prepared = "select coalesce(string_agg(gid, ' '), '') from pg_dist_transaction";
    let before = see.text(prepared).await;
    see.run(&format!(
        "begin; select from pgonce.claim('s', 'one', '\\x01', null, null, 'a'); \
         select pgonce.accept('c', 's', 'one', null, 'a'); \
         select * from pgonce.accept_batch('c', 's', '{{two,three}}', null, 'a'); \
         select * from pgonce.ledger_post('shop', '1', {GROUP}, null, null, 'a'); \
         insert into orders (tenant, key) values ('a', 'one'); \
         select pgonce.succeed('s', 'one', '\\x01', 1, null, null, null, 'a'); commit"
    ))
    .await;
    let after = see.text(prepared).await;
    assert!(after.split(' ').all(|gid| before.contains(gid)), "{after}");
    let balance = "select balance from pgonce.ledger_balance('ada', null, 'a')";
    assert_eq!(see.number(balance).await, 5);
}
