/** Runs the cases of conformance/ over every library, isolation level and pooler of its matrix. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";
import { describe } from "node:test";
import * as pgonce from "pgonce";
import { LIBRARIES, withApi, type Api, type Library } from "./apis.js";
import { it } from "./limit.js";
import type { Fault } from "./proxy.js";
import { REPOSITORY, type Database } from "./server.js";

interface Failing {
  kind: "permanent" | "transient";
  code: string;
  message: string;
  answer?: unknown;
}

interface Event {
  topic: string;
  type: string;
  subject: string;
  payload?: unknown;
}

interface Step extends Event {
  do: string;
  as: string;
  scope?: string;
  key: string;
  tenant?: string;
  request?: unknown;
  sql: string | string[];
  move: string;
  seconds: number;
  answer?: unknown;
  rollback?: boolean;
  end: "succeed" | "return" | "raise";
  statement: string;
  value: string;
  first?: boolean;
  fail: Failing;
  faults?: Fault[];
  consumer: string;
  source: string;
  id: string;
  messages: [string, string][];
  work: { sql?: string[]; first_run_sql?: string[]; publish?: Event[]; fail?: Failing; raise?: boolean; answer?: unknown };
  expect?: Record<string, unknown>;
}

interface Case {
  name: string;
  steps: Step[];
  finally?: { sql: string; value: unknown }[];
}

type Found = Record<string, unknown> & { outcome: string; runs: number };

class OwnError extends Error {}

const OUTCOMES: [new (...args: never[]) => Error, string][] = [
  [pgonce.Conflict, "conflict"],
  [pgonce.Busy, "busy"],
  [pgonce.Gone, "gone"],
  [pgonce.Fenced, "fenced"],
  [pgonce.Invalid, "invalid"],
  [pgonce.Uncertain, "uncertain"],
  [pgonce.PermanentFailure, "refused"],
  [pgonce.TransientFailure, "failed"],
  [Error, "error"],
];

/** Work that waits inside until it is given its end. */
interface Inside<T> {
  held: T;
  end: (error?: Error) => void;
  over: Promise<pgonce.Done>;
}

/** Starts work, and answers once it is inside, or ended without having been. */
async function enter<T>(start: (work: (held: T) => Promise<void>) => Promise<pgonce.Done>): Promise<Inside<T> | pgonce.Done> {
  return new Promise((resolve, reject) => {
    const over = start(
      (held) =>
        new Promise<void>((leave, fail) => {
          resolve({ held, over, end: (error) => (error === undefined ? leave() : fail(error)) });
        }),
    );
    over.then(resolve, reject);
  });
}

function failure(spec: Failing): pgonce.Failure {
  const kind = spec.kind === "permanent" ? pgonce.PermanentFailure : pgonce.TransientFailure;
  return new kind(spec.code, spec.message, { answer: spec.answer });
}

class Runner {
  private readonly open = new Map<string, Inside<pgonce.Tx>>();
  private readonly leases = new Map<string, Inside<pgonce.Lease>>();
  /** A statement that fails at any other level: no transaction of a step may leave that of its row. */
  private readonly atLevel: string;

  constructor(
    private readonly api: Api,
    private readonly db: Database,
    private readonly isolation: pgonce.Isolation | undefined,
  ) {
    const level = isolation ?? "read committed";
    this.atLevel =
      `do $$ begin if current_setting('transaction_isolation') <> '${level}' then ` +
      "raise exception using message = 'at ' || current_setting('transaction_isolation'); end if; end $$";
  }

  async run(test: Case): Promise<void> {
    for (const step of test.steps) {
      for (const fault of step.faults ?? []) {
        assert.ok(["request", "reply"].includes(fault.action), `an action that no runner knows: ${fault.action}`);
        this.db.proxy.faults.push({ ...fault });
      }
      const found = await this.outcome(step);
      const where = `${JSON.stringify(step, bigints)}\n${JSON.stringify(found, bigints)}`;
      assert.equal(this.db.proxy.faults.length, 0, `a fault did not strike: ${where}`);
      const expected = step.expect ?? {};
      for (const [name, value] of Object.entries(expected)) assert.deepEqual(found[name], value, `${name} of ${where}`);
      if (!("outcome" in expected)) assert.ok(!OUTCOMES.some(([, name]) => name === found.outcome), where);
    }
    for (const check of test.finally ?? []) assert.deepEqual(await this.db.value(check.sql), check.value, check.sql);
  }

