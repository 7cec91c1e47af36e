//! What is done for one tenant is done by one server.

use pgonce_tests::Observer;

use crate::cluster::Cluster;
use crate::distributed::distributed;
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
    explain(&see, &statements).await;
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

/// Each statement is one task, on the server of tenant `a`.
async fn explain(see: &Observer, statements: &[String]) {
    let node = "select nodeport from pg_dist_shard_placement where shardid = get_shard_id_for_distribution_column('orders', 'a')";
    let port = format!("port={}", see.text(node).await);
    for statement in statements {
        let plan = see.rows(&format!("explain (costs off) {statement}")).await;
        let plan: Vec<String> = plan.into_iter().flatten().flatten().collect();
        let plan = plan.join("\n");
        assert!(plan.contains("Task Count: 1"), "{statement}:\n{plan}");
        assert!(plan.contains(&port), "{statement}: not on {port}:\n{plan}");
    }
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn every_call_for_jobs_is_one_task_on_the_server_of_the_tenant() {
    let db = distributed(Cluster::shared().await, "one_job").await;
    let see = db.see().await;
    let statements = [
        "select * from pgonce._enqueue_tenant_job('q', '1', 'u', 'k', 0, null, null, 'a')",
        "select * from pgonce._claim_tenant_jobs('{q}', 'w', '1 minute', 10, 'a')",
        "select n from pgonce._finish_tenant_jobs('[]', 'a') n",
        "select * from pgonce._renew_tenant_jobs('[]', '1 minute', 'a')",
        "select pgonce.fail_job(1, 2, true, 'c', 'm', null, 'a')",
        "select pgonce.cancel_job(1, null, 'a')",
        "select n from pgonce._retry_tenant_jobs('q', null, 'a') n",
        "select n from pgonce._purge_tenant_jobs(10, 'a') n",
        "select n from pgonce._publish_tenant_event('orders', 'order.created', 's', '1', null, '{}', null, 'a') n",
        "select pgonce._settle_event(1, 2, 'retry', 'r', '1 second', 'a')",
        // What they run there.
        "insert into pgonce.job (id, created_at, priority, tenant, queue) values (1, now(), 0, 'a', 'q') \
         on conflict (tenant, queue, unique_key) where unique_key is not null do nothing returning id",
        "insert into pgonce.job_live (id, state, priority, tenant, queue) values (1, 'ready', 0, 'a', 'q')",
        "select id, key, fence from pgonce.job_live where tenant = 'a' and queue = 'q' and state = 'ready' \
          order by priority desc, id limit 10 for update skip locked",
        "select id from pgonce.job_live where tenant = 'a' and queue = 'q' and key = 'k' and state = 'running' \
          order by id limit 1 for share skip locked",
        "select 1 from pgonce.job_bucket where tenant = 'a' and queue = 'q' for update skip locked",
        "update pgonce.job_live set state = 'running', attempts = attempts + 1 where tenant = 'a' and id = any ('{1,2}')",
        "select array_agg(id), array_agg(attempts), array_agg(key::text) from pgonce.job_live where tenant = 'a' and id = any ('{1,2}')",
        "select array_agg(id), array_agg(payload) from pgonce.job where tenant = 'a' and id = any ('{1,2}')",
        "select * from pgonce.job_live where tenant = 'a' and state in ('scheduled', 'retrying', 'running', 'limited') \
            and due_at <= now() order by due_at limit 10 for update skip locked",
        "delete from pgonce.job_live where tenant = 'a' and id = 1 and fence = 2 and state in ('running', 'limited') returning *",
        "insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue) values (1, now(), 'succeeded', 1, 'a', 'q')",
        "select * from pgonce.jobs where tenant = 'a' and id = 1",
        "select * from pgonce.job_groups where tenant = 'a' and group_name = 'g'",
    ];
    explain(&see, &statements.map(str::to_owned)).await;
    // Whichever server is asked, the tenant's own gives the numbers: its epoch is that of no other.
    let prepared = "select coalesce(string_agg(gid, ' '), '') from pg_dist_transaction";
    let before = see.text(prepared).await;
    for url in &db.urls {
        let node = Observer::connect(url).await;
        node.run(
            "begin; select from pgonce.enqueue('q', '1', p_run_at => coalesce(null, now() - interval '1 second'), p_tenant => 'a'); \
             insert into orders (tenant, key) values ('a', 'one'); commit",
        )
        .await;
        let claimed = "select jsonb_build_array(jsonb_build_object('tenant', tenant, 'id', id, 'fence', fence)) \
                       from pgonce.claim_jobs('{q}', 'w', '1 minute', 1)";
        let job = node.text(claimed).await;
        node.run(&format!(
            "begin; insert into orders (tenant, key) values ('a', 'two'); select pgonce.finish_jobs('{job}') where true; commit"
        ))
        .await;
    }
    assert_eq!(see.number("select count(*) from orders").await, 6);
    let after = see.text(prepared).await;
    assert!(after.split(' ').all(|gid| before.contains(gid)), "{after}");
    let port = "select nodeport from pg_dist_shard_placement where shardid = get_shard_id_for_distribution_column('orders', 'a')";
    let port = see.number(port).await;
    let nodes = &Cluster::shared().await.nodes;
    let home = nodes.iter().position(|node| i64::from(node.port()) == port);
    let home = Observer::connect(&db.urls[home.unwrap()]).await;
    let mine = "select life = pgonce._database_life() from pgonce.tenant_epoch where tenant = 'a'";
    assert_eq!(home.text(mine).await, "t");
    let since = "extract(epoch from since - timestamptz '2026-01-01 00:00:00+00')::bigint / 86400";
    let later = format!("select epoch - {since} from pgonce.tenant_epoch where tenant = 'a'");
    assert_eq!(
        see.number(&later).await,
        0,
        "an epoch began on another server"
    );
}
