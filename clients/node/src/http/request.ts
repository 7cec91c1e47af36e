/** From a request to its intent. */

import { createHash } from "node:crypto";
import { Invalid } from "../errors.js";
import { fingerprint } from "../fingerprint.js";
import { MAX_NAME_BYTES, makeIntent, type Intent } from "../intent.js";
import { parse, type Json } from "../json.js";
import { BadKey, lintKey } from "../key-lint.js";
import { derivedKey, newKey } from "../keys.js";
import type { FullPolicy, HttpRequest, HttpResponse } from "./policy.js";
import { problem } from "./problems.js";

const TAG_BYTES = 33;

/** The request is refused before the database is asked. */
export class Refused extends Error {
  constructor(readonly response: HttpResponse) {
    super("refused");
  }
}

/** The intent that a request names. */
export function intentOf(request: HttpRequest, policy: FullPolicy): Intent {
  const clientKey = readKey(request, policy);
  const operation = operationOf(request, policy);
  return nameOf(request, policy, clientKey, operation, fingerprintOf(request, operation, policy));
}

export function operationOf(request: HttpRequest, policy: FullPolicy): string {
  return policy.operation ?? `${request.method} ${request.path}`;
}

/** The intent of a client's key, for the principal and the tenant of the request. */
export function nameOf(
  request: HttpRequest,
  policy: FullPolicy,
  clientKey: string,
  operation: string,
  print: Buffer,
): Intent {
  const principal = policy.principal?.(request) ?? null;
  if (policy.principal !== null && !principal) {
    const detail = "the request does not name its principal; log in and send it again with the same key";
    throw new Refused(problem(policy, 401, "principal_missing", detail));
  }
  const tenant = policy.tenant === undefined ? "" : policy.tenant(request);
  if (tenant === undefined || tenant === null) {
    const detail = "the request does not say for which tenant it is";
    throw new Refused(problem(policy, 400, "tenant_missing", detail));
  }
  try {
    const key = policy.plainKeys ? clientKey : storedKey(clientKey, operation, principal);
    return makeIntent(policy.scope, key, undefined, { tenant, fingerprint: print });
  } catch (error) {
    if (error instanceof Invalid) throw new Refused(problem(policy, 400, "22023", error.reason));
    throw error;
  }
}

/** Whether a request may be repeated: without a key it gets one that no other has. */
export function isKeyed(request: HttpRequest, policy: FullPolicy): boolean {
  return policy.keyRequired || request.all(policy.header.toLowerCase()).length > 0;
}

/** The key: the quoted form (a structured-field string) and the raw form are the same key. */
export function readKey(request: HttpRequest, policy: FullPolicy): string {
  const name = policy.header.toLowerCase();
  const values = request.all(name);
  if (values.length === 0 && !policy.keyRequired) return newKey();
  const unusable = (detail: string): Refused => new Refused(problem(policy, 400, "22023", detail));
  if (values.length > 1) throw unusable(`the header ${name} was sent more than once; send one key`);
  const text = (values[0] ?? "").replace(/^[ \t]+|[ \t]+$/g, "");
  if (/[^\x20-\x7e]/.test(text)) {
    throw unusable(`the header ${name} holds other than visible ASCII characters; send a UUID, say`);
  }
  let key = text;
  if (text.startsWith('"')) {
    // Parameters mean nothing here, and unknown ones are to be ignored.
    const quoted = /^"((?:[^"\\]|\\["\\])*)"((?:; *[a-z*][a-z0-9_.*-]*(?:=[^;," ]*)?)*)$/.exec(text);
    if (quoted === null) throw unusable(`the header ${name} begins with a quote but is not a structured-field string`);
    key = (quoted[1] ?? "").replace(/\\(.)/g, "$1");
  } else {
    const bad = /[",\\ ]/.exec(text);
    if (bad !== null) {
      throw unusable(`the key in the header ${name} holds '${bad[0]}'; send one key, in quotes if it must`);
    }
  }
  if (key === "") {
    const detail = `the header ${name} is missing or empty; make a key once for each request and send it with every attempt`;
    throw new Refused(problem(policy, 400, "P4001", detail));
  }
  if (key.length > policy.maxKeyBytes) {
    throw unusable(`the key has ${key.length} bytes; at most ${policy.maxKeyBytes}`);
  }
  if (policy.lintKeys) {
    try {
      lintKey(key);
    } catch (bad) {
      if (bad instanceof BadKey) throw unusable(`${bad.reason}. ${bad.hint ?? ""}`);
      throw bad;
    }
  }
  return key;
}

/** The client's key, readable, then a digest that keeps principals and operations apart. */
export function storedKey(key: string, operation: string, principal: string | null): string {
  const who = principal === null ? ["nobody"] : ["somebody", principal];
  const digest = derivedKey("pgonce-http", ...who, operation, key);
  return `${key.slice(0, MAX_NAME_BYTES - TAG_BYTES)}#${digest.slice(0, TAG_BYTES - 1)}`;
}

/** Operation, version, path, query and body. A body counts by its meaning where it is JSON. */
function fingerprintOf(request: HttpRequest, operation: string, policy: FullPolicy): Buffer {
  const meaning: Record<string, Json> = { path: request.path };
  if (policy.withQuery && request.query !== "") meaning.query = request.query;
  const kind = (request.header("content-type") ?? "").split(";")[0]?.trim().toLowerCase() ?? "";
  if (kind === "application/json" || kind.endsWith("+json")) {
    try {
      const exact = { ...meaning, json: exactJson(request.body) };
      return fingerprint(exact, { operation, version: policy.version });
    } catch {
      // It counts by its bytes.
    }
  }
  const bytes = createHash("sha256").update(request.body).digest("hex");
  return fingerprint({ ...meaning, bytes }, { operation, version: policy.version });
}

/**
 * JSON whose canonical form says all that the text says; throws otherwise. A number of more than 15 digits or a
 * member that comes twice says more: such a text counts by its bytes.
 */
export function exactJson(body: Buffer): Json {
  const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
  // Refuses what is no JSON in linear time: the expression below begins anew at each quote of a text that does not end.
  JSON.parse(text);
  const bare = text.replace(/"(?:[^"\\]|\\.)*"/gs, '""');
  for (const [number] of bare.matchAll(/[-0-9][-+.eE0-9]*/g)) {
    const [mantissa = "", exponent = ""] = number.toLowerCase().split("e");
    const digits = mantissa.replace(/[^0-9]/g, "");
    const power = Number(exponent.replace(/^[-+]/, "") || 0);
    if (digits.replace(/^0+|0+$/g, "").length > 15 || power + digits.length > 290) {
      throw new SyntaxError("a number is not exact");
    }
  }
  const value = parse(text);
  if (members(value) !== bare.split(":").length - 1) throw new SyntaxError("a member comes twice");
  return value;
}

function members(value: Json): number {
  if (value === null || typeof value !== "object") return 0;
  if (Array.isArray(value)) return value.reduce<number>((sum, item) => sum + members(item), 0);
  const found = Object.values(value);
  return found.reduce<number>((sum, member) => sum + members(member), found.length);
}
