//! A database of a test's own, a service over real sockets, and a wire to cut.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{StatusCode, header};
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::driver::{Connection, Driver};
use pgonce::migrate::Migrator;
use pgonce::{Once, Result};
use pgonce_http::{HandlerError, IdempotencyLayer, Key, Policy, Tx};
use pgonce_testkit::{Database, Postgres};
use reqwest::Client;
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// The scope of a test that does not care.
pub(crate) const SCOPE: &str = "test.effects";

/// More than enough on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

type Raw<D> = <<D as Driver>::Session as Connection>::Raw;

/// A driver, and how a test uses it.
pub(crate) trait TestDriver: Driver {
    fn connect(url: &str, connections: u32) -> Self;
    fn exec(raw: &mut Raw<Self>, sql: &str) -> impl Future<Output = Result<()>> + Send;
}

impl TestDriver for Sqlx {
    fn connect(url: &str, connections: u32) -> Self {
        let pool = PgPoolOptions::new().max_connections(connections);
        Self::new(pool.acquire_timeout(SOON).connect_lazy(url).unwrap())
    }

    async fn exec(raw: &mut Raw<Self>, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(raw)
            .await?;
        Ok(())
    }
}

impl TestDriver for TokioPostgres {
    fn connect(url: &str, connections: u32) -> Self {
        let manager = deadpool_postgres::Manager::new(url.parse().unwrap(), tokio_postgres::NoTls);
        let pool =
            deadpool_postgres::Pool::builder(manager).max_size(connections.try_into().unwrap());
        let pool = pool
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .wait_timeout(Some(SOON));
        Self::new(pool.build().unwrap())
    }

    async fn exec(raw: &mut Raw<Self>, sql: &str) -> Result<()> {
        Ok(raw.batch_execute(sql).await?)
    }
}

/// Runs generic test bodies once for each driver.
macro_rules! for_each_driver {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[tokio::test]
            async fn sqlx() {
                let world = $crate::support::World::<pgonce::driver::sqlx::Sqlx>::new();
                super::$name(world.await).await;
            }

            #[tokio::test]
            async fn tokio_postgres() {
                type Driver = pgonce::driver::tokio_postgres::TokioPostgres;
                super::$name($crate::support::World::<Driver>::new().await).await;
            }
        }
    )+ };
}
pub(crate) use for_each_driver;

/// A database with pgonce and a table in which nothing is unique.
pub(crate) struct World<D: Driver = Sqlx> {
    pub(crate) once: Once<D>,
    /// For the test's own eyes, and for effects of handlers that have no transaction of ours.
    pub(crate) pool: PgPool,
    /// The server's port, and the database's name on it.
    pub(crate) port: u16,
    pub(crate) database: String,
    _database: Database,
}

impl<D: TestDriver> World<D> {
    pub(crate) async fn new() -> Self {
        Self::on(pgonce_testkit::shared(None).await.unwrap()).await
    }

    pub(crate) async fn on(server: &Postgres) -> Self {
        let install = async |url: String| {
            let driver = <Sqlx as TestDriver>::connect(&url, 1);
            Migrator::new(driver.clone()).up().await?;
            let table = "create table effects (key text not null, note text not null)";
            sqlx::raw_sql(table).execute(driver.pool()).await?;
            Ok::<_, pgonce::Error>(())
        };
        server.template("http", install).await.unwrap();
        let database = server.database_from("http").await.unwrap();
        let url = database.url();
        Self {
            once: Once::builder(D::connect(&url, 10)).build().unwrap(),
            pool: <Sqlx as TestDriver>::connect(&url, 5).pool().clone(),
            port: server.port(),
            database: database.name().to_owned(),
            _database: database,
        }
    }

    pub(crate) fn atomic(&self, policy: Policy) -> IdempotencyLayer<D> {
        IdempotencyLayer::atomic(self.once.clone(), policy).unwrap()
    }

    pub(crate) fn leased(&self, policy: Policy) -> IdempotencyLayer<D> {
        IdempotencyLayer::leased(self.once.clone(), policy).unwrap()
    }

    /// `POST /effects` with the usual handler in atomic mode.
    pub(crate) async fn usual(&self, policy: Policy) -> Site {
        Site::open(Router::new().route("/effects", post(effect::<D>).layer(self.atomic(policy))))
            .await
    }

    pub(crate) async fn effects(&self) -> i64 {
        self.number("select count(*) from effects").await
    }

    pub(crate) async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    pub(crate) async fn text(&self, sql: &'static str) -> String {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    pub(crate) async fn run_sql(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.pool).await.unwrap();
    }

    /// Waits until so many effects are committed.
    pub(crate) async fn until_effects(&self, wanted: i64) {
        until(&format!("{wanted} effects"), || async {
            self.effects().await == wanted
        })
        .await;
    }

    /// Waits until somebody waits for the lock of an intent.
    pub(crate) async fn until_somebody_waits(&self) {
        let sql = "select count(*) from pg_locks where locktype = 'advisory' and not granted \
                   and database = (select oid from pg_database where datname = current_database())";
        until("a session to wait for the key", || async {
            self.number(sql).await > 0
        })
        .await;
    }
}

pub(crate) async fn until<F: Future<Output = bool>>(what: &str, probe: impl FnMut() -> F) {
    pgonce_testkit::wait_until(what, SOON, probe).await.unwrap();
}

