//! A role that is bound to a tenant, and every function that it may call, with another tenant's names, fences and numbers.

use std::collections::BTreeSet;

use pgonce::Once;
use pgonce::inbox::Message;
use pgonce::migrate::public_headers;
use pgonce_broker::Consumer;
use pgonce_broker::sources::Channel;
use pgonce_tests::consumer::quick;
use pgonce_tests::{Observer, Running};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::roles::{Shop, all_done, code, count, role};
use super::test_db::{connect, tokio_driver};

/// What nobody else may see, as text, as bytes and as an amount.
const SECRETS: [&str; 3] = ["TOPSECRET", "544f50534543524554", "987654321"];

/// Everything that there is, of the tenant `globex`.
pub(super) const GLOBEX: &[&str] = &[
    "select pgonce.define_scope('s', '7 days', p_note => 'TOPSECRET', p_tenant => 'globex')",
    "begin; select pgonce.claim('s', 'done', '\\x01', p_tenant => 'globex'); \
     select pgonce.succeed('s', 'done', '\\x01', 1, '\"TOPSECRET\"', p_tenant => 'globex'); commit",
    "select pgonce.claim('s', 'leased', '\\x01', '1 hour', 'TOPSECRET', 'globex')",
    "select pgonce.create_subscription('billing')",
    "select pgonce.publish('t', 'x', 'subject', '\"TOPSECRET\"', p_tenant => 'globex')",
    "insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, reason, parked_at, created_at, size, message_id, topic, type, headers) \
     values ('globex', 'billing', 'dead', 0, pgonce._lane_of('globex', 'dead'), 'dead', 'TOPSECRET', now(), now(), 1, gen_random_uuid(), 't', 'x', '{}')",
    "select pgonce.accept('c', 's', 'TOPSECRET', p_tenant => 'globex')",
    "select pgonce.store_message('c', 's', 'held', 'TOPSECRET', 'held', p_tenant => 'globex')",
    "select pgonce.claim_messages('c', 'worker', '1 hour', 1)",
    "select pgonce.store_message('c', 's', 'free', 'TOPSECRET', 'free', p_tenant => 'globex')",
    "select pgonce.enqueue('q', '\"TOPSECRET\"', p_tenant => 'globex')",
    "select pgonce.claim_jobs('{q}', 'worker', '1 hour', 1)",
    "select pgonce.enqueue('q', '\"TOPSECRET\"', p_tenant => 'globex')",
    "select pgonce.ledger_open(a, 'EUR', 'debit', p_tenant => 'globex') from unnest('{a,b,c}'::text[]) a",
    "select pgonce.ledger_post('src', 'posted', '[{\"account\": \"a\", \"debit\": 987654321}, {\"account\": \"b\", \"credit\": 987654321}]', p_tenant => 'globex')",
    "select pgonce.ledger_post('src', 'held', '[{\"account\": \"a\", \"debit\": 5}, {\"account\": \"b\", \"credit\": 5}]', p_fence => 1, p_tenant => 'globex')",
    "select pgonce.define_transition('m', '', 'open'), pgonce.define_transition('m', 'open', 'closed')",
    "select pgonce.transition('m', 'e', 'open', 'c1', p_data => '\"TOPSECRET\"', p_tenant => 'globex')",
    "select pgonce.set_timer('m', 'e', 'sla', 'closed', '-1 s', 'globex')",
    "select pgonce.refer('sys', 'r1', 'order', 'TOPSECRET', 'globex')",
    "insert into pgonce.import (tenant, job, number, source, settings, state, runner, backend, leased_until, started_at) \
     values ('globex', 'imp', 1, 'TOPSECRET', '{}', 'running', gen_random_uuid(), 1, now(), now())",
    "insert into pgonce.import_row (tenant, job, number, row, line, status, code, reason) values ('globex', 'imp', 1, 1, 1, 'failed', 'x', 'TOPSECRET')",
    "select pgonce.define_provider('bank')",
    "select pgonce.external_send('s', 'leased', (select fence from pgonce.intent where key = 'leased'), 'pay', 'bank', '\\x01', '\"TOPSECRET\"', p_tenant => 'globex')",
    "update pgonce.external_call set next_look_at = now() - interval '1 s'",
    "create table public.own (a text); create unique index own_a on public.own (a); grant all on public.own to public",
];

