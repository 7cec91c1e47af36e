// The service of the tutorial, docs/src/tutorial/node.md, which includes this file part by part.

// ANCHOR: uses
import express from "express";
import pg from "pg";
import { accept, command, PermanentFailure } from "pgonce";
import { attemptOf, idempotentExpress } from "pgonce/http";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
pool.on("error", (error) => console.error("an idle connection broke:", error.message));
// ANCHOR_END: uses

// ANCHOR: effect
/** The work itself, in an open transaction. What it returns is the answer, which every attempt gets. */
async function insertOrder(tx, order) {
  if (!(order.qty >= 1)) {
    // Stored: every retry gets this failure.
    throw new PermanentFailure("bad_quantity", "qty must be at least 1");
  }
  const insert = "insert into orders (item, qty) values ($1, $2) returning id::int";
  const { rows } = await tx.conn.query(insert, [order.item, order.qty]);
  await tx.publish("orders", "order.created", order, { subject: String(rows[0].id) });
  return rows[0];
}
// ANCHOR_END: effect

// ANCHOR: command
/** Places an order. However often it is called with this key: one order, and the same receipt. */
export const placeOrder = command(pool, "orders.create", insertOrder); // order, event and answer commit together
// ANCHOR_END: command

// ANCHOR: http
const app = express();
const create = idempotentExpress(pool, { scope: "orders.create", principal: null }, async (req, res) => {
  const receipt = await insertOrder(attemptOf(req).tx, req.body); // principal: whose keys these are
  res.status(201).json(receipt);
});
app.post("/orders", create);
// ANCHOR_END: http

// ANCHOR: consumer
/** Applies the next events, each of them once. */
async function takeFromStock() {
  const claim = "select events, batch from pgonce.claim_events('stock', $1)";
  const { rows } = await pool.query(claim, [`shop-${process.pid}`]); // committed by itself
  for (const { events, batch } of rows) {
    const client = await pool.connect();
    try {
      await client.query("begin"); // markers, effects and the cursor commit together
      for (const { message_id: id, payload } of events) {
        if (await accept(client, "stock", "orders", id, JSON.stringify(payload))) {
          await client.query("update stock set qty = qty - $1 where item = $2", [payload.qty, payload.item]);
        }
      }
      await client.query("select pgonce.settle_events('stock', $1)", [JSON.stringify(batch)]);
      await client.query("commit");
      client.release();
    } catch (error) {
      client.release(true); // closed, which rolls back
      throw error;
    }
  }
}

async function keepStock() {
  for (;;) {
    // The database is away, or another process has the lane: again.
    await takeFromStock().catch((error) => console.error("the stock waits:", error.message));
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}
// ANCHOR_END: consumer

// ANCHOR: main
try {
  await pool.query("select pgonce.create_subscription('stock', 'start', p_topics => '{orders}')");
} catch (error) {
  if (error.code !== "42710") throw error; // it exists already
}
void keepStock();
const server = app.listen(Number(process.env.PORT ?? 8080), () => {
  console.log(`on http://localhost:${server.address().port}`);
});
// ANCHOR_END: main
