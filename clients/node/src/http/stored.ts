/** From a response to what is stored of it, and back. */

import type { PermanentFailure } from "../errors.js";
import { Ack, MAX_KEEP_MS } from "../intent.js";
import { toJson, type Json } from "../json.js";
import type { Attempt, Disposition, FullPolicy, HeaderList, HttpRequest, HttpResponse } from "./policy.js";
import { fromError, notKept, refused } from "./problems.js";

/** Headers that describe a response, and so are replayed: those of the Rust layer. */
export const USUAL: ReadonlySet<string> = new Set(
  (
    "accept-patch accept-post accept-ranges access-control-allow-credentials access-control-allow-origin " +
    "access-control-expose-headers allow cache-control content-disposition content-encoding content-language " +
    "content-location content-range content-security-policy content-security-policy-report-only content-type " +
    "cross-origin-embedder-policy cross-origin-opener-policy cross-origin-resource-policy deprecation etag " +
    "expires grpc-encoding grpc-message grpc-status grpc-status-details-bin last-modified link location " +
    "permissions-policy preference-applied referrer-policy strict-transport-security sunset vary " +
    "x-content-type-options x-frame-options x-xss-protection"
  ).split(" "),
);
/** Headers that are about one connection, one moment or one browser, and so are never replayed. */
export const NEVER: ReadonlySet<string> = new Set(
  (
    "age alt-svc clear-site-data connection content-length date idempotency-expires idempotent-replayed " +
    "keep-alive proxy-authenticate proxy-authentication-info proxy-connection set-cookie set-cookie2 te " +
    "trailer transfer-encoding upgrade via www-authenticate"
  ).split(" "),
);
// What a status says about the work: the request is wrong, was not processed, meets another state, or came from a proxy.
const INVALID = new Set([400, 405, 406, 411, 413, 414, 415, 417, 422, 428, 431]);
const UNPROCESSED = new Set([401, 403, 407, 408, 421, 425, 426, 429]);
const STATE = new Set([409, 423, 424]);
const BETWEEN = new Set([502, 503, 504]);

type Text = string | { base64: string };

/** The form in which every client and the Rust layer store a response. */
export type Stored = {
  http: 1;
  status: number;
  headers?: [string, Text][];
  body?: Text;
  expires?: number;
  unkept?: true;
};

/** As the handler says, else as the policy does. */
export function dispositionOf(
  response: HttpResponse,
  policy: FullPolicy,
  chosen: Disposition | undefined,
  begun: boolean,
): Disposition {
  if (chosen !== undefined) return chosen;
  const { outcomes } = policy;
  if (typeof outcomes === "function") return outcomes(response);
  const { status } = response;
  if (status < 400) return "keep";
  const atomic = policy.mode === "atomic";
  // Validation does not burn the key: nothing was begun, and a corrected request may use it again.
  if (atomic && !begun && status < 500) return "forget";
  if (outcomes === "finish") return "retry";
  // An atomic attempt is rolled back, so nothing happened.
  if (BETWEEN.has(status)) return atomic ? "retry" : "unknown";
  if (INVALID.has(status)) return atomic ? "refuse" : "forget";
  if (outcomes === "freeze") return UNPROCESSED.has(status) ? "forget" : "refuse";
  return status >= 500 || UNPROCESSED.has(status) || STATE.has(status) ? "retry" : "refuse";
}

/**
 * Takes what a handler says in `Pgonce-Disposition` and `Pgonce-Keep-For` off its response: these headers are never for
 * clients. Answers how long to keep it, where the handler says so.
 */
export function takeWords(response: HttpResponse, attempt: Attempt): number | undefined {
  const word = (name: string): string => response.headers.find(([found]) => found === name)?.[1].trim() ?? "";
  const [disposition, seconds] = [word("pgonce-disposition").toLowerCase(), word("pgonce-keep-for")];
  response.headers = response.headers.filter(([name]) => name !== "pgonce-disposition" && name !== "pgonce-keep-for");
  if (disposition === "keep" || disposition === "refuse" || disposition === "retry" || disposition === "forget") {
    attempt.disposition ??= disposition;
  }
  // No time at all would be no answer at all.
  return /^[0-9]+$/.test(seconds) ? Math.min(Math.max(Number(seconds), 1) * 1000, MAX_KEEP_MS) : undefined;
}

