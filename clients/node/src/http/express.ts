/** Express, and every other framework whose handlers take a request and a response of `node:http`. */

import type { EventEmitter } from "node:events";
import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import { hasBody, parsedBody } from "./body.js";
import { ResponseTooLarge, isEvents } from "./collect.js";
import { BrokenOff, Route, setAttempt } from "./exchange.js";
import { HttpRequest, type FullPolicy, type HeaderList, type HttpResponse, type Policy } from "./policy.js";
import { tooLarge } from "./problems.js";

type Next = (error?: unknown) => void;
type Handler = (req: IncomingMessage, res: ServerResponse, next: Next) => unknown;

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
 * The body is read here unless a parser came before; then keep its bytes in `req.rawBody` where they matter. What such
 * a parser leaves of an upload does not say which it was: without its bytes it is refused with 500.
 */
export function idempotentExpress<Req extends IncomingMessage, Res extends ServerResponse>(
  source: unknown,
  policy: Policy,
  handler: (req: Req, res: Res, next: Next) => unknown,
): Drained<(req: Req, res: Res, next?: Next) => void> {
  const route = new Route(source, policy);
  const handle = async (req: Req, res: Res, next: Next): Promise<void> => {
    const body = await readBody(req, route.policy.maxBody);
    if (body === "too large") {
      res.setHeader("connection", "close");
      send(res, tooLarge(route.policy));
      return;
    }
    const recorder = new Recorder(req, res, handler as Handler, route.policy.maxResponse);
    const response = await route.respond(requestOf(req, body), async (attempt) => {
      setAttempt(req, attempt);
      const recorded = await recorder.run();
      if (recorder.passed) attempt.disposition = "forget";
      return recorded;
    });
    recorder.restore();
    if (recorder.passed) next();
    else send(res, response);
    if (recorder.refused) recorder.drop();
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

function requestOf(req: ExpressRequest, body: Buffer | undefined): HttpRequest {
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

/** The body's bytes; undefined where somebody else has read them and not kept them. */
async function readBody(req: ExpressRequest, max: number): Promise<Buffer | "too large" | undefined> {
  // Not where `req.body` is set: body-parser 1 does that, too, to what it leaves unread.
  if (req.rawBody !== undefined || req._body === true || req.readableEnded) {
    const parsed = parsedBody(req.rawBody, req.body, req, req._body === true);
    return parsed !== undefined && parsed.length > max ? "too large" : parsed;
  }
  const isBegun = req.readableDidRead;
  const bytes = await new Promise<Buffer | "too large">((resolve, reject) => {
    const chunks: Buffer[] = [];
    let size = 0;
    req.on("data", (chunk: Buffer) => {
      size += chunk.length;
      if (size > max) resolve("too large");
      else chunks.push(chunk);
    });
    req.on("end", () => resolve(Buffer.concat(chunks)));
    req.on("close", () => reject(new Error("the client left before it had sent the request")));
    req.on("error", reject);
  });
  if (bytes === "too large") return bytes;
  // Who began to read may have put all back; without a length that cannot be seen.
  const length = req.headers["content-length"];
  if (length === undefined ? isBegun && hasBody(req) : bytes.length < Number(length)) return undefined;
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
  /** Whether the response of the last run is too large to be kept, or a stream of events. */
  refused = false;
  private readonly headers: OutgoingHttpHeaders;
  private readonly before: Pick<ExpressRequest, "url" | "baseUrl" | "params">;
  private readonly own: Pick<ServerResponse, "write" | "end" | "writeHead" | "flushHeaders" | "destroy">;

  constructor(
    private readonly req: ExpressRequest,
    private readonly res: ServerResponse,
    private readonly handler: Handler,
    private readonly max: number,
  ) {
    this.headers = { ...res.getHeaders() };
    this.before = { url: req.url, baseUrl: req.baseUrl, params: req.params };
    const { write, end, writeHead, flushHeaders, destroy } = res;
    this.own = { write, end, writeHead, flushHeaders, destroy };
  }

  async run(): Promise<HttpResponse> {
    const { req, res } = this;
    this.passed = false;
    this.refused = false;
    this.reset();
    const chunks: Buffer[] = [];
    let size = 0;
    let begun = false;
    const finishing = new Set(res.rawListeners("finish"));
    const closing = new Map([req, res].map((emitter) => [emitter, new Set(emitter.rawListeners("close"))]));
    const head = (): HttpResponse => ({
      status: res.statusCode,
      headers: added(res.getHeaders(), this.headers),
      body: Buffer.alloc(0),
    });
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
        const keep = (chunk: unknown, encoding: unknown): void => {
          if (this.refused) return;
          let part: Buffer | undefined;
          if (typeof chunk === "string") part = Buffer.from(chunk, typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8");
          else if (chunk instanceof Uint8Array) part = Buffer.from(chunk);
          size += part?.length ?? 0;
          if (part !== undefined) chunks.push(part);
          check();
        };
        // As if the client were gone: a handler that sends without end learns it by that.
        const check = (): void => {
          if (this.refused || (size <= this.max && !isEvents(res.getHeader("content-type")))) return;
          reject(new ResponseTooLarge(head()));
          this.refused = true;
          chunks.length = 0;
          for (const [emitter, others] of closing) process.nextTick(emit, emitter, "close", others);
        };
        const replaced = {
          write: (chunk: unknown, encoding?: unknown, done?: unknown) => {
            begun = true;
            keep(chunk, encoding);
            call(encoding, done);
            return !this.refused;
          },
          end: (chunk?: unknown, encoding?: unknown, done?: unknown) => {
            begun = true;
            if (!ended) {
              keep(chunk, encoding);
              if (!this.refused) process.nextTick(emit, res, "finish", finishing);
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
            check();
            return res;
          },
          flushHeaders: () => check(),
          destroy: (error?: unknown) => {
            reject(error ?? new Error("the handler destroyed its response"));
            return res;
          },
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
      this.restore();
      return { ...head(), body: Buffer.concat(chunks, size) };
    } catch (error) {
      // What the handler still sends must not meet what is sent instead.
      this.drop();
      const broken = begun && res.statusCode < 400 && !(error instanceof ResponseTooLarge);
      throw broken ? new BrokenOff("the handler broke off", { cause: error }) : error;
    } finally {
      this.reset();
    }
  }

  /** From here on the response is sent. */
  restore(): void {
    Object.assign(this.res, this.own);
  }

  /** From here on nothing is: after the end it would be an error that nobody takes. */
  drop(): void {
    const { res } = this;
    const nothing = (...given: unknown[]): unknown => {
      call(...given);
      return res;
    };
    const write = (...given: unknown[]): boolean => {
      call(...given);
      return false;
    };
    Object.assign(res, { write, end: nothing, writeHead: () => res, flushHeaders: () => undefined, destroy: () => res });
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
function emit(emitter: EventEmitter, event: string, others: ReadonlySet<unknown>): void {
  for (const listener of emitter.rawListeners(event)) {
    if (others.has(listener)) continue;
    emitter.removeListener(event, listener as () => void);
    Reflect.apply(listener, emitter, []);
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

function listed(headers: Record<string, unknown>): HeaderList {
  return Object.entries(headers).flatMap(([name, value]): HeaderList => {
    if (value === undefined) return [];
    const values: unknown[] = Array.isArray(value) ? value : [value];
    return values.map((one): [string, string] => [name.toLowerCase(), String(one)]);
  });
}

/** The headers that the handler has set. Those that came before are made anew for each request: by its origin, say. */
export function added(headers: Record<string, unknown>, before: Record<string, unknown>): HeaderList {
  return listed(Object.fromEntries(Object.entries(headers).filter(([name, value]) => String(value) !== String(before[name]))));
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
