/** The HTTP middleware, over Express, Fastify and Hono alike. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, request, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { describe } from "node:test";
import { promisify } from "node:util";
import express from "express";
import fastify, { type FastifyReply, type FastifyRequest } from "fastify";
import pg from "pg";
import { Conflict, DatabaseError, Invalid } from "pgonce";
import { attemptOf, idempotentExpress, idempotentFastify, storedKey, type Policy } from "pgonce/http";
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
    test: (post: (at: string, key: string, body?: string) => Promise<string>, db: Database) => Promise<void>,
  ): Promise<void> =>
    withDatabase(async (db) => {
      const pool = poolOf(db.url, 2);
      const server = await make(pool);
      const { port } = server.address() as AddressInfo;
      try {
        await test(async (at, key, body = "{}") => {
          const headers = { "idempotency-key": key, "content-type": "application/json" };
          const response = await fetch(`http://127.0.0.1:${port}${at}`, { method: "POST", headers, body });
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
