//! What others do to live connections: operators, poolers, neighbours and the network.

use std::time::Duration;

use pgonce_testkit::{Action, CuttingProxy, Direction, Fault, PgBouncer, Postgres, shared};
use pgonce_tests::{Observer, install, random_moment, slow_work};
use rand::{RngExt as _, rngs::StdRng};
use tokio_postgres::{Client, NoTls};

use crate::callers::LEASE;
use crate::campaign::{Campaign, database, in_time};

/// A random session of another of this database.
const VICTIM: &str = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() \
     and backend_type = 'client backend' order by random() limit 1";

#[tokio::test]
async fn sessions_are_cancelled_and_terminated_at_random() {
    in_time(async {
        let (_server, database) = database(None).await;
        let see = Observer::connect(&database.url()).await;
        let campaign = Campaign::new(&database.url(), &database.url())
            .await
            .allows(&["57014", "08006", "08007"], 15);
        campaign
            .work_while(async |random| {
                random_moment(random).await;
                let act = match random.random_range(0..3) {
                    0 => "terminate",
                    _ => "cancel",
                };
                see.rows(&format!("select pg_{act}_backend(pid) {VICTIM}"))
                    .await;
            })
            .await;
        campaign.end().await;
    })
    .await;
}

/// An upgrade replaces the functions, and a pooler or an operator discards what sessions remember.
#[tokio::test]
async fn sessions_forget_their_statements_and_functions_change() {
    in_time(async {
        let (_server, database) = database(None).await;
        let see = Observer::connect(&database.url()).await;
        // A caller's own transaction has lost its statements once; the SDK's own work never shows it.
        let campaign = Campaign::new(&database.url(), &database.url())
            .await
            .allows(&["08006"], 30);
        campaign
            .work_while(async |random| {
                random_moment(random).await;
                match random.random_range(0..8) {
                    0 => see.run(REPLACE_FUNCTIONS).await,
                    _ => campaign.discard_all(random.random()).await,
                }
            })
            .await;
        campaign.end().await;
    })
    .await;
}

/// Every function is replaced by itself: all plans that use it are made anew.
const REPLACE_FUNCTIONS: &str = "do $$ declare v_text text; begin \
     for v_text in select pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = 'pgonce'::regnamespace and p.prokind = 'f' \
     loop execute v_text; end loop; end $$";

