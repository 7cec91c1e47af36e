/** Claims, waits and retries for one intent. */

import type { Driver, Row } from "./drivers/index.js";
import { Busy, Conflict, DatabaseError, Disconnected, Failure, Fenced, Invalid, LostRace, PgonceError, Uncertain } from "./errors.js";
import { holds, interval, names, readClaimed, type Claimed, type Done, type Held, type Intent, type Options } from "./intent.js";
import {
  callInTime,
  claimParams,
  contractOf,
  ended,
  inOwnTransaction,
  lookUp,
  maxSilenceMs,
  openAttempt,
  type Contract,
  type OpenAttempt,
} from "./protocol.js";
import { Schedule, sleep } from "./retry.js";
import * as sql from "./statements.js";

const MAX_PAUSE_MS = 500;
// How many callers of a process may wait on a connection each for the answer of another attempt; others ask again
// after a pause, so that waiting never empties a pool.
const MAX_WAITERS = 4;
let waiters = 0;

/** A claim that was committed, for how long, and when it was sent. */
export interface LeasedClaim {
  readonly claimed: Held;
  readonly leaseMs: number;
  readonly sent: number;
}

export class Loop {
  uncertain: Uncertain | undefined;
  /** The outside world may have seen leased work of this call. */
  private ran = false;
  private leaseMs: number | undefined;
  /** What was found where there is no time for another claim. */
  private stored: Done | undefined;
  private readonly schedule: Schedule;
  private waitUntil: number | undefined;
  private pause = 5;

  constructor(
    readonly driver: Driver,
    readonly intent: Intent,
    readonly options: Options,
  ) {
    this.schedule = new Schedule(options.retry);
  }

  /** The right to do the work, in an open transaction; or how the intent ended before. */
  async attempt(): Promise<OpenAttempt | Done> {
    return this.until(async () => {
      const found = await openAttempt(this.driver, this.intent, this.options);
      return "session" in found ? found : this.notHeld(found);
    });
  }

  /** A committed claim, as long as asked or as the scope's contract says; or how the intent ended before. */
  async lease(asked: number | undefined): Promise<LeasedClaim | Done> {
    return this.until<LeasedClaim | Done>(async () => {
      if (this.stored !== undefined) return this.stored;
      // The same for every claim of a call: its contract is asked for before any work ran.
      const leaseMs = (this.leaseMs ??= asked ?? (await contractOf(this.driver, this.intent, this.options)).leaseMs);
      const sent = performance.now();
      const params = claimParams(this.intent, this.options, leaseMs);
      const ask = (driver: Driver): Promise<Row[]> => inOwnTransaction(driver, this.options, sql.CLAIM, params);
      const claimed = readClaimed((await this.inTime(Uncertain, ask))[0]);
      return holds(claimed) ? { claimed, leaseMs, sent } : this.notHeld(claimed);
    });
  }

  /** After the work ran these calls learn its end: a connection that falls silent must not keep that back. */
  private async inTime<T>(late: typeof Uncertain | typeof Disconnected, call: (driver: Driver) => Promise<T>): Promise<T> {
    const { driver, leaseMs } = this;
    return this.ran && leaseMs !== undefined ? callInTime(driver, maxSilenceMs(leaseMs), late, call) : call(driver);
  }

  private async until<T>(ask: () => Promise<T | undefined>): Promise<T> {
    for (;;) {
      try {
        const found = await ask();
        if (found !== undefined) return found;
      } catch (error) {
        await this.again(error);
      }
    }
  }

  private async notHeld(claimed: Claimed): Promise<Done | undefined> {
    if (claimed.outcome !== "busy") return ended(claimed);
    await this.wait(claimed.retryAfterMs);
    return undefined;
  }

  /**
   * Pauses before the next try, or throws where another try does not help. `ran` says that the outside world may have
   * seen the work: then only what is stored says otherwise.
   */
  async again(error: unknown, ran = false): Promise<void> {
    // An error that is not pgonce's says nothing about a try whose commit is in doubt.
    if (!(error instanceof PgonceError)) throw this.uncertain ?? error;
    this.ran ||= ran;
    if (error instanceof Uncertain) this.uncertain = error;
    else if (ran) this.uncertain = new Uncertain(error.reason, { cause: error });
    const worth =
      !(error instanceof Failure || error instanceof Busy) &&
      ["retry", "retry_after_delay", "claim_again", "ambiguous"].includes(error.errorClass);
    const lost = (error instanceof Disconnected || error instanceof Uncertain) && !this.driver.reconnects;
    const delay = worth && !lost ? this.schedule.nextDelay(error) : undefined;
    if (delay === undefined) {
      // The tries to record leased work may have used up the time; what is stored counts all the same.
      if (worth && this.ran) this.stored = await this.look();
      if (this.stored !== undefined) return;
      throw this.final(error);
    }
    await sleep(delay);
  }

  /** The stored answer, where there is one. */
  private async look(): Promise<Done | undefined> {
    const params = { ...names(this.intent), fingerprint: this.intent.fingerprint };
    try {
      const [row] = await this.inTime(Disconnected, (driver) => lookUp(driver, this.options, sql.LOOK, params));
      return row?.[0] === "replay" ? ended(readClaimed(row)) : undefined;
    } catch {
      return undefined;
    }
  }

  /**
   * What to end with: that the last try did nothing says nothing about the one before. Only what is stored about
   * the intent settles the doubt. The holder, or the one that was faster, may be that very try, still committing.
   */
  private final(error: PgonceError): PgonceError {
    const doubtful = [Disconnected, Busy, DatabaseError, LostRace, Fenced, Invalid].some((kind) => error instanceof kind);
    // Who used the key with another request came after work that the outside world may have seen.
    const after = this.ran && error instanceof Conflict;
    return this.uncertain !== undefined && (doubtful || after) ? this.uncertain : error;
  }

  /** Does what the scope's contract says about a busy intent. */
  private async wait(retryAfterMs: number): Promise<void> {
    if (this.waitUntil === undefined) {
      const ask = (driver: Driver): Promise<Contract> => contractOf(driver, this.intent, this.options);
      const contract = await this.inTime(Disconnected, ask);
      if (contract.busy !== "wait") throw new Busy(retryAfterMs, contract.busy === "accept");
      this.waitUntil = performance.now() + contract.waitTimeoutMs;
    }
    const started = performance.now();
    const left = this.waitUntil - started;
    if (left <= 0) throw new Busy(retryAfterMs);
    // After its work ran a call asks again and again: while it waits, a connection that works is as silent as one that is lost.
    if (!this.ran && waiters < MAX_WAITERS) {
      waiters += 1;
      try {
        // Woken by the lock of the transaction that holds the intent. A lease has no such lock.
        const params = { ...names(this.intent), timeout: interval(left) };
        await lookUp(this.driver, this.options, sql.WAIT, params);
      } catch (error) {
        // A timeout of the session is shorter than the wait: look, and sleep again.
        if (!(error instanceof DatabaseError && ["57014", "55P03"].includes(error.code))) throw error;
      } finally {
        waiters -= 1;
      }
    }
    if (performance.now() - started < this.pause) {
      await sleep(Math.min(this.pause, left, Math.max(retryAfterMs, 5)) * (0.5 + Math.random() / 2));
      this.pause = Math.min(this.pause * 2, MAX_PAUSE_MS);
    }
  }
}
