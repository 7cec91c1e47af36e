//! What a key may look like, and what is answered to one that may not.

use std::time::Duration;

use axum::Router;
use axum::routing::post;
use pgonce_http::{Caller, IdempotencyLayer, Policy};

use crate::support::{Reply, SCOPE, Site, World, effect, made};

type Sqlx = pgonce::driver::sqlx::Sqlx;

#[tokio::test]
async fn a_request_without_a_usable_key_is_refused_before_the_database_is_asked() {
    // Nobody listens there: an answer that needs the database would be 503.
    let pool = sqlx::postgres::PgPoolOptions::new().acquire_timeout(Duration::from_secs(1));
    let pool = pool
        .connect_lazy("postgres://postgres@127.0.0.1:1/none")
        .unwrap();
    let layer =
        IdempotencyLayer::atomic(pgonce::Once::sqlx(pool), Policy::new(SCOPE, Caller::None))
            .unwrap();
    let site =
        Site::open(Router::new().route("/effects", post(effect::<Sqlx>).layer(layer.clone())))
            .await;

    let keyless = site
        .client
        .post(format!("http://{}/effects", site.address))
        .body("a book");
    Reply::read(keyless.send().await.unwrap())
        .await
        .problem(400, "P4001");
    for (form, code) in [
        ("", "P4001"),
        ("\"\"", "P4001"),
        ("\"open", "22023"),
        ("two words", "22023"),
        ("one,two", "22023"),
        (&"k".repeat(256), "22023"),
    ] {
        site.post("/effects", form, "a book")
            .await
            .problem(400, code);
    }
    let twice = site
        .request("/effects", "k1")
        .header("Idempotency-Key", "k1")
        .body("a book");
    Reply::read(twice.send().await.unwrap())
        .await
        .problem(400, "22023");
    let latin = site.request("/effects", "k1");
    let latin = site.client.execute({
        let mut request = latin.body("a book").build().unwrap();
        let value = http::HeaderValue::from_bytes(b"k\xe4").unwrap();
        request.headers_mut().insert("idempotency-key", value);
        request
    });
    Reply::read(latin.await.unwrap())
        .await
        .problem(400, "22023");
    assert_eq!(layer.counters().refused(), 9);
}

#[tokio::test]
async fn the_longest_key_works_and_operators_can_still_read_it() {
    let world: World = World::new().await;
    let site = world.usual(Policy::new(SCOPE, Caller::None)).await;
    let (long, other) = ("k".repeat(255), format!("{}j", "k".repeat(254)));
    assert_eq!(site.post("/effects", &long, "a book").await.status, 201);
    assert!(site.post("/effects", &long, "a book").await.replayed());
    // They differ only in what is not shown.
    assert!(!site.post("/effects", &other, "a book").await.replayed());
    assert_eq!(site.post("/effects", "short", "a book").await.status, 201);
    assert_eq!(
        world
            .number("select count(*) from pgonce.intent where key like 'short#%'")
            .await,
        1
    );
    assert_eq!(world.effects().await, 3);
}

#[tokio::test]
async fn header_limit_and_lint_are_the_routes_choice() {
    let world: World = World::new().await;
    let policy = Policy::new(SCOPE, Caller::None).header("x-request-name".parse().unwrap());
    let site = world.usual(policy.max_key_bytes(10).lint_keys(true)).await;
    let url = format!("http://{}/effects", site.address);
    let send = async |key: &str| {
        let request = site
            .client
            .post(&url)
            .header("X-Request-Name", key)
            .body("a book");
        Reply::read(request.send().await.unwrap()).await
    };
    site.post("/effects", "k1", "a book")
        .await
        .problem(400, "P4001");
    send("eleven-long").await.problem(400, "22023");
    send("retry-3").await.problem(400, "22023");
    assert_eq!(send("order-7a").await.status, 201);
    assert!(send("order-7a").await.replayed());
}

#[tokio::test]
async fn without_a_key_an_optional_route_works_each_time() {
    let world: World = World::new().await;
    let policy = Policy::new(SCOPE, Caller::None).key_required(false);
    let atomic = post(async |tx: pgonce_http::Tx<Sqlx>| unkeyed(tx).await)
        .layer(world.atomic(policy.clone()));
    let leased = post(async || made()).layer(world.leased(policy));
    let site = Site::open(
        Router::new()
            .route("/atomic", atomic)
            .route("/leased", leased),
    )
    .await;
    for path in ["/atomic", "/leased"] {
        let send = || {
            site.client
                .post(format!("http://{}{path}", site.address))
                .send()
        };
        let (one, two) = (send().await.unwrap(), send().await.unwrap());
        assert_eq!(
            (one.status(), two.status()),
            (http::StatusCode::CREATED, http::StatusCode::CREATED)
        );
        assert_ne!(one.bytes().await.unwrap(), two.bytes().await.unwrap());
    }
    assert_eq!(world.effects().await, 2);
    // With one it is protected all the same.
    let first = site.post("/leased", "k1", "").await;
    assert_eq!(site.post("/leased", "k1", "").await.body, first.body);
}

async fn unkeyed(
    mut tx: pgonce_http::Tx<Sqlx>,
) -> Result<axum::response::Response, pgonce_http::HandlerError> {
    sqlx::query("insert into effects values ('', '')")
        .execute(tx.conn())
        .await?;
    Ok(made())
}

#[tokio::test]
async fn switched_off_or_for_other_methods_the_layer_passes_requests_on() {
    let world: World = World::new().await;
    let off = post(async |tx: pgonce_http::Tx<Sqlx>| unkeyed(tx).await)
        .layer(world.atomic(Policy::new(SCOPE, Caller::None).enabled(false)));
    let put =
        axum::routing::put(async || made()).layer(world.leased(Policy::new(SCOPE, Caller::None)));
    let site = Site::open(Router::new().route("/off", off).route("/put", put)).await;
    assert_ne!(
        site.post("/off", "k1", "").await.body,
        site.post("/off", "k1", "").await.body
    );
    let put = || {
        site.client
            .put(format!("http://{}/put", site.address))
            .send()
    };
    assert_ne!(
        put().await.unwrap().bytes().await.unwrap(),
        put().await.unwrap().bytes().await.unwrap()
    );
    assert_eq!(world.effects().await, 2);
}

#[tokio::test]
async fn a_policy_that_contradicts_itself_is_refused() {
    use pgonce::scope::Busy;
    use pgonce_http::Caller;

    let world: World = World::new().await;
    let who = Caller::Header("x-user".parse().unwrap());
    for policy in [
        Policy::new("", Caller::None),
        Policy::new(SCOPE, who).plain_keys(true),
        Policy::per_operation(Caller::None).plain_keys(true),
        Policy::new(SCOPE, Caller::None).max_key_bytes(256),
        Policy::new(SCOPE, Caller::None).methods([]),
        Policy::new(SCOPE, Caller::None).busy(Busy::Accept),
    ] {
        let error = IdempotencyLayer::atomic(world.once.clone(), policy).unwrap_err();
        assert_eq!(error.code(), "22023", "{error}");
    }
    assert!(
        world
            .atomic(Policy::new(SCOPE, Caller::None))
            .agree()
            .await
            .is_err()
    );
}
