//! Nothing needs a superuser: an ordinary role owns, others do their part and no more.

use pgonce::migrate::{Migrator, Part};
use pgonce::scope::Contract;
use pgonce::{Ack, Claim, Failure, Intent, Once};
use tokio_postgres::Client;

use super::test_db::{TestDb, connect, sqlx_driver, tokio_driver};

/// An ordinary role and its address. Roles belong to the whole server, so each test has its own.
pub(super) async fn role(db: &TestDb) -> (String, String) {
    let name = format!("role_{}", uuid::Uuid::new_v4().simple());
    db.run(&format!("create role {name} login")).await;
    let url = db.database.url().replace("postgres@", &format!("{name}@"));
    (name, url)
}

pub(super) struct Shop {
    pub(super) db: TestDb,
    pub(super) owner: String,
    /// The name and the address of a role for each part.
    roles: Vec<(Part, String, String)>,
}

impl Shop {
    /// Migrated by an ordinary owner, with an ordinary role for each part.
    pub(super) async fn open() -> Self {
        let db = TestDb::new().await;
        let (owner_name, owner) = role(&db).await;
        let database = db.database.name();
        db.run(&format!(
            "grant create on database {database} to {owner_name}"
        ))
        .await;
        let migrator = Migrator::new(tokio_driver(&owner));
        migrator.up().await.unwrap();
        let mut roles = Vec::new();
        for part in Part::ALL {
            let (name, url) = role(&db).await;
            migrator.grant(part, &name).await.unwrap();
            roles.push((part, name, url));
        }
        Self { db, owner, roles }
    }

    pub(super) fn url(&self, part: Part) -> &str {
        &self.roles.iter().find(|role| role.0 == part).unwrap().2
    }

    pub(super) fn name(&self, part: Part) -> &str {
        &self.roles.iter().find(|role| role.0 == part).unwrap().1
    }

    pub(super) async fn connect(&self, part: Part) -> Client {
        connect(self.url(part)).await
    }
}

pub(super) async fn code(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "done".to_owned(),
        Err(error) => error.code().unwrap().code().to_owned(),
    }
}

