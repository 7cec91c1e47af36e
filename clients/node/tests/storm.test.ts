/**
 * Workers of both clients and every library, killed and cut at random, all for the same keys: each effect happens
 * once, and none that a worker was promised is missing. PGONCE_STORM_KILLS says how often each worker is killed.
 */

import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { describe, it } from "node:test";
import { withDatabase } from "./apis.js";
import { REPOSITORY } from "./server.js";

const KILLS = Number(process.env.PGONCE_STORM_KILLS ?? 3);
const KEYS = 15 * KILLS;

/** A small generator of our own, so that a run can be repeated from its seed. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const python = path.join(process.env.PGONCE_CACHE ?? path.join(REPOSITORY, ".cache"), "python/bin/python");

function start(kind: string, url: string, first: number): ChildProcess {
  const parts = [url, kind, String(first), String(KEYS)];
  const stdio = ["ignore", "pipe", "inherit"] as ["ignore", "pipe", "inherit"];
  if (kind !== "python") return spawn(process.execPath, [path.join(__dirname, "storm.js"), ...parts], { stdio });
  const folder = path.join(REPOSITORY, "clients/python");
  const env = { ...process.env, PYTHONPATH: path.join(folder, "src"), PGGSSENCMODE: "disable" };
  return spawn(python, [path.join(folder, "tests/storm_worker.py"), ...parts], { stdio, env });
}

describe("storm", () => {
  it("kills and cuts make no duplicate and lose nothing", (test) =>
    withDatabase(async (db) => {
      const seed = Number(process.env.PGONCE_SEED ?? Date.now() % 1_000_000);
      const next = random(seed);
      // A holder that was killed is noticed by the server, and a lease runs out.
      for (const scope of ["storm", "storm.leased"]) {
        await db.run(`select pgonce.define_scope('${scope}', interval '1 day', p_busy => 'wait', p_wait_timeout => '3 seconds')`);
      }
      const kinds = ["pg", "postgres", ...(existsSync(python) ? ["python"] : [])];
      const promised = new Set<string>();
      const running = new Set<ChildProcess>();
      let kills = 0;
      let cuts = 0;

      const worker = async (kind: string, first: number): Promise<void> => {
        for (let run = 0; ; run++) {
          const child = start(kind, db.cutUrl, first);
          running.add(child);
          let output = "";
          // After some keys, at any moment of the next one: by the clock, a busy machine would kill what never began.
          const most = 1 + Math.floor(next() * 10);
          let killing: ReturnType<typeof setTimeout> | undefined;
          child.stdout?.on("data", (chunk: Buffer) => {
            output += chunk.toString();
            if (killing !== undefined || run >= KILLS || output.split("\n").length <= most) return;
            killing = setTimeout(() => {
              kills += child.kill("SIGKILL") ? 1 : 0;
            }, next() * 15);
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

      const cutter = setInterval(() => {
        if (db.proxy.faults.length > 0 || cuts >= 12 * KILLS) return;
        const at = ["commit", "insert into effect", "select outcome", "select 'done'", "begin"][Math.floor(next() * 5)] ?? "";
        const action = (["request", "reply"] as const)[Math.floor(next() * 2)] ?? "reply";
        db.proxy.faults.push({ at, action, skip: Math.floor(next() * 4) });
        cuts += 1;
      }, 10);
      try {
        await Promise.all(kinds.flatMap((kind, at) => [worker(kind, at * 7), worker(kind, at * 13 + 5)]));
      } finally {
        clearInterval(cutter);
        for (const child of running) child.kill("SIGKILL");
        db.proxy.faults.length = 0;
      }

      const where = `seed ${seed}, ${kills} kills, ${db.proxy.struck} of ${cuts} cuts, workers of ${kinds.join(", ")}`;
      test.diagnostic(where);
      const admin = await db.admin();
      const { rows } = await admin.query<{ note: string; times: number }>("select note, count(*)::int as times from effect group by note");
      assert.deepEqual(rows.filter(({ times }) => times !== 1), [], `duplicates: ${where}`);
      const made = new Set(rows.map(({ note }) => note));
      assert.deepEqual([...promised].filter((name) => !made.has(name)), [], `lost: ${where}`);
      assert.equal(await db.value("select count(*) from pgonce.outbox"), rows.length, `events: ${where}`);
      const finished = "select count(*) from pgonce.intent where status = 'succeeded'";
      assert.equal(await db.value(finished), rows.length, `records: ${where}`);
      assert.ok(kills > 0 && db.proxy.struck > 0, where);
    }));
});
