/** Leases: for work that calls the outside world. */

import { Claimed } from "./claimed.js";
import { adapt, type ConnectionOf, type Driver, type Session } from "./drivers/index.js";
import {
  Busy,
  Conflict,
  DatabaseError,
  Disconnected,
  Failure,
  Fenced,
  Invalid,
  LostRace,
  PgonceError,
  TransientFailure,
  Uncertain,
  ownFailure,
  translate,
} from "./errors.js";
import {
  Ack,
  interval,
  makeIntent,
  makeOptions,
  names,
  type CommandOptions,
  type Done,
  type Intent,
  type Options,
  type SuccessOptions,
} from "./intent.js";
import { Loop, type LeasedClaim } from "./loop.js";
import {
  begin,
  discard,
  doneNow,
  inOwnTransaction,
  callInTime,
  inTime,
  maxSilenceMs,
  MAX_TIMER_MS,
  NO_ANSWER,
  query,
  recordFailure,
  settle,
  successParams,
} from "./protocol.js";
import { minDelay, Schedule, sleep } from "./retry.js";
import * as sql from "./statements.js";
import type { Params } from "./statements.js";
import { Tx } from "./tx.js";

export interface LeaseOptions extends Omit<CommandOptions, "isolation"> {
  /** Length of the lease. Default: that of the scope's contract. */
  leaseMs?: number;
  /** Whether the lease is renewed in the background while the work runs. Default: true. */
  renew?: boolean;
}

/**
 * Makes work that calls the outside world happen once. The claim is committed first, holds no transaction and no
 * connection, and is renewed in the background while `work` runs. What `work` returns is the answer.
 *
 * With an error other than a `PermanentFailure` or a `TransientFailure` the outside effect may have happened: the
 * claim stays until its lease runs out, and then the scope's contract decides.
 */
export async function lease<S, A>(
  source: S,
  scope: string,
  key: string,
  request: unknown,
  work: (held: Lease<ConnectionOf<S>>) => Promise<A> | A,
  options: LeaseOptions = {},
): Promise<Done<A>> {
  const intent = makeIntent(scope, key, request, options);
  const { leaseMs, renew = true } = options;
  const made = makeOptions(options);
  return (await runLeased(adapt(source), intent, made, work as (held: Lease) => unknown, leaseMs, renew)) as Done<A>;
}

/**
 * The right to do the work for a while. After a takeover, success, failure and writes by `begin` are turned away with
 * `Fenced`.
 */
export class Lease<C = unknown> extends Claimed {
  /** @internal */ ack: Ack | undefined;
  /** @internal What is recorded where the database refuses an acknowledgement with an error of this code. */
  less: (ack: Ack, code: string) => Ack | undefined = withoutWhatIsRefused;
  /** @internal */ done: Done | undefined;
  /** @internal */ released = false;
  /** @internal */ failing = false;
  /** Only this call knows that its work ran before: after this claim, the next one would not say so. */
  private readonly doubtful: boolean;
  private readonly leaseMs: number;
  private readonly lost = new AbortController();
  private renewedAt: number;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private clock: ReturnType<typeof setTimeout> | undefined;
  private renewal: Promise<boolean> | undefined;
  /** The end of the intent is being recorded: a renewal that is turned away meanwhile says nothing about who holds it. */
  private recording = false;
  private stopped = false;

  /** @internal */
  constructor(
    private readonly driver: Driver,
    intent: Intent,
    options: Options,
    found: LeasedClaim,
    ran = false,
  ) {
    // The record of a try of this very call may be gone, after a failover or by an operator's act.
    super(intent, options, ran ? { ...found.claimed, outcome: "takeover" } : found.claimed);
    this.doubtful = ran && found.claimed.outcome !== "takeover";
    this.leaseMs = found.leaseMs;
    // Measured before the claim was sent, so that it never ends later than the database thinks.
    this.renewedAt = found.sent;
  }

  /** Aborted when somebody else may hold the intent: pass it to `fetch` and whatever else takes a signal. */
  get signal(): AbortSignal {
    return this.lost.signal;
  }

