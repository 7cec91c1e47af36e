//! The open transaction that the user's code works in.

use std::fmt;
use std::sync::Arc;

use crate::call::{Args, Rows, Schema, Sql, call_on};
use crate::driver::Connection;
use crate::error::Result;
use crate::loan::Loan;

/// An open transaction: everything that is done with it commits together, or not at all.
///
/// An attempt at an intent, a consumer's handler and an HTTP handler all work with one. Events are
/// published, locks taken and messages accepted under the tenant of the intent or the message.
///
/// A transaction cannot commit itself: the code that handed it out does that.
pub struct Tx<C: Connection> {
    conn: Loan<C>,
    schema: Arc<Schema>,
    /// `None` where there are no tenants.
    tenant: Option<Arc<str>>,
}

impl<C: Connection> Tx<C> {
    pub(crate) fn new(conn: Loan<C>, schema: Arc<Schema>, tenant: Option<Arc<str>>) -> Self {
        Self {
            conn,
            schema,
            tenant,
        }
    }

    /// The driver's connection, inside the transaction: `&mut PgConnection` of sqlx, where a nested
    /// `begin` becomes a savepoint, or the client of tokio-postgres.
    ///
    /// Do not send COMMIT or ROLLBACK by hand: it would part the effect from its acknowledgement.
    pub fn conn(&mut self) -> &mut C::Raw {
        self.conn.raw()
    }

    /// The tenant that the transaction works for; empty where there are none.
    pub fn tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or_default()
    }

    pub(crate) fn shared_tenant(&self) -> Option<Arc<str>> {
        self.tenant.clone()
    }

    pub(crate) async fn call(&mut self, sql: &Sql, args: Args<'_>) -> Result<Rows> {
        call_on(&mut *self.conn, &self.schema, sql, &args).await
    }

    /// Whether Citus distributes the tables.
    pub(crate) fn is_distributed(&self) -> bool {
        self.schema.is_distributed()
    }

    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }

    pub(crate) fn loan(&mut self) -> &mut Loan<C> {
        &mut self.conn
    }

    /// Takes the connection back, with its schema.
    pub(crate) fn into_parts(self) -> (C, Arc<Schema>) {
        (self.conn.into_inner(), self.schema)
    }
}

impl<C: Connection> fmt::Debug for Tx<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}
