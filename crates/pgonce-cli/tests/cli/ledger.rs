//! The ledger, as an operator meets it.

use serde_json::{Value, json};

use crate::fixture::Fixture;

#[tokio::test]
async fn a_ledger_is_kept_looked_at_verified_and_repaired() {
    let fixture = Fixture::installed().await;
    assert_eq!(
        fixture.ok(&["ledger", "accounts"]),
        "No account is open here.\n"
    );
    let open =
        |args: &[&str]| fixture.json(&[&["ledger", "open"], args].concat())[0]["made_now"].clone();
    assert_eq!(open(&["cash", "EUR", "debit"]), json!(true));
    assert_eq!(open(&["cash", "EUR", "debit"]), json!(false));
    assert_eq!(open(&["ada", "EUR", "credit", "--floor", "0"]), json!(true));
    let post = [
        "ledger", "post", "bank", "1", "--debit", "cash=500", "--credit", "ada=500", "--memo",
        "first",
    ];
    assert_eq!(fixture.json(&post)[0]["made_now"], true);
    assert_eq!(fixture.json(&post)[0]["made_now"], false);
    let hold = [
        "ledger",
        "post",
        "app",
        "2",
        "--debit",
        "ada=100",
        "--credit",
        "cash=100",
        "--pending",
        "3",
    ];
    assert_eq!(fixture.json(&hold)[0]["state"], "pending");
    assert_eq!(
        fixture.json(&["ledger", "groups", "--state", "pending"])[0]["fence"],
        3
    );
    assert_eq!(
        fixture.json(&["ledger", "balance", "ada"])[0]["available"],
        400
    );
    assert_eq!(
        fixture.json(&["ledger", "settle", "app", "2", "voided", "--fence", "3"])[0]["made_now"],
        true
    );
    assert_eq!(
        fixture.json(&[
            "ledger", "reverse", "bank", "undo", "bank", "1", "--memo", "wrong"
        ])[0]["made_now"],
        true
    );
    let statement = fixture.json(&["ledger", "statement", "ada"]);
    assert_eq!(statement.as_array().unwrap().len(), 4);
    assert_eq!(
        fixture.json(&["ledger", "balance", "ada", "--at", "2020-01-01"])[0]["balance"],
        0
    );
    for args in [&["balance", "nobody"][..], &["statement", "nobody"]] {
        assert_eq!(
            fixture.run(&[&["ledger"], args].concat()).code,
            7,
            "{args:?}"
        );
    }
    assert_eq!(
        fixture
            .run(&[
                "ledger", "post", "x", "y", "--debit", "cash", "--credit", "ada=1"
            ])
            .code,
        2
    );
    assert_eq!(
        fixture
            .run(&[
                "ledger", "post", "x", "y", "--debit", "cash=2", "--credit", "ada=1"
            ])
            .code,
        2
    );

    assert_eq!(
        fixture.ok(&["ledger", "verify"]),
        "The ledger is what was recorded.\n"
    );
    fixture
        .sql("update pgonce.ledger_account set balance = 1 where account = 'cash'")
        .await;
    assert_eq!(fixture.run(&["ledger", "verify", "--all-tenants"]).code, 1);
    let repair = ["ledger", "repair", "--reason", "a test"];
    assert_eq!(fixture.run(&repair).code, 11);
    assert_eq!(
        fixture.json(&[&repair[..], &["--yes"]].concat())[0]["repaired"],
        true
    );
    assert_eq!(fixture.ok(&repair), "Every balance is right.\n");
    assert_eq!(fixture.run(&["ledger", "verify"]).code, 0);
    let pair = fixture.run(&["ledger", "verify", "--all-tenants", "--tenant", "t"]);
    assert_eq!(pair.code, 2, "{pair:?}");
    // The nightly check is of every tenant.
    fixture
        .sql("select pgonce.ledger_open('cash', 'EUR', 'debit', p_tenant => 't'); update pgonce.ledger_account set balance = 1 where tenant = 't'")
        .await;
    assert_eq!(fixture.run(&["ledger", "verify"]).code, 1);
    assert_eq!(fixture.run(&["ledger", "verify", "--tenant", ""]).code, 0);
    fixture.ok(&[&repair[..], &["--tenant", "t", "--yes"]].concat());
    assert_eq!(fixture.run(&["ledger", "verify"]).code, 0);
    let no_time = fixture.run(&["ledger", "balance", "ada", "--at", "yesterdy"]);
    assert!(
        no_time.code == 2 && no_time.err.contains("2026-05-01"),
        "{no_time:?}"
    );

    // Ada's balance follows from entries that were changed by hand.
    fixture
        .sql(
            "begin; set local session_replication_role = replica;
             update pgonce.ledger_entry set amount = 9 where account = 'ada' and seq = 1;
             update pgonce.ledger_account set balance = 1; commit",
        )
        .await;
    let preview = fixture.run(&[&repair[..], &["--dry-run", "-o", "json"]].concat());
    assert!(
        preview.code == 1 && preview.out.contains("\"count\":1,"),
        "{preview:?}"
    );
    let repaired = fixture.run(&[&repair[..], &["--yes", "-o", "json"]].concat());
    assert!(
        repaired.code == 1 && repaired.err.contains("1 balances are left as they are"),
        "{repaired:?}"
    );
    let rows: Value = serde_json::from_str(&repaired.out).unwrap();
    let of = |n: usize| (rows[n]["account"].as_str(), rows[n]["repaired"].as_bool());
    assert_eq!(
        [of(0), of(1)],
        [(Some("ada"), Some(false)), (Some("cash"), Some(true))]
    );
    assert_eq!(
        fixture.run(&repair).code,
        1,
        "there is nothing to ask about"
    );
}