  /** Throws `Fenced` where the lease was lost: call it before each step of long work. */
  check(): void {
    this.lookAtClock();
    if (this.signal.aborted) throw this.signal.reason;
  }

  /** Says that the work is done, and what its answer is; needed only where that is not what the work returns. */
  succeed(answer?: unknown, options: SuccessOptions = {}): void {
    this.ack = new Ack(answer, options);
  }

  /** Renews the lease once, by its own length. That happens in the background, too. */
  async heartbeat(): Promise<void> {
    const sent = performance.now();
    const params = { ...this.fencedNames(), lease: interval(this.leaseMs) };
    await this.inTime(Disconnected, (driver) => inOwnTransaction(driver, this.options, sql.HEARTBEAT, params));
    // Two may be under way, and the later one may have come back first.
    this.renewedAt = Math.max(this.renewedAt, sent);
  }

  /** Gives the lease back, the work not done: the next claim gets it at once. */
  async release(): Promise<void> {
    await this.giveBack(sql.RELEASE);
  }

  /** @internal As if it had never been asked for: the key is free, also for another request. */
  async forget(): Promise<void> {
    await this.giveBack(sql.FORGET);
  }

  private async giveBack(statement: string): Promise<void> {
    // A claim in doubt runs out instead: then the next one is a takeover, too.
    if (!this.doubtful) {
      await this.ending(() =>
        this.inTime(Uncertain, (driver) => inOwnTransaction(driver, this.options, statement, this.fencedNames())),
      );
    }
    this.released = true;
    this.stop();
  }

  /** Records an end. Where that does not work the lease goes on. */
  private async ending(call: () => Promise<unknown>): Promise<void> {
    this.recording = true;
    try {
      await call();
    } finally {
      this.recording = false;
    }
  }

  private async inTime<T>(late: typeof Uncertain | typeof Disconnected, call: (driver: Driver) => Promise<T>): Promise<T> {
    return callInTime(this.driver, maxSilenceMs(this.leaseMs), late, call);
  }

  /**
   * A transaction for writes of your own under the fence: they commit with the answer, or not at all. A holder that
   * was taken over is turned away before any write. What `writes` returns is the answer of the intent.
   */
  async begin<A>(writes: (tx: Tx<C>) => Promise<A> | A): Promise<A> {
    const session = await this.inTime(Disconnected, (driver) => this.open(driver));
    const tx = new Tx<C>(this.intent, this.options, session, this.claimed);
    let value: A;
    let ack: Ack;
    try {
      value = await writes(tx);
      ack = tx.end(value);
    } catch (error) {
      tx.close();
      const { lost } = session;
      await discard(session, translate(error));
      throw lost ? new Disconnected("the connection was lost, and nothing was written", { cause: error }) : error;
    }
    const late = (): Uncertain => {
      session.destroy();
      return new Uncertain(NO_ANSWER);
    };
    await this.ending(() =>
      inTime(maxSilenceMs(this.leaseMs), late, () => settle(session, this.intent, this.options, this.fence, ack)),
    );
    this.done = doneNow(this.claimed, ack);
    this.stop();
    return value;
  }

  private async open(driver: Driver): Promise<Session> {
    const session = await begin(driver, this.options.isolation);
    try {
      await query(session, this.options, sql.GUARD, this.fencedNames());
    } catch (error) {
      await discard(session, error);
      throw error;
    }
    return session;
  }

  private fencedNames(): Params {
    return { ...names(this.intent), fence: this.fence.toString() };
  }

  private lookAtClock(): void {
    // What has ended cannot be lost; and of an end that is being recorded the record learns who holds the intent.
    if (this.done !== undefined || this.released || this.recording) return;
    if (performance.now() >= this.renewedAt + this.leaseMs) {
      this.lose(
        new Fenced("the lease could not be renewed before it ran out", {
          hint: "Somebody else may hold the intent now: stop, and claim again to learn the answer.",
        }),
      );
    }
  }

  private lose(why: Fenced): void {
    if (!this.signal.aborted) this.lost.abort(why);
  }

