//! However many rows there are, a page of the console and a list of the program read a bounded number of them.

use pgonce_testkit::wait_until;

use crate::console::PAGES;
use crate::fixture::Fixture;
use crate::serve::{DEADLINE, Serving};

/// Far more rows than any page may read.
const ROWS: i64 = 60_000;

/// What a page may read of one table: it counts intents up to ten thousand and one, groups and unread events up to ten thousand, and looks for what a filter wants in
/// each of sixteen lanes.
const MOST: i64 = 40_000;

/// Intents and events, and of all else so many rows.
pub(crate) async fn fill(fixture: &Fixture, intents: i64, others: i64) {
    let start = "select pgonce.define_scope('s', '7 days', p_stale => 'hold');
        select pgonce.create_subscription('s');
        select pgonce.create_subscription('rare', p_topics => '{rare}')";
    fixture.sql(start).await;
    const BATCH: i64 = 500_000;
    for from in (0..intents).step_by(BATCH as usize) {
        let to = intents.min(from + BATCH);
        let some = include_str!("lists.sql")
            .replace("{from}", &(from + 1).to_string())
            .replace("{to}", &to.to_string());
        fixture.sql(&some).await;
    }
    let rest = include_str!("lists_rest.sql").replace("{rows}", &others.to_string());
    fixture.sql(&rest).await;
    // A subscription that begins now looks at what was published since the oldest open transaction of the whole server, and other tests
    // have theirs. The database is a copy of a template: its log begins anew, which forgets watermarks.
    fixture.sql("select pgonce._rebase_outbox()").await;
    fixture.sql("select pgonce._record_watermark(0)").await;
    let over = "select pgonce._outbox_floor(pg_current_snapshot()) = pg_sequence_last_value('pgonce.outbox_seq')";
    let over = async || fixture.client.query_one(over, &[]).await.unwrap().get(0);
    wait_until("all events are over", DEADLINE, over)
        .await
        .unwrap();
    let end = "select pgonce.create_subscription('new', p_from => 'now')";
    fixture.sql(end).await;
    fixture.sql("vacuum analyze").await;
}

/// Pages beside those of [`PAGES`]: those whose filter matches little or nothing, the next of long lists, and where something is found.
pub(crate) const MORE_PAGES: [&str; 26] = [
    "/?range=90d",
    "/intents?q=scope:s",
    "/intents?q=scope:s*+state:failed_final",
    "/intents?q=state:processing",
    "/intents?q=state:succeeded+key:zzz",
    "/intents?q=key:k77",
    "/intents?after_tenant=&after_scope=s&after=k5",
    "/intents?q=state:stuck+key:none",
    "/intents?q=state:stuck+scope:s",
    "/intents?q=state:processing+scope:none",
    "/intents?q=state:stuck&after_time=2000-01-01&after_scope=s&after=k5",
    "/audit?after_time=2200-01-01&after=7",
    "/intent?scope=s&key=k7",
    "/intent?scope=s&key=none",
    "/outbox",
    "/inbox",
    "/inbox?consumer=d",
    "/external",
    "/external?status=all",
    "/external?status=failed",
    "/external?status=disputed",
    "/external?status=open&provider=none",
    "/operations?op=retry&scope=s",
    "/ledger",
    "/find?q=k7",
    "/find?q=nothing-has-this-id",
];

