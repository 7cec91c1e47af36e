//! The line to the database is cut at every message of every path: one effect, one answer.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use futures_util::StreamExt as _;
use pgonce::Once;
use pgonce_http::{Caller, IdempotencyLayer, Key, Policy};
use pgonce_testkit::{Action, CuttingProxy, Direction, FaultPlan, Message, Trial};
use sqlx::PgPool;

use crate::support::{
    Reply, SCOPE, Site, TestDriver, World, effect, for_each_driver, made, outside_effect,
};

for_each_driver!(
    atomic_a_cut_at_any_message_leaves_one_effect_and_one_answer,
    leased_a_cut_at_any_message_leaves_one_effect_and_one_answer,
    atomic_a_database_that_falls_silent_at_any_message_is_reported_in_time,
    leased_a_database_that_falls_silent_at_any_message_is_reported_in_time,
);

const LONG_TIMEOUT: Duration = Duration::from_secs(20);

/// Long enough for a database that answers, short enough to be waited for often.
const SHORT: Duration = Duration::from_secs(1);

async fn outside(State(pool): State<PgPool>, key: Key, note: String) -> Response {
    outside_effect(&pool, &key, &note).await;
    made()
}

/// A line to the database that goes through a proxy of its own.
fn behind<D: TestDriver>(world: &World<D>) -> (Once<D>, CuttingProxy) {
    let proxy = CuttingProxy::start(("127.0.0.1", world.port)).unwrap();
    let once = Once::builder(D::connect(&proxy.url_for(&world.database), 2));
    (once.build().unwrap(), proxy)
}

async fn service<D: TestDriver>(
    world: &World<D>,
    once: &Once<D>,
    atomic: bool,
    within: Duration,
) -> Site {
    let once = once.clone();
    let policy = Policy::new(SCOPE, Caller::None)
        .database_timeout(within)
        .handler_timeout(within);
    let router = match atomic {
        true => {
            let layer = IdempotencyLayer::atomic(once, policy).unwrap();
            Router::new().route("/effects", post(effect::<D>).layer(layer))
        }
        false => {
            let layer = IdempotencyLayer::leased(once, policy).unwrap();
            let router = Router::new().route("/effects", post(outside).layer(layer));
            router.with_state(world.pool.clone())
        }
    };
    Site::open(router).await
}

/// Sends until there is an answer, for longer than a database may be silent and a claim be lost.
async fn insist(site: &Site, key: &str) -> Reply {
    let answer = std::cell::RefCell::new(None);
    let what = format!("an answer for {key}");
    let answered = pgonce_testkit::wait_until(what, 6 * LONG_TIMEOUT, || async {
        let reply = site.post("/effects", key, "a book").await;
        let settled = !matches!(reply.status, 409 | 503);
        answer.replace(Some(reply));
        settled
    });
    answered.await.unwrap();
    answer.take().unwrap()
}

/// The messages of a request, and a contract for what follows.
async fn dry_run<D: TestDriver>(
    world: &World<D>,
    atomic: bool,
    lease: Duration,
    retry: bool,
) -> Vec<Message> {
    let agreed = Policy::new(SCOPE, Caller::None).retention(Duration::from_secs(3600));
    world.leased(agreed.lease(lease)).agree().await.unwrap();
    let (once, proxy) = behind(world);
    let site = service(world, &once, atomic, LONG_TIMEOUT).await;
    assert_eq!(insist(&site, "dry").await.status, 201);
    if retry {
        assert!(insist(&site, "dry").await.replayed());
    }
    proxy.transcript()
}

async fn one_effect_whatever_is_cut<D: TestDriver>(world: World<D>, atomic: bool) {
    // A claim whose reply is lost belongs to nobody until it runs out.
    let seen = dry_run(&world, atomic, Duration::from_secs(1), true).await;
    let actions = [Action::CutBefore, Action::CutAfter, Action::DropReply];
    let every = FaultPlan::every(&seen, &actions);
    assert!(every.trials.len() > 20, "nothing was seen on the line");
    let fired = many_at_a_time(
        every
            .trials
            .iter()
            .enumerate()
            .map(async |(number, trial)| {
                let (once, proxy) = behind(&world);
                let site = service(&world, &once, atomic, LONG_TIMEOUT).await;
                proxy.arm_trial(trial);
                one_answer(&site, number, trial, atomic).await;
                proxy.fired().is_some()
            }),
    )
    .await;
    one_effect_each(&world, atomic, fired, every.trials.len()).await;
}

