//! Processes that call a provider, and reconcilers, are killed at every point of their protocol: no payment is charged twice,
//! what was charged is confirmed in the end, and what nobody can know stays unknown.

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::faults::EXTERNAL_POINTS;
use pgonce_tests::{TestDriver, World};

use crate::at_each;
use crate::process::Worker;

/// Nothing keeps the provider from charging twice; with keys it looks first.
const BOOK: &str = "
create table book (effect_key text not null, at timestamptz not null default clock_timestamp());
create table payments as select n from generate_series(1, 20) n;
";

/// How the books disagree; empty when nothing is left to do.
const OPEN: &str = "
select coalesce(string_agg(p.n::text || ' ' || coalesce(c.status, 'no call'), ', '), '') from payments p
  left join pgonce.external_calls c on c.key = p.n::text
  left join pgonce.intent i on i.key = p.n::text
 where c.status is null or c.status = 'requested'
    or exists (select from book b where b.effect_key = c.effect_key::text) and (c.status <> 'confirmed' or i.status <> 'succeeded')";

/// Every fourth request is lost; at most one more was never sent by the one that died.
const MAX_UNKNOWN: i64 = 6;

struct Scene<D: TestDriver> {
    world: World<D>,
    keys: bool,
}

impl<D: TestDriver> Scene<D> {
    async fn set(keys: bool) -> Self {
        let world = World::<D>::new().await;
        world.see.run(BOOK).await;
        let keys_for = if keys { "'1 hour'" } else { "null" };
        let define = format!(
            "select pgonce.define_provider('bank', p_keys_for => {keys_for}, p_look_after => '1 ms', p_backoff => '1 ms', \
             p_max_backoff => '10 ms'); select pgonce.define_scope('payments', '1 day', p_lease => '2 s')"
        );
        world.see.run(&define).await;
        Self { world, keys }
    }

    fn worker(&self, faults: &str) -> Worker {
        let keys = if self.keys { "keys" } else { "none" };
        Worker::start(D::NAME, &self.world.url(), "external", keys, faults)
    }

    async fn check(&self, what: &str, mut worker: Worker) {
        let see = &self.world.see;
        let unsure =
            "select count(*) from pgonce.external_calls where status in ('sent', 'unknown')";
        // In one statement: a call that is under way in one look may be charged by the next.
        let most = if self.keys { 0 } else { MAX_UNKNOWN };
        let settled = format!("select ({OPEN}) = '' and ({unsure}) <= {most}");
        see.wait_until(&settled).await;
        worker.send("stop").await;
        let ended = worker.ended().await;
        assert!(ended.status.success(), "{what}: {ended:?}");
        assert_eq!(see.text(OPEN).await, "", "{what}");
        let twice =
            "select count(*) from (select from book group by effect_key having count(*) > 1) x";
        assert_eq!(see.number(twice).await, 0, "{what}: charged twice");
        let invented = "select count(*) from pgonce.external_calls c where c.status = 'failed' or c.status = 'confirmed' \
            and not exists (select from book b where b.effect_key = c.effect_key::text)";
        assert_eq!(see.number(invented).await, 0, "{what}: guessed");
        if !self.keys {
            let unknown = see.number(unsure).await;
            assert!(
                (5..=MAX_UNKNOWN).contains(&unknown),
                "{what}: {unknown} unknown"
            );
        }
    }
}

async fn struck<D: TestDriver>(point: &str, keys: bool) {
    let what = format!("{} {point} keys {keys}", D::NAME);
    let scene = Scene::<D>::set(keys).await;
    let victim = scene.worker(&format!("{point}=kill@2")).ended().await;
    assert!(victim.was_killed(), "{what}: {victim:?}");
    scene.check(&what, scene.worker("")).await;
}

#[tokio::test]
async fn payments_are_charged_once_wherever_a_process_dies_with_a_provider_without_keys() {
    at_each(EXTERNAL_POINTS, |point| {
        struck::<TokioPostgres>(point, false)
    })
    .await;
}

#[tokio::test]
async fn payments_are_charged_once_wherever_a_process_dies_with_a_provider_with_keys() {
    at_each(EXTERNAL_POINTS, |point| struck::<Sqlx>(point, true)).await;
}

#[tokio::test]
async fn a_process_that_loses_its_connection_at_any_point_goes_on() {
    let strike = async |point: &str| {
        let scene = Scene::<TokioPostgres>::set(true).await;
        let worker = scene.worker(&format!("{point}=error@2"));
        scene.check(point, worker).await;
    };
    at_each(EXTERNAL_POINTS, strike).await;
}
