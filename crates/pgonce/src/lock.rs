//! Named locks for what no row or constraint stands for: one close per merchant and day, one
//! import per file. They last until the end of the transaction.

use std::time::Duration;

use crate::call::{Args, Sql};
use crate::driver::Connection;
use crate::error::Result;
use crate::tx::Tx;

static TRY_LOCK: Sql = Sql::kept("select held::text from pgonce.try_lock($1, $2) held");
static LOCK: Sql = Sql::kept("select held::text from pgonce.lock($1, $2::text::interval, $3) held");

impl<C: Connection> Tx<C> {
    /// Takes a named lock of this tenant until the end of the transaction. Returns whether it was
    /// free.
    pub async fn try_lock(&mut self, name: &str) -> Result<bool> {
        let tenant = self.shared_tenant().unwrap_or_default();
        let args = Args::texts([name, &tenant]);
        self.call(&TRY_LOCK, args).await?.one()?.bool()
    }

    /// Waits at most `timeout` for a named lock of this tenant. Returns whether it was taken.
    pub async fn lock(&mut self, name: &str, timeout: Duration) -> Result<bool> {
        let tenant = self.shared_tenant().unwrap_or_default();
        let args = Args::new().text(name).interval(timeout).text(&*tenant);
        self.call(&LOCK, args).await?.one()?.bool()
    }
}
