/** Sessions, transactions, and the calls that make an attempt. */

import type { Driver, Row, Session } from "./drivers/index.js";
import {
  DatabaseError,
  Disconnected,
  Invalid,
  NotInTransaction,
  PermanentFailure,
  PgonceError,
  TransientFailure,
  Uncertain,
  endsSession,
  keepsSession,
  leavesOpen,
  translate,
  type Failure,
} from "./errors.js";
import {
  MAX_KEEP_MS,
  interval,
  names,
  readClaimed,
  holds,
  type Ack,
  type Claimed,
  type Done,
  type Held,
  type Intent,
  type Options,
} from "./intent.js";
import { toJson } from "./json.js";
import * as sql from "./statements.js";
import type { Params } from "./statements.js";

// --- sessions ----------------------------------------------------------------------------------

/** What an error of a call of ours means: without a SQLSTATE, the connection is no longer to be trusted. */
export function fromCall(error: unknown): PgonceError {
  return translate(error) ?? new Disconnected(error instanceof Error ? error.message : String(error), { cause: error });
}

export async function acquire(driver: Driver): Promise<Session> {
  try {
    return await driver.acquire();
  } catch (error) {
    throw fromCall(error);
  }
}

/** A whole call over a source: with one connection, no other call may come between its tries. */
export async function inCall<T>(driver: Driver, call: () => Promise<T>): Promise<T> {
  const free = driver.hold();
  try {
    return await call();
  } finally {
    free();
  }
}

export async function query(session: Session, options: { schema: string }, text: string, params: Params): Promise<Row[]> {
  const statement = sql.numbered(text, options.schema);
  try {
    return await session.query(
      statement.text,
      statement.names.map((name) => params[name] ?? null),
    );
  } catch (error) {
    throw fromCall(error);
  }
}

/**
 * Rolls back after an error and gives the session back; answers whether the connection can still be used. Without an `error`
 * it was none of the server's.
 */
export async function discard(session: Session, error?: unknown): Promise<boolean> {
  let keep = !session.lost && keepsSession(error);
  if (keep) {
    try {
      await (error === undefined ? afterOwnError(session, () => session.rollback()) : session.rollback());
    } catch {
      keep = false;
    }
  }
  await release(session, keep);
  return keep;
}

export async function release(session: Session, keep: boolean): Promise<void> {
  try {
    await session.release(keep);
  } catch {
    // What matters was decided before: a connection that cannot be given back is lost, no more.
  }
}

/** The caller's own connection, in the caller's own transaction. */
export async function borrow(driver: Driver): Promise<Session> {
  if (driver.reconnects) {
    throw new Invalid("this must happen in a transaction of yours, and a pool has none", {
      hint: "Pass the connection that holds your transaction.",
    });
  }
  const session = await acquire(driver);
  if (!(await isInTransaction(session))) {
    session.forget();
    throw new NotInTransaction("the connection has no open transaction: every statement would commit by itself", {
      hint: "Send BEGIN first, or use sql.begin of postgres.js.",
    });
  }
  return session;
}

async function isInTransaction(session: Session): Promise<boolean> {
  try {
    return await session.inTransaction();
  } catch (error) {
    throw fromCall(error);
  }
}

/** A session without a transaction; where somebody's is open, to commit that is not ours. */
export async function openIdle(driver: Driver): Promise<Session> {
  const session = await acquire(driver);
  let busy: boolean;
  try {
    busy = await session.inTransaction();
  } catch (raised) {
    const error = fromCall(raised);
    await discard(session, error);
    throw error;
  }
  if (!busy) return session;
  await release(session, !driver.reconnects);
  if (driver.reconnects) throw new Disconnected("a connection was in a transaction that somebody had left open, and is closed");
  throw new Invalid("the connection is in a transaction already, which is not pgonce's to commit", {
    hint: "Commit or roll back first, or use join(...) to claim inside your transaction.",
  });
}

/** A session with a transaction of ours. */
export async function begin(driver: Driver, isolation: Options["isolation"]): Promise<Session> {
  const session = await openIdle(driver);
  try {
    await session.begin(isolation);
  } catch (raised) {
    const error = fromCall(raised);
    await discard(session, error);
    throw error;
  }
  return session;
}

/**
 * Commits and gives the session back. An error that is not the server's, and one with which the server ends the session,
 * leave open what happened.
 */
