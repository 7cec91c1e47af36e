/**
 * Orders with Hono: the order, its event and the response commit together.
 *
 *     npm install pgonce hono @hono/node-server pg
 *     pgonce migrate up                                      # installs the schema
 *     DATABASE_URL=postgresql:///shop node hono-orders.js
 *
 *     curl -i localhost:8000/orders -H 'Idempotency-Key: 0190f5a2' -H 'Content-Type: application/json' \
 *          -d '{"item": "book", "qty": 2}'
 */

import { serve } from "@hono/node-server";
import { Hono, type Context } from "hono";
import pg from "pg";
import { attemptOf, idempotentHono } from "pgonce/http";

const TABLE = "create table if not exists orders (id bigint generated always as identity primary key, item text, qty integer)";

export async function service(pool: pg.Pool): Promise<Hono> {
  await pool.query(TABLE);
  const app = new Hono();

  app.post(
    "/orders",
    idempotentHono(pool, { scope: "orders.create", principal: null }, async (c: Context) => {
      const { item, qty } = await c.req.json<{ item: string; qty: number }>();
      if (!(qty >= 1)) return c.json({ error: "qty must be at least 1" }, 400);
      const { tx } = attemptOf<pg.PoolClient>(c);
      const insert = "insert into orders (item, qty) values ($1, $2) returning id::int";
      const { rows } = await tx.conn.query<{ id: number }>(insert, [item, qty]);
      await tx.publish("orders", "order.created", { item, qty }, { subject: String(rows[0]?.id) });
      return c.json(rows[0], 201);
    }),
  );
  return app;
}

if (require.main === module) {
  const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL ?? "postgresql:///shop" });
  pool.on("error", (error) => console.error("an idle connection broke:", error.message));
  void service(pool).then(({ fetch }) =>
    serve({ fetch, port: Number(process.env.PORT ?? 8000) }, ({ port }) => console.log(`on http://localhost:${port}`)),
  );
}
