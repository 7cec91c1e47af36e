//! What all tenants share, seen by roles that are bound to one: limits and rates of queues, rules of state machines; and what is their own.

use pgonce::migrate::Migrator;
use pgonce_tests::Observer;
use tokio_postgres::Client;

use super::bound::GLOBEX;
use super::roles::{Shop, all_done, code, count, role};
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
    // Nor does it hold the lock of another tenant's entity, whether there is one or not.
    let timer = "select pgonce.set_timer('m', 'new', 'sla', 'a', '1 hour', 'beta')";
    assert_eq!(code(&acme, timer).await, "42501");

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

/// Who may read all before tenants are isolated reads all after.
#[tokio::test]
async fn an_operator_from_before_sees_every_tenant_after_they_are_isolated() {
    let shop = Shop::open().await;
    all_done(&shop.db.client, GLOBEX).await;
    let owner = connect(&shop.owner).await;
    let (name, url) = role(&shop.db).await;
    let grant = format!("select pgonce.grant_to('{name}', 'operator')");
    all_done(&owner, &[&grant, "select pgonce.isolate_tenants(true)"]).await;
    let operator = connect(&url).await;
    let readable = "select c.relname::text from pg_class c
       where c.relnamespace = 'pgonce'::regnamespace and c.relkind in ('r', 'p') and has_table_privilege(c.oid, 'select')";
    let mut shown = 0;
    for row in operator.query(readable, &[]).await.unwrap() {
        let relation: String = row.get(0);
        let all = format!("select count(*) from pgonce.{relation}");
        let there = count(&shop.db.client, &all).await;
        assert_eq!(count(&operator, &all).await, there, "{relation}");
        shown += there;
    }
    assert!(shown > 10, "{shown} rows are there");
}

/// A consumer of one partition, whose role gets bound to tenants and back.
struct Ordered {
    shop: Shop,
    owner: Client,
    name: String,
    client: Client,
    epoch: i64,
}

impl Ordered {
    async fn open() -> Self {
        let shop = Shop::open().await;
        let owner = connect(&shop.owner).await;
        let (name, url) = role(&shop.db).await;
        let grant =
            format!("select pgonce.grant_to('{name}', 'consumer'), pgonce.isolate_tenants(true)");
        all_done(&owner, &[&grant]).await;
        let client = connect(&url).await;
        Self {
            shop,
            owner,
            name,
            client,
            epoch: 0,
        }
    }

    /// To none where it is empty.
    async fn bind(&self, tenant: &str) {
        let bind = format!("select pgonce.bind_tenant('{}', '{tenant}')", self.name);
        all_done(&self.owner, &[&bind]).await;
    }

    /// Where it goes on.
    async fn lease(&mut self) -> Option<i64> {
        let row = self.client.query_one(LEASE, &[]).await.unwrap();
        self.epoch = row.get(0);
        row.get(1)
    }

    fn advance(&self, from: Option<i64>, to: i64) -> String {
        let from = from.map_or_else(|| "null, null".to_owned(), |from| format!("{from}, 0"));
        format!(
            "select pgonce._advance_partition('c', 'kafka:t', '0', {}, {from}, {to}, 0, '10 s')",
            self.epoch
        )
    }

    /// An operator moves the cursor of a tenant.
    async fn set(&self, position: &str, tenant: &str) {
        let set = format!(
            "select pgonce.set_partition('c', 'kafka:t', '0', {position}, 0, 'test', '{tenant}')"
        );
        self.shop.db.run(&set).await;
    }
}

const LEASE: &str = "select epoch, \"position\" from pgonce._lease_partition('c', 'kafka:t', '0', 'host-7', '10 s')";

#[tokio::test]
async fn a_consumer_that_is_bound_to_a_tenant_goes_on_where_it_was_for_all() {
    let mut worker = Ordered::open().await;
    assert_eq!(worker.lease().await, None);
    all_done(&worker.client, &[&worker.advance(None, 7)]).await;
    worker.bind("acme").await;
    // What it has in hand is for nothing, and what was applied does not come again.
    let late = worker.advance(Some(7), 8);
    assert_eq!(code(&worker.client, &late).await, "P4012");
    assert_eq!(worker.lease().await, Some(7));
    all_done(&worker.client, &[&worker.advance(Some(7), 9)]).await;
    assert_eq!(worker.lease().await, Some(9));
    worker.bind("beta").await;
    assert_eq!(
        worker.lease().await,
        Some(7),
        "nothing of beta was applied since"
    );
    // An operator can go back, which stays so.
    worker.bind("acme").await;
    worker.set("3", "acme").await;
    assert_eq!(worker.lease().await, Some(3));
    assert_eq!(worker.lease().await, Some(3));
}

