//! A database from before there was one table of acts keeps what its operators did.

use std::time::Duration;

use pgonce_tests::Observer;

use super::test_db::{TestDb, connect};

#[tokio::test]
async fn an_act_that_is_not_committed_yet_when_an_upgrade_begins_is_kept() {
    let db = TestDb::new().await;
    db.migrator().up_to(10).await.unwrap();
    let operator = connect(&db.database.url()).await;
    operator
        .batch_execute(
            "begin; insert into pgonce.inbox_audit (tenant, consumer, seq, entry, at, who, act, reason, status, attempts)
             values ('', 'c', 7, 1, '2020-01-01', 'ada', 'retry', 'ticket 1', 'failed_final', 4);
             insert into pgonce.ledger_audit (tenant, entry, account, shard, at, who, act, reason, before, after)
             values ('', 1, 'cash', 0, '2020-01-02', 'bob', 'repair', 'ticket 2', '{}', '{}');
             insert into pgonce.outbox_skipped (tenant, subscription, seq, subject, message_id, topic, type, reason, skipped_by, skipped_at)
             values ('', 's', 9, 'a', gen_random_uuid(), 't', 'x', 'typo', 'cy', '2020-01-03')",
        )
        .await
        .unwrap();
    let see = Observer::connect(&db.database.url()).await;
    let migrator = db.migrator().lock_timeout(Duration::from_secs(600));
    let (up, ()) = futures_util::future::join(migrator.up(), async {
        see.wait_until(
            "select count(*) > 0 from pg_stat_activity \
              where wait_event_type = 'Lock' and datname = current_database()",
        )
        .await;
        operator.batch_execute("commit").await.unwrap();
    })
    .await;
    up.unwrap();
    let acts =
        "select string_agg(role || ' ' || act, ', ' order by acted_at) from pgonce.operator_act";
    assert_eq!(db.text(acts).await, "ada retry, bob repair, cy skip");
}

#[tokio::test]
async fn what_operators_did_before_is_in_the_one_table_after_an_upgrade() {
    let db = TestDb::new().await;
    db.migrator().up_to(10).await.unwrap();
    // As the build before had them: two functions that are bound to the tables, and one that is bound to one of them.
    db.run(
        "create function pgonce.now() returns timestamptz language sql volatile return clock_timestamp();
         create function pgonce._audit_inbox(p_message pgonce.inbox_message, p_act text, p_reason text) returns void language sql volatile
         begin atomic
             insert into pgonce.inbox_audit (tenant, consumer, seq, entry, at, who, act, reason, status, attempts)
             values ((p_message).tenant, (p_message).consumer, (p_message).seq, nextval('pgonce.inbox_seq'), pgonce.now(), session_user,
                 p_act, p_reason, (p_message).status, (p_message).attempts);
         end;
         create function pgonce._audit_act(p_act text, p_part text, p_subject text, p_reason text, p_before jsonb default '{}',
             p_tenant text default '') returns void language sql volatile
         begin atomic
             insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
             values (pgonce.now(), session_user, p_act, p_tenant, p_part, p_subject, p_reason, false, p_before);
         end;
         create function pgonce.import_cancel(p_job text, p_tenant text default '') returns bigint language sql volatile
         begin atomic
             select 1 from (select pgonce._audit_act('cancel', 'import ' || p_job, '*', '', '{}', p_tenant)) a;
         end;
         select pgonce._audit_act('redrive', 'outbox s', '*', 'first');
         insert into pgonce.inbox_audit (tenant, consumer, seq, entry, at, who, act, reason, status, attempts, failure_code)
         values ('acme', 'c', 7, 1, '2020-01-01', 'ada', 'retry', 'ticket 1', 'failed_final', 4, 'broken'),
                ('', 'c', 8, 2, '2020-01-02', 'ada', 'retry', null, 'failed_final', 4, null);
         insert into pgonce.ledger_audit (tenant, entry, account, shard, at, who, act, reason, before, after)
         values ('', 1, 'cash', 0, '2020-01-03', 'bob', 'repair', 'ticket 2', '{\"balance\": 7}', '{\"balance\": 6}');
         insert into pgonce.outbox_skipped (tenant, subscription, seq, subject, message_id, topic, type, reason, skipped_by, skipped_at)
         values ('', 's', 9, 'a', gen_random_uuid(), 't', 'x', 'typo', 'ada', '2020-01-04'),
                ('', 's', 10, 'a', gen_random_uuid(), 't', 'x', 'the dead letters were full: down', 'relay', '2020-01-05')",
    )
    .await;
    let report = db.migrator().up().await.unwrap();
    assert_eq!(
        report.applied,
        [
            "0011_acts",
            "0012_vanished",
            "0013_external_life",
            "0014_kept_markers",
            "0015_shared",
            "0016_bound_roles",
            "0017_parked_in_order",
            "0018_asked_try"
        ]
    );
    assert!(report.routines);
    let acts = "select string_agg(concat_ws(' ', role, act, tenant, scope, key, reason, before ->> 'failure_code', before #>> '{after,balance}'), \
                ', ' order by acted_at) from pgonce.operator_act";
    assert_eq!(
        db.text(acts).await,
        "ada retry acme inbox c 7 ticket 1 broken, ada retry  inbox c 8 , bob repair  ledger cash ticket 2 6, \
         ada skip  outbox s 9 typo, postgres redrive  outbox s * first"
    );
    let gone = "select (to_regclass('pgonce.inbox_audit') is null and to_regclass('pgonce.ledger_audit') is null)::text";
    assert_eq!(db.text(gone).await, "true");
    // What was there before and what is made new are the same.
    let fresh = TestDb::new().await;
    fresh.migrator().up().await.unwrap();
    assert_eq!(db.dump("pgonce").await, fresh.dump("pgonce").await);
    db.migrator().check().await.unwrap();
}
