/** The status URL: where a client that got 202 asks for the response. */

import type { Driver } from "../drivers/index.js";
import { PermanentFailure, PgonceError } from "../errors.js";
import type { Intent, Options } from "../intent.js";
import { discard, ended, inCall, openAttempt } from "../protocol.js";
import type { FullPolicy, HeaderList, HttpRequest, HttpResponse } from "./policy.js";
import { fromError, problem, secondsOf } from "./problems.js";
import { nameOf, operationOf, readKey, Refused } from "./request.js";
import { replay } from "./stored.js";

/** What a status URL stands for, apart from who asks; in the form of the Rust layer. */
export function tokenOf(clientKey: string, operation: string, print: Buffer): string {
  return Buffer.from(JSON.stringify([clientKey, operation, print.toString("base64url")]), "utf8").toString("base64url");
}

export function readToken(token: string): [clientKey: string, operation: string, print: Buffer] | undefined {
  try {
    const found = JSON.parse(Buffer.from(token, "base64url").toString("utf8")) as unknown;
    if (!Array.isArray(found) || found.length !== 3 || !found.every((part) => typeof part === "string")) return undefined;
    const [key, operation, print] = found as [string, string, string];
    return [key, operation, Buffer.from(print, "base64url")];
  } catch {
    return undefined;
  }
}

/** The token of a request that asks for the response of another one; undefined where it is none. */
export function statusToken({ statusAt }: FullPolicy, method: string, path: string): string | undefined {
  if (statusAt === undefined || method !== "GET") return undefined;
  const base = `${statusAt.replace(/\/+$/, "")}/`;
  return path.startsWith(base) ? path.slice(base.length) : undefined;
}

function underWay(retryAfterMs: number, location?: string): HttpResponse {
  const headers: HeaderList = [
    ["content-type", "application/json"],
    ["retry-after", secondsOf(Math.min(retryAfterMs, 5000))],
  ];
  if (location !== undefined) headers.push(["location", location]);
  return { status: 202, headers, body: Buffer.from('{"status":"processing"}') };
}

/** 202, and where to ask for the response. */
export function accepted(policy: FullPolicy, request: HttpRequest, intent: Intent, retryAfterMs: number): HttpResponse {
  const token = tokenOf(readKey(request, policy), operationOf(request, policy), intent.fingerprint);
  return underWay(retryAfterMs, `${(policy.statusAt ?? "").replace(/\/+$/, "")}/${token}`);
}

/**
 * The response of a request that is or was under way: 202, the stored one, or 404. Who asks is read from this request:
 * with another principal the same token finds nothing.
 */
export async function lookAt(
  driver: Driver,
  options: Options,
  policy: FullPolicy,
  request: HttpRequest,
  token: string,
): Promise<HttpResponse> {
  const found = readToken(token);
  if (found === undefined) return notUnderWay(policy);
  try {
    const intent = nameOf(request, policy, ...found);
    const claimed = await inCall(driver, async () => {
      const attempt = await openAttempt(driver, intent, options);
      // Only looked: the right to do the work goes back.
      if ("session" in attempt) await discard(attempt.session);
      return attempt;
    });
    if ("session" in claimed) return notUnderWay(policy);
    if (claimed.outcome === "busy") return underWay(claimed.retryAfterMs);
    return replay(policy, request, ended(claimed).answer);
  } catch (error) {
    if (error instanceof Refused) return error.response;
    if (error instanceof PermanentFailure) return replay(policy, request, error.answer, error);
    if (error instanceof PgonceError) return fromError(policy, error);
    throw error;
  }
}

function notUnderWay(policy: FullPolicy): HttpResponse {
  const detail = "nothing is under way here; send the request again with the same key";
  return problem(policy, 404, "not_under_way", detail);
}
