/** Keys: making them, and deriving them from facts. */

import { createHash, randomBytes } from "node:crypto";
import { Invalid } from "./errors.js";

const NAMESPACE_URL = Buffer.from("6ba7b8119dad11d180b400c04fd430c8", "hex");

/**
 * A key for a new intent: a UUIDv7, which sorts by time and so is kind to indexes.
 *
 * Call it once, where the intent arises, and keep the result for the retries.
 */
export function newKey(): string {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  return uuid(bytes, 7);
}

/**
 * A key from the facts that make the intent what it is: the same facts give the same key, in any process, language
 * and release.
 *
 * SHA-256, in hex, over the namespace and the parts, each preceded by its length as eight bytes, most significant
 * first.
 */
export function derivedKey(namespace: string, ...parts: string[]): string {
  return createHash("sha256").update(joined([namespace, ...parts])).digest("hex");
}

/** A resource's id from its natural name: a UUIDv5, the same on every attempt. */
export function resourceId(namespace: string, ...parts: string[]): string {
  checkUnicode(namespace, "text that is hashed");
  const space = uuid5(NAMESPACE_URL, Buffer.from(`urn:pgonce:${namespace}`, "utf8"));
  return uuid(uuid5(space, joined(parts)), 5);
}

function uuid5(space: Buffer, name: Buffer): Buffer {
  const bytes = createHash("sha1").update(space).update(name).digest().subarray(0, 16);
  return stamped(bytes, 5);
}

function stamped(bytes: Buffer, version: number): Buffer {
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | (version << 4);
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  return bytes;
}

function uuid(bytes: Buffer, version: number): string {
  const hex = stamped(bytes, version).toString("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/** Refuses a text with half of a surrogate pair: as bytes, all such halves are the same. */
export function checkUnicode(text: string, what: string): void {
  if (/\p{Surrogate}/u.test(text)) {
    throw new Invalid(`the ${what} is not Unicode`, { hint: "Write bytes that are no text in hex or base64." });
  }
}

export function lengthAndBytes(part: string): Buffer {
  checkUnicode(part, "text that is hashed");
  const bytes = Buffer.from(part, "utf8");
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(bytes.length));
  return Buffer.concat([length, bytes]);
}

function joined(parts: string[]): Buffer {
  return Buffer.concat(parts.map(lengthAndBytes));
}
