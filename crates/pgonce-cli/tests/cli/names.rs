//! `-o name` prints what other commands take, and nothing else.

use crate::console::fill;
use crate::fixture::Fixture;

/// A list, the names that it prints where they are known, and a command that takes each of them.
const LISTS: &[(&str, Option<&str>, &str)] = &[
    ("job list mail", Some("103 102 101"), "job show NAME"),
    ("job list q", Some("4 3 2 1"), "job show NAME"),
    ("inbox list", Some("c"), "inbox list NAME"),
    ("inbox list c", Some("1"), "inbox show c NAME"),
    ("intent list s", None, "intent show s NAME"),
    ("intent stuck --scope s", None, "intent show s NAME"),
    ("intent retried --scope s", None, "intent show s NAME"),
    (
        "external list",
        Some(crate::console::CALL),
        "external show NAME",
    ),
    ("external providers", None, "external list --provider NAME"),
    ("outbox list s", Some("1"), "outbox show s NAME"),
    ("outbox status", Some("s"), "outbox list NAME"),
    ("outbox subscriptions", Some("s"), "outbox status NAME"),
    ("outbox subscriptions list", Some("s"), "outbox status NAME"),
    ("queue list", None, "job list NAME"),
    ("queue schedules", None, ""),
    ("scope list", None, "scope show NAME"),
    ("suppression", None, ""),
    ("ledger accounts", Some("ada cash"), "ledger balance NAME"),
    (
        "ledger groups",
        Some("1"),
        "ledger settle bank NAME posted --fence 1",
    ),
    ("ledger statement cash", Some("1"), ""),
    ("ledger balance cash", None, ""),
    ("import list", Some("j"), "import show NAME"),
    ("projection status", Some(""), ""),
    (
        "transition rules",
        Some("order"),
        "transition move NAME e open --command c1",
    ),
    ("transition show order e", Some("c1"), ""),
    ("audit --part s", Some("second"), "audit --key NAME"),
    ("find stuck --quick", None, "find NAME --quick"),
    ("forecast", None, ""),
    ("codes 40001", Some("40001"), "explain NAME"),
    ("doctor --list", None, ""),
    ("region tasks", Some(""), ""),
];

#[tokio::test]
async fn every_list_prints_the_names_that_other_commands_take() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    // Their keys, which are no names, are null, and numbers of others.
    fixture
        .sql(
            "insert into pgonce.job (id, created_at, priority, tenant, queue, key, payload)
             select n, now(), 0, '', 'mail', k, '{}' from (values (103, null), (102, '77'), (101, '2')) v (n, k);
             insert into pgonce.job_live (id, due_at, state, priority, tenant, queue, key) select id, created_at, 'ready', 0, '', queue, key
               from pgonce.job where queue = 'mail';
             insert into pgonce.suppressed values ('', 's', 1, 1, 1, 1);
             select pgonce.ledger_open('cash', 'EUR', 'debit'); select pgonce.ledger_open('ada', 'EUR', 'credit');
             select pgonce.ledger_post('bank', '1', '[{\"account\": \"cash\", \"debit\": 1}, {\"account\": \"ada\", \"credit\": 1}]');
             select pgonce.define_transition('order', '', 'open');
             select pgonce.transition('order', 'e', 'open', 'c1')",
        )
        .await;
    for (list, names, taker) in LISTS {
        let words: Vec<&str> = list.split(' ').chain(["-o", "name"]).collect();
        let out = fixture.ok(&words);
        let printed: Vec<&str> = out.lines().collect();
        if let Some(names) = names {
            assert_eq!(printed.join(" "), *names, "{list}");
        }
        assert!(!printed.contains(&""), "{list}: {out}");
        // What else the fixture has may be of another tenant.
        let known = printed
            .iter()
            .filter(|name| !name.contains('<') && !name.contains('*'));
        for name in known.filter(|_| !taker.is_empty()) {
            let words: Vec<&str> = taker
                .split(' ')
                .map(|word| if word == "NAME" { name } else { word })
                .collect();
            let run = fixture.run(&words);
            assert_ne!(run.code, 7, "{list}: {name} is not known: {run:?}");
            assert_ne!(run.code, 2, "{list}: {name} is not taken: {run:?}");
        }
    }
    assert_eq!(
        fixture.ok(&["find", "stuck", "--quick", "-o", "name"]),
        "stuck\nstuck\n",
        "the intent, and its call to a provider"
    );
    let csv = fixture.ok(&["find", "stuck", "--quick", "-o", "csv"]);
    assert!(csv.starts_with("what,found_as,"), "{csv}");
}
