/** pg: pools and clients. */

import { Disconnected, Invalid } from "../errors.js";
import { beginText, holdConnection, holdNothing, type Driver, type Isolation, type Row, type Session } from "./base.js";

interface Result {
  rows: (string | null)[][];
  command: string;
}

interface Wire {
  on(event: "readyForQuery", listener: (message: { status?: string }) => void): unknown;
  stream?: { destroy(): unknown };
}

export interface PgClient {
  query(config: { text: string; values?: unknown[]; rowMode: "array" }): Promise<Result>;
  on(event: string, listener: (...args: unknown[]) => void): unknown;
  removeListener(event: string, listener: (...args: unknown[]) => void): unknown;
  release?(destroy?: boolean): void;
  end(): Promise<void>;
  connection?: Wire;
}

export interface PgPool {
  connect(): Promise<PgClient>;
  totalCount: number;
}

// I: idle, T: in a transaction, E: in a failed one. pg itself answers this from 8.17 on only. Of the wire, which is the same one
// behind a client that was lent.
const statuses = new WeakMap<Wire, string>();

function watch({ connection }: PgClient): Wire {
  if (connection === undefined) {
    throw new Invalid("clients of pg-native cannot be used", { hint: "Use the client of pg in JavaScript." });
  }
  if (!statuses.has(connection)) {
    statuses.set(connection, "");
    connection.on("readyForQuery", (message) => statuses.set(connection, message.status ?? ""));
  }
  return connection;
}

/** What a transaction of pgonce lends to the work: unusable once the attempt has ended, when the client may serve the next one. */
function guarded(client: PgClient, session: PgSession): PgClient {
  return new Proxy(client, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name);
      if (name !== "query" || typeof value !== "function") return value;
      return (...args: unknown[]): unknown => {
        if (!session.ended) return Reflect.apply(value, target, args);
        const error = new Disconnected("the transaction of this attempt has ended");
        // As pg itself refuses, where it would answer by a promise: not with a callback, nor for a cursor or a stream.
        const submits = typeof (args[0] as { submit?: unknown } | undefined)?.submit === "function";
        if (submits || args.some((arg) => typeof arg === "function")) throw error;
        return Promise.reject(error);
      };
    },
  });
}

class PgSession implements Session {
  readonly raw: PgClient;
  lost = false;
  ended = false;
  private readonly wire: Wire;
  private readonly onLost = (): void => {
    this.lost = true;
  };

  constructor(
    private readonly client: PgClient,
    private readonly giveBack: (keep: boolean) => Promise<void>,
  ) {
    this.wire = watch(client);
    this.raw = guarded(client, this);
    // Without a listener, a connection that breaks while no query runs would end the process.
    client.on("error", this.onLost);
    client.on("end", this.onLost);
  }

  async inTransaction(): Promise<boolean> {
    if (statuses.get(this.wire) === "") {
      // Nothing has passed since we listen. In a failed transaction this fails, and says so.
      await this.send("select 1").catch((error: unknown) => {
        if (statuses.get(this.wire) === "") throw error;
      });
    }
    return statuses.get(this.wire) !== "I";
  }

  async begin(isolation: Isolation | undefined): Promise<void> {
    await this.send(beginText(isolation));
  }

  async query(text: string, values: readonly unknown[]): Promise<Row[]> {
    return (await this.client.query({ text, values: [...values], rowMode: "array" })).rows;
  }

  async commit(): Promise<string> {
    this.ended = true;
    return (await this.send("commit")).command;
  }

  async rollback(): Promise<void> {
    this.ended = true;
    await this.send("rollback");
  }

  async release(keep: boolean): Promise<void> {
    this.ended = true;
    await this.giveBack(keep && !this.lost);
    this.forget();
  }

  destroy(): void {
    this.lost = true;
    this.wire.stream?.destroy();
  }

  forget(): void {
    this.client.removeListener("error", this.onLost);
    this.client.removeListener("end", this.onLost);
  }

  private send(text: string): Promise<Result> {
    return this.client.query({ text, rowMode: "array" });
  }
}

function ignore(): void {
  // A connection that is thrown away may end as it likes.
}

async function destroy(client: PgClient): Promise<void> {
  client.on("error", ignore);
  client.end().catch(ignore);
}

export function pgPool(pool: PgPool): Driver {
  return {
    reconnects: true,
    hold: holdNothing,
    async acquire() {
      const client = await pool.connect();
      return new PgSession(client, async (keep) => {
        if (!keep) client.on("error", ignore);
        client.release?.(!keep);
      });
    },
  };
}

/** A client that was made for this session and is closed after it. */
export function ownedClient(client: PgClient, free: () => void): Session {
  return new PgSession(client, async (keep) => {
    free();
    await (keep ? client.end() : destroy(client));
  });
}

/** A client of the caller's. */
export function pgClient(client: PgClient): Driver {
  return {
    reconnects: false,
    hold: () => holdConnection(client.connection ?? client),
    async acquire() {
      return new PgSession(client, async (keep) => {
        if (!keep) await destroy(client);
      });
    },
  };
}