/// Every list of the program, with what narrows it to much, little and nothing.
pub(crate) const LISTS: &[&[&str]] = &[
    &["intent", "list", "s"],
    &["intent", "list", "s", "--after", "k5"],
    &["intent", "list", "s", "--status", "failed_final"],
    &["intent", "list", "s", "--status", "processing"],
    &["intent", "stuck"],
    &["intent", "stuck", "--scope", "s"],
    &["intent", "retried"],
    &["intent", "retried", "--scope", "scope-4"],
    &["intent", "show", "s", "k7"],
    &["suppression"],
    &["scope", "list"],
    &["job", "list"],
    &["job", "list", "--status", "dead"],
    &["job", "list", "q", "--status", "dead"],
    &["job", "list", "q", "--status", "ready"],
    &["job", "list", "q", "--status", "blocked"],
    &["job", "list", "--status", "running"],
    &["job", "list", "--status", "cancelled"],
    &["job", "list", "none"],
    &["job", "list", "--group", "g", "--status", "dead"],
    &["job", "list", "--group", "g"],
    &["job", "list", "--status", "ready"],
    &["job", "list", "--status", "dead", "--before", "100"],
    &["job", "list", "--status", "dead", "--tenant", "none"],
    &["job", "list", "--status", "ready", "--tenant", "none"],
    &["queue", "list"],
    &["queue", "schedules"],
    &["inbox", "list"],
    &["inbox", "list", "c"],
    &["inbox", "list", "d"],
    &["inbox", "list", "c", "--status", "failed_final"],
    &["inbox", "list", "c", "--status", "processed"],
    &["inbox", "list", "marked"],
    &["external", "list"],
    &["external", "list", "--status", "needs_operator"],
    &["external", "list", "--status", "open"],
    &["external", "list", "--status", "failed"],
    &["external", "list", "--status", "disputed"],
    &["external", "list", "--provider", "none"],
    &["external", "list", "--tenant", "none"],
    &["external", "providers"],
    &["external", "show", "c4ca4238-a0b9-2382-0dcc-509a6f75849b"],
    &["import", "list"],
    &["import", "show", "j"],
    &["ledger", "accounts"],
    &["ledger", "groups"],
    &["ledger", "groups", "--state", "pending"],
    &["ledger", "groups", "--state", "posted"],
    &["ledger", "groups", "--tenant", "none"],
    &["outbox", "list"],
    &["outbox", "list", "s"],
    &["outbox", "list", "s", "--state", "retry"],
    &["outbox", "list", "--subject", "none"],
    &["outbox", "list", "--subject", "none", "--state", "all"],
    &["outbox", "list", "--tenant", "none", "--state", "all"],
    &["outbox", "status"],
    &["outbox", "status", "--lanes"],
    &["outbox", "subscriptions"],
    &["projection", "status"],
    &["transition", "rules"],
    &["region", "list"],
    &["region", "tasks"],
];

/// Ends with the first line that it prints.
const TAIL: [&str; 7] = [
    "tail",
    "--since",
    "1s",
    "--kind",
    "act,event,letter,job",
    "--count",
    "1",
];

/// The pages that a bound is promised for: verification reads all on purpose.
pub(crate) fn pages() -> impl Iterator<Item = &'static str> {
    let pages = PAGES.iter().chain(&MORE_PAGES).copied();
    pages.filter(|page| !page.contains("check"))
}

