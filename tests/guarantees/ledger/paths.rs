//! Few plain entries take a short way into the ledger, all others a long one. Both end alike.

use std::collections::BTreeMap;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{World, random};
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::{open, problems};

/// Posts a group and says how that ended, with every word of an error.
const ATTEMPT: &str = r#"
create function pg_temp.attempt(p_tenant text, p_operation text, p_entries jsonb, p_memo jsonb) returns text language plpgsql as $$
declare
    v_made    boolean;
    v_code    text;
    v_message text;
    v_detail  text;
    v_hint    text;
begin
    select made_now into v_made from pgonce.ledger_post('paths', p_operation, p_entries, p_memo, p_tenant => p_tenant);
    return 'recorded, new: ' || v_made;
exception when others then
    get stacked diagnostics v_code = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail,
        v_hint = pg_exception_hint;
    return concat_ws(' | ', v_code, v_message, v_detail, v_hint);
end
$$"#;

const ACCOUNTS: [&str; 8] = ["cash", "ada", "bob", "fees", "usd", "old", "deep", "nobody"];

/// Opens the accounts of every test, one in another currency, one that is closed, and one that is nearly full.
async fn open_more(world: &World<TokioPostgres>, tenant: &str) {
    open(world, tenant).await;
    let nines = "9".repeat(38);
    let see = &world.see;
    see.run(&format!(
        r#"select pgonce.ledger_open('usd', 'USD', 'debit', p_tenant => '{tenant}'), pgonce.ledger_open('deep', 'EUR', 'debit', -9, p_tenant => '{tenant}'),
            pgonce.ledger_open('old', 'EUR', 'debit', p_tenant => '{tenant}'), pgonce.ledger_close('old', '{tenant}'),
            pgonce.ledger_open('full', 'EUR', 'credit', p_tenant => '{tenant}');
         select pgonce.ledger_post('bank', '1', '[{{"account": "deep", "debit": "{nines}"}}, {{"account": "full", "credit": "{nines}"}}]', p_tenant => '{tenant}');
         select pgonce.ledger_post('bank', '2', '[{{"account": "cash", "debit": 60}}, {{"account": "ada", "credit": 30}}, {{"account": "bob", "credit": 30}}]', p_tenant => '{tenant}');
         select pgonce.ledger_post('bank', '3', '[{{"account": "ada", "debit": 4}}, {{"account": "fees", "credit": 4}}]', p_fence => 1, p_tenant => '{tenant}')"#
    ))
    .await;
}

#[tokio::test]
async fn the_short_way_and_the_long_way_end_alike() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run(ATTEMPT).await;
    let mut random = random();
    let mut ends = BTreeMap::<String, u32>::new();
    let wanted = [
        "recorded", "P4070", "P4071", "P4072", "P4073", "P4074", "P4075", "P4076", "P4077", "22023",
    ];
    // Until every end was met, which one set of accounts may be past: mostly the first.
    for set in 0.. {
        run_both_ways(&world, set, &mut random, &mut ends).await;
        let met = |code: &&str| ends.keys().any(|end| end.starts_with(*code));
        if wanted.iter().all(met) {
            break;
        }
        assert!(set < 10, "not every end was met: {ends:?}");
    }
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());
}

/// Posts the same random groups the short way and the long way, to new accounts of two tenants.
async fn run_both_ways(
    world: &World<TokioPostgres>,
    set: u32,
    random: &mut StdRng,
    ends: &mut BTreeMap<String, u32>,
) {
    let see = &world.see;
    let tenants = ["short", "long"].map(|way| format!("{way} {set}"));
    for tenant in &tenants {
        open_more(world, tenant).await;
    }
    for n in 0..600 {
        let many = if random.random_ratio(4, 5) { 2 } else { 3 };
        // Mostly of those that can be posted to; the others are what may be wrong.
        let among = if random.random_ratio(3, 4) { 4 } else { 8 };
        let mut left: i64 = 0;
        let lines: Vec<(String, i64)> = (0..many)
            .map(|line| {
                let mut amount: i64 = match random.random_ratio(1, 12) {
                    true => 40,
                    false => random.random_range(1..9),
                };
                if random.random_bool(0.5) {
                    amount = -amount;
                }
                if line == many - 1 && random.random_ratio(9, 10) {
                    amount = -left;
                }
                left += amount;
                (ACCOUNTS[random.random_range(0..among)].to_owned(), amount)
            })
            .collect();
        let currency = match random.random_range(0..12) {
            0 => r#", "currency": "EUR""#,
            1 => r#", "currency": "USD""#,
            2 => r#", "currency": null"#,
            3 if random.random_bool(0.3) => r#", "note": 1"#,
            _ => "",
        };
        let memo = if random.random_ratio(1, 4) {
            "'{\"for\": \"tea\"}'"
        } else {
            "null"
        };
        // Now and then one that was sent before, mostly with other content.
        let operation = match random.random_ratio(1, 10) {
            true => random.random_range(0..=n),
            false => n,
        };
        let call = |tenant: &str, zeros: &str| {
            let entries: Vec<String> = lines
                .iter()
                .map(|(account, amount)| {
                    let side = if *amount > 0 { "debit" } else { "credit" };
                    let amount = amount.abs();
                    format!(r#"{{"account": "{account}", "{side}": "{zeros}{amount}"{currency}}}"#)
                })
                .collect();
            let entries = entries.join(", ");
            format!("select pg_temp.attempt('{tenant}', '{operation}', '[{entries}]', {memo})")
        };
        // An amount with zeros before it is right, but not plain.
        let short = call(&tenants[0], "");
        let ended = see.text(&short).await;
        assert_eq!(see.text(&call(&tenants[1], "00")).await, ended, "{short}");
        *ends
            .entry(ended[..ended.len().min(8)].to_owned())
            .or_default() += 1;
        // The same again is the same group.
        if ended.starts_with("recorded") {
            assert_eq!(see.text(&short).await, "recorded, new: false", "{short}");
        }
    }
    let state = |tenant: &str| {
        format!(
            "select string_agg(format('%s %s %s %s', account, balance, available, entries), ', ' order by account) \
             from pgonce.ledger_accounts where tenant = '{tenant}'"
        )
    };
    assert_eq!(
        see.text(&state(&tenants[0])).await,
        see.text(&state(&tenants[1])).await
    );
}

/// How often a call comes to the long way.
async fn long_ways(world: &World<TokioPostgres>, call: &str) -> i64 {
    let see = &world.see;
    // What was counted before may not be reported yet.
    let count = "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where schemaname = 'pgonce' \
        and funcname in ('_ledger_lines', '_ledger_record', '_ledger_move')";
    see.run("begin; set local track_functions = 'pl'").await;
    let before = see.number(count).await;
    see.run(call).await;
    let after = see.number(count).await;
    see.run("commit").await;
    after - before
}

#[tokio::test]
async fn a_plain_transfer_takes_the_short_way() {
    let world = World::<TokioPostgres>::new().await;
    open(&world, "").await;
    let post = |operation: &str, amount: &str| {
        format!(
            r#"select pgonce.ledger_post('bank', '{operation}', '[{{"account": "cash", "debit": {amount}}}, {{"account": "ada", "credit": {amount}}}]')"#
        )
    };
    assert_eq!(long_ways(&world, &post("1", "5")).await, 0);
    assert_eq!(long_ways(&world, &post("2", "\"5\"")).await, 0);
    assert!(long_ways(&world, &post("3", "\"05\"")).await > 0);
    assert_eq!(long_ways(&world, &post("1", "5")).await, 0, "it is known");
    assert_eq!(problems(&world).await, Vec::<Vec<_>>::new());
}
