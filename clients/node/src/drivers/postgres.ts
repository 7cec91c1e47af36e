/** postgres.js: the function `sql`, what `sql.reserve()` gives, and the transaction of `sql.begin`. */

import { readFile } from "node:fs";
import { Socket } from "node:net";
import { Disconnected, Invalid } from "../errors.js";
import { beginText, holdConnection, holdNothing, type Driver, type Isolation, type Row, type Session } from "./base.js";

interface Query extends Promise<Record<string, unknown>[] & { command?: string }> {
  /** Its text. */
  strings: string[];
  raw(): Promise<(Buffer | null)[][]>;
  /** How the library sends a query, when it is awaited, and how it ends one. */
  handler: ((query: Query) => void) & { debug?: unknown };
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

interface Connection {
  /** Rejects what runs, and ends our half of the socket; the library has the connection back when the whole has closed. */
  terminate(): void;
  onclose?: ((error: unknown) => void) | null;
}

export interface PostgresSql {
  (strings: TemplateStringsArray, ...values: unknown[]): unknown;
  unsafe(
    text: string,
    values?: unknown[],
    options?: { prepare?: boolean; simple?: boolean; onexecute?: (connection: Connection) => boolean },
  ): Query;
  reserve?(): Promise<PostgresSql>;
  release?(): void;
  savepoint?: unknown;
  options?: { fetch_types?: unknown; onclose?: ((id: number) => void) | null };
}

type FileArguments = [values?: unknown[] | object, options?: object];

export type PostgresPool = PostgresSql & Required<Pick<PostgresSql, "reserve">>;

/** What a transaction of pgonce lends to the work: unusable once the connection is lost or the attempt has ended. */
function guarded(sql: PostgresSql, session: PostgresSession): PostgresSql {
  // postgres.js reconnects behind a reserved handle: a statement would then run outside of the transaction.
  function check(): void {
    session.checkAlive();
    if (session.ended) throw new Disconnected("the transaction of this attempt has ended");
  }
  return new Proxy(sql, {
    apply(target, self, args: [TemplateStringsArray, ...unknown[]]) {
      check();
      return session.watch(Reflect.apply(target, self, args), check);
    },
    get(target, name, receiver) {
      const value: unknown = Reflect.get(target, name, receiver);
      if ((name !== "unsafe" && name !== "file") || typeof value !== "function") return value;
      check();
      if (name === "file") return (path: string, ...more: FileArguments): Query => session.watchFile(target, path, more, check);
      return (...args: unknown[]): unknown => session.watch(Reflect.apply(value, target, args), check);
    },
  });
}

/** Errors of sockets, and what the library makes of their end. Those of files, which `sql.file` reads, are others. */
const ENDS = new Set([
  "ECONNABORTED",
  "ECONNRESET",
  "EHOSTDOWN",
  "EHOSTUNREACH",
  "ENETDOWN",
  "ENETRESET",
  "ENETUNREACH",
  "ENOTCONN",
  "EPIPE",
  "EPROTO",
  "ETIMEDOUT",
]);
const ENDS_WITH_MORE = /^(?:CONNECTION|ERR_SOCKET|ERR_SSL|ERR_STREAM|ERR_TLS)_/;

/** Whether an error is the end of its connection: one of its socket, or the last words of its server. */
function endsConnection(error: unknown): boolean {
  const { severity, code } = (error ?? {}) as Record<string, unknown>;
  return ENDS.has(String(code)) || ENDS_WITH_MORE.test(String(code)) || severity === "FATAL" || severity === "PANIC";
}

function lostConnection(): Disconnected {
  return new Disconnected("the connection of this transaction was lost");
}

function isQuery(made: unknown): made is Query {
  const { handler, resolve, reject } = (made ?? {}) as Partial<Query>;
  return [handler, resolve, reject].every((part) => typeof part === "function");
}

/**
 * Closes a connection without its peer. The library itself only ends our half of the socket, and a peer that is silent
 * never ends the other: the connection would never be had back. The socket cannot be reached from outside, but it is
 * ended in this very turn: so what is ended in it is destroyed, too. Sockets of TLS inherit `end`.
 */
function terminate(connection: Connection): void {
  const { end } = Socket.prototype;
  Socket.prototype.end = function (this: Socket, ...args: unknown[]): Socket {
    Reflect.apply(end, this, args);
    return this.destroy();
  };
  try {
    connection.terminate();
  } finally {
    Socket.prototype.end = end;
  }
}

class PostgresSession implements Session {
  readonly raw: PostgresSql;
  lost = false;
  ended = false;
  private connection: Connection | undefined;
  /** What was sent and has not ended. */
  private readonly running = new Set<Query>();

  constructor(
    private readonly sql: PostgresSql,
    private readonly isOurs: boolean,
  ) {
    this.raw = guarded(sql, this);
  }

