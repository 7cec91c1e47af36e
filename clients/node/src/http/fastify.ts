/** Fastify. */

import type { IncomingHttpHeaders } from "node:http";
import { parsedBody } from "./body.js";
import { ResponseTooLarge, collect, discardStream, ignore, isEvents } from "./collect.js";
import { BrokenOff, Route, setAttempt } from "./exchange.js";
import { added, grouped, split, type Drained } from "./express.js";
import { HttpRequest, type HeaderList, type HttpResponse, type Policy } from "./policy.js";
import { tooLarge } from "./problems.js";

interface FastifyRequestLike {
  method: string;
  originalUrl: string;
  raw: { rawHeaders: string[]; headers: IncomingHttpHeaders };
  body?: unknown;
  rawBody?: unknown;
}

interface FastifyReplyLike {
  raw: { statusCode: number };
  code(status: number): unknown;
  header(name: string, value: string | string[]): unknown;
  getHeaders(): Record<string, unknown>;
  removeHeader(name: string): unknown;
  serialize(payload: unknown): string | ArrayBuffer | Buffer;
  send(payload?: unknown): unknown;
}

/**
 * Makes requests with an `Idempotency-Key` happen once: wraps the handler of a route, which may run several times. Its
 * attempt is `attemptOf(request)`. What hooks do before and after the handler happens for replays, too.
 *
 * The body is what a parser made of it, or `request.rawBody`. What a parser leaves of an upload does not say which it was:
 * without its bytes it is refused with 500.
 */
export function idempotentFastify<Req extends FastifyRequestLike, Rep extends FastifyReplyLike>(
  source: unknown,
  policy: Policy,
  handler: (request: Req, reply: Rep) => unknown,
): Drained<(request: Req, reply: Rep) => Promise<unknown>> {
  const route = new Route(source, policy);
  const wrapped = async function (this: unknown, request: Req, reply: Rep): Promise<unknown> {
    const token = route.statusToken(request.method, split(request.originalUrl)[0]);
    if (token === undefined && !route.isProtected(request.method)) return handler.call(this, request, reply);
    const body = parsedBody(request.rawBody, request.body, request.raw);
    const before = { ...reply.getHeaders() };
    const response =
      token !== undefined
        ? await route.status(requestOf(request, body), token)
        : body !== undefined && body.length > route.policy.maxBody
        ? tooLarge(route.policy)
        : await route.respond(requestOf(request, body), async (attempt) => {
            setAttempt(request, attempt);
            reset(reply, before);
            const recorder = new Recorder(reply, before, route.policy.maxResponse);
            return recorder.run((recording) => handler.call(this, request, recording as Rep));
          });
    reset(reply, before);
    reply.code(response.status);
    for (const [name, value] of grouped(response.headers)) reply.header(name, value);
    return reply.send(response.body.length === 0 ? undefined : response.body);
  };
  return Object.assign(wrapped, { drained: () => route.drained() });
}

function requestOf(request: FastifyRequestLike, body: Buffer | undefined): HttpRequest {
  const [path, query] = split(request.originalUrl);
  const { rawHeaders } = request.raw;
  const headers: HeaderList = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    headers.push([(rawHeaders[at] ?? "").toLowerCase(), rawHeaders[at + 1] ?? ""]);
  }
  return new HttpRequest(request.method, path, query, headers, body);
}

function reset(reply: FastifyReplyLike, headers: Record<string, unknown>): void {
  for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name);
  for (const [name, value] of Object.entries(headers)) reply.header(name, value as string);
  reply.code(200);
}

/** Runs a handler with a reply that keeps what is sent, so that nothing leaves before the commit. */
class Recorder {
  /** What was sent, and its bytes where it is a stream: they are read while the handler goes on. */
  private sent: { payload: unknown; bytes: Promise<Buffer | undefined> | undefined } | undefined;
  private onSent: () => void = ignore;
  private readonly sending = new Promise<void>((resolve) => {
    this.onSent = resolve;
  });
  private refuse: (error: ResponseTooLarge) => void = ignore;
  private readonly refused = new Promise<never>((_, reject) => {
    this.refuse = reject;
  });

