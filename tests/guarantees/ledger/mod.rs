//! The ledger: each group once, debits equal to credits, nothing changed afterwards.

mod concurrency;
mod model;
mod paths;

use std::time::{Duration, SystemTime};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::ledger::{Account, Group, Side, State};
use pgonce::{Ack, Attempt, Error};
use pgonce_tests::{TestDriver, World, for_each_driver, intent};
use serde_json::json;

/// Opens accounts: cash, two wallets that cannot go below zero, and fees over four shards.
pub(crate) async fn open<D: TestDriver>(world: &World<D>, tenant: &str) {
    let open = format!(
        "select pgonce.ledger_open('cash', 'EUR', 'debit', p_tenant => '{tenant}'), \
         pgonce.ledger_open('ada', 'EUR', 'credit', 0, p_tenant => '{tenant}'), \
         pgonce.ledger_open('bob', 'EUR', 'credit', 0, p_tenant => '{tenant}'), \
         pgonce.ledger_open('fees', 'EUR', 'credit', p_shards => 4, p_tenant => '{tenant}')"
    );
    world.see.run(&open).await;
}

/// What the ledger's own check finds.
pub(crate) async fn problems<D: TestDriver>(world: &World<D>) -> Vec<Vec<Option<String>>> {
    let query = "select problem, account, detail from pgonce.ledger_verify()";
    world.see.rows(query).await
}

async fn the_sdk_does_what_a_wallet_needs<D: TestDriver>(world: World<D>) {
    let request = intent("wallet").tenant("acme").unwrap();
    let run = world.once.run(&request, async |mut tx: Attempt<D>| {
        let mut ledger = tx.ledger();
        for (name, side, floor) in [
            ("cash", Side::Debit, None),
            ("ada", Side::Credit, Some(0)),
            ("bob", Side::Credit, Some(0)),
        ] {
            let account = Account::new(name, "EUR", side);
            let account = floor.iter().fold(account, |a, floor| a.floor(*floor));
            assert!(ledger.open(&account).await?);
            assert!(!ledger.open(&account).await?);
        }
        let pay_in = Group::new("bank", "1")
            .debit("cash", 1_000)
            .credit("ada", 1_000);
        let pay_in = pay_in.memo(&json!({"from": "a card"}))?;
        assert!(ledger.post(&pay_in).await?.new);
        assert!(!ledger.post(&pay_in).await?.new);
        let hold = Group::new("shop", "7")
            .debit("ada", 400)
            .credit("bob", 400)
            .pending(5);
        assert_eq!(ledger.post(&hold).await?.state, State::Pending);
        let ada = ledger.balance("ada").await?;
        assert_eq!(
            (ada.balance, ada.available, ada.pending_debit),
            (1_000, Some(600), Some(400))
        );
        assert!(ledger.settle("shop", "7", 5).await?);
        assert!(!ledger.settle("shop", "7", 5).await?);
        let undo = Group::new("shop", "undo 7");
        assert!(ledger.reverse(&undo, "shop", "7").await?.new);
        assert!(!ledger.reverse(&undo, "shop", "7").await?.new);
        assert!(
            ledger
                .post(
                    &Group::new("shop", "8")
                        .debit("ada", 1)
                        .credit("bob", 1)
                        .pending(1)
                )
                .await?
                .new
        );
        assert!(ledger.void("shop", "8", 1).await?);

        let day = Duration::from_secs(86_400);
        let (past, future) = (SystemTime::now() - day, SystemTime::now() + day);
        let all = ledger.statement("ada", past, future).await?;
        assert_eq!((all.opening, all.closing), (0, 1_000));
        let seen: Vec<_> = all
            .entries
            .iter()
            .map(|e| (&*e.operation, e.side, e.amount, e.balance))
            .collect();
        assert_eq!(
            seen,
            [
                ("1", Side::Credit, 1_000, 1_000),
                ("7", Side::Debit, 400, 600),
                ("undo 7", Side::Credit, 400, 1_000)
            ]
        );
        assert_eq!(ledger.balance_at("ada", past).await?.balance, 0);
        assert_eq!(ledger.balance_at("ada", future).await?.balance, 1_000);
        assert!(ledger.close("bob").await?);
        assert!(!ledger.close("bob").await?);
        tx.succeed(Ack::value(&"done")?).await
    });
    let _ = run.await.unwrap();
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());

    // In one round trip, under a tenant of its own.
    open(&world, "other").await;
    let group = Group::new("bank", "1").debit("cash", 5).credit("ada", 5);
    assert!(world.once.post(&group, "other").await.unwrap().new);
    assert!(!world.once.post(&group, "other").await.unwrap().new);
    let other = Group::new("bank", "1").debit("cash", 6).credit("ada", 6);
    let error = world.once.post(&other, "other").await.unwrap_err();
    assert!(
        matches!(&error, Error::Conflict(_)) && error.code() == "P4070",
        "{error}"
    );
}

