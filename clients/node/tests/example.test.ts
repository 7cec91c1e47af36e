/** The examples, the pages of the book and the README do what they say. */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { describe } from "node:test";
import { promisify } from "node:util";
import { getRequestListener } from "@hono/node-server";
import type pg from "pg";
import { signWebhook } from "pgonce";
import { service, WEBHOOK_SECRETS } from "../examples/express-orders.js";
import { service as fastifyService } from "../examples/fastify-orders.js";
import { service as honoService } from "../examples/hono-orders.js";
import { poolOf, withDatabase } from "./apis.js";
import { it, LIMIT_MS } from "./limit.js";
import { PACKAGE, REPOSITORY } from "./server.js";

const ITEMS = "select string_agg(item, ',' order by id) from orders";

const SERVICES: Record<string, (pool: pg.Pool) => Promise<RequestListener>> = {
  Express: service,
  async Fastify(pool) {
    const app = await fastifyService(pool);
    await app.ready();
    return (request, response) => app.routing(request, response);
  },
  async Hono(pool) {
    const { fetch } = await honoService(pool);
    return getRequestListener(fetch);
  },
};

interface Posted {
  status: number;
  headers: Headers;
  json: Record<string, unknown>;
}

type Post = (at: string, body: unknown, headers?: Record<string, string>) => Promise<Posted>;

async function posting(server: Server): Promise<Post> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return poster(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
}

function poster(address: string): Post {
  return async (at, body, headers = {}) => {
    const response = await fetch(`${address}${at}`, {
      method: "POST",
      body: typeof body === "string" ? body : JSON.stringify(body),
      headers: { "content-type": "application/json", ...headers },
    });
    return { status: response.status, headers: response.headers, json: (await response.json()) as Record<string, unknown> };
  };
}

