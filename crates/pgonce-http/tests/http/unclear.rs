//! What the record says about work is what happened; where nobody knows, it says that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use pgonce::migrate::Migrator;
use pgonce::{Done, Error, Failure, Intent, Once};
use pgonce_http::{Caller, HandlerError, IdempotencyLayer, Key, Outcomes, Oversize, Policy, Tx};
use pgonce_testkit::{Action, CuttingProxy, Direction, Fault, Message};

use crate::support::{
    Gate, SCOPE, SOON, Site, TestDriver, World, chunks, for_each_driver, leave_effect, made, until,
};

for_each_driver!(
    a_success_whose_answer_is_too_large_is_recorded_as_done,
    leased_work_that_failed_is_opened_again_only_by_force,
    the_status_of_a_grpc_web_call_is_read_from_its_body,
    atomic_work_whose_grpc_status_was_not_seen_is_never_answered_with_its_success,
    leased_work_whose_grpc_status_was_not_seen_is_not_done_again,
    a_claim_that_is_lost_during_the_call_gets_the_response_of_that_call,
    what_the_encoding_of_the_database_does_not_have_is_recorded_all_the_same,
    a_conflict_of_the_handlers_own_is_not_blamed_on_the_key,
    a_call_does_not_begin_under_a_claim_that_is_lost_already,
);

/// An operator's act: the code of its refusal, or nothing.
async fn act<D: TestDriver>(world: &World<D>, act: &str, key: &str, force: bool) -> String {
    let sql = "select pgonce.intervene($1, $2, $3, 'ticket 7', $4, p_code => 'by_hand', p_message => 'it never arrived')::text";
    let query = sqlx::query(sql).bind(act).bind(SCOPE).bind(key).bind(force);
    match query.execute(&world.pool).await {
        Ok(_) => String::new(),
        Err(error) => (error.as_database_error().unwrap().code().unwrap()).into_owned(),
    }
}

fn plain() -> Policy {
    Policy::new(SCOPE, Caller::None).plain_keys(true)
}

async fn verdict<D: TestDriver>(world: &World<D>, key: &str) -> String {
    let sql = "select pgonce._verdict(i) from pgonce.intent i where key = $1";
    let query = sqlx::query_scalar(sql).bind(key);
    query.fetch_one(&world.pool).await.unwrap()
}

async fn a_success_whose_answer_is_too_large_is_recorded_as_done<D: TestDriver>(world: World<D>) {
    let runs = Arc::<AtomicUsize>::default();
    let count = runs.clone();
    let large = async move || {
        count.fetch_add(1, SeqCst);
        (
            StatusCode::CREATED,
            Body::from_stream(chunks(&["12345", "67890", "abc"])),
        )
    };
    let layer = world.leased(plain().max_response(12));
    let site = Site::open(Router::new().route("/leased", post(large).layer(layer))).await;
    for replayed in [false, true] {
        let reply = site.post("/leased", "k1", "a book").await;
        reply.problem(500, "response_too_large");
        assert_eq!(reply.replayed(), replayed);
        let text = verdict(&world, "k1").await;
        assert!(text.starts_with("It happened once."), "{text}");
        // It is no failure that could be tried again.
        assert_eq!(act(&world, "retry", "k1", true).await, "55000");
        assert_eq!(act(&world, "evict", "k1", false).await, "55000");
    }
    assert_eq!(runs.load(SeqCst), 1);
}

