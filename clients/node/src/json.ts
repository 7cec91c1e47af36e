/** JSON that keeps integers beyond 2^53: they are BigInts, both ways. */

import { Invalid } from "./errors.js";

/** What JSON can hold, with BigInt for integers beyond 2^53. */
export type Json = null | boolean | string | number | bigint | Json[] | { [name: string]: Json };

export function unfit(reason: string): Invalid {
  return new Invalid(reason, { code: "22030", hint: "Pass what JSON can hold, or a fingerprint of your own." });
}

/**
 * A request or an answer as JSON values: dates and others with `toJSON` become what they stand for, members that
 * are undefined are left out. Lists and objects are copied, so that a caller's own are never changed.
 */
export function plain(value: unknown): Json {
  switch (typeof value) {
    case "boolean":
    case "string":
    case "bigint":
      return value;
    case "number":
      if (!Number.isFinite(value)) throw unfit(`${value} is no number of JSON`);
      return value;
    case "object":
      return value === null ? null : plainObject(value);
    default:
      throw unfit(`${typeof value} has no JSON form; pass texts, numbers, lists and objects`);
  }
}

function plainObject(value: object): Json {
  if (Array.isArray(value)) return value.map((item) => (item === undefined ? null : plain(item)));
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer || value instanceof Map || value instanceof Set) {
    throw unfit(`${value.constructor.name} has no JSON form; pass texts, numbers, lists and objects`);
  }
  const { toJSON } = value as { toJSON?: unknown };
  if (typeof toJSON === "function") return plain(toJSON.call(value, ""));
  const copy: { [name: string]: Json } = {};
  for (const [name, member] of Object.entries(value)) {
    if (member !== undefined) setMember(copy, name, plain(member));
  }
  return copy;
}

function setMember(target: { [name: string]: Json }, name: string, value: Json): void {
  if (name === "__proto__") {
    Object.defineProperty(target, name, { value, enumerable: true, configurable: true, writable: true });
  } else {
    target[name] = value;
  }
}

/** The canonical form of RFC 8785, with integers of 64 bits written exactly. */
export function canonical(value: Json): string {
  if (typeof value === "bigint") return canonicalInteger(value);
  if (typeof value === "string") return text(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  // The usual order of texts in ECMAScript is by UTF-16 code units, as the RFC has it.
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${text(name)}:${canonical(value[name] as Json)}`).join(",")}}`;
}

function text(value: string): string {
  if (/\p{Surrogate}/u.test(value)) throw unfit("a text holds half of a surrogate pair, which is not Unicode");
  return JSON.stringify(value);
}

function canonicalInteger(value: bigint): string {
  if (value >= -(1n << 63n) && value < 1n << 64n) return value.toString();
  // As everywhere: what does not fit 64 bits counts as the nearest double.
  const double = Number(value);
  if (!Number.isFinite(double)) throw unfit("an integer is beyond the range of a double");
  return JSON.stringify(double);
}

/** A value as the JSON text that PostgreSQL stores. */
export function toJson(value: unknown): string {
  const written = write(plain(value));
  if (/(?<!\\)(?:\\\\)*\\u0000/.test(written)) {
    throw new Invalid("a text holds the character U+0000, which PostgreSQL cannot store", {
      hint: "Leave it out, or pass such bytes in base64.",
    });
  }
  return written;
}

function write(value: Json): string {
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "string") return text(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(write).join(",")}]`;
  return `{${Object.entries(value).map(([name, member]) => `${text(name)}:${write(member)}`).join(",")}}`;
}

const TOKEN = /[ \t\n\r]*(?:([{}[\]:,])|("(?:[^"\\\u0000-\u001f]|\\.)*")|(-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?)|(true|false|null))/y;

/** Parses JSON; integers that a double cannot hold become BigInts. Throws SyntaxError where it is no JSON. */
export function parse(source: string): Json {
  const token = new RegExp(TOKEN);
  let found: RegExpExecArray;

  function next(): string {
    const match = token.exec(source);
    if (match === null) throw new SyntaxError("no JSON");
    found = match;
    return match[1] ?? "";
  }

  // `found` is the first token of the value.
  function value(depth: number): Json {
    if (depth > 1000) throw new SyntaxError("JSON too deep");
    const [, mark, string, number, fraction, exponent, word] = found;
    if (string !== undefined) return JSON.parse(string) as string;
    if (number !== undefined) {
      const double = Number(number);
      const exact = fraction !== undefined || exponent !== undefined || Number.isSafeInteger(double);
      return exact ? double : BigInt(number);
    }
    if (word !== undefined) return JSON.parse(word) as Json;
    if (mark === "[") return list(depth);
    if (mark === "{") return object(depth);
    throw new SyntaxError("no JSON");
  }

  function list(depth: number): Json {
    const items: Json[] = [];
    if (next() === "]") return items;
    for (;;) {
      items.push(value(depth + 1));
      const mark = next();
      if (mark === "]") return items;
      if (mark !== ",") throw new SyntaxError("no JSON");
      next();
    }
  }

  function object(depth: number): Json {
    const members: { [name: string]: Json } = {};
    if (next() === "}") return members;
    for (;;) {
      const name = found[2];
      if (name === undefined || next() !== ":") throw new SyntaxError("no JSON");
      next();
      setMember(members, JSON.parse(name) as string, value(depth + 1));
      const mark = next();
      if (mark === "}") return members;
      if (mark !== ",") throw new SyntaxError("no JSON");
      next();
    }
  }

  next();
  const result = value(0);
  if (source.slice(token.lastIndex).trim() !== "") throw new SyntaxError("no JSON");
  return result;
}
