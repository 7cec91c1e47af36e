//! The ledger on Citus answers as on one server.

use std::time::{Duration, SystemTime};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::ledger::{Account, Group, Side, State};
use pgonce_tests::{Observer, random};
use rand::RngExt as _;

use crate::cluster::Cluster;
use crate::distributed::{distributed, migrator, once};

/// A call of the ledger that may be new, known, or wrong in one of its ways.
fn call(random: &mut impl rand::Rng) -> String {
    let operation = random.random_range(0..60);
    let accounts = ["cash", "ada", "bob", "fees", "usd", "closed", "nobody"];
    let likely = |random: &mut _| accounts[pick(random)];
    match random.random_range(0..12) {
        0 => {
            let state = ["posted", "voided", "lost"][random.random_range(0..3)];
            let fence = random.random_range(1..4);
            format!("pgonce.ledger_settle('m', '{operation}', '{state}', {fence}, 't')")
        }
        1 => format!(
            "pgonce.ledger_reverse('m', 'undo {}', 'm', '{operation}', null, 't')",
            operation % 7
        ),
        2 => format!(
            "pgonce.ledger_open('{}', 'EUR', '{}', null, {}, 't')",
            likely(random),
            ["debit", "credit", "side"][random.random_range(0..3)],
            random.random_range(0..3)
        ),
        3 => format!("pgonce.ledger_close('{}', 't')", likely(random)),
        _ => {
            let (first, second) = (likely(random), likely(random));
            let amount = operation % 9 + i64::from(!random.random_ratio(1, 20));
            let back = amount + i64::from(random.random_ratio(1, 20));
            let fence = match operation % 3 {
                0 => format!("{}", random.random_range(1..4)),
                _ => "null".to_owned(),
            };
            let named = ["", ", \"currency\": \"EUR\"", ", \"currency\": \"USD\""];
            let named = named[random.random_range(0..12_usize).saturating_sub(9)];
            format!(
                r#"pgonce.ledger_post('m', '{operation}', '[{{"account": "{first}", "debit": {amount}{named}}}, {{"account": "{second}", "credit": "{back}"}}]', null, {fence}, 't')"#
            )
        }
    }
}

/// Mostly an account that is open.
fn pick(random: &mut impl rand::Rng) -> usize {
    match random.random_ratio(1, 10) {
        true => random.random_range(0..7),
        false => random.random_range(0..4),
    }
}

