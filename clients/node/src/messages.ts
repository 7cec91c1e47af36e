/** Publishing and accepting, in the caller's transaction. */

import { createHash } from "node:crypto";
import { adapt } from "./drivers/index.js";
import { checkSchema } from "./intent.js";
import { toJson } from "./json.js";
import { checkUnicode } from "./keys.js";
import { borrow, query } from "./protocol.js";
import * as sql from "./statements.js";
import type { Params } from "./statements.js";

export interface MessageOptions {
  /** The tenant of the message. Default: no tenants. */
  tenant?: string;
  /** The schema that pgonce is installed in. Default: pgonce. */
  schema?: string;
}

export interface EventOptions {
  /** What the event is about; events of one subject keep their order. */
  subject?: string;
  /** An id of your own, a UUID. */
  messageId?: string;
  headers?: Record<string, unknown>;
  /** Not delivered before this time. */
  deliverAt?: Date | string;
}

/**
 * Publishes an event in your open transaction: it exists if and only if that commits. Returns its message id.
 *
 * `conn` is a client of pg with an open transaction, or the transaction of `sql.begin`.
 */
export async function publish(
  conn: unknown,
  topic: string,
  type: string,
  payload?: unknown,
  options: EventOptions & MessageOptions = {},
): Promise<string> {
  const [row] = await inTransaction(conn, options, sql.PUBLISH, eventParams(topic, type, payload, options));
  return row?.[0] ?? "";
}

/**
 * Whether this consumer may apply this message now: true where it is new. Marks it in your open transaction, so
 * that the marker commits with the effect.
 */
export async function accept(
  conn: unknown,
  consumer: string,
  source: string,
  messageId: string,
  payload?: Uint8Array | string,
  options: MessageOptions = {},
): Promise<boolean> {
  const params = messageParams(consumer, source, messageId, payload, options.tenant ?? "");
  const [row] = await inTransaction(conn, options, sql.ACCEPT, params);
  return row?.[0] === "true";
}

/** As `accept`, for many messages, as [id, payload], in one statement. Answers the ids of the new ones. */
export async function acceptBatch(
  conn: unknown,
  consumer: string,
  source: string,
  messages: readonly (readonly [id: string, payload: Uint8Array | string])[],
  options: MessageOptions = {},
): Promise<string[]> {
  for (const [what, text] of Object.entries({ consumer, source })) checkUnicode(text, what);
  for (const [id] of messages) checkUnicode(id, "message id");
  const rows = await inTransaction(conn, options, sql.ACCEPT_BATCH, {
    consumer,
    source,
    ids: JSON.stringify(messages.map(([id]) => id)),
    hashes: JSON.stringify(messages.map(([, payload]) => digest(payload).toString("hex"))),
    tenant: options.tenant ?? "",
  });
  return rows.map((row) => row[0] ?? "");
}

export function eventParams(
  topic: string,
  type: string,
  payload: unknown,
  options: EventOptions & MessageOptions,
): Params {
  const { deliverAt } = options;
  return {
    topic,
    type,
    subject: options.subject ?? null,
    payload: payload === undefined ? null : toJson(payload),
    message_id: options.messageId ?? null,
    headers: toJson(options.headers ?? {}),
    deliver_at: deliverAt === undefined ? null : typeof deliverAt === "string" ? deliverAt : deliverAt.toISOString(),
    tenant: options.tenant ?? "",
  };
}

export function messageParams(
  consumer: string,
  source: string,
  messageId: string,
  payload: Uint8Array | string | undefined,
  tenant: string,
): Params {
  // Marked under the same bytes, one message would be taken for another.
  for (const [what, text] of Object.entries({ consumer, source, "message id": messageId })) checkUnicode(text, what);
  const hash = payload === undefined ? null : digest(payload);
  return { consumer, source, message_id: messageId, hash, tenant };
}

function digest(payload: Uint8Array | string): Buffer {
  return createHash("sha256").update(payload).digest();
}

async function inTransaction(conn: unknown, options: MessageOptions, text: string, params: Params) {
  const session = await borrow(adapt(conn));
  try {
    return await query(session, { schema: checkSchema(options.schema ?? "pgonce") }, text, params);
  } finally {
    session.forget();
  }
}
