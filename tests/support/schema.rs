//! What every test database holds.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;

use crate::{Observer, TestDriver as _};

/// The business of the tests. `effects` has no constraint at all: it is the witness that counts
/// how often something happened, and nothing but pgonce keeps it from being twice. `finish` records
/// a success as an attempt that went past the advisory lock would.
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
create function finish(p_scope text, p_key text, p_fingerprint bytea, p_answer jsonb default null, p_tenant text default '')
returns void language plpgsql as $$
begin
    perform set_config('pgonce.attempt', '', true);
    perform pgonce._open_attempt(p_tenant, p_scope, p_key);
    perform pgonce.succeed(p_scope, p_key, p_fingerprint, 1, p_answer, p_tenant => p_tenant);
    perform set_config('pgonce.attempt', '', true);
end $$;
create table checked_at_commit (id integer unique deferrable initially deferred);
";

/// The role of the service under test. It belongs to the whole server.
pub(crate) const APP: &str = "world_app";

/// What lets the role work; `create role` has no "if not exists".
const ROLE: &str = "
do $$ begin create role world_app login; exception when duplicate_object or unique_violation then null; end $$;
select pgonce.grant_to('world_app', part) from unnest('{app,consumer,relay}'::text[]) part;
do $$ begin
    if current_setting('server_version_num')::integer >= 150000 then
        -- It belongs to the whole server, too: of two at once, one would fail.
        if not has_parameter_privilege('world_app', 'deadlock_timeout', 'set') then
            execute 'grant set on parameter deadlock_timeout to world_app';
        end if;
    end if;
end $$;
grant usage on schema public to world_app;
grant all on all tables in schema public to world_app;
grant all on all sequences in schema public to world_app;
alter default privileges in schema public grant all on tables to world_app;
";

/// Installs pgonce and the business tables. A file that `PGONCE_PLANTED_SQL` names replaces a
/// routine: `make mutants` plants bugs in this way.
pub async fn install(url: String) -> pgonce::Result<()> {
    Migrator::new(TokioPostgres::connect(&url, 1)).up().await?;
    let observer = Observer::connect(&url).await;
    observer.run(BUSINESS).await;
    observer.run(ROLE).await;
    if let Some(planted) = std::env::var_os("PGONCE_PLANTED_SQL") {
        observer
            .run(&std::fs::read_to_string(planted).unwrap())
            .await;
    }
    Ok(())
}
