//! Which answers are kept is the route's choice; what was refused before any effect burns no key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::StatusCode;
use pgonce::Failure;
use pgonce_http::{
    Caller, Disposition, HandlerError, KeepFor, Key, Outcomes, Policy, Problem, ReplayHeaders, Tx,
};

use crate::support::{SCOPE, Site, TestDriver, World, for_each_driver, leave_effect, made};

for_each_driver!(
    frozen_the_first_result_stays_whatever_it_is,
    what_was_not_processed_is_never_frozen,
    a_service_says_in_a_header_what_becomes_of_its_response,
    a_status_may_have_a_disposition_of_its_own,
    finished_failed_work_is_done_on_retry,
    by_default_final_refusals_stay_and_passing_ones_do_not,
    the_handler_may_say_what_becomes_of_its_answer,
    a_transient_error_of_the_database_is_tried_again_unseen,
    a_failure_that_the_handler_names_is_remembered,
    an_answer_may_have_a_time_of_its_own,
    leased_work_whose_answer_broke_off_is_never_run_again_by_default,
);

type Runs = Arc<AtomicUsize>;

/// Leaves an effect; answers with the status in the body the first time, then with success.
async fn first_fails<D: TestDriver>(
    State(runs): State<Runs>,
    mut tx: Tx<D>,
    key: Key,
    status: String,
) -> Result<Response, HandlerError> {
    leave_effect(&mut tx, &key, &status).await?;
    if runs.fetch_add(1, SeqCst) > 0 {
        return Ok(made());
    }
    let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
    Ok((status, uuid::Uuid::new_v4().to_string()).into_response())
}

async fn site_with<D: TestDriver>(world: &World<D>, policy: Policy) -> (Site, Runs) {
    let runs = Runs::default();
    let router = Router::new().route(
        "/atomic",
        post(first_fails::<D>).layer(world.atomic(policy.clone())),
    );
    let leased = async |State(runs): State<Runs>, status: String| {
        if runs.fetch_add(1, SeqCst) > 0 {
            return made();
        }
        let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
        (status, uuid::Uuid::new_v4().to_string()).into_response()
    };
    let router = router.route("/leased", post(leased).layer(world.leased(policy)));
    (Site::open(router.with_state(runs.clone())).await, runs)
}

async fn frozen_the_first_result_stays_whatever_it_is<D: TestDriver>(world: World<D>) {
    let (site, runs) = site_with(
        &world,
        Policy::new(SCOPE, Caller::None).outcomes(Outcomes::Freeze),
    )
    .await;
    for path in ["/atomic", "/leased"] {
        for status in ["500", "409", "404", "200"] {
            runs.store(0, SeqCst);
            let key = format!("{path}-{status}");
            let first = site.post(path, &key, status).await;
            assert_eq!(first.status.to_string(), status);
            let again = site.post(path, &key, status).await;
            assert_eq!(
                (again.status, &again.body, again.replayed()),
                (first.status, &first.body, true)
            );
            assert_eq!(runs.load(SeqCst), 1);
        }
    }
    // Refused work has no effect; done work has.
    assert_eq!(world.effects().await, 1);
}

async fn what_was_not_processed_is_never_frozen<D: TestDriver>(world: World<D>) {
    let (site, runs) = site_with(
        &world,
        Policy::new(SCOPE, Caller::None).outcomes(Outcomes::Freeze),
    )
    .await;
    let everywhere = ["401", "403", "408", "425", "429"].map(|status| ("/atomic", status));
    let leased =
        ["400", "401", "403", "408", "422", "425", "429"].map(|status| ("/leased", status));
    for (path, status) in everywhere.into_iter().chain(leased) {
        runs.store(0, SeqCst);
        let key = format!("{path}-{status}");
        let first = site.post(path, &key, status).await;
        assert_eq!(first.status.to_string(), status);
        assert!(!first.headers.contains_key("idempotency-expires"));
        // The key is free, also for the request that was corrected.
        let again = site.post(path, &key, "200").await;
        assert_eq!((again.status, again.replayed()), (201, false), "{key}");
    }
    // From between: the service may have done its work, so the claim stays.
    for status in ["502", "503", "504"] {
        runs.store(0, SeqCst);
        assert_eq!(
            site.post("/leased", status, status)
                .await
                .status
                .to_string(),
            status
        );
        site.post("/leased", status, status)
            .await
            .problem(409, "P4029");
        assert_eq!(runs.load(SeqCst), 1);
    }
}

