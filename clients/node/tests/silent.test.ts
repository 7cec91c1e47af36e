/** Leases whose connections fall silent: open, and without an answer. */

import assert from "node:assert/strict";
import { describe } from "node:test";
import pg from "pg";
import postgres from "postgres";
import * as pgonce from "pgonce";
import { LIBRARIES, withApi, withDatabase } from "./apis.js";
import { it } from "./limit.js";

const REQUEST = { item: "book" };
const STATUS = "select status::text from pgonce.intent";
const SUCCEED = "select 'done' from pgonce.succeed";
const FAIL = "select 'done' from pgonce.fail";
const HEARTBEAT = "select 'done' from pgonce.heartbeat";
const RELEASE = "select 'done' from pgonce.release";
const GUARD = "select 'done' from pgonce.guard";
const CLAIM = "select outcome, fence";
const INSERT = "insert into effect (note) values ('x')";
// A connection is given up after a third of it, and after two seconds at least.
const SHORT = { leaseMs: 3000 };
const HANGS_MS = 30_000;

for (const library of LIBRARIES) {
  describe(`silent connections of ${library}`, { concurrency: 4 }, () => {
    for (const [at, skip] of [[SUCCEED, 0], ["commit", 1], ["begin", 1]] as const) {
      const work = `work that is done is recorded on another connection where one falls silent at ${at.slice(0, 6)}`;
      it(
        work,
        () =>
          withApi(library, async (api, db) => {
            db.proxy.faults.push({ at, action: "silence", skip });
            let runs = 0;
            const { answer } = await pgonce.lease(api.source, "s", "k", REQUEST, () => (runs += 1), SHORT);
            assert.deepEqual([answer, runs, db.proxy.struck, await db.value(STATUS)], [1, 1, 1, "succeeded"]);
          }),
        HANGS_MS,
      );
    }

    it(
      "a failure is recorded on another connection where one falls silent",
      () =>
        withApi(library, async (api, db) => {
          db.proxy.faults.push({ at: FAIL, action: "silence" });
          const failing = (): never => {
            throw new pgonce.PermanentFailure("no", "no");
          };
          await assert.rejects(pgonce.lease(api.source, "s", "k", REQUEST, failing, SHORT), pgonce.PermanentFailure);
          assert.deepEqual([db.proxy.struck, await db.value(STATUS)], [1, "failed_final"]);
        }),
      HANGS_MS,
    );

    const ends: Record<string, [string, (held: pgonce.Lease) => Promise<unknown>]> = {
      "the end of a transaction under a lease": [SUCCEED, (held) => held.begin(() => 1)],
      "giving a lease back": [RELEASE, (held) => held.release()],
    };
    for (const [name, [at, end]] of Object.entries(ends)) {
      it(
        `${name} is given up where its connection falls silent`,
        () =>
          withApi(library, async (api, db) => {
            db.proxy.faults.push({ at, action: "silence" });
            const work = async (held: pgonce.Lease): Promise<string> => {
              await assert.rejects(end(held), pgonce.Uncertain);
              return "done";
            };
            const { answer } = await pgonce.lease(api.source, "s", "k", REQUEST, work, SHORT);
            assert.deepEqual([answer, db.proxy.struck], ["done", 1]);
          }),
        HANGS_MS,
      );
    }

    for (const at of ["begin", GUARD]) {
      it(
        `the opening of a transaction under a lease is given up where its connection falls silent at ${at.slice(-12)}`,
        () =>
          withApi(library, async (api, db) => {
            const work = async (held: pgonce.Lease): Promise<void> => {
              db.proxy.faults.push({ at, action: "silence" });
              await assert.rejects(held.begin(() => 1), pgonce.Disconnected);
              await held.begin((tx) => api.execute(tx.conn, INSERT));
            };
            await pgonce.lease(api.source, "s", "k", REQUEST, work, { ...SHORT, renew: false });
            assert.deepEqual([db.proxy.struck, await db.value(STATUS), await db.effects()], [1, "succeeded", 1]);
          }),
        HANGS_MS,
      );
    }

    for (const at of [CLAIM, "select busy", "select pgonce.wait"]) {
      it(
        `what became of work that was lost is learned on another connection where one falls silent at ${at}`,
        () =>
          withApi(library, async (api, db) => {
            await db.run("select pgonce.define_scope('s', interval '1 day', p_busy => 'wait', p_wait_timeout => '10 minutes')");
            const again = { at: CLAIM, action: "abort", skip: 1 } as const;
            const succeed = async (fingerprint: Buffer): Promise<void> => {
              // Its first claim was answered, and it asks again.
              while (db.proxy.faults.includes(again)) await db.value("select 1");
              const fence = await db.value("select fence::text from pgonce.intent");
              await db.run("select pgonce.succeed('s', 'k', $1, $2, '\"new\"')", [fingerprint, fence]);
            };
            let succeeding: Promise<void> | undefined;
            const work = async (held: pgonce.Lease): Promise<string> => {
              const { fingerprint } = held.intent;
              await db.run("delete from pgonce.intent");
              await db.run("select pgonce.claim('s', 'k', $1, interval '1 hour')", [fingerprint]);
              db.proxy.faults.push({ at, action: "silence" }, again);
              succeeding = succeed(fingerprint);
              return "old";
            };
            const { answer, replayed } = await pgonce.lease(api.source, "s", "k", REQUEST, work, SHORT);
            await succeeding;
            assert.deepEqual([answer, replayed], ["new", true]);
          }),
        HANGS_MS,
      );
    }

    it(
      "a renewal whose reply comes late does not take a later one back",
      () =>
        withApi(library, async (api, db) => {
          const work = async (held: pgonce.Lease): Promise<void> => {
            db.proxy.faults.push({ at: "commit", action: "hold" });
            const first = held.heartbeat();
            while (db.proxy.struck === 0) await db.value("select 1");
            await held.heartbeat();
            const renewed = held["renewedAt"];
            db.proxy.goOn();
            await first;
            assert.equal(held["renewedAt"], renewed);
          };
          await pgonce.lease(api.source, "s", "k", REQUEST, work, { leaseMs: 180_000, renew: false });
        }),
      HANGS_MS,
    );

    it(
      "a lease that runs out while its end is being recorded is not lost",
      () =>
        withApi(library, async (api, db) => {
          const lock = "pg_advisory_xact_lock(7)";
          await db.run(`create function hold_up() returns trigger language plpgsql as $$ begin perform ${lock}; return new; end $$`);
          const succeeds = "for each row when (new.status = 'succeeded')";
          await db.run(`create trigger hold_up before update on pgonce.intent ${succeeds} execute function hold_up()`);
          const holder = new pg.Client(db.url);
          await holder.connect();
          await holder.query("begin");
          await holder.query(`select ${lock}`);
          let signal: AbortSignal | undefined;
          const over = pgonce.lease(api.source, "s", "k", REQUEST, (held) => ({ signal } = held) && 1, { leaseMs: 2000 });
          while ((await db.value("select clock_timestamp() > lease_until from pgonce.intent")) !== true);
          await holder.end();
          assert.deepEqual([(await over).answer, signal?.aborted, await db.value(STATUS)], [1, false, "succeeded"]);
        }),
      HANGS_MS,
    );

    it(
      "a renewal that hangs does not hold up the record, nor is it the last one",
      () =>
        withApi(library, async (api, db) => {
          db.proxy.faults.push({ at: HEARTBEAT, action: "silence" }, { at: HEARTBEAT, action: "silence" });
          const until = "select extract(epoch from lease_until)::text from pgonce.intent";
          let signal: AbortSignal | undefined;
          const work = async (held: pgonce.Lease): Promise<void> => {
            signal = held.signal;
            const first = await db.value(until);
            // The first one is given up, the second is under way.
            while (db.proxy.struck < 2) {
              held.check();
              await db.value("select 1");
            }
            assert.equal(await db.value(until), first);
          };
          await pgonce.lease(api.source, "s", "k", REQUEST, work, { leaseMs: 9000 });
          assert.deepEqual([signal?.aborted, await db.value(STATUS)], [false, "succeeded"]);
        }),
      HANGS_MS,
    );
  });
}

