/**
 * The services of the examples, in Python and in Node, killed and cut at random while clients send each request several
 * times, to any of them: each order is created once, and every client of a key gets the same response.
 */

import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import path from "node:path";
import { describe } from "node:test";
import { withDatabase } from "./apis.js";
import { it } from "./limit.js";
import { REPOSITORY } from "./server.js";
import { Chance, cutting, KILLS, PYTHON, PYTHON_ENVIRONMENT, STORM_LIMIT_MS } from "./storm_random.js";

const KILLS_OF_EACH = Math.max(1, Math.round(KILLS / 3));
const CLIENTS = 6;
const COPIES = 3;

const python = path.join(REPOSITORY, "clients/python/examples");
const node = (name: string): string[] => [process.execPath, path.join(__dirname, `../examples/${name}-orders.js`)];

/** How each is started, as its example says. Those of one group share their keys: one may replay what another stored. */
const SERVICES = [
  { name: "fastapi", group: "http", command: [PYTHON, "-m", "uvicorn", "fastapi_orders:app", "--port", "0"] },
  { name: "express", group: "http", command: node("express") },
  { name: "fastify", group: "http", command: node("fastify") },
  { name: "hono", group: "http", command: node("hono") },
  // It claims by itself, inside Django's own transaction.
  { name: "django", group: "django", command: [PYTHON, "django_orders.py", "runserver", "127.0.0.1:0"] },
] as const;

/** A service that is started again whenever it is killed. */
class Service {
  address: string | undefined;
  kills = 0;
  /** Orders that it answered since it was started. */
  answered = 0;
  private child: ChildProcess | undefined;
  private output = "";
  private stopped = false;

  constructor(
    readonly name: string,
    readonly group: string,
    private readonly command: readonly string[],
    private readonly url: string,
  ) {}

  /** Starts it, and again after each end. Resolves when it is stopped, or fails when it ends by itself. */
  async run(): Promise<void> {
    while (!this.stopped) {
      const [program = "", ...parts] = this.command;
      const env = { ...process.env, ...PYTHON_ENVIRONMENT, DATABASE_URL: this.url, PORT: "0" };
      const child = spawn(program, parts, { cwd: python, env, stdio: ["ignore", "pipe", "pipe"] });
      this.child = child;
      this.output = "";
      this.answered = 0;
      for (const stream of [child.stdout, child.stderr]) {
        stream.on("data", (chunk: Buffer) => {
          this.output = (this.output + chunk.toString()).slice(-4000);
          this.address ??= /http:\/\/[\w.[\]:]+:[1-9]\d*/.exec(this.output)?.[0];
        });
      }
      await new Promise<void>((resolve) => child.on("close", () => resolve()));
      // One whose first statement was cut does not start; one that has started ends only when it is killed.
      const ended = this.address !== undefined && child.signalCode !== "SIGKILL";
      this.address = undefined;
      assert.ok(!ended, `${this.name} ended by itself: ${this.output}`);
    }
  }

  kill(): void {
    this.kills += this.child?.kill("SIGKILL") ? 1 : 0;
    this.address = undefined;
  }

  stop(): void {
    this.stopped = true;
    this.child?.kill("SIGKILL");
  }
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

describe("services", () => {
  it("in a storm of kills and cuts, services in Python and Node create each order once", () =>
    withDatabase(async (db) => {
      const chance = new Chance();
      await db.run("create table orders (id bigint generated always as identity primary key, item text, qty integer)");
      const services = SERVICES.map(({ name, group, command }) => new Service(name, group, command, db.cutUrl));
      const responses = new Map<string, string>();
      let [keys, unanswered] = [0, 0];

      /** One client: the same request until it is answered, at any service. */
      const order = async (group: string, key: string): Promise<void> => {
        const body = JSON.stringify({ item: key, qty: 1 });
        const headers = { "idempotency-key": key, "content-type": "application/json" };
        for (;;) {
          const service = chance.of(services.filter((one) => one.group === group));
          if (service.address === undefined) {
            await pause(20);
            continue;
          }
          const sent = { method: "POST", body, headers, signal: AbortSignal.timeout(20_000) };
          const response = await fetch(`${service.address}/orders`, sent).catch(() => undefined);
          const text = await response?.text().catch(() => undefined);
          if (response?.status === 201 && text !== undefined) {
            service.answered += 1;
            assert.equal(responses.get(key) ?? text, text, `two responses for ${key}; seed ${chance.seed}`);
            responses.set(key, text);
            return;
          }
          // Whatever it was, as a client does: refused, lost, busy, an error.
          const refused = response !== undefined && [400, 410, 422].includes(response.status);
          assert.ok(!refused, `${service.name} refused ${key}: ${response?.status} ${text}; seed ${chance.seed}`);
          unanswered += 1;
          await pause(5 + chance.below(20));
        }
      };
      const over = (): boolean => services.every(({ kills }) => kills >= KILLS_OF_EACH);
      const client = async (): Promise<void> => {
        while (!over()) {
          const number = keys++;
          const group = chance.of(services).group;
          await Promise.all(Array.from({ length: COPIES }, () => order(group, `${group}-${number}`)));
        }
      };
      /** After some orders, at any moment of the next one. */
      const killer = async (service: Service): Promise<void> => {
        while (service.kills < KILLS_OF_EACH) {
          const most = 1 + chance.below(6);
          while (service.answered < most) await pause(2);
          await pause(chance.next() * 15);
          service.kill();
          service.answered = 0;
        }
      };

      const running = Promise.all(services.map((service) => service.run()));
      const stopCutting = cutting(db, chance, 12 * KILLS);
      try {
        const clients = Array.from({ length: CLIENTS }, () => client());
        await Promise.race([Promise.all([...clients, ...services.map(killer)]), running]);
      } finally {
        stopCutting();
        for (const service of services) service.stop();
      }
      await running;

      const kills = services.map(({ name, kills: count }) => `${name} ${count}`).join(", ");
      const where = `seed ${chance.seed}; kills: ${kills}; ${db.proxy.struck} cuts; ${responses.size} orders, each sent ${COPIES} times; ${unanswered} attempts without an answer`;
      console.log(`services: ${where}`);
      const admin = await db.admin();
      const made = "select item, count(*)::int as times from (select item from orders union all select item from django_order) x group by item";
      const { rows } = await admin.query<{ item: string; times: number }>(made);
      assert.deepEqual(rows.filter(({ times }) => times !== 1), [], `duplicates: ${where}`);
      assert.deepEqual(rows.map(({ item }) => item).sort(), [...responses.keys()].sort(), `lost, or never answered: ${where}`);
      assert.equal(await db.value("select count(*) from pgonce.outbox"), rows.length, `events: ${where}`);
      assert.ok(db.proxy.struck > 0 && unanswered > 0, where);
    }), STORM_LIMIT_MS);
});
