//! A database of a test's own, and a `Once` of one driver in front of it.

use pgonce::driver::Driver;
use pgonce::{Ack, Attempt, Done, Intent, Isolation, Once, OnceBuilder, Result};
use pgonce_testkit::{Database, PgBouncer, Postgres, shared};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::observer::Observer;
use crate::schema::APP;
use crate::{TestDriver, hex_text, install};

/// The scope of a test that does not care.
pub const SCOPE: &str = "orders.create";

/// Where and how a conformance test runs.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The server's major version; `None` is the system's.
    pub major: Option<u32>,
    /// The isolation level of attempts.
    pub isolation: Isolation,
    /// Through PgBouncer in transaction mode.
    pub pooler: bool,
}

impl Setting {
    /// Every one of them.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for major in [None, Some(18)] {
            for isolation in [
                Isolation::ReadCommitted,
                Isolation::RepeatableRead,
                Isolation::Serializable,
            ] {
                for pooler in [false, true] {
                    all.push(Self {
                        major,
                        isolation,
                        pooler,
                    });
                }
            }
        }
        all
    }
}

/// A database of a test's own.
#[derive(Debug)]
pub struct World<D: Driver> {
    /// What is tested, as a role that has the parts of an application, a consumer and a relay, and owns nothing.
    pub once: Once<D>,
    /// The same as the owner, for what only operators do.
    pub owner: Once<D>,
    /// The second actor, and the eye.
    pub see: Observer,
    /// Where it runs.
    pub setting: Setting,
    /// The server's.
    pub server: &'static Postgres,
    url: String,
    database: Database,
}

impl<D: TestDriver> World<D> {
    /// On the system's PostgreSQL, directly, at READ COMMITTED.
    pub async fn new() -> Self {
        Self::in_setting(Setting {
            major: None,
            isolation: Isolation::ReadCommitted,
            pooler: false,
        })
        .await
    }

    /// In a certain setting.
    pub async fn in_setting(setting: Setting) -> Self {
        let server = shared(setting.major).await.unwrap();
        server.template("guarantees", install).await.unwrap();
        let database = server.database_from("guarantees").await.unwrap();
        let url = match setting.pooler {
            true => pooler(server, setting.major).await.url_for(database.name()),
            false => database.url(),
        };
        let see = Observer::connect(&database.url()).await;
        let owner = build(&url, 10, setting, |b| b);
        let url = url.replace("postgres@", &format!("{APP}@"));
        Self {
            once: build(&url, 10, setting, |b| b),
            owner,
            see,
            setting,
            server,
            url,
            database,
        }
    }

    /// Another `Once`, with its own pool of so many connections under an application's name.
    pub fn another(
        &self,
        application: &str,
        connections: u32,
        choose: impl FnOnce(OnceBuilder<D>) -> OnceBuilder<D>,
    ) -> Once<D> {
        self.another_at(
            &format!("{}?application_name={application}", self.url),
            connections,
            choose,
        )
    }

    /// Another `Once` that connects elsewhere, to a proxy say.
    pub fn another_at(
        &self,
        url: &str,
        connections: u32,
        choose: impl FnOnce(OnceBuilder<D>) -> OnceBuilder<D>,
    ) -> Once<D> {
        build(url, connections, self.setting, choose)
    }

    /// The address of the database, past any pooler.
    pub fn url(&self) -> String {
        self.database.url()
    }

    /// The port that clients connect to: the pooler's where there is one.
    pub fn port(&self) -> u16 {
        let (_, address) = self.url.split_once('@').unwrap();
        let port = address.split([':', '/']).nth(1).unwrap();
        port.parse().unwrap()
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        self.database.name()
    }

    /// Another connection to look and act with.
    pub async fn observer(&self) -> Observer {
        Observer::connect(&self.database.url()).await
    }

    /// Runs the usual work: one effect, and the key as the answer.
    pub async fn run(&self, intent: &Intent) -> Result<Done> {
        self.once.run(intent, work::<D>).await
    }
}

/// One pooler for each server of this process. It has fewer connections than a test has callers:
/// they must share, transaction by transaction.
async fn pooler(server: &Postgres, major: Option<u32>) -> &'static PgBouncer {
    static POOLERS: [OnceCell<PgBouncer>; 2] = [const { OnceCell::const_new() }; 2];
    let start = || {
        let pooler = PgBouncer::in_front_of(server).setting("default_pool_size", "4");
        pooler.setting("server_idle_timeout", "2").start()
    };
    POOLERS[usize::from(major.is_some())]
        .get_or_try_init(start)
        .await
        .unwrap()
}

fn build<D: TestDriver>(
    url: &str,
    connections: u32,
    setting: Setting,
    choose: impl FnOnce(OnceBuilder<D>) -> OnceBuilder<D>,
) -> Once<D> {
    let mut builder = Once::builder(D::connect(url, connections)).isolation(setting.isolation);
    if setting.pooler {
        builder = builder.behind_pooler();
    }
    choose(builder).build().unwrap()
}

/// An intent to order a book.
pub fn intent(key: &str) -> Intent {
    Intent::new(SCOPE, key, &json!({"item": "book"})).unwrap()
}

/// Leaves a trace that nothing but pgonce keeps from being left twice.
pub async fn effect<D: TestDriver>(attempt: &mut Attempt<D>) -> Result<()> {
    let intent = attempt.intent();
    let sql = format!(
        "insert into effects values ({}, {}, {})",
        hex_text(intent.tenant_name()),
        hex_text(intent.scope()),
        hex_text(intent.key())
    );
    D::exec(attempt.conn(), &sql).await
}

/// The usual work: one effect, and the key as the answer.
pub async fn work<D: TestDriver>(mut attempt: Attempt<D>) -> Result<Done> {
    effect(&mut attempt).await?;
    let answer = Ack::value(&json!({"ordered": attempt.intent().key()}))?;
    attempt.succeed(answer).await
}
