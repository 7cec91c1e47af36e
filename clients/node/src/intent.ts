/** What somebody wants to happen once, and what came of it. */

import type { Isolation, Row } from "./drivers/base.js";
import { Invalid } from "./errors.js";
import { fingerprint as fingerprintOf } from "./fingerprint.js";
import { parse, toJson, type Json } from "./json.js";
import { checkUnicode } from "./keys.js";
import type { RetryPolicy } from "./retry.js";
import type { Params } from "./statements.js";

export const MAX_NAME_BYTES = 255;
/** What is kept for longer, 1000 years, would have an end that no timestamp holds, and could not be recorded. */
export const MAX_KEEP_MS = 1000 * 8766 * 3_600_000;

/** What somebody wants to happen once, named by (tenant, scope, key). */
export interface Intent {
  readonly scope: string;
  readonly key: string;
  readonly fingerprint: Buffer;
  readonly tenant: string;
  readonly correlation: string | null;
}

export interface IntentOptions {
  /** The tenant of the intent. Default: no tenants. */
  tenant?: string;
  /** A fingerprint of your own, instead of that of the request. */
  fingerprint?: Uint8Array;
  /** An id that ties the intent to traces and logs. */
  correlation?: string;
}

export interface CommandOptions extends IntentOptions {
  /** Who makes the attempt, for operators. */
  owner?: string;
  /** Isolation level of the transaction. Default: that of the connection. */
  isolation?: Isolation;
  /** Bounds of the retries. */
  retry?: Partial<RetryPolicy>;
  /** The schema that pgonce is installed in. Default: pgonce. */
  schema?: string;
}

export function makeIntent(scope: string, key: string, request: unknown, options: IntentOptions): Intent {
  checkName(scope, "P4000", "scope", "Name a bounded kind of command, such as 'orders.create'.");
  checkName(key, "P4001", "key", "Send the caller's name for this one request; the same on every retry.");
  const tenant = options.tenant ?? "";
  if (tenant !== "") checkName(tenant, "22023", "tenant", "");
  if (request === undefined && options.fingerprint === undefined) {
    throw new Invalid("the fingerprint is missing", {
      code: "P4003",
      hint: "Pass the request, or a fingerprint of your own.",
    });
  }
  const fingerprint = options.fingerprint === undefined ? fingerprintOf(request) : Buffer.from(options.fingerprint);
  if (fingerprint.length === 0) throw new Invalid("the fingerprint is missing", { code: "P4003", hint: "Pass the request." });
  if (fingerprint.length > 64) {
    throw new Invalid(`the fingerprint has ${fingerprint.length} bytes; at most 64`, {
      hint: "Send a digest, not the request itself.",
    });
  }
  return { scope, key, fingerprint, tenant, correlation: options.correlation ?? null };
}

function checkName(name: string, missing: string, what: string, hint: string): void {
  if (typeof name !== "string") throw new Invalid(`the ${what} is ${typeof name}, not a text`, { code: missing, hint });
  if (name === "") throw new Invalid(`the ${what} is missing`, { code: missing, hint });
  const size = Buffer.byteLength(name, "utf8");
  checkUnicode(name, what);
  if (size > MAX_NAME_BYTES) {
    throw new Invalid(`the ${what} has ${size} bytes; at most ${MAX_NAME_BYTES}`, {
      hint: "Hash a long name: derivedKey does.",
    });
  }
  if (name.includes("\0")) {
    throw new Invalid(`the ${what} contains a NUL character, which PostgreSQL cannot store`, {
      hint: "Remove it, or hash the name with derivedKey.",
    });
  }
}

/** How attempts are made. */
export interface Options {
  readonly isolation: Isolation | undefined;
  readonly retry: Partial<RetryPolicy>;
  readonly owner: string | null;
  readonly schema: string;
}

export function makeOptions(options: CommandOptions): Options {
  const { isolation, schema = "pgonce" } = options;
  if (isolation !== undefined && !["read committed", "repeatable read", "serializable"].includes(isolation)) {
    throw new Invalid(`${JSON.stringify(isolation)} is no isolation level`, {
      hint: "One of 'read committed', 'repeatable read', 'serializable'.",
    });
  }
  checkSchema(schema);
  return { isolation, retry: options.retry ?? {}, owner: options.owner ?? null, schema };
}

