//! The response of leased work that is done, in the form that the database holds.

use std::time::Duration;

use pgonce::{Ack, Result};

use crate::stored::Stored;

/// The class of errors about values.
const DATA_EXCEPTION: &str = "22";

/// What is recorded of a response, and for how long where it has a time of its own.
#[derive(Clone)]
pub(super) struct KeptResponse {
    pub(super) stored: Stored,
    pub(super) keep: Option<Duration>,
}

impl KeptResponse {
    pub(super) fn ack(&self) -> Result<Ack> {
        let ack = Ack::value(&self.stored)?;
        Ok(match self.keep {
            Some(time) => ack.keep_for(time),
            None => ack,
        })
    }

    /// Leaves out what the database has refused with an error of this code; false where the error is about nothing here.
    pub(super) fn without_what_is_refused(&mut self, code: &str) -> bool {
        let is_of_values = code.starts_with(DATA_EXCEPTION);
        // Characters that the encoding of the database does not have.
        if matches!(code, "22P05" | "22021") && self.stored.write_in_ascii() {
            return true;
        }
        // A time that no timestamp holds.
        if is_of_values && self.keep.take().is_some() {
            return true;
        }
        // It happened, and that is recorded whatever the contract allows a response to be.
        (is_of_values || code == "P4040") && self.stored.leave_out_body()
    }

    /// Whether only how it ended is kept.
    pub(super) fn is_bare(&self) -> bool {
        self.stored.is_unkept()
    }
}
