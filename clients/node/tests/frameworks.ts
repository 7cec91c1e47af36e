/** One service behind Express, Fastify and Hono, and a client of it. */

import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { serve } from "@hono/node-server";
import express from "express";
import fastify, { type FastifyReply, type FastifyRequest } from "fastify";
import { Hono, type Context } from "hono";
import { HTTPException } from "hono/http-exception";
import type pg from "pg";
import { PermanentFailure } from "pgonce";
import { attemptOf, idempotentExpress, idempotentFastify, idempotentHono, type Attempt, type Policy } from "pgonce/http";
import { poolOf, withDatabase } from "./apis.js";
import type { Database } from "./server.js";

const INSERT = "insert into effect (note) values ('x')";
export const quiet = (): void => undefined;

/** What a handler answers. */
export interface Answer {
  status: number;
  headers?: Record<string, string>;
  body: string | Buffer;
}

/** One handler for all frameworks: what it does is in the path. */
export class Service {
  calls = 0;
  /** When set, `/slow` waits for it. */
  goOn: Promise<void> | undefined;
  /** What a test answers, or throws, instead. */
  own: ((attempt: Attempt<pg.PoolClient>) => Promise<Answer> | Answer) | undefined;
  /** What is thrown after the response was sent, or in the middle of it. */
  breaksOff: Error | undefined;

  async handle(at: string, attempt: Attempt<pg.PoolClient>, leased: boolean, body: string): Promise<Answer> {
    this.calls += 1;
    if (this.own !== undefined) return this.own(attempt);
    if (at === "/invalid") return { status: 400, headers: { "content-type": "text/plain" }, body: "qty must be at least 1" };
    if (at === "/crash") throw new Error("the handler's own");
    if (at === "/large") return { status: 200, body: "x".repeat(200) };
    if (at === "/unavailable") return { status: 503, body: "from a proxy" };
    if (at === "/said") return { status: 200, headers: { "pgonce-disposition": "Refuse", "pgonce-keep-for": "3600" }, body: "said" };
    if (at === "/forget") {
      attempt.disposition = "forget";
      return { status: 200, body: "forgotten" };
    }
    if (!leased) await attempt.tx.conn.query(INSERT);
    if (at === "/again" && this.calls === 1) {
      await attempt.tx.conn.query("do $$ begin raise exception 'x' using errcode = '40001'; end $$");
    }
    if (at === "/slow") await this.goOn;
    if (at === "/refuse") return { status: body.includes("busy") ? 409 : 404, body: "no such item" };
    if (at === "/error") return { status: 500, body: "broken" };
    if (at === "/declined") throw new PermanentFailure("card_declined", "the bank said no");
    if (at === "/thrown") throw Object.assign(new HTTPException(404, { message: "thrown" }), { statusCode: 404 });
    const headers = { "content-type": "application/octet-stream", "set-cookie": "a=b", location: "/orders/1" };
    return { status: 201, headers, body: Buffer.concat([Buffer.from([0, 255]), Buffer.from(String(this.calls))]) };
  }
}

export type Framework = (pool: pg.Pool, policy: Policy, service: Service) => Promise<HttpServer>;

export const FRAMEWORKS: Record<string, Framework> = {
  async express(pool, policy, service) {
    const app = express();
    const leased = policy.mode === "leased";
    app.use(
      idempotentExpress(pool, policy, async (req: express.Request, res: express.Response) => {
        const attempt = req.method === "PUT" ? undefined : attemptOf(req);
        if (attempt === undefined) return void res.status(201).end();
        const { status, headers = {}, body } = await service.handle(req.path, attempt, leased, JSON.stringify(req.body));
        res.status(status).set(headers).send(body);
        if (service.breaksOff !== undefined) throw service.breaksOff;
      }),
    );
    return listening(createServer(app));
  },
  async fastify(pool, policy, service) {
    const app = fastify({ forceCloseConnections: true });
    app.removeAllContentTypeParsers();
    app.addContentTypeParser("*", { parseAs: "buffer" }, (_request, body, done) => done(null, body));
    const leased = policy.mode === "leased";
    app.all(
      "/*",
      idempotentFastify(pool, policy, async (request: FastifyRequest, reply: FastifyReply) => {
        if (request.method === "PUT") return reply.code(201).send();
        const body = String(request.body);
        const answer = await service.handle(request.url, attemptOf(request), leased, body);
        const sent = reply.code(answer.status).headers(answer.headers ?? {}).send(answer.body);
        if (service.breaksOff !== undefined) throw service.breaksOff;
        return sent;
      }),
    );
    await app.listen({ port: 0, host: "127.0.0.1" });
    return app.server;
  },
  async hono(pool, policy, service) {
    const app = new Hono();
    const leased = policy.mode === "leased";
    app.all(
      "*",
      idempotentHono(pool, policy, async (c: Context) => {
        if (c.req.method === "PUT") return c.body(null, 201);
        const { status, headers = {}, body } = await service.handle(c.req.path, attemptOf(c), leased, await c.req.text());
        if (service.breaksOff !== undefined) {
          const pull = (): never => {
            throw service.breaksOff as Error;
          };
          return new Response(new ReadableStream({ pull }), { status });
        }
        return new Response(typeof body === "string" ? body : new Uint8Array(body), { status, headers });
      }),
    );
    return await new Promise<HttpServer>((resolve) => {
      const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, () => resolve(server as HttpServer));
    });
  },
};

export async function listening(server: HttpServer): Promise<HttpServer> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

export interface Client {
  db: Database;
  pool: pg.Pool;
  service: Service;
  port: number;
  post(path: string, body?: string, key?: string | null, more?: Omit<RequestInit, "headers"> & { headers?: Record<string, string> }): Promise<Reply>;
}

export interface Reply {
  status: number;
  headers: Headers;
  body: Buffer;
  problem: Record<string, unknown>;
}

export async function withClient(
  framework: Framework,
  policy: Partial<Policy>,
  test: (client: Client) => Promise<void>,
  encoding?: string,
): Promise<void> {
  await withDatabase(async (db) => {
    const pool = poolOf(db.cutUrl);
    const service = new Service();
    const server = await framework(pool, { scope: "orders.create", principal: null, log: quiet, ...policy }, service);
    const { port } = server.address() as AddressInfo;
    try {
      await test({
        db,
        pool,
        service,
        port,
        async post(at, body = "{}", key = "k", more = {}) {
          const headers: Record<string, string> = { "content-type": "application/json", ...more.headers };
          if (key !== null) headers["idempotency-key"] = key;
          const response = await fetch(`http://127.0.0.1:${port}${at}`, { method: "POST", body, ...more, headers });
          const bytes = Buffer.from(await response.arrayBuffer());
          const isProblem = response.headers.get("content-type") === "application/problem+json";
          const problem = isProblem ? (JSON.parse(bytes.toString()) as Record<string, unknown>) : {};
          return { status: response.status, headers: response.headers, body: bytes, problem };
        },
      });
    } finally {
      server.closeAllConnections();
      server.close();
      await pool.end();
    }
  }, false, undefined, encoding);
}
