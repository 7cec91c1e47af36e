use std::sync::Arc;

use serde_json::Value;

use crate::history::History;

/// One attempt that a storm asks a handler to make.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// What names the request: the idempotency key. The same over all attempts.
    pub intent: String,
    /// What is asked for.
    pub payload: Value,
    /// The database's address, through the proxy that cuts. The same for all calls.
    pub url: String,
    /// The number of this attempt, unique in the storm. It must not get into the key.
    pub attempt: u64,
    pub(super) history: Arc<History>,
}

impl Call {
    /// Takes note that something rare was met, such as a replay, so that the storm can
    /// [`require`](crate::Storm::require) it.
    pub fn saw(&self, state: impl Into<String>) {
        self.history.saw(state);
    }
}
