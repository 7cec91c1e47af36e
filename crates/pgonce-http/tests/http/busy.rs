//! What a duplicate gets while the first is in progress: 409, a wait, or a status URL.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use pgonce::scope::Busy;
use pgonce_http::{Caller, HandlerError, Key, Policy, Scope, Tx, status_route};

use crate::support::{
    Gate, Reply, SCOPE, Site, TestDriver, World, for_each_driver, leave_effect, made,
};

for_each_driver!(
    a_duplicate_learns_when_to_retry,
    a_duplicate_that_waits_gets_the_answer,
    a_duplicate_that_waits_too_long_is_busy,
    a_duplicate_learns_where_to_poll_and_gets_the_answer_there,
);

const HOUR: Duration = Duration::from_secs(3600);

async fn gated<D: TestDriver>(
    State(gate): State<Gate>,
    mut tx: Tx<D>,
    key: Key,
    note: String,
) -> Result<Response, HandlerError> {
    leave_effect(&mut tx, &key, &note).await?;
    gate.pass().await;
    Ok(made())
}

/// The same behaviour in both modes; the handler waits at the gate.
async fn site_with<D: TestDriver>(world: &World<D>, policy: Policy) -> (Site, Gate) {
    let gate = Gate::closed();
    let atomic = world.atomic(policy.clone().scope(Scope::Named("atomic".into())));
    atomic.agree().await.unwrap();
    let leased = world.leased(policy);
    leased.agree().await.unwrap();
    let outside = async |State(gate): State<Gate>| {
        gate.pass().await;
        made()
    };
    let router = Router::new()
        .route("/atomic", post(gated::<D>).layer(atomic))
        .route("/leased", post(outside).layer(leased.clone()))
        .route("/status/{token}", status_route(&leased));
    (Site::open(router.with_state(gate.clone())).await, gate)
}

async fn a_duplicate_learns_when_to_retry<D: TestDriver>(world: World<D>) {
    let (site, gate) = site_with(&world, Policy::new(SCOPE, Caller::None).retention(HOUR)).await;
    for (number, path) in ["/atomic", "/leased"].into_iter().enumerate() {
        let (first, ()) = tokio::join!(site.post(path, "k1", "a book"), async {
            gate.until_entered(number + 1).await;
            let busy = site.post(path, "k1", "a book").await;
            busy.problem(409, "P4029");
            let after: u32 = busy.headers["retry-after"]
                .to_str()
                .unwrap()
                .parse()
                .unwrap();
            // Until the lease ends where there is one, as the contract says: it is the latest time.
            let longest = if path == "/leased" { 30 } else { 5 };
            assert!((1..=longest).contains(&after), "{path}: {after}");
            assert!(path == "/atomic" || after > 20, "{after}");
            gate.let_pass(1);
        });
        assert_eq!((first.status, first.replayed()), (201, false));
        assert!(site.post(path, "k1", "a book").await.replayed());
    }
}

async fn a_duplicate_that_waits_gets_the_answer<D: TestDriver>(world: World<D>) {
    let policy = Policy::new(SCOPE, Caller::None)
        .retention(HOUR)
        .busy(Busy::Wait);
    let (site, gate) = site_with(&world, policy.wait_timeout(Duration::from_secs(60))).await;
    for (number, path) in ["/atomic", "/leased"].into_iter().enumerate() {
        let (first, second, ()) = tokio::join!(
            site.post(path, "k1", "a book"),
            async {
                gate.until_entered(number + 1).await;
                site.post(path, "k1", "a book").await
            },
            async {
                gate.until_entered(number + 1).await;
                if path == "/atomic" {
                    world.until_somebody_waits().await;
                }
                gate.let_pass(1);
            },
        );
        assert_eq!((first.status, &first.body), (second.status, &second.body));
        assert!(second.replayed() && !first.replayed());
    }
}

async fn a_duplicate_that_waits_too_long_is_busy<D: TestDriver>(world: World<D>) {
    let policy = Policy::new(SCOPE, Caller::None)
        .retention(HOUR)
        .busy(Busy::Wait);
    let (site, gate) = site_with(&world, policy.wait_timeout(Duration::from_millis(50))).await;
    for (number, path) in ["/atomic", "/leased"].into_iter().enumerate() {
        let (first, ()) = tokio::join!(site.post(path, "k1", "a book"), async {
            gate.until_entered(number + 1).await;
            site.post(path, "k1", "a book").await.problem(409, "P4029");
            gate.let_pass(1);
        });
        assert_eq!(first.status, 201);
    }
}

async fn a_duplicate_learns_where_to_poll_and_gets_the_answer_there<D: TestDriver>(
    world: World<D>,
) {
    let policy = Policy::new(SCOPE, Caller::Header("x-user".parse().unwrap()))
        .retention(HOUR)
        .busy(Busy::Accept)
        .status_at("/status");

    let (site, gate) = site_with(&world, policy).await;
    let post = async |key: &str| {
        let request = site
            .request("/leased", key)
            .header("x-user", "ada")
            .body("a book");
        Reply::read(request.send().await.unwrap()).await
    };
    let ask = async |url: &str, who: &str| {
        let request = site
            .client
            .get(format!("http://{}{url}", site.address))
            .header("x-user", who);
        Reply::read(request.send().await.unwrap()).await
    };
    let (first, url) = tokio::join!(post("k1"), async {
        gate.until_entered(1).await;
        let accepted = post("k1").await;
        assert_eq!(accepted.status, 202);
        assert!(accepted.headers.contains_key("retry-after"));
        let url = accepted.headers["location"].to_str().unwrap().to_owned();
        assert_eq!(ask(&url, "ada").await.status, 202);
        ask(&url, "bob").await.problem(404, "not_under_way");
        gate.let_pass(1);
        url
    });
    let answer = ask(&url, "ada").await;
    assert_eq!(
        (answer.status, &answer.body, answer.replayed()),
        (201, &first.body, true)
    );
    assert_eq!(answer.headers["location"], first.headers["location"]);
    ask(&url, "bob").await.problem(404, "not_under_way");
    ask("/status/nonsense", "ada")
        .await
        .problem(404, "not_under_way");
    ask(&url, "").await.problem(401, "principal_missing");
}
