//! Without its database the layer answers 503 in time, and does nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use pgonce::Once;
use pgonce::scope::Stale;
use pgonce_http::{Caller, IdempotencyLayer, Policy};
use pgonce_testkit::{Action, CuttingProxy, Direction, Fault, Message, Postgres};

use crate::support::{
    Gate, Reply, SCOPE, SOON, Site, TestDriver, World, effect, for_each_driver, logged, made, until,
};

type Sqlx = pgonce::driver::sqlx::Sqlx;
type TokioPostgres = pgonce::driver::tokio_postgres::TokioPostgres;

/// The pools of these tests wait for as long as [`SOON`]: only the layer's limit can be this fast.
const LIMIT: Duration = Duration::from_secs(2);

fn limited(scope: &str) -> Policy {
    Policy::new(scope, Caller::None).database_timeout(LIMIT)
}

fn assert_unavailable(reply: &Reply) {
    let code = reply.problem(503, "08006")["code"].clone();
    assert_eq!(code, "08006");
    let after = reply.headers["retry-after"].to_str().unwrap();
    assert!(["1", "2", "3"].contains(&after), "{after}");
}

#[tokio::test]
async fn with_sqlx_a_crashed_database_is_reported_in_time_and_comes_back() {
    crashed_and_back::<Sqlx>().await;
}

#[tokio::test]
async fn with_tokio_postgres_a_crashed_database_is_reported_in_time_and_comes_back() {
    crashed_and_back::<TokioPostgres>().await;
}

async fn crashed_and_back<D: TestDriver>() {
    let server = Postgres::builder().start().await.unwrap();
    let world = World::<D>::on(&server).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let leased = post(async move || {
        count.fetch_add(1, SeqCst);
        made()
    });
    let router = Router::new()
        .route(
            "/effects",
            post(effect::<D>).layer(world.atomic(limited("atomic"))),
        )
        .route("/leased", leased.layer(world.leased(limited("leased"))));
    let site = Site::open(router).await;
    let first = site.post("/effects", "k1", "a book").await;
    let leased = site.post("/leased", "k1", "a book").await;
    server.crash().await.unwrap();
    let started = Instant::now();
    for path in ["/effects", "/leased"] {
        for key in ["k1", "k2"] {
            let reply = site.post(path, key, "a book").await;
            assert_eq!(reply.status, 503, "{path} {key}");
            assert_eq!(reply.headers["content-type"], "application/problem+json");
            assert!(reply.headers.contains_key("retry-after"));
        }
    }
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert_eq!(runs.load(SeqCst), 1, "done without a claim");
    server.start_again().await.unwrap();
    assert_eq!(site.post("/effects", "k1", "a book").await.body, first.body);
    assert_eq!(site.post("/leased", "k1", "a book").await.body, leased.body);
    assert_eq!(site.post("/effects", "k2", "a book").await.status, 201);
    assert_eq!(site.post("/leased", "k2", "a book").await.status, 201);
    assert_eq!((world.effects().await, runs.load(SeqCst)), (2, 2));
}

/// The claims of requests that were given up would come before those of clients who wait.
async fn what_was_given_up_in_an_outage_is_not_claimed_after_it<D: TestDriver>() {
    let server = Postgres::builder().start().await.unwrap();
    let world = World::<D>::on(&server).await;
    world
        .run_sql(
            "create sequence claims; create function count_claim() returns trigger language plpgsql as $$ begin \
             perform nextval('public.claims'); return new; end $$; \
             create trigger count_claim before insert on pgonce.intent for each row execute function count_claim()",
        )
        .await;
    let layer = world.leased(limited(SCOPE));
    let router = Router::new().route("/leased", post(async || made()).layer(layer.clone()));
    let site = Site::open(router).await;
    server.crash().await.unwrap();
    let keys = ["k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8"];
    let requests = keys.map(|key| site.post("/leased", key, "a book"));
    for reply in futures_util::future::join_all(requests).await {
        assert_unavailable(&reply);
    }
    server.start_again().await.unwrap();
    layer.drained().await;
    assert_eq!(site.post("/leased", "k1", "a book").await.status, 201);
    assert_eq!(world.number("select last_value from claims").await, 1);
}

#[tokio::test]
async fn with_sqlx_what_was_given_up_in_an_outage_is_not_claimed_after_it() {
    what_was_given_up_in_an_outage_is_not_claimed_after_it::<Sqlx>().await;
}