async fn a_service_says_in_a_header_what_becomes_of_its_response<D: TestDriver>(world: World<D>) {
    let runs = Runs::default();
    let service = async |State(runs): State<Runs>, word: String| {
        let number = runs.fetch_add(1, SeqCst).to_string();
        let said = [
            ("pgonce-disposition", word),
            ("pgonce-keep-for", "7200".to_owned()),
        ];
        (StatusCode::IM_A_TEAPOT, said, number)
    };
    let policy = Policy::new(SCOPE, Caller::None).replay_headers(ReplayHeaders::All);
    let policy = policy.retention(Duration::from_secs(3600));
    let layer = world.leased(policy);
    layer.agree().await.unwrap();
    let router = Router::new().route("/effects", post(service).layer(layer));
    let site = Site::open(router.with_state(runs.clone())).await;
    for (word, stays) in [
        ("keep", true),
        ("Refuse", true),
        ("retry", false),
        ("forget", false),
    ] {
        let first = site.post("/effects", word, word).await;
        let again = site.post("/effects", word, word).await;
        assert_eq!(
            (again.replayed(), again.body == first.body),
            (stays, stays),
            "{word}"
        );
        for reply in [&first, &again] {
            assert_eq!(reply.status, 418);
            let leaked = reply
                .headers
                .keys()
                .any(|name| name.as_str().starts_with("pgonce-"));
            assert!(!leaked, "{word}");
        }
    }
    let kept = "select count(*) from pgonce.intent where status in ('succeeded', 'failed_final') \
                and expires_at > last_at + interval '119 minutes'";
    assert_eq!(world.number(kept).await, 2);
}

async fn a_status_may_have_a_disposition_of_its_own<D: TestDriver>(world: World<D>) {
    let policy = Policy::new(SCOPE, Caller::None)
        .on_status(
            [StatusCode::FORBIDDEN, StatusCode::BAD_REQUEST],
            Disposition::Refuse,
        )
        .on_status(
            [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE],
            Disposition::Retry,
        );
    let (site, runs) = site_with(&world, policy).await;
    for path in ["/atomic", "/leased"] {
        for (status, stays) in [("403", true), ("400", true), ("404", false), ("503", false)] {
            runs.store(0, SeqCst);
            let key = format!("{path}-{status}");
            site.post(path, &key, status).await;
            let again = site.post(path, &key, status).await;
            assert_eq!(again.replayed(), stays, "{key}");
        }
    }
}

async fn finished_failed_work_is_done_on_retry<D: TestDriver>(world: World<D>) {
    let (site, runs) = site_with(
        &world,
        Policy::new(SCOPE, Caller::None).outcomes(Outcomes::Finish),
    )
    .await;
    for path in ["/atomic", "/leased"] {
        for status in ["500", "422"] {
            runs.store(0, SeqCst);
            let key = format!("{path}-{status}");
            assert_eq!(
                site.post(path, &key, status).await.status.to_string(),
                status
            );
            // The key has its meaning already.
            site.post(path, &key, "499").await.problem(422, "P4002");
            let done = site.post(path, &key, status).await;
            assert_eq!((done.status, done.replayed()), (201, false));
            let again = site.post(path, &key, status).await;
            assert_eq!((&again.body, again.replayed()), (&done.body, true));
            assert_eq!(runs.load(SeqCst), 2);
        }
    }
    assert_eq!(world.effects().await, 2);
}

async fn by_default_final_refusals_stay_and_passing_ones_do_not<D: TestDriver>(world: World<D>) {
    let (site, runs) = site_with(&world, Policy::new(SCOPE, Caller::None)).await;
    for (path, status, stays) in [
        ("/atomic", "404", true),
        ("/atomic", "422", true),
        ("/atomic", "500", false),
        ("/atomic", "409", false),
        ("/atomic", "429", false),
        ("/leased", "404", true),
        // Nobody knows what a service had done before it failed.
        ("/leased", "500", true),
    ] {
        runs.store(0, SeqCst);
        let key = format!("{path}-{status}");
        assert_eq!(
            site.post(path, &key, status).await.status.to_string(),
            status
        );
        assert_eq!(
            site.post(path, &key, status).await.replayed(),
            stays,
            "{path} {status}"
        );
    }
}

