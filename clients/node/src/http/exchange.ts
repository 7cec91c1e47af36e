/** One exchange: how a handler's response becomes the end of its attempt. */

import { STATUS_CODES } from "node:http";
import { adapt, type Driver } from "../drivers/index.js";
import { Busy, Fenced, Gone, Invalid, PermanentFailure, PgonceError, TransientFailure, Uncertain, translate } from "../errors.js";
import { makeOptions, type Done, type Intent, type Options } from "../intent.js";
import { runLeased, type Lease } from "../lease.js";
import { runOnce } from "../once.js";
import { contractOf, inCall } from "../protocol.js";
import { Tx } from "../tx.js";
import { ResponseTooLarge } from "./collect.js";
import { Attempt, DISPOSITIONS, complete, type Disposition, type FullPolicy, type HttpRequest, type HttpResponse, type Policy } from "./policy.js";
import { bodyLost, fromError, internal, problem } from "./problems.js";
import { intentOf, isKeyed, Refused } from "./request.js";
import { accepted, lookAt, statusToken } from "./status.js";
import { announce, dispositionOf, replay, takeWords, toStored, withoutWhatIsRefused } from "./stored.js";

/** Runs the handler once, for this attempt; answers its whole response. */
export type Run = (attempt: Attempt) => Promise<HttpResponse>;

/** Nothing of the attempt is kept. */
class Forgotten extends Error {}

/** It may have happened: the claim of a leased attempt stays as it is. */
class Unknown extends Error {}

/** The handler threw after it had begun a response that says that it is done. */
export class BrokenOff extends Error {}

/** What the log says of a request whose body cannot count: another one with its key would get its response. */
const BODY_LOST =
  "a request was refused: what a parser in front of the route left does not say what its body was; keep the bytes in rawBody " +
  "(Fastify: parseAs: 'buffer'; Hono: c.req.arrayBuffer()), and read the form in the handler";

/** Maximum number of tenants whose retention is remembered. */
const MAX_RETENTIONS = 1000;

const attempts = new WeakMap<object, Attempt>();

/** The attempt of the request that a handler is called for: pass what the framework gave you for the request. */
export function attemptOf<C = any>(request: object): Attempt<C> {
  const found = attempts.get(request);
  if (found === undefined) throw new Error("this request is not handled by a route of pgonce");
  return found as Attempt<C>;
}

export function setAttempt(request: object, attempt: Attempt): void {
  attempts.set(request, attempt);
}

/** A protected route. */
export class Route {
  readonly policy: FullPolicy;
  private readonly driver: Driver;
  private readonly options: Options;
  private readonly running = new Set<Promise<HttpResponse>>();
  private readonly retentions = new Map<string, { until: number; ms: number }>();

  constructor(source: unknown, policy: Policy) {
    this.policy = complete(policy);
    this.driver = adapt(source);
    this.options = makeOptions({ retry: this.policy.retry, schema: this.policy.schema });
  }

  isProtected(method: string): boolean {
    return this.policy.methods.includes(method);
  }

  /** Resolves when no request is in progress. */
  async drained(): Promise<void> {
    while (this.running.size > 0) await Promise.all(this.running);
  }

  /** The response to a request, whose handler may run several times. Never rejects. */
  async respond(request: HttpRequest, run: Run): Promise<HttpResponse> {
    const responding = this.answer(request, run);
    this.running.add(responding);
    try {
      return await responding;
    } finally {
      this.running.delete(responding);
    }
  }

  private async answer(request: HttpRequest, run: Run): Promise<HttpResponse> {
    let intent: Intent;
    try {
      intent = intentOf(request, this.policy);
    } catch (error) {
      if (error instanceof Refused) return error.response;
      this.policy.log("the policy threw", error);
      return internal(this.policy);
    }
    if (!request.isWhole && isKeyed(request, this.policy)) {
      this.policy.log(BODY_LOST, `${request.method} ${request.path}, ${request.header("content-type") ?? "no content-type"}`);
      return bodyLost(this.policy);
    }
    const exchange = new Exchange(this.policy, request, intent, run);
    try {
      const done = await inCall(this.driver, () => this.run(exchange, intent));
      return done.replayed || exchange.live === undefined
        ? replay(this.policy, request, done.answer)
        : exchange.live;
    } catch (error) {
      return exchange.failed(error);
    }
  }

