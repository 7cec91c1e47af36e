//! Recording how an intent ended: the statements, and their arguments in order.

use std::borrow::Cow;

use crate::ack::Ack;
use crate::call::{Args, Sql};
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::intent::Intent;
use crate::seal::{self, AnswerKeys};

/// The fresh success of an atomic attempt. Looks the contract up, and says how long successes are
/// kept if that is simple.
pub(crate) static INSERT_SUCCESS: Sql = Sql::kept(
    "insert into pgonce.intent select * from \
     pgonce._success_row($1, $2, $3, $4, $5, $6, $7, $8, $9) \
     where pgonce._assert_same_transaction() and pgonce._force_durable_commit() \
     returning pgonce._simple_retention($7, $1)",
);
/// The same, where the retention is known.
pub(crate) static INSERT_KEPT: Sql = Sql::kept(
    "insert into pgonce.intent select * from \
     pgonce._success_row_with_retention($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::interval) \
     where pgonce._assert_same_transaction() and pgonce._force_durable_commit()",
);
/// Any other success in the transaction of its claim.
pub(crate) static SUCCEED: Sql = Sql::kept(
    "select 'done' from pgonce.succeed($1, $2, $3, $4::text::bigint, $5, $6, $7, $8, $9, $10, \
     $11::text::interval) where pgonce._assert_same_transaction()",
);
/// The success of a lease.
pub(crate) static SUCCEED_LEASE: Sql = Sql::kept(
    "select 'done' from pgonce.succeed($1, $2, $3, $4::text::bigint, $5, $6, $7, $8, $9, $10, \
     $11::text::interval)",
);
/// The answer is larger than the contract allows.
pub(crate) const ANSWER_TOO_LARGE: &str = "P4040";

/// Whether the database refuses what is to be recorded for its values: too large, or with characters that its encoding
/// does not have.
pub(crate) fn refuses_values(error: &Error) -> bool {
    error.code() == ANSWER_TOO_LARGE || error.code().starts_with("22")
}

/// A failure, under its fence.
pub(crate) static FAIL: Sql = Sql::kept(
    "select 'done' from pgonce.fail($1, $2, $3, $4::text::bigint, $5::text::boolean, $6, $7, \
     $8, $9, $10, $11, $12::text::interval)",
);

/// Answers up to this size fit every contract for which the retention alone is remembered
/// (`pgonce._simple_retention`): the database need not weigh them.
pub(crate) const SMALL_ANSWER_BYTES: usize = 16 * 1024;

/// A success to be recorded.
pub(crate) struct Success<'a> {
    intent: &'a Intent,
    ack: &'a Ack,
    owner: Option<&'a str>,
    value: Option<String>,
}

impl<'a> Success<'a> {
    pub(crate) fn new(
        intent: &'a Intent,
        ack: &'a Ack,
        owner: Option<&'a str>,
        keys: Option<&AnswerKeys>,
    ) -> Result<Self> {
        Ok(Self {
            intent,
            ack,
            owner,
            value: seal::stored(keys, intent, ack.value.as_ref())?,
        })
    }

    pub(crate) fn is_small(&self) -> bool {
        (self.value.as_ref()).is_none_or(|value| value.len() <= SMALL_ANSWER_BYTES)
    }

    /// For [`SUCCEED`] and [`SUCCEED_LEASE`].
    pub(crate) fn args(&self, fence: i64) -> Args<'_> {
        let args = self.answer(named(self.intent).int(fence));
        args.interval(self.ack.keep)
    }

    /// For [`INSERT_SUCCESS`], and for [`INSERT_KEPT`] where the retention is known.
    pub(crate) fn row<'b>(&'b self, retention: Option<&'b str>) -> Args<'b> {
        let args = self.answer(named(self.intent));
        match retention {
            Some(retention) => args.text(retention),
            None => args,
        }
    }

    fn answer<'b>(&'b self, args: Args<'b>) -> Args<'b> {
        let (ref_type, ref_id) = self.ack.reference().unzip();
        args.json(self.value.as_deref())
            .text(ref_type)
            .text(ref_id)
            .text(self.intent.tenant_name())
            .text(self.intent.correlation_id())
            .text(self.owner)
    }
}

/// The arguments of [`FAIL`]. `answer` is the failure's, written out.
pub(crate) fn failure_args<'a>(
    intent: &'a Intent,
    fence: i64,
    owner: Option<&'a str>,
    failure: &'a Failure,
    answer: Option<&'a str>,
) -> Args<'a> {
    named(intent)
        .int(fence)
        .bool(failure.is_retryable())
        .text(failure.code())
        .text(failure.message())
        .json(answer)
        .text(intent.tenant_name())
        .text(intent.correlation_id())
        .text(owner)
        .interval(failure.keep)
}

/// Leaves out of a failure what the database refuses: its answer, then what it is called by characters of other encodings. False:
/// there is nothing to leave out.
pub(crate) fn leave_out(answer: &mut Option<String>, failure: &mut Cow<'_, Failure>) -> bool {
    if answer.take().is_some() {
        return true;
    }
    let is_whole = matches!(failure, Cow::Borrowed(_));
    if is_whole {
        failure.to_mut().write_plainly();
    }
    is_whole
}

/// Scope, key and fingerprint.
pub(crate) fn named(intent: &Intent) -> Args<'_> {
    Args::new()
        .text(intent.scope())
        .text(intent.key())
        .bytes(intent.fingerprint().as_bytes())
}
