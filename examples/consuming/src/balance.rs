//! A balance for each account, made of deltas. Each event counts once, in any order; the table can be made anew
//! at any time: `pgonce projection rebuild balance`.

use std::sync::Arc;

use pgonce::inbox::{Message, Tx};
use pgonce::{Once, Result};
use pgonce_broker::{Consumer, Handler, Source};

use crate::Db;

/// Applies money that was moved.
pub fn consumer<S: Source>(
    once: &Once<Db>,
    source: S,
) -> Consumer<Db, S, impl Handler<Db> + use<S>> {
    Consumer::new(once, "balance", source, apply).json()
}

async fn apply(mut tx: Tx<Db>, message: Arc<Message>) -> Result<()> {
    // The projection's own gate: the same after a rebuild, and whatever brings the event.
    tx.project("balance", &message).await.map(drop)
}
