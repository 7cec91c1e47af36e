//! What planted bugs got past once; `make mutants` plants them. And: none of them is stale.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join;
use pgonce::retry::Policy;
use pgonce::{Ack, Claim, Error, Lease};
use pgonce_testkit::wait_until_lock_waited;
use pgonce_tests::{Cutter, SCOPE, TestDriver, World, digest_of, for_each_driver, intent, work};

const MINUTE: Duration = Duration::from_secs(60);
const EXPIRE: &str =
    "update pgonce.intent set lease_until = pgonce.now() where status = 'processing'";

async fn lease<D: TestDriver>(world: &World<D>, key: &str, length: Duration) -> Lease<D> {
    match world.once.lease(&intent(key), length).await.unwrap() {
        Claim::Run(lease) => lease,
        other => panic!("{other:?}"),
    }
}

async fn a_takeover_is_busy_while_somebody_has_the_row_and_then_gets_its_whole_lease<
    D: TestDriver,
>(
    world: World<D>,
) {
    let old = lease(&world, "slow", MINUTE).await;
    old.release().await.unwrap();
    // Somebody looks at the row for a while.
    let other = world.observer().await;
    other
        .run("begin; select from pgonce.intent for update")
        .await;
    let request = intent("slow");
    let busy = world.once.lease(&request, MINUTE).await.unwrap();
    assert!(matches!(busy, Claim::Busy { .. }));
    let now = world.see.text("select pgonce.now()").await;
    other.run("rollback").await;
    let taken = world.once.lease(&request, MINUTE).await.unwrap();
    assert!(matches!(taken, Claim::Run(_)));
    let whole = format!("lease_until >= '{now}'::timestamptz + interval '1 minute'");
    assert_eq!(world.see.record(&request, &whole).await, "t");
}

async fn a_failed_atomic_takeover_gives_way_to_a_holder_that_renewed_its_lease<D: TestDriver>(
    world: World<D>,
) {
    let request = intent("renewed");
    let mut old = lease(&world, "renewed", MINUTE).await;
    world.see.run(EXPIRE).await;
    let Claim::Run(takeover) = world.once.claim(&request).await.unwrap() else {
        panic!("takeover")
    };
    let fence = takeover.fence();
    takeover.abandon().await.unwrap();
    old.heartbeat().await.unwrap();
    let before = world.see.dump().await;
    let print = digest_of(&request);
    let late =
        format!("select pgonce.fail('{SCOPE}', 'renewed', {print}, {fence}, false, 'late', 'm')");
    assert_eq!(world.see.code(&late).await, "P4011");
    assert_eq!(world.see.dump().await, before);
    let _ = old.succeed(Ack::status()).await.unwrap();
}

async fn held_work_is_dropped_at_the_first_heartbeat_that_is_turned_away<D: TestDriver>(
    world: World<D>,
) {
    let mut lease = lease(&world, "stolen", Duration::from_secs(12)).await;
    let print = digest_of(lease.intent());
    // In one transaction, so that no heartbeat comes in between.
    world.see.run("begin").await;
    world.see.run(EXPIRE).await;
    let steal = format!("select outcome from pgonce.claim('{SCOPE}', 'stolen', {print}, '1 hour')");
    assert_eq!(world.see.text(&steal).await, "takeover");
    world.see.run("commit").await;
    // Work that nobody stops complains in the end.
    let held = lease
        .renew_while(world.see.wait_until("select false"))
        .await;
    let Err(Error::Fenced(problem)) = held else {
        panic!("{held:?}")
    };
    // The words of the database, not those of a lease that ran out.
    assert!(problem.message.contains("does not hold"), "{problem}");
}

async fn a_purge_passes_by_a_record_that_somebody_is_using<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run("select finish('s', key, '\\x01') from unnest(array['used', 'unused']) key")
        .await;
    see.run("select pgonce._move_clock(interval '30 days')")
        .await;
    let user = world.observer().await;
    user.run("begin; select from pgonce.intent where key = 'used' for update")
        .await;
    see.run("set lock_timeout = '2s'").await;
    assert_eq!(see.number("select pgonce.purge()").await, 1);
    user.run("commit").await;
    assert_eq!(see.number("select pgonce.purge()").await, 1);
}

