/** Responses are collected for as long as they can be kept: one may have no end, and its handler holds a transaction or a lease. */

import type { HttpResponse } from "./policy.js";

/** What is thrown for a response that is too large to be kept, or is a stream of events. Its head is that of the handler. */
export class ResponseTooLarge extends Error {
  constructor(readonly head: HttpResponse) {
    super("the response is too large to be kept, and is not sent");
  }
}

type Chunks = AsyncIterable<Uint8Array | string>;

/** Whether a response of this content type is a stream, which may have no end. */
export function isEvents(contentType: unknown): boolean {
  return /^\s*(?:text\/event-stream|multipart\/x-mixed-replace)/i.test(String(contentType ?? ""));
}

/** All bytes; undefined where there are more than `max`. Then nobody waits for the end of where they come from. */
export async function collect(chunks: Chunks, max: number): Promise<Buffer | undefined> {
  const parts: Buffer[] = [];
  let size = 0;
  const iterator = chunks[Symbol.asyncIterator]();
  for (;;) {
    const next = await iterator.next();
    if (next.done === true) return Buffer.concat(parts, size);
    const part = Buffer.from(next.value as Uint8Array);
    size += part.length;
    if (size > max) {
      iterator.return?.().catch(ignore);
      return undefined;
    }
    parts.push(part);
  }
}

/** Ends a stream of Node or of the web that nobody reads. */
export function discardStream(stream: unknown): void {
  const { destroy, cancel } = (stream ?? {}) as { destroy?: unknown; cancel?: unknown };
  if (typeof destroy === "function") destroy.call(stream);
  else if (typeof cancel === "function") Promise.resolve(cancel.call(stream)).catch(ignore);
}

export function ignore(): void {
  // What is not used may end as it likes.
}
