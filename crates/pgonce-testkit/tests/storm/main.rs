//! The storm's instruments: the proxy that cuts, the plans, the checker, the storm itself.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod checking;
mod cutting;
mod end_to_end;
mod guide;
mod planning;
mod wire;

use std::time::Duration;

use pgonce_testkit::{CuttingProxy, Database, shared};
use tokio_postgres::{Client, NoTls};

const SOON: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A database with an empty table, and a proxy in front of it.
struct Fixture {
    database: Database,
    proxy: CuttingProxy,
}

impl Fixture {
    async fn new() -> Self {
        let server = shared(None).await.unwrap();
        let prepared = server.template("storm_notes", async |url: String| {
            let client = connect(&url).await;
            client
                .batch_execute("create table note (key text, amount bigint)")
                .await
        });
        prepared.await.unwrap();
        let database = server.database_from("storm_notes").await.unwrap();
        let proxy = CuttingProxy::start(("127.0.0.1", server.port())).unwrap();
        Self { database, proxy }
    }

    /// A client that goes through the proxy.
    async fn client(&self) -> Client {
        connect(&self.proxy.url_for(self.database.name())).await
    }

    async fn directly(&self) -> Client {
        connect(&self.database.url()).await
    }

    async fn notes(&self) -> i64 {
        let client = self.directly().await;
        client
            .query_one("select count(*) from note", &[])
            .await
            .unwrap()
            .get(0)
    }

    /// Waits until the server has no session left that came through the proxy.
    async fn sessions_are_gone(&self) {
        let client = self.directly().await;
        pgonce_testkit::wait_until("sessions to end", SOON, async || {
            let others = "select count(*) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid()";
            client
                .query_one(others, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                == 0
        })
        .await
        .unwrap();
    }
}
