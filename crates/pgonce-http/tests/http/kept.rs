//! Whatever time an answer asks to be kept for, what happened is recorded.

use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse as _;
use axum::routing::post;
use http::StatusCode;
use pgonce_http::{Caller, HandlerError, KeepFor, Key, Outcomes, Policy, Tx};

use crate::support::{SCOPE, SOON, Site, TestDriver, World, for_each_driver, leave_effect};

for_each_driver!(
    an_answer_that_is_to_be_kept_for_ever_is_recorded,
    an_answer_whose_own_time_the_database_refuses_is_recorded_without_it,
);

async fn an_answer_that_is_to_be_kept_for_ever_is_recorded<D: TestDriver>(world: World<D>) {
    let policy = || {
        let policy = Policy::new(SCOPE, Caller::None).outcomes(Outcomes::Freeze);
        policy.handler_timeout(Duration::MAX)
    };
    let said = async |body: String| {
        let (status, time) = body.split_once(' ').unwrap();
        let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
        (status, [("pgonce-keep-for", time.to_owned())])
    };
    let atomic = async |mut tx: Tx<D>, key: Key, body: String| {
        leave_effect(&mut tx, &key, &body).await?;
        let status = body.split(' ').next().unwrap();
        let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
        let mut response = (status, "kept").into_response();
        response.extensions_mut().insert(KeepFor(Duration::MAX));
        Ok::<_, HandlerError>(response)
    };
    let router = Router::new()
        .route("/atomic", post(atomic).layer(world.atomic(policy())))
        .route("/leased", post(said).layer(world.leased(policy())));
    let site = Site::open(router).await;
    let times = [u64::MAX, 10_000_000_000_000, 3_000_000_000];
    for path in ["/atomic", "/leased"] {
        for status in ["201", "404"] {
            for time in times {
                let (key, body) = (format!("{path}{status}{time}"), format!("{status} {time}"));
                for replayed in [false, true] {
                    let reply = site.post(path, &key, body.clone()).await;
                    assert_eq!(reply.status.to_string(), status, "{path} {time}: {reply:?}");
                    assert_eq!(reply.replayed(), replayed, "{path} {status} {time}");
                    assert!(reply.headers.contains_key("idempotency-expires"));
                }
            }
        }
    }
    let kept = "select count(*) from pgonce.intent where expires_at > now() + interval '90 years'";
    assert_eq!(world.number(kept).await, 12);
}

async fn an_answer_whose_own_time_the_database_refuses_is_recorded_without_it<D: TestDriver>(
    world: World<D>,
) {
    world
        .run_sql(
            "create function refuse() returns trigger language plpgsql as $$ begin \
             if new.expires_at > pgonce.now() + interval '1 year' then \
             raise exception 'timestamp out of range' using errcode = '22008'; end if; return new; end $$; \
             create trigger refuse before update on pgonce.intent for each row execute function refuse()",
        )
        .await;
    let answer = async || (StatusCode::CREATED, [("pgonce-keep-for", "100000000")]);
    let layer = world.leased(Policy::new(SCOPE, Caller::None).database_timeout(SOON));
    let site = Site::open(Router::new().route("/leased", post(answer).layer(layer))).await;
    for replayed in [false, true] {
        let reply = site.post("/leased", "k1", "a book").await;
        assert_eq!((reply.status, reply.replayed()), (201, replayed));
    }
}
