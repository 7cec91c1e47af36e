//! No command runs a stranger's code, whatever schemas the caller's search_path names first; and what users name is still
//! found on that path.

use crate::consume::wait_for;
use crate::fixture::Fixture;
use crate::relay::Running;

/// In the first pg_catalog is found late; in the second, as usual, first, and a twin wins only where it fits better.
const PATHS: &[&str] = &["evil, pg_catalog, public", "evil, public"];

/// Something of everything, so that every command has rows to look at.
const FILL: &str = "
    select pgonce.define_scope('s', '7 days', p_stale => 'hold');
    select pgonce._move_clock('-2 hours');
    select pgonce.claim('s', 'stuck ' || n, '\\x01', '1 second') from generate_series(1, 39) n;
    select pgonce._reset_clock();
    insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer, failure_code)
    values (1, now(), now() + interval '1 day', 3, 'succeeded', '', 's', 'done', '\\x02', '7', null),
           (1, now(), now() + interval '1 day', 3, 'failed_final', '', 's', 'failed', '\\x02', null, 'no');
    select pgonce.create_subscription('billing');
    select pgonce.publish('t', 'x', 's' || n, '{}') from generate_series(1, 9) n;
    insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers, payload, reason)
    select '', 'billing', 'p' || n, n, 1, 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', 'x', '{}', '{}', 'no' from generate_series(1, 4) n;
    select pgonce.store_message('c', 'shop', 'm' || n, '\\x7b7d', p_key => 'k' || n, p_outcome => 'poison', p_code => 'no', p_reason => 'no')
      from generate_series(1, 4) n;
    select pgonce.enqueue('q', '1', p_key => 'k', p_group => 'g') from generate_series(1, 4);
    select pgonce.define_transition('m', '', 'open'), pgonce.define_transition('m', 'open', 'late');
    select pgonce.define_provider('bank');
    create table item (id bigint primary key, name text not null, born date, price numeric(10, 2), tags text[], more jsonb);
    create function take(p_row jsonb) returns void language sql set search_path = pg_catalog, pg_temp
        as $$ insert into public.item (id, name) values ((p_row->>'id')::bigint + 1000, p_row->>'name') $$;
    create table balance (account text primary key, amount bigint not null, version bigint not null);
    create function apply_balance(p_into regclass, p_event jsonb) returns void language plpgsql as $$ begin end $$;";

