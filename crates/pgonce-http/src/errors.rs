//! Every problem that this layer answers with, by its code.
//!
//! They are `application/problem+json` (RFC 9457): `type` leads here, `code` never changes, `title`
//! says what it is, `detail` what to do. Branch on `code`. gRPC callers get the same as
//! `grpc-status` and `grpc-message`.
//!
//! # P4001
//! **400, key missing.** The header with the key is missing or empty. Make one key per request, keep it,
//! and send it with every try. Nothing happened.
//!
//! # 22023
//! **400, key unusable.** The header was sent twice, is not a structured-field string or a run of visible ASCII
//! characters, or is too long. Nothing happened.
//!
//! # P4002
//! **422, key reused.** The key was used before with another request. Send that request to get its answer, or take
//! a new key for a new request. Nothing happened now.
//!
//! # P4029
//! **409 and `Retry-After`, busy.** Another request with this key is under way. Send the same again later. This one did nothing.
//!
//! # P4030
//! **422, permanent failure.** `reason` says why. With the reason `abandoned` the process that did
//! the work ended without a result, and whether it happened is unknown: check before you take a new key.
//!
//! # P4031
//! **410, gone.** It happened, and its answer is no longer kept. With the reason `answer_not_kept` it was a stream, or
//! too large to be kept; `original_status` says how it ended.
//!
//! # P4044
//! **429, too many keys.** The tenant has as many keys as the scope's contract allows. Nothing happened. Send it again when
//! older keys have expired.
//!
//! # P4110
//! **307 and `Location`, wrong region.** The home of this key is another region: send the same request with the same key there.
//! **421** where requests are not sent on. `home` names the region. Nothing happened.
//!
//! # 08006
//! **503 and `Retry-After`, database unavailable.** This attempt did nothing. Send the same again with the same key.
//!
//! # 08007
//! **503 and `Retry-After`, not known.** The reply to a commit was lost, or the service was called and the database could not
//! be reached for longer than the lease. Send the same again with the same key: the response says what happened.
//!
//! # principal_missing
//! **401.** The request does not name its caller, and keys belong to a caller. Nothing happened.
//!
//! # tenant_missing
//! **400.** The request does not name its tenant. Nothing happened.
//!
//! # body_too_large
//! **413.** The body is larger than this route takes. Nothing happened.
//!
//! # body_too_slow
//! **408.** The body did not come in time. Nothing happened.
//!
//! # body_unreadable
//! **400.** The body broke off. Nothing happened.
//!
//! # overloaded
//! **503 and `Retry-After`.** Too much is under way. This attempt did nothing. Send the same again with the same key.
//!
//! # response_too_large
//! **500.** The answer was too large to be kept, and this route does not pass such answers on. In atomic mode nothing
//! happened; in leased mode it did, or may have: `detail` says which.
//!
//! # handler_failed
//! **500.** The handler panicked or broke off.
//!
//! # handler_too_slow
//! **503 and `Retry-After`.** The handler took too long and was undone. Nothing happened. Send the same again with
//! the same key.
//!
//! # not_under_way
//! **404.** Nothing is under way at this status URL. Send the request again with the same key.
//!
//! # internal
//! **500.** Something is wrong on the server's side; its log says what. It is safe to send the same again with the
//! same key. **503 and `Retry-After`** where pgonce's schema is missing from the database, or too old: this attempt did
//! nothing.

/// Where the pages for the codes are, unless a policy names another place.
pub const ERRORS_AT: &str = "https://docs.rs/pgonce-http/latest/pgonce_http/errors/#";
