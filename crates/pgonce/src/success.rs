//! The parameters of a success, in the order of `pgonce.succeed`.

use crate::Intent;
use crate::ack::Ack;
use crate::driver::Param;
use crate::lease::interval;

/// A success to be recorded, with its numbers and times written out.
pub(crate) struct Success<'a> {
    intent: &'a Intent,
    ack: &'a Ack,
    owner: Option<&'a str>,
    value: Option<String>,
    fence: String,
    keep: Option<String>,
}

impl<'a> Success<'a> {
    pub(crate) fn new(
        intent: &'a Intent,
        ack: &'a Ack,
        fence: i64,
        owner: Option<&'a str>,
    ) -> Self {
        Self {
            intent,
            ack,
            owner,
            value: ack.value.as_ref().map(ToString::to_string),
            fence: fence.to_string(),
            keep: ack.keep.map(interval),
        }
    }

    /// For the statements that call `pgonce.succeed`.
    pub(crate) fn params(&self) -> [Param<'_>; 11] {
        let [scope, key, print, rest @ ..] = self.row();
        let [value, ref_type, ref_id, tenant, correlation, owner] = rest;
        let fence = Param::Text(Some(&self.fence));
        let keep = Param::Text(self.keep.as_deref());
        [
            scope,
            key,
            print,
            fence,
            value,
            ref_type,
            ref_id,
            tenant,
            correlation,
            owner,
            keep,
        ]
    }

    /// For the statement that inserts a fresh success, kept for as long as its contract was lately said
    /// to keep it.
    pub(crate) fn kept_row<'b>(&'b self, retention: &'b str) -> [Param<'b>; 10] {
        let [
            scope,
            key,
            print,
            value,
            ref_type,
            ref_id,
            tenant,
            correlation,
            owner,
        ] = self.row();
        let keep = Param::Text(Some(retention));
        [
            scope,
            key,
            print,
            value,
            ref_type,
            ref_id,
            tenant,
            correlation,
            owner,
            keep,
        ]
    }

    /// For the statement that inserts a fresh success, kept for the usual time.
    pub(crate) fn row(&self) -> [Param<'_>; 9] {
        let (ref_type, ref_id) = self.ack.reference().unzip();
        [
            Param::Text(Some(self.intent.scope())),
            Param::Text(Some(self.intent.key())),
            Param::Bytes(self.intent.fingerprint().as_bytes()),
            Param::Json(self.value.as_deref()),
            Param::Text(ref_type),
            Param::Text(ref_id),
            Param::Text(Some(self.intent.tenant_name())),
            Param::Text(self.intent.correlation_id()),
            Param::Text(self.owner),
        ]
    }
}