  /** @internal Watches the clock, and renews in the background where that is asked for. */
  start(renew: boolean): void {
    this.watchClock();
    if (renew) this.schedule(this.leaseMs / 3 - (performance.now() - this.renewedAt));
  }

  /** @internal Nothing is renewed any more. A renewal that hangs is not waited for: it is given up by itself. */
  stop(): void {
    this.stopped = true;
    clearTimeout(this.clock);
    clearTimeout(this.timer);
  }

  /** The end of the lease must be noticed whatever the renewals do. */
  private watchClock(): void {
    this.lookAtClock();
    if (this.signal.aborted) return;
    const left = this.renewedAt + this.leaseMs - performance.now();
    // It has run out where its end is being recorded.
    const delay = left > 0 ? left : this.leaseMs / 20;
    this.clock = setTimeout(() => this.watchClock(), Math.min(delay, MAX_TIMER_MS)).unref();
  }

  private schedule(delay: number): void {
    if (this.stopped) return;
    this.timer = setTimeout(
      () => void this.renew().then((renewed) => this.goesOn() && this.schedule(this.leaseMs / (renewed ? 3 : 20))),
      Math.min(Math.max(delay, 0), MAX_TIMER_MS),
    );
  }

  /** Work that is being recorded is not repeated by anybody, if that can be helped: its lease is renewed even when it ran out. */
  private goesOn(): boolean {
    return this.recording || !this.signal.aborted;
  }

  /** Whether the lease was renewed, now or by a renewal that is under way. Never rejects. */
  private renew(): Promise<boolean> {
    this.renewal ??= this.heartbeat()
      .then(
        () => true,
        (error: unknown) => {
          // While it is being recorded, the record itself learns who holds the intent.
          if (error instanceof Fenced && !this.recording && !this.stopped) this.lose(error);
          return false;
        },
      )
      .finally(() => {
        this.renewal = undefined;
      });
    return this.renewal;
  }

  /** @internal Records the answer. */
  async record(ack: Ack): Promise<void> {
    for (let kept = ack; this.done === undefined; ) {
      const params = successParams(this.intent, this.options, this.fence, kept);
      try {
        await this.untilRecorded((driver) => inOwnTransaction(driver, this.options, sql.SUCCEED, params));
        // The first caller gets what all later ones get.
        this.done = doneNow(this.claimed, kept);
      } catch (error) {
        const less = error instanceof PgonceError ? this.less(kept, error.code) : undefined;
        if (less === undefined) throw error;
        kept = less;
      }
    }
  }

  /** @internal */
  async fail(failure: Failure): Promise<void> {
    this.failing = true;
    if (this.doubtful && failure instanceof TransientFailure) return;
    await recordFailure(this.intent, this.options, this.fence, failure, (call) => this.untilRecorded(call));
  }

  /**
   * An error that may pass is no reason to give up the record of work that is done: it is tried again until the lease
   * ends, or for as long as the retry policy allows, whichever is later. The lease is renewed meanwhile: the work is done,
   * and nobody may repeat it.
   */
  private async untilRecorded(call: (driver: Driver) => Promise<unknown>): Promise<void> {
    const retries = new Schedule(this.options.retry);
    const expiry = this.renewedAt + this.leaseMs;
    let pause = Math.min(this.leaseMs / 20, MAX_PAUSE_MS);
    let lost: Uncertain | undefined;
    this.recording = true;
    for (;;) {
      try {
        await this.inTime(Uncertain, call);
        return;
      } catch (error) {
        // The key went to another request meanwhile, which denies this work, and it is done.
        if (error instanceof Conflict) throw new Uncertain(error.reason, { cause: error });
        const isOver = performance.now() >= expiry && !retries.hasTime();
        // Of a try whose reply was lost a later error says nothing: where it had worked after all, the fence turned
        // the next one away, and a claim finds the answer.
        if (!mayPass(error) || isOver) throw lost ?? error;
        if (error instanceof Uncertain) lost = error;
        // Not waited for: one that hangs must not hold up the next try.
        if (performance.now() >= this.renewedAt + this.leaseMs / 3) void this.renew();
        // Of different lengths: holders that turn each other away must not meet again at each try.
        await sleep(minDelay(error) + Math.random() * pause);
        // Short enough to renew the lease in time.
        pause = Math.min(pause * 2, this.leaseMs / 6, MAX_PAUSE_MS);
      }
    }
  }
}