for_each_driver!(the_sdk_does_what_a_wallet_needs);

#[tokio::test]
async fn every_bad_input_has_its_code_and_changes_nothing() {
    let world = World::<TokioPostgres>::new().await;
    open(&world, "").await;
    let see = &world.see;
    see.run("select pgonce.ledger_open('usd', 'USD', 'debit'), pgonce.ledger_open('old', 'EUR', 'debit'), pgonce.ledger_close('old'), pgonce.ledger_open('vault', 'EUR', 'debit'), pgonce.ledger_open('deep', 'EUR', 'debit')").await;
    let nines = "9".repeat(38);
    let big = format!(
        r#"[{{"account": "vault", "debit": "{nines}"}}, {{"account": "deep", "credit": "{nines}"}}]"#
    );
    see.run(&format!("select pgonce.ledger_post('big', '1', '{big}')"))
        .await;
    let before = see
        .text("select jsonb_agg(a order by account) from pgonce.ledger_accounts a")
        .await;
    for (code, entries) in [
        (
            "P4071",
            r#"[{"account": "cash", "debit": 2}, {"account": "ada", "credit": 1}]"#,
        ),
        (
            "P4071",
            r#"[{"account": "cash", "debit": 2}, {"account": "usd", "credit": 2}]"#,
        ),
        (
            "P4072",
            r#"[{"account": "cash", "debit": 1}, {"account": "nobody", "credit": 1}]"#,
        ),
        ("P4073", &big),
        (
            "P4073",
            r#"[{"account": "ada", "debit": 1e38}, {"account": "bob", "credit": 1e38}]"#,
        ),
        (
            "P4074",
            r#"[{"account": "cash", "debit": -1}, {"account": "ada", "credit": -1}]"#,
        ),
        (
            "P4074",
            r#"[{"account": "cash", "debit": 0}, {"account": "ada", "credit": 0}]"#,
        ),
        (
            "P4074",
            r#"[{"account": "cash", "debit": 1.5}, {"account": "ada", "credit": 1.5}]"#,
        ),
        (
            "P4074",
            r#"[{"account": "cash", "debit": "NaN"}, {"account": "ada", "credit": "NaN"}]"#,
        ),
        (
            "P4074",
            r#"[{"account": "cash", "debit": null}, {"account": "ada", "credit": 1}]"#,
        ),
        (
            "P4075",
            r#"[{"account": "cash", "debit": 1, "currency": "USD"}, {"account": "ada", "credit": 1}]"#,
        ),
        (
            "P4076",
            r#"[{"account": "old", "debit": 1}, {"account": "ada", "credit": 1}]"#,
        ),
        (
            "P4077",
            r#"[{"account": "ada", "debit": 1}, {"account": "bob", "credit": 1}]"#,
        ),
        (
            "22023",
            r#"[{"account": "cash", "debit": 1, "credit": 1}, {"account": "ada", "credit": 1}]"#,
        ),
        (
            "22023",
            r#"[{"account": "cash", "debit": 1, "note": 1}, {"account": "ada", "credit": 1}]"#,
        ),
        (
            "22023",
            r#"[{"account": "cash", "debit": 1}, {"account": "cash", "credit": 1}]"#,
        ),
        (
            "22023",
            r#"[{"account": "", "debit": 1}, {"account": "cash", "credit": 1}]"#,
        ),
        ("22023", r#"[3, {"account": "cash", "credit": 1}]"#),
        ("22023", r#"[{"account": "cash", "debit": 1}]"#),
        ("22023", "[]"),
        ("22023", "null"),
        ("22023", "{}"),
    ] {
        let post = format!("select pgonce.ledger_post('bad', 'x', '{entries}')");
        assert_eq!(see.code(&post).await, code, "{entries}");
    }
    for (code, call) in [
        (
            "22023",
            "pgonce.ledger_post('', 'x', '[{\"account\": \"cash\", \"debit\": 1}, {\"account\": \"ada\", \"credit\": 1}]')",
        ),
        (
            "22023",
            "pgonce.ledger_post('s', null, '[{\"account\": \"cash\", \"debit\": 1}, {\"account\": \"ada\", \"credit\": 1}]')",
        ),
        ("22023", "pgonce.ledger_open('x', 'EUR', 'left')"),
        ("22023", "pgonce.ledger_open('x', 'E R', 'debit')"),
        ("22023", "pgonce.ledger_open('', 'EUR', 'debit')"),
        ("22023", "pgonce.ledger_open('x', 'EUR', 'debit', 0, 2)"),
        ("22023", "pgonce.ledger_open('x', 'EUR', 'debit', 0.5)"),
        (
            "22023",
            "pgonce.ledger_open('x', 'EUR', 'debit', p_shards => 65)",
        ),
        ("P4070", "pgonce.ledger_open('cash', 'USD', 'debit')"),
        ("P4070", "pgonce.ledger_open('old', 'EUR', 'debit')"),
        ("P4072", "pgonce.ledger_close('nobody')"),
        ("P4077", "pgonce.ledger_close('vault')"),
        ("P4072", "pgonce.ledger_balance('nobody')"),
        (
            "P4072",
            "pgonce.ledger_statement('nobody', 'epoch', 'infinity')",
        ),
        (
            "22023",
            "pgonce.ledger_statement('cash', 'infinity', 'epoch')",
        ),
        ("P4078", "pgonce.ledger_settle('s', 'nothing', 'posted', 1)"),
        ("22023", "pgonce.ledger_settle('s', 'nothing', 'done', 1)"),
        ("P4078", "pgonce.ledger_reverse('s', 'r', 's', 'nothing')"),
        ("22023", "pgonce.ledger_repair(' ')"),
    ] {
        assert_eq!(see.code(&format!("select {call}")).await, code, "{call}");
    }
    let after = see
        .text("select jsonb_agg(a order by account) from pgonce.ledger_accounts a")
        .await;
    assert_eq!(before, after);
    assert_eq!(
        see.number("select count(*) from pgonce.ledger_group").await,
        1
    );
}

#[tokio::test]
async fn a_group_sent_again_in_another_currency_is_another_group() {
    let world = World::<TokioPostgres>::new().await;
    open(&world, "").await;
    let see = &world.see;
    for fence in ["", ", p_fence => 4"] {
        let post = |debit: &str, credit: &str| {
            format!(
                r#"select made_now from pgonce.ledger_post('bank', '1{fence}', '[{{"account": "cash", "debit": 5{debit}}}, {{"account": "ada", "credit": 5{credit}}}]'{fence})"#
            )
        };
        let (euro, dollar) = (r#", "currency": "EUR""#, r#", "currency": "USD""#);
        assert_eq!(see.text(&post(euro, euro)).await, "t");
        // Named or not, it is what the accounts are in.
        for (debit, credit) in [(euro, euro), ("", euro), ("", "")] {
            assert_eq!(see.text(&post(debit, credit)).await, "f");
        }
        for (debit, credit) in [(dollar, dollar), (dollar, ""), (euro, dollar)] {
            assert_eq!(see.code(&post(debit, credit)).await, "P4070");
        }
    }
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());
}

#[tokio::test]
async fn a_pending_group_obeys_the_highest_fence_and_ends_once() {
    let world = World::<TokioPostgres>::new().await;
    open(&world, "").await;
    let see = &world.see;
    see.run(r#"select pgonce.ledger_post('bank', '1', '[{"account": "cash", "debit": 100}, {"account": "ada", "credit": 100}]')"#).await;
    let hold = |fence: i64| {
        format!(
            r#"select pgonce.ledger_post('shop', '1', '[{{"account": "ada", "debit": 60}}, {{"account": "fees", "credit": 60}}]', p_fence => {fence})"#
        )
    };
    see.run(&hold(4)).await;
    // What is held cannot be spent, and what will come cannot be spent yet.
    let spend = r#"select pgonce.ledger_post('shop', '2', '[{"account": "ada", "debit": 41}, {"account": "bob", "credit": 41}]')"#;
    assert_eq!(see.code(spend).await, "P4077");
    // A second attempt takes over; the first is behind.
    see.run(&hold(6)).await;
    assert_eq!(see.code(&hold(4)).await, "P4012");
    let settle = |state: &str, fence: i64| {
        format!("select pgonce.ledger_settle('shop', '1', '{state}', {fence})")
    };
    assert_eq!(see.code(&settle("voided", 4)).await, "P4012");
    assert_eq!(see.text(&settle("posted", 6)).await, "t");
    assert_eq!(see.text(&settle("posted", 6)).await, "f");
    assert_eq!(see.code(&settle("voided", 9)).await, "P4078");
    assert_eq!(
        see.number("select balance from pgonce.ledger_balance('fees')")
            .await,
        60
    );
    // The same content without a fence is something else.
    let plain = hold(1).replace(", p_fence => 1", "");
    assert_eq!(see.code(&plain).await, "P4070");
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());
}

#[tokio::test]
async fn nothing_recorded_can_be_changed_and_what_was_changed_by_force_is_found() {
    let world = World::<TokioPostgres>::new().await;
    open(&world, "").await;
    let see = &world.see;
    for n in 1..=3 {
        see.run(&format!(r#"select pgonce.ledger_post('bank', '{n}', '[{{"account": "cash", "debit": {n}}}, {{"account": "ada", "credit": {n}}}]')"#)).await;
    }
    for forbidden in [
        "update pgonce.ledger_entry set amount = 0",
        "delete from pgonce.ledger_entry",
        "truncate pgonce.ledger_entry",
        "update pgonce.ledger_group set memo = '1'",
        "delete from pgonce.ledger_group",
        "delete from pgonce.ledger_account",
        "update pgonce.ledger_account set currency = 'USD'",
        "delete from pgonce.ledger_pending",
        "delete from pgonce.operator_act",
        "update pgonce.operator_act set reason = 'another'",
    ] {
        assert_eq!(see.code(forbidden).await, "P4079", "{forbidden}");
    }
    // A cached balance is repaired, with a record of who did it.
    see.run("update pgonce.ledger_account set balance = 7, entries = 1 where account = 'cash'")
        .await;
    assert_eq!(problems(&world).await[0][0].as_deref(), Some("balance"));
    assert_eq!(
        see.rows("select account, repaired from pgonce.ledger_repair('a test')")
            .await
            .len(),
        1
    );
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());
    assert_eq!(see.text("select role || reason || (before #>> '{before,balance}') || (before #>> '{after,balance}') from pgonce.operator_act where scope = 'ledger'").await,
        format!("{}a test76", see.text("select session_user").await));
    // What gets past the triggers breaks the chain, in any column.
    for (problem, tampering) in [
        (
            "chain",
            "update pgonce.ledger_entry set amount = amount + 1, balance = balance + 1 where account = 'ada' and seq = 2",
        ),
        (
            "chain",
            "update pgonce.ledger_entry set posted_at = posted_at - interval '1 hour' where account = 'ada' and seq = 1",
        ),
        (
            "chain",
            "update pgonce.ledger_entry set hash = sha256('x') where account = 'ada' and seq = 3",
        ),
        (
            "chain",
            "delete from pgonce.ledger_entry where account = 'ada' and seq = 2",
        ),
        (
            "entries",
            "delete from pgonce.ledger_entry where account = 'ada' and seq = 3",
        ),
        (
            "group",
            "update pgonce.ledger_group set memo = '1' where operation = '2'",
        ),
        (
            "chain",
            "update pgonce.ledger_account set currency = 'USD' where account = 'ada'",
        ),
        (
            "chain",
            "delete from pgonce.ledger_group where operation = '1'",
        ),
    ] {
        let force = format!("begin; set local session_replication_role = replica; {tampering}");
        see.run(&force).await;
        let found = problems(&world).await;
        see.run("rollback").await;
        assert!(
            found.iter().any(|p| p[0].as_deref() == Some(problem)),
            "{tampering}: {found:?}"
        );
    }
    // One whose entries were changed, or whose last ones are gone, is not repaired.
    for tampering in [
        "update pgonce.ledger_entry set amount = 9 where account = 'ada'; update pgonce.ledger_account set balance = 1 where account = 'ada'",
        "delete from pgonce.ledger_entry where account = 'ada' and seq = 3",
        "delete from pgonce.ledger_entry where account = 'ada'",
    ] {
        let force = format!("begin; set local session_replication_role = replica; {tampering}");
        see.run(&force).await;
        let repaired = see.rows("select repaired from pgonce.ledger_repair('no')");
        assert_eq!(repaired.await, [[Some("f".to_owned())]], "{tampering}");
        see.run("rollback").await;
    }
}