  constructor(
    private readonly reply: FastifyReplyLike,
    private readonly before: Record<string, unknown>,
    private readonly max: number,
  ) {
    this.refused.catch(ignore);
  }

  async run(handler: (recording: FastifyReplyLike) => unknown): Promise<HttpResponse> {
    return Promise.race([this.whole(handler), this.refused]);
  }

  private async whole(handler: (recording: FastifyReplyLike) => unknown): Promise<HttpResponse> {
    try {
      const result = handler(this.recording());
      const isPromise = result instanceof Promise;
      const value: unknown = await result;
      if (value !== undefined) this.send(value);
      // A handler that answers by a callback sends later.
      if (this.sent === undefined && !(isPromise && value === undefined)) await this.sending;
      return await this.response();
    } catch (error) {
      if (error instanceof ResponseTooLarge) throw error;
      const { payload } = this.sent ?? {};
      if (isStream(payload)) discardStream(payload);
      const done = this.sent !== undefined && !(payload instanceof Error) && this.reply.raw.statusCode < 400;
      throw done ? new BrokenOff("the handler broke off", { cause: error }) : error;
    }
  }

  private recording(): FastifyReplyLike {
    return new Proxy(this.reply, {
      get: (target, name, receiver) => {
        if (name === "sent") return this.sent !== undefined;
        // A reply that is returned is awaited; the real one is sent when all of this is over.
        if (name === "then") return (onDone: () => void) => void this.sending.then(onDone);
        if (name !== "send") return Reflect.get(target, name, receiver) as unknown;
        return (payload?: unknown) => {
          this.send(payload);
          this.onSent();
          return receiver as unknown;
        };
      },
    });
  }

  private send(given: unknown): void {
    if (this.sent !== undefined) return;
    let payload = given;
    if (isResponse(payload)) {
      this.reply.code(payload.status);
      for (const [name, value] of grouped([...payload.headers])) this.reply.header(name, value);
      payload = payload.body;
    }
    this.sent = { payload, bytes: undefined };
    if (isEvents(this.reply.getHeaders()["content-type"])) {
      discardStream(payload);
      this.refuse(this.tooLarge());
    } else if (isStream(payload)) {
      this.sent.bytes = collect(payload, this.max);
      this.sent.bytes.then((bytes) => {
        if (bytes === undefined) this.refuse(this.tooLarge());
      }, ignore);
    }
  }

  private tooLarge(): ResponseTooLarge {
    const { reply, before } = this;
    return new ResponseTooLarge({ status: reply.raw.statusCode, headers: added(reply.getHeaders(), before), body: Buffer.alloc(0) });
  }

  private async response(): Promise<HttpResponse> {
    const { reply, before } = this;
    const { payload, bytes } = this.sent ?? {};
    if (payload instanceof Error) throw payload;
    let body: Buffer | undefined;
    let kind: string | undefined;
    if (bytes !== undefined) {
      [body, kind] = [await bytes, "application/octet-stream"];
    } else if (payload === undefined || payload === null) {
      body = Buffer.alloc(0);
    } else if (typeof payload === "string") {
      [body, kind] = [Buffer.from(payload, "utf8"), "text/plain; charset=utf-8"];
    } else if (ArrayBuffer.isView(payload)) {
      [body, kind] = [Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength), "application/octet-stream"];
    } else {
      const text = reply.serialize(payload);
      [body, kind] = [Buffer.from(text as string), "application/json; charset=utf-8"];
    }
    const found = reply.getHeaders();
    if (body === undefined || isEvents(found["content-type"])) throw this.tooLarge();
    const headers = added(found, before);
    if (kind !== undefined && found["content-type"] === undefined) headers.push(["content-type", kind]);
    return { status: reply.raw.statusCode, headers, body };
  }
}

// By their form, as Fastify does: those of other packages are of other classes.
function isResponse(payload: unknown): payload is Response {
  return Object.prototype.toString.call(payload) === "[object Response]";
}

function isStream(payload: unknown): payload is AsyncIterable<Uint8Array | string> {
  const { pipe, getReader } = (payload ?? {}) as { pipe?: unknown; getReader?: unknown };
  return typeof pipe === "function" || typeof getReader === "function";
}
