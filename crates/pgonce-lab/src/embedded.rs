//! A private PostgreSQL that keeps its data in a folder, with pgonce and a sample scope in it.

use std::path::Path;

use pgonce::driver::sqlx::Sqlx;
use pgonce::migrate::Migrator;
use pgonce_testkit::Postgres;
use sqlx::postgres::PgPoolOptions;

/// A server that runs as long as this value.
#[derive(Debug)]
pub struct Server {
    server: Postgres,
}

/// Why it does not run.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// What a newcomer finds in the console: an intent that happened, one that failed, and one that somebody holds.
const SAMPLE: &str = "
select pgonce.define_scope('sample.hello', '30 days', p_client_retry => '1 day', p_note => 'a sample, made at the first start');
select pgonce.claim('sample.hello', 'greeting-1', '\\x01');
select pgonce.succeed('sample.hello', 'greeting-1', '\\x01', 1, '{\"greeting\": \"hello\"}', 'greeting', '1');
";

impl Server {
    /// Starts the server on a free loopback port. In a folder that is empty, makes a cluster, installs pgonce and adds a sample.
    pub async fn start(folder: &Path) -> Result<Self, Error> {
        let server = Postgres::builder()
            .data_folder(folder)
            .setting("fsync", "on")
            .setting("max_connections", "100")
            .setting("idle_in_transaction_session_timeout", "10min")
            .start()
            .await?;
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect(&server.url())
            .await?;
        let report = Migrator::new(Sqlx::new(pool.clone())).up().await?;
        if report
            .applied
            .first()
            .is_some_and(|first| first.starts_with("0001"))
        {
            let mut transaction = pool.begin().await?;
            sqlx::raw_sql(SAMPLE).execute(&mut *transaction).await?;
            transaction.commit().await?;
        }
        pool.close().await;
        Ok(Self { server })
    }

    /// The address of its database.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Ends it orderly.
    pub async fn stop(self) -> Result<(), Error> {
        Ok(self.server.stop().await?)
    }
}
