//! What roles may not do, and whose rows they do not see.

use pgonce::migrate::{Migrator, Part};

use super::roles::{Shop, all_done, code, count, role};
use super::test_db::{TestDb, connect, tokio_driver};

/// What each part may not do.
const FORBIDDEN: &[(&[Part], &[&str])] = &[
    (
        &Part::ALL,
        &[
            "select pgonce._set_clock(now())",
            "select pgonce._move_clock('1 hour')",
            "select pgonce._reset_clock()",
            "select pgonce.set_strict(true)",
            "select pgonce.grant_to(current_user, 'operator')",
            "select pgonce.revoke_from('postgres')",
            "select pgonce.isolate_tenants(false)",
            "select pgonce.bind_tenant(current_user, '')",
            "insert into pgonce.role_grant values (current_user, 'operator')",
            "update pgonce.migration set breaking = true",
            "delete from pgonce.routines",
            "truncate pgonce.intent",
            "alter table pgonce.intent disable trigger all",
            "alter table pgonce.intent disable row level security",
            "drop policy by_key on pgonce.intent",
            "create table pgonce.mine ()",
            "create or replace function pgonce.now() returns timestamptz language sql return null",
            "update pgonce.intent set answer = '1' where true",
            "update pgonce.intent set expires_at = 'infinity'",
            "delete from pgonce.intent",
            "insert into pgonce.intent select 2, now(), null, 1, 'processing', '', 's', 'k', '\\x01'",
            "update pgonce.scope set retention = '1 s'",
            "delete from pgonce.scope",
            "update pgonce.outbox set topic = 'x'",
            "delete from pgonce.outbox",
            "truncate pgonce.outbox",
            "select nextval('pgonce.outbox_seq'); insert into pgonce.outbox select 0, pg_current_xact_id(), now(), 0, 0, gen_random_uuid(), '', 't', 'x', 's', '{}'",
            "insert into pgonce.outbox select nextval('pgonce.outbox_seq') + 7, pg_current_xact_id(), now(), 0, 0, gen_random_uuid(), '', 't', 'x', 's', '{}'",
            "insert into pgonce.outbox select nextval('pgonce.outbox_seq'), '7', now(), 0, 0, gen_random_uuid(), '', 't', 'x', 's', '{}'",
            "insert into pgonce.outbox select nextval('pgonce.outbox_seq'), pg_current_xact_id(), 'infinity', 0, 0, gen_random_uuid(), '', 't', 'x', 's', '{}'",
            "insert into pgonce.outbox select nextval('pgonce.outbox_seq'), pg_current_xact_id(), '-infinity', 0, 0, gen_random_uuid(), '', 't', 'x', 's', '{}'",
            "insert into pgonce.inbox_marker values ('infinity', '-infinity', '', 'c', 's', 'kept')",
            "insert into pgonce.inbox_marker values ('-infinity', '-infinity', '', 'c', 's', 'kept')",
            "insert into pgonce.inbox_marker values (now() + interval '1 hour', '-infinity', '', 'c', 's', 'kept')",
            "select setval('pgonce.outbox_seq', 1)",
            "select nextval('pgonce.lease_number')",
            "update pgonce.outbox_cursor set cursor = cursor",
            "delete from pgonce.outbox_subscription",
            "update pgonce.parked set state = 'dead'",
            "delete from pgonce.outbox_skipped",
            "update pgonce.inbox_message set status = 'processed'",
            "delete from pgonce.inbox_marker",
            "update pgonce.inbox_cursor set position = 0",
            "delete from pgonce.operator_act",
            "insert into pgonce.operator_act default values",
            "select pgonce._audit_act('settle', 's', 'k', 'forged')",
            "update pgonce.transition_entity set state = 'x'",
            "insert into pgonce.transition_entity values ('', 'm', 'e', 's', 1, now())",
            "insert into pgonce.transition_command default values",
            "update pgonce.transition_timer set due_at = now()",
            "insert into pgonce.transition_rule values ('', 'm', '', 's')",
            "select nextval('pgonce.transition_seq')",
            "update pgonce.ledger_account set balance = 1",
            "insert into pgonce.ledger_entry default values",
            "insert into pgonce.ledger_group default values",
            "update pgonce.ledger_pending set state = 'posted'",
            "select pgonce._begin_epoch(7)",
            "select pgonce._rebase_outbox()",
            "insert into pgonce.job default values",
            "update pgonce.job_live set fence = 7",
            "delete from pgonce.job_end",
            "update pgonce.job_queue set paused = true",
            "insert into pgonce.job_schedule default values",
            "select nextval('pgonce.job_seq')",
            "update pgonce.import set state = 'done'",
            "delete from pgonce.import_row",
            "delete from pgonce.import_key",
            "update pgonce.external_call set status = 'confirmed'",
            "delete from pgonce.external_event",
            "update pgonce.external_provider set keys_for = '0'",
            "update pgonce.attempt set attempt = 0",
            "delete from pgonce.operator_act",
            "update pgonce.region set state = 'active'",
            "insert into pgonce.region_fact default values",
            "delete from pgonce.region_task",
            "select pgonce.region_join(1::smallint, 'here', 'postgres://', 1)",
            "select pgonce.region_leave('here')",
            "select pgonce._land_facts('[]')",
            "update pgonce.sample set jobs = 0",
        ],
    ),
    (
        &[Part::App, Part::Relay, Part::Consumer, Part::Viewer],
        &[
            "select pgonce.define_scope('s', '1 day')",
            "select pgonce.drop_scope('s')",
            "select pgonce.purge()",
            "select pgonce.create_subscription('x')",
            "select pgonce.alter_subscription('billing')",
            "select pgonce.drop_subscription('billing')",
            "select pgonce.evict_subscription('billing', 'x')",
            "select pgonce.replay('billing')",
            "select pgonce.redrive('billing')",
            "select pgonce.skip('billing', 1, 'x')",
            "select pgonce.set_outbox_retention('0')",
            "select pgonce.define_inbox('c', '1 s', '0')",
            "select pgonce.retry_messages('c')",
            "select pgonce.skip_message('c', 1, 'x')",
            "select pgonce.set_partition('c', 's', '0', 1, 0, 'x')",
            "select pgonce.define_projection('p', 't', 'f', 'version')",
            "select pgonce.define_transition('m', '', 's')",
            "select pgonce.ledger_repair('x')",
            "table pgonce.transition_entity",
            "table pgonce.timelines",
            "table pgonce.ledger_entry",
            "table pgonce.parked",
            "table pgonce.inbox_message",
            "table pgonce.operator_act",
            "table pgonce.outbox_events",
            "select payload from pgonce.dead_letters",
            "select payload from pgonce.inbox_poison",
            "select unique_key from pgonce.jobs",
            "select key from pgonce.jobs",
            "select progress from pgonce.jobs",
            "select result from pgonce.jobs",
            "table pgonce.job",
            "table pgonce.job_live",
            "table pgonce.job_end",
            "table pgonce.import",
            "table pgonce.import_row",
            "table pgonce.import_key",
            "table pgonce.imports",
            "table pgonce.external_call",
            "table pgonce.external_event",
            "table pgonce.external_calls",
            "table pgonce.external_reference",
            "table pgonce.attempt",
            "table pgonce.operator_act",
            "table pgonce.region_fact",
            "table pgonce.region_task",
            "table pgonce.double_commits",
            "select pgonce.define_queue('q', true)",
            "select pgonce.define_schedule('s', '* * * * *', 'q')",
            "select pgonce.retry_jobs('q')",
            "select pgonce.define_provider('bank')",
            "select pgonce.external_settle(gen_random_uuid(), 'confirmed', 'x')",
            "select pgonce.intervene('evict', 's', 'k', 'x')",
            "select pgonce._take_stale(1, 'x', '1 h')",
            "select pgonce.define_region_rule('s', 'home')",
        ],
    ),
    (
        &[Part::App, Part::Consumer, Part::Operator, Part::Viewer],
        &[
            "select pgonce._claim_lanes('billing', 'thief', '1 h')",
            "select pgonce._read_lanes('billing', '[]')",
            "select pgonce._settle_lane('billing', 0, 2, null, '[]')",
            "select pgonce._release_lanes('billing', 'host-7')",
        ],
    ),
    (
        &[Part::Relay, Part::Consumer, Part::Operator, Part::Viewer],
        &[
            "select pgonce.claim('s', 'k', '\\x01')",
            "select pgonce.succeed('s', 'k', '\\x01', 2, '1')",
            "select pgonce.fail('s', 'k', '\\x01', 1, false, 'x', 'y')",
            "select pgonce.answer_of('s', 'k', '\\x01')",
        ],
    ),
    (
        &[Part::App, Part::Relay, Part::Operator, Part::Viewer],
        &[
            "select pgonce.claim_messages('c', 'thief', '1 h', 1)",
            "select pgonce._lease_partition('c', 's', '0', 'thief', '1 h')",
            "select pgonce.finish_messages('c', '[]')",
        ],
    ),
    (
        &[Part::Relay, Part::Operator, Part::Viewer],
        &[
            "select pgonce.publish('t', 'x', 's', '{}')",
            "select pgonce.accept('c', 's', '1')",
        ],
    ),
    (
        &[Part::Relay, Part::Consumer, Part::Viewer],
        &["table pgonce.intent"],
    ),
    (
        &[Part::App, Part::Relay, Part::Consumer],
        &["table pgonce.jobs", "table pgonce.job_groups"],
    ),
    (
        &[Part::App, Part::Relay, Part::Operator, Part::Viewer],
        &[
            "select pgonce.claim_jobs('{q}', 'thief', '1 h', 1)",
            "select pgonce.finish_jobs('[]')",
            "select pgonce.renew_jobs('[]', '1 h')",
        ],
    ),
    (
        &[Part::Relay, Part::Viewer],
        &[
            "select pgonce.enqueue('q')",
            "select pgonce.cancel_job(1)",
            "select pgonce._job('', 1)",
            "select pgonce._job_group('', 'g')",
        ],
    ),
];

