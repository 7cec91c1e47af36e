/** Express, and every other framework whose handlers take a request and a response of `node:http`. */

import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import { plain, toJson } from "../json.js";
import { BrokenOff, Route, setAttempt } from "./exchange.js";
import { HttpRequest, type FullPolicy, type HeaderList, type HttpResponse, type Policy } from "./policy.js";
import { tooLarge } from "./problems.js";

type Next = (error?: unknown) => void;

interface ExpressRequest extends IncomingMessage {
  originalUrl?: string;
  baseUrl?: string;
  params?: unknown;
  body?: unknown;
  rawBody?: unknown;
  _body?: boolean;
}

/** A handler, and `drained`, to be awaited before the process ends. */
export type Drained<H> = H & { drained(): Promise<void> };

/**
 * Makes requests with an `Idempotency-Key` happen once. `handler` is a handler or a whole router; it may run several
 * times, so it is wrapped instead of reached by `next`. Its attempt is `attemptOf(req)`.
 *
 * The body is read here unless a parser came before; then keep its bytes in `req.rawBody` where they matter.
 */
export function idempotentExpress<Req extends IncomingMessage, Res extends ServerResponse>(
  source: unknown,
  policy: Policy,
  handler: (req: Req, res: Res, next: Next) => unknown,
): Drained<(req: Req, res: Res, next?: Next) => void> {
  const route = new Route(source, policy);
  const handle = async (req: Req, res: Res, next: Next): Promise<void> => {
    const body = await readBody(req, route.policy.maxBody);
    if (body === undefined) {
      res.setHeader("connection", "close");
      send(res, tooLarge(route.policy));
      return;
    }
    const recorder = new Recorder(req, res, handler as (req: IncomingMessage, res: ServerResponse, next: Next) => unknown);
    const response = await route.respond(requestOf(req, body), async (attempt) => {
      setAttempt(req, attempt);
      const recorded = await recorder.run();
      if (recorder.passed) attempt.disposition = "forget";
      return recorded;
    });
    if (recorder.passed) next();
    else send(res, response);
  };
  const wrapped = (req: Req, res: Res, next: Next = last(res, route.policy)): void => {
    const asked = requestOf(req, Buffer.alloc(0));
    const token = route.statusToken(asked.method, asked.path);
    let handled: unknown;
    if (token !== undefined) handled = route.status(asked, token).then((response) => send(res, response));
    else if (route.isProtected(asked.method)) handled = handle(req, res, next);
    else handled = handler(req, res, next);
    // A rejection that nobody takes ends the process. Without an error, `next` would go on.
    Promise.resolve(handled).catch((error: unknown) => next(error ?? new Error("the handler was rejected")));
  };
  return Object.assign(wrapped, { drained: () => route.drained() });
}

/** What comes after the handler where no framework does. */
function last(res: ServerResponse, { log }: FullPolicy): Next {
  return (error) => {
    if (error !== undefined) log("the handler threw", error);
    if (res.writableEnded) return;
    if (res.headersSent) {
      // The client must not take it for a whole response.
      res.destroy();
      return;
    }
    for (const name of res.getHeaderNames()) res.removeHeader(name);
    res.statusCode = error === undefined ? 404 : 500;
    res.end();
  };
}

function requestOf(req: ExpressRequest, body: Buffer): HttpRequest {
  const [path = "", query = ""] = split(req.originalUrl ?? req.url ?? "");
  const headers: HeaderList = [];
  for (let at = 0; at + 1 < req.rawHeaders.length; at += 2) {
    headers.push([(req.rawHeaders[at] ?? "").toLowerCase(), req.rawHeaders[at + 1] ?? ""]);
  }
  return new HttpRequest(req.method ?? "", path, query, headers, body);
}

export function split(url: string): [path: string, query: string] {
  const at = url.indexOf("?");
  return at < 0 ? [url, ""] : [url.slice(0, at), url.slice(at + 1)];
}

/** The bytes of a body that a parser has read before us. */
export function parsedBody(raw: unknown, body: unknown): Buffer {
  const found = Buffer.isBuffer(raw) || typeof raw === "string" ? raw : body;
  if (found === undefined || found === null) return Buffer.alloc(0);
  if (Buffer.isBuffer(found)) return found;
  return Buffer.from(typeof found === "string" ? found : jsonOf(found), "utf8");
}

function jsonOf(body: unknown): string {
  try {
    return toJson(body);
  } catch {
    // A text that PostgreSQL cannot store is valid in a request, and nothing but its digest is stored.
    return JSON.stringify(plain(body), (_, value: unknown) => (typeof value === "bigint" ? value.toString() : value));
  }
}

/** The body's bytes; undefined where there are too many. */
async function readBody(req: ExpressRequest, max: number): Promise<Buffer | undefined> {
  // Not where `req.body` is set: body-parser 1 does that, too, to what it leaves unread.
  if (req.rawBody !== undefined || req._body === true || req.readableEnded) {
    const parsed = parsedBody(req.rawBody, req.body);
    return parsed.length > max ? undefined : parsed;
  }
  const bytes = await new Promise<Buffer | undefined>((resolve, reject) => {
    const chunks: Buffer[] = [];
    let size = 0;
    req.on("data", (chunk: Buffer) => {
      size += chunk.length;
      if (size > max) resolve(undefined);
      else chunks.push(chunk);
    });
    req.on("end", () => resolve(Buffer.concat(chunks)));
    req.on("close", () => reject(new Error("the client left before it had sent the request")));
    req.on("error", reject);
  });
  if (bytes === undefined) return undefined;
  req.rawBody = bytes;
  if (bytes.length > 0) req.body = bytes;
  req.body ??= bytes;
  if (/^application\/(?:[^;]*\+)?json\b/i.test(req.headers["content-type"] ?? "")) {
    try {
      req.body = JSON.parse(bytes.toString("utf8")) as unknown;
    } catch {
      // The handler gets the bytes, and says what is wrong with them.
    }
  }
  // Parsers that come after have nothing to read.
  req._body = true;
  return bytes;
}