/// Leaves a trace that nothing but pgonce keeps from being left twice.
pub(crate) async fn leave_effect<D: TestDriver>(
    tx: &mut Tx<D>,
    key: &Key,
    note: &str,
) -> Result<()> {
    let text = |text: &str| {
        let hex: String = text.bytes().map(|b| format!("{b:02x}")).collect();
        format!("convert_from(decode('{hex}', 'hex'), 'UTF8')")
    };
    let sql = format!(
        "insert into effects values ({}, {})",
        text(&key.0),
        text(note)
    );
    D::exec(tx.conn(), &sql).await
}

/// The usual handler: one effect with the body as its note, and an answer that differs each time.
pub(crate) async fn effect<D: TestDriver>(
    mut tx: Tx<D>,
    key: Key,
    note: String,
) -> std::result::Result<Response, HandlerError> {
    leave_effect(&mut tx, &key, &note).await?;
    Ok(made())
}

/// An answer that differs each time.
pub(crate) fn made() -> Response {
    let id = uuid::Uuid::new_v4().to_string();
    let location = format!("/effects/{id}");
    (StatusCode::CREATED, [(header::LOCATION, location)], id).into_response()
}

/// An effect outside of any transaction of ours.
pub(crate) async fn outside_effect(pool: &PgPool, key: &Key, note: &str) {
    let insert = sqlx::query("insert into effects values ($1, $2)");
    insert.bind(&*key.0).bind(note).execute(pool).await.unwrap();
}

/// Holds handlers where they are until the test lets them go on.
#[derive(Clone)]
pub(crate) struct Gate {
    entered: Arc<AtomicUsize>,
    open: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Self {
            entered: Arc::default(),
            open: Arc::new(Semaphore::new(0)),
        }
    }

    /// For the handler.
    pub(crate) async fn pass(&self) {
        self.entered.fetch_add(1, SeqCst);
        self.open.acquire().await.unwrap().forget();
    }

    pub(crate) fn entered(&self) -> usize {
        self.entered.load(SeqCst)
    }

    pub(crate) async fn until_entered(&self, times: usize) {
        until(&format!("{times} handlers at the gate"), || async {
            self.entered() >= times
        })
        .await;
    }

    pub(crate) fn let_pass(&self, handlers: usize) {
        self.open.add_permits(handlers);
    }
}

/// A running service.
pub(crate) struct Site {
    pub(crate) address: String,
    pub(crate) client: Client,
}

impl Site {
    pub(crate) async fn open(router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::builder()
            .no_proxy()
            .timeout(2 * SOON)
            .build()
            .unwrap();
        Self { address, client }
    }

    pub(crate) fn request(&self, path: &str, key: &str) -> reqwest::RequestBuilder {
        let request = self.client.post(format!("http://{}{path}", self.address));
        request.header("Idempotency-Key", key)
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        key: &str,
        body: impl Into<reqwest::Body>,
    ) -> Reply {
        Reply::read(self.request(path, key).body(body).send().await.unwrap()).await
    }

    /// Sends bytes as they are; the wire is the test's.
    pub(crate) async fn wire(&self, bytes: &[u8]) -> TcpStream {
        let mut wire = TcpStream::connect(&self.address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut wire, bytes)
            .await
            .unwrap();
        wire
    }

    /// A request as bytes.
    pub(crate) fn raw(&self, path: &str, key: &str, body: &str) -> Vec<u8> {
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nidempotency-key: {key}\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .into_bytes()
    }

    /// Everything that comes back for bytes that were sent.
    pub(crate) async fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        self.wire(bytes)
            .await
            .read_to_end(&mut answer)
            .await
            .unwrap();
        answer
    }
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) async fn read(response: reqwest::Response) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await.unwrap().to_vec(),
        }
    }

    pub(crate) fn replayed(&self) -> bool {
        self.headers
            .get("idempotent-replayed")
            .is_some_and(|value| value == "true")
    }

    /// Asserts the problem document of an error, and returns it.
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{text}");
        assert_eq!(
            self.headers["content-type"], "application/problem+json",
            "{text}"
        );
        let document: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(document["code"], code, "{document}");
        assert_eq!(document["status"], status, "{document}");
        let page = format!("#{}", code.to_ascii_lowercase());
        assert!(
            document["type"].as_str().unwrap().ends_with(&page),
            "{document}"
        );
        assert!(document["title"].as_str().unwrap().len() > 3, "{document}");
        assert!(
            document["detail"].as_str().unwrap().len() > 10,
            "{document}"
        );
        document
    }
}

/// A body in parts, of a length that nobody announces.
pub(crate) fn chunks(
    parts: &'static [&'static str],
) -> impl futures_util::Stream<Item = std::io::Result<&'static [u8]>> + Send + Sync {
    futures_util::stream::iter(parts.iter().map(|part| Ok(part.as_bytes())))
}

/// Keeps what is logged, at every level, by what runs on this thread while the guard lives.
pub(crate) fn logged() -> (Arc<Mutex<Vec<u8>>>, tracing::subscriber::DefaultGuard) {
    struct Kept(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Arc::<Mutex<Vec<u8>>>::default();
    let kept = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || Kept(kept.clone()))
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}
