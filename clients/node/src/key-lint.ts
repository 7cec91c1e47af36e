/** Finds keys that name an attempt, or nothing at all: the rules of the Rust lint, held to them by conformance/vectors/lint.json. */

import { isIP } from "node:net";
import { Invalid } from "./errors.js";
import { MAX_NAME_BYTES } from "./intent.js";

const WHITE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const ONLY_WHITE = new RegExp(`^[${WHITE}]*$`);
const WHITE_AROUND = new RegExp(`^[${WHITE}]|[${WHITE}]$`);
const HYPHENATED = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
const UUID = new RegExp(`^(?:[0-9a-f]{32}|${HYPHENATED}|\\{${HYPHENATED}\\})$`, "i");
const UUID_URN = new RegExp(`^urn:uuid:(?:${HYPHENATED.replaceAll("a-f", "a-fA-F")})$`);
const NUMBER = /^[-+]?[0-9]+(?:\.[0-9]+)?$/;
const LOST = new Set(
  "none nil nan true false null undefined infinity key idempotency-key idempotency_key idempotencykey".split(" "),
);
const NOT_FILLED_IN = ["${", "{{", "[object ", "<no value>", "%s", "%d", "#<"];
const COUNTS = new Set("retry retries retrycount attempt attempts try tries redelivery".split(" "));
// Overlapping: a date may begin inside of what looked like one.
const DATE_AND_TIME = /(?=([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt _]([0-9]{2})[-:._]([0-9]{2}))/g;
const COMPACT_TIME = /^([0-9]{4})([0-9]{2})([0-9]{2})[Tt]?([0-9]{2})([0-9]{2})([0-9]{2})(?:[0-9]{3})?[Zz]?$/;

/** What is wrong with a key. */
export type KeyFault =
  | "empty"
  | "too_long"
  | "unprintable"
  | "accident"
  | "timestamp"
  | "attempt"
  | "bare_number"
  | "principal";

const WORDS: Record<KeyFault, [message: string, hint: string]> = {
  empty: ["the key is empty", "Send the caller's name for this one request; the same on every retry."],
  too_long: ["the key is too long", "Hash the facts that name the request: derivedKey(...)."],
  unprintable: [
    "the key has a control character, or white space around it",
    "Send letters, digits and signs such as - _ : only.",
  ],
  accident: ["the key is what a missing value looks like", "Find out where the key got lost before it was sent."],
  timestamp: [
    "the key is made from the time of day",
    "Make the key once when the request arises (newKey) and keep it for the retries, or derive it from what the " +
      "request is about.",
  ],
  attempt: ["the key counts attempts", "Leave the count out: every attempt of one request has the same key."],
  bare_number: ["the key is just a number", "Say of what, and what for: `order-7421`, not `7421`."],
  principal: [
    "the key says who asks, not what is asked for",
    "Add what is asked for: `user-42:welcome-mail`, not `user-42`.",
  ],
};

/** A key that cannot be right. The text never repeats the key: keys do not belong into logs. */
export class BadKey extends Invalid {
  /** What is wrong, to branch on. */
  readonly fault: KeyFault;

  constructor(fault: KeyFault, reason: string, hint: string) {
    super(reason, { code: fault === "empty" ? "P4001" : "22023", hint });
    this.fault = fault;
  }
}

/**
 * Throws `BadKey` for a key that names an attempt, or nothing: the mistakes that make every retry a new request, or
 * two requests one.
 *
 * What it cannot know: a random number made for every try looks exactly like one made once for the request.
 */
export function lintKey(key: string): void {
  const fault = faultOf(key);
  if (fault === undefined) return;
  const [message, hint] = WORDS[fault];
  const long = `the key has ${Buffer.byteLength(key)} bytes; at most ${MAX_NAME_BYTES}`;
  throw new BadKey(fault, fault === "too_long" ? long : message, hint);
}

function faultOf(key: string): KeyFault | undefined {
  if (ONLY_WHITE.test(key)) return "empty";
  if (Buffer.byteLength(key) > MAX_NAME_BYTES) return "too_long";
  if (/\p{Cc}/u.test(key) || WHITE_AROUND.test(key)) return "unprintable";
  if (isAccident(key)) return "accident";
  if (isOrHoldsAMoment(key)) return "timestamp";
  if (countsAttempts(key)) return "attempt";
  if (NUMBER.test(key) && key.length < 20) return "bare_number";
  return isEmail(key) || isAddress(key) || isUserId(key) ? "principal" : undefined;
}

function segments(key: string): string[] {
  return key.split(/[^\p{Alphabetic}\p{N}]+/u).filter((segment) => segment !== "");
}

function isUuid(key: string): boolean {
  return UUID.test(key) || UUID_URN.test(key);
}

function isAccident(key: string): boolean {
  const lower = key.toLowerCase();
  const parts = segments(key);
  if (LOST.has(lower) || parts.length === 0) return true;
  // Exact case inside a longer key: Nan is a name, NaN is a mistake.
  if (parts.some((part) => part === "undefined" || part === "null" || part === "NaN")) return true;
  if (NOT_FILLED_IN.some((sign) => lower.includes(sign))) return true;
  return isUuid(key) && /^(?:0+|f+)$/.test(lower.replace(/urn:uuid:|[-{}]/g, ""));
}

function isOrHoldsAMoment(key: string): boolean {
  if (isUuid(key)) return false;
  const whole = key.split(".")[0] ?? "";
  if (NUMBER.test(key) && (isEpoch(whole, 10) || isCompactTime(whole))) return true;
  // Within a longer key, ten digits may well be an order number.
  if (segments(key).some((segment) => isEpoch(segment, 13) || isCompactTime(segment))) return true;
  return [...key.matchAll(DATE_AND_TIME)].some(
    ([, year, month, day, hour, minute]) => isDay(year, month, day) && Number(hour) <= 23 && Number(minute) <= 59,
  );
}

/** Seconds, milli-, micro- or nanoseconds since 1970, of the years 2015 to 2039. */
function isEpoch(text: string, shortest: number): boolean {
  if (!/^[0-9]+$/.test(text) || text.length < shortest || ![10, 13, 16, 19].includes(text.length)) return false;
  const seconds = Number(text.slice(0, 10));
  return seconds >= 1_420_070_400 && seconds <= 2_208_988_799;
}

/** `20260131101500`, with or without a `T` after the day and a `Z` or fraction at the end. */
function isCompactTime(text: string): boolean {
  const found = COMPACT_TIME.exec(text);
  if (found === null) return false;
  const [, year, month, day, hour, minute, second] = found;
  return isDay(year, month, day) && Number(hour) <= 23 && Number(minute) <= 59 && Number(second) <= 60;
}

function isDay(year: string | undefined, month: string | undefined, day: string | undefined): boolean {
  const within = (text: string | undefined, from: number, to: number): boolean => Number(text) >= from && Number(text) <= to;
  return within(year, 2015, 2039) && within(month, 1, 12) && within(day, 1, 31);
}

/** `retry-3`, `attempt_2`, `try1`, `retryCount=4`, or such a word at the end. */
function countsAttempts(key: string): boolean {
  const parts = segments(key.toLowerCase());
  return parts.some((part, at) => {
    const word = part.replace(/[0-9]+$/, "");
    const next = parts[at + 1];
    return COUNTS.has(word) && (word !== part || next === undefined || /^[0-9]{1,4}$/.test(next));
  });
}

function isEmail(key: string): boolean {
  const at = key.indexOf("@");
  if (at < 1 || /[:/ ]/.test(key.slice(0, at))) return false;
  const host = key.slice(at + 1);
  const labels = host.split(".");
  return !/[@:/ ]/.test(host) && labels.length > 1 && labels.every((label) => label !== "");
}

/** A zone makes it the name of a link. */
function isAddress(key: string): boolean {
  return isIP(key) !== 0 && !key.includes("%");
}

function isUserId(key: string): boolean {
  const [, word = "", rest = ""] = /^(\p{Alphabetic}*)[-_:/=#]*(.*)$/su.exec(key.toLowerCase()) ?? [];
  const id = rest.startsWith("id") ? rest.slice(2).replace(/^[-_:/=#]+/, "") : rest;
  return ["user", "userid", "uid", "usr"].includes(word) && NUMBER.test(id);
}