  private async run(exchange: Exchange, intent: Intent): Promise<Done> {
    const { driver, options, policy } = this;
    exchange.retentionMs = await this.retentionOf(intent);
    return policy.mode === "atomic"
      ? runOnce(driver, intent, options, (tx) => exchange.atomic(tx))
      : runLeased(driver, intent, options, (held) => exchange.leased(held), policy.leaseMs, true);
  }

  /** The token of a request that asks for the response of another one; undefined where it is none. */
  statusToken(method: string, path: string): string | undefined {
    return statusToken(this.policy, method, path);
  }

  /** The response of a request that is or was under way: 202, the stored one, or 404. Never rejects. */
  async status(request: HttpRequest, token: string): Promise<HttpResponse> {
    try {
      return await lookAt(this.driver, this.options, this.policy, request, token);
    } catch (error) {
      this.policy.log("the policy threw", error);
      return internal(this.policy);
    }
  }

  /** How long responses are kept; asked for at most once in two seconds. */
  private async retentionOf(intent: Intent): Promise<number | undefined> {
    const known = this.retentions.get(intent.tenant);
    if (known !== undefined && performance.now() < known.until) return known.ms;
    try {
      const { retentionMs: ms } = await contractOf(this.driver, intent, this.options);
      if (this.retentions.size >= MAX_RETENTIONS) this.retentions.clear();
      this.retentions.set(intent.tenant, { until: performance.now() + 2000, ms });
      return ms;
    } catch {
      return undefined;
    }
  }
}

class Exchange {
  /** The response of this run, where it is the one to send. */
  live: HttpResponse | undefined;
  /** How long responses are kept, where that is known. */
  retentionMs: number | undefined;
  /** Whether the handler of a leased route was called: the outside world may have seen its work. */
  private called = false;

  constructor(
    private readonly policy: FullPolicy,
    private readonly request: HttpRequest,
    private readonly intent: Intent,
    private readonly run: Run,
  ) {}

  async atomic(tx: Tx): Promise<void> {
    this.live = undefined;
    await this.handle(tx, new Attempt(tx, undefined));
  }

  async leased(held: Lease): Promise<void> {
    // The response of a run before is none of this one.
    this.live = undefined;
    if (held.kind === "takeover" && this.policy.stale === "refuse") {
      throw new PermanentFailure("abandoned", "the holder vanished; whether it happened is not known");
    }
    this.called = true;
    try {
      await this.handle(held, new Attempt(undefined, held));
    } catch (error) {
      if (error instanceof Forgotten) await this.giveBack(held);
      throw error;
    }
  }

  private async giveBack(held: Lease): Promise<void> {
    try {
      await held.forget();
    } catch (error) {
      // What another holder, or the handler itself, has recorded counts.
      if (error instanceof Fenced) throw error;
      this.policy.log("a lease could not be released; it expires by itself", error);
    }
  }

  private async handle(held: Tx | Lease, attempt: Attempt): Promise<void> {
    let response: HttpResponse;
    let isWhole = true;
    try {
      response = await this.run(attempt);
    } catch (error) {
      isWhole = !(error instanceof ResponseTooLarge);
      response = error instanceof ResponseTooLarge ? error.head : this.crashed(error, held, attempt);
    }
    this.judge(held, attempt, response, isWhole);
  }

  /** The response for a handler that threw; throws what is to be retried or recorded. */
  private crashed(thrown: unknown, held: Tx | Lease, attempt: Attempt): HttpResponse {
    const { policy } = this;
    const error = thrown instanceof BrokenOff ? thrown.cause : thrown;
    if (error instanceof PgonceError) throw error;
    if (policy.mode === "atomic" && (translate(error) !== undefined || (held instanceof Tx && held.lost))) throw error;
    const refusal = this.called && thrown instanceof BrokenOff ? undefined : refusalOf(error, this.called);
    if (refusal !== undefined) return refusal;
    policy.log("the handler threw", error);
    const response = internal(policy, "handler_failed");
    if (policy.mode === "atomic") {
      this.live = response;
      throw new Forgotten("the handler threw", { cause: error });
    }
    // It had said that it is done: no retry may be made of that.
    const retries = policy.outcomes === "final" || policy.outcomes === "finish";
    if (thrown instanceof BrokenOff && retries) attempt.disposition ??= "unknown";
    return response;
  }