export async function commit(session: Session): Promise<void> {
  let tag: string;
  try {
    tag = await session.commit();
  } catch (raised) {
    const error = fromCall(raised);
    // Servers write the severity in other languages, too: a session that is over says the same.
    const goesOn = await discard(session, endsSession(raised) ? new Disconnected(error.reason) : error);
    if (goesOn && !leavesOpen(raised)) throw error;
    throw new Uncertain(`the reply to the commit was lost, whether it happened is not known yet: ${error.reason}`, {
      cause: raised,
    });
  }
  await release(session, true);
  if (tag !== "COMMIT") {
    throw new DatabaseError(`the commit was answered with ${tag}: the transaction had failed before`, {
      code: "25P02",
      hint: "An earlier error of this transaction was ignored: look for that first error.",
    });
  }
}

/** One call that is committed when this returns. */
export async function inOwnTransaction(driver: Driver, options: Options, text: string, params: Params): Promise<Row[]> {
  const session = await begin(driver, "read committed");
  let rows: Row[];
  try {
    rows = await query(session, options, text, params);
  } catch (error) {
    await discard(session, error);
    throw error;
  }
  await commit(session);
  return rows;
}

/** The result of a call, or the error that `late` makes, where it takes longer: a connection that falls silent never answers. */
export async function inTime<T>(limitMs: number, late: () => PgonceError, call: () => Promise<T>): Promise<T> {
  let alarm: ReturnType<typeof setTimeout> | undefined;
  const silent = new Promise<never>((_, reject) => {
    alarm = setTimeout(() => reject(late()), Math.min(limitMs, MAX_TIMER_MS));
  });
  try {
    return await Promise.race([call(), silent]);
  } finally {
    clearTimeout(alarm);
  }
}

/**
 * The first call after an error that is not the server's, in time. pg before 8.22 waits for ever for a statement whose values it
 * could not send, and with it every later one of the connection.
 */
export async function afterOwnError<T>(session: Session, call: () => Promise<T>): Promise<T> {
  const late = (): PgonceError => {
    session.destroy();
    return new Disconnected(NO_ANSWER);
  };
  return inTime(OWN_ERROR_LIMIT_MS, late, call);
}

const OWN_ERROR_LIMIT_MS = 5000;

/** Maximum time of a timer of Node; a longer one ends at once. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

/**
 * A call in transactions of our own, in time: a connection that falls silent is broken off. `Late` is what it means that there was no
 * reply: uncertain only for what commits an end.
 */
export async function callInTime<T>(
  driver: Driver,
  limitMs: number,
  Late: typeof Uncertain | typeof Disconnected,
  call: (driver: Driver) => Promise<T>,
): Promise<T> {
  let session: Session | undefined;
  let isLate = false;
  const watched: Driver = {
    ...driver,
    async acquire() {
      const acquired = await driver.acquire();
      if (isLate) {
        await release(acquired, true);
        throw new Disconnected(NO_ANSWER);
      }
      session = acquired;
      return acquired;
    },
  };
  const late = (): PgonceError => {
    isLate = true;
    session?.destroy();
    return new (session === undefined ? Disconnected : Late)(NO_ANSWER);
  };
  return inTime(limitMs, late, () => call(watched));
}

/** No call for a lease is given up earlier than this, however short it is. */
const MIN_LIMIT_MS = 2000;

/** How long a connection that serves a lease of this length may be silent before it is given up for another one. */
export function maxSilenceMs(leaseMs: number): number {
  return Math.max(leaseMs / 3, MIN_LIMIT_MS);
}

export const NO_ANSWER = "the database did not answer in time";

/** A call that changes nothing: a lost reply leaves nothing in doubt. */
export async function lookUp(driver: Driver, options: Options, text: string, params: Params): Promise<Row[]> {
  try {
    return await inOwnTransaction(driver, options, text, params);
  } catch (error) {
    throw error instanceof Uncertain ? new Disconnected(error.reason, { cause: error }) : error;
  }
}

// --- claims ------------------------------------------------------------------------------------

export async function claim(session: Session, intent: Intent, options: Options): Promise<Claimed> {
  return readClaimed((await query(session, options, sql.CLAIM, claimParams(intent, options)))[0]);
}

export function claimParams(intent: Intent, options: Options, leaseMs?: number): Params {
  return {
    ...names(intent),
    fingerprint: intent.fingerprint,
    lease: leaseMs === undefined ? null : interval(leaseMs),
    owner: options.owner,
    correlation: intent.correlation,
  };
}

/** The right to do the work, in an open transaction. */
export interface OpenAttempt {
  readonly session: Session;
  readonly claimed: Held;
}

