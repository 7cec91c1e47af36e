/** The HTTP middleware, over Express, Fastify and Hono alike. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, request, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { connect } from "node:http2";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { PassThrough, Readable, Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { describe } from "node:test";
import { promisify } from "node:util";
import { getRequestListener, serve } from "@hono/node-server";
import express from "express";
import fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from "fastify";
import { Hono, type Context } from "hono";
import { streamSSE } from "hono/streaming";
import pg from "pg";
import { Conflict, DatabaseError, Invalid } from "pgonce";
import { attemptOf, idempotentExpress, idempotentFastify, idempotentHono, storedKey, type Policy } from "pgonce/http";
import { poolOf, withDatabase } from "./apis.js";
import { FRAMEWORKS, listening, quiet, withClient, type Client, type Reply } from "./frameworks.js";
import { LIMIT_MS, it } from "./limit.js";
import { PACKAGE, REPOSITORY, type Database } from "./server.js";

const INSERT = "insert into effect (note) values ('x')";

for (const [name, framework] of Object.entries(FRAMEWORKS)) {
  const test = (title: string, run: (client: Client) => Promise<void>, policy: Partial<Policy> = {}): void => {
    it(title, () => withClient(framework, policy, run));
  };
  const intents = "select count(*) from pgonce.intent";

  describe(`HTTP over ${name}`, { concurrency: 4 }, () => {
    test("a retry gets the same status, headers and bytes; another request 422; another spelling a replay", async ({ db, post }) => {
      const body = '{"a": 1, "b": [1.0]}';
      const [first, again] = [await post("/orders", body), await post("/orders", '{"b":[1],"a":1}', '"k"')];
      assert.deepEqual([first.status, first.body.toString("hex")], [201, "00ff31"]);
      assert.deepEqual([again.status, again.body.toString("hex")], [201, "00ff31"]);
      assert.equal(first.headers.get("idempotent-replayed"), null);
      assert.equal(again.headers.get("idempotent-replayed"), "true");
      assert.equal(again.headers.get("location"), "/orders/1");
      assert.equal(again.headers.get("content-type"), "application/octet-stream");
      assert.deepEqual([first.headers.get("set-cookie"), again.headers.get("set-cookie")], ["a=b", null]);
      assert.ok(first.headers.get("idempotency-expires"));
      assert.equal(again.headers.get("idempotency-expires"), first.headers.get("idempotency-expires"));
      const other = await post("/orders", '{"a": 2}');
      assert.deepEqual([other.status, other.problem.code], [422, "P4002"]);
      assert.equal(await db.effects(), 1);
    });

    test("a missing or bad key is 400 and nothing happens; other methods pass", async ({ db, service, post }) => {
      assert.equal((await post("/orders", "{}", null)).problem.code, "P4001");
      assert.equal((await post("/orders", "{}", "a,b")).problem.code, "22023");
      assert.deepEqual([service.calls, await db.effects()], [0, 0]);
      assert.equal((await post("/orders", "{}", null, { method: "PUT" })).status, 201);
      assert.equal(await db.value(intents), 0);
    });

    test(
      "a principal that is not Unicode is refused",
      async ({ service, post }) => {
        const { status, problem } = await post("/orders");
        assert.deepEqual([status, problem.code, service.calls], [400, "22023", 0]);
      },
      { principal: () => "\ud800" },
    );

    test("validation does not burn the key, a refusal is kept and its write undone", async ({ db, service, post }) => {
      assert.equal((await post("/invalid", '{"qty": 0}')).status, 400);
      assert.equal((await post("/invalid", '{"qty": 1}')).status, 400);
      assert.deepEqual([service.calls, await db.value(intents)], [2, 0]);
      for (const at of ["/refuse", "/thrown"]) {
        const [first, again] = [await post(at, "{}", at), await post(at, "{}", at)];
        assert.deepEqual([first.status, again.status, first.body], [404, 404, again.body]);
        assert.equal(again.headers.get("idempotent-replayed"), "true");
      }
      assert.deepEqual([service.calls, await db.effects()], [4, 0]);
    });

    test("transient statuses, crashes and forgotten responses are not kept", async ({ db, service, post }) => {
      assert.equal((await post("/refuse", '"busy"', "b")).status, 409);
      assert.equal((await post("/refuse", '"busy"', "b")).status, 409);
      assert.equal((await post("/error", "{}", "e")).status, 500);
      assert.equal((await post("/crash", "{}", "c")).problem.code, "handler_failed");
      assert.equal((await post("/forget", "{}", "f")).body.toString(), "forgotten");
      assert.equal(service.calls, 5);
      assert.equal(await db.value(`${intents} where status in ('succeeded', 'failed_final')`), 0);
      assert.equal(await db.effects(), 0);
    });

    test("a permanent failure of the handler is the same every time", async ({ service, post }) => {
      for (const replayed of [null, "true"]) {
        const { status, problem, headers } = await post("/declined");
        assert.deepEqual([status, problem.reason, headers.get("idempotent-replayed")], [422, "card_declined", replayed]);
      }
      assert.equal(service.calls, 1);
    });

    test("a conflict that the handler met has its own code", async ({ service, post }) => {
      service.own = () => {
        throw new Conflict("the message was another one", { code: "P4050" });
      };
      const { status, problem } = await post("/orders");
      assert.deepEqual([status, problem.code, problem.title], [422, "P4050", "Unprocessable Entity"]);
    });

    test("a serialization failure runs the handler again; a lost commit reply is answered with what happened", async ({ db, service, post }) => {
      assert.equal((await post("/again")).status, 201);
      assert.deepEqual([service.calls, await db.effects()], [2, 1]);
      db.proxy.faults.push({ at: "commit", action: "reply" });
      assert.equal((await post("/orders", "{}", "lost")).status, 201);
      assert.deepEqual([db.proxy.struck, service.calls, await db.effects()], [1, 3, 2]);
    });

    test(
      "what the database does not know is not said to have done nothing",
      async ({ service, post }) => {
        service.own = () => {
          throw new DatabaseError("whether it happened is not known", { code: "40003" });
        };
        const { status, problem } = await post("/orders");
        assert.deepEqual([status, problem.code], [503, "08007"]);
      },
      { retry: { maxTries: 1 } },
    );

    test("a duplicate in progress is 409 with retry-after", async ({ db, post }) => {
      await post("/orders", "{}", "first");
      const admin = await db.admin();
      const { rows } = await admin.query<{ key: string; fingerprint: Buffer }>("select key, fingerprint from pgonce.intent");
      assert.equal(rows[0]?.key, storedKey("first", "POST /orders", null));
      await admin.query("begin");
      const second = storedKey("second", "POST /orders", null);
      await admin.query("select pgonce.claim('orders.create', $1, $2)", [second, rows[0].fingerprint]);
      const { status, problem, headers } = await post("/orders", "{}", "second");
      await admin.query("rollback");
      assert.deepEqual([status, problem.code, headers.get("retry-after")], [409, "P4029", "1"]);
    });

    test("a limit of keys and another region are said", async ({ db, post }) => {
      await db.run("select pgonce.define_scope('orders.create', interval '1 day', p_max_keys => 1)");
      assert.equal((await post("/orders", "{}", "first")).status, 201);
      const second = await post("/orders", "{}", "second");
      assert.deepEqual([second.status, second.problem.code], [429, "P4044"]);
      await db.run(
        "create function elsewhere() returns trigger language plpgsql as " +
          "$$ begin raise exception 'its home is another region' using errcode = 'P4110'; end $$",
      );
      await db.run("create trigger elsewhere before insert on pgonce.intent execute function elsewhere()");
      await db.run("select pgonce.define_scope('orders.create', interval '1 day')");
      const third = await post("/orders", "{}", "third");
      assert.deepEqual([third.status, third.problem.code, await db.effects()], [421, "P4110", 1]);
    });

    test(
      "a contract that accepts is 202 and a status URL until there is a response",
      async ({ db, service, post }) => {
        await db.run("select pgonce.define_scope('orders.create', interval '1 day', p_busy => 'accept')");
        const as = (user: string): { headers: Record<string, string> } => ({ headers: { "x-user": user } });
        const ask = async (url: string, user = "ada"): Promise<Reply> => post(url, undefined, null, { method: "GET", body: null, ...as(user) });
        const create = async (key: string): Promise<Reply> => post("/orders", "{}", key, as("ada"));
        await create("first");
        const print = await db.value("select fingerprint from pgonce.intent");
        const admin = await db.admin();
        await admin.query("begin");
        await admin.query("select pgonce.claim('orders.create', $1, $2)", [storedKey("second", "POST /orders", "ada"), print]);
        const busy = await create("second");
        assert.deepEqual([busy.status, busy.body.toString()], [202, '{"status":"processing"}']);
        assert.equal(busy.headers.get("retry-after"), "1");
        const url = busy.headers.get("location") ?? "";
        assert.ok(url.startsWith("/orders/status/"), url);
        const asked = await ask(url);
        assert.deepEqual([asked.status, asked.headers.get("location")], [202, null]);
        await admin.query("rollback");
        assert.equal(service.calls, 1);
        const free = await ask(url);
        assert.deepEqual([free.status, free.problem.code], [404, "not_under_way"]);
        const [made, found] = [await create("second"), await ask(url)];
        assert.deepEqual([made.status, found.status, found.body], [201, 201, made.body]);
        assert.equal(found.headers.get("idempotent-replayed"), "true");
        assert.deepEqual([(await ask(url, "bob")).status, (await ask("/orders/status/nonsense")).status], [404, 404]);
        assert.equal((await ask(url, "")).status, 401);
        assert.deepEqual([service.calls, await db.effects()], [2, 2]);
      },
      { principal: (request) => request.header("x-user"), statusAt: "/orders/status/" },
    );

    test(
      "a key that names an attempt is refused where the policy says so",
      async ({ service, post }) => {
        const { status, problem } = await post("/orders", "{}", "order-7-retry-3");
        assert.deepEqual([status, problem.code, service.calls], [400, "22023", 0]);
        assert.match(String(problem.detail), /counts attempts/);
        assert.equal((await post("/orders", "{}", "order-7")).status, 201);
      },
      { lintKeys: true },
    );

    for (const mode of ["atomic", "leased"] as const) {
      test(
        `a refusal of which only the status is kept is replayed as a refusal by a route that is ${mode}`,
        async ({ db, service, post }) => {
          await post("/orders", "{}", "first");
          const values = ["orders.create", storedKey("second", "POST /orders", null), await db.value("select fingerprint from pgonce.intent")];
          // As the Rust layer records a response that is too large.
          const answer = { http: 1, status: 404, unkept: true };
          const fail = "select pgonce.fail($1, $2, $3, 1, false, 'http_404', 'the handler refused', $4)";
          await db.run(fail, [...values, answer]);
          const { status, problem, headers } = await post("/orders", "{}", "second");
          assert.deepEqual([status, problem.code, problem.reason, problem.original_status], [422, "P4030", "http_404", 404]);
          assert.deepEqual([headers.get("idempotent-replayed"), service.calls], ["true", 1]);
        },
        { mode },
      );

      test(
        `a handler of a route that is ${mode} says in headers what becomes of its response`,
        async ({ db, service, post }) => {
          for (let turn = 0; turn < 2; turn++) {
            const { status, body, headers } = await post("/said");
            assert.deepEqual([status, body.toString(), headers.get("pgonce-disposition")], [200, "said", null]);
            assert.equal(headers.get("pgonce-keep-for"), null);
          }
          const kept = `${intents} where status = 'failed_final' and expires_at < now() + interval '2 hours'`;
          assert.deepEqual([service.calls, await db.value(kept)], [1, 1]);
        },
        { mode },
      );
    }

    test(
      "a leased route frees the key of a wrong request and holds that of an unknown end",
      async ({ db, service, post }) => {
        assert.equal((await post("/invalid", '{"qty": 0}', "i")).status, 400);
        assert.equal(await db.value(intents), 0);
        assert.equal((await post("/invalid", '{"qty": 1}', "i")).status, 400);
        assert.equal((await post("/unavailable", "{}", "u")).status, 503);
        assert.equal((await post("/unavailable", "{}", "u")).problem.code, "P4029");
        await db.run("select pgonce._move_clock(interval '1 day')");
        assert.equal((await post("/unavailable", "{}", "u")).problem.reason, "abandoned");
        assert.equal(service.calls, 3);
      },
      { mode: "leased" },
    );

    test(
      "large bodies and responses are refused",
      async ({ db, post }) => {
        assert.equal((await post("/orders", "x".repeat(11))).problem.code, "body_too_large");
        const { code, detail } = (await post("/large")).problem;
        assert.deepEqual([code, detail], ["response_too_large", "nothing happened; the response is too large to be kept"]);
        assert.equal(await db.value(intents), 0);
      },
      { maxBody: 10, maxResponse: 100 },
    );

    test(
      "principals and tenants never meet",
      async ({ db, post }) => {
        assert.equal((await post("/orders")).problem.code, "principal_missing");
        const as = (user: string, tenant = ""): Promise<Reply> =>
          post("/orders", "{}", "k", { headers: { "x-user": user, "x-tenant": tenant } });
        for (const reply of [await as("ada"), await as("bob"), await as("ada", "acme")]) {
          assert.equal(reply.headers.get("idempotent-replayed"), null);
        }
        assert.equal((await as("bob")).headers.get("idempotent-replayed"), "true");
        assert.equal(await db.effects(), 3);
      },
      { principal: (request) => request.header("x-user"), tenant: (request) => request.header("x-tenant") ?? "" },
    );

    for (const nobody of [undefined, null, ""]) {
      test(
        `a principal that is ${JSON.stringify(nobody)} is nobody`,
        async ({ service, post }) => {
          const { status, problem } = await post("/orders");
          assert.deepEqual([status, problem.code, service.calls], [401, "principal_missing", 0]);
        },
        { principal: () => nobody },
      );
    }

    for (const none of [undefined, null]) {
      test(
        `a tenant that is ${none} is none`,
        async ({ service, post }) => {
          const { status, problem } = await post("/orders");
          assert.deepEqual([status, problem.code, service.calls], [400, "tenant_missing", 0]);
        },
        { tenant: () => none },
      );
    }

    for (const mode of ["atomic", "leased"] as const) {
      for (const by of ["handler", "policy"] as const) {
        const outcomes = (): never => undefined as never;
        test(
          `a disposition that there is not, by the ${by} of a route that is ${mode}, is 500 and not the response of the handler`,
          async ({ db, service, post }) => {
            service.own = async (attempt) => {
              if (mode === "atomic") await attempt.tx.conn.query(INSERT);
              if (by === "handler") attempt.disposition = "kept" as "keep";
              return { status: 201, body: "made" };
            };
            const { status, problem } = await post("/orders");
            assert.deepEqual([status, problem.code], [500, "internal"]);
            const left = mode === "atomic" ? 0 : 1;
            assert.deepEqual([await db.effects(), await db.value(`${intents} where status = 'processing'`)], [0, left]);
            assert.equal(await db.value(intents), left);
          },
          by === "policy" ? { mode, outcomes } : { mode },
        );
      }
    }

    test(
      "a replay is reauthorised",
      async ({ post }) => {
        assert.deepEqual([(await post("/orders")).status, (await post("/orders")).status], [201, 403]);
      },
      { reauthorise: () => ({ status: 403, headers: [], body: Buffer.alloc(0) }) },
    );

    test(
      "a leased route keeps the first result",
      async ({ service, post }) => {
        for (const [at, status] of [["/orders", 201], ["/error", 500], ["/crash", 500]] as const) {
          const [first, again] = [await post(at, "{}", at), await post(at, "{}", at)];
          assert.deepEqual([first.status, again.status, first.body], [status, status, again.body]);
        }
        assert.deepEqual([(await post("/forget", "{}", "f")).status, (await post("/forget", "{}", "f")).status], [200, 200]);
        assert.equal(service.calls, 5);
      },
      { mode: "leased" },
    );

    test(
      "abandoned work of a leased route is refused",
      async ({ db, service, post }) => {
        await post("/orders", "{}", "first");
        const fingerprint = await db.value("select fingerprint from pgonce.intent");
        const claim = "select pgonce.claim('orders.create', $1, $2, interval '1 minute')";
        await db.run(claim, [storedKey("second", "POST /orders", null), fingerprint]);
        await db.run("select pgonce._move_clock(interval '2 minutes')");
        for (let turn = 0; turn < 2; turn++) {
          const { status, problem } = await post("/orders", "{}", "second");
          assert.deepEqual([status, problem.reason], [422, "abandoned"]);
        }
        assert.equal(service.calls, 1);
      },
      { mode: "leased" },
    );

    test("a client that disconnects does not cancel the effect", async ({ db, service, post }) => {
      let goOn: () => void = quiet;
      service.goOn = new Promise((resolve) => (goOn = resolve));
      const leaving = new AbortController();
      const left = post("/slow", "{}", "k", { signal: leaving.signal });
      while (service.calls === 0) await new Promise((resolve) => setImmediate(resolve));
      leaving.abort();
      await assert.rejects(left);
      goOn();
      while ((await db.value(`${intents} where status = 'succeeded'`)) === 0);
      assert.equal(await db.effects(), 1);
    });
  });
}

describe("HTTP", () => {
  it("without its database a route is 503 and the handler does not run", async () => {
    const pool = new pg.Pool({ connectionString: "postgresql://postgres@127.0.0.1:1/none" });
    const policy: Policy = { scope: "s", principal: null, log: quiet };
    const handler = idempotentExpress(pool, policy, () => assert.fail("it must not run"));
    const server = await listening(createServer((req: IncomingMessage, res: ServerResponse) => handler(req, res)));
    const { port } = server.address() as AddressInfo;
    const response = await fetch(`http://127.0.0.1:${port}/`, { method: "POST", headers: { "idempotency-key": "k" } });
    assert.equal(response.status, 503);
    assert.match(response.headers.get("retry-after") ?? "", /^[123]$/);
    const { code, detail } = (await response.json()) as { code: string; detail: string };
    assert.equal(code, "08006");
    assert.equal(detail, "the database is unavailable and this attempt did nothing; send the same request with the same key again");
    await handler.drained();
    server.closeAllConnections();
    server.close();
  });

  it("a router that does not know the path leaves it to others, with nothing kept", () =>
    withDatabase(async (db) => {
      const pool = poolOf(db.url, 2);
      const router = express.Router().post("/known", async (req, res) => {
        await attemptOf<pg.PoolClient>(req).tx.conn.query(INSERT);
        res.json({ ok: true });
      });
      const app = express()
        .use("/api", idempotentExpress(pool, { scope: "s", principal: null }, router))
        .use((_req, res) => void res.status(404).send("nobody"));
      const server = await listening(createServer(app));
      const { port } = server.address() as AddressInfo;
      const send = async (at: string): Promise<string> => {
        const headers = { "idempotency-key": "k" };
        const response = await fetch(`http://127.0.0.1:${port}${at}`, { method: "POST", headers });
        return `${response.status} ${await response.text()}`;
      };
      assert.deepEqual([await send("/api/other"), await send("/api/known"), await send("/api/known")], [
        "404 nobody",
        '200 {"ok":true}',
        '200 {"ok":true}',
      ]);
      assert.equal(await db.effects(), 1);
      server.closeAllConnections();
      server.close();
      await pool.end();
    }));

  describe("a handler of a method that is not protected", { concurrency: 4 }, () => {
    const own = new Error("own");
    const logged: unknown[] = [];
    const policy: Policy = { scope: "s", principal: null, log: (_, error) => void logged.push(error) };
    const handlers: Record<string, (req: IncomingMessage, res: ServerResponse) => Promise<never>> = {
      "before its response": (_, res) => {
        res.setHeader("content-length", 100);
        return Promise.reject(own);
      },
      "with nothing": () => Promise.reject(undefined as unknown as Error),
      "in the middle of it": (_, res) => {
        res.write("begun");
        return new Promise((_resolve, reject) => setImmediate(reject, own));
      },
    };
    const get = async (handler: (req: IncomingMessage, res: ServerResponse) => void): Promise<string> => {
      const server = await listening(createServer(handler));
      const { port } = server.address() as AddressInfo;
      try {
        const response = await fetch(`http://127.0.0.1:${port}/`);
        return `${response.status} ${await response.text()}`;
      } catch (error) {
        return (error as Error).name;
      } finally {
        server.closeAllConnections();
        server.close();
      }
    };

    for (const [when, handler] of Object.entries(handlers)) {
      const broken = when === "in the middle of it" ? "TypeError" : undefined;
      it(`may be rejected ${when}, over node:http`, async () => {
        const wrapped = idempotentExpress(new pg.Pool(), policy, handler);
        assert.equal(await get((req, res) => wrapped(req, res)), broken ?? "500 ");
        assert.ok(when === "with nothing" || logged.includes(own));
      });

      it(`may be rejected ${when}, over express`, async () => {
        const app = express().use(idempotentExpress(new pg.Pool(), policy, handler));
        app.use((_error: unknown, _req: express.Request, res: express.Response, _next: express.NextFunction) => {
          if (res.headersSent) return void res.destroy();
          res.removeHeader("content-length");
          res.status(500).send("by express");
        });
        assert.equal(await get(app), broken ?? "500 by express");
      });
    }

    it("may throw, which goes to who called it", () => {
      const handler = (): never => {
        throw own;
      };
      const wrapped = idempotentExpress(new pg.Pool(), policy, handler);
      const req = { method: "GET", url: "/", rawHeaders: [] } as unknown as IncomingMessage;
      assert.throws(() => wrapped(req, {} as ServerResponse), own);
    });
  });

  /** A server, a way to post to it, and the number of effects that may be made. */
  const withServer = (
    make: (pool: pg.Pool) => Promise<Server>,
    test: (post: (at: string, key: string | null, body?: string | ReadableStream, kind?: string) => Promise<string>, db: Database) => Promise<void>,
  ): Promise<void> =>
    withDatabase(async (db) => {
      const pool = poolOf(db.url, 2);
      const server = await make(pool);
      const { port } = server.address() as AddressInfo;
      try {
        await test(async (at, key, body = "{}", kind = "application/json") => {
          const headers: Record<string, string> = { ...(key === null ? {} : { "idempotency-key": key }), "content-type": kind };
          // As node:http has it: only a stream is sent in chunks.
          const init: RequestInit & { duplex?: "half" } = typeof body === "string" ? { body } : { body, duplex: "half" };
          const response = await fetch(`http://127.0.0.1:${port}${at}`, { ...init, method: "POST", headers });
          return `${response.status} ${response.headers.get("content-type")} ${await response.text()}`;
        }, db);
      } finally {
        server.closeAllConnections();
        server.close();
        await pool.end();
      }
    });
  const POLICY: Policy = { scope: "s", principal: null, log: quiet };

  it("a stream into the response of Express ends, and who waits for the response itself waits for the one that is sent", () => {
    const finished: unknown[] = [];
    const count = "select count(*) from pgonce.intent";
    let look: () => Promise<unknown>;
    const make = (pool: pg.Pool): Promise<Server> => {
      const app = express();
      app.use((_req, res, next) => {
        res.on("finish", () => finished.push(look()));
        next();
      });
      const handler = idempotentExpress(pool, POLICY, async (req: express.Request, res: express.Response) => {
        await attemptOf<pg.PoolClient>(req).tx.conn.query(INSERT);
        res.status(201).type("text/plain");
        await pipeline(Readable.from(["a", "b"]), res);
        res.setHeader("x-late", "1");
      });
      return listening(createServer(app.use(handler)));
    };
    return withServer(make, async (post, db) => {
      look = () => db.value(count);
      for (const sent of [[1], [1, 1]]) {
        assert.equal(await post("/", "k"), "201 text/plain; charset=utf-8 ab");
        // The client may be faster than the event.
        while (finished.length < sent.length) await new Promise((resolve) => setImmediate(resolve));
        assert.deepEqual(await Promise.all(finished), sent);
      }
      assert.equal(await db.effects(), 1);
    });
  }, 30_000);

  const replies: Record<string, [(reply: FastifyReply) => unknown, string]> = {
    "that is sent later, and returned": [
      (reply) => {
        setImmediate(() => void reply.code(201).send({ ok: true }));
        return reply;
      },
      '201 application/json; charset=utf-8 {"ok":true}',
    ],
    "that is sent later, and returned by a promise": [
      async (reply) => {
        setImmediate(() => void reply.code(201).send({ ok: true }));
        return reply;
      },
      '201 application/json; charset=utf-8 {"ok":true}',
    ],
    "that is a Response": [
      (reply) => reply.send(new Response("made", { status: 201, headers: { "content-type": "text/x-own" } })),
      "201 text/x-own made",
    ],
    "that is a Response without a body": [async () => new Response(null, { status: 201 }), "201 null "],
    "that is a stream of the web": [
      async (reply) => {
        reply.code(201).type("text/x-own");
        return new Blob(["str", "eam"]).stream();
      },
      "201 text/x-own stream",
    ],
    "that is an array of numbers": [(reply) => reply.type("text/x-own").send(new Uint16Array([0x4241])), "200 text/x-own AB"],
  };
  for (const [name, [answer, expected]] of Object.entries(replies)) {
    it(`Fastify may answer with a reply ${name}`, () =>
      withServer(
        async (pool) => {
          const app = fastify({ forceCloseConnections: true });
          app.post("/", idempotentFastify(pool, POLICY, async (request: FastifyRequest, reply: FastifyReply) => {
            await attemptOf<pg.PoolClient>(request).tx.conn.query(INSERT);
            return answer(reply);
          }));
          // The same by a handler that is not asynchronous itself.
          app.post("/plain", idempotentFastify(pool, POLICY, (_request: FastifyRequest, reply: FastifyReply) => answer(reply)));
          await app.listen({ port: 0, host: "127.0.0.1" });
          return app.server;
        },
        async (post, db) => {
          for (let turn = 0; turn < 2; turn++) {
            assert.deepEqual([await post("/", "k"), await post("/plain", "k")], [expected, expected]);
          }
          assert.equal(await db.effects(), 1);
        },
      ), 30_000);
  }

  const parsers: Record<string, (pool: pg.Pool) => Promise<Server>> = {
    async express(pool) {
      const handler = idempotentExpress(pool, POLICY, (_req: express.Request, res: express.Response) => void res.send("made"));
      return listening(createServer(express().use(express.json()).use(handler)));
    },
    async fastify(pool) {
      const app = fastify({ forceCloseConnections: true });
      app.post("/", idempotentFastify(pool, POLICY, async () => "made"));
      await app.listen({ port: 0, host: "127.0.0.1" });
      return app.server;
    },
  };
  for (const [name, make] of Object.entries(parsers)) {
    it(`a body that was parsed before may hold every text of JSON (${name})`, () =>
      withServer(make, async (post) => {
        for (const text of ["\\u0000", "\\ud800"]) {
          for (let turn = 0; turn < 2; turn++) assert.match(await post("/", text.slice(1), `{"a":"${text}"}`), /^200 .* made$/);
          assert.match(await post("/", text.slice(1), '{"a":"other"}'), /^422 /);
        }
      }));
  }

  it("a body that a parser left unread counts, over Express", () =>
    withServer(
      (pool) => {
        const handler = idempotentExpress(pool, POLICY, (req: express.Request, res: express.Response) => void res.send(String(req.body)));
        const leaves = (req: express.Request, _res: express.Response, next: () => void): void => {
          req.body = {};
          next();
        };
        return listening(createServer(express().use(leaves).use(handler)));
      },
      async (post) => {
        for (let turn = 0; turn < 2; turn++) assert.match(await post("/", "k", "one"), /^200 .* one$/);
        assert.match(await post("/", "k", "two"), /^422 /);
      },
    ));

  describe("a body that was read in front of a route", { concurrency: 4 }, () => {
    const MULTIPART = "multipart/form-data; boundary=b";
    const BYTES = "application/octet-stream";
    const form = (file: string): string =>
      `--b\r\ncontent-disposition: form-data; name="title"\r\n\r\nx\r\n--b\r\n` +
      `content-disposition: form-data; name="file"; filename="f"\r\ncontent-type: ${BYTES}\r\n\r\n${file}\r\n--b--\r\n`;
    const inChunks = (text: string): ReadableStream =>
      new ReadableStream({
        start(controller) {
          for (const part of [text.slice(0, 1), text.slice(1)]) controller.enqueue(new TextEncoder().encode(part));
          controller.close();
        },
      });
    const isChunked = (name: string): boolean => name.endsWith("in chunks");

    type Front = (req: express.Request, next: () => void) => void;
    const drain = async (req: IncomingMessage): Promise<Buffer[]> => {
      const parts: Buffer[] = [];
      for await (const part of req) parts.push(part as Buffer);
      return parts;
    };
    const behindExpress = (front: Front): Make => async (pool, policy, called) => {
      const handler = idempotentExpress(pool, policy, (_req: express.Request, res: express.Response) => {
        called();
        res.send("made");
      });
      const app = express().use((req, _res, next) => front(req, next)).use(handler);
      return listening(createServer(app));
    };
    const behindFastify = (front: (app: FastifyInstance) => unknown): Make => async (pool, policy, called) => {
      const app = fastify({ forceCloseConnections: true });
      front(app);
      app.post("/", idempotentFastify(pool, policy, async () => {
        called();
        return "made";
      }));
      await app.listen({ port: 0, host: "127.0.0.1" });
      return app.server;
    };
    const behindHono = (front: (c: Context) => Promise<unknown>): Make => async (pool, policy, called) => {
      const app = new Hono().use(async (c, next) => {
        await front(c);
        await next();
      });
      app.post("/", idempotentHono(pool, policy, (c: Context) => {
        called();
        return c.text("made");
      }));
      return new Promise((resolve) => {
        const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, () => resolve(server as Server));
      });
    };
    const behindNode: Make = async (pool, policy, called) => {
      const app = new Hono().post("/", idempotentHono(pool, policy, (c: Context) => {
        called();
        return c.text("made");
      }));
      const listener = getRequestListener(app.fetch);
      return listening(createServer((req, res) => void drain(req).then(() => listener(req, res))));
    };
    type Make = (pool: pg.Pool, policy: Policy, called: () => void) => Promise<Server>;

    const leaves = (body: unknown): Front => (req, next) => void drain(req).then(() => {
      req.body = body;
      next();
    });
    const begins: Front = (req, next) => void req.once("data", () => next());
    const lost: Record<string, [Make, kind: string]> = {
      "by a middleware of Express that leaves {} of a form": [behindExpress(leaves({})), MULTIPART],
      "by a middleware of Express that leaves the fields of a form": [behindExpress(leaves({ title: "x" })), MULTIPART],
      "by a middleware of Express that leaves {} of a file": [behindExpress(leaves({})), BYTES],
      "by a middleware of Express that leaves nothing": [behindExpress(leaves(undefined)), BYTES],
      "by a middleware of Express that leaves nothing of what came in chunks": [behindExpress(leaves(undefined)), BYTES],
      "by a middleware of Express that leaves a FormData": [behindExpress(leaves(new FormData())), "application/x-www-form-urlencoded"],
      "by a middleware of Express that leaves what has no JSON form": [behindExpress(leaves({ file: Buffer.from("x") })), BYTES],
      "by a middleware of Express in part": [behindExpress(begins), BYTES],
      "by a middleware of Express in part, which came in chunks": [behindExpress(begins), BYTES],
      "by a parser of Fastify that leaves nothing": [
        behindFastify((app) => app.addContentTypeParser("multipart/form-data", (_request, _payload, done) => done(null))),
        MULTIPART,
      ],
      "by a parser of Fastify that leaves nothing of what came in chunks": [
        behindFastify((app) => app.addContentTypeParser("multipart/form-data", (_request, _payload, done) => done(null))),
        MULTIPART,
      ],
      "by a parser of Fastify that leaves the fields of a form": [
        behindFastify((app) => app.addContentTypeParser("multipart/form-data", (_request, payload, done) => {
          void drain(payload).then(() => done(null, { title: "x" }));
        })),
        MULTIPART,
      ],
      "by a parser of Fastify that leaves a stream": [
        behindFastify((app) => app.addContentTypeParser("*", (_request, payload, done) => done(null, payload))),
        BYTES,
      ],
      "by a middleware of Hono, as a FormData": [behindHono((c) => c.req.formData()), MULTIPART],
      "by a middleware of Hono, from the raw request": [behindHono((c) => c.req.raw.arrayBuffer()), BYTES],
      "by the server of Hono": [behindNode, BYTES],
      "by the server of Hono, in chunks": [behindNode, BYTES],
    };
    for (const [name, [make, kind]] of Object.entries(lost)) {
      it(`${name} is refused, and gets no response of another one`, () => {
        let calls = 0;
        const logged: string[] = [];
        const policy: Policy = { ...POLICY, log: (message) => void logged.push(message) };
        return withServer(
          (pool) => make(pool, policy, () => (calls += 1)),
          async (post, db) => {
            for (const file of ["one", "two"]) {
              const text = kind === MULTIPART ? form(file) : file;
              assert.match(await post("/", "k", isChunked(name) ? inChunks(text) : text, kind), /^500 application\/problem\+json .*"internal".* nothing was done/);
            }
            assert.deepEqual([calls, await db.value("select count(*) from pgonce.intent")], [0, 0]);
            assert.equal(logged.length, 2);
            for (const message of logged) assert.match(message, /keep the bytes in rawBody/);
          },
        );
      });
    }

    it("is refused over HTTP/2, too, where no header says that there is one", () =>
      withDatabase(async (db) => {
        const pool = poolOf(db.url, 2);
        const app = fastify({ http2: true });
        app.addContentTypeParser("multipart/form-data", (_request, _payload, done) => done(null));
        app.post("/", idempotentFastify(pool, POLICY, async () => "made"));
        await app.listen({ port: 0, host: "127.0.0.1" });
        const session = connect(`http://127.0.0.1:${(app.server.address() as AddressInfo).port}`);
        const post = async (key: string, file: string): Promise<unknown> => {
          const headers = { ":method": "POST", ":path": "/", "idempotency-key": key, "content-type": MULTIPART };
          const sent = session.request(headers, { endStream: file === "" });
          const replied = once(sent, "response");
          if (file !== "") sent.end(form(file));
          const [reply] = (await replied) as [{ ":status"?: number }];
          sent.close();
          return reply[":status"];
        };
        assert.deepEqual([await post("k", "one"), await post("k", "two")], [500, 500]);
        assert.deepEqual([await post("none", ""), await post("none", "")], [200, 200]);
        session.close();
        await app.close();
        await pool.end();
      }));

    it("is the handler's own affair where there is no key", () => {
      let calls = 0;
      const make = lost["by a parser of Fastify that leaves nothing"]![0];
      return withServer(
        (pool) => make(pool, { ...POLICY, keyRequired: false }, () => (calls += 1)),
        async (post) => {
          for (const file of ["one", "two"]) assert.match(await post("/", null, form(file), MULTIPART), /^200 .* made$/);
          assert.equal(calls, 2);
          assert.match(await post("/", "k", form("one"), MULTIPART), /^500 /);
        },
      );
    });

    const kept: Record<string, [Make, kind: string]> = {
      "by a middleware of Express in rawBody": [
        behindExpress((req, next) => void drain(req).then((parts) => {
          Object.assign(req, { rawBody: Buffer.concat(parts), body: {} });
          next();
        })),
        MULTIPART,
      ],
      "by a parser of Express 4 as a document": [
        behindExpress((req, next) => void drain(req).then((parts) => {
          Object.assign(req, { _body: true, body: JSON.parse(Buffer.concat(parts).toString()) as unknown });
          next();
        })),
        "text/plain",
      ],
      "by a parser of Fastify as a buffer": [
        behindFastify((app) => app.addContentTypeParser("multipart/form-data", { parseAs: "buffer" }, (_request, body, done) => done(null, body))),
        MULTIPART,
      ],
      "by a parser of Fastify in rawBody": [
        behindFastify((app) => app.addContentTypeParser("multipart/form-data", (request, payload, done) => {
          void drain(payload).then((parts) => {
            Object.assign(request, { rawBody: Buffer.concat(parts) });
            done(null);
          });
        })),
        MULTIPART,
      ],
      "by a middleware of Hono": [behindHono((c) => c.req.parseBody()), MULTIPART],
    };
    for (const [name, [make, kind]] of Object.entries(kept)) {
      it(`and is kept ${name} counts`, () => {
        let calls = 0;
        return withServer(
          (pool) => make(pool, POLICY, () => (calls += 1)),
          async (post) => {
            const [one, two] = kind === MULTIPART ? [form("one"), form("two")] : ["{}", '{"two": 2}'];
            for (let turn = 0; turn < 2; turn++) assert.match(await post("/", "k", one, kind), /^200 .* made$/);
            assert.match(await post("/", "k", two, kind), /^422 /);
            assert.equal(calls, 1);
          },
        );
      });
    }
  });

  it("what is remembered of the retentions has a bound", () =>
    withDatabase(async (db) => {
      type Exchanges = typeof import("../dist/http/exchange.js");
      type Intents = typeof import("../dist/intent.js");
      // eslint-disable-next-line @typescript-eslint/no-require-imports
      const { Route } = require(path.join(PACKAGE, "dist/http/exchange.js")) as Exchanges;
      // eslint-disable-next-line @typescript-eslint/no-require-imports
      const { makeIntent } = require(path.join(PACKAGE, "dist/intent.js")) as Intents;
      const pool = poolOf(db.url, 1);
      const route = new Route(pool, POLICY);
      for (let tenant = 0; tenant < 1000; tenant++) route["retentions"].set(String(tenant), { until: 0, ms: 1 });
      assert.ok(((await route["retentionOf"](makeIntent("s", "k", {}, { tenant: "acme" }))) ?? 0) > 0);
      assert.deepEqual([...route["retentions"].keys()], ["acme"]);
      await pool.end();
    }));

  it("a policy is checked, and a member that is undefined is one that is left out", () => {
    type Policies = typeof import("../dist/http/policy.js");
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { complete } = require(path.join(PACKAGE, "dist/http/policy.js")) as Policies;
    const own = { scope: "s", principal: null };
    const { log: _, ...usual } = complete(own);
    const open = Object.fromEntries(Object.keys(usual).filter((name) => !(name in own)).map((name) => [name, undefined]));
    const { log: __, ...found } = complete({ ...own, ...open, log: undefined } as Policy);
    assert.deepEqual(found, usual);
    for (const [name, value] of [["mode", "Leased"], ["stale", "take-over"], ["outcomes", "frozen"], ["stale", null]]) {
      assert.throws(() => complete({ ...own, [name as string]: value } as Policy), Invalid, name as string);
    }
    const who = { plainKeys: true, principal: () => "ada" };
    assert.throws(() => complete({ ...own, ...who }), { name: "Invalid", reason: /two callers' keys would meet/ });
    assert.throws(() => idempotentExpress(new pg.Pool(), { ...own, ...who }, quiet), Invalid);
    assert.equal(complete({ ...own, plainKeys: true, tenant: () => "ada" }).plainKeys, true);
    const outcomes = (): "keep" => "keep";
    assert.equal(complete({ ...own, outcomes }).outcomes, outcomes);
  });

  it("a status means what it means to the Rust layer, and so does a status token", () => {
    type Stored = typeof import("../dist/http/stored.js");
    type Status = typeof import("../dist/http/status.js");
    type Policies = typeof import("../dist/http/policy.js");
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { dispositionOf } = require(path.join(PACKAGE, "dist/http/stored.js")) as Stored;
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { readToken, tokenOf } = require(path.join(PACKAGE, "dist/http/status.js")) as Status;
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { complete } = require(path.join(PACKAGE, "dist/http/policy.js")) as Policies;
    type Row = { statuses: number[] } & Record<"atomic" | "leased", Record<"freeze" | "final" | "finish", string>>;
    const file = path.join(REPOSITORY, "conformance/vectors/dispositions.json");
    for (const row of JSON.parse(readFileSync(file, "utf8")) as Row[]) {
      for (const mode of ["atomic", "leased"] as const) {
        for (const outcomes of ["freeze", "final", "finish"] as const) {
          const policy = complete({ scope: "s", principal: null, mode, outcomes });
          for (const status of row.statuses) {
            const response = { status, headers: [], body: Buffer.alloc(0) };
            assert.equal(dispositionOf(response, policy, undefined, true), row[mode][outcomes], `${mode} ${outcomes} ${status}`);
          }
        }
      }
    }
    const print = Buffer.from(Array.from({ length: 32 }, (_, at) => at));
    const token = tokenOf("k1", "POST /orders", print);
    assert.equal(token, "WyJrMSIsIlBPU1QgL29yZGVycyIsIkFBRUNBd1FGQmdjSUNRb0xEQTBPRHhBUkVoTVVGUllYR0JrYUd4d2RIaDgiXQ");
    assert.deepEqual(readToken(token), ["k1", "POST /orders", print]);
    for (const bad of ["", "nonsense", "W10", "WzEsMl0", "e30"]) assert.equal(readToken(bad), undefined);
  });

  it("a body that is made to take long does not", async () => {
    for (const text of [`'"' + '\\\\"'.repeat(500_000)`, `"9".repeat(1_000_000)`, `"1e" + "9".repeat(1_000_000)`]) {
      // Hours, in a process that can be ended, where its time grows with the square of its length.
      const code =
        `const { exactJson } = require(${JSON.stringify(path.join(PACKAGE, "dist/http/request.js"))});` +
        `try { exactJson(Buffer.from(${text})); } catch { console.log("refused"); }`;
      const { stdout } = await promisify(execFile)(process.execPath, ["-e", code], { timeout: LIMIT_MS / 4 });
      assert.equal(stdout, "refused\n");
    }
  });

  it("a body of a length that nobody says is read up to the limit, over Hono", () =>
    withClient(FRAMEWORKS.hono!, { maxBody: 10 }, async ({ service, port, post }) => {
      const headers = { "idempotency-key": "k" };
      const sent = request({ port, method: "POST", path: "/orders", headers });
      sent.on("error", quiet);
      sent.write("x".repeat(11));
      // It is answered before its end, which never comes.
      const [reply] = (await once(sent, "response")) as [IncomingMessage];
      assert.deepEqual([reply.statusCode, service.calls], [413, 0]);
      sent.destroy();
      const body = new ReadableStream({
        start(controller) {
          for (const part of ["1", "2"]) controller.enqueue(new TextEncoder().encode(part));
          controller.close();
        },
      });
      service.own = () => ({ status: 201, body: "made" });
      assert.equal((await post("/orders", "", "k", { body, duplex: "half" })).status, 201);
      assert.equal((await post("/orders", "12")).headers.get("idempotent-replayed"), "true");
    }));

  describe("a response without an end", { concurrency: 4 }, () => {
    const STREAM = "text/event-stream";
    const BYTES = "application/octet-stream";
    const PART = "data: 1\n\n";
    const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

    /** Whether it is over, and what is to be awaited, or to be stopped, after the test. */
    class Sender {
      ended = false;
      sent = 0;
      max = Infinity;
      stop: () => void = quiet;

      async *parts(): AsyncGenerator<string> {
        try {
          for (; this.sent < this.max; await turn()) {
            this.sent += 1;
            yield PART;
          }
        } finally {
          this.ended = true;
        }
      }

      web(): ReadableStream<Uint8Array> {
        const parts = this.parts();
        return new ReadableStream({
          pull: async (controller) => {
            const { value } = await parts.next();
            if (value === undefined) controller.close();
            else controller.enqueue(new TextEncoder().encode(value));
          },
          cancel: () => {
            this.ended = true;
            // Nobody waits for it.
            return new Promise(quiet);
          },
        });
      }

      /** A handler that learns by an event when to stop. */
      every(res: { write(part: string): unknown }, ending: { on(event: "close", listener: () => void): unknown }): void {
        const timer = setInterval(() => {
          this.sent += 1;
          res.write(PART);
          if (this.sent === this.max) (res as express.Response).end();
        });
        this.stop = () => clearInterval(timer);
        ending.on("close", () => {
          this.ended = true;
          this.stop();
        });
      }
    }

    type Make = (pool: pg.Pool, policy: Policy, sender: Sender, kind: string) => Promise<Server>;
    const insert = (request: object): Promise<unknown> => attemptOf<pg.PoolClient>(request).tx.conn.query(INSERT);
    const byExpress = (send: (sender: Sender, req: express.Request, res: express.Response) => unknown): Make =>
      (pool, policy, sender, kind) => {
        const handler = idempotentExpress(pool, policy, async (req: express.Request, res: express.Response) => {
          await insert(req);
          res.writeHead(200, { "content-type": kind });
          await send(sender, req, res);
        });
        return listening(createServer(express().use(handler)));
      };
    const byFastify = (send: (sender: Sender, reply: FastifyReply, kind: string) => unknown): Make => async (pool, policy, sender, kind) => {
      const app = fastify({ forceCloseConnections: true });
      app.post("/", idempotentFastify(pool, policy, async (request: FastifyRequest, reply: FastifyReply) => {
        await insert(request);
        return send(sender, reply.type(kind), kind);
      }));
      await app.listen({ port: 0, host: "127.0.0.1" });
      return app.server;
    };
    const byHono = (send: (sender: Sender, c: Context, kind: string) => Response): Make => (pool, policy, sender, kind) => {
      const app = new Hono().post("/", idempotentHono(pool, policy, async (c: Context) => {
        await insert(c);
        return send(sender, c, kind);
      }));
      return new Promise((resolve) => {
        const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, () => resolve(server as Server));
      });
    };

    const senders: Record<string, Make> = {
      "by Express, piped": byExpress((sender, _req, res) => pipeline(Readable.from(sender.parts()), res)),
      "by Express, written until the response closes": byExpress((sender, _req, res) => sender.every(res, res)),
      "by Express, written until the request closes": byExpress((sender, req, res) => sender.every(res, req)),
      "by Express, by a handler that waits for ever": byExpress((sender, _req, res) => {
        sender.every(res, res);
        return new Promise(quiet);
      }),
      "by Fastify, as a stream": byFastify((sender) => Readable.from(sender.parts())),
      "by Fastify, sent": byFastify((sender, reply) => reply.send(Readable.from(sender.parts()))),
      "by Fastify, as a stream of the web": byFastify((sender) => sender.web()),
      "by Fastify, as a Response": byFastify((sender, _reply, kind) => new Response(sender.web(), { headers: { "content-type": kind } })),
      "by Fastify, by a handler that waits for ever": byFastify((sender, reply) => {
        const stream = new PassThrough();
        sender.every(stream, stream);
        void reply.send(stream);
        return new Promise(quiet);
      }),
      "by Hono": byHono((sender, _c, kind) => new Response(sender.web(), { headers: { "content-type": kind } })),
      "by Hono, as events": byHono((sender, c, kind) => {
        const response = streamSSE(c, async (stream) => {
          stream.onAbort(() => void (sender.ended = true));
          for (; !stream.aborted && sender.sent < sender.max; await turn()) {
            sender.sent += 1;
            await stream.write(PART);
          }
        });
        response.headers.set("content-type", kind);
        return response;
      }),
    };
    type Problem = { code: string; detail: string };
    const withSender = (
      make: Make,
      kind: string,
      max: number,
      test: (db: Database, pool: pg.Pool, sender: Sender, post: () => Promise<Problem>) => Promise<void>,
    ): Promise<void> => {
      const sender = new Sender();
      sender.max = max;
      let used: pg.Pool | undefined;
      return withServer(
        (pool) => {
          used = pool;
          return make(pool, { ...POLICY, maxResponse: 100 }, sender, kind);
        },
        async (post, db) => {
          try {
            await test(db, used as pg.Pool, sender, async () => {
              const [status, type, ...rest] = (await post("/", "k")).split(" ");
              assert.deepEqual([status, type], ["500", "application/problem+json"]);
              return JSON.parse(rest.join(" ")) as Problem;
            });
          } finally {
            sender.stop();
          }
        },
      );
    };

    for (const [name, make] of Object.entries(senders)) {
      for (const kind of [STREAM, BYTES]) {
        it(`${name} (${kind}), is refused and holds no connection`, () =>
          withSender(make, kind, Infinity, async (db, pool, sender, post) => {
            for (let time = 0; time < 2; time++) {
              sender.ended = false;
              const { code, detail } = await post();
              assert.deepEqual([code, detail], ["response_too_large", "nothing happened; the response is too large to be kept"]);
              // The handler learns it. A generator that was not begun has nothing to end.
              while (!sender.ended && sender.sent > 0) await turn();
              assert.equal(pool.idleCount, pool.totalCount);
            }
            assert.deepEqual([await db.effects(), await db.value("select count(*) from pgonce.intent")], [0, 0]);
          }), 30_000);
      }

      it(`${name}, is refused where it is a stream of events, however small`, () =>
        withSender(make, `${STREAM}; charset=utf-8`, 1, async (db, _pool, _sender, post) => {
          for (let time = 0; time < 2; time++) assert.equal((await post()).code, "response_too_large");
          assert.equal(await db.value("select count(*) from pgonce.intent"), 0);
        }), 30_000);
    }

    const destroyed: Record<string, (res: express.Response) => unknown> = {
      "by itself": (res) => void res.destroy(),
      "by the error of a stream": (res) => {
        const breaks = new Transform({ transform: (_chunk, _encoding, done) => done(new Error("broken")) });
        return pipeline(Readable.from([PART]), breaks, res);
      },
    };
    for (const [name, destroy] of Object.entries(destroyed)) {
      it(`that is destroyed ${name}, over Express, is that of a handler that failed`, () =>
        withSender(byExpress((_sender, _req, res) => destroy(res)), BYTES, 0, async (db, pool, _sender, post) => {
          assert.equal((await post()).code, "handler_failed");
          assert.equal(pool.idleCount, pool.totalCount);
          assert.equal(await db.effects(), 0);
        }), 30_000);
    }

    it("is dropped to its last byte where the handler of Express goes on with it", () => {
      let timer: ReturnType<typeof setInterval> | undefined;
      let late = 0;
      const goesOn = byExpress((sender, _req, res) => {
        timer ??= setInterval(() => {
          if (sender.ended) late += 1;
          res.write(PART, () => undefined);
          res.end();
          res.destroy();
        });
      });
      return withSender(goesOn, STREAM, Infinity, async (_db, _pool, sender, post) => {
        await post();
        sender.ended = true;
        while (late < 10) await turn();
        clearInterval(timer);
        assert.equal((await post()).code, "response_too_large");
      });
    }, 30_000);
  });

  for (const [name, framework] of Object.entries(FRAMEWORKS)) {
    for (const outcomes of ["freeze", "final", "finish"] as const) {
      it(`a stream of events of a leased route is not one that broke off (${name}, ${outcomes})`, () =>
        withClient(framework, { mode: "leased", outcomes }, async ({ service, post }) => {
          service.own = () => ({ status: 200, headers: { "content-type": "Multipart/x-mixed-replace;boundary=b" }, body: "--b" });
          for (const replayed of [null, "true"]) {
            const { problem, headers } = await post("/orders");
            assert.deepEqual([problem.code, headers.get("idempotent-replayed")], ["response_too_large", replayed]);
            assert.match(String(problem.detail), /^it happened, but its answer is too large/);
          }
          assert.equal(service.calls, 1);
        }));
    }

    it(`a response as large as one may be is kept (${name})`, () =>
      withClient(framework, { maxResponse: 200 }, async ({ service, post }) => {
        for (let time = 0; time < 2; time++) assert.equal((await post("/large")).body.length, 200);
        assert.equal(service.calls, 1);
      }));
  }

  it("the headers that are replayed are those of the Rust layer", () => {
    type StoredModule = typeof import("../dist/http/stored.js");
    type Policies = typeof import("../dist/http/policy.js");
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { NEVER, USUAL, toStored } = require(path.join(PACKAGE, "dist/http/stored.js")) as StoredModule;
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { complete } = require(path.join(PACKAGE, "dist/http/policy.js")) as Policies;
    interface Headers {
      replayed: string[];
      never: string[];
      never_beginning_with: string[];
    }
    const file = path.join(REPOSITORY, "conformance/vectors/headers.json");
    const vectors = JSON.parse(readFileSync(file, "utf8")) as Headers;
    assert.deepEqual([[...USUAL], [...NEVER]], [vectors.replayed, vectors.never]);
    const never = [...vectors.never, ...vectors.never_beginning_with.map((beginning) => `${beginning}-reset`)];
    const headers = [...vectors.replayed, ...never, "x-own", "x-other"].map((name): [string, string] => [name, "1"]);
    // Those that never are, are not where a policy names them either.
    const policy = complete({ scope: "s", principal: null, replayHeaders: ["X-Own", ...never] });
    const stored = toStored({ status: 200, headers, body: Buffer.alloc(0) }, policy, undefined);
    assert.deepEqual(stored.headers?.map(([name]) => name), [...vectors.replayed, "x-own"]);
  });

  const fronts: Record<string, (pool: pg.Pool) => Promise<Server>> = {
    async express(pool) {
      const handler = idempotentExpress(pool, POLICY, (_req: express.Request, res: express.Response) => {
        res.set("x-frame-options", "DENY").vary("accept").type("text/plain").send("made");
      });
      const cors = (req: express.Request, res: express.Response, next: () => void): void => {
        res.set({ "access-control-allow-origin": req.get("origin"), vary: "origin" });
        next();
      };
      return listening(createServer(express().use(cors).use(handler)));
    },
    async fastify(pool) {
      const app = fastify({ forceCloseConnections: true });
      app.addHook("onRequest", async (request, reply) => {
        reply.headers({ "access-control-allow-origin": request.headers.origin, vary: "origin" });
      });
      app.post("/", idempotentFastify(pool, POLICY, async (_request: FastifyRequest, reply: FastifyReply) => {
        return reply.headers({ "x-frame-options": "DENY", vary: "origin, accept" }).type("text/plain").send("made");
      }));
      await app.listen({ port: 0, host: "127.0.0.1" });
      return app.server;
    },
  };
  for (const [name, make] of Object.entries(fronts)) {
    it(`a replay has the headers of its handler, and those that are set in front of it for its own request (${name})`, () =>
      withDatabase(async (db) => {
        const pool = poolOf(db.url, 2);
        const server = await make(pool);
        const { port } = server.address() as AddressInfo;
        for (const [origin, replayed] of [["https://a.example", null], ["https://b.example", "true"]] as const) {
          const headers = { "idempotency-key": "k", origin };
          const response = await fetch(`http://127.0.0.1:${port}/`, { method: "POST", headers });
          const found = ["idempotent-replayed", "access-control-allow-origin", "x-frame-options", "vary"].map((one) => response.headers.get(one));
          assert.deepEqual(found, [replayed, origin, "DENY", found[3]]);
          assert.match(found[3] ?? "", /origin, accept/i);
        }
        server.closeAllConnections();
        server.close();
        await pool.end();
      }));
  }

  it("keys and bodies have the forms of the Rust layer", () => {
    type Edge = typeof import("../dist/http/request.js");
    type Policies = typeof import("../dist/http/policy.js");
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { Refused, exactJson, readKey } = require(path.join(PACKAGE, "dist/http/request.js")) as Edge;
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { HttpRequest, complete } = require(path.join(PACKAGE, "dist/http/policy.js")) as Policies;
    const policy = complete({ scope: "s", principal: null });
    const key = (...values: string[]): string =>
      readKey(new HttpRequest("POST", "/", "", values.map((value) => ["idempotency-key", value]), Buffer.alloc(0)), policy);
    for (const form of ["abc-1", '"abc-1"', "  abc-1 ", '"abc-1";a=1']) assert.equal(key(form), "abc-1");
    assert.equal(key('"a \\"b\\" \\\\ ,c"'), 'a "b" \\ ,c');
    assert.equal(key("a:b;c=d/e"), "a:b;c=d/e");
    for (const bad of ['"abc', '"a" b', "a,b", "a b", 'abc"', "a\\b", '"a", "b"', "\u00e4", "k".repeat(256)]) {
      assert.throws(() => key(bad), Refused, bad);
    }
    assert.throws(() => key("a", "a"), Refused);
    assert.equal(storedKey("k1", "POST /orders", "ada"), "k1#fd61ec214f6d260dade5382c10dce71d");
    assert.equal(storedKey("k".repeat(255), "POST /a", null).length, 255);
    for (const text of ["9007199254740993", "[1234567890123456.78]", '{"a":1,"a":2}', "1e400", "{", "", "NaN"]) {
      assert.throws(() => exactJson(Buffer.from(text)), SyntaxError, text);
    }
    assert.throws(() => exactJson(Buffer.from([255])));
    const usual = '{"a":":1,\\"9007199254740993","b":[1.50,-2e3,0,100000000000000000000]}';
    assert.deepEqual(exactJson(Buffer.from(usual)), { a: ':1,"9007199254740993', b: [1.5, -2000, 0, 100000000000000000000n] });
  });
});