  /** Ends the attempt as the response says: records the answer, or throws. */
  private judge(held: Tx | Lease, attempt: Attempt, response: HttpResponse, isWhole: boolean): void {
    const { policy } = this;
    const keepForMs = takeWords(response, attempt);
    let chosen = dispositionOf(response, policy, attempt.disposition, attempt.begun);
    if (!DISPOSITIONS.includes(chosen)) {
      // The handler's own response would say that what is not kept has happened.
      policy.log(`a disposition is none of ${DISPOSITIONS.join(", ")}`, chosen);
      response = internal(policy);
      chosen = "unknown";
    }
    if (!isWhole || response.body.length > policy.maxResponse) {
      policy.log("a response is too large to be kept", `it has more than ${policy.maxResponse} bytes, or is a stream of events`);
      response = problem(policy, 500, "response_too_large", tooLargeToKeep(policy, chosen));
      if (policy.mode === "atomic") chosen = "forget";
      else if (chosen === "keep") chosen = "refuse";
    }
    response.headers = response.headers.filter(([name]) => name !== "idempotent-replayed");
    const stored = toStored(response, policy, keepForMs ?? this.retentionMs);
    this.live = response;
    if (chosen === "keep" || chosen === "refuse") announce(response.headers, stored.expires);
    const kept = keepForMs === undefined ? {} : { keepForMs };
    switch (chosen) {
      case "keep":
        held.succeed(stored, kept);
        // It happened, and that is recorded whatever the contract and the database's encoding allow an answer to be.
        if (!(held instanceof Tx)) held.less = withoutWhatIsRefused;
        return;
      case "refuse":
        throw new PermanentFailure(`http_${response.status}`, "the handler refused", { answer: stored, keepForMs });
      case "retry":
        throw new TransientFailure(`http_${response.status}`, "the handler failed");
      case "unknown":
        throw policy.mode === "leased" ? new Unknown("it may have happened") : new Forgotten("nothing is kept");
      default:
        throw new Forgotten("nothing is kept");
    }
  }

  /** The response that fits the end of the run: the handler's own only where this run made it. */
  failed(error: unknown): HttpResponse {
    const { policy } = this;
    if (error instanceof PermanentFailure && error.replayed) {
      return replay(policy, this.request, error.answer, error);
    }
    const own = [Forgotten, Unknown, PermanentFailure, TransientFailure].some((kind) => error instanceof kind);
    if (own && this.live !== undefined) return this.live;
    let known = translate(error);
    if (known !== undefined && this.called) known = unlessRecorded(known);
    if (known instanceof Busy && known.accepted && policy.statusAt !== undefined) {
      return accepted(policy, this.request, this.intent, known.retryAfterMs);
    }
    const response = known === undefined ? internal(policy) : fromError(policy, known);
    // A conflict is the client's affair.
    if (response.status >= 500) policy.log(known === undefined ? "the handler threw" : "the command failed", error);
    return response;
  }
}

/** What a client gets to know about an effect whose response is too large to be kept. */
function tooLargeToKeep(policy: FullPolicy, chosen: Disposition): string {
  if (policy.mode === "atomic") return "nothing happened; the response is too large to be kept";
  const why = "too large to be kept, and this route passes no such answers on";
  return chosen === "keep" ? `it happened, but its answer is ${why}` : `it may have happened: the answer is ${why}`;
}

/**
 * The error of a leased route whose handler was called: only what is recorded about the intent says what happened, every
 * other error leaves it open.
 */
function unlessRecorded(error: PgonceError): PgonceError {
  const says = [PermanentFailure, TransientFailure, Gone, Invalid, Uncertain].some((kind) => error instanceof kind);
  return says ? error : new Uncertain(error.reason, { cause: error });
}

/**
 * The response that an error with a status of 4xx stands for, as frameworks throw them. A client of another service throws
 * such errors, too, and then the work of a leased route has begun: there only an error that says `expose`, as those of
 * http-errors do, is a refusal of the request.
 */
function refusalOf(error: unknown, leased: boolean): HttpResponse | undefined {
  if (!(error instanceof Error)) return undefined;
  const { status, statusCode = status, expose } = error as { status?: unknown; statusCode?: unknown; expose?: unknown };
  if (typeof statusCode !== "number" || statusCode < 400 || statusCode > 499) return undefined;
  if (leased && expose !== true) return undefined;
  const title = STATUS_CODES[statusCode] ?? "Error";
  const body = JSON.stringify({ statusCode, error: title, message: expose === false ? title : error.message });
  return { status: statusCode, headers: [["content-type", "application/json; charset=utf-8"]], body: Buffer.from(body) };
}
