//! `--dry-run` writes nothing, whatever there is to do, and finds the names and states that the act would not.

use serde_json::Value;

use crate::console::{CALL, fill};
use crate::fixture::Fixture;

/// The command of a help text, and a line that would change something; what the act would do is asserted for each.
const ACTS: &[(&str, &str)] = &[
    ("scope drop", "scope drop mine"),
    ("intent settle", "intent settle s stuck --reason r"),
    ("intent fail", "intent fail s third --reason r --code c"),
    (
        "intent release",
        "intent release s fourth --reason r --force s",
    ),
    ("intent retry", "intent retry s no --reason r"),
    ("intent evict", "intent evict s nothing --reason r"),
    (
        "intent evict",
        "intent evict s --failed declined --reason r",
    ),
    (
        "external settle",
        "external settle CALL confirmed --reason r",
    ),
    ("ledger repair", "ledger repair --reason r"),
    ("outbox skip", "outbox skip s 1 --reason r"),
    ("outbox evict", "outbox evict s --reason r"),
    ("outbox subscriptions drop", "outbox subscriptions drop s"),
    ("inbox skip", "inbox skip c 1 --reason r"),
    ("inbox replay", "inbox replay applied --into d --reason r"),
    ("inbox replay", "inbox replay applied --again --reason r"),
    ("purge", "purge"),
    ("recover", "recover"),
    ("import", "import FILE --job j2 --into customer"),
];

/// All that is stored, of pgonce and of the caller.
async fn stored(fixture: &Fixture) -> String {
    let tables = "select string_agg(format('select %L || md5(coalesce(string_agg(t::text, '','' order by t::text), '''')) as stored from %s t', \
                  c.oid::regclass, c.oid::regclass), ' union all ') from pg_class c \
                  where c.relnamespace in ('pgonce'::regnamespace, 'public'::regnamespace) and c.relkind = 'r'";
    let query: String = fixture.client.query_one(tables, &[]).await.unwrap().get(0);
    let rows = fixture.client.query(&*query, &[]).await.unwrap();
    let mut rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    rows.sort();
    rows.join("\n")
}

async fn writable(fixture: &Fixture, writable: bool) {
    let off = if writable { "off" } else { "on" };
    let database = fixture.database.name();
    let set = format!("alter database \"{database}\" set default_transaction_read_only = {off}");
    fixture.sql(&set).await;
}

async fn filled() -> Fixture {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    fixture
        .sql(
            "select pgonce.define_scope('mine', '1 day');
             select pgonce.define_scope('refusing', '1 day', p_stale => 'refuse');
             select pgonce.claim('refusing', 'k', '\\x01', '1 second');
             select pgonce.claim('s', k, '\\x01', '1 second') from unnest('{third,fourth,fifth}'::text[]) k;
             update pgonce.intent set lease_until = pgonce.now() - interval '1 second' where key in ('third', 'fourth', 'fifth', 'k');
             select pgonce.claim('s', 'alive', '\\x01', '1 hour');
             select pgonce.fail('s', k, '\\x01', 1, false, 'declined', 'no') from unnest('{no,nothing,never}'::text[]) k;
             insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint)
             values (1, now() - interval '9 days', now() - interval '1 day', 1, 'succeeded', '', 's', 'old', '\\x02');
             update pgonce.external_call set disputed = null;
             select pgonce.ledger_open('cash', 'EUR', 'debit'); select pgonce.ledger_open('ada', 'EUR', 'credit');
             select pgonce.ledger_post('bank', '1', '[{\"account\": \"cash\", \"debit\": 1}, {\"account\": \"ada\", \"credit\": 1}]');
             update pgonce.ledger_account set balance = 7 where account = 'cash';
             select pgonce.store_message('applied', 'hook', 'e' || i, 'payload', 'k') from generate_series(11, 13) i;
             create table customer (id int primary key)",
        )
        .await;
    for _ in 0..3 {
        fixture
            .sql(
                "select pgonce.finish_messages('applied', (select jsonb_agg(to_jsonb(m) - 'payload') \
                 from pgonce.claim_messages('applied', 'me', '1 minute', 9) m))",
            )
            .await;
    }
    fixture
}