#[tokio::test]
async fn no_role_can_do_what_belongs_to_another() {
    let shop = Shop::open().await;
    let operator = shop.connect(Part::Operator).await;
    all_done(&operator, &["select pgonce.create_subscription('billing')"]).await;
    for (parts, statements) in FORBIDDEN {
        for part in *parts {
            let client = shop.connect(*part).await;
            for sql in *statements {
                assert_eq!(code(&client, sql).await, "42501", "{part}: {sql}");
            }
        }
    }
    let stranger = role(&shop.db).await.1;
    let claim = "select pgonce.claim('s', 'k', '\\x01')";
    assert_eq!(code(&connect(&stranger).await, claim).await, "42501");
    let blind = Migrator::new(tokio_driver(&stranger))
        .check()
        .await
        .unwrap_err();
    assert!(
        blind.code() == "42501" && blind.to_string().contains("grant_to"),
        "{blind}"
    );
}

#[tokio::test]
async fn an_application_lists_no_keys_no_answers_and_no_events() {
    let shop = Shop::open().await;
    let app = shop.connect(Part::App).await;
    let secret = "begin; select pgonce.claim('orders', 'secret', '\\x01'); select pgonce.succeed('orders', 'secret', '\\x01', 1, '7'); \
                  select pgonce.publish('orders', 'x', 's', '{}'); commit";
    all_done(&app, &[secret]).await;
    let stranger = shop.connect(Part::App).await;
    for sql in [
        "select count(*) from pgonce.intent",
        "select count(*) from pgonce.outbox",
    ] {
        assert_eq!(count(&app, sql).await, 0, "{sql}");
        assert_eq!(count(&stranger, sql).await, 0, "{sql}");
    }
    // A function that looks at each row before the policy has.
    all_done(
        &stranger,
        &[
            "create function pg_temp.leak(text) returns boolean language plpgsql cost 0.0001 as \
           $$ begin raise exception 'saw %', $1 using errcode = 'LEAK0'; end $$",
        ],
    )
    .await;
    for sql in [
        "select count(*) from pgonce.intent where pg_temp.leak(key)",
        "select count(*) from pgonce.outbox where pg_temp.leak(subject)",
    ] {
        assert_eq!(code(&stranger, sql).await, "done", "{sql}");
    }
    // Nor does anything else that these parts may read name what somebody did: keys, answers, payloads, results.
    all_done(
        &app,
        &[
            "select pgonce.enqueue('mail', '\"secret\"', p_unique_key => 'secret', p_key => 'secret', p_group => 'secret')",
            "select pgonce.store_message('c', 's', 'secret', 'secret', p_key => 'secret')",
            "select pgonce.accept('c', 's', 'secret')",
            "select pgonce.ledger_open('secret', 'EUR', 'debit')",
            "select pgonce.claim('orders', 'secret lease', '\\x01', '1 min', p_correlation => 'secret')",
        ],
    )
    .await;
    let consumer = shop.connect(Part::Consumer).await;
    let worked = "with j as (select id, fence from pgonce.claim_jobs('{mail}', 'w', '1 min', 1)) \
        select pgonce.finish_jobs(jsonb_agg(jsonb_build_object('id', id, 'fence', fence, 'result', 'secret'))) from j";
    all_done(&consumer, &[worked]).await;
    for part in [Part::App, Part::Relay, Part::Consumer] {
        let client = shop.connect(part).await;
        let readable = "select c.relname::text from pg_class c where c.relnamespace = 'pgonce'::regnamespace \
            and c.relkind in ('r', 'p', 'v') and has_table_privilege(c.oid, 'select') order by 1";
        let readable = client.query(readable, &[]).await.unwrap();
        assert!(readable.len() > 2, "{part}");
        for relation in readable {
            let relation: String = relation.get(0);
            let rows =
                format!("select count(*) from pgonce.{relation} r where r::text like '%secret%'");
            assert_eq!(count(&client, &rows).await, 0, "{part}: {relation}");
        }
    }
    // Who knows the number of a job, or the name of a group, learns what became of it.
    let job = "select count(*) from pgonce._job('', 1) where status = 'succeeded' and result = '\"secret\"'";
    assert_eq!(count(&stranger, job).await, 1);
    let group = "select count(*) from pgonce._job_group('', 'secret') where status = 'finished'";
    assert_eq!(count(&stranger, group).await, 1);
    // Who knows the key gets the answer, by the functions as ever.
    let known = "select count(*) from pgonce.answer_of('orders', 'secret', '\\x01')";
    assert_eq!(count(&stranger, known).await, 1);
    let other = "select count(*) from pgonce.answer_of('orders', 'other', '\\x01')";
    assert_eq!(count(&stranger, other).await, 0);
}

