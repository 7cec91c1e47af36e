/** An attempt in a transaction. */

import { Claimed } from "./claimed.js";
import type { Session } from "./drivers/index.js";
import { Invalid } from "./errors.js";
import { Ack, type Held, type Intent, type Options, type SuccessOptions } from "./intent.js";
import { eventParams, messageParams, type EventOptions } from "./messages.js";
import { query } from "./protocol.js";
import * as sql from "./statements.js";

/**
 * One attempt in an open transaction. What is written on `conn` commits together with the answer, or not at all.
 */
export class Tx<C = unknown> extends Claimed {
  /** @internal */ ack: Ack | undefined;
  /** @internal */ touched = false;
  private session: Session | undefined;

  /** @internal */
  constructor(intent: Intent, options: Options, session: Session, claimed: Held) {
    super(intent, options, claimed);
    this.session = session;
  }

  /** Your library's connection, inside the transaction. Never send COMMIT or ROLLBACK on it. */
  get conn(): C {
    this.touched = true;
    return this.open().raw as C;
  }

  /**
   * Says that the work is done, and what its answer is; needed only where the answer is not what the work returns.
   * Recorded when the work ends.
   */
  succeed(answer?: unknown, options: SuccessOptions = {}): void {
    this.open();
    // An answer that does not fit is refused here, where it was made.
    this.ack = new Ack(answer, options);
  }

  /** Publishes an event that exists if and only if this attempt succeeds. Returns its message id. */
  async publish(topic: string, type: string, payload?: unknown, options: EventOptions = {}): Promise<string> {
    this.touched = true;
    const params = eventParams(topic, type, payload, { ...options, tenant: this.intent.tenant });
    return (await query(this.open(), this.options, sql.PUBLISH, params))[0]?.[0] ?? "";
  }

  /** Whether this consumer may apply this message now: true where it is new. */
  async accept(consumer: string, source: string, messageId: string, payload?: Uint8Array | string): Promise<boolean> {
    this.touched = true;
    const params = messageParams(consumer, source, messageId, payload, this.intent.tenant);
    return (await query(this.open(), this.options, sql.ACCEPT, params))[0]?.[0] === "true";
  }

  /** @internal */
  get lost(): boolean {
    return this.session?.lost ?? false;
  }

  /** @internal Ends the work: nothing more can be sent through this object. */
  end(value: unknown): Ack {
    if (this.ack === undefined) this.succeed(value);
    this.close();
    return this.ack as unknown as Ack;
  }

  /** @internal */
  close(): void {
    this.session = undefined;
  }

  private open(): Session {
    if (this.session === undefined) {
      throw new Invalid("the attempt has ended", { hint: "Await everything that you send before the work returns." });
    }
    return this.session;
  }
}