#[tokio::test]
async fn a_dry_run_writes_nothing_and_the_same_act_does() {
    let fixture = filled().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("customers.csv");
    std::fs::write(&file, "id\n1\n2\n").unwrap();
    let line = |line: &str| {
        let line = line.replace("CALL", CALL);
        line.replace("FILE", file.to_str().unwrap())
    };
    let mut before = stored(&fixture).await;
    for (command, act) in ACTS {
        let act = line(act);
        // An import does everything and rolls it back.
        writable(&fixture, *command == "import").await;
        let words: Vec<&str> = act.split(' ').chain(["--dry-run"]).collect();
        let run = fixture.run(&words);
        assert_eq!(run.code, 0, "{act}: {run:?}");
        assert_eq!(stored(&fixture).await, before, "{act}");
        writable(&fixture, true).await;
        let asks = !["purge", "recover", "import"].contains(command)
            && !act.starts_with("inbox replay applied --into");
        let yes = if asks { Some("--yes") } else { None };
        let words: Vec<&str> = act.split(' ').chain(yes).collect();
        fixture.ok(&words);
        let after = stored(&fixture).await;
        assert_ne!(after, before, "{act} changes something");
        before = after;
    }
}

#[tokio::test]
async fn a_dry_run_finds_names_and_states_as_the_act_does() {
    let fixture = filled().await;
    fixture
        .sql("update pgonce.ledger_account set balance = 1 where account = 'cash'")
        .await;
    let applied = fixture.json(&["inbox", "list", "applied", "--status", "processed"]);
    let applied = applied[0]["seq"].to_string();
    let resend = format!("external settle {CALL} resend --reason r");
    let skip = format!("inbox skip applied {applied} --reason r");
    let confirm = format!("external settle {CALL} confirmed --reason r");
    let response = format!("{confirm} --response none");
    let blank = format!("external settle {CALL} failed --reason r --code ");
    let reference = format!("{confirm} --reference {}", "r".repeat(1001));
    for (act, code) in [
        ("scope drop nobody", 7),
        ("scope drop *", 2),
        ("intent settle s nobody --reason r", 7),
        ("intent settle s done --reason r", 1),
        ("intent retry s done --reason r", 1),
        ("intent release s alive --reason r", 1),
        ("intent release s third --reason r", 1),
        ("intent evict s done --reason r", 1),
        ("intent settle s third --reason ", 2),
        ("intent settle s third --reason \t", 2),
        ("intent settle s third --reason r --answer {x", 2),
        ("intent fail s third --reason r --code ", 2),
        ("outbox evict s --reason ", 2),
        (&response, 2),
        (&blank, 2),
        (&reference, 2),
        ("intent release s --stuck --reason r", 1),
        ("intent settle s --failed declined --reason r", 2),
        ("intent retry s --stuck --reason r", 2),
        (&resend, 1),
        (
            "external settle 00000000-0000-0000-0000-000000000000 failed --reason r",
            7,
        ),
        ("ledger repair --reason r", 0),
        ("region leave nosuch", 7),
        ("outbox skip s 99 --reason r", 7),
        ("outbox evict nobody --reason r", 7),
        ("outbox subscriptions drop nobody", 7),
        ("inbox skip c 99 --reason r", 7),
        (&skip, 7),
        ("inbox replay nobody --into d --reason r", 7),
        ("inbox replay applied --into applied --reason r", 2),
    ] {
        let before = stored(&fixture).await;
        for mode in ["--dry-run", "--yes"] {
            let words: Vec<&str> = act.split(' ').chain([mode]).collect();
            let run = fixture.run(&words);
            assert_eq!(run.code, code, "{act} {mode}: {run:?}");
        }
        assert_eq!(stored(&fixture).await, before, "{act}");
    }
    let release = "intent release s --stuck --reason r --dry-run --format json";
    let release = fixture.run(&release.split(' ').collect::<Vec<_>>());
    let counted: Value = serde_json::from_str(&release.out).unwrap();
    assert!(counted["refused"].as_u64() > Some(3), "{release:?}");
    assert_eq!(counted["refused"], counted["count"], "{release:?}");
    assert!(release.err.contains("would be refused"), "{release:?}");
    let count = |line: &str| -> Value {
        let words: Vec<&str> = line.split(' ').chain(["--dry-run"]).collect();
        fixture.json(&words)["count"].clone()
    };
    assert_eq!(count("ledger repair --reason r"), 0);
    let into = "inbox replay applied --into d --reason r";
    assert_eq!(count(into), 3);
    fixture.ok(&into.split(' ').collect::<Vec<_>>());
    assert_eq!(count(into), 0, "d has them");
}

#[test]
fn every_command_with_a_dry_run_is_among_these() {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/help");
    for file in std::fs::read_dir(here).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        if !text
            .lines()
            .any(|line| line.trim().starts_with("--dry-run"))
        {
            continue;
        }
        let usage = text
            .lines()
            .find(|line| line.starts_with("Usage: "))
            .unwrap();
        let command = usage.trim_start_matches("Usage: pgonce ");
        let command = command.split(" [").next().unwrap();
        let known = ACTS.iter().any(|(name, _)| *name == command);
        assert!(known || command == "region leave", "{command}");
    }
}