#[tokio::test]
async fn a_consumer_that_was_bound_does_not_go_back_to_where_it_was_for_all() {
    for took_it_for_all in [true, false] {
        let mut worker = Ordered::open().await;
        if took_it_for_all {
            assert_eq!(worker.lease().await, None);
            all_done(&worker.client, &[&worker.advance(None, 7)]).await;
        }
        worker.bind("acme").await;
        let from = worker.lease().await;
        assert_eq!(from, took_it_for_all.then_some(7));
        all_done(&worker.client, &[&worker.advance(from, 9)]).await;
        let isolated = format!("select pgonce.isolate_tenants({took_it_for_all})");
        worker.bind("").await;
        all_done(&worker.owner, &[&isolated]).await;
        for _ in 0..2 {
            assert_eq!(code(&worker.client, LEASE).await, "55000");
        }
        let kept = format!(
            "select count(*) from pgonce.inbox_cursor where tenant = '' and position is distinct from 7 \
             or tenant = 'acme' and position <> 9 or {took_it_for_all} <> exists (select from pgonce.inbox_cursor where tenant = '')"
        );
        assert_eq!(count(&worker.shop.db.client, &kept).await, 0);

        // The operator knows what others have to apply.
        worker.set("8", "").await;
        assert_eq!(worker.lease().await, Some(8));
        all_done(&worker.client, &[&worker.advance(Some(8), 12)]).await;
        assert_eq!(worker.lease().await, Some(12));
        // Bound again it does not go back, either.
        all_done(&worker.owner, &["select pgonce.isolate_tenants(true)"]).await;
        worker.bind("acme").await;
        assert_eq!(worker.lease().await, Some(12));
        worker.bind("").await;
        worker.set("null", "").await;
        assert_eq!(
            worker.lease().await,
            None,
            "from the start, if it is asked for"
        );
    }
}

#[tokio::test]
async fn a_consumer_that_gets_bound_waits_for_the_batch_that_is_being_committed() {
    let mut worker = Ordered::open().await;
    worker.lease().await;
    let see = Observer::connect(&worker.shop.db.database.url()).await;
    all_done(&worker.client, &["begin", &worker.advance(None, 7)]).await;
    let (name, url) = role(&worker.shop.db).await;
    let bind = format!(
        "select pgonce.grant_to('{name}', 'consumer'), pgonce.bind_tenant('{name}', 'acme')"
    );
    all_done(&worker.owner, &[&bind]).await;
    let bound = connect(&url).await;
    let (taken, ()) = futures_util::future::join(bound.query_one(LEASE, &[]), async {
        see.wait_until(
            "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' \
                 and datname = current_database() and query like '%_lease_partition%'",
        )
        .await;
        all_done(&worker.client, &["commit"]).await;
    })
    .await;
    assert_eq!(taken.unwrap().get::<_, Option<i64>>(1), Some(7));
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
    for (table, general) in [
        ("job_bucket", "tenant = '' or"),
        ("transition_rule", ""),
        ("inbox_cursor", ""),
    ] {
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
    db.run(LEASE).await;
    db.run("update pgonce.inbox_cursor set position = 7, minor = 0")
        .await;
    let acme = bound(&db, &owner, "acme").await;
    let taken = acme.query_one(LEASE, &[]).await.unwrap();
    assert_eq!(taken.get::<_, Option<i64>>(1), Some(7));
    let beta = bound(&db, &owner, "beta").await;
    share_a_rate(&acme, &beta).await;
    all_done(&owner, &["select pgonce.define_transition('m', '', 'a')"]).await;
    let moved = "select version from pgonce.transition('m', '1', 'a', 'c1', p_tenant => 'acme')";
    assert_eq!(count(&acme, moved).await, 1);
}
