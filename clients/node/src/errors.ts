/** What can go wrong, each with a stable code to branch on. */

import { classify, type ErrorClass } from "./table.js";

export interface ErrorDetails {
  code?: string | undefined;
  detail?: string | undefined;
  hint?: string | undefined;
  constraint?: string | undefined;
  cause?: unknown;
}

/** Base of every error of pgonce. Branch on the class or on `code`, never on the text. */
export class PgonceError extends Error {
  readonly code: string;
  /** The text without code and hint. */
  readonly reason: string;
  readonly detail: string | undefined;
  readonly hint: string | undefined;
  readonly constraint: string | undefined;

  constructor(reason: string, code: string, details: ErrorDetails = {}) {
    const detail = details.detail ? `. ${details.detail}` : "";
    const hint = details.hint ? ` Hint: ${details.hint}` : "";
    const used = details.code ?? code;
    super(`${reason} [${used}]${detail}${hint}`, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.code = used;
    this.reason = reason;
    this.detail = details.detail;
    this.hint = details.hint;
    this.constraint = details.constraint;
  }

  /** What to do about it, from the one table that every client shares. */
  get errorClass(): ErrorClass {
    return classify(this.code);
  }
}

/** The input cannot name an intent, or breaks a rule (P4000, P4001, P4003, 22023, 22030). */
export class Invalid extends PgonceError {
  constructor(reason: string, details: ErrorDetails = {}) {
    super(reason, "22023", details);
  }
}

/**
 * The connection has no open transaction, so marker and effect would commit apart (25P01).
 * Thrown before anything was sent.
 */
export class NotInTransaction extends Invalid {
  constructor(reason: string, details: ErrorDetails = {}) {
    super(reason, { code: "25P01", ...details });
  }
}

/** The key, or the message id, was used before with another request (P4002, P4050). */
export class Conflict extends PgonceError {
  constructor(reason: string, details: ErrorDetails = {}) {
    super(reason, "P4002", details);
  }
}

/** Somebody else holds the intent (P4029). */
export class Busy extends PgonceError {
  /** Milliseconds after which it is worth asking again. */
  readonly retryAfterMs: number;
  /** Whether the scope's contract says: answer that it is accepted, and where to poll. */
  readonly accepted: boolean;

  constructor(retryAfterMs: number, accepted = false) {
    super(`somebody else holds the intent, try again in ${Math.ceil(retryAfterMs)} ms`, "P4029");
    this.retryAfterMs = retryAfterMs;
    this.accepted = accepted;
  }
}

/** The answer's retention is over and the contract keeps a tombstone (P4031). */
export class Gone extends PgonceError {
  constructor(reason: string, details: ErrorDetails = {}) {
    super(reason, "P4031", details);
  }
}

/** A newer attempt holds the intent (P4012). */
export class Fenced extends PgonceError {
  constructor(reason: string, details: ErrorDetails = {}) {
    super(reason, "P4012", details);
  }
}

/** Another attempt settled the intent first: claim again to get its answer (P4010, P4011). */
export class LostRace extends PgonceError {
  constructor(reason: string, details: ErrorDetails = {}) {
    super(reason, "P4010", details);
  }
}

/** The reply to a commit was lost. It may have happened: claim again, never guess (08007). */
export class Uncertain extends PgonceError {
  constructor(reason: string, details: ErrorDetails = {}) {
    super(reason, "08007", details);
  }
}

/** No connection, or it broke before anything could have been committed (08006). */
export class Disconnected extends PgonceError {
  constructor(reason: string, details: ErrorDetails = {}) {
    super(reason, "08006", details);
  }
}

/** Any other error of the database. */
export class DatabaseError extends PgonceError {
  constructor(reason: string, details: ErrorDetails = {}) {
    super(reason, "P4099", details);
  }
}

export interface FailureOptions {
  /** What the caller is answered, as JSON. */
  answer?: unknown;
  /** Milliseconds to keep this one failure, instead of the retention of its scope. */
  keepForMs?: number | undefined;
  replayed?: boolean;
}

/** A failure that is recorded. Throw a subclass from the work of an attempt. */
export abstract class Failure extends PgonceError {
  /** Your code for it, such as `card_declined`. */
  readonly failureCode: string;
  readonly answer: unknown;
  readonly keepForMs: number | undefined;
  /** Whether it had been recorded before this call. */
  readonly replayed: boolean;

  constructor(failureCode: string, reason: string, code: string, options: FailureOptions) {
    super(withoutNul(reason), code);
    this.failureCode = withoutNul(failureCode);
    this.answer = options.answer;
    this.keepForMs = options.keepForMs;
    this.replayed = options.replayed ?? false;
  }
}

/** PostgreSQL's texts have no U+0000; a failure must not be lost for one. */
function withoutNul(text: string): string {
  return text.replaceAll("\0", "\ufffd");
}

/** It will never work: every later attempt gets this same failure (P4030). */
export class PermanentFailure extends Failure {
  constructor(failureCode: string, reason: string, options: FailureOptions = {}) {
    super(failureCode, reason, "P4030", options);
  }
}

/** It did not work this time: a later attempt may try again. Its `code` is yours. */
export class TransientFailure extends Failure {
  constructor(failureCode: string, reason: string, options: FailureOptions = {}) {
    super(failureCode, reason, failureCode, options);
  }