/// Functions with the owner's rights look at nothing that a caller left in his temporary schema or his path.
#[tokio::test]
async fn twins_in_a_temporary_schema_are_not_seen() {
    let shop = Shop::open().await;
    let app = shop.connect(Part::App).await;
    all_done(
        &app,
        &[
            "create temporary table intent as select 1 as x; create temporary table scope as select 1 as x",
            "create function pg_temp.now() returns timestamptz language plpgsql as $$ begin raise 'twin'; end $$",
            "create function pg_temp.coalesce_(text) returns text language plpgsql as $$ begin raise 'twin'; end $$",
            "create domain pg_temp.interval as integer",
            "set search_path = pg_temp, pgonce, pg_catalog",
            "select pgonce.claim('s', 'k', '\\x01', '30 s'::pg_catalog.interval)",
            "select pgonce.fail('s', 'k2', '\\x01', 1, true, 'x'';drop schema pgonce cascade', 'y')",
            "select pgonce.claim('s''; select 1', 'k\"; --', '\\x01', '30 s'::pg_catalog.interval, p_tenant => '$$; %s %I')",
            "select pgonce.accept('c', 's', '1'), pgonce.store_message('c', 's', '2', '\\x00')",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_bound_role_acts_for_its_tenant_only() {
    let shop = Shop::open().await;
    let owner = connect(&shop.owner).await;
    let (by_setting, by_setting_url) = role(&shop.db).await;
    let bound = shop.name(Part::App);
    all_done(
        &owner,
        &[
            &format!("select pgonce.grant_to('{by_setting}', 'app')"),
            &format!(
                "select pgonce.bind_tenant('{bound}', 'acme'), pgonce.bind_tenant('{by_setting}')"
            ),
        ],
    )
    .await;
    let write = |tenant: &str, key: &str| {
        format!(
            "begin; select pgonce.claim('s', '{key}', '\\x01', p_tenant => '{tenant}'); \
             select pgonce.succeed('s', '{key}', '\\x01', 1, '7', p_tenant => '{tenant}'); \
             select pgonce.publish('t', 'x', 's', '{{}}', p_tenant => '{tenant}'); commit"
        )
    };
    // Bound, but not isolated: nothing changes yet.
    let app = shop.connect(Part::App).await;
    all_done(&app, &[&write("globex", "before")]).await;
    let enqueue = "select pgonce.enqueue('q', p_tenant => 'globex')";
    all_done(&app, &[enqueue]).await;
    let job = "select count(*) from pgonce._job('globex', 1)";
    assert_eq!(count(&app, job).await, 1);
    all_done(&owner, &["select pgonce.isolate_tenants(true)"]).await;

    let app = shop.connect(Part::App).await;
    all_done(&app, &[&write("acme", "k")]).await;
    let answer = |tenant: &str, key: &str| {
        format!("select count(*) from pgonce.answer_of('s', '{key}', '\\x01', '{tenant}')")
    };
    assert_eq!(count(&app, &answer("acme", "k")).await, 1);
    assert_eq!(count(&app, &answer("globex", "before")).await, 0);
    for sql in [
        &*write("globex", "k"),
        "select pgonce.claim('s', 'k', '\\x01', '30 s', p_tenant => 'globex')",
        "select pgonce.fail('s', 'k', '\\x01', 1, true, 'x', 'y', p_tenant => 'globex')",
        "select pgonce.publish('t', 'x', 's', '{}', p_tenant => 'globex')",
        "select pgonce.accept('c', 's', '1', p_tenant => 'globex')",
        "select pgonce.store_message('c', 's', '1', '\\x00', p_tenant => 'globex')",
        "select pgonce._count_suppressed('s', 1, 0, 0, 0, 'globex')",
        "select pgonce.enqueue('q', p_tenant => 'globex')",
        "select pgonce.ledger_open('a', 'EUR', 'debit', p_tenant => 'globex')",
        "select pgonce.transition('m', 'e', 's', 'c', p_tenant => 'globex')",
    ] {
        assert_eq!(code(&app, sql).await, "42501", "{sql}");
        let _ = app.batch_execute("rollback").await;
    }
    let job = "select count(*) from pgonce._job('globex', 1)";
    assert_eq!(count(&app, job).await, 0);
    // Whatever it sets: its binding names the tenant.
    all_done(&app, &["set pgonce.tenant = 'globex'"]).await;
    assert_eq!(count(&app, &answer("globex", "before")).await, 0);

    let app = connect(&by_setting_url).await;
    assert_eq!(code(&app, &write("globex", "x")).await, "42501");
    let _ = app.batch_execute("rollback").await;
    all_done(
        &app,
        &["set pgonce.tenant = 'globex'", &write("globex", "x")],
    )
    .await;
    assert_eq!(count(&app, &answer("globex", "before")).await, 1);
    assert_eq!(count(&app, &answer("acme", "k")).await, 0);
    assert_eq!(code(&app, &write("acme", "y")).await, "42501");

    // A commit guard, also for a session that acts for one tenant after another.
    all_done(
        &owner,
        &["select pgonce.define_scope('guarded', '1 day', p_commit_guard => true)"],
    )
    .await;
    let open = |tenant: &str| {
        format!(
            "select set_config('pgonce.tenant', '{tenant}', true); \
             select pgonce.claim('guarded', 'k', '\\x01', p_tenant => '{tenant}')"
        )
    };
    let close = |tenant: &str| {
        format!("select pgonce.succeed('guarded', 'k', '\\x01', 1, p_tenant => '{tenant}')")
    };
    let one = format!("begin; {}; {}", open("acme"), close("acme"));
    let left_open = format!("{one}; {}; commit", open("globex"));
    let _ = app.batch_execute("rollback").await;
    assert_eq!(code(&app, &left_open).await, "P4013");
    let both = format!("{one}; {}; {}; commit", open("globex"), close("globex"));
    all_done(&app, &["rollback", &both]).await;
    assert_eq!(code(&app, "delete from pgonce.open_claim").await, "42501");

    // A relay is not bound, and a migration keeps all of it.
    let operator = shop.connect(Part::Operator).await;
    assert_eq!(
        count(&operator, "select count(*) from pgonce.outbox").await,
        3
    );
    shop.db
        .run("update pgonce.routines set checksum = 'old'")
        .await;
    Migrator::new(tokio_driver(&shop.owner)).up().await.unwrap();
    let app = shop.connect(Part::App).await;
    assert_eq!(code(&app, &write("globex", "z")).await, "42501");
    all_done(
        &owner,
        &[&format!("select pgonce.bind_tenant('{bound}', '')")],
    )
    .await;
    all_done(&app, &["rollback", &write("globex", "free")]).await;
    all_done(&owner, &["select pgonce.isolate_tenants(false)"]).await;
    let app = shop.connect(Part::App).await;
    all_done(&app, &[&write("globex", "z")]).await;
}

#[tokio::test]
async fn isolation_is_refused_where_the_owner_would_pass_every_policy() {
    let db = TestDb::new().await;
    Migrator::new(tokio_driver(&db.database.url()))
        .up()
        .await
        .unwrap();
    let superuser = connect(&db.database.url()).await;
    assert_eq!(
        code(&superuser, "select pgonce.isolate_tenants(true)").await,
        "42501"
    );
    assert_eq!(
        code(&superuser, "select pgonce.isolate_tenants(null)").await,
        "22023"
    );
}
