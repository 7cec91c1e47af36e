//! No source at all.

use std::time::Duration;

use crate::{Incoming, Source, SourceError};

/// Delivers nothing, ever: for a consumer that only applies what is stored, by webhooks say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nothing;

impl Source for Nothing {
    type Ticket = ();

    fn name(&self) -> &str {
        "nothing"
    }

    async fn pull(&mut self, _: usize, _: Duration) -> Result<Vec<Incoming<()>>, SourceError> {
        std::future::pending().await
    }

    async fn ack(&mut self, _: Vec<()>) -> Result<(), SourceError> {
        Ok(())
    }

    async fn nack(&mut self, _: Vec<()>, _: Duration) -> Result<(), SourceError> {
        Ok(())
    }
}