async fn by_mark<D: TestDriver>(
    State(runs): State<Runs>,
    mut tx: Tx<D>,
    key: Key,
    mark: String,
) -> Result<Response, HandlerError> {
    runs.fetch_add(1, SeqCst);
    leave_effect(&mut tx, &key, &mark).await?;
    let (status, disposition) = match mark.as_str() {
        "keep" => (StatusCode::PAYMENT_REQUIRED, Disposition::Keep),
        "refuse" => (StatusCode::OK, Disposition::Refuse),
        "retry" => (StatusCode::OK, Disposition::Retry),
        "unknown" => (StatusCode::OK, Disposition::Unknown),
        _ => (StatusCode::OK, Disposition::Forget),
    };
    let mut response = (status, mark).into_response();
    response.extensions_mut().insert(disposition);
    Ok(response)
}

async fn the_handler_may_say_what_becomes_of_its_answer<D: TestDriver>(world: World<D>) {
    let runs = Runs::default();
    let router = Router::new().route(
        "/effects",
        post(by_mark::<D>).layer(world.atomic(Policy::new(SCOPE, Caller::None))),
    );
    let site = Site::open(router.with_state(runs.clone())).await;
    for (mark, replays, effects, rows) in [
        ("keep", true, 1, 1),
        ("refuse", true, 0, 1),
        ("retry", false, 0, 1),
        ("forget", false, 0, 0),
        ("unknown", false, 0, 0),
    ] {
        world.run_sql("truncate effects, pgonce.intent").await;
        let first = site.post("/effects", mark, mark).await;
        let again = site.post("/effects", mark, mark).await;
        assert_eq!((&again.body, again.status), (&first.body, first.status));
        assert_eq!(again.replayed(), replays, "{mark}");
        assert_eq!(world.effects().await, effects, "{mark}");
        assert_eq!(
            world.number("select count(*) from pgonce.intent").await,
            rows,
            "{mark}"
        );
    }
}

#[tokio::test]
async fn what_is_refused_before_any_effect_does_not_burn_the_key() {
    type Sqlx = pgonce::driver::sqlx::Sqlx;
    let world: World = World::new().await;
    let handler = async |mut tx: Tx<Sqlx>, key: Key, axum::Json(amount): axum::Json<i64>| {
        if amount <= 0 {
            let reply = "the amount is not positive; send it in cents, 1 or more";
            return Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "amount_not_positive",
                reply,
            )
            .into());
        }
        leave_effect(&mut tx, &key, &amount.to_string()).await?;
        Ok::<_, HandlerError>(made())
    };
    for outcomes in [Outcomes::Final, Outcomes::Freeze, Outcomes::Finish] {
        world.run_sql("truncate effects, pgonce.intent").await;
        let layer = world.atomic(Policy::new(SCOPE, Caller::None).outcomes(outcomes));
        let site = Site::open(Router::new().route("/effects", post(handler).layer(layer))).await;
        let send = async |body: &'static str| {
            let request = site
                .request("/effects", "k1")
                .header("content-type", "application/json");
            request.body(body).send().await.unwrap().status().as_u16()
        };
        assert_eq!(send("0").await, 422);
        assert_eq!(send("not json").await, 400);
        assert_eq!(send("5").await, 201);
        assert_eq!(send("0").await, 422, "the key is taken now");
        assert_eq!(world.effects().await, 1);
    }
}

/// Meets a serialization failure twice, then works.
async fn unlucky<D: TestDriver>(
    State(runs): State<Runs>,
    mut tx: Tx<D>,
    key: Key,
    note: String,
) -> Result<Response, HandlerError> {
    leave_effect(&mut tx, &key, &note).await?;
    if runs.fetch_add(1, SeqCst) < 2 {
        let raise = "do $$ begin raise exception 'planned' using errcode = '40001'; end $$";
        D::exec(tx.conn(), raise).await?;
    }
    Ok(made())
}

async fn a_transient_error_of_the_database_is_tried_again_unseen<D: TestDriver>(world: World<D>) {
    let runs = Runs::default();
    let router = Router::new().route(
        "/effects",
        post(unlucky::<D>).layer(world.atomic(Policy::new(SCOPE, Caller::None))),
    );
    let site = Site::open(router.with_state(runs.clone())).await;
    let reply = site.post("/effects", "k1", "a book").await;
    assert_eq!((reply.status, reply.replayed()), (201, false));
    assert_eq!((runs.load(SeqCst), world.effects().await), (3, 1));
}

async fn forbidden<D: TestDriver>(
    mut tx: Tx<D>,
    key: Key,
    note: String,
) -> Result<Response, HandlerError> {
    leave_effect(&mut tx, &key, &note).await?;
    match note.as_str() {
        "forbidden" => {
            Err(Failure::permanent("item_forbidden", "this item is not for sale").into())
        }
        _ => Err(Failure::transient("till_closed", "the till is closed").into()),
    }
}

