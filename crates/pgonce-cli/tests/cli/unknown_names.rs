//! A name that nothing has is an error with exit code 7, whatever command it is given to.

use crate::fixture::Fixture;
use crate::search_path::commands;

/// Every command that takes the name of something, with one that nothing has. Acts are confirmed, so that the name alone stops them.
const UNKNOWN: &[&[&str]] = &[
    &["codes", "ZZ999"],
    &[
        "consume",
        "--consumer",
        "c",
        "--source",
        "outbox:none",
        "--sql",
        "apply",
    ],
    &["doctor", "--only", "none"],
    &["doctor", "--skip", "none"],
    &["explain", "ZZ999"],
    &["external", "list", "--provider", "none"],
    &[
        "external", "settle", NO_ID, "failed", "--reason", "r", "--yes",
    ],
    &["external", "show", NO_ID],
    &["external", "show", "none"],
    &["find", "none"],
    &["import", "cancel", "none"],
    &["import", "resume", "none"],
    &["import", "show", "none"],
    &["import", "show", "j", "--number", "7"],
    &["inbox", "list", "none"],
    &[
        "inbox", "replay", "none", "--again", "--reason", "r", "--yes",
    ],
    &["inbox", "retry", "none", "--all", "--reason", "r"],
    &["inbox", "retry", "c", "7", "--reason", "r"],
    &["inbox", "show", "none", "1"],
    &["inbox", "skip", "none", "1", "--reason", "r", "--yes"],
    &["intent", "evict", "none", "k", "--reason", "r", "--yes"],
    &[
        "intent", "evict", "none", "--stuck", "--reason", "r", "--yes",
    ],
    &[
        "intent", "fail", "s", "none", "--code", "c", "--reason", "r", "--yes",
    ],
    &[
        "intent", "fail", "none", "--failed", "c", "--code", "c", "--reason", "r", "--yes",
    ],
    &["intent", "list", "none"],
    &["intent", "release", "s", "none", "--reason", "r", "--yes"],
    &[
        "intent", "release", "none", "--stuck", "--reason", "r", "--yes",
    ],
    &["intent", "retried", "--scope", "none"],
    &["intent", "retry", "s", "none", "--reason", "r", "--yes"],
    &[
        "intent", "retry", "none", "--failed", "c", "--reason", "r", "--yes",
    ],
    &["intent", "settle", "s", "none", "--reason", "r", "--yes"],
    &[
        "intent", "settle", "none", "--stuck", "--reason", "r", "--yes",
    ],
    &["intent", "show", "s", "none"],
    &["intent", "show", "none", "k"],
    &["intent", "stuck", "--scope", "none"],
    &["job", "cancel", "7", "--reason", "r"],
    &["job", "list", "none"],
    &["job", "list", "--group", "none"],
    &["job", "retry", "none", "--all", "--reason", "r"],
    &["job", "retry", "q", "7", "--reason", "r"],
    &["job", "show", "7"],
    &["ledger", "balance", "none"],
    &[
        "ledger", "post", "shop", "1", "--debit", "a=5", "--credit", "none=5",
    ],
    &["ledger", "reverse", "shop", "2", "shop", "none"],
    &["ledger", "settle", "shop", "none", "posted", "--fence", "1"],
    &["ledger", "statement", "none"],
    &["migrate", "up", "--grant", "app=no_role_has_this_name"],
    &["outbox", "evict", "none", "--reason", "r", "--yes"],
    &["outbox", "list", "none"],
    &["outbox", "recover", "none", "--since", "1d"],
    &["outbox", "redrive", "none"],
    &["outbox", "replay", "none", "--from", "1"],
    &["outbox", "replay", "none", "--from", "1", "--to", "2"],
    &["outbox", "show", "none", "1"],
    &["outbox", "show", "billing", "7"],
    &["outbox", "skip", "none", "1", "--reason", "r", "--yes"],
    &["outbox", "skip", "billing", "7", "--reason", "r", "--yes"],
    &["outbox", "status", "none"],
    &[
        "outbox",
        "subscriptions",
        "alter",
        "none",
        "--max-attempts",
        "7",
    ],
    &["outbox", "subscriptions", "drop", "none", "--yes"],
    &["projection", "rebuild", "none"],
    &["projection", "verify", "none"],
    &["queue", "pause", "none"],
    &["queue", "resume", "none"],
    &["region", "leave", "none", "--yes"],
    &["region", "resolve", "s", "none", "--resolution", "r"],
    &["region", "rule", "s", "--mode", "home", "--home", "none"],
    &["relay", "--subscription", "none", "--sink", "stdout:"],
    &["scope", "drop", "none", "--yes"],
    &["scope", "show", "none"],
    &["show", "s", "none"],
    &["stuck", "--scope", "none"],
    &["most-retried", "--scope", "none"],
    &["transition", "move", "none", "e", "open", "--command", "1"],
    &["transition", "show", "m", "none"],
    &["transition", "show", "none", "e"],
];