/** Runs a handler and keeps what it sends, so that nothing leaves before the commit. */
class Recorder {
  /** Whether the last run left the request to others. */
  passed = false;
  private readonly headers: OutgoingHttpHeaders;
  private readonly before: Pick<ExpressRequest, "url" | "baseUrl" | "params">;

  constructor(
    private readonly req: ExpressRequest,
    private readonly res: ServerResponse,
    private readonly handler: (req: IncomingMessage, res: ServerResponse, next: Next) => unknown,
  ) {
    this.headers = { ...res.getHeaders() };
    this.before = { url: req.url, baseUrl: req.baseUrl, params: req.params };
  }

  async run(): Promise<HttpResponse> {
    const { res } = this;
    this.passed = false;
    this.reset();
    const chunks: Buffer[] = [];
    let begun = false;
    const { write, end, writeHead, flushHeaders } = res;
    const others = new Set(res.rawListeners("finish"));
    const keep = (chunk: unknown, encoding: unknown): void => {
      if (typeof chunk === "string") chunks.push(Buffer.from(chunk, typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8"));
      else if (chunk instanceof Uint8Array) chunks.push(Buffer.from(chunk));
    };
    try {
      await new Promise<void>((resolve, reject) => {
        let ended = false;
        let running: Promise<unknown> = Promise.resolve();
        // Both must be over: what a handler does after its response belongs to its work.
        const settle = (): void => {
          ended = true;
          // A handler may send before it has returned its promise.
          queueMicrotask(() => running.then(() => resolve(), reject));
        };
        const replaced = {
          write: (chunk: unknown, encoding?: unknown, done?: unknown) => {
            begun = true;
            keep(chunk, encoding);
            call(encoding, done);
            return true;
          },
          end: (chunk?: unknown, encoding?: unknown, done?: unknown) => {
            begun = true;
            if (!ended) {
              keep(chunk, encoding);
              process.nextTick(finish, res, others);
            }
            settle();
            call(chunk, encoding, done);
            return res;
          },
          writeHead: (status: number, ...rest: unknown[]) => {
            begun = true;
            res.statusCode = status;
            const given = rest.find((item) => typeof item === "object" && item !== null);
            const pairs = Array.isArray(given) ? paired(given) : Object.entries(given ?? {});
            for (const [name, value] of pairs) if (value !== undefined) res.setHeader(name, value as string);
            return res;
          },
          flushHeaders: () => undefined,
        };
        Object.assign(res, replaced);
        const next: Next = (error) => {
          if (error !== undefined && error !== null && error !== "route" && error !== "router") {
            reject(error);
            return;
          }
          this.passed = true;
          resolve();
        };
        const result: unknown = this.handler(this.req, res, next);
        running = Promise.resolve(result);
        running.catch(reject);
      });
      return { status: res.statusCode, headers: listed(res.getHeaders()), body: Buffer.concat(chunks) };
    } catch (error) {
      throw begun && res.statusCode < 400 ? new BrokenOff("the handler broke off", { cause: error }) : error;
    } finally {
      Object.assign(res, { write, end, writeHead, flushHeaders });
      this.reset();
    }
  }

  private reset(): void {
    for (const name of this.res.getHeaderNames()) this.res.removeHeader(name);
    for (const [name, value] of Object.entries(this.headers)) if (value !== undefined) this.res.setHeader(name, value);
    this.res.statusCode = 200;
    Object.assign(this.req, this.before);
  }
}

/**
 * Ends what the handler waits for, such as a `pipeline` into the response: that waits for the one that is recorded. What
 * others wait for is the one that is sent.
 */
function finish(res: ServerResponse, others: ReadonlySet<unknown>): void {
  for (const listener of res.rawListeners("finish")) {
    if (others.has(listener)) continue;
    res.removeListener("finish", listener as () => void);
    Reflect.apply(listener, res, []);
  }
}

function call(...candidates: unknown[]): void {
  const done = candidates.find((candidate) => typeof candidate === "function") as (() => void) | undefined;
  if (done !== undefined) queueMicrotask(done);
}

function paired(flat: unknown[]): [string, unknown][] {
  if (Array.isArray(flat[0])) return flat as [string, unknown][];
  return flat.flatMap((name, at) => (at % 2 === 0 ? [[String(name), flat[at + 1]] as [string, unknown]] : []));
}

export function listed(headers: Record<string, unknown>): HeaderList {
  return Object.entries(headers).flatMap(([name, value]): HeaderList => {
    if (value === undefined) return [];
    const values: unknown[] = Array.isArray(value) ? value : [value];
    return values.map((one): [string, string] => [name.toLowerCase(), String(one)]);
  });
}

/** Headers by name, as `setHeader` takes them. */
export function grouped(headers: HeaderList): Map<string, string | string[]> {
  const found = new Map<string, string | string[]>();
  for (const [name, value] of headers) {
    if (name === "content-length") continue;
    const before = found.get(name);
    found.set(name, before === undefined ? value : [...(Array.isArray(before) ? before : [before]), value]);
  }
  return found;
}

function send(res: ServerResponse, response: HttpResponse): void {
  res.statusCode = response.status;
  for (const [name, value] of grouped(response.headers)) res.setHeader(name, value);
  if (response.status !== 204 && response.status !== 304) res.setHeader("content-length", response.body.length);
  res.end(response.body);
}