  private async outcome(step: Step): Promise<Found> {
    const found: Found = { outcome: "done", runs: 0 };
    try {
      await this.step(step, found);
    } catch (error) {
      assert.ok(error instanceof Error);
      found.outcome = OUTCOMES.find(([kind]) => error instanceof kind)?.[1] ?? "";
      found.error = error.message;
      const { code, failureCode, answer, replayed } = error as Partial<pgonce.PermanentFailure>;
      Object.assign(found, { code, failure_code: failureCode, answer, replayed });
    }
    return found;
  }

  private async step(step: Step, found: Found): Promise<void> {
    const { api } = this;
    const scope = step.scope ?? "conformance";
    const request = "request" in step ? step.request : { item: "book" };
    const tenant = step.tenant ?? "";
    const statements = Array.isArray(step.sql) ? step.sql : [];
    switch (step.do) {
      case "sql":
        return this.db.run(step.sql as string);
      case "clock":
        return this.db.run("select pgonce._move_clock($1::interval)", [step.move]);
      case "once": {
        const work = (tx: pgonce.Tx): Promise<void> => this.work(step, tx, found);
        const done = await pgonce.once(api.source, scope, step.key, request, work, this.atomic(tenant));
        Object.assign(found, { replayed: done.replayed, answer: done.answer, attempts: done.attempts });
        return;
      }
      case "hold": {
        const inside = await enter<pgonce.Tx>((work) =>
          pgonce.once(api.source, scope, step.key, request, work, this.atomic(tenant)),
        );
        if (!("held" in inside)) return void Object.assign(found, { outcome: "replay", ...inside });
        for (const statement of [...statements, this.atLevel]) await api.execute(inside.held.conn, statement);
        this.open.set(step.as, inside);
        Object.assign(found, { outcome: inside.held.kind, attempts: inside.held.attempts });
        return;
      }
      case "finish": {
        const inside = this.taken(this.open, step.as);
        if (step.rollback) {
          inside.end(new OwnError());
          await assert.rejects(inside.over, OwnError);
          return;
        }
        inside.held.succeed(step.answer);
        inside.end();
        Object.assign(found, await inside.over);
        return;
      }
      case "lease": {
        const options = { leaseMs: step.seconds * 1000, renew: false, tenant };
        const inside = await enter<pgonce.Lease>((work) =>
          pgonce.lease(api.source, scope, step.key, request, work, options),
        );
        if (!("held" in inside)) return void Object.assign(found, { outcome: "replay", ...inside });
        this.leases.set(step.as, inside);
        Object.assign(found, { outcome: inside.held.kind, attempts: inside.held.attempts });
        return;
      }
      case "heartbeat":
        return this.taken(this.leases, step.as).held.heartbeat();
      case "release":
        return this.taken(this.leases, step.as).held.release();
      case "lease_succeed": {
        const inside = this.taken(this.leases, step.as);
        inside.held.succeed(step.answer);
        inside.end();
        Object.assign(found, { answer: (await inside.over).answer });
        return;
      }
      case "lease_fail": {
        const inside = this.taken(this.leases, step.as);
        inside.end(failure(step.fail));
        await inside.over;
        return;
      }
      case "lease_write": {
        const { held } = this.taken(this.leases, step.as);
        found.answer = await held.begin(async (tx) => {
          for (const statement of [...statements, this.atLevel]) await api.execute(tx.conn, statement);
          return step.answer;
        });
        return;
      }
      case "join":
        found.outcome = "joined";
        return api.transaction((conn) => this.join(step, scope, request, conn, found));
      case "execute": {
        const options = { ...this.atomic(tenant), knownFirst: step.first ?? false };
        const done = await pgonce.execute(api.source, scope, step.key, request, step.statement, [step.value], options);
        Object.assign(found, { replayed: done.replayed, answer: done.answer, attempts: done.attempts });
        return;
      }
      case "accept":
        found.new = await api.transaction(async (conn) => {
          const payload = step.payload as string;
          const isNew = await pgonce.accept(conn, step.consumer, step.source, step.id, payload, { tenant });
          for (const statement of isNew ? statements : []) await api.execute(conn, statement);
          await api.execute(conn, this.atLevel);
          return isNew;
        });
        found.outcome = "accepted";
        return;
      case "accept_batch":
        found.new = await api.transaction(async (conn) => {
          const accepted = await pgonce.acceptBatch(conn, step.consumer, step.source, step.messages);
          await api.execute(conn, this.atLevel);
          return accepted;
        });
        found.outcome = "accepted";
        return;
      case "publish":
        await api
          .transaction(async (conn) => {
            await pgonce.publish(conn, step.topic, step.type, step.payload, { subject: step.subject });
            await api.execute(conn, this.atLevel);
            if (step.rollback) throw new OwnError();
          })
          .catch((error: unknown) => {
            if (!(error instanceof OwnError)) throw error;
          });
        found.outcome = "published";
        return;
      default:
        throw new Error(`unknown step ${step.do}`);
    }
  }

