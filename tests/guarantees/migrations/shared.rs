//! What all tenants share, seen by roles that are bound to one: limits and rates of queues, rules of state machines; and what is their own.

use pgonce::migrate::Migrator;
use tokio_postgres::Client;

use super::roles::{Shop, all_done, count, role};
use super::test_db::{TestDb, connect, tokio_driver};

/// A login with the parts app and consumer, bound to the tenant, where tenants are isolated.
async fn bound(db: &TestDb, owner: &Client, tenant: &str) -> Client {
    let (name, url) = role(db).await;
    let bind = format!(
        "select pgonce.grant_to('{name}', 'app'), pgonce.grant_to('{name}', 'consumer'), \
         pgonce.bind_tenant('{name}', '{tenant}'), pgonce.isolate_tenants(true)"
    );
    all_done(owner, &[&bind]).await;
    connect(&url).await
}

/// The number of jobs that it gets.
async fn claims(client: &Client, queues: &str) -> i64 {
    let claim = format!("select count(*) from pgonce.claim_jobs({queues}, 'w', '1 minute', 10)");
    count(client, &claim).await
}

const JOBS: &str = "select pgonce.define_queue('mail', p_rate => 3, p_rate_per => '1 hour'), pgonce.define_queue('lim', p_max_running => 1); \
    select pgonce.enqueue(q, p_tenant => t) from unnest('{mail,lim}'::text[]) q, unnest('{acme,beta}'::text[]) t, generate_series(1, 2)";

/// Each has two jobs of a queue that starts three.
async fn share_a_rate(acme: &Client, beta: &Client) {
    assert_eq!(claims(acme, "'{mail}'").await, 2);
    assert_eq!(claims(beta, "'{mail}'").await, 1);
    assert_eq!(claims(beta, "'{mail}'").await, 0);
}

#[tokio::test]
async fn limits_and_rates_of_a_queue_hold_over_the_workers_of_all_tenants() {
    let shop = Shop::open().await;
    let owner = connect(&shop.owner).await;
    shop.db.run(JOBS).await;
    let acme = bound(&shop.db, &owner, "acme").await;
    let beta = bound(&shop.db, &owner, "beta").await;
    share_a_rate(&acme, &beta).await;
    assert_eq!(claims(&acme, "null").await, 1);
    assert_eq!(claims(&beta, "null").await, 0);
    let held = "select jsonb_agg(jsonb_build_object('tenant', tenant, 'id', id, 'fence', fence))::text \
        from pgonce.job_live where queue = 'lim' and state = 'limited'";
    let held = shop.db.text(held).await;
    let renew = format!("select count(*) from pgonce.renew_jobs('{held}', '1 minute')");

    // A lease that is over is renewed while nobody has its place.
    shop.db.run("select pgonce._move_clock('2 minutes')").await;
    assert_eq!(count(&acme, &renew).await, 1);
    assert_eq!(claims(&beta, "'{lim}'").await, 0);
    // A worker cannot give back the job of another tenant, and takes its place; also while the first one cannot renew it.
    shop.db.run("select pgonce._move_clock('2 minutes')").await;
    all_done(&acme, &["begin", &renew]).await;
    assert_eq!(claims(&beta, "'{lim}'").await, 0);
    all_done(&acme, &["rollback"]).await;
    assert_eq!(claims(&beta, "'{lim}'").await, 1);
    assert_eq!(count(&acme, &renew).await, 0);
    assert_eq!(claims(&acme, "'{lim}'").await, 0);
    let running = "select count(*) from pgonce.job_live where queue = 'lim' and state = 'limited'";
    assert_eq!(count(&shop.db.client, running).await, 1);
}

#[tokio::test]
async fn a_bound_application_moves_entities_by_the_rules_and_a_bound_consumer_has_its_own_cursors()
{
    let shop = Shop::open().await;
    let owner = connect(&shop.owner).await;
    let acme = bound(&shop.db, &owner, "acme").await;
    let beta = bound(&shop.db, &owner, "beta").await;
    all_done(&owner, &["select pgonce.define_transition('m', '', 'a')"]).await;
    let moved = "select version from pgonce.transition('m', '1', 'a', 'c1', p_tenant => 'acme')";
    assert_eq!(count(&acme, moved).await, 1);

    for consumer in [&acme, &beta] {
        let lease =
            "select epoch from pgonce._lease_partition('c', 'kafka:t', '0', 'host-7', '10 s')";
        let epoch = count(consumer, lease).await;
        all_done(
            consumer,
            &[
                &format!("select pgonce._advance_partition('c', 'kafka:t', '0', {epoch}, null, null, 7, 0, '10 s')"),
                &format!("select 1 / pgonce._renew_partition('c', 'kafka:t', '0', {epoch}, '10 s')::integer"),
                &format!("select 1 / pgonce._release_partition('c', 'kafka:t', '0', {epoch})::integer"),
            ],
        )
        .await;
    }
    let cursors = "select string_agg(tenant || ' ' || position, ', ' order by tenant) from pgonce.inbox_cursor";
    assert_eq!(shop.db.text(cursors).await, "acme 7, beta 7");
}

/// As the build before isolated them.
#[tokio::test]
async fn a_database_that_isolates_tenants_already_shares_what_is_shared_after_an_upgrade() {
    let db = TestDb::new().await;
    let (name, url) = role(&db).await;
    let database = db.database.name();
    db.run(&format!("grant create on database {database} to {name}"))
        .await;
    let migrator = Migrator::new(tokio_driver(&url));
    migrator.up_to(14).await.unwrap();
    let owner = connect(&url).await;
    for (table, general) in [("job_bucket", "tenant = '' or"), ("transition_rule", "")] {
        let isolate = format!(
            "create policy of_the_owner on pgonce.{table} to current_user using (true); \
             create policy own_tenant on pgonce.{table} as restrictive using ({general} pgonce._tenant_is_allowed(tenant)) \
                 with check (pgonce._tenant_is_allowed(tenant)); \
             alter table pgonce.{table} enable row level security; alter table pgonce.{table} force row level security; \
             alter table pgonce.intent force row level security"
        );
        all_done(&owner, &[&isolate]).await;
    }
    migrator.up().await.unwrap();
    db.run(JOBS).await;
    let acme = bound(&db, &owner, "acme").await;
    let beta = bound(&db, &owner, "beta").await;
    share_a_rate(&acme, &beta).await;
    all_done(&owner, &["select pgonce.define_transition('m', '', 'a')"]).await;
    let moved = "select version from pgonce.transition('m', '1', 'a', 'c1', p_tenant => 'acme')";
    assert_eq!(count(&acme, moved).await, 1);
}
