/** What the cases of conformance/ cannot say: the forms of the API, and what each library does. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import path from "node:path";
import { describe } from "node:test";
import pg from "pg";
import postgres from "postgres";
import * as pgonce from "pgonce";
import { LIBRARIES, poolOf, withApi, withDatabase } from "./apis.js";
import { it } from "./limit.js";
import type { Database } from "./server.js";

const REQUEST = { item: "book" };
const INSERT = "insert into effect (note) values ('x')";
// A server takes a moment to notice a cut connection, and holds its locks until then.
const WAIT = "select pgonce.define_scope('s', interval '1 day', p_busy => 'wait', p_wait_timeout => '60 seconds')";
const PAY = "update stock set state = 'paid' where item = $1 and state = 'new' returning item";
const STOCK =
  "create table stock (item text, state text default 'new'); insert into stock (item) values ('book'); grant all on stock to public";

async function withPool(test: (pool: pg.Pool, db: Database) => Promise<void>): Promise<void> {
  await withDatabase(async (db) => {
    const pool = poolOf(db.url);
    try {
      await test(pool, db);
    } finally {
      await pool.end();
    }
  });
}

describe("commands", { concurrency: 4 }, () => {
  it("a command is a function of key and request", () =>
    withPool(async (pool, db) => {
      const place = pgonce.command(pool, "orders.create", async (tx, request: { qty: number }, key) => {
        await tx.conn.query(INSERT);
        return { qty: request.qty * 3, key };
      });
      const first = await place("k", { qty: 2 });
      const again = await place("k", { qty: 2 });
      assert.deepEqual(first.answer, { qty: 6, key: "k" });
      assert.deepEqual([first.replayed, again.replayed, again.answer], [false, true, first.answer]);
      assert.equal((await place("k", { qty: 2 }, { tenant: "acme" })).replayed, false);
      assert.equal(await db.effects(), 2);
    }));

  for (const library of LIBRARIES) {
    it(`one statement takes values of every kind (${library})`, () =>
      withApi(library, async (api, db) => {
        await db.run("create table kinds (a int, b boolean, c numeric, d timestamptz, e jsonb, f text)");
        const statement = "insert into kinds values ($1, $2, $3, $4, $5, $6) returning a, b, c, d = '2026-01-02Z' as d, e, f;";
        const values = [7, true, "1.50", new Date("2026-01-02T00:00:00Z"), JSON.stringify({ x: [1] }), null];
        const expected = { a: 7, b: true, c: 1.5, d: true, e: { x: [1] }, f: null };
        const bound = library === "postgres" ? [...values.slice(0, 4), { x: [1] }, null] : values;
        for (const replayed of [false, true]) {
          const done = await pgonce.execute(api.source, "s", "k", REQUEST, statement, bound);
          assert.deepEqual([done.answer, done.replayed], [expected, replayed]);
        }
        assert.equal(await db.value("select count(*) from kinds"), 1);
      }));
  }

  it("one statement that an earlier effect stands in the way of is replayed", () =>
    withPool(async (pool, db) => {
      await db.run("create unique index one_note on effect (note)");
      const insert = `${INSERT} returning id`;
      for (const replayed of [false, true]) {
        const done = await pgonce.execute(pool, "s", "k", REQUEST, insert, [], { knownFirst: true });
        assert.equal(done.replayed, replayed);
      }
      await assert.rejects(pgonce.execute(pool, "s", "other", REQUEST, insert), { code: "23505" });
      await assert.rejects(pgonce.execute(pool, "s", "l", REQUEST, "truncate effect"), pgonce.Invalid);
    }));

  for (const library of LIBRARIES) {
    it(`one statement that an earlier one left nothing to do for is replayed (${library})`, () =>
      withApi(library, async (api, db) => {
        await db.run(STOCK);
        const pay = (key: string): Promise<pgonce.Done> =>
          pgonce.execute(api.source, "s", key, REQUEST, PAY, ["book"], { knownFirst: true });
        for (const replayed of [false, true]) {
          const done = await pay("k");
          assert.deepEqual([done.answer, done.replayed], [{ item: "book" }, replayed]);
        }
        // Of another intent nothing is stored.
        await assert.rejects(pay("other"), { name: "Invalid", code: "22023" });
      }));

    it(`one statement in a transaction whose claim came too early is replayed (${library})`, () =>
      withApi(library, async (api, db) => {
        await db.run(STOCK);
        const first = await pgonce.execute(api.source, "s", "k", REQUEST, PAY, ["book"]);
        // As a claim sees it whose snapshot is older than the success: there is no record yet.
        await db.run("create table kept as table pgonce.intent; delete from pgonce.intent");
        await db.run("begin; lock table stock in exclusive mode");
        let isOver = false;
        const duplicate = pgonce
          .execute(api.source, "s", "k", REQUEST, PAY, ["book"], { isolation: "read committed" })
          .finally(() => (isOver = true));
        const waiting = "select count(*) from pg_locks where relation = 'stock'::regclass and not granted";
        while ((await db.value(waiting)) === 0) assert.ok(!isOver);
        await db.run("insert into pgonce.intent table kept; commit");
        const { answer, replayed } = await duplicate;
        assert.deepEqual([answer, replayed], [first.answer, true]);
      }));
  }

  it("a reference is stored beside the answer", () =>
    withPool(async (pool) => {
      const make = (): Promise<pgonce.Done<void>> =>
        pgonce.once(pool, "s", "k", REQUEST, (tx) => tx.succeed(9007199254740993n, { reference: { type: "order", id: 7 } }));
      assert.deepEqual((await make()).reference, { type: "order", id: "7" });
      const { answer, reference } = await make();
      assert.deepEqual([answer, reference], [9007199254740993n, { type: "order", id: "7" }]);
    }));

  for (const library of LIBRARIES) {
    it(`a look-up whose reply is lost leaves nothing in doubt (${library})`, () =>
      withApi(library, async (api, db) => {
        await pgonce.once(api.source, "s", "k", REQUEST, async () => {
          // The first COMMIT ends the claim, which is busy; the second the look at the contract.
          db.proxy.faults.push({ at: "commit", action: "reply", skip: 1 });
          await assert.rejects(pgonce.once(api.source, "s", "k", REQUEST, () => 1), pgonce.Busy);
          assert.equal(db.proxy.struck, 1);
        });
      }));

    it(`a commit that answers ROLLBACK is noticed (${library})`, () =>
      withApi(library, async (api, db) => {
        db.proxy.faults.push({ at: "commit", action: "abort" });
        const done = await pgonce.once(api.source, "s", "k", REQUEST, (tx) => api.execute(tx.conn, INSERT));
        assert.deepEqual([db.proxy.struck, done.replayed], [1, false]);
        assert.equal(await db.effects(), 1, "what was rolled back was run again");
      }));

    it(`an idle connection is refused before any effect (${library})`, () =>
      withApi(library, async (api, db) => {
        const { conn, free } = await api.connection();
        const calls = [
          () => pgonce.join(conn, "s", "k", REQUEST, () => api.execute(conn, INSERT)),
          () => pgonce.publish(conn, "t", "e", {}),
          () => pgonce.accept(conn, "c", "s", "m"),
          () => pgonce.acceptBatch(conn, "c", "s", [["m", ""]]),
        ];
        for (const call of calls) {
          await assert.rejects(call, (error) => error instanceof pgonce.NotInTransaction && error.code === "25P01");
        }
        free();
        assert.equal(await db.effects(), 0);
        assert.equal(await db.value("select (select count(*) from pgonce.intent) + (select count(*) from pgonce.outbox)"), 0);
      }));

    it(`an open transaction is not committed by pgonce, but may be joined (${library})`, () =>
      withApi(library, async (api, db) => {
        await api.transaction(async (conn) => {
          await api.execute(conn, INSERT);
          const work = (): Promise<void> => api.execute(conn, INSERT);
          await assert.rejects(pgonce.once(conn, "s", "k", REQUEST, work), pgonce.Invalid);
          const done = await pgonce.join(conn, "s", "k", REQUEST, work);
          assert.equal(done.replayed, false);
        });
        const again = await pgonce.once(api.source, "s", "k", REQUEST, (tx) => api.execute(tx.conn, INSERT));
        assert.equal(again.replayed, true);
        assert.equal(await db.effects(), 2);
      }));

    it(`a commit by hand is noticed and not acknowledged (${library})`, () =>
      withApi(library, async (api, db) => {
        const work = async (tx: pgonce.Tx): Promise<void> => {
          await api.execute(tx.conn, INSERT);
          await api.execute(tx.conn, "commit");
        };
        await assert.rejects(pgonce.once(api.source, "s", "k", REQUEST, work), { code: "2D000" });
        assert.equal(await db.value("select count(*) from pgonce.intent"), 0);
      }));

    it(`a transaction cannot be used after its attempt (${library})`, () =>
      withApi(library, async (api, db) => {
        let kept: pgonce.Tx | undefined;
        await pgonce.once(api.source, "s", "k", REQUEST, (tx) => {
          kept = tx;
        });
        assert.throws(() => kept?.conn, pgonce.Invalid);
        assert.equal(await db.effects(), 0);
      }));

    it(`a connection that breaks inside the work never writes outside of the transaction (${library})`, () =>
      withApi(library, async (api, db) => {
        await db.run(WAIT);
        let runs = 0;
        const done = await pgonce.once(api.source, "s", "k", REQUEST, async (tx) => {
          runs += 1;
          await api.execute(tx.conn, INSERT);
          if (runs > 1) return;
          const { conn } = tx;
          const kill =
            "select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction' and datname = current_database()";
          await db.run(kill);
          // Work that ignores errors goes on: what it sends must not reach another connection.
          for (;;) {
            try {
              await api.execute(conn, INSERT);
            } catch {
              break;
            }
          }
          await new Promise((resolve) => setImmediate(resolve));
          await Promise.resolve()
            .then(() => api.execute(conn, INSERT))
            .catch(() => undefined);
        });
        assert.deepEqual([done.replayed, runs], [false, 2]);
        assert.equal(await db.effects(), 1);
      }));

    // postgres.js forgets what is sent between the error of a connection and its end.
    it(`a statement after the error of its connection ends (${library})`, () =>
      withApi(library, async (api, db) => {
        await db.run(WAIT);
        let runs = 0;
        const done = await pgonce.once(api.source, "s", "k", REQUEST, async (tx) => {
          runs += 1;
          const first = api.execute(tx.conn, INSERT);
          if (runs === 1) db.proxy.reset();
          await first.catch(() => assert.rejects(async () => api.execute(tx.conn, INSERT)));
        });
        assert.deepEqual([done.replayed, runs], [false, 2]);
        assert.equal(await db.effects(), 1);
      }));
  }

  it("a file that cannot be read costs no connection", () =>
    withDatabase(async (db) => {
      const sql = postgres(db.url, { max: 1 });
      for (const key of ["a", "b"]) {
        const work = (tx: pgonce.Tx<postgres.ReservedSql>): Promise<unknown> => tx.conn.file(`${__filename}.none`);
        await assert.rejects(pgonce.once(sql, "s", key, REQUEST, work), { code: "ENOENT" });
      }
      assert.equal((await pgonce.once(sql, "s", "a", REQUEST, () => 1)).answer, 1);
      await sql.end();
    }));

  it("over one connection a lost commit is uncertain", () =>
    withDatabase(async (db) => {
      const client = new pg.Client(db.cutUrl);
      client.on("error", () => undefined);
      await client.connect();
      db.proxy.faults.push({ at: "commit", action: "reply" });
      const work = async (tx: pgonce.Tx<pg.Client>): Promise<void> => void (await tx.conn.query(INSERT));
      await assert.rejects(
        pgonce.once(client, "s", "k", REQUEST, work),
        (error) => error instanceof pgonce.Uncertain && error.code === "08007",
      );
      const other = new pg.Client(db.url);
      await other.connect();
      assert.equal((await pgonce.once(other, "s", "k", REQUEST, work)).replayed, true);
      await other.end();
      assert.equal(await db.effects(), 1);
    }));

  it("the library's own error is thrown where a retry does not help", () =>
    withPool(async (pool) => {
      const divide = async (tx: pgonce.Tx<pg.PoolClient>): Promise<void> => void (await tx.conn.query("select 1/0"));
      await assert.rejects(pgonce.once(pool, "s", "k", REQUEST, divide), { code: "22012", name: "error" });
      const own = new TypeError("own");
      await assert.rejects(
        pgonce.once(pool, "s", "k", REQUEST, () => {
          throw own;
        }),
        own,
      );
    }));

  it("a server that is away is reported as disconnected", async () => {
    const pool = new pg.Pool({ connectionString: "postgresql://postgres@127.0.0.1:1/none" });
    const sql = postgres("postgresql://postgres@127.0.0.1:1/none", { max: 1 });
    for (const source of [pool, sql]) {
      const work = (): void => assert.fail("the work must not run");
      await assert.rejects(
        pgonce.once(source as unknown, "s", "k", REQUEST, work, { retry: { maxTries: 2 } }),
        pgonce.Disconnected,
      );
    }
    await pool.end();
    await sql.end();
  });

  it("what is no source of connections is refused", async () => {
    await assert.rejects(pgonce.once(7, "s", "k", REQUEST, () => 1), pgonce.Invalid);
    await assert.rejects(pgonce.once(null, "s", "k", REQUEST, () => 1), pgonce.Invalid);
    const pool = new pg.Pool();
    await assert.rejects(pgonce.publish(pool, "t", "e", {}), /pool has none/);
    await assert.rejects(pgonce.once(pool, "s", "k", undefined, () => 1), { code: "P4003" });
    await assert.rejects(pgonce.once(pool, "s", "k", REQUEST, () => 1, { schema: "x; drop" }), pgonce.Invalid);
  });

  it("names that are not Unicode are refused, since all of them have the same bytes", async () => {
    const pool = new pg.Pool();
    for (const bad of ["\ud800", "a\udfff"]) {
      const calls = [
        () => pgonce.once(pool, "s", bad, REQUEST, () => 1),
        () => pgonce.accept({ query: 1 }, "c", "s", bad),
        () => pgonce.acceptBatch({ query: 1 }, "c", "s", [[bad, ""]]),
        async () => pgonce.derivedKey("n", bad),
        async () => pgonce.derivedKey(bad),
        async () => pgonce.resourceId(bad, "n"),
        async () => pgonce.resourceId("n", bad),
        async () => pgonce.fingerprint({}, { operation: bad }),
      ];
      for (const call of calls) {
        await assert.rejects(call, (error) => error instanceof pgonce.Invalid && /not Unicode/.test(error.message));
      }
    }
  });

  it("an option that is undefined is one that is left out", () =>
    withPool(async (pool, db) => {
      const make = pgonce.command(pool, "s", (tx) => tx.conn.query(INSERT).then(() => 1), { tenant: "acme" });
      await make("k", REQUEST, { tenant: undefined });
      assert.deepEqual([(await make("k", REQUEST)).replayed, await db.effects()], [true, 1]);
      let runs = 0;
      await pgonce.once(
        pool,
        "s",
        "again",
        REQUEST,
        async (tx) => {
          runs += 1;
          if (runs === 1) await tx.conn.query("do $$ begin raise exception 'again' using errcode = '40001'; end $$");
        },
        { retry: { maxTries: undefined, timeoutMs: undefined, baseMs: undefined, capMs: undefined } },
      );
      assert.equal(runs, 2);
    }));

  it("an attempt that is rolled back publishes nothing and the next one event", () =>
    withPool(async (pool, db) => {
      const ids: string[] = [];
      await pgonce.once(pool, "s", "k", REQUEST, async (tx) => {
        ids.push(await tx.publish("orders", "order.created", { id: 1 }, { subject: "1" }));
        if (ids.length === 1) await tx.conn.query("do $$ begin raise exception 'again' using errcode = '40001'; end $$");
      });
      assert.equal(ids.length, 2);
      assert.equal(await db.value("select string_agg(message_id::text, ',') from pgonce.outbox"), ids[1]);
    }));

  for (const [name, run] of Object.entries({ once: pgonce.once, lease: pgonce.lease })) {
    it(`a failure of another command is at first new to the one that asked for it (${name})`, () =>
      withPool(async (pool) => {
        const decline = (): never => {
          throw new pgonce.PermanentFailure("declined", "the bank said no", { answer: { by: "bank" } });
        };
        const ask = (): Promise<unknown> => pgonce.once(pool, "ledger", "k", REQUEST, decline);
        await assert.rejects(ask(), { replayed: false });
        for (const replayed of [false, true]) {
          const failed = run(pool, "s", "k", REQUEST, ask);
          await assert.rejects(failed, { name: "PermanentFailure", failureCode: "declined", answer: { by: "bank" }, replayed });
        }
      }));
  }

  it("transact runs again what was rolled back", () =>
    withPool(async (pool, db) => {
      let runs = 0;
      await pgonce.transact(async () => {
        const client = await pool.connect();
        try {
          await client.query("begin");
          await client.query(INSERT);
          runs += 1;
          if (runs === 1) await client.query("do $$ begin raise exception 'again' using errcode = '40001'; end $$");
          await client.query("commit");
        } catch (error) {
          await client.query("rollback");
          throw error;
        } finally {
          client.release();
        }
      });
      assert.deepEqual([runs, await db.effects()], [2, 1]);
    }));

  it("a duplicate waits for the answer where the contract says so", () =>
    withPool(async (pool, db) => {
      await db.run(WAIT);
      let other: Promise<pgonce.Done<unknown>> | undefined;
      await pgonce.once(pool, "s", "k", REQUEST, async () => {
        other = pgonce.once(pool as unknown, "s", "k", REQUEST, () => assert.fail("it is not its to do"));
        // Only once it waits for the lock is the first attempt ended.
        const waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'";
        while ((await db.value(waiting)) === 0);
        return "first";
      });
      const done = await other;
      assert.deepEqual([done?.replayed, done?.answer], [true, "first"]);
    }));

  it("a wait that is ended by a timeout of the session goes on", () =>
    withPool(async (pool, db) => {
      await db.run(WAIT);
      let other: Promise<unknown> | undefined;
      await pgonce.once(pool, "s", "k", REQUEST, async () => {
        let isOver = false;
        const never = (): never => assert.fail("it is not its to do");
        other = pgonce
          .once(pool as unknown, "s", "k", REQUEST, never)
          .catch((error: unknown) => error)
          .finally(() => (isOver = true));
        const cancel =
          "select pg_cancel_backend(pid) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'";
        // It sleeps again, unless it has given up.
        for (let turn = 0; turn < 2; turn++) while (!isOver && (await db.value(cancel)) !== true);
        return "first";
      });
      assert.deepEqual(await other, { answer: "first", reference: null, replayed: true, attempts: 1 });
    }));

  it("duplicates from many processes make one effect each", () =>
    withDatabase(async (db) => {
      await db.run(WAIT);
      const script = path.join(__dirname, "duplicate.js");
      const workers = Array.from({ length: 4 }, async () => {
        const child = spawn(process.execPath, [script, db.url, "10"], { stdio: ["ignore", "pipe", "inherit"] });
        let output = "";
        child.stdout.on("data", (chunk: Buffer) => (output += chunk.toString()));
        const status = await new Promise((resolve) => child.on("close", resolve));
        assert.equal(status, 0);
        return output.trim().split("\n");
      });
      const found = (await Promise.all(workers)).flat();
      assert.equal(found.length, 40);
      assert.equal(found.filter((line) => line.endsWith("new")).length, 10);
      assert.equal(await db.effects(), 10);
    }));
});

/** Claims the intent as if its lease had run out. In one transaction: a heartbeat must not come between. */
async function takeOver(db: Database, held: pgonce.Lease<unknown>): Promise<string> {
  const admin = await db.admin();
  for (;;) {
    await admin.query("begin");
    await admin.query("select pgonce._move_clock(interval '1 hour')");
    const claim = "select outcome, fence::text from pgonce.claim('s', 'k', $1, interval '1 hour')";
    const { rows } = await admin.query<{ outcome: string; fence: string }>(claim, [held.intent.fingerprint]);
    const [row] = rows;
    // A heartbeat that is being made right now holds the row.
    await admin.query(row?.outcome === "busy" ? "rollback" : "commit");
    if (row?.outcome === "busy") continue;
    assert.equal(row?.outcome, "takeover");
    return row.fence;
  }
}

