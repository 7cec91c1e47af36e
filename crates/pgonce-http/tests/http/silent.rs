//! Connections to the database that fall silent without being closed are given up, and their places in the pool are free again.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use pgonce::Once;
use pgonce_http::{Caller, IdempotencyLayer, Policy};
use tokio::io::{AsyncReadExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{SCOPE, Site, TestDriver, World, effect, made, until};

type TokioPostgres = pgonce::driver::tokio_postgres::TokioPostgres;

const LIMIT: Duration = Duration::from_secs(1);

/// A line to the database whose connections can be silenced: what is sent is taken, and nothing comes back.
struct Line {
    port: u16,
    /// Dropped, it silences the connections of its time.
    open: Arc<Mutex<watch::Sender<()>>>,
    swallowed: Arc<AtomicUsize>,
}

impl Line {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let line = Self {
            port: listener.local_addr().unwrap().port(),
            open: Arc::new(Mutex::new(watch::channel(()).0)),
            swallowed: Arc::default(),
        };
        let (open, swallowed) = (line.open.clone(), line.swallowed.clone());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut silenced = open.lock().unwrap().subscribe();
                let swallowed = swallowed.clone();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => return,
                        _ = silenced.changed() => {}
                    }
                    let mut piece = [0; 4096];
                    while let Ok(length @ 1..) = near.read(&mut piece).await {
                        swallowed.fetch_add(length, SeqCst);
                    }
                });
            }
        });
        line
    }

    /// Those that are open now; new ones work.
    fn silence(&self) {
        *self.open.lock().unwrap() = watch::channel(()).0;
    }
}

/// A service with one connection to its database, which falls silent when it is asked for the second time.
async fn falls_silent<D: TestDriver>(world: World<D>, atomic: bool, waits: bool) {
    let line = Line::to(world.port).await;
    let url = format!(
        "postgres://postgres@127.0.0.1:{}/{}",
        line.port, world.database
    );
    let once = Once::builder(D::connect(&url, 1)).build().unwrap();
    let policy = Policy::new(SCOPE, Caller::None)
        .database_timeout(LIMIT)
        .handler_timeout(LIMIT);
    let (layer, router) = match atomic {
        true => {
            let layer = IdempotencyLayer::atomic(once, policy).unwrap();
            let route = post(effect::<D>).layer(layer.clone());
            (layer, Router::new().route("/effects", route))
        }
        false => {
            let layer = IdempotencyLayer::leased(once, policy).unwrap();
            let route = post(async || made()).layer(layer.clone());
            (layer, Router::new().route("/effects", route))
        }
    };
    let site = Site::open(router).await;
    assert_eq!(site.post("/effects", "before", "a book").await.status, 201);
    line.silence();
    if waits {
        let reply = site.post("/effects", "silent", "a book").await;
        assert_eq!(reply.status, 503);
    } else {
        let wire = site.wire(&site.raw("/effects", "silent", "a book")).await;
        until("the claim is sent", || async {
            line.swallowed.load(SeqCst) > 0 && layer.under_way() == 1
        })
        .await;
        drop(wire);
    }
    assert!(line.swallowed.load(SeqCst) > 0);
    until("the pool has a connection", || async {
        site.post("/effects", "after", "a book").await.status == 201
    })
    .await;
    until("no work is under way", || async { layer.under_way() == 0 }).await;
}

#[tokio::test]
async fn leased_work_that_a_client_waits_for_leaves_the_pool_as_it_was() {
    falls_silent(World::<TokioPostgres>::new().await, false, true).await;
}

#[tokio::test]
async fn leased_work_that_nobody_waits_for_leaves_the_pool_as_it_was() {
    falls_silent(World::<TokioPostgres>::new().await, false, false).await;
}

#[tokio::test]
async fn atomic_work_that_nobody_waits_for_leaves_the_pool_as_it_was() {
    falls_silent(World::<TokioPostgres>::new().await, true, false).await;
}
