/**
 * An orders service with Express: three ways to be safe under retries.
 *
 *     npm install pgonce express pg
 *     pgonce migrate up                                      # installs the schema
 *     DATABASE_URL=postgresql:///shop node express-orders.js
 *
 *     curl -i localhost:8000/orders -H 'Idempotency-Key: 0190f5a2' -H 'Content-Type: application/json' \
 *          -d '{"item": "book", "qty": 2}'
 */

import type { AddressInfo } from "node:net";
import express from "express";
import pg from "pg";
import { accept, lease, PermanentFailure, verifyWebhook, WebhookError } from "pgonce";
import { attemptOf, idempotentExpress } from "pgonce/http";

const TABLES = `
create table if not exists orders (id bigint generated always as identity primary key, item text, qty integer);
create table if not exists payments (id text primary key, charge text not null);
`;

export const WEBHOOK_SECRETS = (process.env.WEBHOOK_SECRETS ?? "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").split(" ");

export async function service(pool: pg.Pool): Promise<express.Express> {
  await pool.query(TABLES);
  const app = express();

  // 1. The middleware: clients send an Idempotency-Key. The order, its event and the response commit together, and
  // every retry gets the same response. In a real service name the principal: the account.
  app.post(
    "/orders",
    idempotentExpress(pool, { scope: "orders.create", principal: null }, async (req: express.Request, res: express.Response) => {
      const { item, qty } = req.body as { item: string; qty: number };
      if (!(qty >= 1)) return void res.status(400).json({ error: "qty must be at least 1" });
      const { tx } = attemptOf<pg.PoolClient>(req);
      const insert = "insert into orders (item, qty) values ($1, $2) returning id";
      const { rows } = await tx.conn.query<{ id: string }>(insert, [item, qty]);
      const id = rows[0]?.id;
      await tx.publish("orders", "order.created", { id, item }, { subject: String(id) });
      res.status(201).json({ id });
    }),
  );

  // 2. A lease: the payment provider is outside of our database. The claim is committed first and renewed while we
  // call; the provider gets a key that is the same on every attempt.
  app.post("/orders/:id/pay", async (req, res) => {
    const key = `order-${req.params.id}`;
    try {
      const done = await lease(pool, "orders.pay", key, { order: req.params.id }, async (held) => ({
        charge: await callProvider(key, held.kind === "takeover", held.signal),
      }));
      res.json({ ...done.answer, replayed: done.replayed });
    } catch (error) {
      if (!(error instanceof PermanentFailure)) throw error;
      res.status(402).json({ error: error.failureCode });
    }
  });

  // 3. A webhook: verified, and applied once however often it is delivered.
  app.post("/webhooks/payments", express.raw({ type: "*/*" }), async (req, res) => {
    const body = req.body as Buffer;
    let id: string;
    try {
      id = verifyWebhook(WEBHOOK_SECRETS, req.headers, body);
    } catch (error) {
      if (!(error instanceof WebhookError)) throw error;
      return void res.status(401).json({ error: error.code });
    }
    const client = await pool.connect();
    try {
      await client.query("begin");
      const applied = await accept(client, "payments", "provider", id, body);
      if (applied) await client.query("insert into payments (id, charge) values ($1, $2)", [id, body.toString()]);
      await client.query("commit");
      res.json({ applied });
    } catch (error) {
      await client.query("rollback");
      throw error;
    } finally {
      client.release();
    }
  });

  return app;
}

/** Stands for a provider that knows our key. After a takeover ask it first what became of the call. */
async function callProvider(key: string, takeover: boolean, signal: AbortSignal): Promise<string> {
  void takeover;
  signal.throwIfAborted();
  if (key === "order-13") throw new PermanentFailure("card_declined", "the bank said no");
  return `charge-of-${key}`;
}

if (require.main === module) {
  const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL ?? "postgresql:///shop" });
  pool.on("error", (error) => console.error("an idle connection broke:", error.message));
  void service(pool).then((app) => {
    const server = app.listen(Number(process.env.PORT ?? 8000), () => {
      console.log(`on http://localhost:${(server.address() as AddressInfo).port}`);
    });
  });
}