  override get errorClass(): ErrorClass {
    return "retry";
  }
}

/** A failure as the command that has just recorded it reports it: `replayed` may be that of another one, which its work asked for. */
export function ownFailure(failure: Failure): Failure {
  if (!failure.replayed) return failure;
  const { failureCode, reason, answer, keepForMs } = failure;
  const Kind = failure instanceof TransientFailure ? TransientFailure : PermanentFailure;
  return Object.assign(new Kind(failureCode, reason, { answer, keepForMs }), { cause: failure });
}

type Made = new (reason: string, details: ErrorDetails) => PgonceError;

const BY_CODE: Record<string, Made> = {
  P4000: Invalid,
  P4001: Invalid,
  P4003: Invalid,
  "22023": Invalid,
  P4002: Conflict,
  P4050: Conflict,
  P4012: Fenced,
  P4010: LostRace,
  P4011: LostRace,
  P4031: Gone,
  "57P01": Disconnected,
  "57P02": Disconnected,
  "57P03": Disconnected,
  "57P05": Disconnected,
};

/** The error that a SQLSTATE stands for. */
export function fromSqlstate(code: string, reason: string, details: ErrorDetails): PgonceError {
  if (code === "23505" && details.constraint === "one_row_per_intent") {
    // The insert of the finished row met another attempt's: the race is lost.
    return new LostRace("the success was not recorded: another attempt finished first", {
      ...details,
      hint: "Claim again: it answers what the other attempt did.",
    });
  }
  const made = BY_CODE[code] ?? (code.startsWith("08") ? Disconnected : DatabaseError);
  return new made(reason, { ...details, code });
}

interface SqlError {
  code: string;
  message: string;
  detail?: string;
  hint?: string;
  constraint?: string;
  constraint_name?: string;
  routine?: string;
}

/** An error of the server that ended its session, in whatever wraps it. */
function lastOfSession(error: unknown): { severity: string; code: string } | undefined {
  let found = error;
  for (let depth = 0; depth < 5 && found instanceof Error; depth++) {
    const { severity, code } = found as { severity?: unknown; code?: unknown };
    if (severity === "FATAL" || severity === "PANIC") return { severity, code: String(code) };
    found = found.cause;
  }
  return undefined;
}

function isSqlError(error: object): error is SqlError {
  const { code } = error as { code?: unknown };
  // EPIPE has five letters, too; only errors of the server have a severity.
  return typeof code === "string" && /^[0-9A-Z]{5}$/.test(code) && "severity" in error;
}

/** The error of the server, in whatever wraps it. */
function wordOfServer(error: unknown): SqlError | undefined {
  let found = error;
  for (let depth = 0; depth < 5 && found instanceof Error; depth++) {
    if (isSqlError(found)) return found;
    found = found.cause;
  }
  return undefined;
}

/**
 * Whether a session is refused every statement that it has prepared: they are gone (DISCARD ALL, another server behind a pooler),
 * or return other types than before. The statement did not run; another session takes it.
 */
export function isStale(error: unknown): boolean {
  const { code, routine } = wordOfServer(error) ?? {};
  return code === "26000" || (code === "0A000" && routine === "RevalidateCachedQuery");
}

/** Whether the session can still be used after an error of which it does not know itself that it is lost. */
export function keepsSession(error: unknown): boolean {
  const disturbing = error instanceof Disconnected || error instanceof Uncertain;
  return !isStale(error) && (!disturbing || (wordOfServer(error) !== undefined && !endsSession(error)));
}

/** Whether an error is the last one of its session, which the server ends: it may have come after the commit. */
export function endsSession(error: unknown): boolean {
  return lastOfSession(error) !== undefined;
}

/**
 * Whether an error says that the server, or a pooler before it, broke: a commit may have been written before. Others that end a
 * session refuse a connection, or end one that did nothing.
 */
export function isCrash(error: unknown): boolean {
  const last = lastOfSession(error);
  return last !== undefined && (last.severity === "PANIC" || /^(?:58|XX)|^53[12]00$/.test(last.code));
}

/** Whether an error leaves open what became of what was being committed. */
export function leavesOpen(raised: unknown): boolean {
  const error = translate(raised);
  return error === undefined || error instanceof Disconnected || error.errorClass === "ambiguous" || endsSession(raised);
}

/** What an error of the server means; undefined where it carries no SQLSTATE. */
export function translate(error: unknown): PgonceError | undefined {
  let found = error;
  // Query builders wrap the library's own error.
  for (let depth = 0; depth < 5 && found instanceof Error; depth++) {
    if (found instanceof PgonceError) return found;
    if (isSqlError(found)) {
      const { code, message, detail, hint } = found;
      if (isStale(found)) return new Disconnected(`the session is out of date: ${message} [${code}]`, { cause: error });
      const constraint = found.constraint ?? found.constraint_name;
      return fromSqlstate(code, message, { detail, hint, constraint, cause: error });
    }
    found = found.cause;
  }
  return undefined;
}
