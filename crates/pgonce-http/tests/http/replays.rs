//! Who may see a stored answer, until when, and what follows after that.

use std::time::{Duration, SystemTime};

use axum::Router;
use axum::response::IntoResponse as _;
use axum::routing::post;
use http::StatusCode;
use pgonce::scope::AfterExpiry;
use pgonce::{Ack, Failure, Fingerprint, Intent, Once, ReplayCache};
use pgonce_http::{Caller, Policy, Reauthorise};

use crate::support::{Reply, SCOPE, Site, TestDriver, World, effect, for_each_driver};

for_each_driver!(
    an_answer_says_until_when_it_is_kept_and_is_gone_after_that,
    an_answer_promises_what_the_contract_keeps_whatever_the_policy_says,
    a_replay_is_given_only_to_those_who_may_still_see_it,
    a_cached_replay_is_the_same_response_and_its_reader_is_still_asked_about,
);

const HOUR: Duration = Duration::from_secs(3600);

async fn an_answer_says_until_when_it_is_kept_and_is_gone_after_that<D: TestDriver>(
    world: World<D>,
) {
    let policy = Policy::new(SCOPE, Caller::None)
        .retention(HOUR)
        .after_expiry(AfterExpiry::Gone(None));
    let layer = world.atomic(policy);
    layer.agree().await.unwrap();
    let site = Site::open(Router::new().route("/effects", post(effect::<D>).layer(layer))).await;
    let before = SystemTime::now();
    let first = site.post("/effects", "k1", "a book").await;
    let until =
        httpdate::parse_http_date(first.headers["idempotency-expires"].to_str().unwrap()).unwrap();
    let second = Duration::from_secs(1);
    assert!(
        until + second >= before + HOUR && until <= SystemTime::now() + HOUR,
        "{until:?}"
    );
    let again = site.post("/effects", "k1", "a book").await;
    assert_eq!(
        again.headers["idempotency-expires"],
        first.headers["idempotency-expires"]
    );
    world
        .run_sql("select pgonce._move_clock(interval '2 hours')")
        .await;
    site.post("/effects", "k1", "a book")
        .await
        .problem(410, "P4031");
    assert_eq!(world.effects().await, 1);
}

/// A client that trusts a time beyond the contract's would come back for a second effect.
async fn an_answer_promises_what_the_contract_keeps_whatever_the_policy_says<D: TestDriver>(
    world: World<D>,
) {
    let agreed = world.atomic(Policy::new(SCOPE, Caller::None).retention(HOUR));
    agreed.agree().await.unwrap();
    for (key, policy) in [
        (
            "requests",
            Policy::new(SCOPE, Caller::None).retention(HOUR * 1000),
        ),
        ("silent", Policy::new(SCOPE, Caller::None)),
    ] {
        let site = world.usual(policy).await;
        let reply = site.post("/effects", key, "a book").await;
        let until = reply.headers["idempotency-expires"].to_str().unwrap();
        let until = httpdate::parse_http_date(until).unwrap();
        let left = until.duration_since(SystemTime::now()).unwrap();
        assert!(left <= HOUR && left > HOUR / 2, "{key}: {left:?}");
    }
}

async fn a_replay_is_given_only_to_those_who_may_still_see_it<D: TestDriver>(world: World<D>) {
    let hook = Reauthorise::new(async |head: http::request::Parts| {
        match head.headers.contains_key("x-dismissed") {
            true => Err(StatusCode::FORBIDDEN.into_response()),
            false => Ok(()),
        }
    });
    let site = world
        .usual(Policy::new(SCOPE, Caller::None).reauthorise(hook))
        .await;
    let send = async |dismissed: bool| {
        let mut request = site.request("/effects", "k1").body("a book");
        if dismissed {
            request = request.header("x-dismissed", "1");
        }
        Reply::read(request.send().await.unwrap()).await
    };
    let first = send(false).await;
    assert_eq!(first.status, 201);
    let refused = send(true).await;
    assert_eq!((refused.status, refused.replayed()), (403, false));
    assert_eq!(send(false).await.body, first.body);
}

async fn a_cached_replay_is_the_same_response_and_its_reader_is_still_asked_about<D: TestDriver>(
    mut world: World<D>,
) {
    let cache = ReplayCache::in_process().max_staleness(HOUR);
    let once = Once::builder(world.once.driver().clone()).cache(cache);
    world.once = once.build().unwrap();
    let hook = Reauthorise::new(|head| {
        let dismissed = head.headers.contains_key("x-dismissed");
        async move {
            match dismissed {
                true => Err(StatusCode::FORBIDDEN.into_response()),
                false => Ok(()),
            }
        }
    });
    let policy = Policy::new(SCOPE, Caller::None).reauthorise(hook);
    let site = world.usual(policy).await;
    let first = site.post("/effects", "k1", "a book").await;
    let hits = || world.once.cache_counts().unwrap().hits;
    let mut before = hits();
    while hits() < before + 3 {
        let again = site.post("/effects", "k1", "a book").await;
        assert!(again.replayed());
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!(
            again.headers["idempotency-expires"],
            first.headers["idempotency-expires"]
        );
    }
    before = hits();
    let dismissed = site.request("/effects", "k1").body("a book");
    let dismissed = dismissed.header("x-dismissed", "1").send().await;
    let refused = Reply::read(dismissed.unwrap()).await;
    assert_eq!((refused.status, refused.replayed()), (403, false));
    assert_eq!(hits(), before + 1);
    let other = site.post("/effects", "k1", "a pen").await;
    other.problem(422, "P4002");
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn what_another_client_has_ended_is_answered_in_http_terms() {
    let world: World = World::new().await;
    let print = pgonce_http::RequestPrint::Custom(pgonce_http::Print::new(|_, _| {
        Fingerprint::of_bytes(b"x")
    }));
    let site = world
        .usual(
            Policy::new(SCOPE, Caller::None)
                .plain_keys(true)
                .fingerprint(print),
        )
        .await;
    // Learns the fingerprint of any request to this route.
    let _ = site.post("/effects", "k0", "").await;
    let stored: Vec<u8> = sqlx::query_scalar("select fingerprint from pgonce.intent")
        .fetch_one(&world.pool)
        .await
        .unwrap();
    let intent = |key: &str| {
        Intent::with_fingerprint(SCOPE, key, Fingerprint::custom(stored.clone())).unwrap()
    };
    let value = Ack::value(&serde_json::json!({"order": 7})).unwrap();
    let _ = world
        .once
        .run(&intent("value"), |attempt| attempt.succeed(value.clone()))
        .await
        .unwrap();
    let reference = Ack::reference_to("order", 7);
    let _ = world
        .once
        .run(&intent("reference"), |attempt| {
            attempt.succeed(reference.clone())
        })
        .await
        .unwrap();
    let refused = || Failure::permanent("card_declined", "the bank said no");
    let _ = world
        .once
        .run::<(), _, _>(&intent("refused"), async |_| Err(refused().into()))
        .await
        .unwrap_err();

    let reply = site.post("/effects", "value", "").await;
    assert_eq!(
        (reply.status, &*reply.body, reply.replayed()),
        (200, &br#"{"order":7}"#[..], true)
    );
    let reply = site.post("/effects", "reference", "").await;
    assert_eq!(
        reply.problem(410, "P4031")["made"],
        serde_json::json!({"type": "order", "id": "7"})
    );
    let reply = site.post("/effects", "refused", "").await;
    assert_eq!(reply.problem(422, "P4030")["reason"], "card_declined");
    assert!(reply.replayed());
    assert_eq!(world.effects().await, 1);
}
