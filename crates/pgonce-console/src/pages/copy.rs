//! The same as a page, for a terminal: as a command, as SQL, and as a request of the API.

use super::field;
use crate::html::query;
use crate::server::{App, Fields};
use crate::view::{shell_word, sql_literal};

pub(super) fn commands(app: &App, name: &str, fields: &Fields) -> Vec<(&'static str, String)> {
    let word = |name: &str| shell_word(field(fields, name));
    let literal = |name: &str| sql_literal(field(fields, name));
    let given = |name: &str| !field(fields, name).is_empty();
    // An option where there is a value.
    let option = |option: &str, name: &str| match given(name) {
        true => format!("{option} {}", word(name)),
        false => String::new(),
    };
    let tenant = option(" --tenant", "tenant");
    let (cli, sql) = match name {
        "intents" => (
            "intent stuck".to_owned(),
            "select * from pgonce.stuck limit 50;".to_owned(),
        ),
        "intent" => (
            format!("intent show {} {}{tenant}", word("scope"), word("key")),
            format!(
                "select * from pgonce.intent where tenant = {} and scope = {} and key = {};",
                literal("tenant"),
                literal("scope"),
                literal("key")
            ),
        ),
        "outbox" if given("subscription") => (
            format!("outbox list {}", word("subscription")),
            format!(
                "select * from pgonce.dead_letters where subscription = {};",
                literal("subscription")
            ),
        ),
        "outbox" => (
            "outbox status".to_owned(),
            "select * from pgonce.outbox_backlog;".to_owned(),
        ),
        "inbox" => (
            format!("inbox list{}", option("", "consumer")),
            "select * from pgonce.inbox_backlog;".to_owned(),
        ),
        "queue" if given("queue") => (
            format!("job list {} --status dead", word("queue")),
            format!(
                "select * from pgonce.jobs where queue = {} and status = 'dead';",
                literal("queue")
            ),
        ),
        "queue" => (
            "queue list".to_owned(),
            "select * from pgonce.queues;".to_owned(),
        ),
        "job" => (
            format!("job show {}{tenant}", word("id")),
            format!(
                "select * from pgonce.jobs where tenant = {} and id = {};",
                literal("tenant"),
                literal("id")
            ),
        ),
        "external" => {
            let status = match field(fields, "status") {
                "" => "needs_operator",
                status => status,
            };
            (
                match status {
                    "all" => format!("external list{}", option(" --provider", "provider")),
                    _ => format!(
                        "external list --status {}{}",
                        shell_word(status),
                        option(" --provider", "provider")
                    ),
                },
                "select * from pgonce.external_calls where status = 'needs_operator';".to_owned(),
            )
        }
        "call" => (
            format!("external show {}{tenant}", word("effect_key")),
            format!(
                "select * from pgonce.external_calls where tenant = {} and effect_key = {};",
                literal("tenant"),
                literal("effect_key")
            ),
        ),
        "imports" => (
            "import list".to_owned(),
            "select * from pgonce.imports order by started_at desc limit 50;".to_owned(),
        ),
        "import" => (
            format!("import show {}{tenant}", word("job")),
            format!(
                "select * from pgonce.import_row where tenant = {} and job = {} order by number, row limit 50;",
                literal("tenant"),
                literal("job")
            ),
        ),
        "ledger" => (
            "ledger accounts".to_owned(),
            "select * from pgonce.ledger_accounts;".to_owned(),
        ),
        "scopes" => (
            "scope list".to_owned(),
            "select * from pgonce.scope;".to_owned(),
        ),
        "find" if given("q") => (
            format!("find {}", word("q")),
            format!("select * from pgonce.find({}, 'intents');", literal("q")),
        ),
        "overview" => (
            "doctor".to_owned(),
            "select * from pgonce.suppression;".to_owned(),
        ),
        "audit" => (
            "audit".to_owned(),
            "select * from pgonce.operator_act order by acted_at desc limit 50;".to_owned(),
        ),
        _ => return Vec::new(),
    };
    let mut pairs: Vec<(&str, &str)> = fields
        .iter()
        .filter(|(name, _)| *name != "done")
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    pairs.sort_unstable();
    let address = format!("$CONSOLE{}/api/v1/{name}{}", app.base, query(&pairs));
    let mut all = vec![("CLI", format!("pgonce {cli}")), ("SQL", sql)];
    // Not every page is a command.
    all.retain(|(_, command)| command != "pgonce ");
    all.push((
        "curl",
        format!("curl -H \"Authorization: Bearer $TOKEN\" \"{address}\""),
    ));
    all
}
