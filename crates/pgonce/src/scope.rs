//! A scope's contract: how long answers are kept, how duplicates are answered, what happens after.

use std::time::Duration;

pub use crate::contract::{AfterExpiry, Busy, Contract, Stale, Storage};

use crate::call::{Args, Sql};
use crate::contract::InForce;
use crate::driver::Driver;
use crate::error::Result;
use crate::intent::Intent;
use crate::once::Once;

static DEFINE: Sql = Sql::seldom(
    "select 'done' from pgonce.define_scope(p_scope => $1, p_retention => $2::text::interval, \
     p_lease => $3::text::interval, p_busy => $4, p_wait_timeout => $5::text::interval, \
     p_storage => $6, p_after_expiry => $7, p_tombstone_for => $8::text::interval, p_stale => $9, \
     p_client_retry => $10::text::interval, p_redelivery => $11::text::interval, \
     p_reconciliation => $12::text::interval, p_audit => $13::text::interval, \
     p_max_answer => $14::text::integer, p_max_keys => $15::text::bigint, p_note => $16, p_tenant => $17, \
     p_probe => $18, p_retry_queue => $19, p_max_attempts => $20::text::integer, p_keep_attempts => $21::text::integer, \
     p_commit_guard => $22::text::boolean)",
);
static CONTRACT: Sql = Sql::kept(
    "select busy, pg_catalog.ceil(extract(epoch from wait_timeout) operator(pg_catalog.*) 1000)::bigint::text, \
     pg_catalog.ceil(extract(epoch from lease) operator(pg_catalog.*) 1000)::bigint::text, \
     pg_catalog.floor(extract(epoch from pgonce._retention_for(c, null)) operator(pg_catalog.*) 1000)::bigint::text \
     from pgonce._contract($1, $2) c",
);

impl<D: Driver> Once<D> {
    /// Writes a scope's contract down, or changes it. [`crate::Error::Invalid`] names the rule that
    /// a contract breaks.
    pub async fn define_scope(&self, scope: &str, contract: &Contract) -> Result<()> {
        let tombstone = match contract.after_expiry {
            AfterExpiry::Gone(length) => length,
            AfterExpiry::Rerun => None,
        };
        let max_answer = contract.max_answer.to_string();
        let max_keys = contract.max_keys.map(|keys| keys.to_string());
        let args = Args::new()
            .text(scope)
            .interval(contract.retention)
            .interval(contract.lease)
            .text(match contract.busy {
                Busy::Reject => "reject",
                Busy::Wait => "wait",
                Busy::Accept => "accept",
            })
            .interval(contract.wait_timeout)
            .text(match contract.storage {
                Storage::Answer => "answer",
                Storage::Reference => "reference",
                Storage::Status => "status",
                Storage::Error => "error",
            })
            .text(match contract.after_expiry {
                AfterExpiry::Rerun => "rerun",
                AfterExpiry::Gone(_) => "gone",
            })
            .interval(tombstone)
            .text(match contract.stale {
                Stale::Takeover => "takeover",
                Stale::Hold => "hold",
                Stale::Refuse => "refuse",
            })
            .interval(contract.client_retry)
            .interval(contract.redelivery)
            .interval(contract.reconciliation)
            .interval(contract.audit)
            .text(&*max_answer)
            .text(max_keys.as_deref())
            .text(contract.note.as_deref())
            .text(&*contract.tenant)
            .text(contract.probe.as_deref())
            .text(contract.retry_queue.as_deref())
            .int(i64::from(contract.max_attempts))
            .int(i64::from(contract.keep_attempts))
            .text(if contract.commit_guard {
                "true"
            } else {
                "false"
            });
        let defined = self.caller().call(&DEFINE, args).await.map(drop);
        self.shared.contracts.clear();
        self.shared.retentions.clear();
        defined
    }

    /// How long the answer to an intent is kept, by the contract of its scope. A changed contract may
    /// take two seconds to be seen here.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(once: pgonce::sqlx::Once, intent: pgonce::Intent) -> Result<(), pgonce::Error> {
    /// let days = once.retention_of(&intent).await?.as_secs() / 86_400;
    /// println!("you may repeat this request for {days} days");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn retention_of(&self, intent: &Intent) -> Result<Duration> {
        let contract = self.contract(intent.scope(), intent.tenant_name()).await?;
        Ok(contract.retention)
    }

    /// The contract in force for a scope.
    pub(crate) async fn contract(&self, scope: &str, tenant: &str) -> Result<InForce> {
        if let Some(known) = self.shared.contracts.get(tenant, scope) {
            return Ok(known);
        }
        let rows = self.caller().call(&CONTRACT, Args::texts([tenant, scope]));
        let mut row = rows.await?.one()?;
        let contract = InForce {
            busy: match row.opt_text().as_deref() {
                Some("wait") => Busy::Wait,
                Some("accept") => Busy::Accept,
                _ => Busy::Reject,
            },
            wait_timeout: row.millis()?,
            lease: row.millis()?,
            retention: row.millis()?,
        };
        self.shared.contracts.put(tenant, scope, contract);
        Ok(contract)
    }
}
