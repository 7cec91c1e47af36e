//! A database from before calls to providers belonged to a life of their key.

use super::test_db::TestDb;

#[tokio::test]
async fn what_was_never_sent_before_an_upgrade_can_be_purged_after_it() {
    let db = TestDb::new().await;
    db.migrator().up_to(12).await.unwrap();
    db.run(
        "insert into pgonce.external_call (effect_key, fence, requested_at, status, decides, tenant, scope, key, step, provider, digest) \
         select gen_random_uuid(), 2, '2020-01-01', s::pgonce.external_status, false, '', 'pay', s, 'charge', 'bank', '\\x01' \
           from unnest(array['requested', 'sent', 'unknown']) s",
    )
    .await;
    db.migrator().up().await.unwrap();
    db.run("select pgonce.purge()").await;
    let left = "select string_agg(key, ' ' order by key) from pgonce.external_call";
    assert_eq!(db.text(left).await, "sent unknown");
}
