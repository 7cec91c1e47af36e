/** The seam to a library: sources of sessions, and sessions. */

import { Invalid } from "../errors.js";

export type Isolation = "read committed" | "repeatable read" | "serializable";
export type Row = readonly (string | null)[];

/** One connection, lent. */
export interface Session {
  /** What the user's work gets: the library's own connection. */
  readonly raw: unknown;
  /** Whether the connection is known to be lost. */
  readonly lost: boolean;
  /** Whether a transaction is open. May ask the server. */
  inTransaction(): Promise<boolean>;
  begin(isolation: Isolation | undefined): Promise<void>;
  query(text: string, values: readonly unknown[]): Promise<Row[]>;
  /** Commits; answers the command tag, `COMMIT` or `ROLLBACK`. */
  commit(): Promise<string>;
  rollback(): Promise<void>;
  /** Stops watching a connection that stays the caller's, in the caller's transaction. */
  forget(): void;
  /** Breaks the connection off, in the middle of what it does: every statement on it is rejected. */
  destroy(): void;
  /** Gives the connection back; closes it where it must not be used again. */
  release(keep: boolean): Promise<void>;
}

/** A source of sessions. */
export interface Driver {
  /** Whether another connection can be had after one was lost. */
  readonly reconnects: boolean;
  /** Takes the source for a whole call, its retries included; answers how to give it back. Throws where another call has it. */
  hold(): () => void;
  acquire(): Promise<Session>;
}

const held = new WeakSet<object>();

/** Two calls over one connection would share one transaction: the commit of one would be that of the other, too. */
export function holdConnection(connection: object): () => void {
  if (held.has(connection)) {
    throw new Invalid("the connection is in use by another call of pgonce", {
      hint: "Await one call before the next, or pass a pool. Inside of the work use its tx, or join(...).",
    });
  }
  held.add(connection);
  return () => void held.delete(connection);
}

/** Connections that nobody else can have. */
export function holdNothing(): () => void {
  return () => undefined;
}

export function beginText(isolation: Isolation | undefined): string {
  return isolation === undefined ? "begin" : `begin isolation level ${isolation}`;
}