#[tokio::test]
async fn with_tokio_postgres_what_was_given_up_in_an_outage_is_not_claimed_after_it() {
    what_was_given_up_in_an_outage_is_not_claimed_after_it::<TokioPostgres>().await;
}

#[tokio::test]
async fn a_database_that_only_keeps_silent_is_reported_in_time() {
    // Accepts, and never says anything.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "postgres://postgres@{}/none",
        listener.local_addr().unwrap()
    );
    let _listening = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((wire, _)) = listener.accept().await {
            kept.push(wire);
        }
    });
    let once = pgonce::Once::builder(<Sqlx as TestDriver>::connect(&url, 5))
        .build()
        .unwrap();
    let atomic = pgonce_http::IdempotencyLayer::atomic(once.clone(), limited("a")).unwrap();
    let leased = pgonce_http::IdempotencyLayer::leased(once.clone(), limited("b")).unwrap();
    let open = pgonce_http::IdempotencyLayer::leased(once, limited("c").fail_open(true)).unwrap();
    let router = Router::new()
        .route("/atomic", post(effect::<Sqlx>).layer(atomic))
        .route("/leased", post(async || made()).layer(leased))
        .route("/open", post(async || made()).layer(open.clone()));
    let site = Site::open(router).await;
    for path in ["/atomic", "/leased"] {
        let started = Instant::now();
        assert_unavailable(&site.post(path, "k1", "a book").await);
        assert!(
            started.elapsed() < SOON - Duration::from_secs(5),
            "{:?}",
            started.elapsed()
        );
    }
    // Only where that was chosen is the work done all the same, and it is counted.
    assert_eq!(open.counters().unprotected(), 0);
    assert_eq!(site.post("/open", "k1", "a book").await.status, 201);
    assert_eq!(open.counters().unprotected(), 1);
}

#[tokio::test]
async fn an_answer_whose_recording_meets_a_crash_is_recorded_when_the_database_is_back() {
    let server = Postgres::builder().start().await.unwrap();
    let world = World::<TokioPostgres>::on(&server).await;
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let handler = post(async move || {
        at_gate.pass().await;
        made()
    });
    let layer = world.leased(limited(SCOPE));
    let site = Site::open(Router::new().route("/effects", handler.layer(layer.clone()))).await;
    let (reply, ()) = tokio::join!(site.post("/effects", "k1", "a book"), async {
        gate.until_entered(1).await;
        server.crash().await.unwrap();
        gate.let_pass(1);
    });
    // The work is done; whether it is recorded is not known yet.
    reply.problem(503, "08007");
    server.start_again().await.unwrap();
    layer.drained().await;
    let again = site.post("/effects", "k1", "a book").await;
    assert_eq!(
        (again.status, again.replayed(), gate.entered()),
        (201, true, 1)
    );
}

const LEASE: Duration = Duration::from_millis(500);

/// A gated service in leased mode, whose lease is shorter than the database's time limit.
async fn gated_service<D: TestDriver>(world: &World<D>, stale: Stale) -> (Site, Gate, Layer<D>) {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let handler = post(async move || {
        at_gate.pass().await;
        made()
    });
    let policy = limited(SCOPE)
        .retention(Duration::from_secs(3600))
        .lease(LEASE)
        .stale(stale);
    let policy = match stale {
        // What ends the wait is the error of the claim that follows, not a time limit.
        Stale::Takeover => policy.database_timeout(SOON),
        _ => policy,
    };
    let layer = world.leased(policy);
    layer.agree().await.unwrap();
    let router = Router::new().route("/effects", handler.layer(layer.clone()));
    (Site::open(router).await, gate, layer)
}

type Layer<D> = pgonce_http::IdempotencyLayer<D>;

#[tokio::test]
async fn a_call_that_outlives_its_lease_is_finished_and_settled_when_the_database_is_back() {
    // Under `refuse` a lease that ran out is over, whatever its holder did: others may have been refused.
    for (stale, status) in [(Stale::Refuse, 422), (Stale::Hold, 201)] {
        let server = Postgres::builder().start().await.unwrap();
        let world = World::<TokioPostgres>::on(&server).await;
        let (site, gate, layer) = gated_service(&world, stale).await;
        let (reply, ()) = tokio::join!(site.post("/effects", "k1", "a book"), async {
            gate.until_entered(1).await;
            server.crash().await.unwrap();
            let crashed = Instant::now();
            while crashed.elapsed() < LEASE * 2 {
                assert_unavailable(&site.post("/effects", "k2", "a book").await);
            }
            gate.let_pass(1);
        });
        reply.problem(503, "08007");
        server.start_again().await.unwrap();
        layer.drained().await;
        let again = site.post("/effects", "k1", "a book").await;
        assert_eq!(
            (again.status, again.replayed(), gate.entered()),
            (status, true, 1),
            "{stale:?}"
        );
    }
}

