/** Exactly-once effects for services on PostgreSQL. */

export {
  Busy,
  Conflict,
  DatabaseError,
  Disconnected,
  Failure,
  Fenced,
  Gone,
  Invalid,
  LostRace,
  NotInTransaction,
  PermanentFailure,
  PgonceError,
  TransientFailure,
  Uncertain,
  type FailureOptions,
} from "./errors.js";
export { execute, type ExecuteOptions } from "./execute.js";
export { canonicalJson, fingerprint, fingerprintOfBytes, type FingerprintOptions } from "./fingerprint.js";
export type { ConnectionOf, Isolation } from "./drivers/index.js";
export type { ClaimKind, CommandOptions, Done, Intent, IntentOptions, Reference, SuccessOptions } from "./intent.js";
export { parse as parseJson, toJson, type Json } from "./json.js";
export { derivedKey, newKey, resourceId } from "./keys.js";
export { BadKey, lintKey, type KeyFault } from "./key-lint.js";
export { lease, type Lease, type LeaseOptions } from "./lease.js";
export { accept, acceptBatch, publish, type EventOptions, type MessageOptions } from "./messages.js";
export { command, join, once } from "./once.js";
export { transact, type RetryPolicy } from "./retry.js";
export { classify, type ErrorClass } from "./table.js";
export type { Tx } from "./tx.js";
export { signWebhook, verifyWebhook, WebhookError, type VerifyOptions, type WebhookHeaders } from "./webhooks.js";
