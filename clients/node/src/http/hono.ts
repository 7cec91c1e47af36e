/** Hono. */

import { ResponseTooLarge, collect, discardStream, isEvents } from "./collect.js";
import { BrokenOff, Route, setAttempt } from "./exchange.js";
import type { Drained } from "./express.js";
import { HttpRequest, type HeaderList, type HttpResponse, type Policy } from "./policy.js";
import { tooLarge } from "./problems.js";

interface HonoContext {
  req: {
    method: string;
    url: string;
    raw: Request;
    arrayBuffer(): Promise<ArrayBuffer>;
    bodyCache?: object;
  };
}

/**
 * Makes requests with an `Idempotency-Key` happen once: wraps the handler of a route, which may run several times. Its
 * attempt is `attemptOf(c)`.
 */
export function idempotentHono<Ctx extends HonoContext>(
  source: unknown,
  policy: Policy,
  handler: (c: Ctx) => Response | Promise<Response>,
): Drained<(c: Ctx) => Promise<Response>> {
  const route = new Route(source, policy);
  const wrapped = async (c: Ctx): Promise<Response> => {
    const { pathname, search } = new URL(c.req.url);
    const sent: HeaderList = [...c.req.raw.headers].map(([name, value]) => [name, value]);
    const requestWith = (body: Buffer | undefined): HttpRequest =>
      new HttpRequest(c.req.method, pathname, search.slice(1), sent, body);
    const token = route.statusToken(c.req.method, pathname);
    if (token !== undefined) return toResponse(await route.status(requestWith(Buffer.alloc(0)), token));
    if (!route.isProtected(c.req.method)) return handler(c);
    const body = await readBody(c, route.policy.maxBody);
    if (body === "too large") return toResponse(tooLarge(route.policy));
    const response = await route.respond(requestWith(body), async (attempt) => {
      setAttempt(c, attempt);
      return fromResponse(await answer(c, handler), route.policy.maxResponse);
    });
    return toResponse(response);
  };
  return Object.assign(wrapped, { drained: () => route.drained() });
}

/** The body's bytes; undefined where somebody else has read them and not kept them. */
async function readBody({ req }: HonoContext, max: number): Promise<Buffer | "too large" | undefined> {
  const length = req.raw.headers.get("content-length");
  if (Number(length ?? 0) > max) return "too large";
  const [read] = Object.keys(req.bodyCache ?? {});
  // Hono would write the form anew, with another boundary each time; and of what it does not know it has nothing.
  if (read === undefined ? req.raw.bodyUsed : read === "formData") return undefined;
  let size = 0;
  // Who sends no length may never end. What was read before comes from Hono's cache.
  if (length === null && req.raw.body !== null && !req.raw.bodyUsed) {
    const counted = new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        size += chunk.length;
        if (size > max) controller.error(new Error("the body is too large"));
        else controller.enqueue(chunk);
      },
    });
    const init: RequestInit & { duplex: "half" } = { body: req.raw.body.pipeThrough(counted), duplex: "half" };
    req.raw = new Request(req.raw, init);
  }
  try {
    const body = Buffer.from(await req.arrayBuffer());
    if (body.length > max) return "too large";
    return body.length === 0 && hasLost(req.raw.headers) ? undefined : body;
  } catch (error) {
    if (size > max) return "too large";
    // So the Fetch standard has it for a body that was read before.
    if (error instanceof TypeError) return undefined;
    throw error;
  }
}

/** Whether a body that is empty here was sent: the server's own message was read in front of Hono. */
function hasLost(headers: Headers): boolean {
  const length = headers.get("content-length");
  if (length !== null) return Number(length) > 0;
  const kind = headers.get("content-type") ?? "";
  // A proxy may send an empty body in chunks, but not a form without its boundary.
  return /^multipart\//i.test(kind) || (kind !== "" && headers.has("transfer-encoding"));
}

/** What the handler returns, or the response that an HTTPException carries. */
async function answer<Ctx>(c: Ctx, handler: (c: Ctx) => Response | Promise<Response>): Promise<Response> {
  try {
    return await handler(c);
  } catch (error) {
    const { status, getResponse } = error as { status?: unknown; getResponse?: unknown };
    if (typeof getResponse === "function" && typeof status === "number" && status < 500) {
      return getResponse.call(error) as Response;
    }
    throw error;
  }
}

async function fromResponse(response: Response, max: number): Promise<HttpResponse> {
  const headers: HeaderList = [...response.headers].map(([name, value]) => [name, value]);
  const head: HttpResponse = { status: response.status, headers, body: Buffer.alloc(0) };
  if (isEvents(response.headers.get("content-type"))) {
    discardStream(response.body);
    throw new ResponseTooLarge(head);
  }
  let body: Buffer | undefined;
  try {
    body = response.body === null ? head.body : await collect(response.body as unknown as AsyncIterable<Uint8Array>, max);
  } catch (error) {
    throw response.status < 400 ? new BrokenOff("the response broke off", { cause: error }) : error;
  }
  if (body === undefined) throw new ResponseTooLarge(head);
  return { ...head, body };
}

function toResponse(response: HttpResponse): Response {
  const headers = new Headers();
  for (const [name, value] of response.headers) if (name !== "content-length") headers.append(name, value);
  const empty = response.body.length === 0 || response.status === 204 || response.status === 304;
  return new Response(empty ? null : new Uint8Array(response.body), { status: response.status, headers });
}
