//! Random groups against a ledger of a few lines.

use std::collections::HashMap;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{World, random};
use rand::RngExt as _;

use super::{open, problems};

const ACCOUNTS: [&str; 4] = ["cash", "ada", "bob", "fees"];

/// The entries of a group, and its state.
type Group = (Vec<(&'static str, i64)>, &'static str);

/// What the ledger should be: debits less credits, and what is held.
#[derive(Debug, Default)]
struct Model {
    balances: HashMap<&'static str, i64>,
    held: HashMap<&'static str, i64>,
    /// By operation: its content, and whether it is posted, pending or voided.
    groups: HashMap<i64, Group>,
}

impl Model {
    /// What can leave an account that may not go below zero.
    fn available(&self, account: &str) -> i64 {
        let balance = self.balances.get(account).copied().unwrap_or_default();
        -balance - self.held.get(account).copied().unwrap_or_default()
    }

    /// The code that posting this group ends with; empty where it is new, `=` where it was recorded.
    fn post(
        &mut self,
        operation: i64,
        lines: &[(&'static str, i64)],
        pending: bool,
    ) -> &'static str {
        if let Some((content, state)) = self.groups.get(&operation) {
            let same = content == lines && pending == (*state != "posted now");
            return if same { "=" } else { "P4070" };
        }
        for (account, amount) in lines {
            let has_floor = ["ada", "bob"].contains(account);
            if has_floor && *amount > 0 && self.available(account) < *amount {
                return "P4077";
            }
        }
        let state = if pending { "pending" } else { "posted now" };
        self.groups.insert(operation, (lines.to_vec(), state));
        for (account, amount) in lines {
            if !pending {
                *self.balances.entry(account).or_default() += amount;
            } else if *amount > 0 {
                *self.held.entry(account).or_default() += amount;
            }
        }
        ""
    }

    fn settle(&mut self, operation: i64, post: bool) -> &'static str {
        let Some((lines, state)) = self.groups.get_mut(&operation) else {
            return "P4078";
        };
        let wanted = if post { "posted" } else { "voided" };
        match *state {
            "posted now" => return "P4078",
            "pending" => {}
            state => return if state == wanted { "=" } else { "P4078" },
        }
        *state = wanted;
        for (account, amount) in lines {
            if *amount > 0 {
                *self.held.entry(account).or_default() -= *amount;
            }
            if post {
                *self.balances.entry(account).or_default() += *amount;
            }
        }
        ""
    }
}

#[tokio::test]
async fn random_groups_leave_what_a_model_leaves() {
    let world = World::<TokioPostgres>::new().await;
    open(&world, "").await;
    let mut random = random();
    let mut model = Model::default();
    // As long as it takes to meet a group that is voided, too.
    for step in 0.. {
        let voided = model.groups.values().any(|(_, state)| *state == "voided");
        if step >= 250 && voided {
            break;
        }
        assert!(step < 5_000, "no group was voided");
        let operation = random.random_range(0..120);
        let (code, call) = if random.random_ratio(1, 4) {
            let post = random.random_bool(0.5);
            let state = if post { "posted" } else { "voided" };
            let call = format!("pgonce.ledger_settle('m', '{operation}', '{state}', 1)");
            (model.settle(operation, post), call)
        } else {
            // By its number, so that most repetitions have the same content.
            let first = ACCOUNTS[usize::try_from(operation).unwrap() % 4];
            let second = ACCOUNTS[(usize::try_from(operation).unwrap() % 4
                + 1
                + usize::try_from(operation).unwrap() % 3)
                % 4];
            let amount = operation % 9 + 1 + i64::from(random.random_ratio(1, 20));
            let pending = operation % 3 == 0;
            let lines = [(first, amount), (second, -amount)];
            let fence = if pending { ", p_fence => 1" } else { "" };
            let call = format!(
                r#"pgonce.ledger_post('m', '{operation}', '[{{"account": "{first}", "debit": {amount}}}, {{"account": "{second}", "credit": {amount}}}]'{fence})"#
            );
            (model.post(operation, &lines, pending), call)
        };
        let query = format!("select (x).made_now from (select {call} as x) x");
        let query = match call.contains("settle") {
            true => format!("select {call}"),
            false => query,
        };
        match code {
            "" => assert_eq!(world.see.text(&query).await, "t", "{step}: {call}"),
            "=" => assert_eq!(world.see.text(&query).await, "f", "{step}: {call}"),
            code => assert_eq!(world.see.code(&query).await, code, "{step}: {call}"),
        }
    }
    for account in ACCOUNTS {
        let balance = model.balances.get(account).copied().unwrap_or_default();
        let balance = if account == "cash" { balance } else { -balance };
        let query = format!("select balance from pgonce.ledger_balance('{account}')");
        assert_eq!(world.see.number(&query).await, balance, "{account}");
    }
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());
}
