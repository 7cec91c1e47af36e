/**
 * The digest of the canonical request: guards a key against a second meaning.
 *
 * The same request gives the same fingerprint in every client: SHA-256 over canonical JSON (RFC 8785, with
 * integers of 64 bits written exactly), preceded by operation and API version where given.
 */

import { createHash } from "node:crypto";
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
  for (const pointer of options.exclude ?? []) remove(value, pointer);
  if (options.include !== undefined) {
    // Pairs, not an object of picked values: no field can pose as another.
    value = [...options.include].flatMap((pointer): Json[] => {
      const found = find(value, pointer);
      return found === undefined ? [] : [[pointer, found]];
    });
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

function steps(pointer: string): string[] | undefined {
  if (pointer === "") return [];
  if (!pointer.startsWith("/")) return undefined;
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
  const path = steps(pointer);
  if (path === undefined) return undefined;
  let found: Json | undefined = value;
  for (const name of path) found = found === undefined ? undefined : step(found, name);
  return found;
}

function remove(value: Json, pointer: string): void {
  const last = steps(pointer)?.at(-1);
  if (last === undefined) return;
  const parent = find(value, pointer.slice(0, pointer.lastIndexOf("/")));
  if (parent === undefined || step(parent, last) === undefined) return;
  if (Array.isArray(parent)) parent.splice(Number(last), 1);
  else delete (parent as { [name: string]: Json })[last];
}