async fn answer(see: &Observer, call: &str) -> String {
    let sql = match call.contains("_post(") || call.contains("_reverse(") {
        true => format!("select made_now, state from {call}"),
        false => format!("select {call}"),
    };
    match see.code(&format!("begin; {sql}; rollback")).await {
        code if !code.is_empty() => {
            see.run("rollback").await;
            code
        }
        _ => format!("{:?}", see.rows(&sql).await),
    }
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn random_calls_are_answered_as_on_one_server() {
    let db = distributed(Cluster::shared().await, "twin_ledger").await;
    let plain = pgonce_testkit::shared(None).await.unwrap();
    let plain = plain.create_database("ledger").await.unwrap();
    migrator(&plain.url()).up().await.unwrap();
    let mut servers = vec![Observer::connect(&plain.url()).await];
    for url in &db.urls {
        servers.push(Observer::connect(url).await);
    }
    for see in &servers[..2] {
        see.run(
            "select pgonce.ledger_open('cash', 'EUR', 'debit', null, 1, 't'); select pgonce.ledger_open('ada', 'EUR', 'credit', 0, 1, 't'); \
             select pgonce.ledger_open('bob', 'EUR', 'credit', 0, 1, 't'); select pgonce.ledger_open('fees', 'EUR', 'credit', null, 4, 't'); \
             select pgonce.ledger_open('usd', 'USD', 'credit', null, 1, 't'); select pgonce.ledger_open('closed', 'EUR', 'credit', null, 1, 't'); \
             select pgonce.ledger_close('closed', 't')",
        )
        .await;
    }
    let mut random = random();
    let mut seen = std::collections::BTreeSet::new();
    for step in 0..400 {
        let call = call(&mut random);
        let expected = answer(&servers[0], &call).await;
        let got = answer(&servers[1 + step % 3], &call).await;
        assert_eq!(got, expected, "{step}: {call}");
        seen.insert(expected);
    }
    assert!(seen.len() > 8, "{seen:?}");
    for look in [
        "select account, currency, normal, floor, shards, balance, available, pending_debit, pending_credit, entries, closed_at is null \
           from pgonce.ledger_accounts order by account",
        "select source, operation, state, accounts, amounts, memo, reverses_operation, fence from pgonce.ledger_groups order by source, operation",
        "select * from pgonce.ledger_balance('cash', null, 't')",
        "select * from pgonce.ledger_balance('fees', 'infinity', 't')",
        "select kind, source, debit, credit, balance, memo from pgonce.ledger_statement('ada', '2020-01-01', 'infinity', 't') limit 40",
        "select * from pgonce.ledger_verify()",
        "select * from pgonce.ledger_verify('t')",
    ] {
        let expected = servers[0].rows(look).await;
        for see in &servers[1..] {
            assert_eq!(see.rows(look).await, expected, "{look}");
        }
    }
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn what_was_changed_by_hand_is_found() {
    let db = distributed(Cluster::shared().await, "verified").await;
    let see = db.see().await;
    for tenant in ["a", "b"] {
        see.run(&format!(
            "select pgonce.ledger_open('cash', 'EUR', 'debit', p_tenant => '{tenant}'); select pgonce.ledger_open('ada', 'EUR', 'credit', p_tenant => '{tenant}')"
        ))
        .await;
        for operation in 1..=3 {
            see.run(&format!(
                r#"select pgonce.ledger_post('s', '{operation}', '[{{"account": "cash", "debit": 5}}, {{"account": "ada", "credit": 5}}]', p_tenant => '{tenant}')"#
            ))
            .await;
        }
    }
    for table in [
        "ledger_account",
        "ledger_group",
        "ledger_entry",
        "ledger_pending",
        "transition_command",
    ] {
        let truncate = format!("truncate pgonce.{table}");
        assert_eq!(see.code(&truncate).await, "P4079", "{table}");
    }
    let problems = "select coalesce(string_agg(distinct tenant || ' ' || problem, ', ' order by tenant || ' ' || problem), '') from pgonce.ledger_verify()";
    assert_eq!(see.text(problems).await, "");
    for (tenant, table, change, undo, found) in [
        (
            "a",
            "ledger_account",
            "update {} set balance = 1 where tenant = 'a' and account = 'ada'",
            "update {} set balance = -15 where tenant = 'a' and account = 'ada'",
            "a balance",
        ),
        (
            "b",
            "ledger_entry",
            "update {} set amount = amount * 2 where tenant = 'b' and seq = 2",
            "update {} set amount = amount / 2 where tenant = 'b' and seq = 2",
            "b chain, b entries",
        ),
        (
            "b",
            "ledger_group",
            "update {} set memo = '1' where tenant = 'b' and operation = '3'",
            "update {} set memo = null where tenant = 'b' and operation = '3'",
            "b group",
        ),
        (
            "a",
            "ledger_entry",
            "delete from {} where tenant = 'a' and account = 'ada' and seq = 3",
            "select from {}",
            "a balance, a entries, a total",
        ),
    ] {
        let shard = format!("get_shard_id_for_distribution_column('pgonce.{table}', '{tenant}')");
        let id = see.number(&format!("select {shard}")).await;
        let port = format!("select nodeport from pg_dist_shard_placement where shardid = {id}");
        let port = format!(":{}/", see.text(&port).await);
        let worker = db.urls.iter().find(|url| url.contains(&port)).unwrap();
        let worker = Observer::connect(worker).await;
        let shard = format!("pgonce.{table}_{id}");
        if table != "ledger_account" {
            for (on, name) in [(&see, format!("pgonce.{table}")), (&worker, shard.clone())] {
                let code = on.code(&change.replace("{}", &name)).await;
                assert_eq!(code, "P4079", "{change}");
            }
        }
        // By somebody who goes round the triggers, on the shard itself.
        worker.run("set session_replication_role = replica").await;
        worker.run(&change.replace("{}", &shard)).await;
        assert_eq!(see.text(problems).await, found, "{change}");
        worker.run(&undo.replace("{}", &shard)).await;
    }
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn the_sdk_does_what_a_wallet_needs() {
    let db = distributed(Cluster::shared().await, "wallet").await;
    for (n, url) in db.urls.iter().enumerate() {
        let once = once(url);
        let intent = pgonce::Intent::new("wallet", n.to_string(), &1)
            .unwrap()
            .tenant(format!("t{n}"))
            .unwrap();
        let work = |mut tx: pgonce::Attempt<TokioPostgres>| async move {
            let mut ledger = tx.ledger();
            for (name, side, floor) in [("cash", Side::Debit, None), ("ada", Side::Credit, Some(0))]
            {
                let account = Account::new(name, "EUR", side);
                let account = floor.iter().fold(account, |a, floor| a.floor(*floor));
                assert!(ledger.open(&account).await?);
                assert!(!ledger.open(&account).await?);
            }
            let pay_in = Group::new("bank", "1")
                .debit("cash", 1_000)
                .credit("ada", 1_000);
            assert!(ledger.post(&pay_in).await?.new);
            assert!(!ledger.post(&pay_in).await?.new);
            let hold = Group::new("shop", "7")
                .debit("ada", 400)
                .credit("cash", 400);
            let held = ledger.post(&hold.pending(5)).await?;
            assert_eq!(held.state, State::Pending);
            let ada = ledger.balance("ada").await?;
            assert_eq!((ada.balance, ada.available), (1_000, Some(600)));
            assert!(ledger.settle("shop", "7", 5).await?);
            let undo = Group::new("shop", "undo 7");
            assert!(ledger.reverse(&undo, "shop", "7").await?.new);
            let (from, to) = (
                SystemTime::UNIX_EPOCH,
                SystemTime::now() + Duration::from_secs(3600),
            );
            let statement = ledger.statement("ada", from, to).await?;
            assert_eq!((statement.opening, statement.closing), (0, 1_000));
            assert_eq!(statement.entries.len(), 3);
            assert_eq!(ledger.balance_at("ada", to).await?.balance, 1_000);
            tx.succeed(&1).await
        };
        let _: i64 = once
            .run(&intent, work)
            .await
            .unwrap()
            .into_answer()
            .unwrap();
        let group = Group::new("bank", "2").debit("cash", 1).credit("ada", 1);
        assert!(once.post(&group, &format!("t{n}")).await.unwrap().new);
        assert!(!once.post(&group, &format!("t{n}")).await.unwrap().new);
    }
    let see = db.see().await;
    assert_eq!(
        see.number("select count(*) from pgonce.ledger_verify()")
            .await,
        0
    );
}