/** Claims in a transaction of our own, which stays open where the work is ours to do. */
export async function openAttempt(driver: Driver, intent: Intent, options: Options): Promise<OpenAttempt | Claimed> {
  const session = await begin(driver, options.isolation);
  let claimed: Claimed;
  try {
    claimed = await claim(session, intent, options);
  } catch (error) {
    await discard(session, error);
    throw error;
  }
  if (holds(claimed)) return { session, claimed };
  // COMMIT, not ROLLBACK: a refusal that the claim itself has just decided must last before anybody learns of it.
  try {
    await commit(session);
  } catch (error) {
    if (claimed.outcome === "refused") throw error;
  }
  return claimed;
}

/** Records the success in the open transaction of the claim. */
export async function succeed(session: Session, intent: Intent, options: Options, fence: bigint, ack: Ack): Promise<void> {
  await query(session, options, sql.SUCCEED_HERE, successParams(intent, options, fence, ack));
}

export function successParams(intent: Intent, options: Options, fence: bigint, ack: Ack): Params {
  return {
    ...names(intent),
    ...ack.kept(fence).params,
    fingerprint: intent.fingerprint,
    fence: fence.toString(),
    correlation: intent.correlation,
    owner: options.owner,
  };
}

/** Records the success, commits it with the effect, and gives the session back. */
export async function settle(session: Session, intent: Intent, options: Options, fence: bigint, ack: Ack): Promise<void> {
  try {
    await succeed(session, intent, options, fence, ack);
  } catch (error) {
    await discard(session, error);
    throw error;
  }
  await commit(session);
}

/**
 * Records a failure under its fence, in a transaction of its own that `record` makes. That it failed is recorded whatever the
 * contract and the database's encoding allow its answer and its texts to be.
 */
export async function recordFailure(
  intent: Intent,
  options: Options,
  fence: bigint,
  failure: Failure,
  record: (call: (driver: Driver) => Promise<unknown>) => Promise<unknown>,
): Promise<void> {
  const recorded = async (answer: unknown, texts: Params): Promise<void> => {
    const params = {
      ...names(intent),
      ...texts,
      fingerprint: intent.fingerprint,
      fence: fence.toString(),
      retryable: failure instanceof TransientFailure ? "true" : "false",
      answer: answer === undefined ? null : toJson(answer),
      correlation: intent.correlation,
      owner: options.owner,
    };
    await record((driver) => inOwnTransaction(driver, options, sql.FAIL, params));
  };
  const { failureCode: code, reason: message, keepForMs } = failure;
  const texts = { code, message, keep: keepForMs === undefined ? null : interval(Math.min(keepForMs, MAX_KEEP_MS)) };
  const plain = { code: inAscii(code), message: inAscii(message), keep: null };
  const refuses = (error: unknown): boolean => error instanceof PgonceError && /^(?:P4040$|22)/.test(error.code);
  try {
    return await recorded(failure.answer, texts);
  } catch (error) {
    if (!refuses(error)) throw error;
  }
  try {
    return await recorded(undefined, texts);
  } catch (error) {
    if (!refuses(error)) throw error;
  }
  await recorded(undefined, plain);
}

/** A reason in the characters that every encoding of a database has. */
function inAscii(text: string): string {
  return text.replace(/[^\0-\x7f]/gu, "?");
}

/** How an intent ended before; throws where it was refused. */
export function ended(claimed: Claimed): Done {
  if (claimed.outcome === "refused") {
    throw new PermanentFailure(claimed.failureCode, claimed.failureMessage, {
      answer: claimed.answer,
      replayed: true,
    });
  }
  return { answer: claimed.answer, reference: claimed.reference, replayed: true, attempts: claimed.attempts };
}

export function doneNow(claimed: Claimed, ack: Ack): Done {
  return { answer: ack.answer, reference: ack.kept(claimed.fence).reference, replayed: false, attempts: claimed.attempts };
}

/** The part of a scope's contract that a client acts on. */
export interface Contract {
  readonly busy: string;
  readonly waitTimeoutMs: number;
  readonly leaseMs: number;
  readonly retentionMs: number;
}

export async function contractOf(driver: Driver, intent: Intent, options: Options): Promise<Contract> {
  const params = { tenant: intent.tenant, scope: intent.scope };
  const [row] = await lookUp(driver, options, sql.CONTRACT, params);
  const [busy, wait, lease, retention] = row ?? [];
  return {
    busy: busy ?? "reject",
    waitTimeoutMs: Number(wait) * 1000,
    leaseMs: Number(lease) * 1000,
    retentionMs: Number(retention) * 1000,
  };
}
