/** What the storms share: chance that can be repeated, cuts, and Python of the test's environment. */

import path from "node:path";
import type { Database } from "./server.js";
import { REPOSITORY } from "./server.js";

/** How often the storms kill; `make storm` says more. */
export const KILLS = Number(process.env.PGONCE_STORM_KILLS ?? 3);

/** How long a storm may take. */
export const STORM_LIMIT_MS = 120_000 + KILLS * 60_000;

/** The interpreter that scripts/python-venv prepares, and what it needs to find the client. */
export const PYTHON = path.join(process.env.PGONCE_CACHE ?? path.join(REPOSITORY, ".cache"), "python/bin/python");
export const PYTHON_ENVIRONMENT = {
  PYTHONPATH: path.join(REPOSITORY, "clients/python/src"),
  PYTHONUNBUFFERED: "1",
  // The proxy reads the protocol: nothing may be negotiated before it.
  PGGSSENCMODE: "disable",
  PGSSLMODE: "disable",
};

/** A small generator of our own, so that a run can be repeated from its seed. */
export class Chance {
  readonly seed = Number(process.env.PGONCE_SEED ?? Date.now() % 1_000_000);
  private state = this.seed;

  next(): number {
    this.state = (Math.imul(this.state, 1664525) + 1013904223) >>> 0;
    return this.state / 2 ** 32;
  }

  below(count: number): number {
    return Math.floor(this.next() * count);
  }

  of<T>(list: readonly T[]): T {
    return list[this.below(list.length)] as T;
  }
}

/** Cuts connections at random statements until it is stopped, so many times at most. */
export function cutting(db: Database, chance: Chance, most: number): () => void {
  let cuts = 0;
  const cutter = setInterval(() => {
    if (db.proxy.faults.length > 0 || cuts >= most) return;
    const at = chance.of(["commit", "insert into", "select outcome", "select 'done'", "begin"]);
    db.proxy.faults.push({ at, action: chance.of(["request", "reply"] as const), skip: chance.below(4) });
    cuts += 1;
  }, 10);
  return () => {
    clearInterval(cutter);
    db.proxy.faults.length = 0;
  };
}
