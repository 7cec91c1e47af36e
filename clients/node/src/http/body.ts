/** The bytes of a body that something in front of the route has read. */

import type { IncomingHttpHeaders } from "node:http";
import { plain, toJson } from "../json.js";

/** What is asked of a message of `node:http` or `node:http2`. */
interface Message {
  headers: IncomingHttpHeaders;
  stream?: { endAfterHeaders?: boolean };
}

/** Whether a body was sent. In HTTP/2 no header need say so. */
export function hasBody({ headers, stream }: Message): boolean {
  const { "content-length": length, "transfer-encoding": encoding } = headers;
  return Number(length ?? 0) > 0 || encoding !== undefined || stream?.endAfterHeaders === false;
}

/**
 * The bytes that a parser has kept in `raw`, else those that stand for what it has made of them, `body`; undefined where
 * neither says which body it was: two of them would be one request. `isRead`: the parser says that `body` is of its making.
 */
export function parsedBody(raw: unknown, body: unknown, message: Message, isRead = false): Buffer | undefined {
  const bytes = bytesOf(raw) ?? bytesOf(body);
  if (bytes !== undefined) return bytes;
  const kind = message.headers["content-type"] ?? "";
  if (isNothing(body)) {
    // `{}` is a whole document or form, or what a parser leaves of a body that it does not know.
    const isKnown = isRead || /^application\/(?:x-www-form-urlencoded|(?:[^;]*\+)?json)\b/i.test(kind);
    if (hasBody(message) && !(isKnown && isPlain(body))) return undefined;
  } else if (/^multipart\//i.test(kind) || isStream(body)) {
    // The fields of a form are not its files.
    return undefined;
  }
  try {
    return body === undefined || body === null ? Buffer.alloc(0) : Buffer.from(jsonOf(body), "utf8");
  } catch {
    return undefined;
  }
}

function bytesOf(value: unknown): Buffer | undefined {
  if (Buffer.isBuffer(value)) return value;
  if (value instanceof Uint8Array) return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  return typeof value === "string" ? Buffer.from(value, "utf8") : undefined;
}

/** Without members: so are the forms and blobs of the web, too. */
function isNothing(body: unknown): boolean {
  if (body === undefined || body === null) return true;
  return typeof body === "object" && !Array.isArray(body) && Object.keys(body).length === 0;
}

function isPlain(body: unknown): boolean {
  if (body === undefined) return false;
  if (body === null) return true;
  const prototype: unknown = Object.getPrototypeOf(body);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

function isStream(body: unknown): boolean {
  return typeof (body as { pipe?: unknown }).pipe === "function";
}

function jsonOf(body: unknown): string {
  try {
    return toJson(body);
  } catch {
    // A text that PostgreSQL cannot store is valid in a request, and nothing but its digest is stored.
    return JSON.stringify(plain(body), (_, value: unknown) => (typeof value === "bigint" ? value.toString() : value));
  }
}
