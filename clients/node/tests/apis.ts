/** Both libraries behind one small interface, so that a case is written once. */

import pg from "pg";
import postgres from "postgres";
import { server } from "./fixture.js";
import type { Database } from "./server.js";

export type Library = "pg" | "pg-connect" | "postgres";
export const LIBRARIES: readonly Library[] = ["pg", "pg-connect", "postgres"];

/** One library: a source of connections, and how to send a statement on a connection of it. */
export interface Api {
  library: Library;
  source: unknown;
  execute(conn: unknown, statement: string): Promise<void>;
  /** Runs `work` in a transaction of the caller's own. */
  transaction<T>(work: (conn: unknown) => Promise<T>): Promise<T>;
  /** An idle connection, and how to give it back. */
  connection(): Promise<{ conn: unknown; free: () => void }>;
  close(): Promise<void>;
}

export function api(library: Library, url: string, pooled = false): Api {
  return library === "postgres" ? postgresApi(url, pooled) : pgApi(library, url);
}

/** A pool whose idle connections may break: one is still being closed when `end` is over, and its database is dropped by then. */
export function poolOf(url: string, max = 4): pg.Pool {
  const pool = new pg.Pool({ connectionString: url, max });
  pool.on("error", () => undefined);
  return pool;
}

function pgApi(library: Library, url: string): Api {
  const pool = poolOf(url);
  const connect = async (): Promise<pg.Client> => {
    const client = new pg.Client(url);
    await client.connect();
    return client;
  };
  return {
    library,
    source: library === "pg" ? pool : connect,
    async execute(conn, statement) {
      await (conn as pg.ClientBase).query(statement);
    },
    async transaction(work) {
      const client = await pool.connect();
      try {
        await client.query("begin");
        const result = await work(client);
        await client.query("commit");
        return result;
      } catch (error) {
        await client.query("rollback");
        throw error;
      } finally {
        client.release();
      }
    },
    async connection() {
      const client = await pool.connect();
      return { conn: client, free: () => client.release() };
    },
    close: () => pool.end(),
  };
}

function postgresApi(url: string, pooled: boolean): Api {
  const sql = postgres(url, { max: 4, prepare: !pooled, onnotice: () => undefined });
  return {
    library: "postgres",
    source: sql,
    async execute(conn, statement) {
      await (conn as postgres.Sql).unsafe(statement);
    },
    async transaction(work) {
      return (await sql.begin((conn) => work(conn))) as never;
    },
    async connection() {
      const conn = await sql.reserve();
      return { conn, free: () => conn.release() };
    },
    close: () => sql.end({ timeout: 1 }),
  };
}

/** A fresh database and one library over it, through the proxy. */
export async function withApi(
  library: Library,
  test: (api: Api, db: Database) => Promise<void>,
  pooled = false,
  isolation?: string,
): Promise<void> {
  await withDatabase(async (db) => {
    const made = api(library, db.cutUrl, pooled);
    try {
      await test(made, db);
    } finally {
      await made.close();
    }
  }, pooled, isolation);
}

export async function withDatabase(
  test: (db: Database) => Promise<void>,
  pooled = false,
  isolation?: string,
  encoding?: string,
): Promise<void> {
  const db = await server.database(pooled, isolation, encoding);
  try {
    await test(db);
  } finally {
    await db.close();
  }
}