/// Rows read of each table so far, through its indexes or past them. Sessions report what they read when they end.
async fn read(fixture: &Fixture) -> Vec<(String, i64)> {
    let alone = "select not exists (select from pg_stat_activity a where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend')";
    let ended = async || {
        fixture
            .client
            .query_one(alone, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    };
    wait_until("every session has ended", DEADLINE, ended)
        .await
        .unwrap();
    let counted = "select regexp_replace(t.relname, '_p?[0-9]+$|_default$', '') as name, sum(coalesce(t.seq_tup_read, 0) + coalesce(i.read, 0))::bigint \
         from pg_stat_user_tables t left join (select x.relid, sum(x.idx_tup_read) as read from pg_stat_user_indexes x group by 1) i on i.relid = t.relid \
         where t.schemaname = 'pgonce' group by 1 order by 1";
    let rows = fixture.client.query(counted, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn most(before: &[(String, i64)], after: Vec<(String, i64)>) -> (String, i64) {
    let grown = after.into_iter().map(|(name, count)| {
        let known = before.iter().find(|(other, _)| *other == name);
        (name, count - known.map_or(0, |(_, count)| *count))
    });
    grown.max_by_key(|(_, count)| *count).unwrap()
}

#[tokio::test]
async fn no_page_and_no_list_reads_a_large_table_whole() {
    let fixture = Fixture::installed().await;
    fill(&fixture, ROWS, ROWS).await;
    let mut before = read(&fixture).await;
    let mut wrong = Vec::new();
    let mut check = |what: &str, after: Vec<(String, i64)>| {
        let (table, count) = most(&before, after.clone());
        if count > MOST && !what.is_empty() {
            wrong.push(format!("{what} read {count} rows of {table}"));
        }
        before = after;
    };
    for page in pages() {
        let serving = Serving::of(&fixture, &["--roles", "console"], "");
        serving.text(page, "").await;
        drop(serving);
        check(page, read(&fixture).await);
    }
    for command in LISTS {
        fixture.ok(command);
        check(&command.join(" "), read(&fixture).await);
    }
    fixture
        .sql("select pgonce.publish('t', 'y', 'now', '{}')")
        .await;
    check("", read(&fixture).await);
    fixture.ok(&TAIL);
    check("tail", read(&fixture).await);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    // Where a look ended, and how to look further, is said.
    let listed = fixture.run(&["intent", "list", "s", "--status", "failed_final"]);
    assert!(listed.out.contains("k20007"), "{listed:?}");
    assert!(
        listed.err.contains("To look further: --after k"),
        "{listed:?}"
    );
    let serving = Serving::of(&fixture, &["--roles", "console"], "");
    let first = serving.text("/intents?q=state:stuck2", "").await;
    assert!(
        first.contains("looked at 20,000 records") && first.contains("rel=\"next\""),
        "{first}"
    );
    let quick = serving.text("/find?q=nothing-has-this-id", "").await;
    assert!(quick.contains("Look there too"), "{quick}");
    let all = serving.text("/find?q=u7&all=yes", "").await;
    assert!(
        all.contains("subject u7") && !all.contains("Look there too"),
        "{all}"
    );
}

#[tokio::test]
async fn a_quiet_queue_beside_very_many_jobs_that_wait_for_their_time_reads_few_of_them() {
    let fixture = Fixture::installed().await;
    let fill = format!(
        "insert into pgonce.job (id, created_at, priority, tenant, queue)
         select n, now(), 0, '', case when n = 1 then 'quiet' else 'busy' end from generate_series(1, {ROWS}) n;
         insert into pgonce.job_live (id, due_at, state, priority, tenant, queue)
         select n, now() + interval '1 day' - n * interval '1 second', case when n = 2 then 'running' else 'scheduled' end::pgonce.job_state, 0, '',
                case when n = 1 then 'quiet' else 'busy' end from generate_series(1, {ROWS}) n"
    );
    fixture.sql(&fill).await;
    fixture.sql("vacuum analyze").await;
    let mut before = read(&fixture).await;
    let mut wrong = Vec::new();
    let mut check = |what: &str, after: Vec<(String, i64)>| {
        let (table, count) = most(&before, after.clone());
        if count > MOST {
            wrong.push(format!("{what} read {count} rows of {table}"));
        }
        before = after;
    };
    let mut pages = Vec::new();
    for path in ["/queue?queue=quiet", "/queue?queue=busy"] {
        let serving = Serving::of(&fixture, &["--roles", "console"], "");
        pages.push(serving.text(path, "").await);
        drop(serving);
        check(path, read(&fixture).await);
    }
    let mut lists = Vec::new();
    for status in ["running", "retrying"] {
        lists.push(fixture.run(&["job", "list", "--status", status]).err);
        check(status, read(&fixture).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    // That there may be more is said.
    let looked = "10,000 jobs of all queues that are due first";
    assert!(pages.iter().all(|page| page.contains(looked)), "{pages:?}");
    let looked = "To look further: --before";
    assert!(lists.iter().all(|list| list.contains(looked)), "{lists:?}");
}