for (const [at, skip] of [[SUCCEED, 0], ["commit", 1], ["begin", 1]] as const) {
  it(
    `the only connection of a pool of postgres.js is had back where it falls silent at ${at.slice(0, 6)}`,
    () =>
      withDatabase(async (db) => {
        const sql = postgres(db.cutUrl, { max: 1, onnotice: () => undefined });
        db.proxy.faults.push({ at, action: "silence", skip });
        const { answer } = await pgonce.lease(sql, "s", "k", REQUEST, () => 1, SHORT);
        assert.deepEqual([answer, db.proxy.struck, await db.value(STATUS)], [1, 1, "succeeded"]);
        await sql.end({ timeout: 1 });
      }),
    HANGS_MS,
  );
}

it(
  "the only connection of a pool of postgres.js is had back where the process took too long to send",
  () =>
    withDatabase(async (db) => {
      const sql = postgres(db.cutUrl, { max: 1, onnotice: () => undefined });
      const work = async (held: pgonce.Lease): Promise<number> => {
        // Timers come next after this phase of the loop: that of the limit before the write.
        await new Promise((resolve) => setImmediate(resolve));
        const renewal = assert.rejects(held.heartbeat(), pgonce.Disconnected);
        await new Promise<void>((resolve) => process.nextTick(resolve));
        const until = performance.now() + 2100;
        while (performance.now() < until);
        await renewal;
        return 1;
      };
      const { answer } = await pgonce.lease(sql, "s", "k", REQUEST, work, { leaseMs: 6000 });
      assert.deepEqual([answer, await db.value(STATUS)], [1, "succeeded"]);
      await sql.end({ timeout: 1 });
    }),
  HANGS_MS,
);
