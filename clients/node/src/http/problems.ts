/** Errors as application/problem+json. */

import { STATUS_CODES } from "node:http";
import { Busy, Conflict, Gone, PermanentFailure, TransientFailure, Uncertain, type PgonceError } from "../errors.js";
import type { FullPolicy, HeaderList, HttpResponse } from "./policy.js";

const TITLES: Record<string, string> = {
  P4001: "Key missing",
  P4002: "Key reused with another request",
  P4029: "Under way",
  P4030: "Refused",
  P4031: "Gone",
  P4110: "Wrong region",
  "22023": "Key unusable",
  "08006": "Database unavailable",
  "08007": "Not known",
};
const COME_BACK = "send the same request with the same key again";

export function problem(
  policy: FullPolicy,
  status: number,
  code: string,
  detail: string,
  members: Record<string, unknown> = {},
  retryAfterMs?: number,
): HttpResponse {
  const document = {
    type: policy.errorsAt + code.toLowerCase(),
    title: TITLES[code] ?? STATUS_CODES[status] ?? "Error",
    status,
    code,
    detail,
    ...members,
  };
  const headers: HeaderList = [["content-type", "application/problem+json"]];
  if (retryAfterMs !== undefined) {
    headers.push(["retry-after", secondsOf(retryAfterMs)]);
  }
  return { status, headers, body: Buffer.from(JSON.stringify(document)) };
}

/** The value of `Retry-After`. Never 0, which would ask for a busy loop. */
export function secondsOf(ms: number): string {
  return String(Math.max(Math.ceil(Math.min(ms / 1000, 3600)), 1));
}

/** What a client gets for an error of pgonce. */
export function fromError(policy: FullPolicy, error: PgonceError): HttpResponse {
  const said = error.hint ? `${error.reason}. ${error.hint}` : error.reason;
  // Another code than P4002 is of something that the handler wrote, such as a message: not of the request's key.
  if (error instanceof Conflict) return problem(policy, 422, error.code, said);
  if (error instanceof Gone) return problem(policy, 410, "P4031", said);
  if (error.code === "P4044") return problem(policy, 429, "P4044", said);
  if (error.code === "P4110") {
    return problem(policy, 421, "P4110", "its home is another region, and this attempt did nothing");
  }
  if (error instanceof PermanentFailure) return refused(policy, error);
  if (error instanceof TransientFailure) return problem(policy, 503, error.failureCode, error.reason, {}, soonMs());
  if (error instanceof Busy) {
    const detail = `another request with this key is under way; ${COME_BACK} later`;
    return problem(policy, 409, "P4029", detail, {}, Math.min(error.retryAfterMs, 5000));
  }
  if (error instanceof Uncertain || error.errorClass === "ambiguous") {
    const detail = `it is not known yet whether it happened; ${COME_BACK} to learn it`;
    return problem(policy, 503, "08007", detail, {}, soonMs());
  }
  if (["retry", "retry_after_delay", "claim_again"].includes(error.errorClass)) {
    const detail = `the database is unavailable and this attempt did nothing; ${COME_BACK}`;
    return problem(policy, 503, "08006", detail, {}, soonMs());
  }
  return internal(policy);
}

/** Another for each client: those whom one outage turned away must not all come back at once. */
function soonMs(): number {
  return 1000 * (1 + Math.floor(Math.random() * 3));
}

/** What the database or a handler says about itself is for our logs, not for clients. */
export function internal(policy: FullPolicy, code = "internal"): HttpResponse {
  const detail =
    "something is wrong on the server's side; it is safe to send the same request with the same key again";
  return problem(policy, 500, code, detail);
}

/** Nothing says what the body was; what became of it is for our logs. */
export function bodyLost(policy: FullPolicy): HttpResponse {
  const detail = "the server did not keep the body of the request, so that it cannot be compared with another one; nothing was done";
  return problem(policy, 500, "internal", detail);
}

export function tooLarge(policy: FullPolicy): HttpResponse {
  return problem(policy, 413, "body_too_large", `the body has more than ${policy.maxBody} bytes`);
}

/** No later attempt will do it. */
export function refused(policy: FullPolicy, failure: PermanentFailure, members: Record<string, unknown> = {}): HttpResponse {
  return problem(policy, 422, "P4030", failure.reason, { reason: failure.failureCode, ...members });
}

/** It happened once, and its answer is not kept. */
export function notKept(policy: FullPolicy, members: Record<string, unknown> = {}): HttpResponse {
  const detail = "it happened once, and its answer was not kept: look for what it made";
  return problem(policy, 410, "P4031", detail, { reason: "answer_not_kept", ...members });
}