/** Maximum pause between two tries to record what leased work did. */
const MAX_PAUSE_MS = 1000;

const PASSING = ["retry", "retry_after_delay", "ambiguous"];

function mayPass(error: unknown): error is PgonceError {
  // A timeout of the session: the next try may be faster.
  return error instanceof PgonceError && (PASSING.includes(error.errorClass) || error.code === "57014");
}

/**
 * An acknowledgement without what the database has refused with an error of this code; undefined where that is about nothing here.
 * What is done is recorded, whatever can be kept of its answer.
 */
function withoutWhatIsRefused(ack: Ack, code: string): Ack | undefined {
  const isOfValues = code.startsWith("22");
  if ((isOfValues || code === "P4040") && ack.answer !== undefined) return new Ack(undefined, ack.options);
  // Of a large answer the reference is what remains.
  return isOfValues && Object.keys(ack.options).length > 0 ? new Ack(undefined) : undefined;
}

/**
 * How leased work ended that is not recorded. The outside world may have seen it, so an error that says that nothing was
 * done, of this intent or of another that the work asked for, becomes `Uncertain`.
 */
function leftOpen(error: unknown): unknown {
  const denies =
    error instanceof Disconnected ||
    error instanceof Conflict ||
    error instanceof Busy ||
    error instanceof Invalid ||
    (error instanceof DatabaseError && mayPass(error));
  return denies ? new Uncertain(`leased work could not be recorded: ${error.reason}`, { cause: error }) : error;
}

export async function runLeased(
  driver: Driver,
  intent: Intent,
  options: Options,
  work: (held: Lease) => unknown,
  asked: number | undefined,
  renew: boolean,
): Promise<Done> {
  if (!driver.reconnects) {
    throw new Invalid("a lease needs a pool or a function that connects", {
      hint: "It is renewed while you work, and that needs a connection of its own.",
    });
  }
  const loop = new Loop(driver, intent, options);
  for (let ran = false; ; ran = true) {
    const found = await loop.lease(asked);
    if (!("claimed" in found)) return found;
    const held = new Lease(driver, intent, options, found, ran);
    try {
      return await runHeld(held, work, renew);
    } catch (error) {
      // The work gave its lease back, and says itself that it is not done.
      if (held.released && error instanceof Invalid) throw error;
      const claimsAgain = error instanceof Fenced || error instanceof LostRace || error instanceof Uncertain;
      if (!claimsAgain || held.released || held.failing) throw leftOpen(error);
      // The claim knows what is true now.
      await loop.again(error, true);
    }
  }
}

async function runHeld(held: Lease, work: (held: Lease) => unknown, renew: boolean): Promise<Done> {
  held.start(renew);
  try {
    let ack: Ack;
    try {
      const value = await work(held);
      if (held.done !== undefined) return held.done;
      ack = held.ack ?? new Ack(value);
    } catch (error) {
      // What is stored counts, not what the work says afterwards.
      if (held.done !== undefined && error instanceof PgonceError) return held.done;
      // Work that stopped because its lease was lost has nothing of its own to report.
      if (held.signal.aborted && isAbort(error, held.signal)) throw held.signal.reason;
      if (!(error instanceof Failure) || held.released) throw error;
      await held.fail(error);
      throw ownFailure(error);
    }
    if (held.released) {
      throw new Invalid("the lease was given back, so there is no answer to record");
    }
    await held.record(ack);
    return held.done as unknown as Done;
  } finally {
    held.stop();
  }
}

function isAbort(error: unknown, signal: AbortSignal): boolean {
  return error === signal.reason || (error instanceof Error && error.name === "AbortError");
}
