//! What every test database holds.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;

use crate::{Observer, TestDriver as _};

/// The business of the tests. `effects` has no constraint at all: it is the witness that counts
/// how often something happened, and nothing but pgonce keeps it from being twice.
const BUSINESS: &str = "
create table effects (tenant text not null, scope text not null, key text not null, note text);
create table orders (
    id bigint generated always as identity primary key,
    customer text not null,
    reference text not null,
    item text not null,
    constraint one_order_per_reference unique (customer, reference)
);
create table account (id integer primary key, balance bigint not null);
insert into account select n, 100 from generate_series(1, 4) n;
create table checked_at_commit (id integer unique deferrable initially deferred);
";

/// Installs pgonce and the business tables. A file that `PGONCE_PLANTED_SQL` names replaces a
/// routine: `make mutants` plants bugs in this way.
pub async fn install(url: String) -> pgonce::Result<()> {
    Migrator::new(TokioPostgres::connect(&url, 1)).up().await?;
    let observer = Observer::connect(&url).await;
    observer.run(BUSINESS).await;
    if let Some(planted) = std::env::var_os("PGONCE_PLANTED_SQL") {
        observer
            .run(&std::fs::read_to_string(planted).unwrap())
            .await;
    }
    Ok(())
}
