//! Nothing needs a superuser: an ordinary role owns, another one uses.

use pgonce::migrate::Migrator;
use pgonce::scope::Contract;
use pgonce::{Ack, Claim, Failure, Intent, Once};
use tokio_postgres::Client;

use super::test_db::{TestDb, connect, sqlx_driver, tokio_driver};

/// An ordinary role and its address. Roles belong to the whole server, so each test has its own.
async fn role(db: &TestDb) -> (String, String) {
    let name = format!("role_{}", uuid::Uuid::new_v4().simple());
    db.run(&format!("create role {name} login")).await;
    let url = db.database.url().replace("postgres@", &format!("{name}@"));
    (name, url)
}

struct Shop {
    db: TestDb,
    owner: String,
    app_name: String,
    app: String,
}

impl Shop {
    /// Migrated by an ordinary owner, with an ordinary role admitted.
    async fn open() -> Self {
        let db = TestDb::new().await;
        let (owner_name, owner) = role(&db).await;
        let (app_name, app) = role(&db).await;
        let database = db.database.name();
        db.run(&format!(
            "grant create on database {database} to {owner_name}"
        ))
        .await;
        let migrator = Migrator::new(tokio_driver(&owner));
        migrator.up().await.unwrap();
        migrator.admit(&app_name).await.unwrap();
        Self {
            db,
            owner,
            app_name,
            app,
        }
    }
}

async fn code(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "done".to_owned(),
        Err(error) => error.code().unwrap().code().to_owned(),
    }
}

