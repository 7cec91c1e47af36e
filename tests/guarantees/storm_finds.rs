//! What `pgonce storm` found, each repeated without chance.

use futures_util::future::join;
use pgonce::Error;
use pgonce_testkit::{CuttingProxy, wait_until_lock_waited};
use pgonce_tests::{TestDriver, World, for_each_driver, intent, work};

/// Found by `pgonce storm --path slow-commit --driver tokio-postgres --isolation read-committed
/// --pooler direct --major 15 --fault c0:s18:cut-after`: a client that came back while the own commit was
/// still on its way got "busy", which says that nothing was done.
async fn an_attempt_that_meets_its_own_unfinished_commit_is_uncertain_not_busy<D: TestDriver>(
    world: World<D>,
) {
    // A commit that waits, as it does for a standby.
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
    let proxy = CuttingProxy::start(("127.0.0.1", world.server.port())).unwrap();
    let url = format!(
        "{}?application_name=committer",
        proxy.url_for(world.database())
    );
    let once = world.another_at(&url, 2, |builder| builder);
    let request = intent("slow");
    let (end, ()) = join(once.run(&request, work::<D>), async {
        wait_until_lock_waited(&world.url(), "committer")
            .await
            .unwrap();
        proxy.cut_all();
    })
    .await;
    assert!(matches!(end, Err(Error::Uncertain(_))), "{end:?}");

    world.see.run("select pg_advisory_unlock(77)").await;
    world.see.wait_until_clean().await;
    assert_eq!(world.see.effects(&request).await, 1);
    assert!(world.run(&request).await.unwrap().replayed());
}

for_each_driver!(an_attempt_that_meets_its_own_unfinished_commit_is_uncertain_not_busy);
