/** How to try again. */

import { defined } from "./defined.js";
import { Busy, Disconnected, PgonceError, isCrash, isStale, translate } from "./errors.js";

const UNHURRIED_MS = 100;

/** Bounds for retries at the transaction boundary: exponential with full jitter. */
export interface RetryPolicy {
  /** Maximum number of tries, the first included. Default: 8. */
  maxTries: number;
  /** Maximum first pause; each further one may be twice as long. Default: 5. */
  baseMs: number;
  /** Maximum pause. Default: 1000. */
  capMs: number;
  /** No try starts later than this after the first. Default: 30000. */
  timeoutMs: number;
}

const USUAL: RetryPolicy = { maxTries: 8, baseMs: 5, capMs: 1000, timeoutMs: 30_000 };

/** The retries of one piece of work. */
export class Schedule {
  private readonly policy: RetryPolicy;
  private readonly started = performance.now();
  private retries = 0;

  constructor(policy: Partial<RetryPolicy> = {}) {
    this.policy = { ...USUAL, ...defined(policy) };
  }

  /** Milliseconds to pause before the next try; undefined where tries or time are used up. */
  nextDelay(error: PgonceError): number | undefined {
    if (this.retries + 1 >= Math.max(this.policy.maxTries, 1)) return undefined;
    const ceiling = Math.min(this.policy.baseMs * 2 ** this.retries, this.policy.capMs);
    const delay = minDelay(error) + Math.random() * ceiling;
    if (!this.hasTime(delay)) return undefined;
    this.retries += 1;
    return delay;
  }

  /** Whether there is time for a try that starts after so many milliseconds. */
  hasTime(delay = 0): boolean {
    return delay < this.policy.timeoutMs - (performance.now() - this.started);
  }
}

/** The least time to wait before trying again after this error, in milliseconds. */
export function minDelay(error: PgonceError): number {
  if (error instanceof Busy) return error.retryAfterMs;
  return error.errorClass === "retry_after_delay" ? UNHURRIED_MS : 0;
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/**
 * Runs a transaction of your own, from begin to commit, until it succeeds or fails for a reason that does not go
 * away. The last error is thrown as it came.
 *
 * Only errors after which nothing was committed are tried again. A lost connection and the crash of a server are
 * not: they may have come in COMMIT.
 */
export async function transact<T>(work: () => Promise<T>, policy: Partial<RetryPolicy> = {}): Promise<T> {
  const schedule = new Schedule(policy);
  for (;;) {
    try {
      return await work();
    } catch (raised) {
      const error = translate(raised);
      // Errors of pgonce itself know whether it was in COMMIT.
      const lost = error instanceof Disconnected && !isStale(raised);
      const open = error !== raised && (lost || isCrash(raised));
      const safe = error !== undefined && !open && ["retry", "retry_after_delay", "claim_again"].includes(error.errorClass);
      const delay = safe ? schedule.nextDelay(error) : undefined;
      if (delay === undefined) throw raised;
      await sleep(delay);
    }
  }
}
