//! What is acknowledged survives a crash, whatever a role or database says about commits.
//! (The crash itself is in `cancellation`.)

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Ack, Claim};
use pgonce_tests::{TestDriver, World, effect, for_each_driver, intent};

const SETTING: &str = "select current_setting('synchronous_commit')";

async fn an_attempt_commits_durably_where_the_database_has_it_off<D: TestDriver>(world: World<D>) {
    world
        .see
        .run(&format!(
            "alter database \"{}\" set synchronous_commit = off",
            world.database()
        ))
        .await;
    let once = world.another("careless", 1, |b| b);
    for request in [intent("looked"), intent("optimistic").known_first()] {
        let Claim::Run(mut attempt) = once.claim(&request).await.unwrap() else {
            panic!("fresh")
        };
        assert_eq!(
            D::fetch(attempt.conn(), SETTING).await.unwrap().unwrap(),
            "on",
            "{request:?}"
        );
        let _ = attempt.succeed(Ack::status()).await.unwrap();
    }
    let Claim::Run(lease) = once
        .lease(&intent("leased"), Duration::from_secs(60))
        .await
        .unwrap()
    else {
        panic!("fresh")
    };
    let _ = lease.succeed(Ack::status()).await.unwrap();
    // Only for the transactions of pgonce: the connection goes back as it came.
    let Claim::Run(mut attempt) = once.claim(&intent("last")).await.unwrap() else {
        panic!("fresh")
    };
    D::exec(attempt.conn(), "rollback").await.unwrap();
    assert_eq!(
        D::fetch(attempt.conn(), SETTING).await.unwrap().unwrap(),
        "off"
    );
}

#[tokio::test]
async fn every_call_that_writes_makes_its_transaction_durable_and_no_other() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let fence = see
        .number("select fence from pgonce.claim('s', 'held', '\\x01', interval '1 hour')")
        .await;
    see.run(
        "select pgonce.ledger_open(a, 'EUR', 'debit') from unnest('{a,b,c}'::text[]) a; \
         select pgonce.define_transition('m', '', 'a'), pgonce.define_transition('m', 'a', 'b'); \
         select pgonce.transition('m', 'e', 'a', 'c1'); select pgonce.refer('sys', 'known', 'k', '1')",
    )
    .await;
    let lines = r#"[{"account": "a", "debit": 5}, {"account": "b", "credit": 5}]"#;
    let three = r#"[{"account": "a", "debit": 5}, {"account": "b", "credit": 4}, {"account": "c", "credit": 1}]"#;
    see.run(&format!(
        "select pgonce.ledger_post('s', 'posted', '{lines}'), pgonce.ledger_post('s', 'held', '{lines}', p_fence => 1)"
    ))
    .await;
    let calls = [
        format!("select pgonce.ledger_post('s', 'fast', '{lines}')"),
        format!("select pgonce.ledger_post('s', 'three', '{three}')"),
        format!("select pgonce.ledger_post('s', 'pending', '{lines}', p_fence => 1)"),
        // What was recorded before may be in a commit that is on no disk yet.
        format!("select pgonce.ledger_post('s', 'posted', '{lines}')"),
        "select pgonce.ledger_reverse('s', 'undone', 's', 'posted')".to_owned(),
        "select pgonce.ledger_settle('s', 'held', 'posted', 1)".to_owned(),
        "select pgonce.ledger_open('d', 'EUR', 'debit')".to_owned(),
        "select pgonce.ledger_close('c')".to_owned(),
        "select pgonce.transition('m', 'e', 'b', 'c2')".to_owned(),
        "select pgonce.transition('m', 'e', 'a', 'c1')".to_owned(),
        "select pgonce.set_timer('m', 'e', 'sla', 'b', '1 hour')".to_owned(),
        "select pgonce.refer('sys', 'new', 'k', '1')".to_owned(),
        "select pgonce.refer('sys', 'known', 'k', '1')".to_owned(),
        "select * from pgonce.claim('s', 'a', '\\x01')".to_owned(),
        "select * from pgonce.claim('s', 'a', '\\x01', interval '1 hour')".to_owned(),
        "select * from pgonce._claim_optimistic('s', 'a', '\\x01')".to_owned(),
        "select finish('s', 'a', '\\x01')".to_owned(),
        "select pgonce.fail('s', 'a', '\\x01', 1, true, 'c', 'm')".to_owned(),
        format!("select pgonce.succeed('s', 'held', '\\x01', {fence})"),
        format!("select pgonce.fail('s', 'held', '\\x01', {fence}, false, 'c', 'm')"),
        format!("select pgonce.heartbeat('s', 'held', {fence}, interval '1 hour')"),
    ];
    for careless in ["off", "local"] {
        see.run(&format!("set synchronous_commit = {careless}"))
            .await;
        for sql in &calls {
            see.run("begin").await;
            see.run(sql).await;
            assert_eq!(see.text(SETTING).await, "on", "{careless}: {sql}");
            see.run("rollback").await;
            assert_eq!(see.text(SETTING).await, careless, "{sql}");
        }
    }
    // A stricter choice is left alone.
    for chosen in ["on", "remote_write", "remote_apply"] {
        see.run(&format!("set synchronous_commit = {chosen}; begin; select * from pgonce.claim('s', 'a', '\\x01', interval '1 hour')")).await;
        assert_eq!(see.text(SETTING).await, chosen);
        see.run("rollback").await;
    }
}

/// Whatever the work itself says about its transaction: what counts is the setting at the commit.
async fn work_that_asks_for_a_careless_commit_does_not_get_one<D: TestDriver>(world: World<D>) {
    let note = "create table seen (path text, setting text); grant all on seen to public; \
        create function note() returns trigger language plpgsql as $$ \
        begin insert into public.seen values (new.key, current_setting('synchronous_commit')); return null; end $$; \
        create constraint trigger note after insert on effects deferrable initially deferred for each row execute function note()";
    world.see.run(note).await;
    let careless = "set local synchronous_commit = off";
    for request in [intent("run"), intent("first").known_first()] {
        let run = world.once.run(&request, |mut tx| async move {
            effect(&mut tx).await?;
            D::exec(tx.conn(), careless).await?;
            tx.succeed("done").await
        });
        let _ = run.await.unwrap();
    }
    let leased = intent("leased");
    let run = world.once.run_leased(&leased, |lease| async move {
        lease
            .transact(|mut tx| async move {
                effect(&mut tx).await?;
                D::exec(tx.conn(), careless).await?;
                tx.succeed("done").await
            })
            .await
    });
    let _ = run.await.unwrap();
    let seen = "select string_agg(distinct setting, ' ') || ' ' || count(*) from seen";
    assert_eq!(world.see.text(seen).await, "on 3");
}

for_each_driver!(
    an_attempt_commits_durably_where_the_database_has_it_off,
    work_that_asks_for_a_careless_commit_does_not_get_one,
);
