//! What can be wrong with it.

use clap::ValueEnum;

/// What the service does wrong. Each is a mistake that is in use somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// Nothing.
    None,
    /// The key is not looked at.
    NoDedup,
    /// Looks whether the key is known, works, then remembers it: two at once both work.
    CheckThenAct,
    /// A duplicate that comes while the first is under way is answered 500.
    ErrorInFlight,
    /// Everybody is given the first answer there ever was.
    DedupsEverything,
    /// Accepts, and does nothing.
    DoesNothing,
    /// A known key is replayed whatever comes with it.
    IgnoresPayload,
    /// While the first is under way, whatever comes with its key waits for its answer.
    IgnoresPayloadInFlight,
    /// The key of one endpoint is known at the other.
    SharesEndpoints,
    /// The key of one principal is known to the other.
    SharesPrincipals,
    /// The work goes on in the request's task, which ends when the client leaves: done, not remembered.
    ForgetsOnDisconnect,
    /// The same, but the key stays taken for ever.
    StuckOnDisconnect,
    /// A replay has the status, and no body.
    LosesBody,
    /// A replay has no Location.
    LosesHeaders,
    /// A replay has all headers of the first answer, cookies and date too.
    ReplaysAllHeaders,
    /// The first 255 characters of a key count.
    CutsKeys,
    /// Keys are compared without regard to case.
    IgnoresCase,
    /// An empty key is a key.
    EmptyIsAKey,
    /// A key beyond ASCII is answered 500.
    FailsOnOddKeys,
    /// The quoted and the raw form are two keys.
    TwoForms,
    /// Without a key, everything is accepted.
    OptionalKey,
    /// Of two keys, the first is taken.
    FirstOfTwoKeys,
    /// A replay looks like a first answer.
    Unmarked,
    /// Errors are plain text.
    PlainErrors,
    /// 409 does not say when to come back.
    NoRetryAfter,
    /// A request that is not valid uses its key up.
    BurnsKeys,
    /// Payloads are compared as bytes: the same object in another order is another request.
    ComparesBytes,
    /// Payloads are compared by their amount only.
    ComparesAmounts,
    /// An exception in the work leaves the key taken for ever.
    StuckAfterException,
    /// A key is forgotten after a second.
    ForgetsEarly,
    /// A stored answer is given once: the third request is done again.
    ReplaysOnce,
}