/** What is kept of a response. */
export function toStored(response: HttpResponse, policy: FullPolicy, retentionMs: number | undefined): Stored {
  const named = new Set(
    response.headers
      .filter(([name]) => name === "connection")
      .flatMap(([, value]) => value.split(",").map((name) => name.trim().toLowerCase())),
  );
  const also = new Set(policy.replayHeaders.map((name) => name.toLowerCase()));
  const headers = response.headers
    .filter(([name]) => (USUAL.has(name) || also.has(name)) && !isNeverKept(name) && !named.has(name))
    .map(([name, value]): [string, Text] => [name, textOf(Buffer.from(value, "latin1"))]);
  const kept: Stored = { http: 1, status: response.status };
  if (headers.length > 0) kept.headers = headers;
  if (response.body.length > 0) kept.body = textOf(response.body);
  if (retentionMs !== undefined) kept.expires = Math.floor((Date.now() + retentionMs) / 1000);
  return kept;
}

/** The same, where the whole response is more than the scope's contract allows. */
export function withoutBody({ status, expires }: Stored): Stored {
  return { http: 1, status, unkept: true, ...(expires === undefined ? {} : { expires }) };
}

/** A stored response without what the database has refused with an error of this code; undefined where that is about nothing here. */
export function withoutWhatIsRefused(ack: Ack, code: string): Ack | undefined {
  const stored = ack.answer as Stored;
  const isOfValues = code.startsWith("22");
  // Characters that the encoding of the database does not have.
  const written = inAscii(stored);
  if ((code === "22P05" || code === "22021") && toJson(written) !== toJson(stored)) return new Ack(written, ack.options);
  // A time that no timestamp holds.
  if (isOfValues && ack.options.keepForMs !== undefined) return new Ack(stored);
  return (isOfValues || code === "P4040") && stored.unkept === undefined ? new Ack(withoutBody(stored), ack.options) : undefined;
}

/** The same in the characters that every encoding of a database has. */
function inAscii(stored: Stored): Stored {
  const written = (text: Text): Text =>
    typeof text !== "string" || /^[\0-\x7f]*$/.test(text) ? text : { base64: Buffer.from(text, "utf8").toString("base64") };
  const { headers, body } = stored;
  return {
    ...stored,
    ...(headers === undefined ? {} : { headers: headers.map(([name, value]): [string, Text] => [name, written(value)]) }),
    ...(body === undefined ? {} : { body: written(body) }),
  };
}

function isNeverKept(name: string): boolean {
  return NEVER.has(name) || /^(?:ratelimit|x-ratelimit|x-rate-limit)/.test(name);
}

function textOf(data: Buffer): Text {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
    if (!text.includes("\0")) return text;
  } catch {
    // Not a text.
  }
  return { base64: data.toString("base64") };
}

function bytesOf(text: Text | undefined): Buffer {
  if (text === undefined) return Buffer.alloc(0);
  return typeof text === "string" ? Buffer.from(text, "utf8") : Buffer.from(text.base64, "base64");
}

function isStored(answer: unknown): answer is Stored {
  return typeof answer === "object" && answer !== null && (answer as { http?: unknown }).http === 1;
}

/** The stored response, for those who may still see it. */
export function replay(
  policy: FullPolicy,
  request: HttpRequest,
  answer: unknown,
  failure?: PermanentFailure,
): HttpResponse {
  const instead = policy.reauthorise?.(request);
  if (instead !== undefined) return instead;
  let response: HttpResponse;
  if (isStored(answer)) {
    if (answer.unkept) {
      const members = { original_status: answer.status };
      response = failure === undefined ? notKept(policy, members) : refused(policy, failure, members);
    } else {
      const headers = (answer.headers ?? []).map(([name, value]): [string, string] => [
        name,
        bytesOf(value).toString("latin1"),
      ]);
      response = { status: answer.status, headers, body: bytesOf(answer.body) };
    }
    announce(response.headers, answer.expires);
  } else if (failure !== undefined) {
    response = fromError(policy, failure);
  } else if (answer !== undefined && answer !== null) {
    // Another entry point of the scope ended it.
    const body = Buffer.from(toJson(answer as Json), "utf8");
    response = { status: 200, headers: [["content-type", "application/json"]], body };
  } else {
    response = notKept(policy);
  }
  response.headers.push(["idempotent-replayed", "true"]);
  return response;
}

/** Says until when a response is kept. */
export function announce(headers: HeaderList, expires: number | undefined): void {
  if (expires !== undefined && expires < 253_402_300_800) {
    headers.push(["idempotency-expires", new Date(expires * 1000).toUTCString()]);
  }
}
