//! The same key of two callers or two endpoints never meets.

use axum::Router;
use axum::routing::post;
use pgonce_http::{Caller, Policy};

use crate::support::{Reply, SCOPE, Site, TestDriver, World, effect, for_each_driver};

for_each_driver!(
    a_key_belongs_to_its_principal_and_not_to_a_credential,
    a_key_belongs_to_its_endpoint,
);

async fn send(site: &Site, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = site.request(path, "k1").body("a book");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Reply::read(request.send().await.unwrap()).await
}

async fn a_key_belongs_to_its_principal_and_not_to_a_credential<D: TestDriver>(world: World<D>) {
    // As an authentication layer would: the token says who it is.
    let principal = Caller::with(|head| {
        let token = head.headers.get("authorization")?.to_str().ok()?;
        Some(token.strip_prefix("Bearer ")?.split('.').next()?.to_owned())
    });
    let site = world.usual(Policy::new(SCOPE, principal)).await;
    let ada = send(&site, "/effects", &[("authorization", "Bearer ada.token1")]).await;
    let bob = send(&site, "/effects", &[("authorization", "Bearer bob.token1")]).await;
    assert!(!bob.replayed());
    assert_ne!(ada.body, bob.body);
    let renewed = send(&site, "/effects", &[("authorization", "Bearer ada.token2")]).await;
    assert!(renewed.replayed());
    assert_eq!(renewed.body, ada.body);
    let nobody = send(&site, "/effects", &[]).await;
    nobody.problem(401, "principal_missing");
    assert_eq!(nobody.headers["www-authenticate"], "Bearer");
    assert_eq!(world.effects().await, 2);
}

async fn a_key_belongs_to_its_endpoint<D: TestDriver>(world: World<D>) {
    for policy in [
        Policy::new(SCOPE, Caller::None),
        Policy::per_operation(Caller::None),
    ] {
        let router = Router::new()
            .route("/orders", post(effect::<D>))
            .route("/refunds", post(effect::<D>).patch(effect::<D>))
            .route("/orders/{id}/pay", post(effect::<D>))
            .layer(world.atomic(policy));
        let site = Site::open(Router::new().nest("/v1", router)).await;
        let before = world.effects().await;
        let orders = send(&site, "/v1/orders", &[]).await;
        let refunds = send(&site, "/v1/refunds", &[]).await;
        let patched = site
            .client
            .patch(format!("http://{}/v1/refunds", site.address));
        let patched = patched.header("Idempotency-Key", "k1").body("a book");
        let patched = Reply::read(patched.send().await.unwrap()).await;
        for one in [&orders, &refunds, &patched] {
            assert_eq!(one.status, 201);
            assert!(!one.replayed());
        }
        assert_ne!(orders.body, refunds.body);
        assert_ne!(patched.body, refunds.body);
        assert!(send(&site, "/v1/orders", &[]).await.replayed());
        // One endpoint, two things: the same key cannot mean both.
        assert_eq!(send(&site, "/v1/orders/1/pay", &[]).await.status, 201);
        send(&site, "/v1/orders/2/pay", &[])
            .await
            .problem(422, "P4002");
        assert!(send(&site, "/v1/orders/1/pay", &[]).await.replayed());
        assert_eq!(world.effects().await, before + 4);
    }
    let named = "select count(distinct scope) from pgonce.intent where scope like '% /v1/%'";
    assert_eq!(world.number(named).await, 4);
}

#[tokio::test]
async fn a_key_belongs_to_its_tenant() {
    let world: World = World::new().await;
    let tenant = Caller::Header("x-tenant".parse().unwrap());
    let site = world
        .usual(Policy::new(SCOPE, Caller::None).tenant(tenant))
        .await;
    let red = send(&site, "/effects", &[("x-tenant", "red")]).await;
    let blue = send(&site, "/effects", &[("x-tenant", "blue")]).await;
    assert_ne!(red.body, blue.body);
    assert_eq!(
        send(&site, "/effects", &[("x-tenant", "red")]).await.body,
        red.body
    );
    for nobody in [&[][..], &[("x-tenant", "")]] {
        send(&site, "/effects", nobody)
            .await
            .problem(400, "tenant_missing");
    }
    send(
        &site,
        "/effects",
        &[("x-tenant", "red"), ("x-tenant", "blue")],
    )
    .await
    .problem(400, "tenant_missing");
    send(&site, "/effects", &[("x-tenant", &"t".repeat(256))])
        .await
        .problem(400, "22023");
    assert_eq!(
        world
            .number("select count(distinct tenant) from pgonce.intent")
            .await,
        2
    );
    // Nor does a function's empty name lead to the data of no tenant.
    let nameless = Caller::with(|_| Some(String::new()));
    let site = world
        .usual(Policy::new(SCOPE, Caller::None).tenant(nameless))
        .await;
    send(&site, "/effects", &[])
        .await
        .problem(400, "tenant_missing");
}

#[tokio::test]
async fn plain_keys_are_stored_as_they_are_for_other_doors_to_the_scope() {
    let world: World = World::new().await;
    let site = world
        .usual(Policy::new(SCOPE, Caller::None).plain_keys(true))
        .await;
    assert_eq!(site.post("/effects", "\"k1\"", "a book").await.status, 201);
    assert_eq!(world.text("select key from pgonce.intent").await, "k1");
}