pub(super) async fn all_done(client: &Client, statements: &[&str]) {
    for sql in statements {
        client
            .batch_execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

pub(super) async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Every object of the schema that a grant can name, as pgonce._grants writes it.
const OBJECTS: &str = "
    select 'function pgonce.' || p.proname as object, p.oid, 'function' as kind from pg_proc p
     where p.pronamespace = 'pgonce'::regnamespace
    union all
    select case c.relkind when 'S' then 'sequence ' else '' end || 'pgonce.' || c.relname, c.oid,
           case c.relkind when 'S' then 'sequence' else 'table' end
      from pg_class c where c.relnamespace = 'pgonce'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')";

#[tokio::test]
async fn every_object_has_a_decision_and_every_decision_an_object() {
    let shop = Shop::open().await;
    let undecided = format!(
        "select coalesce(string_agg(o.object, ', '), 'none') from ({OBJECTS}) o
          where not exists (select from pgonce._grants() g where g.object = o.object)
            and not exists (select from pg_class c where c.oid = o.oid and c.relispartition)"
    );
    assert_eq!(
        shop.db.text(&undecided).await,
        "none",
        "name them in crates/pgonce/sql/role/_grants.sql, under the parts that need them or under 'owner'"
    );
    let unknown = format!(
        "select coalesce(string_agg(g.object, ', '), 'none') from pgonce._grants() g
          where not exists (select from ({OBJECTS}) o where o.object = g.object)"
    );
    assert_eq!(shop.db.text(&unknown).await, "none");
}

#[tokio::test]
async fn every_role_has_what_is_listed_and_nothing_else() {
    let shop = Shop::open().await;
    for (part, name, _) in &shop.roles {
        let differences = format!(
            "select coalesce(string_agg(d.object || ' ' || d.privilege || case when d.has then ' is too much' else ' is missing' end, ', '), 'none')
               from (select o.object, v.privilege,
                            case o.kind when 'function' then has_function_privilege('{name}', o.oid, v.privilege)
                                 when 'sequence' then has_sequence_privilege('{name}', o.oid, v.privilege)
                                 else has_table_privilege('{name}', o.oid, v.privilege) end as has,
                            exists (select from pgonce._grants() g where g.object = o.object and g.part in ('{part}', 'every')
                                       and g.columns is null and v.privilege = any (string_to_array(g.privilege, ', '))) as wanted
                       from ({OBJECTS}) o
                       join (values ('function', 'execute'), ('sequence', 'usage'), ('sequence', 'select'), ('sequence', 'update'),
                                 ('table', 'select'), ('table', 'insert'), ('table', 'update'), ('table', 'delete'),
                                 ('table', 'truncate'), ('table', 'references'), ('table', 'trigger')) v (kind, privilege)
                         on v.kind = o.kind) d
              where d.has <> d.wanted"
        );
        assert_eq!(shop.db.text(&differences).await, "none", "{part}");
        let columns = format!(
            "select coalesce(string_agg(c.relname || '.' || a.attname || ' ' || v.privilege, ', '), 'none')
               from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
              cross join (values ('select'), ('insert'), ('update'), ('references')) v (privilege)
              where c.relnamespace = 'pgonce'::regnamespace and c.relkind in ('r', 'p', 'v')
                and has_column_privilege('{name}', c.oid, a.attnum, v.privilege) <> exists (
                    select from pgonce._grants() g where g.object = 'pgonce.' || c.relname and g.part in ('{part}', 'every')
                       and v.privilege = any (string_to_array(g.privilege, ', '))
                       and (g.columns is null or a.attname = any (regexp_split_to_array(g.columns, ',[[:space:]]+'))))"
        );
        assert_eq!(shop.db.text(&columns).await, "none", "{part}");
        for (privilege, has) in [("usage", "t"), ("create", "f")] {
            let schema =
                format!("select has_schema_privilege('{name}', 'pgonce', '{privilege}')::text");
            assert_eq!(&shop.db.text(&schema).await[..1], has, "{part} {privilege}");
        }
    }
    let public = "select coalesce(string_agg(p.proname, ', '), 'none') from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'pgonce'::regnamespace and a.grantee = 0";
    assert_eq!(
        shop.db.text(public).await,
        "none",
        "may be executed by everyone"
    );
}

/// Functions that run a user's function, or write a user's table.
const RUNS_OTHERS_CODE: &[&str] = &[
    "insert_or_fetch",
    "transition",
    "fire_timers",
    "project",
    "_begin_build",
    "_build_event",
    "_drop_build",
    "_step_build",
    "_end_rebuild",
    "_end_verify",
];

#[tokio::test]
async fn functions_with_the_owners_rights_pin_their_path_and_run_nobody_elses_code() {
    let shop = Shop::open().await;
    let loose = "select coalesce(string_agg(p.proname, ', '), 'none') from pg_proc p
        where p.pronamespace = 'pgonce'::regnamespace and p.prosecdef
          and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)";
    assert_eq!(shop.db.text(loose).await, "none");
    for name in RUNS_OTHERS_CODE {
        let definer = format!(
            "select prosecdef::text from pg_proc where proname = '{name}' and pronamespace = 'pgonce'::regnamespace"
        );
        assert_eq!(&shop.db.text(&definer).await[..1], "f", "{name}");
    }
    // Dynamic SQL with the owner's rights names only objects of our own.
    let dynamic = "select string_agg(p.proname, ', ' order by p.proname) from pg_proc p
        where p.pronamespace = 'pgonce'::regnamespace and p.prosecdef and p.prosrc ~ '\\yexecute\\y'";
    assert_eq!(
        shop.db.text(dynamic).await,
        "_create_inbox_partitions, _create_outbox_partitions, _drop_inbox_partitions, _drop_outbox_partitions, _purge_inbox",
        "a new one: no argument of a caller may come into its text"
    );
}

#[tokio::test]
async fn an_application_can_do_all_that_it_needs() {
    let shop = Shop::open().await;
    let app_url = shop.url(Part::App);
    Migrator::new(sqlx_driver(app_url)).check().await.unwrap();
    let once = Once::tokio_postgres(tokio_driver(app_url).pool().clone());
    let day = std::time::Duration::from_secs(86_400);
    let operator = Once::tokio_postgres(tokio_driver(shop.url(Part::Operator)).pool().clone());
    operator
        .define_scope("orders.create", &Contract::keep(day))
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
    assert!(once.answer(&intent("atomic")).await.unwrap().is_some());
    let Claim::Run(attempt) = once.claim(&intent("failing")).await.unwrap() else {
        panic!("not fresh");
    };
    attempt
        .fail(Failure::transient("later", "not now"))
        .await
        .unwrap();

    let app = shop.connect(Part::App).await;
    let fence = "select fence from pgonce.claim('orders.create', 'leased', '\\x01', '30 s')";
    let fence = count(&app, fence).await;
    all_done(
        &app,
        &[
            &format!("select pgonce.heartbeat('orders.create', 'leased', {fence}, '1 min')"),
            &format!("select pgonce.guard('orders.create', 'leased', {fence})"),
            &format!("select pgonce.succeed('orders.create', 'leased', '\\x01', {fence})"),
            "begin; select pgonce.claim('orders.create', 'by sql', '\\x01'); select pgonce.succeed('orders.create', 'by sql', '\\x01', 1, '7'); commit",
            "begin; select pgonce.wait('orders.create', 'leased', '1 s'); commit",
            "select pgonce._count_suppressed('orders.create', 1, 0, 0, 0)",
            "begin; select pgonce.lock('close', '1 s'), pgonce.try_lock('other'); commit",
            "select pgonce.answer_of('orders.create', 'leased', '\\x01')",
            "select pgonce.publish('orders', 'order.created', 'order-7', '{}')",
            "select pgonce.accept('billing', 'nats', '1'), pgonce.accept('billing', 'nats', '1')",
            "select pgonce.accept_batch('billing', 'nats', '{1,2}')",
            "select pgonce.store_message('billing', 'webhook', '3', '\\x00')",
            "select pgonce.ledger_open('a', 'EUR', 'debit'), pgonce.ledger_open('b', 'EUR', 'debit')",
            "select pgonce.ledger_post('s', '1', '[{\"account\": \"a\", \"debit\": 1}, {\"account\": \"b\", \"credit\": 1}]')",
        ],
    )
    .await;
    // A guard runs with the application's rights; the tables change with the owner's, by the rules.
    let owner = connect(&shop.owner).await;
    let app_name = shop.name(Part::App);
    all_done(
        &owner,
        &[
            "create schema guards",
            &format!("create function guards.as_app(text, text, jsonb) returns boolean language sql return current_user = '{app_name}'"),
            &format!("grant usage on schema guards to {app_name}"),
            "select pgonce.define_transition('m', '', 'a', 'guards.as_app', 'cases'), pgonce.define_transition('m', 'a', 'b')",
        ],
    )
    .await;
    let moved = "select version from pgonce.transition('m', '1', 'a', 'c1')";
    assert_eq!(count(&app, moved).await, 1);
    let timer = "select pgonce.set_timer('m', '1', 'sla', 'b', '-1 s')";
    all_done(&app, &[timer]).await;
    let fired = "select count(*) from pgonce.fire_timers() where outcome = 'applied'";
    assert_eq!(count(&app, fired).await, 1);
}

#[tokio::test]
async fn a_relay_a_consumer_an_operator_and_a_viewer_can_do_their_part() {
    let shop = Shop::open().await;
    let operator = shop.connect(Part::Operator).await;
    all_done(
        &operator,
        &[
            "select pgonce.create_subscription('billing')",
            "select pgonce.define_scope('orders.create', '1 day'), pgonce.drop_scope('orders.create'), pgonce.purge()",
            "select pgonce.alter_subscription('billing', p_max_attempts => 3), pgonce.redrive('billing'), pgonce.skip('billing', 1, 'x')",
            "select pgonce.event_status('billing', 1), pgonce.set_outbox_retention('1 day'), pgonce.define_inbox('ledger')",
            "table pgonce.intent; table pgonce.outbox; table pgonce.inbox_marker; table pgonce.inbox_message; table pgonce.parked",
            "table pgonce.stuck; table pgonce.dead_letters; table pgonce.outbox_events; table pgonce.inbox_poison; table pgonce.role_grant",
        ],
    )
    .await;
    all_done(
        &shop.connect(Part::App).await,
        &["select pgonce.publish('orders', 'order.created', 'order-7', '{}')"],
    )
    .await;
    assert_eq!(
        count(&operator, "select count(*) from pgonce.outbox").await,
        1
    );

    let relay = shop.connect(Part::Relay).await;
    all_done(
        &relay,
        &[
            "select * from pgonce._claim_lanes('billing', 'host-7', '10 s')",
            "select pgonce._create_outbox_partitions(), pgonce._drop_outbox_partitions(), pgonce._release_lanes('billing', 'host-7')",
            "table pgonce.outbox_backlog; table pgonce.outbox_lanes",
        ],
    )
    .await;
    let consumer = shop.connect(Part::Consumer).await;
    all_done(
        &consumer,
        &[
            "begin; select pgonce.accept('ledger', 'nats', '1'); select pgonce.publish('ledger', 'posted', '1', '{}'); commit",
            "select pgonce.store_message('ledger', 'nats', '2', '\\x00'), pgonce.claim_messages('ledger', 'host-7', '10 s', 10)",
            "select pgonce._lease_partition('ledger', 'kafka', '0', 'host-7', '10 s'), pgonce.advance_projection('balance', 'a', 1)",
            "select pgonce._blocked_keys('ledger', '{a}'), pgonce._create_inbox_partitions(), pgonce._purge_inbox()",
            "table pgonce.inbox_backlog",
        ],
    )
    .await;
    all_done(
        &shop.connect(Part::Viewer).await,
        &[
            "table pgonce.stuck; table pgonce.most_retried; table pgonce.suppression; table pgonce.outbox_backlog",
            "table pgonce.outbox_lanes; table pgonce.outbox_subscriptions; table pgonce.outbox_log; table pgonce.outbox_wal_listeners",
            "table pgonce.inbox_backlog; table pgonce.projections; table pgonce.scope",
            "select seq, subject, reason from pgonce.dead_letters; select seq, failure_code from pgonce.inbox_poison",
        ],
    )
    .await;
    // What an operator did is kept under the name of the login, not of the function's owner.
    all_done(
        &operator,
        &["select pgonce.skip_message('ledger', 1, 'not ours')"],
    )
    .await;
    all_done(
        &operator,
        &["select pgonce.set_partition('ledger', 'kafka', '0', 7, 0, 'begin later')"],
    )
    .await;
    let who = "select string_agg(distinct role, ', ') from pgonce.operator_act where scope = 'inbox ledger'";
    assert_eq!(shop.db.text(who).await, shop.name(Part::Operator));
}

#[tokio::test]
async fn what_is_revoked_is_gone_and_other_parts_stay() {
    let shop = Shop::open().await;
    let owner = connect(&shop.owner).await;
    let name = shop.name(Part::Operator);
    all_done(
        &owner,
        &[&format!(
            "select pgonce.grant_to('{name}', 'app'), pgonce.revoke_from('{name}', 'operator')"
        )],
    )
    .await;
    let client = shop.connect(Part::Operator).await;
    assert_eq!(code(&client, "select pgonce.purge()").await, "42501");
    assert_eq!(
        count(&client, "select count(*) from pgonce.intent").await,
        0
    );
    all_done(&client, &["select pgonce.claim('s', 'k', '\\x01')"]).await;
    all_done(&owner, &[&format!("select pgonce.revoke_from('{name}')")]).await;
    assert_eq!(
        code(&client, "select pgonce.claim('s', 'k', '\\x01')").await,
        "42501"
    );
    let left = format!(
        "select count(*)::text from pg_policy where '{name}'::regrole::oid = any (polroles)"
    );
    assert_eq!(shop.db.text(&left).await, "0");
}

#[tokio::test]
async fn only_the_owner_migrates_but_every_role_may_find_nothing_to_do() {
    let shop = Shop::open().await;
    let by_app = Migrator::new(tokio_driver(shop.url(Part::Viewer)));
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

/// The lines of a dump; grants stand in the order in which they were made.
fn sorted(dump: &str) -> Vec<String> {
    let mut lines: Vec<_> = dump.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn granting_again_changes_nothing_and_a_migration_grants_what_is_new() {
    let shop = Shop::open().await;
    let before = sorted(&shop.db.dump("pgonce").await);
    let owner = Migrator::new(tokio_driver(&shop.owner));
    for (part, name, _) in &shop.roles {
        owner.grant(*part, name).await.unwrap();
    }
    assert_eq!(sorted(&shop.db.dump("pgonce").await), before);

    // As if a table had come with the new routines.
    let app = shop.name(Part::App);
    shop.db
        .run(&format!(
            "revoke all on pgonce.scope from {app}; update pgonce.routines set checksum = 'old'"
        ))
        .await;
    owner.up().await.unwrap();
    assert_eq!(sorted(&shop.db.dump("pgonce").await), before);
}

#[tokio::test]
async fn grants_do_not_rest_on_what_everybody_may_do() {
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
    migrator.grant(Part::App, &app_name).await.unwrap();
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
async fn a_role_that_does_not_exist_is_granted_nothing() {
    let shop = Shop::open().await;
    for role in ["no_such_role", "public", "x; drop schema pgonce"] {
        let error = Migrator::new(tokio_driver(&shop.owner))
            .grant(Part::App, role)
            .await
            .unwrap_err();
        assert_eq!(error.code(), "42704", "{role}: {error}");
    }
}