async fn reported_in_time_whenever_it_falls_silent<D: TestDriver>(world: World<D>, atomic: bool) {
    let mut seen = dry_run(&world, atomic, Duration::from_secs(30), false).await;
    seen.retain(|message| message.direction == Direction::ToServer);
    let every = FaultPlan::every(&seen, &[Action::Hold]);
    let fired = many_at_a_time(
        every
            .trials
            .iter()
            .enumerate()
            .map(async |(number, trial)| {
                let (once, proxy) = behind(&world);
                let site = service(&world, &once, atomic, SHORT).await;
                proxy.arm_trial(trial);
                // Nothing continues before the test allows it: a request that waits for it waits for ever.
                let reply = site
                    .post("/effects", &format!("trial-{number}"), "a book")
                    .await;
                assert!(
                    matches!(reply.status, 201 | 503),
                    "{trial}: {}",
                    reply.status
                );
                let fired = proxy.fired().is_some();
                proxy.disarm();
                // The same connections, which a busy machine may serve late.
                let site = service(&world, &once, atomic, LONG_TIMEOUT).await;
                one_answer(&site, number, trial, atomic).await;
                fired
            }),
    )
    .await;
    one_effect_each(&world, atomic, fired, every.trials.len()).await;
}

/// Runs trials, which mostly wait, beside each other. Answers in how many the fault happened.
async fn many_at_a_time(trials: impl Iterator<Item = impl Future<Output = bool>>) -> usize {
    let fired = futures_util::stream::iter(trials).buffer_unordered(10);
    fired
        .filter(|fired| std::future::ready(*fired))
        .count()
        .await
}

/// The same end for every try: the answer, or, where a recorded claim got lost, that nobody knows.
async fn one_answer(site: &Site, number: usize, trial: &Trial, atomic: bool) {
    let key = format!("trial-{number}");
    let first = insist(site, &key).await;
    let again = insist(site, &key).await;
    assert_eq!(first.status, again.status, "{trial}");
    assert_eq!(first.body, again.body, "{trial}");
    assert!(again.replayed(), "{trial}");
    if atomic || first.status == 201 {
        assert_eq!(first.status, 201, "{trial}");
    } else {
        assert_eq!(
            first.problem(422, "P4030")["reason"],
            "abandoned",
            "{trial}"
        );
    }
}

async fn one_effect_each<D: TestDriver>(
    world: &World<D>,
    atomic: bool,
    fired: usize,
    trials: usize,
) {
    assert!(
        fired * 4 >= trials,
        "only {fired} of {trials} faults happened"
    );
    let twice = "select count(*) from (select key from effects group by key having count(*) > 1) t";
    assert_eq!(world.number(twice).await, 0);
    let unlike = "select count(*) from pgonce.intent i full join effects e on e.key = split_part(i.key, '#', 1) \
                  where (i.status = 'succeeded') is distinct from (e.key is not null)";
    let done = "select count(*) from pgonce.intent where status = 'succeeded'";
    let (unlike, done) = (world.number(unlike).await, world.number(done).await);
    if atomic {
        assert_eq!((unlike, done), (0, trials as i64 + 1));
    } else {
        // Where nobody knows, there may be an effect or none; where it is said to be done, it is.
        let missing = "select count(*) from pgonce.intent i where status = 'succeeded' \
                       and not exists (select from effects e where e.key = split_part(i.key, '#', 1))";
        assert_eq!(world.number(missing).await, 0);
        assert!(
            done * 2 > trials as i64,
            "only {done} of {trials} were done"
        );
    }
}

async fn atomic_a_cut_at_any_message_leaves_one_effect_and_one_answer<D: TestDriver>(
    world: World<D>,
) {
    one_effect_whatever_is_cut(world, true).await;
}

async fn leased_a_cut_at_any_message_leaves_one_effect_and_one_answer<D: TestDriver>(
    world: World<D>,
) {
    one_effect_whatever_is_cut(world, false).await;
}

async fn atomic_a_database_that_falls_silent_at_any_message_is_reported_in_time<D: TestDriver>(
    world: World<D>,
) {
    reported_in_time_whenever_it_falls_silent(world, true).await;
}

async fn leased_a_database_that_falls_silent_at_any_message_is_reported_in_time<D: TestDriver>(
    world: World<D>,
) {
    reported_in_time_whenever_it_falls_silent(world, false).await;
}