#[tokio::test]
async fn a_call_that_is_cut_for_its_lease_is_never_said_not_to_have_happened() {
    let server = Postgres::builder().start().await.unwrap();
    let world = World::<TokioPostgres>::on(&server).await;
    let (site, gate, _layer) = gated_service(&world, Stale::Takeover).await;
    let (reply, ()) = tokio::join!(site.post("/effects", "k1", "a book"), async {
        gate.until_entered(1).await;
        server.crash().await.unwrap();
    });
    reply.problem(503, "08007");
}

/// The service was called, and an answer that breaks a rule of the contract says nothing about what it did.
#[tokio::test]
async fn an_answer_that_cannot_be_recorded_is_never_said_not_to_have_happened() {
    let world = World::<TokioPostgres>::new().await;
    // Too small for an answer without its body, too.
    world
        .run_sql("select pgonce.define_scope('test.effects', '1 day', p_max_answer => 1)")
        .await;
    let layer = world.leased(limited(SCOPE));
    let router = Router::new().route("/effects", post(async || made()).layer(layer));
    let site = Site::open(router).await;
    let reply = site.post("/effects", "k1", "a book").await;
    reply.problem(503, "08007");
}

/// Whatever goes wrong once while a response is recorded, it is recorded.
#[tokio::test]
async fn an_answer_is_recorded_whatever_error_meets_it_first() {
    let world = World::<TokioPostgres>::new().await;
    world
        .run_sql(
            "create sequence records; create function cancel_first() returns trigger language plpgsql as $$ begin \
             if new.status in ('succeeded', 'failed_final') and nextval('public.records') in (1, 3) then \
             raise exception 'canceling statement' using errcode = '57014'; end if; return new; end $$; \
             create trigger cancel_first before update on pgonce.intent for each row execute function cancel_first()",
        )
        .await;
    let handler = post(async |status: String| {
        let status: u16 = status.parse().unwrap();
        (http::StatusCode::from_u16(status).unwrap(), "the first")
    });
    let layer = world.leased(limited(SCOPE).database_timeout(SOON));
    let site = Site::open(Router::new().route("/effects", handler.layer(layer))).await;
    for status in [201, 404] {
        let first = site
            .post("/effects", &status.to_string(), status.to_string())
            .await;
        assert_eq!((first.status, first.replayed()), (status, false));
        let again = site
            .post("/effects", &status.to_string(), status.to_string())
            .await;
        assert_eq!((again.status, again.replayed()), (status, true));
    }
    assert!(world.number("select last_value from records").await >= 4);
}

/// No other process finds a lease that ran out while its response was being recorded.
#[tokio::test]
async fn a_lease_is_renewed_while_its_response_is_being_recorded() {
    let world = World::<TokioPostgres>::new().await;
    world
        .run_sql(
            "create table gate (); create function refuse() returns trigger language plpgsql as $$ begin \
             if to_regclass('public.gate') is null then return new; end if; \
             raise exception 'not now' using errcode = '40001'; end $$; \
             create trigger refuse before update on pgonce.intent for each row \
             when (new.status in ('succeeded', 'failed_final')) execute function refuse()",
        )
        .await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let handler = post(async move |status: String| {
        counted.fetch_add(1, SeqCst);
        http::StatusCode::from_u16(status.parse().unwrap()).unwrap()
    });
    let policy = limited(SCOPE)
        .database_timeout(SOON)
        .retention(Duration::from_secs(3600))
        .lease(Duration::from_secs(2))
        .stale(Stale::Takeover);
    let layer = world.leased(policy);
    layer.agree().await.unwrap();
    let site = Site::open(Router::new().route("/effects", handler.layer(layer))).await;
    let recorded = async {
        until("both leases are renewed", || async {
            let renewed = "select count(*) from pgonce.intent where lease_until > first_at + interval '4 seconds'";
            world.number(renewed).await == 2
        })
        .await;
        world.run_sql("drop table gate").await;
    };
    let (created, refused, ()) = tokio::join!(
        site.post("/effects", "k1", "201"),
        site.post("/effects", "k2", "404"),
        recorded
    );
    assert_eq!((created.status, refused.status), (201, 404));
    assert_eq!(runs.load(SeqCst), 2);
}