/// What stands for what in the calls.
const VALUES: [(&str, &str); 8] = [
    (
        ":fence",
        "select fence::text from pgonce.intent where key = 'leased'",
    ),
    (
        ":message",
        "select seq::text from pgonce.inbox_message where message_id = 'held'",
    ),
    (
        ":mfence",
        "select fence::text from pgonce.inbox_message where message_id = 'held'",
    ),
    (
        ":job",
        "select id::text from pgonce.job_live where owner = 'worker'",
    ),
    (
        ":jfence",
        "select fence::text from pgonce.job_live where owner = 'worker'",
    ),
    (
        ":effect",
        "select effect_key::text from pgonce.external_call",
    ),
    (
        ":batch",
        "select batch::text from pgonce.claim_events('billing', 'worker', '1 hour') where events::text like '%TOPSECRET%'",
    ),
    (":globex", "select 'p_tenant => ''globex'''"),
];

/// What a call does where nothing keeps it from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// It answers a secret.
    Read,
    /// It changes rows of the tenant, or moves a subscription.
    Write,
    /// It goes through, and holds a lock.
    Hold,
    /// It touches nothing of any tenant.
    Nothing,
}
use Does::{Hold, Nothing, Read, Write};

const CALLS: &[(&str, Does, &str)] = &[
    ("now", Nothing, "now()"),
    ("fingerprint", Nothing, "fingerprint('1')"),
    ("resource_id", Nothing, "resource_id('n', 'a')"),
    (
        "insert_or_fetch",
        Nothing,
        "insert_or_fetch('public.own_a', '{\"a\": \"1\"}')",
    ),
    (
        "update_once",
        Nothing,
        "update_once('public.own_a', '{\"a\": \"1\"}')",
    ),
    ("region_of", Nothing, "region_of('s', 'k', 'globex')"),
    ("ledger_verify", Nothing, "ledger_verify('globex')"),
    (
        "project",
        Nothing,
        "project('none', 'm', 'x', 'e', '{}', :globex)",
    ),
    ("claim", Read, "claim('s', 'done', '\\x01', :globex)"),
    ("claim", Hold, "claim('s', 'new', '\\x01', :globex)"),
    (
        "claim",
        Write,
        "claim('s', 'new', '\\x01', '1 minute', :globex)",
    ),
    (
        "claim_first",
        Hold,
        "claim_first('s', 'first', '\\x01', 'globex')",
    ),
    (
        "succeed",
        Write,
        "succeed('s', 'leased', '\\x01', :fence, '1', :globex)",
    ),
    (
        "fail",
        Write,
        "fail('s', 'leased', '\\x01', :fence, true, 'x', 'y', :globex)",
    ),
    (
        "heartbeat",
        Write,
        "heartbeat('s', 'leased', :fence, '2 hours', 'globex')",
    ),
    ("guard", Hold, "guard('s', 'leased', :fence, 'globex')"),
    ("release", Write, "release('s', 'leased', :fence, 'globex')"),
    ("wait", Hold, "wait('s', 'done', '1 s', 'globex')"),
    (
        "answer_of",
        Read,
        "answer_of('s', 'done', '\\x01', 'globex')",
    ),
    ("lock", Hold, "lock('n', '1 s', 'globex')"),
    ("try_lock", Hold, "try_lock('n', 'globex')"),
    ("publish", Write, "publish('t', 'x', 's', '{}', :globex)"),
    ("accept", Write, "accept('c', 's', 'm1', :globex)"),
    (
        "accept_batch",
        Write,
        "accept_batch('c', 's', '{m2}', :globex)",
    ),
    (
        "store_message",
        Write,
        "store_message('c', 's', 'm3', 'x', :globex)",
    ),
    (
        "claim_messages",
        Read,
        "claim_messages('c', 'thief', '1 minute', 10)",
    ),
    (
        "finish_messages",
        Write,
        "finish_messages('c', '[{\"tenant\": \"globex\", \"seq\": :message, \"fence\": :mfence}]')",
    ),
    (
        "release_messages",
        Write,
        "release_messages('c', '[{\"tenant\": \"globex\", \"seq\": :message, \"fence\": :mfence}]')",
    ),
    (
        "fail_message",
        Write,
        "fail_message('c', :message, :mfence, true, 'x', 'y', 'globex')",
    ),
    ("claim_events", Read, "claim_events('billing', 'worker')"),
    ("settle_events", Write, "settle_events('billing', ':batch')"),
    (
        "release_events",
        Write,
        "release_events('billing', 'worker')",
    ),
    ("enqueue", Write, "enqueue('q', :globex)"),
    (
        "claim_jobs",
        Read,
        "claim_jobs('{q}', 'thief', '1 minute', 10)",
    ),
    (
        "finish_jobs",
        Write,
        "finish_jobs('[{\"tenant\": \"globex\", \"id\": :job, \"fence\": :jfence}]')",
    ),
    (
        "renew_jobs",
        Write,
        "renew_jobs('[{\"tenant\": \"globex\", \"id\": :job, \"fence\": :jfence}]', '2 hours')",
    ),
    (
        "fail_job",
        Write,
        "fail_job(:job, :jfence, true, 'x', 'y', :globex)",
    ),
    ("cancel_job", Write, "cancel_job(:job, 'x', 'globex')"),
    (
        "ledger_open",
        Write,
        "ledger_open('new', 'EUR', 'debit', :globex)",
    ),
    ("ledger_close", Write, "ledger_close('c', 'globex')"),
    (
        "ledger_post",
        Write,
        "ledger_post('src', 'more', '[{\"account\": \"a\", \"debit\": 1}, {\"account\": \"b\", \"credit\": 1}]', :globex)",
    ),
    (
        "ledger_settle",
        Write,
        "ledger_settle('src', 'held', 'posted', 1, 'globex')",
    ),
    (
        "ledger_reverse",
        Write,
        "ledger_reverse('src', 'undo', 'src', 'posted', :globex)",
    ),
    ("ledger_balance", Read, "ledger_balance('a', :globex)"),
    (
        "ledger_statement",
        Read,
        "ledger_statement('a', now() - interval '1 hour', now() + interval '1 hour', 'globex')",
    ),
    (
        "transition",
        Write,
        "transition('m', 'e', 'closed', 'c2', :globex)",
    ),
    (
        "set_timer",
        Write,
        "set_timer('m', 'e', 'other', 'closed', '1 hour', 'globex')",
    ),
    ("fire_timers", Write, "fire_timers()"),
    (
        "refer",
        Read,
        "refer('sys', 'r1', 'order', 'mine', 'globex')",
    ),
    ("import_cancel", Write, "import_cancel('imp', 'globex')"),
    (
        "import_result",
        Read,
        "import_result('imp', 1, 1, 'globex')",
    ),
    (
        "external_send",
        Write,
        "external_send('s', 'leased', :fence, 'other', 'bank', '\\x01', :globex)",
    ),
    (
        "external_record",
        Write,
        "external_record('s', 'leased', :fence, 'pay', 'confirmed', 'ref', :globex)",
    ),
    (
        "external_observe",
        Write,
        "external_observe('bank', 'confirmed', p_effect_key => ':effect', p_event_id => 'e1', :globex)",
    ),
    (
        "external_observe",
        Hold,
        "external_observe('bank', 'confirmed', p_reference => 'ch_7', :globex)",
    ),
    (
        "_transition",
        Hold,
        "_transition('m', 'unknown', 'closed', 'c3', null, null, null, 'globex', null)",
    ),
    (
        "_import_begin",
        Hold,
        "_import_begin('other', '\\x01', 'f', '{}', gen_random_uuid(), '1 minute', 'globex', null)",
    ),
    (
        "external_due",
        Write,
        "external_due('bank', 10, '1 minute')",
    ),
    (
        "advance_projection",
        Write,
        "advance_projection('p', 'e', 1, 'globex')",
    ),
];