/// Commands with their exit codes, in the order in which they find what they need. `{n}` is another for each path.
const COMMANDS: &[(&[&str], i32)] = &[
    (&["migrate", "status"], 0),
    (&["migrate", "plan"], 0),
    (&["migrate", "up"], 0),
    (&["tail", "--since", "1d", "--count", "5"], 0),
    (&["suppression"], 0),
    (&["strict", "off"], 0),
    (&["scope", "define", "x{n}", "--retention", "7d"], 0),
    (&["scope", "list"], 0),
    (&["scope", "show", "x{n}"], 0),
    (&["scope", "drop", "x{n}", "--yes"], 0),
    (&["intent", "list", "s"], 0),
    (&["intent", "show", "s", "done"], 0),
    (&["intent", "stuck"], 0),
    (&["intent", "retried"], 0),
    (
        &[
            "intent",
            "retry",
            "s",
            "failed",
            "--reason",
            "r",
            "--dry-run",
        ],
        0,
    ),
    (
        &[
            "intent",
            "release",
            "s",
            "stuck 1{n}",
            "--reason",
            "r",
            "--force",
            "s",
            "--yes",
        ],
        0,
    ),
    (
        &[
            "intent",
            "settle",
            "s",
            "stuck 2{n}",
            "--reason",
            "r",
            "--answer",
            "1",
            "--yes",
        ],
        0,
    ),
    (
        &[
            "intent",
            "fail",
            "s",
            "stuck 3{n}",
            "--reason",
            "r",
            "--code",
            "no",
            "--yes",
        ],
        0,
    ),
    (
        &[
            "intent",
            "evict",
            "s",
            "--stuck",
            "--older-than",
            "1m",
            "--reason",
            "r",
            "--force",
            "s",
            "--dry-run",
        ],
        0,
    ),
    (&["find", "done"], 0),
    (&["audit"], 0),
    (&["forecast"], 0),
    (&["lost", "{file}.jsonl"], 0),
    (&["recover", "--dry-run"], 0),
    (&["recover"], 0),
    (&["purge"], 0),
    (&["purge", "--dry-run"], 0),
    (&["outbox", "status"], 0),
    (&["outbox", "list", "billing"], 0),
    (&["outbox", "show", "billing", "1"], 0),
    (
        &["outbox", "skip", "billing", "{n}", "--reason", "r", "--yes"],
        0,
    ),
    (
        &["outbox", "recover", "billing", "--since", "1d", "--skipped"],
        0,
    ),
    (&["outbox", "redrive", "billing"], 0),
    (
        &["outbox", "replay", "billing", "--from", "2", "--to", "4"],
        0,
    ),
    (&["outbox", "retention", "--keep", "1d"], 0),
    (&["outbox", "tail"], 0),
    (
        &[
            "outbox",
            "subscriptions",
            "create",
            "sub{n}",
            "--topics",
            "t*",
        ],
        0,
    ),
    (
        &[
            "outbox",
            "subscriptions",
            "alter",
            "sub{n}",
            "--max-attempts",
            "7",
        ],
        0,
    ),
    (&["outbox", "subscriptions", "list"], 0),
    (&["outbox", "evict", "sub{n}", "--reason", "r", "--yes"], 0),
    (&["outbox", "subscriptions", "drop", "sub{n}", "--yes"], 0),
    (&["inbox", "list"], 0),
    (&["inbox", "list", "c"], 0),
    (&["inbox", "show", "c", "{n}"], 0),
    (&["inbox", "skip", "c", "{n}", "--reason", "r", "--yes"], 0),
    (&["inbox", "retry", "c", "--all", "--reason", "r"], 0),
    (&["inbox", "replay", "c", "--into", "d", "--reason", "r"], 0),
    (&["job", "enqueue", "q", "1"], 0),
    (&["job", "list"], 0),
    (&["job", "list", "q", "--status", "ready"], 0),
    (&["job", "show", "1"], 0),
    (&["job", "cancel", "{n}", "--reason", "r"], 0),
    (&["job", "retry", "q", "--all", "--reason", "r"], 0),
    (&["queue", "list"], 0),
    (&["queue", "pause", "q"], 0),
    (&["queue", "resume", "q"], 0),
    (&["queue", "limit", "q", "--max-running", "5"], 0),
    (&["queue", "schedules"], 0),
    (&["external", "list"], 0),
    (&["external", "providers"], 0),
    (
        &["external", "show", "00000000-0000-0000-0000-000000000000"],
        7,
    ),
    (&["ledger", "open", "a{n}", "EUR", "debit"], 0),
    (&["ledger", "open", "b{n}", "EUR", "credit"], 0),
    (
        &[
            "ledger", "post", "shop", "{n}", "--debit", "a{n}=5", "--credit", "b{n}=5",
        ],
        0,
    ),
    (
        &[
            "ledger",
            "post",
            "shop",
            "held {n}",
            "--debit",
            "a{n}=5",
            "--credit",
            "b{n}=5",
            "--pending",
            "1",
        ],
        0,
    ),
    (
        &[
            "ledger", "settle", "shop", "held {n}", "posted", "--fence", "1",
        ],
        0,
    ),
    (&["ledger", "reverse", "shop", "undo {n}", "shop", "{n}"], 0),
    (&["ledger", "accounts"], 0),
    (&["ledger", "balance", "a{n}"], 0),
    (&["ledger", "groups"], 0),
    (&["ledger", "statement", "a{n}"], 0),
    (&["ledger", "verify"], 0),
    (&["ledger", "repair", "--reason", "r"], 0),
    (&["transition", "rules"], 0),
    (
        &[
            "transition",
            "move",
            "m",
            "e{n}",
            "open",
            "--command",
            "c{n}",
        ],
        0,
    ),
    (&["transition", "show", "m", "e{n}"], 0),
    (&["transition", "fire"], 0),
    (&["projection", "status"], 0),
    (&["region", "list"], 0),
    (&["region", "status"], 0),
    (&["region", "tasks"], 0),
    // The table and the function are found on the caller's path. The second time the rows are there.
    (
        &[
            "import",
            "{file}.csv",
            "--job",
            "copied {n}",
            "--into",
            "item",
            "--quiet",
        ],
        0,
    ),
    (
        &[
            "import",
            "{file}.csv",
            "--job",
            "again {n}",
            "--into",
            "item",
            "--quiet",
        ],
        0,
    ),
    (
        &[
            "import",
            "{file}.csv",
            "--job",
            "called {n}",
            "--call",
            "take",
            "--quiet",
        ],
        0,
    ),
    (&["import", "list"], 0),
    (&["import", "show", "copied {n}"], 0),
    (&["import", "cancel", "copied {n}"], 7),
];

/// Commands that need more than a database with rows, or none. Those that run on drive the SDK, which has its own test.
const ELSEWHERE: &[&str] = &[
    "bench",
    "codes",
    "completions",
    "config",
    "consume",
    "demo",
    "explain",
    "external settle",
    "gateway",
    "import resume",
    "lab",
    "man",
    "probe",
    "projection rebuild",
    "projection verify",
    "region join",
    "region leave",
    "region resolve",
    "region rule",
    "relay",
    "serve",
    "storm",
    "webhooks",
    "work",
    // It reports the path itself, and says so with its exit code: below.
    "doctor",
];

