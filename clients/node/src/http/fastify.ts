/** Fastify. */

import { BrokenOff, Route, setAttempt } from "./exchange.js";
import { grouped, listed, parsedBody, split, type Drained } from "./express.js";
import { HttpRequest, type HeaderList, type HttpResponse, type Policy } from "./policy.js";
import { tooLarge } from "./problems.js";

interface FastifyRequestLike {
  method: string;
  originalUrl: string;
  raw: { rawHeaders: string[] };
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
    const body = parsedBody(request.rawBody, request.body);
    const before = { ...reply.getHeaders() };
    const response =
      token !== undefined
        ? await route.status(requestOf(request, body), token)
        : body.length > route.policy.maxBody
        ? tooLarge(route.policy)
        : await route.respond(requestOf(request, body), async (attempt) => {
            setAttempt(request, attempt);
            reset(reply, before);
            return record(reply, (recording) => handler.call(this, request, recording as Rep));
          });
    reset(reply, before);
    reply.code(response.status);
    for (const [name, value] of grouped(response.headers)) reply.header(name, value);
    return reply.send(response.body.length === 0 ? undefined : response.body);
  };
  return Object.assign(wrapped, { drained: () => route.drained() });
}

function requestOf(request: FastifyRequestLike, body: Buffer): HttpRequest {
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

/** Runs the handler with a reply that keeps what is sent, so that nothing leaves before the commit. */
async function record(
  reply: FastifyReplyLike,
  run: (recording: FastifyReplyLike) => unknown,
): Promise<HttpResponse> {
  let sent: { payload: unknown } | undefined;
  let onSent: () => void = () => undefined;
  const sending = new Promise<void>((resolve) => {
    onSent = resolve;
  });
  const recording: FastifyReplyLike = new Proxy(reply, {
    get(target, name, receiver) {
      if (name === "sent") return sent !== undefined;
      // A reply that is returned is awaited; the real one is sent when all of this is over.
      if (name === "then") return (onDone: () => void) => void sending.then(onDone);
      if (name !== "send") return Reflect.get(target, name, receiver) as unknown;
      return (payload?: unknown) => {
        sent ??= { payload };
        onSent();
        return receiver as unknown;
      };
    },
  });
  try {
    const result = run(recording);
    const isPromise = result instanceof Promise;
    const value: unknown = await result;
    if (sent === undefined && value !== undefined) sent = { payload: value };
    // A handler that answers by a callback sends later.
    if (sent === undefined && !(isPromise && value === undefined)) await sending;
    return await responseOf(reply, (sent as { payload: unknown } | undefined)?.payload);
  } catch (error) {
    const { payload } = (sent as { payload: unknown } | undefined) ?? {};
    const done = sent !== undefined && !(payload instanceof Error) && reply.raw.statusCode < 400;
    throw done ? new BrokenOff("the handler broke off", { cause: error }) : error;
  }
}

// By their form, as Fastify does: those of other packages are of other classes.
function isResponse(payload: unknown): payload is Response {
  return Object.prototype.toString.call(payload) === "[object Response]";
}

function isStream(payload: unknown): payload is AsyncIterable<Uint8Array | string> {
  const { pipe, getReader } = payload as { pipe?: unknown; getReader?: unknown };
  return typeof pipe === "function" || typeof getReader === "function";
}

async function responseOf(reply: FastifyReplyLike, payload: unknown): Promise<HttpResponse> {
  if (payload instanceof Error) throw payload;
  if (isResponse(payload)) {
    reply.code(payload.status);
    for (const [name, value] of grouped([...payload.headers])) reply.header(name, value);
    return responseOf(reply, payload.body);
  }
  let body: Buffer;
  let kind: string | undefined;
  if (payload === undefined || payload === null) {
    body = Buffer.alloc(0);
  } else if (typeof payload === "string") {
    [body, kind] = [Buffer.from(payload, "utf8"), "text/plain; charset=utf-8"];
  } else if (ArrayBuffer.isView(payload)) {
    [body, kind] = [Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength), "application/octet-stream"];
  } else if (isStream(payload)) {
    const chunks: Buffer[] = [];
    for await (const chunk of payload) chunks.push(Buffer.from(chunk as Uint8Array));
    [body, kind] = [Buffer.concat(chunks), "application/octet-stream"];
  } else {
    const text = reply.serialize(payload);
    [body, kind] = [Buffer.from(text as string), "application/json; charset=utf-8"];
  }
  const headers = listed(reply.getHeaders());
  if (kind !== undefined && !headers.some(([name]) => name === "content-type")) headers.push(["content-type", kind]);
  return { status: reply.raw.statusCode, headers, body };
}
