//! pgonce's tables on the coordinator, the user's on workers: refused, never silently wrong.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::{HALF_DISTRIBUTED, Migrator};
use pgonce::{Intent, Once};
use pgonce_tests::TestDriver as _;

use crate::cluster::{Cluster, ORDERS};

/// Everything that lets work go on, or records that it did, with what it needs to come so far.
const WRITES: &[&str] = &[
    "select * from pgonce.claim('s', 'new', '\\x01')",
    "select * from pgonce.claim('s', 'new', '\\x01', '1 minute')",
    "select * from pgonce.claim_first('s', 'new', '\\x01')",
    "select pgonce.fail('s', 'new', '\\x01', 1, true, 'code', 'message')",
    "select pgonce.publish('t', 'y', '1', '{}')",
    "select pgonce.accept('c', 's', 'm')",
    "select * from pgonce.accept_batch('c', 's', '{m}')",
    "select * from pgonce.enqueue('mail')",
    "select * from pgonce.claim_jobs('{mail}', 'w', '1 minute', 1)",
    "select * from pgonce.transition('case', '1', 'open', 'command')",
    "select * from pgonce.ledger_post('shop', 'order', '[{\"account\": \"a\", \"debit\": 1}, \
        {\"account\": \"b\", \"credit\": 1}]')",
];

fn migrator(url: &str) -> Migrator<TokioPostgres> {
    Migrator::new(TokioPostgres::connect(url, 1))
}

fn code<T>(result: pgonce::Result<T>) -> String {
    result
        .err()
        .map_or_else(String::new, |error| error.code().to_owned())
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn nothing_is_granted_from_when_a_table_is_distributed_until_the_owner_answers_for_it() {
    let db = Cluster::shared().await.database("half").await;
    let see = db.see().await;
    migrator(db.url()).up().await.unwrap();
    see.run(
        "select pgonce.define_transition('case', '', 'open'); \
         select pgonce.ledger_open('a', 'EUR', 'debit'); select pgonce.ledger_open('b', 'EUR', 'credit')",
    )
    .await;
    let once = Once::builder(TokioPostgres::connect(db.url(), 2))
        .build()
        .unwrap();
    let intent = |key: &str| Intent::new("s", key, &1).unwrap();
    let run = async |key: &str| {
        let work = |tx: pgonce::Attempt<TokioPostgres>| async move { tx.succeed(&1).await };
        once.run(&intent(key), work).await
    };
    // Citus is there, and all rows are here: as anywhere else.
    let _: i64 = run("before").await.unwrap().into_answer().unwrap();
    assert_eq!(see.code(WRITES[0]).await, "");

    see.run(ORDERS).await;
    for sql in WRITES {
        assert_eq!(see.code(sql).await, HALF_DISTRIBUTED, "{sql}");
    }
    assert_eq!(code(run("after").await), HALF_DISTRIBUTED);
    assert!(
        run("before").await.unwrap().replayed(),
        "an answer is still an answer"
    );
    let all = "select (select count(*) from pgonce.intent) + (select count(*) from pgonce.outbox) \
        + (select count(*) from pgonce.inbox_marker) + (select count(*) from pgonce.job)";
    assert_eq!(see.number(all).await, 1);
    assert_eq!(code(migrator(db.url()).check().await), HALF_DISTRIBUTED);
    assert_eq!(code(migrator(db.url()).up().await), HALF_DISTRIBUTED);
    assert_eq!(code(migrator(db.url()).plan().await), HALF_DISTRIBUTED);

    migrator(db.url()).coordinator_only().up().await.unwrap();
    assert!(!run("after").await.unwrap().replayed());
    for sql in WRITES {
        assert_eq!(
            see.code(&format!("begin; {sql}; rollback")).await,
            "",
            "{sql}"
        );
    }
    // The owner's word is remembered, also when the routines are loaded again.
    migrator(db.url()).check().await.unwrap();
    see.run("update pgonce.routines set checksum = 'of another build'")
        .await;
    assert!(migrator(db.url()).up().await.unwrap().routines);
    assert!(!run("again").await.unwrap().replayed());
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn nothing_is_installed_beside_distributed_tables_unless_the_owner_answers_for_it() {
    let db = Cluster::shared().await.database("beside").await;
    let see = db.see().await;
    see.run(ORDERS).await;
    assert_eq!(code(migrator(db.url()).up().await), HALF_DISTRIBUTED);
    assert_eq!(
        see.number("select count(*) from pg_namespace where nspname = 'pgonce'")
            .await,
        0
    );
    let plan = migrator(db.url()).coordinator_only().plan().await.unwrap();
    see.run(&plan.sql()).await;
    migrator(db.url()).check().await.unwrap();
    assert!(migrator(db.url()).plan().await.unwrap().is_empty());
    see.run("begin; select pgonce.claim('s', 'k', '\\x01'); commit")
        .await;
    // Nothing of it went to the workers.
    let worker = pgonce_tests::Observer::connect(&db.urls[1]).await;
    let functions = "select count(*) from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'pgonce'";
    assert_eq!(worker.number(functions).await, 0);
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn reference_tables_and_tables_of_the_coordinator_are_no_reason_to_refuse() {
    let db = Cluster::shared().await.database("reference").await;
    let see = db.see().await;
    see.run(
        "create table currency (code text primary key); select create_reference_table('currency'); \
         create table mine (id bigint primary key); select citus_add_local_table_to_metadata('mine')",
    )
    .await;
    migrator(db.url()).up().await.unwrap();
    assert_eq!(see.code(WRITES[0]).await, "");
}