async fn a_commit_in_doubt_is_reported_as_such_when_the_database_stays_away<D: TestDriver>(
    world: World<D>,
) {
    // A commit that waits, so that the wire can be cut in the middle of it.
    world
        .see
        .run(
            "create function wait_in_commit() returns trigger language plpgsql as $$
             begin perform pg_advisory_xact_lock(77); return null; end $$;
             create constraint trigger commits_wait after insert on effects
                 deferrable initially deferred for each row execute function wait_in_commit();
             select pg_advisory_lock(77)",
        )
        .await;
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let url = format!(
        "{}?application_name=committer",
        cutter.url_for(world.database())
    );
    let once = world.another_at(&url, 2, |b| b.retry(Policy::default().tries(3)));
    let request = intent("doubtful");
    let (end, ()) = join(once.run(&request, work::<D>), async {
        wait_until_lock_waited(&world.url(), "committer")
            .await
            .unwrap();
        cutter.close();
    })
    .await;
    assert!(matches!(end, Err(Error::Uncertain(_))), "{end:?}");
    world.see.run("select pg_advisory_unlock(77)").await;
    world.see.wait_until_clean().await;
    assert_eq!(world.see.effects(&request).await, 1);
}

for_each_driver!(
    a_takeover_is_busy_while_somebody_has_the_row_and_then_gets_its_whole_lease,
    a_failed_atomic_takeover_gives_way_to_a_holder_that_renewed_its_lease,
    held_work_is_dropped_at_the_first_heartbeat_that_is_turned_away,
    a_purge_passes_by_a_record_that_somebody_is_using,
    a_commit_in_doubt_is_reported_as_such_when_the_database_stays_away,
);

#[test]
fn every_planted_bug_still_finds_the_text_that_it_changes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut stale = Vec::new();
    for entry in std::fs::read_dir(root.join("mutants")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let file = text.lines().find_map(|line| line.strip_prefix("file: "));
        let breaks = text.lines().find_map(|line| line.strip_prefix("breaks: "));
        // In words, with the page that gives the guarantee.
        let breaks = breaks.unwrap_or_default();
        let page = breaks
            .strip_suffix(')')
            .and_then(|words| words.rsplit_once(" ("));
        assert!(
            page.is_some_and(|(words, page)| !words.is_empty() && root.join(page).is_file()),
            "{}: `breaks:` must end with the page of the guarantee, such as (docs/src/how-to/keys.md)",
            path.display()
        );
        let find = text
            .split("--- find\n")
            .nth(1)
            .and_then(|rest| rest.split("\n--- put").next());
        let (Some(file), Some(find)) = (file, find) else {
            panic!("{} has no file or nothing to find", path.display());
        };
        let found = std::fs::read_to_string(root.join(file))
            .map_or(0, |source| source.matches(find).count());
        if found != 1 {
            stale.push(format!("{}: {found} times in {file}", path.display()));
        }
    }
    assert!(stale.is_empty(), "fix or remove: {stale:#?}");
}

#[test]
fn every_planted_bug_names_a_page_and_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut sources = Vec::new();
    let mut folders = vec![root.join("tests"), root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                sources.push(std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let functions: Vec<&str> = sources
        .iter()
        .flat_map(|source| source.split("fn ").skip(1))
        .map(|rest| rest.split(['(', '<']).next().unwrap())
        .collect();
    let mut unknown = Vec::new();
    for entry in std::fs::read_dir(root.join("mutants")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let page = text
            .lines()
            .find_map(|line| line.strip_prefix("breaks: ")?.strip_suffix(')'))
            .and_then(|breaks| breaks.rsplit_once('('));
        if !page.is_some_and(|(_, page)| root.join(page).is_file()) {
            unknown.push(format!("{}: {page:?} is no page", path.display()));
        }
        for test in text
            .lines()
            .filter_map(|line| line.strip_prefix("caught by: "))
        {
            // One body runs once for each driver.
            let body = test
                .rsplit("::")
                .find(|part| !["sqlx", "tokio_postgres"].contains(part))
                .unwrap();
            if !functions.iter().any(|name| name.contains(body)) {
                unknown.push(format!("{}: {test}", path.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "rename or remove: {unknown:#?}");
}