/// All cells, or the code of the error.
async fn said(client: &Client, sql: &str) -> Result<String, String> {
    let messages = match client.simple_query(sql).await {
        Ok(messages) => messages,
        Err(error) => return Err(error.code().unwrap().code().to_owned()),
    };
    let mut cells = Vec::new();
    for message in &messages {
        if let SimpleQueryMessage::Row(row) = message {
            cells.extend((0..row.len()).filter_map(|n| row.get(n)));
        }
    }
    Ok(cells.join(" "))
}

fn is_secret(text: &str) -> bool {
    SECRETS.iter().any(|secret| text.contains(secret))
}

/// The query that sums up every row of the tenant, and where subscriptions are.
const DIGEST: &str = "select 'select md5(concat(' || string_agg(format('(select string_agg(x::text, '','' order by x::text) from pgonce.%I x where %s)',
        c.relname, case c.relname when 'outbox_cursor' then 'true' else 'x.tenant = ''globex''' end), ', ') || '))'
    from pg_class c where c.relnamespace = 'pgonce'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
     and (c.relname = 'outbox_cursor' or c.relname <> 'tenant_binding'
          and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant'))";

/// A shop with everything of `globex`, and a login that has the parts app, consumer and viewer and is bound to `acme`.
async fn isolated() -> (Shop, Client) {
    let (shop, url) = bound().await;
    (shop, connect(&url).await)
}

/// The same, with the address of the login.
pub(super) async fn bound() -> (Shop, String) {
    let shop = Shop::open().await;
    all_done(&shop.db.client, GLOBEX).await;
    let (name, url) = role(&shop.db).await;
    let parts =
        ["app", "consumer", "viewer"].map(|part| format!("pgonce.grant_to('{name}', '{part}')"));
    let grant = format!("select {}", parts.join(", "));
    let bind = format!("select pgonce.bind_tenant('{name}', 'acme'), pgonce.isolate_tenants(true)");
    all_done(&connect(&shop.owner).await, &[&grant, &bind]).await;
    (shop, url)
}

#[tokio::test]
async fn no_function_shows_or_changes_another_tenants_data_to_a_bound_role() {
    let (shop, bound) = isolated().await;
    let superuser = &shop.db.client;
    let may = "select coalesce(string_agg(p.proname, ' '), '') from pg_proc p \
        where p.pronamespace = 'pgonce'::regnamespace and has_function_privilege(p.oid, 'execute')";
    let may: String = bound.query_one(may, &[]).await.unwrap().get(0);
    let may: BTreeSet<&str> = may.split(' ').collect();
    let headers = public_headers();
    let public = headers.iter().filter(|header| header.kind == "function");
    let without: Vec<_> = public
        .map(|header| header.name)
        .filter(|name| may.contains(name) && !CALLS.iter().any(|call| call.0 == *name))
        .collect();
    assert_eq!(without, [""; 0], "they need a call here");

    let mut values = Vec::new();
    for (name, sql) in VALUES {
        values.push((name, shop.db.text(sql).await));
    }
    let digest = shop.db.text(DIGEST).await;
    let before = said(superuser, &digest).await.unwrap();
    for (name, does, call) in CALLS {
        let mut sql = format!("select * from pgonce.{call}");
        for (word, value) in &values {
            sql = sql.replace(word, value);
        }
        // What it does for one who is not bound: else the test could not fail.
        all_done(superuser, &["begin"]).await;
        let free = said(superuser, &sql).await;
        let after = match &free {
            Ok(_) => said(superuser, &digest).await.unwrap(),
            Err(_) => before.clone(),
        };
        all_done(superuser, &["rollback"]).await;
        let proves = match does {
            Read => free.as_deref().is_ok_and(is_secret),
            Write => after != before,
            Hold => free.is_ok(),
            Nothing => after == before,
        };
        assert!(proves, "{name}: {does:?} is not so: {sql}: {free:?}");

        let got = said(&bound, &sql).await;
        assert!(!got.as_deref().is_ok_and(is_secret), "{sql}: {got:?}");
        assert!(*does != Hold || got.is_err(), "{sql}: {got:?}");
        let after = said(superuser, &digest).await.unwrap();
        assert_eq!(after, before, "{sql}: {got:?}");
    }
    // The same login does all of it for its own tenant.
    let own = "select pgonce.claim('s', 'k', '\\x01', '1 minute', p_tenant => 'acme'), pgonce.try_lock('n', 'acme'), \
        pgonce.publish('t', 'x', 's', '{}', p_tenant => 'acme'), pgonce.accept('c', 's', 'm', p_tenant => 'acme')";
    all_done(&bound, &[own]).await;
}

#[tokio::test]
async fn no_table_or_view_shows_another_tenants_rows_to_a_bound_role() {
    let (shop, bound) = isolated().await;
    let readable = "select c.relname::text, string_agg(format('r.%I::text', a.attname), ', ')
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
       where c.relnamespace = 'pgonce'::regnamespace and c.relkind in ('r', 'p', 'v') and has_column_privilege(c.oid, a.attnum, 'select')
       group by 1";
    let mut shown = 0;
    for row in bound.query(readable, &[]).await.unwrap() {
        let (relation, columns): (String, String) = (row.get(0), row.get(1));
        let all = format!("select concat_ws(' ', {columns}) from pgonce.{relation} r");
        let got = said(&bound, &all).await.unwrap();
        assert!(!is_secret(&got), "{relation}: {got}");
        shown += usize::from(is_secret(&said(&shop.db.client, &all).await.unwrap()));
    }
    assert!(shown >= 3, "{shown} show something to others");
}

/// A bound consumer does not see that another tenant keeps its markers for longer: it leaves housekeeping to others.
#[tokio::test]
async fn housekeeping_of_a_bound_consumer_takes_no_marker_of_another_tenant() {
    let (shop, bound) = isolated().await;
    let id = pgonce::key::fresh();
    shop.db
        .run(&format!(
            "select pgonce.define_inbox('c', '60 days', p_tenant => 'globex'); select pgonce._create_inbox_partitions(); \
             select pgonce.accept('c', 's', '{id}', p_tenant => 'globex'); select pgonce.accept('c', 's', 'timeless', p_tenant => 'globex'); \
             select pgonce._move_clock('40 days')"
        ))
        .await;
    let sweep = "select pgonce._drop_inbox_partitions() + pgonce._purge_inbox()";
    for _ in 0..3 {
        assert_eq!(code(&bound, sweep).await, "done");
    }
    let kept = format!(
        "select count(*) from pgonce.inbox_marker where tenant = 'globex' and message_id in ('{id}', 'timeless')"
    );
    assert_eq!(count(&shop.db.client, &kept).await, 2);
    // Nor do others, before the time.
    let (name, url) = role(&shop.db).await;
    let grant = format!("select pgonce.grant_to('{name}', 'consumer')");
    all_done(&connect(&shop.owner).await, &[&grant]).await;
    let free = connect(&url).await;
    assert_eq!(code(&free, sweep).await, "done");
    assert_eq!(count(&shop.db.client, &kept).await, 2);
    shop.db.run("select pgonce._move_clock('30 days')").await;
    for _ in 0..3 {
        assert_eq!(code(&free, sweep).await, "done");
    }
    assert_eq!(count(&shop.db.client, &kept).await, 0);
}

/// A message for another tenant is poison, whatever else is wrong with it, and takes neither an id nor a key of the consumer's own tenant.
#[tokio::test]
async fn a_bound_consumer_keeps_a_foreign_message_as_poison_and_goes_on() {
    let (shop, url) = bound().await;
    let db = Observer::connect(&shop.db.database.url()).await;
    db.run("create table seen (id text primary key, tenant text); grant all on seen to public")
        .await;
    let once = Once::tokio_postgres(tokio_driver(&url).pool().clone());
    let source = Channel::new("shop");
    let sql = "insert into seen select m.id, m.tenant from messages m";
    let consumer = Consumer::statement(&once, "mail", source.source(), sql);
    let running = Running::start(quick(consumer.await.unwrap()));
    let message = |id: &str| Message::new(id, "{}").key("k");
    for id in ["m1", "m2"] {
        for tenant in ["globex", "globex", "acme"] {
            source.send(message(id).tenant(tenant));
        }
    }
    source.send(Message::new("m1", "no JSON").tenant("globex"));
    source.send(message("m3"));
    db.wait_until("select count(*) = 3 and bool_and(tenant = 'acme') from seen")
        .await;
    let kept = "select coalesce(string_agg(message_id || ' ' || failure_code, ', ' order by message_id, failure_code), '') = \
        'of-tenant:globex:m1 P4050, of-tenant:globex:m1 foreign_tenant, of-tenant:globex:m2 foreign_tenant' \
        from pgonce.inbox_message where consumer = 'mail' and tenant = 'acme' and key is null and status = 'failed_final'";
    db.wait_until(kept).await;
    running.stop().await.unwrap();
}
