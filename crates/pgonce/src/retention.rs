//! Removing finished records whose retention is over.

use crate::Result;
use crate::driver::{Connection as _, Driver, Param};
use crate::lease::keep_unless_lost;
use crate::once::Once;

impl<D: Driver> Once<D> {
    /// Removes at most `limit` finished records whose retention is over, and answers how many.
    /// Call it again while the answer equals the limit. Unfinished records are never touched, and
    /// many instances may call it at once.
    pub async fn purge(&self, limit: u32) -> Result<u64> {
        let limit = limit.to_string();
        let mut session = self.driver().acquire().await?;
        let rows = session
            .query(&self.statements().purge, &[Param::Text(Some(&limit))])
            .await;
        keep_unless_lost(session, &rows);
        let count = rows?
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().next().flatten());
        Ok(count.and_then(|n| n.parse().ok()).unwrap_or_default())
    }
}
