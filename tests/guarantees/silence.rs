//! A client that falls silent does not keep an intent for ever.

use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::retry::Policy;
use pgonce::{Ack, Claim, Done, Error, Intent, Lease, Once, Result};
use pgonce_tests::{Cutter, TestDriver, World, effect, for_each_driver, intent};

const SHOWN: &str = "select current_setting('idle_in_transaction_session_timeout') || ' ' \
                     || current_setting('tcp_user_timeout')";

#[tokio::test]
async fn sessions_with_limits_have_them_and_keep_what_the_user_has_set() {
    let world = World::<Sqlx>::new().await;
    let own = "?options=-c%20idle_in_transaction_session_timeout%3D7s%20-c%20lock_timeout%3D8s";
    for (query, idle) in [("", "1min"), (own, "7s")] {
        let url = format!("{}{query}", world.url());
        let options = Sqlx::with_limits(url.parse().unwrap());
        let pool = sqlx::PgPool::connect_with(options).await.unwrap();
        let shown: String = sqlx::query_scalar(SHOWN).fetch_one(&pool).await.unwrap();
        assert_eq!(shown, format!("{idle} 30000"));

        let config = TokioPostgres::with_limits(url.parse().unwrap());
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let row = client.query_one(SHOWN, &[]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), format!("{idle} 30000"));
    }
}

#[tokio::test]
async fn an_attempt_that_falls_silent_loses_its_transaction_and_frees_the_intent() {
    let world = World::<Sqlx>::new().await;
    let url = format!(
        "{}?options=-c%20idle_in_transaction_session_timeout%3D3s",
        world.url()
    );
    let options = Sqlx::with_limits(url.parse().unwrap());
    let pool = sqlx::PgPool::connect_with(options).await.unwrap();
    let silent = Once::sqlx(pool);
    let request = intent("silent");
    let Claim::Run(mut attempt) = silent.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    effect(&mut attempt).await.unwrap();
    world.see.wait_until_clean().await;
    // Somebody else does the work; the silent one wakes up and learns it.
    assert!(!world.run(&request).await.unwrap().replayed());
    assert!(attempt.succeed(Ack::status()).await.is_err());
    assert_eq!(world.see.effects(&request).await, 1);
}

/// sqlx asks the server once more before a connection is free for others. One that falls silent just then is not missing
/// from the pool for ever.
#[tokio::test]
async fn a_connection_that_falls_silent_on_its_way_back_to_the_pool_is_replaced() {
    let world = World::<Sqlx>::new().await;
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 1, |b| b);
    let request = intent("a");
    for _ in 0..3 {
        assert!(once.answer(&request).await.is_ok());
        // The task that gives it back has not run yet.
        cutter.fall_silent();
        tokio::task::yield_now().await;
        cutter.speak();
    }
    assert!(once.answer(&request).await.is_ok());
}

/// Nobody works between the statements of such a transaction: a relay that is cut off there must not keep its lanes from others.
async fn a_transaction_of_pgonce_itself_that_falls_silent_ends_soon<D: TestDriver>(
    world: World<D>,
) {
    let note = "create table seen (setting text); \
        create function note() returns trigger language plpgsql as $$ \
        begin insert into public.seen values (current_setting('idle_in_transaction_session_timeout')); return null; end $$; \
        create trigger note after update on pgonce.outbox_cursor for each statement execute function note()";
    world
        .see
        .run("select pgonce.create_subscription('c')")
        .await;
    world.see.run(note).await;
    let minute = std::time::Duration::from_secs(60);
    let lanes = world.owner.outbox().claim_lanes("c", "me", minute).await;
    assert_eq!(lanes.unwrap().len(), 16);
    let seen = "select string_agg(distinct setting, ' ') from seen";
    assert_eq!(world.see.text(seen).await, "10s");
}

/// What became of work that ran is asked, and nobody else gives up a connection that falls silent then.
async fn leased_work_that_lost_its_lease_ends_where_every_connection_falls_silent<D: TestDriver>(
    world: World<D>,
) {
    let see = &world.see;
    see.run("select pgonce.define_scope('silence', '1 day', p_lease => '3 seconds')")
        .await;
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let tries = Policy::default().tries(2);
    let url = cutter.url_for(world.database());
    let once = world.another_at(&url, 2, |b| b.retry(tries));
    let request = Intent::new("silence", "a", &()).unwrap();
    let ran = once.run_leased(&request, async |_: Lease<D>| -> Result<Done> {
        cutter.fall_silent();
        Err(Error::Uncertain("its record got no reply".to_owned()))
    });
    // Its calls have limits of seconds, or none.
    let ended = tokio::time::timeout(Duration::from_secs(100), ran).await;
    let ended = ended.expect("it waits for a silent connection");
    assert!(matches!(ended, Err(Error::Uncertain(_))), "{ended:?}");
}

for_each_driver!(
    a_transaction_of_pgonce_itself_that_falls_silent_ends_soon,
    leased_work_that_lost_its_lease_ends_where_every_connection_falls_silent,
);