  private async join(step: Step, scope: string, request: unknown, conn: unknown, found: Found): Promise<void> {
    const statements = step.sql as string[];
    if (step.end === "return") {
      // As somebody would who calls the SQL functions without this package.
      const print = pgonce.fingerprint(request).toString("hex");
      await this.api.execute(conn, `select pgonce.claim('${scope}', '${step.key}', '\\x${print}')`);
      if ((await this.db.value(`select count(*) from pgonce.intent where key = '${step.key}'`)) === 1) {
        found.outcome = "replay";
        return;
      }
      for (const statement of statements) await this.api.execute(conn, statement);
      return;
    }
    try {
      const done = await pgonce.join(conn, scope, step.key, request, async (tx) => {
        for (const statement of [...statements, this.atLevel]) await this.api.execute(tx.conn, statement);
        if (step.end === "raise") throw new OwnError();
        return step.answer;
      });
      found.answer = done.answer;
    } catch (error) {
      // The caller swallows it, and goes on to the commit.
      if (!(error instanceof OwnError)) throw error;
    }
  }

  private atomic(tenant: string): pgonce.CommandOptions {
    return this.isolation === undefined ? { tenant } : { tenant, isolation: this.isolation };
  }

  private async work({ work }: Step, tx: pgonce.Tx, found: Found): Promise<void> {
    found.runs += 1;
    const first = found.runs === 1 ? (work.first_run_sql ?? []) : [];
    for (const statement of [...first, ...(work.sql ?? []), this.atLevel]) await this.api.execute(tx.conn, statement);
    for (const { topic, type, payload, subject } of work.publish ?? []) await tx.publish(topic, type, payload, { subject });
    if (work.fail !== undefined) throw failure(work.fail);
    if (work.raise) throw new OwnError();
    if ("answer" in work) tx.succeed(work.answer);
  }

  private taken<T>(from: Map<string, T>, name: string): T {
    const found = from.get(name);
    assert.ok(found !== undefined, `${name} was never opened`);
    return found;
  }
}

function bigints(_: string, value: unknown): unknown {
  return typeof value === "bigint" ? value.toString() : value;
}

const folder = path.join(REPOSITORY, "conformance/cases");
const CASES = readdirSync(folder)
  .filter((name) => name.endsWith(".json"))
  .sort()
  .flatMap((name) => pgonce.parseJson(readFileSync(path.join(folder, name), "utf8")) as unknown as Case[]);

interface Run {
  language: string;
  library: Library;
  isolation?: pgonce.Isolation;
  pooler?: boolean;
}

const MATRIX = JSON.parse(readFileSync(path.join(REPOSITORY, "conformance/matrix.json"), "utf8")) as Run[];
const RUNS = MATRIX.filter((run) => run.language === "Node");

it("the matrix names every library", () => {
  assert.deepEqual(new Set(RUNS.map((run) => run.library)), new Set(LIBRARIES));
});

for (const { library, isolation, pooler = false } of RUNS) {
  const where = `${library}, ${isolation ?? "default"}${pooler ? ", pgbouncer" : ""}`;
  describe(`conformance over ${where}`, { concurrency: 4 }, () => {
    for (const test of CASES) {
      it(test.name, () => withApi(library, (api, db) => new Runner(api, db, isolation).run(test), pooler, isolation), 60_000);
    }
  });
}
