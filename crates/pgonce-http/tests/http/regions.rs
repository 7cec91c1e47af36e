//! Requests whose home is another region are sent there, or refused, and happen once.

use axum::Router;
use axum::routing::post;
use pgonce_http::{Caller, Policy};
use sqlx::AssertSqlSafe;

use crate::support::{Reply, SCOPE, Site, TestDriver, World, effect, for_each_driver};

for_each_driver!(a_request_goes_home_with_its_body_and_key_or_is_refused);

/// What a join leaves behind in region `eu`, where `us` is reached at an address.
async fn be_eu<D: TestDriver>(world: &World<D>, address: &str, mode: &str) {
    let sql = format!(
        "select pgonce.region_join(1::smallint, 'eu'), pgonce._add_region(2::smallint, 'us', '{address}'), \
         pgonce._activate_region(1::smallint), pgonce._activate_region(2::smallint); \
         select pgonce.define_region_rule('*', '{mode}', 'us'), pgonce._apply_region_rule('*', '')"
    );
    let run = sqlx::raw_sql(AssertSqlSafe(sql));
    run.execute(&world.pool).await.unwrap();
}

async fn a_request_goes_home_with_its_body_and_key_or_is_refused<D: TestDriver>(eu: World<D>) {
    let us = World::<D>::new().await;
    let policy = || Policy::new(SCOPE, Caller::None);
    let at_home = us.usual(policy()).await;
    be_eu(&eu, &format!("http://{}/", at_home.address), "home").await;
    let route = post(effect::<D>).layer(eu.atomic(policy()));
    // The path that the client sent, not the one that an inner router sees.
    let inner = Router::new().route("/effects", route);
    let site = Site::open(Router::new().nest("/eu", inner.clone()).merge(inner)).await;

    let stay = reqwest::Client::builder().no_proxy();
    let stay = stay.redirect(reqwest::redirect::Policy::none());
    let stay = stay.build().unwrap();
    let url = format!("http://{}/eu/effects?a=1", site.address);
    let request = stay.post(url).header("Idempotency-Key", "k1");
    let reply = Reply::read(request.body("a book").send().await.unwrap()).await;
    assert_eq!(reply.problem(307, "P4110")["home"], "us");
    let location = format!("http://{}/eu/effects?a=1", at_home.address);
    assert_eq!(reply.headers["location"], location);

    // A client that follows, and its retry.
    let first = site.post("/effects", "k1", "a book").await;
    let again = site.post("/effects", "k1", "a book").await;
    assert_eq!((first.status, again.status), (201, 201));
    assert!(!first.replayed() && again.replayed() && first.body == again.body);
    assert_eq!((eu.effects().await, us.effects().await), (0, 1));

    let reader = World::<D>::new().await;
    be_eu(&reader, "https://us.example", "read_only").await;
    let site = reader.usual(policy()).await;
    let refused = site.post("/effects", "k2", "a book").await;
    assert_eq!(refused.problem(421, "P4110")["home"], "us");
    assert!(!refused.headers.contains_key("location"));
    let nowhere = World::<D>::new().await;
    be_eu(&nowhere, "", "home").await;
    let site = nowhere.usual(policy()).await;
    site.post("/effects", "k2", "a book")
        .await
        .problem(421, "P4110");
    nowhere
        .run_sql("select pgonce._activate_region(1::smallint, 'leaving')")
        .await;
    let leaving = site.post("/effects", "k2", "a book").await;
    leaving.problem(503, "08006");
    assert!(leaving.headers.contains_key("retry-after"));
    assert_eq!((reader.effects().await, nowhere.effects().await), (0, 0));
}