/// Connects to the console of a pooler.
async fn console(pooler: &PgBouncer) -> Client {
    let (client, connection) = tokio_postgres::connect(&pooler.url_for("pgbouncer"), NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn a_pooler_with_one_connection_is_paused_killed_and_reconnected() {
    in_time(async {
        let (server, database) = database(None).await;
        let pooler = PgBouncer::in_front_of(server)
            .setting("default_pool_size", "1")
            .setting("admin_users", "postgres")
            // By default a pooler whose server was cut off makes everybody wait for 15 seconds, longer than what is tested here.
            .setting("server_login_retry", "1")
            .start()
            .await
            .unwrap();
        let url = pooler.url_for(database.name());
        let campaign = Campaign::with(&database.url(), &url, 4, true)
            .await
            .allows(&["08006", "08007"], 15);
        let console = console(&pooler).await;
        let name = database.name();
        campaign
            .work_while(async |random| {
                campaign.some_operations(random).await;
                let acts = match random.random_range(0..3) {
                    0 => ["pause", "resume"],
                    1 => ["kill", "resume"],
                    _ => ["reconnect", ""],
                };
                for act in acts.into_iter().filter(|act| !act.is_empty()) {
                    // A pause waits for the transactions that are open; RESUME may come first.
                    let _ = console.batch_execute(&format!("{act} {name}")).await;
                    random_moment(random).await;
                }
            })
            .await;
        campaign.end().await;
    })
    .await;
}

/// Neighbours take every connection that the server has, again and again, and sessions are ended meanwhile.
#[tokio::test]
async fn the_server_has_no_connections_left() {
    in_time(async {
        let server = Postgres::builder()
            .setting("max_connections", "14")
            .setting("superuser_reserved_connections", "1")
            .start()
            .await
            .unwrap();
        let database = server.create_database("crowded").await.unwrap();
        install(database.url()).await.unwrap();
        let see = Observer::connect(&database.url()).await;
        let oracle = database.url();
        let campaign = Campaign::with(&oracle, &oracle, 2, false)
            .await
            .allows(&["53300", "08006", "08007"], 15);
        let neighbour = server.url();
        campaign
            .work_while(async |random| {
                let mut taken = Vec::new();
                while let Ok((client, connection)) =
                    tokio_postgres::connect(&neighbour, NoTls).await
                {
                    tokio::spawn(connection);
                    taken.push(client);
                }
                see.rows(&format!("select pg_terminate_backend(pid) {VICTIM}"))
                    .await;
                random_moment(random).await;
                random_moment(random).await;
                drop(taken);
                campaign.some_operations(random).await;
            })
            .await;
        campaign.end().await;
    })
    .await;
}

/// A message that will come by soon on a connection of this proxy.
fn soon(proxy: &CuttingProxy, random: &mut StdRng) -> Option<Fault> {
    let seen = proxy.transcript();
    let recent = &seen[seen.len().saturating_sub(40)..];
    let message = recent.get(random.random_range(0..recent.len().max(1)))?;
    Some(Fault {
        connection: message.connection,
        direction: match random.random() {
            true => Direction::ToServer,
            false => Direction::ToClient,
        },
        message: message.number + random.random_range(1..6),
        action: Action::Hold,
    })
}

/// Connections fall silent, without an end. What they hold is free when the session's limit is over; what was on
/// its way arrives late, or never.
#[tokio::test]
async fn connections_fall_silent() {
    in_time(async {
        let (server, database) = database(None).await;
        let see = Observer::connect(&database.url()).await;
        let oracle = database.url();
        let proxy = CuttingProxy::start(("127.0.0.1", server.port())).unwrap();
        let url = proxy.url_for(database.name());
        let campaign = Campaign::with(&oracle, &url, 4, false)
            .await
            .allows(&["25P03", "08006", "08007"], 10);
        see.run(&format!(
            "alter database {} set idle_in_transaction_session_timeout = '{} ms'",
            database.name(),
            LEASE.as_millis()
        ))
        .await;
        campaign
            .work_while(async |random| {
                for _ in 0..4 {
                    if let Some(fault) = soon(&proxy, random) {
                        proxy.arm(fault);
                    }
                }
                let silent = tokio::time::timeout(LEASE, proxy.held()).await.is_ok();
                if silent {
                    slow_work(LEASE.mul_f64(random.random_range(0.0..1.5))).await;
                }
                match random.random() {
                    true => proxy.disarm(),
                    false => {
                        proxy.cut_all();
                        proxy.disarm();
                    }
                }
                random_moment(random).await;
            })
            .await;
        proxy.disarm();
        campaign.end().await;
    })
    .await;
}

/// The database's clock jumps forward and back: leases end early or late, and nobody has two holders who both succeed.
#[tokio::test]
async fn the_clock_steps() {
    in_time(async {
        let (_server, database) = database(None).await;
        let see = Observer::connect(&database.url()).await;
        let campaign = Campaign::new(&database.url(), &database.url())
            .await
            .clock_error(Duration::from_secs(3))
            // A worker whose lease ended early cannot record how its work ended, which may have reached the world outside.
            .allows(&["08007"], 25);
        campaign
            .work_while(async |random| {
                slow_work(Duration::from_millis(random.random_range(0..40))).await;
                // Ahead of the real clock by so much.
                let seconds: i32 = random.random_range(0..=3);
                see.run(&format!(
                    "select pgonce._move_clock(clock_timestamp() + interval '{seconds} seconds' - pgonce.now())"
                ))
                .await;
            })
            .await;
        see.run("select pgonce._reset_clock()").await;
        campaign.end().await;
    })
    .await;
}

/// Two installations in one database do not meet: their locks and settings are their own.
#[tokio::test]
async fn two_installations_in_one_database_do_not_meet() {
    use pgonce::driver::tokio_postgres::TokioPostgres;
    use pgonce::migrate::Migrator;
    use pgonce::{Claim, Intent, Once};
    use pgonce_tests::TestDriver as _;

    let server = shared(None).await.unwrap();
    let (_, database) = database(None).await;
    let url = database.url();
    let see = Observer::connect(&url).await;
    see.run("create schema second").await;
    let migrator = Migrator::new(TokioPostgres::connect(&url, 1)).schema("second");
    migrator.up().await.unwrap();
    let first = Once::builder(TokioPostgres::connect(&url, 2))
        .build()
        .unwrap();
    let second = Once::builder(TokioPostgres::connect(&url, 2))
        .schema("second")
        .build()
        .unwrap();
    let intent = Intent::new("orders.create", "one", "request").unwrap();
    let one = first.claim(&intent).await.unwrap();
    let Claim::Run(mut one) = one else {
        panic!("fresh")
    };
    let Claim::Run(mut two) = second.claim(&intent).await.unwrap() else {
        panic!("the other installation's lock is not ours")
    };
    assert!(one.try_lock("nightly").await.unwrap());
    assert!(two.try_lock("nightly").await.unwrap());
    let _ = one.succeed("first").await.unwrap();
    let done = two.succeed("second").await.unwrap();
    assert!(!done.replayed());
    let Claim::Replay(done) = first.claim(&intent).await.unwrap() else {
        panic!("replay")
    };
    assert_eq!(done.read::<String>().unwrap(), "first");
    // Not in one transaction either: the mark of an attempt is the installation's own.
    let claims = "begin; select * from pgonce.claim('s', 'k', '\\x01'); select * from second.claim('s', 'k', '\\x01')";
    see.run(claims).await;
    for schema in ["pgonce", "second"] {
        let succeed = format!("select {schema}.succeed('s', 'k', '\\x01', 1)");
        assert_eq!(see.code(&succeed).await, "", "{schema}");
    }
    see.run("commit").await;
    let _ = server;
}

#[test]
fn a_schema_name_that_needs_quotes_is_refused() {
    use pgonce::Once;
    use pgonce::driver::tokio_postgres::TokioPostgres;
    use pgonce_tests::TestDriver as _;

    for name in [
        "user",
        "select",
        "all",
        "authorization",
        "pg_once",
        "Mine",
        "a-b",
        "a b",
        "1st",
        "",
        "sch\u{e9}ma",
    ] {
        let driver = TokioPostgres::connect("postgres://nowhere/none", 1);
        let built = Once::builder(driver).schema(name).build();
        assert_eq!(built.unwrap_err().code(), "22023", "{name}");
    }
}