const NO_ID: &str = "00000000-0000-0000-0000-000000000000";

/// Commands that take no name of what must be there already: they list, make, or run what a file says.
const NAMELESS: &[&str] = &[
    // Acts are kept longer than what they were done to.
    "audit",
    "bench",
    "completions",
    "config",
    "demo",
    "external providers",
    "forecast",
    "gateway",
    "import list",
    "job enqueue",
    "lab",
    "ledger accounts",
    "ledger groups",
    "ledger open",
    "ledger repair",
    "ledger verify",
    "lost",
    "man",
    "migrate plan",
    "migrate status",
    "outbox retention",
    "outbox subscriptions create",
    "outbox subscriptions list",
    "outbox tail",
    "probe",
    "projection status",
    "purge",
    "queue limit",
    "queue list",
    "queue schedules",
    "recover",
    "region join",
    "region list",
    "region status",
    "region tasks",
    "scope define",
    "scope list",
    "serve",
    "storm",
    "strict",
    "suppression",
    // Its scope is a pattern, of what may still come.
    "tail",
    "transition fire",
    "transition rules",
    "webhooks",
    "work",
];

const FILL: &str = "
    select pgonce.define_scope('s', '7 days'), pgonce.create_subscription('billing'), pgonce.define_inbox('c');
    select pgonce.enqueue('q', '1'), pgonce.ledger_open('a', 'EUR', 'debit'), pgonce.define_transition('m', '', 'open');
    select pgonce.region_join(1::smallint, 'eu'), pgonce._activate_region(1::smallint);
    insert into pgonce.import (tenant, job, number, source, settings, state, runner, backend, leased_until, started_at)
    values ('', 'j', 1, 'f', '{}', 'done', gen_random_uuid(), 1, now(), now());
    create function apply(p_message jsonb) returns void language sql as '';
    select pgonce.set_strict(true)";

#[tokio::test]
async fn a_name_that_nothing_has_is_exit_7_in_every_command_and_changes_nothing() {
    let fixture = Fixture::installed().await;
    fixture.sql(FILL).await;
    let state = "select count(*) from pgonce.operator_act union all select count(*) from pgonce.job_queue \
                 union all select count(*) from pgonce.transition_command";
    let before = numbers(&fixture, state).await;
    let mut wrong = Vec::new();
    for args in UNKNOWN {
        let run = fixture.run(args);
        if run.code != 7 || !run.err.contains("error: ") {
            wrong.push(format!("{args:?}: {run:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(numbers(&fixture, state).await, before);
}

async fn numbers(fixture: &Fixture, sql: &str) -> Vec<i64> {
    let rows = fixture.client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn every_command_that_takes_a_name_is_tried_with_one_that_nothing_has() {
    for command in commands() {
        let tried = UNKNOWN
            .iter()
            .any(|args| format!("{} ", args.join(" ")).starts_with(&format!("{command} ")));
        let nameless = NAMELESS
            .iter()
            .any(|name| command == *name || command.starts_with(&format!("{name} ")));
        assert!(tried || nameless, "`pgonce {command}` is in neither list");
    }
}
