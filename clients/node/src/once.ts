/** Commands in atomic mode: claim, effect and answer commit in one transaction. */

import { adapt, type ConnectionOf, type Driver } from "./drivers/index.js";
import { defined } from "./defined.js";
import { Busy, Disconnected, Failure, PgonceError, ownFailure, translate } from "./errors.js";
import { holds, makeIntent, makeOptions, type CommandOptions, type Done, type Intent, type Options } from "./intent.js";
import { Loop } from "./loop.js";
import { borrow, claim, discard, doneNow, ended, inCall, recordFailure, settle, succeed, type OpenAttempt } from "./protocol.js";
import { Tx } from "./tx.js";

/**
 * Makes `work` happen once and returns what came of it, now or before.
 *
 * `work` may be called several times, each time in a transaction of its own of which at most one commits. What it
 * returns is the answer, unless it calls `tx.succeed`. Throw a `PermanentFailure` or a `TransientFailure` to record
 * one; any other error rolls back, records nothing and is thrown as it came.
 *
 * `source` is a pool or a client of pg, the `sql` of postgres.js, or a function that connects a client of pg.
 */
export async function once<S, A>(
  source: S,
  scope: string,
  key: string,
  request: unknown,
  work: (tx: Tx<ConnectionOf<S>>) => Promise<A> | A,
  options: CommandOptions = {},
): Promise<Done<A>> {
  const intent = makeIntent(scope, key, request, options);
  const made = makeOptions(options);
  const driver = adapt(source);
  return (await inCall(driver, () => runOnce(driver, intent, made, work as (tx: Tx) => unknown))) as Done<A>;
}

/** A command of one scope: `command(pool, scope, work)` answers a function of key and request. */
export function command<S, R, A>(
  source: S,
  scope: string,
  work: (tx: Tx<ConnectionOf<S>>, request: R, key: string) => Promise<A> | A,
  options: CommandOptions = {},
): (key: string, request: R, more?: CommandOptions) => Promise<Done<A>> {
  return (key, request, more = {}) =>
    once(source, scope, key, request, (tx: Tx<ConnectionOf<S>>) => work(tx, request, key), { ...options, ...defined(more) });
}

/**
 * Claims inside a transaction that you opened and will commit. `work` is called where the intent is yours to do, and
 * its success is recorded in your transaction; so nothing is decided until you commit.
 */
export async function join<C, A>(
  conn: C,
  scope: string,
  key: string,
  request: unknown,
  work: (tx: Tx<C>) => Promise<A> | A,
  options: Omit<CommandOptions, "isolation" | "retry"> = {},
): Promise<Done<A>> {
  const intent = makeIntent(scope, key, request, options);
  const made = makeOptions(options);
  const session = await borrow(adapt(conn));
  try {
    const claimed = await claim(session, intent, made);
    if (claimed.outcome === "busy") throw new Busy(claimed.retryAfterMs);
    if (!holds(claimed)) return ended(claimed) as Done<A>;
    const tx = new Tx<C>(intent, made, session, claimed);
    const ack = tx.end(await work(tx));
    await succeed(session, intent, made, claimed.fence, ack);
    return doneNow(claimed, ack) as Done<A>;
  } finally {
    session.forget();
  }
}

export async function runOnce(driver: Driver, intent: Intent, options: Options, work: (tx: Tx) => unknown): Promise<Done> {
  const loop = new Loop(driver, intent, options);
  for (;;) {
    const found = await loop.attempt();
    if (!("session" in found)) return found;
    const ran = await tryOnce(loop, found, work);
    if ("done" in ran) return ran.done;
    if (ran.known === undefined) {
      // The work's own error says nothing about the try whose commit is in doubt.
      throw loop.uncertain ?? ran.error;
    }
    try {
      await loop.again(ran.known);
    } catch (last) {
      // The library's own error, where that is what the work threw.
      throw last === ran.known && !(last instanceof Disconnected) ? ran.error : last;
    }
  }
}

type Ran = { done: Done } | { error: unknown; known: PgonceError | undefined };

async function tryOnce(loop: Loop, { session, claimed }: OpenAttempt, work: (tx: Tx) => unknown): Promise<Ran> {
  const { driver, intent, options } = loop;
  const tx = new Tx(intent, options, session, claimed);
  try {
    const ack = tx.end(await work(tx));
    try {
      await settle(session, intent, options, claimed.fence, ack);
    } catch (error) {
      return { error, known: error as PgonceError };
    }
    return { done: doneNow(claimed, ack) };
  } catch (error) {
    tx.close();
    const lost = session.lost ? new Disconnected("the connection was lost", { cause: error }) : undefined;
    const known = error instanceof Failure ? error : (lost ?? translate(error));
    const clean = await discard(session, known);
    if (!(error instanceof Failure)) return { error, known };
    // The transaction that failed would take the record along. A failure that was not recorded is not reported
    // either: the next attempt may end differently.
    try {
      if (!clean) throw new Disconnected("the connection broke while the work was rolled back");
      await recordFailure(intent, options, claimed.fence, error, (call) => call(driver));
    } catch (unrecorded) {
      return { error: unrecorded, known: unrecorded as PgonceError };
    }
    const own = ownFailure(error);
    return { error: own, known: own };
  }
}
