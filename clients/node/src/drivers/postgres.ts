/** postgres.js: the function `sql`, what `sql.reserve()` gives, and the transaction of `sql.begin`. */

import { Disconnected } from "../errors.js";
import { beginText, holdConnection, holdNothing, type Driver, type Isolation, type Row, type Session } from "./base.js";

interface Query extends Promise<Record<string, unknown>[] & { command?: string }> {
  raw(): Promise<(Buffer | null)[][]>;
  /** How the library ends a query that failed. */
  reject(error: unknown): void;
}

interface Connection {
  /** Rejects what runs, and ends the socket; the library has the connection back when that has closed. */
  terminate(): void;
  onclose?: ((error: unknown) => void) | null;
}

export interface PostgresSql {
  (strings: TemplateStringsArray, ...values: unknown[]): unknown;
  unsafe(
    text: string,
    values?: unknown[],
    options?: { prepare?: boolean; onexecute?: (connection: Connection) => boolean },
  ): Query;
  reserve?(): Promise<PostgresSql>;
  release?(): void;
  savepoint?: unknown;
}

/** What a transaction of pgonce lends to the work: unusable once the connection is lost or the attempt has ended. */
function guarded(sql: PostgresSql, session: PostgresSession): PostgresSql {
  // postgres.js reconnects behind a reserved handle: a statement would then run outside of the transaction.
  function check(): void {
    if (session.lost || session.ended) {
      throw new Disconnected(
        session.lost ? "the connection of this transaction was lost" : "the transaction of this attempt has ended",
      );
    }
  }
  return new Proxy(sql, {
    apply(target, self, args: [TemplateStringsArray, ...unknown[]]) {
      check();
      return session.watch(Reflect.apply(target, self, args));
    },
    get(target, name, receiver) {
      const value: unknown = Reflect.get(target, name, receiver);
      if ((name !== "unsafe" && name !== "file") || typeof value !== "function") return value;
      check();
      return (...args: unknown[]): unknown => session.watch(Reflect.apply(value, target, args));
    },
  });
}

/** Errors of sockets, and what the library makes of their end. Those of files, which `sql.file` reads, are others. */
const ENDS = new Set([
  "CONNECTION_CLOSED",
  "CONNECTION_DESTROYED",
  "ECONNABORTED",
  "ECONNRESET",
  "EHOSTUNREACH",
  "ENETDOWN",
  "ENETUNREACH",
  "EPIPE",
  "ETIMEDOUT",
]);

/** Whether an error is the end of its connection: one of its socket, or the last words of its server. */
function endsConnection(error: unknown): boolean {
  const { severity, code } = (error ?? {}) as Record<string, unknown>;
  return ENDS.has(String(code)) || severity === "FATAL" || severity === "PANIC";
}

class PostgresSession implements Session {
  readonly raw: PostgresSql;
  lost = false;
  ended = false;
  private connection: Connection | undefined;

  constructor(
    private readonly sql: PostgresSql,
    private readonly isOurs: boolean,
  ) {
    this.raw = guarded(sql, this);
  }

  /**
   * Learns from the error of a query that the connection is lost. It closes some turns later, and the library forgets a
   * statement that is sent in between: it would never end. A query is sent when it is awaited, and may be a part of
   * another one: so nothing may be awaited here.
   */
  watch<Q>(made: Q): Q {
    const query = made as Partial<Query> | undefined;
    const reject = query?.reject;
    if (query === undefined || typeof reject !== "function") return made;
    query.reject = (error) => {
      if (endsConnection(error)) this.lost = true;
      reject(error);
    };
    return made;
  }

  async inTransaction(): Promise<boolean> {
    if (this.sql.savepoint !== undefined) return true;
    if (this.isOurs) return false;
    try {
      // The library does not say. Outside of a transaction this fails before it does anything.
      await this.sql.unsafe("savepoint pgonce_probe; release savepoint pgonce_probe");
      return true;
    } catch (error) {
      if ((error as { code?: unknown }).code === "25P01") return false;
      throw error;
    }
  }

  async begin(isolation: Isolation | undefined): Promise<void> {
    const onexecute = (connection: Connection): boolean => {
      this.connection = connection;
      // Called in the turn in which the connection closes, before anybody learns that a query failed.
      connection.onclose = () => {
        this.lost = true;
      };
      return true;
    };
    await this.watch(this.sql.unsafe(beginText(isolation), [], { onexecute }));
  }

  async query(text: string, values: readonly unknown[]): Promise<Row[]> {
    const rows = await this.watch(this.alive().unsafe(text, [...values], { prepare: true })).raw();
    return [...rows].map((row) => row.map((value) => value && value.toString("utf8")));
  }

  async queryAlone(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await this.query(text, values);
    } catch (error) {
      // Without a BEGIN nothing watches the connection. Only errors of the server have a severity.
      if (!(error instanceof Error && "severity" in error)) this.lost = true;
      throw error;
    }
  }

  async commit(): Promise<string> {
    this.ended = true;
    return (await this.watch(this.alive().unsafe("commit"))).command ?? "";
  }

  async rollback(): Promise<void> {
    this.ended = true;
    await this.watch(this.alive().unsafe("rollback"));
  }

  /** A statement on a connection that was lost would end the process, or run on one that is not ours. */
  private alive(): PostgresSql {
    if (this.lost) throw new Disconnected("the connection of this transaction was lost");
    return this.sql;
  }

  destroy(): void {
    this.lost = true;
    this.connection?.terminate();
  }

  forget(): void {
    // There is nothing to stop: only `begin` watches.
  }

  async release(keep: boolean): Promise<void> {
    this.ended = true;
    if (!this.isOurs || this.lost) return;
    if (keep) this.sql.release?.();
    // The library closes no single connection, but the server does.
    else this.sql.unsafe("select pg_terminate_backend(pg_backend_pid())").catch(() => undefined);
  }
}

export function postgresPool(sql: PostgresSql & Required<Pick<PostgresSql, "reserve">>): Driver {
  return {
    reconnects: true,
    hold: holdNothing,
    async acquire() {
      return new PostgresSession(await sql.reserve(), true);
    },
  };
}

export function postgresConnection(sql: PostgresSql): Driver {
  return {
    reconnects: false,
    hold: () => holdConnection(sql),
    async acquire() {
      return new PostgresSession(sql, false);
    },
  };
}
