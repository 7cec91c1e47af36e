/** From what the caller passes to a driver. */

import { Invalid } from "../errors.js";
import { holdConnection, holdNothing, type Driver } from "./base.js";
import { ownedClient, pgClient, pgPool, type PgClient, type PgPool } from "./pg.js";
import { postgresConnection, postgresPool, type PostgresPool, type PostgresSql } from "./postgres.js";

export type { Driver, Isolation, Row, Session } from "./base.js";

/**
 * The connection that the work gets: a client of `pg` for its pool, the reserved connection of postgres.js for
 * `sql`, what a function that connects answers.
 */
export type ConnectionOf<S> = S extends { reserve(): Promise<infer C> }
  ? C
  : S extends { connect: { (): Promise<infer C>; (callback: never): void }; totalCount: number }
    ? C
    : S extends () => Promise<infer C>
      ? C
      : S;

/** The driver for a pool, a client, the `sql` of postgres.js, or a function that connects a client of pg. */
export function adapt(source: unknown): Driver {
  if (typeof source === "function") {
    const sql = source as unknown as PostgresSql;
    if (typeof sql.unsafe !== "function") return connecting(source as () => Promise<PgClient>);
    return sql.reserve === undefined
      ? postgresConnection(sql)
      : postgresPool(sql as PostgresPool);
  }
  if (typeof source === "object" && source !== null && "query" in source) {
    return "totalCount" in source ? pgPool(source as unknown as PgPool) : pgClient(source as unknown as PgClient);
  }
  throw new Invalid(`${source === null ? "null" : typeof source} is no source of connections that pgonce knows`, {
    hint: "Pass a pool or a client of pg, the sql of postgres.js, or a function that connects a client of pg.",
  });
}

function connecting(connect: () => Promise<PgClient>): Driver {
  return {
    reconnects: true,
    hold: holdNothing,
    async acquire() {
      const client = await connect();
      // A function that answers the same client again has not connected.
      return ownedClient(client, holdConnection(client));
    },
  };
}
