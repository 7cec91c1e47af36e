/** What a route promises, and what passes through it. */

import { defined } from "../defined.js";
import { Invalid } from "../errors.js";
import type { Lease } from "../lease.js";
import type { RetryPolicy } from "../retry.js";
import type { Tx } from "../tx.js";

/**
 * What becomes of an attempt once the handler has answered. `keep`: effect and response are kept. `refuse`: a permanent
 * failure, the response is kept. `retry`: a transient failure, a retry does the work again. `forget`: nothing is kept
 * and the key is free. `unknown`: it may have happened; on a leased route the claim stays until its lease runs out and
 * then `stale` decides, on an atomic one it is the same as `forget`.
 */
export type Disposition = (typeof DISPOSITIONS)[number];
export const DISPOSITIONS = ["keep", "refuse", "retry", "forget", "unknown"] as const;

/** Names in lower case; each value is a text of Latin-1, as HTTP has it. */
export type HeaderList = [name: string, value: string][];

/** A request as it came. */
export class HttpRequest {
  readonly body: Buffer;
  /** @internal Whether `body` is what was sent, and not lost to something that has read it before. */
  readonly isWhole: boolean;

  constructor(
    readonly method: string,
    readonly path: string,
    readonly query: string,
    readonly headers: HeaderList,
    body: Buffer | undefined,
  ) {
    this.body = body ?? Buffer.alloc(0);
    this.isWhole = body !== undefined;
  }

  all(name: string): string[] {
    return this.headers.filter(([found]) => found === name).map(([, value]) => value);
  }

  /** The value of a header; undefined where it is missing or sent more than once. */
  header(name: string): string | undefined {
    const values = this.all(name.toLowerCase());
    return values.length === 1 ? values[0] : undefined;
  }
}

/** A whole response. */
export interface HttpResponse {
  status: number;
  headers: HeaderList;
  body: Buffer;
}

/** What a handler gets from `attemptOf`. */
export class Attempt<C = unknown> {
  /** Set it to overrule the policy for this one response. */
  disposition: Disposition | undefined;

  /** @internal */
  constructor(
    private readonly open: Tx<C> | undefined,
    private readonly held: Lease<C> | undefined,
  ) {}

  /** The open transaction of an atomic route: what is written on `tx.conn` commits with the response. */
  get tx(): Tx<C> {
    if (this.open === undefined) throw new Invalid("a leased route has no transaction", { hint: "Use mode: 'atomic'." });
    return this.open;
  }

  /** The lease of a leased route. */
  get lease(): Lease<C> {
    if (this.held === undefined) throw new Invalid("an atomic route has no lease", { hint: "Use mode: 'leased'." });
    return this.held;
  }

  /** @internal */
  get begun(): boolean {
    return this.open === undefined || this.open.touched;
  }
}

/** What a route promises. */
export interface Policy {
  /** The scope of the route's intents. */
  scope: string;
  /** Who asks: the account, never the credential. A required decision: null where keys belong to nobody. */
  principal: ((request: HttpRequest) => string | null | undefined) | null;
  /** Method and path template, such as `POST /orders/{id}/pay`. Default: method and path. */
  operation?: string;
  /** `atomic`: response and writes commit together. `leased`: for handlers that call out. Default: atomic. */
  mode?: "atomic" | "leased";
  /** Methods that are protected; others pass. Default: POST and PATCH. */
  methods?: readonly string[];
  /** Whether a request without a key is refused with 400. Default: true. */
  keyRequired?: boolean;
  /** The header that carries the key. Default: idempotency-key. */
  header?: string;
  /** Whether keys that name an attempt, or nothing, are refused with 400: see `lintKey`. Default: false. */
  lintKeys?: boolean;
  /** Whether keys are stored as sent, without the digest of operation: only where `principal` is null. Default: false. */
  plainKeys?: boolean;
  /** The tenant of a request. Default: no tenants. */
  tenant?: (request: HttpRequest) => string | null | undefined;
  /** The version of the API that gives a request its meaning. Default: none. */
  version?: string;
  /** Whether the query counts for the fingerprint. Default: true. */
  withQuery?: boolean;
  /** Which responses are kept. Default: `final` for atomic routes, `freeze` for leased ones. */
  outcomes?: "freeze" | "final" | "finish" | ((response: HttpResponse) => Disposition);
  /** Headers to replay besides the usual ones. */
  replayHeaders?: readonly string[];
  /** Asked before a stored response is given out; what it returns is sent instead. */
  reauthorise?: (request: HttpRequest) => HttpResponse | undefined;
  /**
   * Path under which a client asks for the response of a request that is under way, where the scope's contract says
   * `accept`: it gets 202 and a Location there. Mount the same handler for GET at this path with the token behind it.
   */
  statusAt?: string;
  /** Leased routes: what becomes of work whose holder vanished. Default: refuse. */
  stale?: "refuse" | "takeover";
  /** Length of a lease. Default: that of the scope's contract. */
  leaseMs?: number;
  /** How often a claim, and the record of a leased route's response, is tried again. */
  retry?: Partial<RetryPolicy>;
  /** Maximum length of a key. Default: 255. */
  maxKeyBytes?: number;
  /** Maximum size of a request's body. Default: 2 MiB. */
  maxBody?: number;
  /** Maximum size of a response that is kept. Default: 1 MiB. */
  maxResponse?: number;
  /** Where the pages of the error codes are. */
  errorsAt?: string;
  /** The schema that pgonce is installed in. Default: pgonce. */
  schema?: string;
  /** Where errors of handlers and of the database are reported. Default: console.error. */
  log?: (message: string, error: unknown) => void;
}

/** A policy with nothing left open. */
export type FullPolicy = Required<Omit<Policy, "operation" | "tenant" | "reauthorise" | "leaseMs" | "statusAt">> &
  Pick<Policy, "operation" | "tenant" | "reauthorise" | "leaseMs" | "statusAt">;

export function complete(policy: Policy): FullPolicy {
  const { principal, mode = "atomic" } = policy;
  if (principal === undefined) {
    throw new Invalid("a policy must say whose keys they are", {
      hint: "Set principal to a function that names the account, or to null where keys belong to nobody.",
    });
  }
  if (policy.plainKeys && principal !== null) {
    throw new Invalid("plainKeys and a principal exclude each other: two callers' keys would meet", {
      hint: "Drop plainKeys, or make the principal the tenant.",
    });
  }
  const choices = { mode: ["atomic", "leased"], stale: ["refuse", "takeover"], outcomes: ["freeze", "final", "finish"] };
  for (const [name, known] of Object.entries(choices)) {
    const value = policy[name as keyof typeof choices];
    if (value === undefined || (name === "outcomes" && typeof value === "function")) continue;
    if (!known.includes(value as string)) {
      throw new Invalid(`${name} is ${JSON.stringify(value)}`, { hint: `One of ${known.join(", ")}.` });
    }
  }
  return {
    methods: ["POST", "PATCH"],
    keyRequired: true,
    header: "idempotency-key",
    lintKeys: false,
    plainKeys: false,
    version: "",
    withQuery: true,
    outcomes: mode === "atomic" ? "final" : "freeze",
    replayHeaders: [],
    stale: "refuse",
    retry: {},
    maxKeyBytes: 255,
    maxBody: 2 << 20,
    maxResponse: 1 << 20,
    errorsAt: "https://docs.rs/pgonce-http/latest/pgonce_http/errors/#",
    schema: "pgonce",
    log: (message, error) => console.error(message, error),
    ...defined(policy),
    mode,
  };
}