async fn a_failure_that_the_handler_names_is_remembered<D: TestDriver>(world: World<D>) {
    let layer = world.atomic(Policy::new(SCOPE, Caller::None));
    let site = Site::open(Router::new().route("/effects", post(forbidden::<D>).layer(layer))).await;
    let first = site.post("/effects", "k1", "forbidden").await;
    assert_eq!(first.problem(422, "P4030")["reason"], "item_forbidden");
    let again = site.post("/effects", "k1", "forbidden").await;
    assert_eq!(
        (&again.body, again.replayed(), first.replayed()),
        (&first.body, true, false)
    );
    let reply = site.post("/effects", "k2", "later").await;
    assert_eq!(
        (reply.status, reply.headers.contains_key("retry-after")),
        (503, true)
    );
    let codes = world
        .text("select string_agg(failure_code, ' ' order by key) from pgonce.intent")
        .await;
    assert_eq!(
        (codes.as_str(), world.effects().await),
        ("item_forbidden till_closed", 0)
    );
}

#[tokio::test]
async fn a_permanent_error_of_the_database_is_reported_without_its_secrets() {
    type Sqlx = pgonce::driver::sqlx::Sqlx;
    let world: World = World::new().await;
    let handler = async |mut tx: Tx<Sqlx>| {
        sqlx::query("select secret_column from effects")
            .execute(tx.conn())
            .await?;
        Ok::<_, HandlerError>(made())
    };
    let layer = world.atomic(Policy::new(SCOPE, Caller::None));
    let site =
        Site::open(Router::new().route("/effects", post(handler).layer(layer.clone()))).await;
    let reply = site.post("/effects", "k1", "").await;
    reply.problem(500, "internal");
    assert!(!String::from_utf8_lossy(&reply.body).contains("secret"));
    assert_eq!(layer.counters().errors(), 1);
    assert_eq!(world.number("select count(*) from pgonce.intent").await, 0);
}

async fn an_answer_may_have_a_time_of_its_own<D: TestDriver>(world: World<D>) {
    let answer = async |status: String| {
        let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
        let mut response = (status, "kept").into_response();
        response
            .extensions_mut()
            .insert(KeepFor(Duration::from_secs(3 * 3600)));
        response
    };
    let policy = || Policy::new(SCOPE, Caller::None).outcomes(Outcomes::Freeze);
    let atomic = async move |mut tx: Tx<D>, key: Key, status: String| {
        leave_effect(&mut tx, &key, &status).await?;
        Ok::<_, HandlerError>(answer(status).await)
    };
    let router = Router::new()
        .route("/atomic", post(atomic).layer(world.atomic(policy())))
        .route("/leased", post(answer).layer(world.leased(policy())));
    let site = Site::open(router).await;
    for path in ["/atomic", "/leased"] {
        for status in ["201", "404"] {
            let key = format!("{path}{status}");
            let first = site.post(path, &key, status).await;
            assert_eq!(first.status.to_string(), status);
            let again = site.post(path, &key, status).await;
            assert!(again.replayed());
            assert_eq!(
                again.headers["idempotency-expires"],
                first.headers["idempotency-expires"]
            );
        }
    }
    let lasts = "select count(*) from pgonce.intent \
                 where expires_at - coalesce(last_at, first_at) = interval '3 hours'";
    assert_eq!(world.number(lasts).await, 4);
}

async fn leased_work_whose_answer_broke_off_is_never_run_again_by_default<D: TestDriver>(
    world: World<D>,
) {
    for outcomes in [Outcomes::Final, Outcomes::Finish] {
        let runs = Runs::default();
        // It says that it is done, and breaks off in the middle of its body.
        let breaks = async |State(runs): State<Runs>| {
            runs.fetch_add(1, SeqCst);
            let parts = [Ok("half"), Err(std::io::Error::other("gone"))];
            Response::new(Body::from_stream(futures_util::stream::iter(parts)))
        };
        let key = format!("{outcomes:?}");
        let layer = world.leased(Policy::new(SCOPE, Caller::None).outcomes(outcomes));
        let router = Router::new().route("/leased", post(breaks).layer(layer));
        let site = Site::open(router.with_state(runs.clone())).await;
        let first = site.post("/leased", &key, "a book").await;
        first.problem(500, "handler_failed");
        // Nobody knows whether it happened: the claim stays, and the contract decides later.
        let again = site.post("/leased", &key, "a book").await;
        again.problem(409, "P4029");
        assert_eq!(runs.load(SeqCst), 1);
    }
}
