/**
 * Workers of both clients and every library, killed and cut at random, all for the same keys: each effect happens
 * once, and none that a worker was promised is missing. PGONCE_STORM_KILLS says how often each worker is killed.
 */

import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import path from "node:path";
import { describe } from "node:test";
import { withDatabase } from "./apis.js";
import { it } from "./limit.js";
import { REPOSITORY } from "./server.js";
import { Chance, cutting, KILLS, PYTHON, PYTHON_ENVIRONMENT, STORM_LIMIT_MS } from "./storm_random.js";

const KEYS = 15 * KILLS;

function start(kind: string, url: string, first: number): ChildProcess {
  const parts = [url, kind, String(first), String(KEYS)];
  const stdio = ["ignore", "pipe", "inherit"] as ["ignore", "pipe", "inherit"];
  if (kind !== "python") return spawn(process.execPath, [path.join(__dirname, "storm.js"), ...parts], { stdio });
  const worker = path.join(REPOSITORY, "clients/python/tests/storm_worker.py");
  return spawn(PYTHON, [worker, ...parts], { stdio, env: { ...process.env, ...PYTHON_ENVIRONMENT } });
}

describe("storm", () => {
  it("in a storm of kills and cuts, workers make no duplicate and lose nothing", () =>
    withDatabase(async (db) => {
      const chance = new Chance();
      const { seed } = chance;
      // A holder that was killed is noticed by the server, and a lease runs out.
      for (const scope of ["storm", "storm.leased"]) {
        await db.run(`select pgonce.define_scope('${scope}', interval '1 day', p_busy => 'wait', p_wait_timeout => '3 seconds')`);
      }
      const kinds = ["pg", "postgres", "python"];
      const promised = new Set<string>();
      const running = new Set<ChildProcess>();
      let kills = 0;

      const worker = async (kind: string, first: number): Promise<void> => {
        for (let run = 0; ; run++) {
          const child = start(kind, db.cutUrl, first);
          running.add(child);
          let output = "";
          // After some keys, at any moment of the next one: by the clock, a busy machine would kill what never began.
          const most = 1 + chance.below(10);
          let killing: ReturnType<typeof setTimeout> | undefined;
          child.stdout?.on("data", (chunk: Buffer) => {
            output += chunk.toString();
            if (killing !== undefined || run >= KILLS || output.split("\n").length <= most) return;
            killing = setTimeout(() => {
              kills += child.kill("SIGKILL") ? 1 : 0;
            }, chance.next() * 15);
          });
          await new Promise<void>((resolve) => child.on("close", () => resolve()));
          clearTimeout(killing);
          running.delete(child);
          const lines = output.split("\n").slice(0, -1);
          const finished = lines.includes("end");
          for (const line of lines) if (line !== "end") promised.add(line);
          if (finished) return;
          assert.equal(child.signalCode, "SIGKILL", `${kind} ended early; seed ${seed}`);
        }
      };

      const stopCutting = cutting(db, chance, 12 * KILLS);
      try {
        await Promise.all(kinds.flatMap((kind, at) => [worker(kind, at * 7), worker(kind, at * 13 + 5)]));
      } finally {
        stopCutting();
        for (const child of running) child.kill("SIGKILL");
      }

      const where = `seed ${seed}, ${kills} kills, ${db.proxy.struck} cuts, ${promised.size} effects promised, workers of ${kinds.join(", ")}`;
      console.log(`workers: ${where}`);
      const admin = await db.admin();
      const { rows } = await admin.query<{ note: string; times: number }>("select note, count(*)::int as times from effect group by note");
      assert.deepEqual(rows.filter(({ times }) => times !== 1), [], `duplicates: ${where}`);
      const made = new Set(rows.map(({ note }) => note));
      assert.deepEqual([...promised].filter((name) => !made.has(name)), [], `lost: ${where}`);
      assert.equal(await db.value("select count(*) from pgonce.outbox"), rows.length, `events: ${where}`);
      const finished = "select count(*) from pgonce.intent where status = 'succeeded'";
      assert.equal(await db.value(finished), rows.length, `records: ${where}`);
      assert.ok(kills > 0 && db.proxy.struck > 0, where);
    }), STORM_LIMIT_MS);
});
