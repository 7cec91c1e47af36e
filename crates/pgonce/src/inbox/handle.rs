//! The inbox of a database.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::call::{Args, BEGIN, Caller, Rows, Sql};
use crate::driver::Driver;
use crate::error::Result;
use crate::once::Once;

/// Ends a transaction whose commit must survive a crash.
static COMMIT_DURABLY: Sql = Sql::kept("select 'done' where pgonce._force_durable_commit()");

/// No role is bound to the empty tenant.
static BOUND_TENANT: Sql =
    Sql::kept("select pgonce._session_tenant() where not pgonce._tenant_is_allowed('')");

/// The inbox of a database, for consumers and operators. Made by [`Once::inbox`]; cheap to clone.
#[derive(Debug, Clone)]
pub struct Inbox<D: Driver> {
    pub(super) caller: Caller<D>,
    /// Whether the last batch held nothing but copies: then the next one likely does too.
    pub(super) copies: Arc<AtomicBool>,
}

impl<D: Driver> Once<D> {
    /// The inbox of the same database.
    pub fn inbox(&self) -> Inbox<D> {
        Inbox {
            caller: self.caller().clone(),
            copies: Arc::default(),
        }
    }
}

impl<D: Driver> Inbox<D> {
    /// The only tenant whose messages this role may apply, where tenants are isolated and it is bound to one.
    pub async fn bound_tenant(&self) -> Result<Option<String>> {
        let rows = self.call(&BOUND_TENANT, Args::default()).await?;
        Ok(rows.first().and_then(|mut row| row.opt_text()))
    }

    /// One call in a transaction of its own; its rows count only once it has committed.
    pub(super) async fn call(&self, sql: &Sql, args: Args<'_>) -> Result<Rows> {
        self.call_in(BEGIN, sql, args).await
    }

    pub(super) async fn call_in(&self, begin: &str, sql: &Sql, args: Args<'_>) -> Result<Rows> {
        self.caller
            .in_own_transaction(begin, sql, args, &COMMIT_DURABLY)
            .await
    }
}