/** The schema's name becomes part of statements. */
export function checkSchema(schema: string): string {
  if (!/^(?!pg_)[a-z_][a-z0-9_]{0,62}$/.test(schema)) {
    throw new Invalid(`${JSON.stringify(schema)} cannot be the name of pgonce's schema`, {
      hint: "Use at most 63 small letters, digits and underscores.",
    });
  }
  return schema;
}

/** What was made, where that was stored. */
export interface Reference {
  readonly type: string;
  readonly id: string;
}

export interface SuccessOptions {
  /** What was made. */
  reference?: { type: string; id: string | number | bigint };
  /** Milliseconds to keep this one answer, instead of the retention of its scope. */
  keepForMs?: number;
}

/** The answer to store, the same for every later attempt. */
export class Ack {
  readonly params: Params;
  readonly reference: Reference | null;

  constructor(
    readonly answer: unknown,
    readonly options: SuccessOptions = {},
  ) {
    const { reference, keepForMs } = options;
    this.reference = reference === undefined ? null : { type: reference.type, id: String(reference.id) };
    this.params = {
      answer: answer === undefined ? null : toJson(answer),
      ref_type: this.reference?.type ?? null,
      ref_id: this.reference?.id ?? null,
      keep: keepForMs === undefined ? null : interval(Math.min(keepForMs, MAX_KEEP_MS)),
    };
  }

  /** What is recorded of it under this fence. */
  kept(fence: bigint): Ack {
    const { reference } = this;
    if (reference === null || !`${reference.type}${reference.id}`.includes("\0")) return this;
    // An atomic attempt: nothing has happened yet.
    if (fence % 2n === 1n) {
      throw new Invalid("the reference holds the character U+0000, which PostgreSQL cannot store", {
        hint: "Refer to what was made by its key, or put the text into the answer.",
      });
    }
    const { keepForMs } = this.options;
    return new Ack(this.answer, keepForMs === undefined ? {} : { keepForMs });
  }
}

/** The end of an intent that worked out. */
export interface Done<A = unknown> {
  /** The stored answer, with BigInts for integers beyond 2^53; undefined where none is stored. */
  readonly answer: A;
  readonly reference: Reference | null;
  /** Whether it had happened before this call. */
  readonly replayed: boolean;
  /** How many attempts the intent took. */
  readonly attempts: number;
}

export type ClaimKind = "fresh" | "retry" | "takeover";

/** A claim's row. */
export interface Claimed {
  readonly outcome: ClaimKind | "replay" | "refused" | "busy";
  readonly fence: bigint;
  readonly answer: Json | undefined;
  readonly reference: Reference | null;
  readonly attempts: number;
  readonly failureCode: string;
  readonly failureMessage: string;
  readonly retryAfterMs: number;
}

/** A claim that gives the right to do the work. */
export type Held = Claimed & { readonly outcome: ClaimKind };

export function holds(claimed: Claimed): claimed is Held {
  return claimed.outcome === "fresh" || claimed.outcome === "takeover" || claimed.outcome === "retry";
}

export function readClaimed(row: Row | undefined): Claimed {
  const [outcome, fence, answer, refType, refId, attempts, code, message, after] = row ?? [];
  switch (outcome) {
    case "fresh":
    case "takeover":
    case "retry":
    case "replay":
    case "refused":
    case "busy":
      break;
    default:
      throw new Invalid(`the database answered a claim with ${String(outcome)}, which this release does not know`, {
        code: "P4099",
        hint: "Update this package, or run `pgonce migrate status`.",
      });
  }
  return {
    outcome,
    fence: BigInt(fence ?? 1),
    answer: answer == null ? undefined : parse(answer),
    reference: refType == null || refId == null ? null : { type: refType, id: refId },
    attempts: Number(attempts ?? 1),
    failureCode: code ?? "",
    failureMessage: message ?? "",
    retryAfterMs: after == null ? 100 : Number(after) * 1000,
  };
}

/** A time as PostgreSQL's interval. In seconds: version 14 keeps each number in 32 bits. */
export function interval(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 2 ** 31 || !Number.isFinite(seconds)) return `${seconds.toFixed(6)} seconds`;
  return `${Math.floor(seconds / 3600)} hours ${(seconds % 3600).toFixed(6)} seconds`;
}

export function names(intent: Intent): Params {
  return { scope: intent.scope, key: intent.key, tenant: intent.tenant };
}