#[tokio::test]
async fn an_admitted_role_can_do_all_that_an_application_does() {
    let shop = Shop::open().await;
    Migrator::new(sqlx_driver(&shop.app)).check().await.unwrap();
    let once = Once::tokio_postgres(tokio_driver(&shop.app).pool().clone());
    let day = std::time::Duration::from_secs(86_400);
    once.define_scope("orders.create", &Contract::keep(day))
        .await
        .unwrap();

    let intent = |key: &str| Intent::new("orders.create", key, &"a book").unwrap();
    for replayed in [false, true] {
        let done = once
            .run(&intent("atomic"), |attempt| async move {
                attempt.succeed(Ack::value(&7)?).await
            })
            .await
            .unwrap();
        assert_eq!(
            (done.replayed(), done.read::<i32>().unwrap()),
            (replayed, 7)
        );
    }
    let Claim::Run(attempt) = once.claim(&intent("failing")).await.unwrap() else {
        panic!("not fresh");
    };
    attempt
        .fail(Failure::transient("later", "not now"))
        .await
        .unwrap();

    let app = connect(&shop.app).await;
    for sql in [
        "select pgonce.heartbeat('orders.create', 'leased', (select fence from pgonce.claim('orders.create', 'leased', '\\x01', '30 s')), '1 min')",
        "select pgonce.guard('orders.create', 'leased', (select fence from pgonce.intent where key = 'leased'))",
        "select pgonce.succeed('orders.create', 'leased', '\\x01', (select fence from pgonce.intent where key = 'leased'))",
        "begin; select pgonce.wait('orders.create', 'leased', '1 s'); commit",
        "select pgonce._count_suppressed('orders.create', 1, 0, 0, 0)",
        "begin; select pgonce.lock('close', '1 s'), pgonce.try_lock('other'); commit",
        "select pgonce.answer_of('orders.create', 'leased', '\\x01')",
        "select pgonce.purge()",
        "select * from pgonce.stuck; select * from pgonce.most_retried; select * from pgonce.suppression",
        "select pgonce.drop_scope('orders.create')",
    ] {
        app.batch_execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

#[tokio::test]
async fn admission_forgets_no_table_view_or_sequence() {
    let shop = Shop::open().await;
    let forgotten = format!(
        "select coalesce(string_agg(relname, ', '), 'none') from pg_class
          where relnamespace = 'pgonce'::regnamespace
            and not relispartition and case when relkind in ('r', 'p', 'v') then not has_table_privilege('{0}', oid, 'select')
                     when relkind = 'S' then not has_sequence_privilege('{0}', oid, 'usage') end",
        shop.app_name
    );
    assert_eq!(
        shop.db.text(&forgotten).await,
        "none",
        "sql/role/grant_to.sql must grant what is needed of them"
    );
}

#[tokio::test]
async fn an_admitted_role_cannot_change_pgonce_itself() {
    let shop = Shop::open().await;
    let app = connect(&shop.app).await;
    for sql in [
        "select pgonce._set_clock(now())",
        "select pgonce._move_clock('1 hour')",
        "select pgonce._reset_clock()",
        "select pgonce.set_strict(true)",
        "select pgonce.grant_to('postgres')",
        "update pgonce.migration set breaking = true",
        "delete from pgonce.routines",
        "truncate pgonce.intent",
        "alter table pgonce.intent disable trigger all",
        "create table pgonce.mine ()",
        "create or replace function pgonce.now() returns timestamptz language sql return null",
    ] {
        assert_eq!(code(&app, sql).await, "42501", "{sql}");
    }
    let stranger = role(&shop.db).await.1;
    assert_eq!(
        code(
            &connect(&stranger).await,
            "select pgonce.claim('s', 'k', '\\x01')"
        )
        .await,
        "42501"
    );
    let blind = Migrator::new(tokio_driver(&stranger))
        .check()
        .await
        .unwrap_err();
    assert!(
        blind.code() == "42501" && blind.to_string().contains("admit"),
        "{blind}"
    );
}

#[tokio::test]
async fn only_the_owner_migrates_but_anybody_admitted_may_find_nothing_to_do() {
    let shop = Shop::open().await;
    let by_app = Migrator::new(tokio_driver(&shop.app));
    assert!(by_app.up().await.unwrap().applied.is_empty());
    shop.db
        .run("update pgonce.routines set checksum = 'old'")
        .await;
    let error = by_app.up().await.unwrap_err();
    assert!(
        error.code() == "42501" && error.to_string().contains("owns schema pgonce"),
        "{error}"
    );
    Migrator::new(sqlx_driver(&shop.owner)).up().await.unwrap();
}

#[tokio::test]
async fn an_owner_needs_no_right_on_the_database_where_the_schema_is_there() {
    let db = TestDb::new().await;
    let (name, url) = role(&db).await;
    let migrator = Migrator::new(tokio_driver(&url));
    let error = migrator.up().await.unwrap_err();
    assert!(
        error.code() == "42501" && error.to_string().contains("grant create on database"),
        "{error}"
    );
    db.run(&format!("create schema pgonce authorization {name}"))
        .await;
    migrator.up().await.unwrap();
}

#[tokio::test]
async fn admitting_again_changes_nothing_and_a_migration_admits_to_what_is_new() {
    let shop = Shop::open().await;
    let before = shop.db.dump("pgonce").await;
    let owner = Migrator::new(tokio_driver(&shop.owner));
    owner.admit(&shop.app_name).await.unwrap();
    assert_eq!(shop.db.dump("pgonce").await, before);

    // As if a table had come with the new routines.
    let app = &shop.app_name;
    shop.db.run(&format!("revoke all on pgonce.suppressed from {app}; update pgonce.routines set checksum = 'old'")).await;
    owner.up().await.unwrap();
    assert_eq!(shop.db.dump("pgonce").await, before);
}

#[tokio::test]
async fn admission_does_not_rest_on_what_everybody_may_do() {
    let db = TestDb::new().await;
    let (owner_name, owner) = role(&db).await;
    let (app_name, app) = role(&db).await;
    db.run(&format!(
        "grant create on database {} to {owner_name};
             alter default privileges for role {owner_name} revoke execute on functions from public;
             alter default privileges for role {owner_name} revoke usage on types from public",
        db.database.name()
    ))
    .await;
    let migrator = Migrator::new(tokio_driver(&owner));
    migrator.up().await.unwrap();
    migrator.admit(&app_name).await.unwrap();
    let app = connect(&app).await;
    assert_eq!(
        code(&app, "select pgonce.claim('s', 'k', '\\x01', '30 s')").await,
        "done"
    );
    assert_eq!(
        code(
            &app,
            "select 'processing'::pgonce.status, null::pgonce.claimed"
        )
        .await,
        "done"
    );
    assert_eq!(code(&app, "select pgonce.set_strict(true)").await, "42501");
}

#[tokio::test]
async fn an_unknown_role_cannot_be_admitted() {
    let shop = Shop::open().await;
    for role in ["no_such_role", "public", "x; drop schema pgonce"] {
        let error = Migrator::new(tokio_driver(&shop.owner))
            .admit(role)
            .await
            .unwrap_err();
        assert_eq!(error.code(), "42704", "{role}: {error}");
    }
}
