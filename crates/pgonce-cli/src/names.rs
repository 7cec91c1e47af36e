//! `-o name`: what each list calls its rows, as other commands take it.

use clap::ArgMatches;

/// The column of each command; where a list has several forms, the first of these that its rows have.
const COLUMNS: &[(&str, &[&str])] = &[
    ("audit", &["key"]),
    ("codes", &["code"]),
    ("config show", &["setting"]),
    ("doctor", &["id"]),
    ("external list", &["effect_key"]),
    ("external providers", &["provider"]),
    ("external show", &["effect_key"]),
    ("find", &["id"]),
    ("forecast", &["what"]),
    ("import list", &["job"]),
    ("import show", &["row", "job"]),
    ("inbox list", &["seq", "consumer"]),
    ("inbox show", &["seq"]),
    ("intent list", &["key"]),
    ("intent retried", &["key"]),
    ("intent show", &["key"]),
    ("intent stuck", &["key"]),
    ("job enqueue", &["id"]),
    ("job list", &["id"]),
    ("job show", &["id"]),
    ("ledger accounts", &["account"]),
    ("ledger balance", &["account"]),
    ("ledger groups", &["operation"]),
    ("ledger open", &["account"]),
    ("ledger repair", &["account"]),
    ("ledger statement", &["operation"]),
    ("ledger verify", &["account"]),
    ("lost", &["key"]),
    ("most-retried", &["key"]),
    ("outbox list", &["seq"]),
    ("outbox show", &["seq"]),
    ("outbox status", &["subscription"]),
    ("outbox subscriptions", &["subscription"]),
    ("outbox subscriptions alter", &["subscription"]),
    ("outbox subscriptions create", &["subscription"]),
    ("outbox subscriptions list", &["subscription"]),
    ("projection status", &["projection"]),
    ("queue list", &["queue"]),
    ("queue schedules", &["name"]),
    ("recover", &["scope"]),
    ("region list", &["name"]),
    ("region status", &["name"]),
    ("region tasks", &["key"]),
    ("scope define", &["scope"]),
    ("scope list", &["scope"]),
    ("scope show", &["scope"]),
    ("show", &["key"]),
    ("stuck", &["key"]),
    ("suppression", &["scope"]),
    ("tail", &["id"]),
    ("transition rules", &["machine"]),
    ("transition show", &["command"]),
];

/// The words of the command, such as `outbox subscriptions list`.
pub(crate) fn command(matches: &ArgMatches) -> String {
    let (mut words, mut at) = (Vec::new(), matches);
    while let Some((next, below)) = at.subcommand() {
        words.push(next);
        at = below;
    }
    words.join(" ")
}

/// The columns by which a command names its rows; none: by the first one.
pub(crate) fn columns(command: &str) -> &'static [&'static str] {
    let found = COLUMNS.iter().find(|(name, _)| *name == command);
    found.map_or(&[], |(_, columns)| *columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(command: &clap::Command, path: &str, seen: &mut Vec<String>) {
        for sub in command.get_subcommands() {
            let path = format!("{path} {}", sub.get_name()).trim().to_owned();
            walk(sub, &path, seen);
            seen.push(path);
        }
    }

    #[test]
    fn every_command_that_only_reads_says_what_its_rows_are_called() {
        let mut seen = Vec::new();
        walk(&crate::command(), "", &mut seen);
        for (command, _) in COLUMNS {
            assert!(seen.iter().any(|path| path == command), "{command}");
        }
        // They print a document or a sentence.
        let others = ["migrate status", "storm list"];
        for path in seen {
            let named = !columns(&path).is_empty();
            let reads = crate::watch::only_reads(&path);
            assert!(named || !reads || others.contains(&&*path), "{path}");
        }
    }
}
