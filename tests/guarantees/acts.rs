//! Whatever an operator does, to whatever part, is in one table, with the role and the person.

use pgonce::driver::tokio_postgres::TokioPostgres;

use pgonce_tests::World;

/// Acts in SQL, and what each leaves: the act, its part and its key.
const ACTS: &[(&str, &str)] = &[
    (
        "select pgonce.define_scope('pay', '1 day', p_stale => 'hold')",
        "define scope pay *",
    ),
    (
        "select pgonce.define_scope('pay', '2 days', p_stale => 'hold')",
        "change scope pay *",
    ),
    ("select pgonce.drop_scope('pay')", "drop scope pay *"),
    ("select pgonce.set_strict(true)", "strict on scope * *"),
    ("select pgonce.set_strict(false)", "strict off scope * *"),
    (
        "select pgonce.define_queue('mail', p_rate => 5)",
        "define queue mail *",
    ),
    (
        "select pgonce.define_queue('mail', p_paused => true)",
        "pause queue mail *",
    ),
    (
        "select pgonce.define_queue('mail', p_paused => false)",
        "resume queue mail *",
    ),
    (
        "select pgonce.define_queue('mail', p_rate => 6)",
        "change queue mail *",
    ),
    (
        "select pgonce.define_schedule('nightly', '0 3 * * *', 'mail')",
        "define schedule nightly *",
    ),
    (
        "select pgonce.define_schedule('nightly', null)",
        "drop schedule nightly *",
    ),
    (
        "select pgonce.define_provider('bank', p_rate => 5)",
        "define provider bank *",
    ),
    (
        "select pgonce.define_provider('bank')",
        "change provider bank *",
    ),
    (
        "select pgonce.define_inbox('c', p_keep => '90 days')",
        "define inbox c *",
    ),
    (
        "select pgonce.create_subscription('billing')",
        "create outbox billing *",
    ),
    (
        "select pgonce.alter_subscription('billing', p_max_attempts => 2)",
        "change outbox billing *",
    ),
    (
        "select pgonce.set_outbox_retention('2 days')",
        "retention outbox *",
    ),
    (
        "select pgonce.define_transition('case', '', 'open')",
        "define machine case *",
    ),
    (
        "select pgonce.grant_to('pg_monitor', 'viewer')",
        "grant role pg_monitor viewer",
    ),
    (
        "select pgonce.revoke_from('pg_monitor', 'viewer')",
        "revoke role pg_monitor viewer",
    ),
    (
        "select pgonce.bind_tenant('pg_monitor', 'acme')",
        "bind role pg_monitor *",
    ),
    (
        "select pgonce.bind_tenant('pg_monitor', '')",
        "unbind role pg_monitor *",
    ),
    (
        "select pgonce.define_region_rule('pay', 'local', p_max_lag => '10 seconds')",
        "define region rule of pay *",
    ),
    ("select pgonce.purge(10, 'by hand')", "purge intents *"),
    (
        "select pgonce.drop_subscription('billing')",
        "drop outbox billing *",
    ),
];

#[tokio::test]
async fn every_act_leaves_one_row_with_the_role_and_the_person_and_none_where_nothing_changes() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let last = "select concat_ws(' ', act, scope, key) from pgonce.operator_act order by number desc limit 1";
    // The fixture has granted roles before.
    let before = see
        .number("select coalesce(max(number), 0) from pgonce.operator_act")
        .await;
    let count = &format!("select count(*) from pgonce.operator_act where number > {before}");
    for (n, (act, row)) in ACTS.iter().enumerate() {
        // The person is named for one transaction only.
        see.run(&format!(
            "begin; select set_config('pgonce.person', 'ada', true); {act}; commit"
        ))
        .await;
        assert_eq!(see.text(last).await, *row, "{act}");
        assert_eq!(see.number(count).await, n as i64 + 1, "{act}");
    }
    let who = format!(
        "select string_agg(distinct role || ' ' || person, ', ') from pgonce.operator_act where number > {before}"
    );
    assert_eq!(see.text(&who).await, "postgres ada");
    // Services say at every start what they need: nothing changes, nothing is done.
    let again = "select pgonce.define_scope('pay', '1 day'); select pgonce.define_queue('mail', p_rate => 6); \
                 select pgonce.define_provider('bank'); select pgonce.define_inbox('c', p_keep => '90 days'); \
                 select pgonce.define_transition('case', '', 'open'); select pgonce.set_strict(false); \
                 select pgonce.set_outbox_retention('2 days'); select pgonce.define_schedule('none', null)";
    see.run(again).await;
    let acts = ACTS.len() as i64 + 1;
    assert_eq!(see.number(count).await, acts, "only the scope is new");
    see.run(again).await;
    assert_eq!(see.number(count).await, acts);
    assert_eq!(
        see.text("select coalesce(person, 'nobody') from pgonce.operator_act order by number desc limit 1")
            .await,
        "nobody"
    );
}

#[tokio::test]
async fn acts_on_messages_events_jobs_and_calls_are_in_the_same_table() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run(
        "select pgonce.define_inbox('c', p_keep => '90 days', p_max_attempts => 1);
         select pgonce.create_subscription('s');
         insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers)
         select '', 's', 'a', n, 1, 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', 'x', '{}' from generate_series(1, 2) n;
         insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, received_at, holds_key, headers, payload)
         select n, 'acme', 'c', 'q', n, '\\x01', 1, 'failed_final', now(), true, '{}', '\\x01' from generate_series(1, 2) n;
         select pgonce.enqueue('mail', '1'); select pgonce.enqueue('mail', '2');
         select pgonce._lease_partition('c', 'kafka', '0', 'w', '1 minute')",
    )
    .await;
    see.run(
        "begin; set local pgonce.person = 'ada';
         select pgonce.skip('s', 1, 'why 1'); select pgonce.redrive('s', p_reason => 'why 2');
         select pgonce.retry_messages('c', 1, 'why 3'); select pgonce.skip_message('c', 2, 'why 4');
         select pgonce.set_partition('c', 'kafka', '0', 7, 0, 'why 5');
         select pgonce.cancel_job((select min(id) from pgonce.job), 'why 6'); commit",
    )
    .await;
    let acts = "select string_agg(concat_ws(' ', person, act, tenant || scope, key, reason), ', ' order by number) from pgonce.operator_act where person is not null";
    assert_eq!(
        see.text(acts).await,
        "ada skip outbox s 1 why 1, ada redrive outbox s * why 2, ada retry acmeinbox c 1 why 3, ada skip acmeinbox c 2 why 4, \
         ada set_partition inbox c kafka 0 from none to 7: why 5, ada cancel job mail 1 why 6"
    );
    let skipped = "select count(*) from pgonce.outbox_skipped where seq = 1";
    assert_eq!(
        see.number(skipped).await,
        1,
        "deliveries are looked up there"
    );
}