async fn leased_work_that_failed_is_opened_again_only_by_force<D: TestDriver>(world: World<D>) {
    let leased = async |status: String| StatusCode::from_bytes(status.as_bytes()).unwrap();
    let atomic = async |mut tx: Tx<D>, key: Key, status: String| {
        leave_effect(&mut tx, &key, &status).await?;
        Ok::<_, HandlerError>(StatusCode::from_bytes(status.as_bytes()).unwrap())
    };
    let policy = || plain().outcomes(Outcomes::Freeze);
    let router = Router::new()
        .route("/leased", post(leased).layer(world.leased(policy())))
        .route("/atomic", post(atomic).layer(world.atomic(policy())));
    let site = Site::open(router).await;
    for (path, status, is_known) in [
        ("/leased", "500", false),
        ("/leased", "404", true),
        // Rolled back.
        ("/atomic", "500", true),
    ] {
        let key = &format!("{path}-{status}");
        assert_eq!(
            site.post(path, key, status).await.status.to_string(),
            status
        );
        assert!(site.post(path, key, status).await.replayed());
        let text = verdict(&world, key).await;
        assert_eq!(text.contains("is not known"), !is_known, "{key}: {text}");
        let refused = if is_known { "" } else { "55000" };
        assert_eq!(act(&world, "retry", key, false).await, refused, "{key}");
        if !is_known {
            assert_eq!(act(&world, "evict", key, false).await, refused);
            assert_eq!(act(&world, "retry", key, true).await, "");
        }
        assert!(!site.post(path, key, status).await.replayed(), "{key}");
    }
}

fn frame(flags: u8, payload: &str) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[flags], &length[..], payload.as_bytes()].concat()
}

/// Of a gRPC-Web call with this status; `-`: none that can be read.
fn web_answer(status: &str) -> Response {
    let end = match status {
        "-" => frame(0x81, "compressed"),
        status => frame(0x80, &format!("grpc-status:{status}\r\n")),
    };
    let body = [frame(0, &uuid::Uuid::new_v4().to_string()), end].concat();
    ([("content-type", "application/grpc-web+proto")], body).into_response()
}

async fn web_site<D: TestDriver>(world: &World<D>, runs: Arc<AtomicUsize>) -> Site {
    let count = runs.clone();
    let leased = async move |status: String| {
        count.fetch_add(1, SeqCst);
        web_answer(&status)
    };
    let atomic = async |mut tx: Tx<D>, key: Key, status: String| {
        leave_effect(&mut tx, &key, &status).await?;
        Ok::<_, HandlerError>(web_answer(&status))
    };
    let policy = || plain().outcomes(Outcomes::Final);
    let router = Router::new()
        .route("/leased", post(leased).layer(world.leased(policy())))
        .route("/atomic", post(atomic).layer(world.atomic(policy())));
    Site::open(router).await
}

async fn the_status_of_a_grpc_web_call_is_read_from_its_body<D: TestDriver>(world: World<D>) {
    let site = web_site(&world, Arc::default()).await;
    for path in ["/leased", "/atomic"] {
        // Done; a final refusal; a failure that a retry may get over.
        for (status, stays) in [("0", true), ("5", true), ("13", false)] {
            let key = format!("{path}-{status}");
            let first = site.post(path, &key, status).await;
            assert_eq!((first.status, first.replayed()), (200, false), "{key}");
            let again = site.post(path, &key, status).await;
            assert_eq!(again.replayed(), stays, "{key}");
            assert_eq!(again.body == first.body, stays, "{key}");
        }
    }
    assert_eq!(world.effects().await, 1);
}

/// Longer than is kept, so that its trailers are not seen.
async fn long_call() -> Response {
    let trailers = async {
        Some(Ok(HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            HeaderValue::from_static("0"),
        )])))
    };
    let body = Body::from_stream(chunks(&["12345", "67890", "abc"]));
    let body = Body::new(body.with_trailers(trailers));
    ([("content-type", "application/grpc")], body).into_response()
}

async fn atomic_work_whose_grpc_status_was_not_seen_is_never_answered_with_its_success<
    D: TestDriver,
>(
    world: World<D>,
) {
    let site = web_site(&world, Arc::default()).await;
    let reply = site.post("/atomic", "k1", "-").await;
    reply.problem(500, "handler_failed");
    let long = async |mut tx: Tx<D>, key: Key| {
        leave_effect(&mut tx, &key, "long").await?;
        Ok::<_, HandlerError>(long_call().await)
    };
    let policy = plain().max_response(12).oversize(Oversize::PassUnkept);
    let router = Router::new().route("/long", post(long).layer(world.atomic(policy)));
    let site = Site::open(router).await;
    let reply = site.post("/long", "k2", "").await;
    reply.problem(500, "handler_failed");
    assert_eq!(world.effects().await, 0);
    let rows = "select count(*) from pgonce.intent";
    assert_eq!(world.number(rows).await, 0, "the keys are free");
}

