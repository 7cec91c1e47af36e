/** Verifying webhooks: Standard Webhooks, HMAC-SHA-256. */

import { createHmac, timingSafeEqual } from "node:crypto";

export type WebhookProblem =
  | "secret"
  | "signature_missing"
  | "signature_wrong"
  | "timestamp_missing"
  | "timestamp_outside_window";

/** Why a request is not what it claims to be. */
export class WebhookError extends Error {
  readonly code: WebhookProblem;

  constructor(code: WebhookProblem, reason: string) {
    super(`${reason} [${code}]`);
    this.name = "WebhookError";
    this.code = code;
  }
}

/** Headers as Node, Express and Fastify have them, or a `Headers` object. */
export type WebhookHeaders =
  | { get(name: string): string | null }
  | Readonly<Record<string, string | readonly string[] | undefined>>;

export interface VerifyOptions {
  /** Maximum number of seconds between the time of a message and ours, both ways. Default: 300. */
  toleranceSeconds?: number;
  /** Our time, in seconds. Default: now. */
  now?: number;
}

/**
 * Checks who sent a webhook of Standard Webhooks and returns the message's id, to deduplicate by.
 *
 * `secrets` are written `whsec_` and base64; several where one is being replaced. Pass the body as it came, before
 * any parsing.
 */
export function verifyWebhook(
  secrets: string | readonly string[],
  headers: WebhookHeaders,
  body: Uint8Array | string,
  options: VerifyOptions = {},
): string {
  const id = header(headers, "webhook-id") ?? "";
  const timestamp = required(headers, "webhook-timestamp");
  const signed = required(headers, "webhook-signature");
  checkTime(timestamp, options.toleranceSeconds ?? 300, options.now ?? Date.now() / 1000);
  const keys = (typeof secrets === "string" ? [secrets] : secrets).map(keyOf);
  if (keys.length === 0) throw new WebhookError("secret", "no secret was given");
  const digests = keys.map((key) => digest(key, id, timestamp, body));
  let fits = false;
  for (const signature of signed.split(" ")) {
    const given = signature.startsWith("v1,") ? decoded(signature.slice(3)) : undefined;
    // Every digest is compared, in constant time.
    for (const own of digests) {
      if (given?.length === own.length && timingSafeEqual(given, own)) fits = true;
    }
  }
  if (!fits) throw new WebhookError("signature_wrong", "no signature fits");
  return id;
}

/** The header `webhook-signature` for a message, as a sender writes it. */
export function signWebhook(secret: string, id: string, timestamp: number, body: Uint8Array | string): string {
  return `v1,${digest(keyOf(secret), id, String(timestamp), body).toString("base64")}`;
}

function digest(key: Buffer, id: string, timestamp: string, body: Uint8Array | string): Buffer {
  return createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
}

function header(headers: WebhookHeaders, name: string): string | undefined {
  if (typeof headers.get === "function") return headers.get(name) ?? undefined;
  const plain = headers as Readonly<Record<string, string | readonly string[] | undefined>>;
  const value = Object.entries(plain).find(([found]) => found.toLowerCase() === name)?.[1];
  return typeof value === "string" ? value : undefined;
}

function required(headers: WebhookHeaders, name: string): string {
  const value = header(headers, name);
  if (value === undefined) throw new WebhookError("signature_missing", `header ${name} is missing`);
  return value;
}

function checkTime(timestamp: string, tolerance: number, now: number): void {
  if (!/^[0-9]+$/.test(timestamp)) {
    throw new WebhookError("timestamp_missing", "its time is no number of seconds");
  }
  if (Math.abs(now - Number(timestamp)) > tolerance) {
    throw new WebhookError("timestamp_outside_window", "it was sent too long ago, or in the future");
  }
}

function keyOf(secret: string): Buffer {
  const key = decoded(secret.startsWith("whsec_") ? secret.slice(6) : secret);
  if (!key || key.length === 0) {
    throw new WebhookError("secret", "a secret of Standard Webhooks is whsec_ and base64");
  }
  return key;
}

function decoded(text: string): Buffer | undefined {
  const strict = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;
  return strict.test(text) ? Buffer.from(text, "base64") : undefined;
}