  /**
   * Learns from the error of a query that the connection is lost. It closes some turns later, and the library forgets a
   * statement that is sent in between, and one that waits for its turn: they would never end. A query is sent when it is
   * awaited, and may be a part of another one: so nothing may be awaited here.
   */
  watch<Q>(made: Q, check = (): void => this.checkAlive()): Q {
    if (!isQuery(made)) return made;
    let { resolve, reject } = made;
    const { handler } = made;
    const send = (query: Query): void => {
      try {
        check();
      } catch (error) {
        query.reject(error);
        return;
      }
      this.running.add(query);
      handler(query);
    };
    made.handler = Object.assign(send, { debug: handler.debug });
    // `cursor` puts others of its own in their place.
    Object.defineProperties(made, {
      resolve: {
        get: () => (value: unknown) => {
          this.running.delete(made);
          resolve(value);
        },
        set: (other: Query["resolve"]) => void (resolve = other),
      },
      reject: {
        get: () => (error: unknown) => {
          if (endsConnection(error)) this.lost = true;
          this.running.delete(made);
          reject(error);
        },
        set: (other: Query["reject"]) => void (reject = other),
      },
    });
    return made;
  }

  /**
   * A statement in a file, as `sql.file` of the library sends it. That one reads the file when it is awaited, and sends it without
   * another look: the connection may be lost by then.
   */
  watchFile(sql: PostgresSql, path: string, [args, options]: FileArguments, check: () => void): Query {
    const [values, more] = Array.isArray(args) ? [args, options] : [[], options ?? args];
    const made = this.watch(sql.unsafe("", values, { prepare: true, simple: values.length === 0, ...more }), check);
    const { handler } = made;
    const send = (query: Query): void => {
      readFile(path, "utf8", (error, text) => {
        if (error !== null) return query.reject(error);
        query.strings = [text];
        handler(query);
      });
    };
    made.handler = Object.assign(send, { debug: handler.debug });
    return made;
  }

  /** A statement on a connection that was lost would end the process, or run on one that is not ours. */
  checkAlive(): void {
    if (this.lost) throw lostConnection();
  }

  private close(): void {
    this.lost = true;
    for (const query of [...this.running]) query.reject(lostConnection());
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
        // From here on it is the library's, and may serve somebody else.
        this.connection = undefined;
        this.close();
      };
      return true;
    };
    await this.watch(this.sql.unsafe(beginText(isolation), [], { onexecute }));
  }

  async query(text: string, values: readonly unknown[]): Promise<Row[]> {
    const rows = await this.watch(this.sql.unsafe(text, [...values], { prepare: true })).raw();
    return [...rows].map((row) => row.map((value) => value && value.toString("utf8")));
  }

  async commit(): Promise<string> {
    this.ended = true;
    return (await this.watch(this.sql.unsafe("commit"))).command ?? "";
  }

  async rollback(): Promise<void> {
    this.ended = true;
    await this.watch(this.sql.unsafe("rollback"));
  }

  destroy(): void {
    // The library writes what it sends at the end of the turn. Where it closes before, that write is cancelled, and a
    // connection with a cancelled write never writes again, not even after it was opened anew.
    setImmediate(() => {
      if (this.connection !== undefined) terminate(this.connection);
    });
    this.close();
  }

  forget(): void {
    // There is nothing to stop: only `begin` watches.
  }

  async release(keep: boolean): Promise<void> {
    this.ended = true;
    if (!this.isOurs || this.lost) return;
    if (keep) this.sql.release?.();
    // In a failed transaction the server would refuse to close it, and before its end another may get the connection.
    else if (this.connection !== undefined) this.destroy();
    // The library closes no single connection, but the server does.
    else this.sql.unsafe("select pg_terminate_backend(pg_backend_pid())").catch(() => undefined);
  }
}

const reservations = new WeakMap<PostgresPool, Set<() => void>>();

/** Who waits for a connection of a pool, and how each asks again: first whose latest request is the oldest. */
function waitingFor(sql: PostgresPool): Set<() => void> {
  const known = reservations.get(sql);
  if (known !== undefined) return known;
  const waiting = new Set<() => void>();
  reservations.set(sql, waiting);
  if (sql.options !== undefined) {
    const { onclose } = sql.options;
    sql.options.onclose = (id) => {
      // Called before the library has forgotten one, and others may end before ours is chosen.
      setImmediate(() => {
        const [first] = waiting;
        if (first === undefined) return;
        waiting.delete(first);
        waiting.add(first);
        first();
      });
      onclose?.(id);
    };
  }
  return waiting;
}

/**
 * A reserved connection. When a connection closes, the library forgets the oldest request of those who wait for one: so
 * its owner asks again, and gives back what it gets too much. Were all to ask again, an outage would multiply their
 * requests with every connection that fails.
 */
function reserve(sql: PostgresPool): Promise<PostgresSql> {
  const waiting = waitingFor(sql);
  return new Promise((resolve, reject) => {
    const ask = (): void => {
      if (!waiting.has(ask)) return;
      sql.reserve().then(
        (reserved) => {
          if (waiting.delete(ask)) resolve(reserved);
          else reserved.release?.();
        },
        (error: unknown) => {
          if (waiting.delete(ask)) reject(error);
        },
      );
    };
    waiting.add(ask);
    ask();
  });
}

export function postgresPool(sql: PostgresPool): Driver {
  if (sql.options?.fetch_types === false) {
    throw new Invalid("postgres.js reserves no new connection with fetch_types: false", { hint: "Leave fetch_types on." });
  }
  return {
    reconnects: true,
    hold: holdNothing,
    async acquire() {
      return new PostgresSession(await reserve(sql), true);
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