#[tokio::test]
async fn no_command_runs_a_strangers_code() {
    let fixture = Fixture::installed().await;
    fixture.sql(FILL).await;
    fixture
        .sql(include_str!("../../../../tests/hostile/twins.sql"))
        .await;
    let folder = tempfile::tempdir().unwrap();
    for (n, path) in (1..).zip(PATHS) {
        let name = fixture.database.name();
        let take_over = format!("alter database {name} set search_path = {path}");
        fixture.sql(&take_over).await;
        let file = folder.path().join(format!("rows{n}"));
        let file = file.to_str().unwrap();
        let rows = format!(
            "id,name,born,price,tags,more\n{n},a,2000-01-31,1.50,\"{{x,y}}\",\"{{\"\"a\"\": 1}}\"\n1{n},b,,2,,\n"
        );
        std::fs::write(format!("{file}.csv"), rows).unwrap();
        let done = "{\"scope\": \"s\", \"key\": \"done\", \"answer\": 7}\n";
        std::fs::write(format!("{file}.jsonl"), done).unwrap();
        for (args, code) in COMMANDS {
            let args: Vec<String> = args
                .iter()
                .map(|arg| arg.replace("{n}", &n.to_string()).replace("{file}", file))
                .collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let run = fixture.run(&args);
            assert!(
                run.code == *code && !run.err.contains("stranger"),
                "{path}, {args:?}: {run:?}"
            );
        }
        let doctor = fixture.run(&["doctor"]);
        assert!(
            !format!("{doctor:?}").contains("stranger") && !doctor.out.contains("not-checked"),
            "{doctor:?}"
        );
    }
}

/// Those that run on find the user's functions on the path, and nothing else.
#[tokio::test]
async fn neither_a_worker_nor_a_consumer_runs_a_strangers_code() {
    let fixture = Fixture::installed().await;
    let functions = "
        create table done (what text not null);
        create function job(p_job jsonb) returns jsonb language sql set search_path = pg_catalog, pg_temp
            as $$ insert into public.done values ('job'); select p_job $$;
        create function quiet_job(p_job jsonb) returns void language sql set search_path = pg_catalog, pg_temp
            as $$ insert into public.done values ('quiet job') $$;
        create function message(p_message jsonb) returns void language sql set search_path = pg_catalog, pg_temp
            as $$ insert into public.done values ('message') $$;
        select pgonce.create_subscription('c');";
    fixture.sql(functions).await;
    fixture
        .sql(include_str!("../../../../tests/hostile/twins.sql"))
        .await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("work.toml");
    let file = file.to_str().unwrap();
    let workers = "[[workers]]\nqueues = [\"a\"]\nsql = \"job\"\n[[workers]]\nqueues = [\"b\"]\nsql = \"quiet_job\"\n";
    std::fs::write(file, workers).unwrap();
    for path in PATHS {
        let name = fixture.database.name();
        let take_over = format!("alter database {name} set search_path = {path}");
        fixture.sql(&take_over).await;
        let send = "delete from done; select pgonce.enqueue('a', '1'), pgonce.enqueue('b', '2'), pgonce.publish('t', 'x', 's', '{}')";
        fixture.sql(send).await;
        let worker = Running::of(&fixture, "work", &[file]);
        let args = [
            "--consumer",
            "c",
            "--source",
            "outbox:c",
            "--sql",
            "message",
        ];
        let consumer = Running::of(&fixture, "consume", &args);
        let all = "select (count(distinct what) = 3)::int::bigint from done";
        let running = [&worker, &consumer];
        wait_for(&fixture, path, all, &running).await;
        for one in running {
            assert!(!one.log().contains("stranger"), "{path}: {}", one.log());
        }
    }
}

/// Every command of the program that has no further commands, such as "outbox list".
pub(crate) fn commands() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/help");
    let pages: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .filter_map(|page| Some(page.strip_suffix(".snap")?.replace('-', " ")))
        .collect();
    let is_group = |page: &str| pages.iter().any(|p| p.starts_with(&format!("{page} ")));
    let mut commands: Vec<String> = pages
        .iter()
        .filter(|page| !is_group(page))
        .map(|page| page.trim_start_matches("pgonce").trim().to_owned())
        .collect();
    assert!(commands.len() > 80, "{commands:?}");
    commands.sort();
    commands
}

#[test]
fn every_command_is_driven_or_left_to_another_test() {
    for command in commands() {
        let driven = COMMANDS
            .iter()
            .any(|(args, _)| args.join(" ").starts_with(&command));
        let elsewhere = ELSEWHERE.iter().any(|name| command.starts_with(name));
        assert!(driven || elsewhere, "`pgonce {command}` is in neither list");
    }
}
