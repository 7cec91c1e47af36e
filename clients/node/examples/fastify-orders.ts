/**
 * Orders with Fastify: the order, its event and the response commit together.
 *
 *     npm install pgonce fastify pg
 *     pgonce migrate up                                      # installs the schema
 *     DATABASE_URL=postgresql:///shop node fastify-orders.js
 *
 *     curl -i localhost:8000/orders -H 'Idempotency-Key: 0190f5a2' -H 'Content-Type: application/json' \
 *          -d '{"item": "book", "qty": 2}'
 */

import fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from "fastify";
import pg from "pg";
import { attemptOf, idempotentFastify } from "pgonce/http";

const TABLE = "create table if not exists orders (id bigint generated always as identity primary key, item text, qty integer)";

export async function service(pool: pg.Pool): Promise<FastifyInstance> {
  await pool.query(TABLE);
  const app = fastify({ forceCloseConnections: true });

  const create = idempotentFastify(
    pool,
    { scope: "orders.create", principal: null },
    async (request: FastifyRequest, reply: FastifyReply) => {
      const { item, qty } = request.body as { item: string; qty: number };
      if (!(qty >= 1)) return reply.code(400).send({ error: "qty must be at least 1" });
      const { tx } = attemptOf<pg.PoolClient>(request);
      const insert = "insert into orders (item, qty) values ($1, $2) returning id::int";
      const { rows } = await tx.conn.query<{ id: number }>(insert, [item, qty]);
      await tx.publish("orders", "order.created", { item, qty }, { subject: String(rows[0]?.id) });
      return reply.code(201).send(rows[0]);
    },
  );
  app.post("/orders", create);
  app.addHook("onClose", () => create.drained());
  return app;
}

if (require.main === module) {
  const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL ?? "postgresql:///shop" });
  pool.on("error", (error) => console.error("an idle connection broke:", error.message));
  void service(pool)
    .then((app) => app.listen({ port: Number(process.env.PORT ?? 8000) }))
    .then((address) => console.log(`on ${address}`));
}
