//! A coordinator and two workers.

use pgonce_testkit::{Binaries, Postgres};
use pgonce_tests::Observer;
use tokio::sync::OnceCell;

/// The nodes; the coordinator is the first.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Postgres>,
}

/// A database that is on every node of a cluster.
pub(crate) struct Db {
    pub(crate) urls: Vec<String>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let folder = std::env::var_os("PGONCE_CITUS_BIN")
            .expect("PGONCE_CITUS_BIN must name the programs of a PostgreSQL with Citus");
        let binaries = Binaries::in_folder(folder).unwrap();
        let mut nodes = Vec::new();
        for _ in 0..3 {
            let node = Postgres::builder()
                .binaries(binaries.clone())
                .setting("shared_preload_libraries", "citus")
                .setting("wal_level", "logical")
                .setting("max_prepared_transactions", "200")
                .setting("max_worker_processes", "60")
                .setting("citus.node_conninfo", "sslmode=disable")
                .setting("citus.enable_statistics_collection", "off")
                .setting("citus.shard_count", "8")
                .start()
                .await
                .unwrap();
            nodes.push(node);
        }
        Self { nodes }
    }

    /// One cluster for all tests that break none of its nodes.
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    /// A new database with the extension on every node, and the workers added.
    pub(crate) async fn database(&self, name: &str) -> Db {
        let mut urls = Vec::new();
        for node in &self.nodes {
            Observer::connect(&node.url())
                .await
                .run(&format!("create database {name}"))
                .await;
            let url = node.url_for(name);
            Observer::connect(&url)
                .await
                .run("create extension citus")
                .await;
            urls.push(url);
        }
        let see = Observer::connect(&urls[0]).await;
        let port = |n: usize| self.nodes[n].port();
        see.run(&format!(
            "select citus_set_coordinator_host('127.0.0.1', {})",
            port(0)
        ))
        .await;
        for n in 1..self.nodes.len() {
            see.run(&format!("select citus_add_node('127.0.0.1', {})", port(n)))
                .await;
        }
        Db { urls }
    }
}

impl Db {
    /// The coordinator.
    pub(crate) fn url(&self) -> &str {
        &self.urls[0]
    }

    pub(crate) async fn see(&self) -> Observer {
        Observer::connect(self.url()).await
    }
}

/// Orders of tenants, spread by tenant.
pub(crate) const ORDERS: &str = "create table orders (tenant text collate \"C\" not null, key text not null, \
     id bigint generated always as identity, primary key (tenant, id)); \
     select create_distributed_table('orders', 'tenant')";