/** Waits until a lease is lost. On a busy machine it may be by now, and then there is no event any more. */
async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve));
}

describe("leases", { concurrency: 4 }, () => {
  it("a lease is renewed while the work runs", () =>
    withPool(async (pool, db) => {
      const work = async (held: pgonce.Lease<pg.PoolClient>): Promise<string> => {
        const until = "select extract(epoch from lease_until)::text from pgonce.intent";
        const first = await db.value(until);
        while ((await db.value(until)) === first) held.check();
        return held.fence.toString();
      };
      const done = await pgonce.lease(pool, "s", "k", REQUEST, work, { leaseMs: 9000 });
      assert.equal(BigInt(done.answer) % 2n, 0n);
      assert.deepEqual([done.replayed, (await pgonce.lease(pool, "s", "k", REQUEST, work)).replayed], [false, true]);
    }));

  it("a lost lease is noticed and the work of the new holder stands", () =>
    withPool(async (pool, db) => {
      const done = await pgonce.lease(
        pool,
        "s",
        "k",
        REQUEST,
        async (held) => {
          const fence = await takeOver(db, held);
          await db.run("select pgonce.succeed('s', 'k', $1, $2, '\"new\"')", [held.intent.fingerprint, fence]);
          await aborted(held.signal);
          assert.throws(() => held.check(), pgonce.Fenced);
          await assert.rejects(
            held.begin((tx) => tx.conn.query(INSERT)),
            pgonce.Fenced,
          );
          return "old";
        },
        { leaseMs: 300 },
      );
      assert.deepEqual([done.replayed, done.answer], [true, "new"]);
      assert.equal(await db.effects(), 0);
    }));

  // Busy says that nothing was done. Here it was, and the new holder is still at work.
  it("work that was done is not said to be busy elsewhere", () =>
    withPool(async (pool, db) => {
      const work = async (held: pgonce.Lease) => {
        await takeOver(db, held);
        return "done outside";
      };
      await assert.rejects(pgonce.lease(pool, "s", "k", REQUEST, work, { leaseMs: 300 }), pgonce.Uncertain);
    }));

  it("work that stops with its signal learns what the new holder did", () =>
    withPool(async (pool, db) => {
      let runs = 0;
      const done = await pgonce.lease(
        pool,
        "s",
        "k",
        REQUEST,
        async (held) => {
          runs += 1;
          const fence = await takeOver(db, held);
          await db.run("select pgonce.succeed('s', 'k', $1, $2, '7')", [held.intent.fingerprint, fence]);
          await aborted(held.signal);
          throw held.signal.reason;
        },
        { leaseMs: 300 },
      );
      assert.deepEqual([done.replayed, done.answer, runs], [true, 7, 1]);
    }));

  it("work under a lease that throws leaves the claim to the contract", () =>
    withPool(async (pool, db) => {
      const own = new Error("own");
      const work = (): never => {
        throw own;
      };
      await assert.rejects(pgonce.lease(pool, "s", "k", REQUEST, work, { leaseMs: 60_000 }), own);
      assert.equal(await db.value("select status::text from pgonce.intent"), "processing");
      await assert.rejects(
        pgonce.lease(pool, "s", "k", REQUEST, work, { leaseMs: 60_000 }),
        (error) => error instanceof pgonce.Busy && error.retryAfterMs > 0 && error.retryAfterMs <= 60_000,
      );
    }));

  const ends: Record<string, (held: pgonce.Lease<pg.PoolClient>) => Promise<unknown>> = {
    "that was recorded by its work": (held) => held.begin((tx) => tx.conn.query(INSERT).then(() => 7)),
    "that was given back": (held) => held.release(),
  };
  for (const [name, end] of Object.entries(ends)) {
    it(`a lease ${name} is not renewed, and not lost`, () =>
      withPool(async (pool, db) => {
        const options = { leaseMs: 3000 };
        const until = "select extract(epoch from lease_until)::text from pgonce.intent where key = 'clock'";
        // Another lease, until a renewal of the first would have been due as well.
        const wait = async (): Promise<void> => {
          const first = await db.value(until);
          while ((await db.value(until)) === first);
        };
        let signal: AbortSignal | undefined;
        const over = pgonce.lease(
          pool,
          "s",
          "k",
          REQUEST,
          async (held) => {
            signal = held.signal;
            await end(held);
            await pgonce.lease(pool, "s", "clock", REQUEST, wait, options);
            held.check();
          },
          options,
        );
        if (name === "that was given back") await assert.rejects(over, pgonce.Invalid);
        else assert.equal((await over).answer, 7);
        assert.equal(signal?.aborted, false);
      }));
  }

  it("the end of a lease that is not renewed is noticed", () =>
    withPool(async (pool, db) => {
      const kinds: string[] = [];
      const work = async (held: pgonce.Lease): Promise<void> => {
        kinds.push(held.kind);
        if (kinds.length > 1) return;
        await aborted(held.signal);
        assert.throws(() => held.check(), pgonce.Fenced);
        // It ends here a little earlier than in the database.
        await db.run("select pgonce._move_clock(interval '1 hour')");
        throw held.signal.reason;
      };
      await pgonce.lease(pool, "s", "k", REQUEST, work, { leaseMs: 1000, renew: false });
      assert.deepEqual(kinds, ["fresh", "takeover"]);
    }), 30_000);

  it("a lease needs a source of connections", () =>
    withDatabase(async (db) => {
      const client = new pg.Client(db.url);
      await client.connect();
      await assert.rejects(pgonce.lease(client, "s", "k", REQUEST, () => 1), /needs a pool/);
      await client.end();
    }));
});
