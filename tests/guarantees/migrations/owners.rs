//! Whatever role migrates, everything belongs to the one that owns it already.

use pgonce::migrate::Migrator;
use tokio_postgres::Client;

use super::roles::{Shop, all_done, code, count, role};
use super::same::tempfile;
use super::test_db::{TestDb, connect, tokio_driver};

/// An ordinary role that owns an empty schema, and its address.
async fn owner_of_schema(db: &TestDb) -> (String, String) {
    let (name, url) = role(db).await;
    db.run(&format!("create schema pgonce authorization {name}"))
        .await;
    (name, url)
}

fn migrator(url: &str) -> Migrator<pgonce::driver::tokio_postgres::TokioPostgres> {
    Migrator::new(tokio_driver(url))
}

/// The owners of the schema and of all that is in it.
async fn owners(db: &TestDb) -> String {
    let owners = "select string_agg(distinct pg_get_userbyid(o.owner), ' ') from ( \
          select relowner from pg_class where relnamespace = 'pgonce'::regnamespace \
          union all select proowner from pg_proc where pronamespace = 'pgonce'::regnamespace \
          union all select typowner from pg_type where typnamespace = 'pgonce'::regnamespace \
          union all select nspowner from pg_namespace where nspname = 'pgonce') o (owner)";
    db.text(owners).await
}

/// Work that goes through tables and functions of several migrations.
async fn assert_works(client: &Client) {
    all_done(
        client,
        &[
            "select pgonce.define_queue('lim', p_max_running => 1)",
            "select pgonce.enqueue('lim'), pgonce.enqueue('lim')",
        ],
    )
    .await;
    let claim = "select count(*) from pgonce.claim_jobs('{lim}', 'w', '1 minute', 10)";
    assert_eq!(count(client, claim).await, 1);
}

#[tokio::test]
async fn an_upgrade_by_a_superuser_or_a_member_of_the_owner_belongs_to_the_owner() {
    for by_superuser in [true, false] {
        let db = TestDb::new().await;
        let (owner, owner_url) = owner_of_schema(&db).await;
        migrator(&owner_url).up_to(9).await.unwrap();
        let (deploy, deploy_url) = role(&db).await;
        db.run(&format!("grant {owner} to {deploy}")).await;
        let (login, url) = match by_superuser {
            true => ("postgres", db.database.url()),
            false => (&*deploy, deploy_url),
        };
        migrator(&url).up_to(12).await.unwrap();
        assert!(migrator(&url).up().await.unwrap().routines);
        assert_eq!(owners(&db).await, owner);
        // Who did it is known all the same.
        let by = "select string_agg(distinct m.applied_by, ' ') || ' ' || r.applied_by from pgonce.migration m, pgonce.routines r \
            where m.number > 9 group by r.applied_by";
        assert_eq!(db.text(by).await, format!("{login} {login}"));
        db.run(&format!("revoke {owner} from {deploy}")).await;
        assert_works(&connect(&owner_url).await).await;
    }
}

#[tokio::test]
async fn what_a_superuser_installs_in_the_schema_of_another_role_is_that_roles() {
    let db = TestDb::new().await;
    let (owner, owner_url) = owner_of_schema(&db).await;
    let (app, _) = role(&db).await;
    let plan = db.migrator().plan().await.unwrap();
    let file = tempfile(&plan.grant(pgonce::migrate::Part::App, &app).sql());
    db.program("psql", &["-X", "-q", "-f", &file]);
    std::fs::remove_file(file).unwrap();
    assert!(db.migrator().plan().await.unwrap().is_empty());
    assert_eq!(owners(&db).await, owner);
    assert_works(&connect(&owner_url).await).await;
}

#[tokio::test]
async fn a_role_that_cannot_become_the_owner_is_refused_and_changes_nothing() {
    let db = TestDb::new().await;
    let (owner, owner_url) = owner_of_schema(&db).await;
    let (other, other_url) = role(&db).await;
    db.run(&format!("grant all on schema pgonce to {other}"))
        .await;
    let refused = async || {
        let error = migrator(&other_url).up().await.unwrap_err();
        assert_eq!(error.code(), "42501", "{error}");
        assert!(error.to_string().contains("set role"), "{error}");
    };
    refused().await;
    let objects = "select count(*) from pg_class where relnamespace = 'pgonce'::regnamespace";
    assert_eq!(count(&db.client, objects).await, 0);

    migrator(&owner_url).up_to(9).await.unwrap();
    let version = count(
        &db.client,
        "select current_setting('server_version_num')::bigint",
    );
    if version.await >= 160_000 {
        // A member with the owner's rights, which may not become it.
        db.run(&format!(
            "grant select on pgonce.migration, pgonce.routines to {other}; \
             grant {owner} to {other} with inherit true, set false"
        ))
        .await;
        refused().await;
    }
    migrator(&owner_url).up().await.unwrap();
    assert_eq!(owners(&db).await, owner);
}

#[tokio::test]
async fn tenants_are_isolated_by_a_superuser_only_where_nothing_belongs_to_one() {
    let shop = Shop::open().await;
    let superuser = &shop.db.client;
    let owner = shop
        .db
        .text("select pg_get_userbyid(relowner)::text from pg_class where oid = 'pgonce.intent'::regclass")
        .await;
    let isolate = "select pgonce.isolate_tenants(true)";
    let given = "alter function pgonce.claim_jobs owner to";
    all_done(superuser, &[&format!("{given} postgres")]).await;
    assert_eq!(code(superuser, isolate).await, "42501");
    all_done(superuser, &[&format!("{given} {owner}"), isolate, isolate]).await;
    let acts = "select count(*) from pgonce.operator_act where scope = 'tenants'";
    assert_eq!(count(&shop.db.client, acts).await, 1);

    // The policies are the owner's, so its functions see the tenant's rows.
    let (acme, url) = role(&shop.db).await;
    let bind = format!(
        "select pgonce.grant_to('{acme}', 'app'), pgonce.grant_to('{acme}', 'consumer'), pgonce.bind_tenant('{acme}', 'acme')"
    );
    all_done(
        superuser,
        &[
            &bind,
            "select pgonce.enqueue('q', p_tenant => t) from unnest('{acme,beta}'::text[]) t",
        ],
    )
    .await;
    let claim = "select count(*) from pgonce.claim_jobs('{q}', 'w', '1 minute', 10)";
    assert_eq!(count(&connect(&url).await, claim).await, 1);
}