async fn leased_work_whose_grpc_status_was_not_seen_is_not_done_again<D: TestDriver>(
    world: World<D>,
) {
    let runs = Arc::<AtomicUsize>::default();
    let web = web_site(&world, runs.clone()).await;
    let count = runs.clone();
    let long = async move || {
        count.fetch_add(1, SeqCst);
        long_call().await
    };
    let policy = plain().max_response(12).oversize(Oversize::PassUnkept);
    let layer = world.leased(policy.outcomes(Outcomes::Finish));
    let long = Site::open(Router::new().route("/long", post(long).layer(layer))).await;
    for (site, path) in [(&web, "/leased"), (&long, "/long")] {
        runs.store(0, SeqCst);
        assert_eq!(site.post(path, path, "-").await.status, 200);
        site.post(path, path, "-").await.problem(409, "P4029");
        assert_eq!(runs.load(SeqCst), 1, "{path}");
    }
}

async fn a_claim_that_is_lost_during_the_call_gets_the_response_of_that_call<D: TestDriver>(
    world: World<D>,
) {
    for (status, after) in [("201", "succeeded"), ("404", "failed_final")] {
        for lost in ["evict", "release"] {
            let (gate, runs) = (Gate::closed(), Arc::<AtomicUsize>::default());
            let (at_gate, count) = (gate.clone(), runs.clone());
            let handler = post(async move |status: String| {
                count.fetch_add(1, SeqCst);
                at_gate.pass().await;
                (StatusCode::from_bytes(status.as_bytes()).unwrap(), made())
            });
            let layer = world.leased(plain());
            let router = Router::new().route("/leased", handler.layer(layer));
            let site = Site::open(router).await;
            let key = &format!("{status}-{lost}");
            let (first, ()) = tokio::join!(site.post("/leased", key, status), async {
                gate.until_entered(1).await;
                assert_eq!(act(&world, lost, key, true).await, "");
                gate.let_pass(1);
            });
            assert_eq!(first.status.to_string(), status, "{key}");
            let again = site.post("/leased", key, status).await;
            assert_eq!(
                (again.status, again.replayed()),
                (first.status, true),
                "{key}"
            );
            assert_eq!(again.body, first.body, "{key}");
            let sql = "select status::text from pgonce.intent where key = $1";
            let stored: String = (sqlx::query_scalar(sql).bind(key))
                .fetch_one(&world.pool)
                .await
                .unwrap();
            assert_eq!((stored.as_str(), runs.load(SeqCst)), (after, 1), "{key}");
        }
    }
}

async fn what_the_encoding_of_the_database_does_not_have_is_recorded_all_the_same<D: TestDriver>(
    world: World<D>,
) {
    let name = format!("{}_latin1", world.database);
    let create = format!(
        "create database {name} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0"
    );
    let run = async |sql: String| {
        let sql = sqlx::AssertSqlSafe(sql);
        sqlx::raw_sql(sql).execute(&world.pool).await.unwrap();
    };
    run(create).await;
    let url = pgonce_testkit::shared(None).await.unwrap().url_for(&name);
    let driver = D::connect(&url, 4);
    Migrator::new(driver.clone()).up().await.unwrap();
    let once = Once::builder(driver).build().unwrap();
    let failure = || Failure::permanent("nein", "\u{6f22} is no letter here");
    for replayed in [false, true] {
        for mode in ["atomic", "leased"] {
            let intent = Intent::new("failures", mode, &()).unwrap();
            let ended: Result<Done<()>, Error> = match mode {
                "atomic" => once.run(&intent, |_| async { Err(failure().into()) }).await,
                _ => {
                    once.run_leased(&intent, |_| async { Err(failure().into()) })
                        .await
                }
            };
            let Err(Error::Refused(refused)) = ended else {
                panic!("{mode}: {ended:?}")
            };
            assert_eq!(refused.replayed(), replayed, "{mode}");
            if replayed {
                assert_eq!(refused.message(), "? is no letter here", "{mode}");
            }
        }
    }
    let layer = IdempotencyLayer::leased(once, plain()).unwrap();
    let handler = async |status: String| {
        let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
        (status, [("content-language", "\u{e9}")], "done \u{1F600}")
    };
    let router = Router::new().route("/leased", post(handler).layer(layer.clone()));
    let site = Site::open(router).await;
    for (status, then) in [("201", 201), ("404", 422)] {
        let first = site.post("/leased", status, status).await;
        assert_eq!(first.status.to_string(), status);
        let again = site.post("/leased", status, status).await;
        assert_eq!((again.status, again.replayed()), (then, true), "{again:?}");
        if then == 201 {
            assert_eq!(again.body, first.body);
            assert_eq!(again.headers["content-language"], "\u{e9}");
        } else {
            assert_eq!(again.problem(422, "P4030")["reason"], "http_404");
        }
    }
    until("nothing is under way", || async { layer.under_way() == 0 }).await;
    drop((site, layer));
    run(format!("drop database {name} with (force)")).await;
}

