//! Writing the counts of duplicates down.

use crate::call::{Args, Sql};
use crate::claim::Claim;
use crate::counts::Suppression;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::intent::Intent;
use crate::once::Once;

static COUNT: Sql = Sql::kept(
    "select 'done' from pgonce._count_suppressed($1, $2::text::bigint, $3::text::bigint, \
     $4::text::bigint, $5::text::bigint, $6)",
);

impl<D: Driver> Once<D> {
    /// Writes the counts of suppressed duplicates down; otherwise it happens every few seconds by
    /// itself. One scope that fails does not keep the others from being written.
    pub async fn flush(&self) -> Result<()> {
        let mut flushed = Ok(());
        for (names, counts) in self.shared.suppressed.take() {
            let args = Args::new().text(&*names.1);
            let args = counts.iter().fold(args, |args, count| args.count(*count));
            let written = self.caller().call(&COUNT, args.text(&*names.0)).await;
            if let Err(error) = written {
                self.shared.suppressed.put_back(names, counts);
                flushed = Err(error);
            }
        }
        flushed
    }

    /// Counts a duplicate that was turned away.
    pub(crate) fn count_suppressed<R>(&self, intent: &Intent, claimed: &Result<Claim<R>>) {
        let suppression = match claimed {
            Ok(Claim::Replay(_)) => Suppression::Replay,
            Ok(Claim::Refused(_)) => Suppression::Refused,
            Ok(Claim::Busy { .. }) => Suppression::Busy,
            Err(Error::Conflict(_)) => Suppression::Conflict,
            Ok(Claim::Run(_)) | Err(_) => return,
        };
        self.count(intent, suppression);
    }

    pub(crate) fn count(&self, intent: &Intent, suppression: Suppression) {
        let (tenant, scope) = (intent.tenant_name(), intent.scope());
        if self.shared.suppressed.count(tenant, scope, suppression) {
            let once = self.clone();
            tokio::spawn(async move {
                if let Err(error) = once.flush().await {
                    tracing::debug!(%error, "suppressed duplicates could not be written down yet");
                }
            });
        }
    }
}