describe("examples", { concurrency: 2 }, () => {
  for (const [name, start] of Object.entries(SERVICES)) {
    it(`orders of the ${name} example are created once`, () =>
      withDatabase(async (db) => {
        const pool = poolOf(db.url);
        const server = createServer(await start(pool));
        const post = await posting(server);
        const order = { item: "book", qty: 2 };
        const key = { "idempotency-key": "k" };
        const [first, again] = [await post("/orders", order, key), await post("/orders", order, key)];
        assert.deepEqual([first.status, again.status, first.json], [201, 201, again.json]);
        assert.equal(again.headers.get("idempotent-replayed"), "true");
        assert.equal((await post("/orders", { ...order, qty: 3 }, key)).status, 422);
        assert.equal((await post("/orders", order)).status, 400);
        const other = { "idempotency-key": "other" };
        assert.equal((await post("/orders", { ...order, qty: 0 }, other)).status, 400);
        assert.equal((await post("/orders", order, other)).status, 201);
        const counts = [await db.value("select count(*) from orders"), await db.value("select count(*) from pgonce.outbox")];
        assert.deepEqual(counts, [2, 2]);
        server.closeAllConnections();
        server.close();
        await pool.end();
      }));
  }

  it("payments and webhooks of the Express example happen once", () =>
    withDatabase(async (db) => {
      const pool = poolOf(db.url);
      const server = createServer(await service(pool));
      const post = await posting(server);
      const paid = [await post("/orders/1/pay", {}), await post("/orders/1/pay", {})];
      assert.deepEqual(paid.map(({ json }) => json.replayed), [false, true]);
      for (let turn = 0; turn < 2; turn++) assert.equal((await post("/orders/13/pay", {})).status, 402);

      const [body, now] = ['{"charge": 7}', Math.floor(Date.now() / 1000)];
      const signature = signWebhook(WEBHOOK_SECRETS[0] ?? "", "m1", now, body);
      const signed = { "webhook-id": "m1", "webhook-timestamp": String(now), "webhook-signature": signature };
      for (const applied of [true, false]) {
        assert.deepEqual((await post("/webhooks/payments", body, signed)).json, { applied });
      }
      assert.equal((await post("/webhooks/payments", body, { ...signed, "webhook-signature": "v1,AAAA" })).status, 401);
      assert.equal(await db.value("select count(*) from payments"), 1);
      server.closeAllConnections();
      server.close();
      await pool.end();
    }));

  it("the service of the tutorial creates orders and takes them from the stock once", () =>
    withDatabase(async (db) => {
      await db.run(readFileSync(path.join(REPOSITORY, "examples/tutorial/schema.sql"), "utf8"));
      // Beside the sources, so that the package resolves by its own name.
      const script = path.join(PACKAGE, "examples/tutorial.mjs");
      const env = { ...process.env, DATABASE_URL: db.url, PORT: "0" };
      const child = spawn(process.execPath, [script], { env, stdio: ["ignore", "pipe", "inherit"] });
      try {
        const line = (await once(child.stdout, "data")) as [Buffer];
        const address = /http:\/\/\S+/.exec(line.toString())?.[0] ?? "";
        const post = poster(address);
        const order = { item: "book", qty: 2 };
        const key = { "idempotency-key": "order-1" };
        const [first, again] = [await post("/orders", order, key), await post("/orders", order, key)];
        assert.deepEqual([first.status, first.json, again.status, again.json], [201, { id: 1 }, 201, { id: 1 }]);
        assert.equal(again.headers.get("idempotent-replayed"), "true");
        assert.equal((await post("/orders", { ...order, qty: 3 }, key)).status, 422);
        assert.equal((await post("/orders", order)).status, 400);
        for (const replayed of [null, "true"]) {
          const refused = await post("/orders", { ...order, qty: 0 }, { "idempotency-key": "order-2" });
          assert.deepEqual([refused.status, refused.json.reason, refused.headers.get("idempotent-replayed")], [422, "bad_quantity", replayed]);
        }
        const settled = async (count: number): Promise<void> => {
          const giveUp = performance.now() + 60_000;
          const stock = "select qty from stock where item = 'book'";
          while ((await db.value(stock)) !== count && performance.now() < giveUp) await new Promise((resolve) => setTimeout(resolve, 20));
          assert.equal(await db.value(stock), count);
        };
        await settled(98);
        // Every event comes again, and is recognised by its marker; then another is applied.
        await db.run("select pgonce.replay('stock')");
        assert.equal((await post("/orders", { ...order, qty: 1 }, { "idempotency-key": "order-3" })).status, 201);
        await settled(97);
        assert.equal(await db.value("select count(*) from orders"), 2);
      } finally {
        child.kill("SIGKILL");
        await once(child, "close");
      }
    }));

  for (const [page, query, expected] of [
    ["docs/src/how-to/node.md", ITEMS, "book,stamp,cup,ink,from a message,by http"],
    ["clients/node/README.md", ITEMS, "book"],
    ["docs/src/how-to/loops.md", "select string_agg(account || ' ' || amount, ',' order by account) from balance", "ada 105,eve 309"],
  ] as const) {
    it(`every block of ${page} runs`, () =>
      withDatabase(async (db) => {
        const text = readFileSync(path.join(REPOSITORY, page), "utf8");
        const blocksIn = (language: string): string =>
          [...text.matchAll(/^```(\w+)\n(.*?)^```$/gms)].flatMap(([, name, block]) => (name === language ? [block ?? ""] : [])).join("\n");
        const blocks = blocksIn("js");
        assert.ok(blocks.length > 0);
        if (!page.startsWith("docs")) {
          await db.run("create table orders (id bigint generated always as identity, item text, qty int)");
        }
        // Beside the sources, so that the package resolves by its own name.
        const folder = path.join(PACKAGE, "build/pages");
        mkdirSync(folder, { recursive: true });
        const script = path.join(folder, `${path.basename(page, ".md")}-${process.pid}.mjs`);
        writeFileSync(script, blocks);
        writeFileSync(`${script}.sql`, blocksIn("sql"));
        // Without waiting here: a test beside this one talks to its service.
        const run = promisify(execFile);
        try {
          await run("psql", ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", `${script}.sql`, db.url], { timeout: LIMIT_MS });
          await run(process.execPath, [script], { env: { ...process.env, DATABASE_URL: db.url }, timeout: LIMIT_MS });
        } finally {
          rmSync(script);
          rmSync(`${script}.sql`);
        }
        assert.equal(await db.value(query), expected);
      }));
  }
});
