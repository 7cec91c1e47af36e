//! Many clients on overlapping accounts, and clients that vanish.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use pgonce::driver::Driver as _;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::ledger::Group;
use pgonce_tests::{World, random};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{open, problems};

const CLIENTS: usize = 64;
const GROUPS: usize = 13;

#[tokio::test]
async fn totals_are_constant_in_every_read_and_nobody_deadlocks() {
    let world = World::<TokioPostgres>::new().await;
    open(&world, "").await;
    world.see.run(r#"select pgonce.ledger_post('bank', '1', '[{"account": "cash", "debit": 100000}, {"account": "ada", "credit": 50000}, {"account": "bob", "credit": 50000}]')"#).await;
    let once = world.another("clients", 64, |builder| builder);
    let mut random = random();
    let seeds: Vec<u64> = (0..CLIENTS).map(|_| random.random()).collect();
    let reader = world.observer().await;
    let done = Arc::new(AtomicBool::new(false));
    let reading = async {
        let mut reads = 0;
        while !done.load(Ordering::Relaxed) {
            let total = "select sum(balance * case normal when 'debit' then 1 else -1 end) from pgonce.ledger_accounts";
            assert_eq!(reader.number(total).await, 0);
            let then = "with t as materialized (select pgonce.now() - interval '3 milliseconds' as t) \
                select sum(pgonce._ledger_balance_at('', account, t)) from pgonce.ledger_accounts, t";
            // What is still open may be missing on both sides, never on one.
            assert_eq!(reader.number(then).await, 0);
            reads += 1;
        }
        reads
    };
    let posting = async {
        let clients = seeds.iter().enumerate().map(|(client, seed)| {
            let once = &once;
            async move {
                let mut random = StdRng::seed_from_u64(*seed);
                for n in 0..GROUPS {
                    // In any order: the ledger locks in its own.
                    let names = ["cash", "ada", "bob", "fees"];
                    let from = random.random_range(0..4);
                    let to = (from + random.random_range(1..4)) % 4;
                    let group = Group::new("clients", format!("{client}/{n}"));
                    let group = group.debit(names[from], 1).credit(names[to], 1);
                    let twice = random.random_ratio(1, 5);
                    let (one, two) = match twice {
                        true => {
                            let (one, two) = futures_util::future::join(
                                once.post(&group, ""),
                                once.post(&group, ""),
                            )
                            .await;
                            (one.unwrap().new, two.unwrap().new)
                        }
                        false => (once.post(&group, "").await.unwrap().new, false),
                    };
                    assert!(one ^ two, "recorded by exactly one of them");
                }
            }
        });
        join_all(clients).await;
        done.store(true, Ordering::Relaxed);
    };
    let (reads, ()) = futures_util::future::join(reading, posting).await;
    assert!(reads > 0);
    let entries = "select count(*) from pgonce.ledger_entry";
    assert_eq!(
        world.see.number(entries).await,
        i64::try_from(2 * CLIENTS * GROUPS + 3).unwrap()
    );
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_a_whole_group_or_none_and_a_retry_completes_it() {
    let world = World::<TokioPostgres>::new().await;
    open(&world, "").await;
    let post = r#"select pgonce.ledger_post('bank', '1', '[{"account": "cash", "debit": 5}, {"account": "ada", "credit": 5}]')"#;
    let victim = world.observer().await;
    let pid = victim.text("select pg_backend_pid()").await;
    victim.run(&format!("begin; {post}")).await;
    world
        .see
        .run(&format!("select pg_terminate_backend({pid})"))
        .await;
    world.see.wait_until_clean().await;
    assert_eq!(
        world
            .see
            .number("select count(*) from pgonce.ledger_group")
            .await,
        0
    );
    let group = Group::new("bank", "1").debit("cash", 5).credit("ada", 5);
    assert!(world.once.post(&group, "").await.unwrap().new);
    // The client did not get the answer, and asks again.
    drop(world.once.driver().acquire().await.unwrap());
    assert!(!world.once.post(&group, "").await.unwrap().new);
    assert_eq!(
        world
            .see
            .number("select balance from pgonce.ledger_balance('ada')")
            .await,
        5
    );
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());
}

#[tokio::test]
async fn a_second_reversal_that_a_snapshot_does_not_show_the_first_of_begins_again() {
    let world = World::<TokioPostgres>::new().await;
    open(&world, "").await;
    let (see, old) = (&world.see, world.observer().await);
    for (level, code) in [
        ("read committed", "P4078"),
        ("repeatable read", "40001"),
        ("serializable", "40001"),
    ] {
        see.run(&format!(r#"select pgonce.ledger_post('bank', '{level}', '[{{"account": "cash", "debit": 5}}, {{"account": "ada", "credit": 5}}]')"#)).await;
        let reverse = |undo: &str| {
            format!("select pgonce.ledger_reverse('bank', '{undo} {level}', 'bank', '{level}')")
        };
        old.run(&format!(
            "begin isolation level {level}; select from pgonce.ledger_groups"
        ))
        .await;
        see.run(&reverse("first")).await;
        assert_eq!(old.code(&reverse("second")).await, code, "{level}");
        old.run("rollback").await;
        assert_eq!(old.code(&reverse("second")).await, "P4078", "{level}");
    }
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());
}
