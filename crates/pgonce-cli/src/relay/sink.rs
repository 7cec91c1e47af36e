//! Where events go, by address.

use pgonce::outbox::Message;
use pgonce_broker::sinks::JsonLines;
use pgonce_broker::{Delivery, Sink};
use tokio::io::Stdout;

use crate::exit::{self, Result, Trouble};

/// What is wrong with an address, and what to do about it.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) what: String,
    pub(super) hint: String,
}

/// Whether an address names a sink that this program has. Asks nobody.
pub(super) fn check(url: &str) -> std::result::Result<(), Wrong> {
    match url {
        "stdout:" => Ok(()),
        other => {
            // An address may have a password in it: only its beginning is shown.
            let scheme = other.split(':').next().unwrap_or_default();
            Err(Wrong {
                what: format!("there is no sink {:?}", format!("{scheme}:")),
                hint: "Take \"stdout:\", which prints each event as a line of JSON.".to_owned(),
            })
        }
    }
}

/// A sink that was opened.
#[derive(Debug)]
pub(super) enum Opened {
    Lines(JsonLines<Stdout>),
}

/// Opens a sink. `source` says who speaks.
pub(super) async fn open(url: &str, source: &str) -> Result<Opened> {
    match check(url) {
        Ok(()) => Ok(Opened::Lines(JsonLines::stdout(source))),
        Err(wrong) => Err(Trouble::new(exit::USAGE, wrong.what, wrong.hint)),
    }
}

impl Sink for Opened {
    async fn send(&self, message: &Message) -> Delivery {
        match self {
            Self::Lines(lines) => lines.send(message).await,
        }
    }

    async fn send_batch(&self, batch: &[Message], in_flight: usize) -> Vec<Delivery> {
        match self {
            Self::Lines(lines) => lines.send_batch(batch, in_flight).await,
        }
    }
}