/// The key of a request that was given up is not busy for as long as its lease, which nobody works under.
async fn a_claim_that_comes_too_late_is_given_back<D: TestDriver>(world: World<D>) {
    // The first tries to give it back fail too.
    world
        .run_sql(
            "create sequence tries; create function fail_first() returns trigger language plpgsql as $$ begin \
             if nextval('public.tries') <= 2 then raise exception 'busy' using errcode = '53300'; end if; return old; end $$; \
             create trigger fail_first before delete on pgonce.intent for each row execute function fail_first()",
        )
        .await;
    let hour = Duration::from_secs(3600);
    let policy = limited("late").retention(hour).lease(hour);
    let layer = world.leased(policy.database_timeout(Duration::from_secs(5)));
    layer.agree().await.unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let handler = post(async move || {
        counted.fetch_add(1, SeqCst);
        made()
    });
    let site = Site::open(Router::new().route("/late", handler.layer(layer))).await;
    let (log, _logging) = logged();
    let mut slow = world.pool.begin().await.unwrap();
    sqlx::raw_sql("lock table pgonce.intent in share row exclusive mode")
        .execute(&mut *slow)
        .await
        .unwrap();
    assert_unavailable(&site.post("/late", "k1", "a book").await);
    assert_eq!(runs.load(SeqCst), 0);
    // For longer than a connection that fell silent is waited for.
    until("the claim is found in the database twice", || async {
        let log = String::from_utf8_lossy(&log.lock().unwrap()).into_owned();
        assert!(!log.contains("work was given up"), "{log}");
        log.matches("still works on a claim").count() >= 2
    })
    .await;
    slow.rollback().await.unwrap();
    let given_back = "select last_value * (1 - (select count(*) from pgonce.intent)) from tries";
    until("the key is free", || async {
        world.number(given_back).await == 3
    })
    .await;
    let again = site.post("/late", "k1", "a book").await;
    assert_eq!((again.status, runs.load(SeqCst)), (201, 1));
    assert_eq!(world.number("select last_value from tries").await, 3);
}

/// Whatever became of the reply to a claim: a database that then says who holds the key is not away.
async fn work_that_fails_open_is_not_done_beside_a_living_holder<D: TestDriver>(world: World<D>) {
    let proxy = CuttingProxy::start(("127.0.0.1", world.port)).unwrap();
    let driver = D::connect(&proxy.url_for(&world.database), 1);
    let once = Once::builder(driver).build().unwrap();
    let open = limited(SCOPE).database_timeout(SOON).fail_open(true);
    let open = IdempotencyLayer::leased(once, open).unwrap();
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let held = async move || {
        at_gate.pass().await;
        made()
    };
    let router = Router::new().route("/effects", post(async || made()).layer(open.clone()));
    let (site, held) = (Site::open(router).await, post(held));
    let holder = Router::new().route("/effects", held.layer(world.leased(limited(SCOPE))));
    let holder = Site::open(holder).await;
    let meanwhile = async {
        gate.until_entered(1).await;
        for ahead in 0..6 {
            site.post("/effects", "k1", "").await.problem(409, "P4029");
            let seen = proxy.transcript();
            let (connection, direction) = (seen.last().unwrap().connection, Direction::ToServer);
            let sent = |message: &&Message| {
                (message.connection, message.direction) == (connection, direction)
            };
            proxy.arm(Fault {
                connection,
                direction,
                message: seen.iter().filter(sent).count() as u64 + ahead,
                action: Action::DropReply,
            });
            let reply = site.post("/effects", "k1", "").await;
            assert!([409, 503].contains(&reply.status), "{ahead}: {reply:?}");
            proxy.disarm();
        }
        assert!(proxy.fired().is_some());
        gate.let_pass(1);
    };
    let (reply, ()) = tokio::join!(holder.post("/effects", "k1", ""), meanwhile);
    assert_eq!(reply.status, 201);
    assert_eq!(open.counters().unprotected(), 0);
}

for_each_driver!(
    a_claim_that_comes_too_late_is_given_back,
    work_that_fails_open_is_not_done_beside_a_living_holder,
);
