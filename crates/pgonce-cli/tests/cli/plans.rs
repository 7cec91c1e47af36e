//! However many rows there are, a page of the console and a list of the program read a bounded number of them.

use pgonce_testkit::wait_until;

use crate::console::PAGES;
use crate::fixture::Fixture;
use crate::serve::{DEADLINE, Serving};

/// Far more rows than any page may read.
const ROWS: i64 = 60_000;

/// What a page may read of one table: it counts intents up to ten thousand and one, and groups up to ten thousand.
const MOST: i64 = 25_000;

async fn fill(fixture: &Fixture) {
    fixture
        .sql(&format!(
            "set synchronous_commit = off;
             select pgonce.define_scope('s', '7 days', p_stale => 'hold');
             insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint)
             select 1, now(), now() + interval '1 day', 1, 'succeeded', '', 's', 'k' || n, '\\x02' from generate_series(1, {ROWS}) n;
             insert into pgonce.intent (fence, first_at, last_at, lease_until, attempts, status, tenant, scope, key, fingerprint)
             select 2, now(), now(), now() - interval '1 hour', 1, 'processing', '', 's', 'stuck' || n, '\\x02' from generate_series(1, 200) n;
             select pgonce.create_subscription('s')"
        ))
        .await;
    // In another transaction: the page of an intent shows the events of its own.
    fixture
        .sql(&format!(
            "select count(pgonce.publish('t', 'y', 'u' || n, '{{}}')) from generate_series(1, {ROWS}) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, received_at, holds_key, headers, payload)
             select n, '', 'c', 'x', n::text, '\\x01', 1, (case when n <= 200 then 'failed_final' else 'processed' end)::pgonce.inbox_status, now(), false, '{{}}', '\\x01'
               from generate_series(1, {ROWS}) n;
             insert into pgonce.job (id, created_at, priority, tenant, queue) select n, now(), 0, '', 'q' from generate_series(1, 3 * {ROWS}) n;
             insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue, failure_code)
             select n, now(), (case when n % 2 = 0 then 'dead' else 'succeeded' end)::pgonce.job_end_status, 3, '', 'q', 'c' || n % 7 from generate_series(1, 2 * {ROWS}) n;
             insert into pgonce.job_live (id, state, priority, tenant, queue) select n, 'ready', 0, '', 'q' from generate_series(2 * {ROWS} + 1, 3 * {ROWS}) n;
             insert into pgonce.external_call (effect_key, fence, requested_at, first_sent_at, sent_at, deadline_at, status, decides, tenant, scope, key, step, provider, digest)
             select md5(n::text)::uuid, 1, now(), now() - interval '2 days', now(), now() - interval '1 day', (case when n <= 200 then 'unknown' else 'confirmed' end)::pgonce.external_status,
                    true, '', 's', n::text, 'x', 'p', '\\x01' from generate_series(1, {ROWS}) n;
             insert into pgonce.import (tenant, job, number, source, settings, state, runner, backend, leased_until, started_at)
             values ('', 'j', 1, 'f', '{{}}', 'done', gen_random_uuid(), 1, now(), now());
             insert into pgonce.import_row select '', 'j', 1, n, n, 'failed', null, null, 'c', 'r' from generate_series(1, {ROWS}) n;
             insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
             select now(), 'x', 'y', '', 's', n::text, 'r', false, '{{}}' from generate_series(1, {ROWS}) n;
             analyze"
        ))
        .await;
}

/// Rows read of each table so far, through its indexes or past them. Sessions report what they read when they end.
async fn read(fixture: &Fixture) -> Vec<(String, i64)> {
    let alone = "select not exists (select from pg_stat_activity a where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend')";
    let ended = async || {
        fixture
            .client
            .query_one(alone, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    };
    wait_until("every session has ended", DEADLINE, ended)
        .await
        .unwrap();
    let counted = "select regexp_replace(t.relname, '_p?[0-9]+$|_default$', '') as name, sum(coalesce(t.seq_tup_read, 0) + coalesce(i.read, 0))::bigint \
         from pg_stat_user_tables t left join (select x.relid, sum(x.idx_tup_read) as read from pg_stat_user_indexes x group by 1) i on i.relid = t.relid \
         where t.schemaname = 'pgonce' group by 1 order by 1";
    let rows = fixture.client.query(counted, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn most(before: &[(String, i64)], after: Vec<(String, i64)>) -> (String, i64) {
    let grown = after.into_iter().map(|(name, count)| {
        let known = before.iter().find(|(other, _)| *other == name);
        (name, count - known.map_or(0, |(_, count)| *count))
    });
    grown.max_by_key(|(_, count)| *count).unwrap()
}

#[tokio::test]
async fn no_page_and_no_list_reads_a_large_table_whole() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let mut before = read(&fixture).await;
    let mut wrong = Vec::new();
    let mut check = |what: &str, after: Vec<(String, i64)>| {
        let (table, count) = most(&before, after.clone());
        if count > MOST {
            wrong.push(format!("{what} read {count} rows of {table}"));
        }
        before = after;
    };
    // Verification reads all on purpose, lanes are counted up to ten thousand each, and the inbox is read where it is not applied.
    let unbounded = ["check", "/outbox?", "/inbox"];
    let more = ["/external?status=all", "/intents?q=scope:s", "/?range=90d"];
    for page in PAGES
        .iter()
        .filter(|page| !unbounded.iter().any(|part| page.contains(part)))
        .chain(&more)
    {
        let serving = Serving::of(&fixture, &["--roles", "console"], "");
        serving.text(page, "").await;
        drop(serving);
        check(page, read(&fixture).await);
    }
    for command in [
        &["intent", "list", "s"][..],
        &["intent", "stuck"],
        &["intent", "show", "s", "k7"],
        &["job", "list"],
        &["job", "list", "q", "--status", "dead"],
        &["external", "list", "--status", "needs_operator"],
        &["import", "list"],
        &["import", "show", "j"],
        &["outbox", "list", "s"],
        &["scope", "list"],
        &[
            "tail",
            "--since",
            "1s",
            "--kind",
            "act,event,letter",
            "--count",
            "1",
        ],
    ] {
        fixture.ok(command);
        check(&command.join(" "), read(&fixture).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
