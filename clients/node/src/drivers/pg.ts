/** pg: pools and clients. */

import { Invalid } from "../errors.js";
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

// I: idle, T: in a transaction, E: in a failed one. pg itself answers this from 8.17 on only.
const statuses = new WeakMap<PgClient, string>();

function watch(client: PgClient): void {
  if (statuses.has(client)) return;
  if (client.connection === undefined) {
    throw new Invalid("clients of pg-native cannot be used", { hint: "Use the client of pg in JavaScript." });
  }
  statuses.set(client, "");
  client.connection.on("readyForQuery", (message) => statuses.set(client, message.status ?? ""));
}

class PgSession implements Session {
  lost = false;
  private readonly onLost = (): void => {
    this.lost = true;
  };

  constructor(
    readonly raw: PgClient,
    private readonly giveBack: (keep: boolean) => Promise<void>,
  ) {
    watch(raw);
    // Without a listener, a connection that breaks while no query runs would end the process.
    raw.on("error", this.onLost);
    raw.on("end", this.onLost);
  }

  async inTransaction(): Promise<boolean> {
    if (statuses.get(this.raw) === "") {
      // Nothing has passed since we listen. In a failed transaction this fails, and says so.
      await this.send("select 1").catch((error: unknown) => {
        if (statuses.get(this.raw) === "") throw error;
      });
    }
    return statuses.get(this.raw) !== "I";
  }

  async begin(isolation: Isolation | undefined): Promise<void> {
    await this.send(beginText(isolation));
  }

  async query(text: string, values: readonly unknown[]): Promise<Row[]> {
    return (await this.raw.query({ text, values: [...values], rowMode: "array" })).rows;
  }

  async commit(): Promise<string> {
    return (await this.send("commit")).command;
  }

  async rollback(): Promise<void> {
    await this.send("rollback");
  }

  async release(keep: boolean): Promise<void> {
    await this.giveBack(keep && !this.lost);
    this.forget();
  }

  destroy(): void {
    this.lost = true;
    this.raw.connection?.stream?.destroy();
  }

  forget(): void {
    this.raw.removeListener("error", this.onLost);
    this.raw.removeListener("end", this.onLost);
  }

  private send(text: string): Promise<Result> {
    return this.raw.query({ text, rowMode: "array" });
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
    hold: () => holdConnection(client),
    async acquire() {
      return new PgSession(client, async (keep) => {
        if (!keep) await destroy(client);
      });
    },
  };
}
