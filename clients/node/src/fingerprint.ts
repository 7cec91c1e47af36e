/**
 * The digest of the canonical request: guards a key against a second meaning.
 *
 * The same request gives the same fingerprint in every client: SHA-256 over canonical JSON (RFC 8785, with
 * integers of 64 bits written exactly), preceded by operation and API version where given.
 */

import { createHash } from "node:crypto";
import { Invalid } from "./errors.js";
import { canonical, plain, type Json } from "./json.js";
import { lengthAndBytes } from "./keys.js";

export interface FingerprintOptions {
  operation?: string;
  version?: string;
  /** JSON pointers (`/customer/id`): only these fields count. */
  include?: Iterable<string>;
  /** JSON pointers: these fields do not count. */
  exclude?: Iterable<string>;
}

/** The fingerprint of a request. A field that is absent counts as absent, not as null. */
export function fingerprint(request: unknown, options: FingerprintOptions = {}): Buffer {
  let value = plain(request);
  const include = options.include === undefined ? undefined : [...options.include];
  const exclude = [...new Set(options.exclude)];
  for (const pointer of [...(include ?? []), ...exclude]) {
    if (!pointer.startsWith("/")) throw unfit(`${JSON.stringify(pointer)} is not a JSON pointer`);
  }
  // From the back: what is removed from an array must not move what is to be removed next.
  for (const pointer of exclude.sort(backwards)) remove(value, pointer);
  if (include !== undefined) {
    // Pairs, not an object of picked values: no field can pose as another.
    const picked = include.flatMap((pointer): Json[] => {
      const found = find(value, pointer);
      return found === undefined ? [] : [[pointer, found]];
    });
    if (picked.length === 0) throw unfit("the request has none of the fields that its fingerprint includes");
    value = picked;
  }
  const digest = createHash("sha256");
  const { operation = "", version = "" } = options;
  if (operation !== "" || version !== "") digest.update(lengthAndBytes(operation)).update(lengthAndBytes(version));
  return digest.update(canonical(value), "utf8").digest();
}

/** Canonical JSON of a request, as it is digested. */
export function canonicalJson(request: unknown): string {
  return canonical(plain(request));
}

/** The fingerprint of raw bytes, for requests that are not JSON. */
export function fingerprintOfBytes(data: Uint8Array): Buffer {
  return createHash("sha256").update(data).digest();
}

function unfit(reason: string): Invalid {
  return new Invalid(reason, { hint: "Name fields that every request has, each with a slash before it: /customer/id." });
}

/** Later items of an array first, and what is in an item before the item. */
function backwards(one: string, other: string): number {
  const [left, right] = [one.split("/"), other.split("/")];
  const at = left.findIndex((step, n) => step !== right[n]);
  const [a, b] = [left[at], right[at]];
  if (a === undefined || b === undefined) return right.length - left.length;
  return Number(/^\d+$/.test(b) && b) - Number(/^\d+$/.test(a) && a) || (a < b ? 1 : -1);
}

function steps(pointer: string): string[] {
  if (pointer === "") return [];
  return pointer.slice(1).split("/").map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
}

function step(value: Json, name: string): Json | undefined {
  if (Array.isArray(value)) {
    // As RFC 6901 has it: no sign and no leading zero.
    return /^(?:0|[1-9][0-9]*)$/.test(name) ? value[Number(name)] : undefined;
  }
  return value !== null && typeof value === "object" && Object.hasOwn(value, name) ? value[name] : undefined;
}

function find(value: Json, pointer: string): Json | undefined {
  let found: Json | undefined = value;
  for (const name of steps(pointer)) found = found === undefined ? undefined : step(found, name);
  return found;
}

function remove(value: Json, pointer: string): void {
  const last = steps(pointer).at(-1);
  if (last === undefined) return;
  const parent = find(value, pointer.slice(0, pointer.lastIndexOf("/")));
  if (parent === undefined || step(parent, last) === undefined) return;
  if (Array.isArray(parent)) parent.splice(Number(last), 1);
  else delete (parent as { [name: string]: Json })[last];
}