async fn a_conflict_of_the_handlers_own_is_not_blamed_on_the_key<D: TestDriver>(world: World<D>) {
    let handler = async |mut tx: Tx<D>| {
        let raise = "do $$ begin raise exception 'the account has another currency' using errcode = 'P4070'; end $$";
        D::exec(tx.conn(), raise).await?;
        Ok::<_, HandlerError>(made())
    };
    let layer = world.atomic(plain());
    let router = Router::new().route("/effects", post(handler).layer(layer.clone()));
    let site = Site::open(router).await;
    let reply = site.post("/effects", "k1", "").await;
    let document: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.status, &document["code"]), (422, &"P4070".into()));
    assert_eq!(
        (layer.counters().conflicts(), layer.counters().refused()),
        (0, 1)
    );
}

/// The reply to its claim is so late that its lease is over, and somebody has settled it meanwhile.
async fn a_call_does_not_begin_under_a_claim_that_is_lost_already<D: TestDriver>(world: World<D>) {
    let proxy = CuttingProxy::start(("127.0.0.1", world.port)).unwrap();
    let driver = D::connect(&proxy.url_for(&world.database), 1);
    let policy = plain()
        .retention(Duration::from_secs(3600))
        .database_timeout(SOON);
    let policy = policy.lease(Duration::from_millis(500));
    let once = Once::builder(driver).build().unwrap();
    let layer = IdempotencyLayer::leased(once, policy).unwrap();
    layer.agree().await.unwrap();
    let runs = Arc::<AtomicUsize>::default();
    let count = runs.clone();
    let handler = async move || {
        count.fetch_add(1, SeqCst);
        made()
    };
    let router = Router::new().route("/leased", post(handler).layer(layer.clone()));
    let site = Site::open(router).await;
    let mut slow = world.pool.begin().await.unwrap();
    sqlx::raw_sql("lock table pgonce.intent in share row exclusive mode")
        .execute(&mut *slow)
        .await
        .unwrap();
    let meanwhile = async {
        let waiting = "select count(*) from pg_locks where relation = 'pgonce.intent'::regclass and not granted \
                       and database = (select oid from pg_database where datname = current_database())";
        until("the claim waits", || async {
            world.number(waiting).await == 1
        })
        .await;
        // Of its connection, the next message to the client is of the reply.
        let seen = proxy.transcript();
        let connection = seen.last().unwrap().connection;
        let to_client = |message: &&Message| {
            (message.connection, message.direction) == (connection, Direction::ToClient)
        };
        let message = seen.iter().filter(to_client).count() as u64;
        let (direction, action) = (Direction::ToClient, Action::Hold);
        proxy.arm(Fault {
            connection,
            direction,
            message,
            action,
        });
        slow.rollback().await.unwrap();
        proxy.held().await;
        let over = "select count(*) from pgonce.intent where lease_until < clock_timestamp()";
        until("the lease is over", || async {
            world.number(over).await == 1
        })
        .await;
        assert_eq!(act(&world, "fail", "k1", false).await, "");
        proxy.release();
    };
    let (reply, ()) = tokio::join!(site.post("/leased", "k1", ""), meanwhile);
    until("nothing is under way", || async { layer.under_way() == 0 }).await;
    assert_eq!(runs.load(SeqCst), 0);
    reply.problem(503, "08007");
    site.post("/leased", "k1", "").await.problem(422, "P4030");
}
