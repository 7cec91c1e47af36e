/** What happens to a connection: calls that share one, and ones that end in the middle of a call. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { once, type EventEmitter } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { describe } from "node:test";
import pg from "pg";
import postgres from "postgres";
import * as pgonce from "pgonce";
import { api, LIBRARIES, poolOf, withApi, withDatabase, type Api } from "./apis.js";
import { it } from "./limit.js";
import type { Database } from "./server.js";

const REQUEST = { item: "book" };
const INSERT = "insert into effect (note) values ('x')";
const KILL = "select pg_terminate_backend(pid) from pg_stat_activity where state <> 'idle' and datname = current_database() and pid <> pg_backend_pid()";
// A server takes a moment to notice a cut connection, and holds its locks until then.
const WAIT = "select pgonce.define_scope('s', interval '1 day', p_busy => 'wait', p_wait_timeout => '60 seconds')";
// What hangs without a limit of its own.
const HANGS_MS = 30_000;

for (const library of LIBRARIES) {
  it(`a lease without a length asks again for its contract, over ${library}`, () =>
    withApi(library, async ({ source }, db) => {
      db.proxy.faults.push({ at: "select busy", action: "request" });
      assert.equal((await pgonce.lease(source, "s", "k", REQUEST, () => 1)).answer, 1);
      assert.equal(db.proxy.struck, 1);
    }));
}

for (const library of ["pg", "postgres"] as const) {
  /** One idle connection of the caller's own. */
  const withConnection = (test: (conn: unknown, api: Api, db: Database) => Promise<void>): Promise<void> =>
    withApi(library, async (api, db) => {
      const { conn, free } = await api.connection();
      try {
        await test(conn, api, db);
      } finally {
        free();
      }
    });
  const inUse = (error: unknown): boolean => error instanceof pgonce.Invalid && /in use by another call/.test(error.message);

  describe(`calls over one connection of ${library}`, { concurrency: 4 }, () => {
    it("the second of two calls at once is refused, and its retry makes its one effect", () =>
      withConnection(async (conn, api, db) => {
        const call = (key: string): Promise<pgonce.Done<void>> =>
          pgonce.once(conn, "s", key, REQUEST, (tx: pgonce.Tx) => api.execute(tx.conn, INSERT));
        const [first, second] = await Promise.allSettled([call("a"), call("b")]);
        assert.equal(first.status, "fulfilled");
        assert.ok(second.status === "rejected" && inUse(second.reason));
        assert.equal(await db.effects(), 1);
        assert.deepEqual([(await call("b")).replayed, (await call("b")).replayed, await db.effects()], [false, true, 2]);
      }));

    it("one statement does not become a part of work that is rolled back", () =>
      withConnection(async (conn, api, db) => {
        const own = new Error("own");
        const work = async (tx: pgonce.Tx): Promise<never> => {
          await api.execute(tx.conn, INSERT);
          throw own;
        };
        const insert = `${INSERT} returning id`;
        const execute = (): Promise<pgonce.Done> =>
          pgonce.execute(conn, "s", "b", REQUEST, insert, [], { knownFirst: true });
        const [first, second] = await Promise.allSettled([pgonce.once(conn, "s", "a", REQUEST, work), execute()]);
        assert.ok(first.status === "rejected" && first.reason === own);
        assert.ok(second.status === "rejected" && inUse(second.reason));
        // And the other way round.
        const [third, fourth] = await Promise.allSettled([execute(), pgonce.once(conn, "s", "a", REQUEST, work)]);
        assert.equal(third.status, "fulfilled");
        assert.ok(fourth.status === "rejected" && inUse(fourth.reason));
        assert.equal(await db.effects(), 1);
      }));

    it("a call between the tries of another one is refused", () =>
      withConnection(async (conn, api, db) => {
        let runs = 0;
        const over = pgonce.once(conn, "s", "a", REQUEST, async (tx: pgonce.Tx) => {
          runs += 1;
          if (runs === 1) await api.execute(tx.conn, "do $$ begin raise exception 'again' using errcode = '40001'; end $$");
          else await api.execute(tx.conn, INSERT);
        });
        let refused = 0;
        const isOver = over.then(() => true);
        while (!(await Promise.race([isOver, new Promise((resolve) => setImmediate(resolve, false))]))) {
          await assert.rejects(pgonce.once(conn, "s", "b", REQUEST, () => 1), inUse);
          refused += 1;
        }
        assert.ok(refused > 0);
        assert.deepEqual([runs, await db.effects()], [2, 1]);
      }));

    it("work that calls again over its own connection is refused; joining and publishing are not", () =>
      withConnection(async (conn, api, db) => {
        await pgonce.once(conn, "s", "a", REQUEST, async (tx: pgonce.Tx) => {
          for (const inner of [conn, tx.conn]) {
            await assert.rejects(pgonce.once(inner, "s", "b", REQUEST, () => 1), pgonce.Invalid);
            await assert.rejects(pgonce.execute(inner, "s", "b", REQUEST, `${INSERT} returning id`), pgonce.Invalid);
          }
          await pgonce.join(tx.conn, "s", "c", REQUEST, () => api.execute(tx.conn, INSERT));
          await pgonce.publish(tx.conn, "t", "e", {});
        });
        assert.equal(await db.effects(), 1);
        assert.equal(await db.value("select count(*) from pgonce.intent"), 2);
        assert.equal(await db.value("select count(*) from pgonce.outbox"), 1);
      }));
  });
}

for (const library of LIBRARIES) {
  it(`a value that cannot be sent costs no connection, and is the library's own error (${library})`, () =>
    withApi(library, async (api, db) => {
      const circular: Record<string, unknown> = {};
      circular.self = circular;
      const statement = "insert into effect (note) values ($1::jsonb ->> 'a') returning id";
      const value = library === "postgres" ? undefined : circular;
      const own = (error: unknown): boolean => error instanceof Error && !(error instanceof pgonce.PgonceError);
      for (const options of [{ knownFirst: true }, {}, { isolation: "read committed" as const }]) {
        // More often than the pool has connections.
        for (let turn = 0; turn < 6; turn++) {
          await assert.rejects(pgonce.execute(api.source, "s", "k", REQUEST, statement, [value], options), own);
        }
      }
      const done = await pgonce.execute(api.source, "s", "k", REQUEST, statement, [library === "postgres" ? { a: 1 } : '{"a":1}']);
      assert.deepEqual([done.replayed, await db.effects()], [false, 1]);
    }), HANGS_MS);
}

const PG: Record<string, typeof pg> = { "8.21": require("pg821") as typeof pg, current: pg };

for (const [version, library] of Object.entries(PG)) {
  const circular: Record<string, unknown> = {};
  circular.self = circular;
  const insert = "insert into effect (note) values ($1::jsonb ->> 'a') returning id";
  const calls: Record<string, (source: unknown) => Promise<pgonce.Done>> = {
    "one statement": (source) => pgonce.execute(source, "s", "k", REQUEST, insert, [circular]),
    "one statement that is sent at once": (source) =>
      pgonce.execute(source, "s", "k", REQUEST, insert, [circular], { knownFirst: true }),
    "one statement in a transaction": (source) =>
      pgonce.execute(source, "s", "k", REQUEST, insert, [circular], { isolation: "read committed" }),
    work: (source) => pgonce.once(source, "s", "k", REQUEST, async (tx) => void (await (tx.conn as pg.Client).query(insert, [circular]))),
    "writes under a lease": (source) =>
      pgonce.lease(source, "s", "k", REQUEST, (held) => held.begin((tx) => (tx.conn as pg.Client).query(insert, [circular])), {
        leaseMs: 1,
      }),
  };
  // pg before 8.22 waits for ever for the reply to such a statement.
  describe(`a value that pg ${version} cannot send`, { concurrency: 5 }, () => {
    for (const [name, call] of Object.entries(calls)) {
      it(
        `ends ${name}, and costs the pool no connection`,
        () =>
          withDatabase(async (db) => {
            const pool = new library.Pool({ connectionString: db.url, max: name === "writes under a lease" ? 2 : 1 });
            pool.on("error", () => undefined);
            await assert.rejects(call(pool), TypeError);
            const done = await pgonce.once(pool, "s", "other", REQUEST, async (tx) => void (await tx.conn.query(INSERT)));
            assert.deepEqual([done.replayed, await db.effects()], [false, 1]);
            await pool.end();
          }),
        HANGS_MS,
      );
    }

    it(
      "ends one statement over one connection",
      () =>
        withDatabase(async (db) => {
          const client = new library.Client(db.url);
          client.on("error", () => undefined);
          await client.connect();
          const ended = calls["one statement"]?.(client) as Promise<unknown>;
          await assert.rejects(ended, TypeError);
          const next = pgonce.once(client, "s", "k", REQUEST, async (tx) => void (await tx.conn.query(INSERT)));
          if (version === "current") await next;
          else await assert.rejects(next, pgonce.Disconnected);
          assert.equal(await db.effects(), version === "current" ? 1 : 0);
          await client.end();
        }),
      HANGS_MS,
    );
  });
}

for (const library of LIBRARIES) {
  it(`work that outlives its attempt does not write into the next one (${library})`, () =>
    withApi(library, async (api, db) => {
      let goOn = (): void => undefined;
      const later = new Promise<void>((resolve) => (goOn = resolve));
      let late: Promise<void> | undefined;
      const done = await pgonce.once(api.source, "s", "k", REQUEST, async ({ conn }: pgonce.Tx) => {
        if (late === undefined) {
          late = later.then(() => api.execute(conn, INSERT));
          await Promise.all([api.execute(conn, "do $$ begin raise exception 'again' using errcode = '40P01'; end $$"), late]);
        }
        goOn();
        await assert.rejects(late);
        await api.execute(conn, INSERT);
      });
      assert.deepEqual([done.replayed, await db.effects()], [false, 1]);
    }));
}

it("a transaction that somebody left open in a pool costs no call", () =>
  withDatabase(async (db) => {
    const pool = poolOf(db.url, 2);
    for (const last of ["select 1", "select 1/0"]) {
      const leave = async (): Promise<void> => {
        const client = await pool.connect();
        await client.query("begin");
        await client.query(last).catch(() => undefined);
        client.release();
      };
      await leave();
      const done = await pgonce.once(pool, "s", last, REQUEST, async (tx) => void (await tx.conn.query(INSERT)));
      assert.equal(done.replayed, false);
      await leave();
      assert.equal((await pgonce.execute(pool, "one", last, REQUEST, `${INSERT} returning id`)).replayed, false);
      let runs = 0;
      const work = async (): Promise<string> => {
        runs += 1;
        await leave();
        return "done outside";
      };
      assert.deepEqual([(await pgonce.lease(pool, "leased", last, REQUEST, work)).answer, runs], ["done outside", 1]);
    }
    assert.equal(await db.effects(), 4);
    await pool.end();
  }));

describe("a client of pg that is lent", { concurrency: 4 }, () => {
  const withPool = (test: (pool: pg.Pool, db: Database) => Promise<void>): Promise<void> =>
    withDatabase(async (db) => {
      const pool = poolOf(db.url, 1);
      try {
        await test(pool, db);
      } finally {
        await pool.end();
      }
    });

  it("works as the client itself, and sends nothing once its attempt has ended", () =>
    withPool(async (pool, db) => {
      let lent: pg.PoolClient | undefined;
      await pgonce.once(pool, "s", "k", REQUEST, async ({ conn }) => {
        lent = conn;
        assert.ok(conn instanceof pg.Client && Object.getPrototypeOf(conn) === pg.Client.prototype);
        assert.equal(conn.escapeLiteral("a'b"), "'a''b'");
        const notices: unknown[] = [];
        conn.on("notice", ({ message }) => notices.push(message));
        await conn.query({ text: "do $$ begin raise notice 'seen'; end $$" });
        assert.deepEqual(notices, ["seen"]);
        const rows: unknown[] = [];
        const query = conn.query(new pg.Query<{ n: number }>("select 1 as n"));
        await new Promise((resolve) => query.on("row", (row) => rows.push(row)).on("end", resolve));
        assert.deepEqual(rows, [{ n: 1 }]);
        await new Promise<void>((resolve, reject) => conn.query(INSERT, (error: Error | null) => (error ? reject(error) : resolve())));
      });
      const conn = lent as pg.PoolClient;
      await assert.rejects(conn.query(INSERT), { name: "Disconnected", message: /has ended/ });
      assert.throws(() => conn.query(INSERT, () => undefined), pgonce.Disconnected);
      assert.throws(() => conn.query(new pg.Query(INSERT)), pgonce.Disconnected);
      await assert.rejects(pgonce.publish(conn, "t", "e", {}), pgonce.NotInTransaction);
      assert.equal(await db.effects(), 1);
    }));

  it("stays usable in a transaction of the caller's own", () =>
    withPool(async (pool, db) => {
      const client = await pool.connect();
      await client.query("begin");
      let lent: pg.PoolClient | undefined;
      await pgonce.join(client, "s", "k", REQUEST, (tx) => void (lent = tx.conn));
      await lent?.query(INSERT);
      await client.query(INSERT);
      await lent?.query("commit");
      client.release();
      assert.equal(await db.effects(), 2);
      // The connection is watched once, however often it is lent.
      const wire = (client as unknown as { connection: EventEmitter }).connection;
      const before = wire.listenerCount("readyForQuery");
      for (const key of ["a", "b"]) {
        await pgonce.once(pool, "s", key, REQUEST, async ({ conn }) => {
          await pgonce.publish(conn, "t", "e", {});
        });
      }
      assert.equal(wire.listenerCount("readyForQuery"), before);
    }));
});

describe("connections of postgres.js that end", { concurrency: 4 }, () => {
  type Tx = pgonce.Tx<postgres.ReservedSql>;
  type Work = (tx: Tx, kill: () => Promise<void>) => Promise<unknown>;
  const works: Record<string, Work> = {
    "while a cursor waits for its next row": async ({ conn }, kill) => {
      for await (const [row] of conn`select n from generate_series(1, 3) n`.cursor(1)) {
        if (row?.n === 1) await kill();
      }
    },
    "while a cursor runs": async ({ conn }, kill) => {
      for await (const [row] of conn`select n, pg_sleep(case n when 2 then 60 else 0 end) from generate_series(1, 3) n`.cursor(1)) {
        if (row?.n === 1) setImmediate(() => void kill());
      }
    },
    "while another statement waits for its turn": async (tx, kill) => {
      const sent = [tx.conn`select pg_sleep(${60}::int)`, tx.publish("t", "e", {}), tx.conn`select ${1}::int`];
      setImmediate(() => void kill());
      const ended = await Promise.allSettled(sent);
      assert.deepEqual(ended.map(({ status }) => status), ["rejected", "rejected", "rejected"]);
    },
    "before a statement is awaited that was made before": async ({ conn }, kill) => {
      const made = conn`select 1`;
      await kill();
      await assert.rejects(async () => conn`select 2`);
      await assert.rejects(async () => made);
    },
  };
  for (const [when, work] of Object.entries(works)) {
    it(
      `${when} end the attempt, and the next one works`,
      () =>
        withDatabase(async (db) => {
          await db.run(WAIT);
          const sql = postgres(db.url, { max: 2, onnotice: () => undefined });
          let runs = 0;
          const done = await pgonce.once(sql, "s", "k", REQUEST, async (tx) => {
            runs += 1;
            await tx.conn.unsafe(INSERT);
            if (runs === 1) await work(tx, () => db.run(KILL));
          });
          assert.deepEqual([done.replayed, runs, await db.effects()], [false, 2, 1]);
          await sql.end({ timeout: 1 });
        }),
      HANGS_MS,
    );
  }

  it(
    "while a file is read do not send its statement",
    () =>
      withDatabase(async (db) => {
        await db.run(WAIT);
        const folder = mkdtempSync(path.join(tmpdir(), "pgonce-file-"));
        const [pipe, file] = [path.join(folder, "pipe"), path.join(folder, "file")] as const;
        assert.equal(spawnSync("mkfifo", [pipe]).status, 0);
        writeFileSync(file, "insert into effect (note) values ($1)");
        const sql = postgres(db.url, { max: 2, onnotice: () => undefined });
        let runs = 0;
        const done = await pgonce.once(sql, "s", "k", REQUEST, async ({ conn }) => {
          runs += 1;
          if (runs > 1) return void (await conn.file(file, ["x"]));
          // It ends when somebody has written.
          const reading = conn.file(pipe).execute();
          await db.run(KILL);
          await assert.rejects(async () => conn`select 1`);
          await Promise.all([writeFile(pipe, INSERT), assert.rejects(async () => reading, pgonce.Disconnected)]);
        });
        rmSync(folder, { recursive: true });
        assert.deepEqual([done.replayed, runs, await db.effects()], [false, 2, 1]);
        await sql.end({ timeout: 1 });
      }),
    HANGS_MS,
  );

  for (const count of [1, 3]) {
    it(
      `do not take those along that wait for one (${count})`,
      () =>
        withDatabase(async (db) => {
          const sql = postgres(db.url, { max: 1, onnotice: () => undefined });
          const busy = await sql.reserve();
          await busy`select 1`;
          const keys = ["a", "b", "c"].slice(0, count);
          const calls = keys.map((key) => pgonce.once(sql, "s", key, REQUEST, () => key));
          await db.run(KILL.replace("state <> 'idle' and ", ""));
          assert.deepEqual((await Promise.all(calls)).map(({ answer }) => answer), keys);
          // And what was reserved too much was given back.
          assert.equal((await pgonce.once(sql, "s", "d", REQUEST, () => "d")).answer, "d");
          await sql.end({ timeout: 1 });
        }),
      HANGS_MS,
    );
  }

  it(
    "in an outage cost no more requests than there are tries and ends",
    async () => {
      // A port that nobody listens on.
      const away = net.createServer();
      await new Promise<void>((resolve) => away.listen(0, "127.0.0.1", resolve));
      const { port } = away.address() as net.AddressInfo;
      await new Promise((resolve) => away.close(resolve));
      const sql = postgres({ host: "127.0.0.1", port, max: 4, backoff: () => 0 });
      let requests = 0;
      const { reserve } = sql;
      sql.reserve = () => {
        requests += 1;
        return reserve();
      };
      const calls = 200;
      const once = (_: unknown, key: number): Promise<unknown> =>
        pgonce.once(sql, "s", String(key), REQUEST, () => 1, { retry: { maxTries: 2 } });
      const ended = await Promise.allSettled(Array.from({ length: calls }, once));
      assert.ok(ended.every((one) => one.status === "rejected" && one.reason instanceof pgonce.Disconnected));
      assert.ok(requests < 8 * calls, `${requests} requests`);
      await sql.end({ timeout: 1 });
    },
    HANGS_MS,
  );

  it("a pool of postgres.js that would never reserve a connection is refused", async () => {
    const sql = postgres({ fetch_types: false });
    await assert.rejects(pgonce.once(sql, "s", "k", REQUEST, () => 1), /fetch_types/);
    await sql.end();
  });

  it("a statement that is awaited after its attempt is not sent", () =>
    withDatabase(async (db) => {
      const sql = postgres(db.url, { max: 2 });
      let made: { query: PromiseLike<unknown> } | undefined;
      await pgonce.once(sql, "s", "k", REQUEST, (tx) => {
        made = { query: tx.conn.unsafe(INSERT) };
      });
      await assert.rejects(async () => made?.query, pgonce.Disconnected);
      assert.equal(await db.effects(), 0);
      await sql.end();
    }), HANGS_MS);
});

for (const library of LIBRARIES) {
  describe(`a server of ${library} that ends in the middle`, { concurrency: 4 }, () => {
    for (const severity of ["PANIC", "PANIK"]) {
      it(`of a commit leaves open whether it happened, and a claim says it (${severity})`, () =>
        withApi(library, async (api, db) => {
          let runs = 0;
          const work = async (tx: pgonce.Tx): Promise<void> => {
            runs += 1;
            await api.execute(tx.conn, INSERT);
          };
          db.proxy.faults.push({ at: "commit", action: "panic", severity });
          const done = await pgonce.once(api.source, "s", "k", REQUEST, work);
          assert.deepEqual([done.replayed, runs, db.proxy.struck, await db.effects()], [true, 1, 1, 1]);
          db.proxy.faults.push({ at: "commit", action: "panic", severity });
          const once = pgonce.once(api.source, "s", "l", REQUEST, work, { retry: { maxTries: 1 } });
          await assert.rejects(once, pgonce.Uncertain);
        }));

      it(`of one statement leaves open whether it happened, and a look says it (${severity})`, () =>
        withApi(library, async (api, db) => {
          const statement = `${INSERT} returning id`;
          const execute = (key: string, maxTries: number): Promise<pgonce.Done> =>
            pgonce.execute(api.source, "s", key, REQUEST, statement, [], { knownFirst: true, retry: { maxTries } });
          db.proxy.faults.push({ at: "with effect", action: "panic", severity });
          await assert.rejects(execute("k", 1), pgonce.Uncertain);
          await execute("k", 2);
          assert.deepEqual([db.proxy.struck, await db.effects()], [1, 1]);
        }));
    }

    it("or says that it does not know is no error that did nothing", () =>
      withApi(library, async (api, db) => {
        await db.run("create function unknown() returns trigger language plpgsql as $$ begin raise exception 'x' using errcode = '40003'; end $$");
        await db.run("create constraint trigger unknown after insert on effect deferrable initially deferred for each row execute function unknown()");
        const options = { retry: { maxTries: 3 } };
        const work = (tx: pgonce.Tx): Promise<void> => api.execute(tx.conn, INSERT);
        await assert.rejects(pgonce.once(api.source, "s", "k", REQUEST, work, options), pgonce.Uncertain);
        const statement = `${INSERT} returning id`;
        await assert.rejects(pgonce.execute(api.source, "s", "k", REQUEST, statement, [], options), pgonce.Uncertain);
      }));
  });
}

it("transact does not repeat a transaction in which the server ended", async () => {
  let runs = 0;
  const full = Object.assign(new Error("no space left on device"), { code: "53100", severity: "PANIC" });
  const work = (): Promise<void> => {
    runs += 1;
    return Promise.reject(full);
  };
  await assert.rejects(pgonce.transact(work), full);
  assert.equal(runs, 1);
});

it("transact runs again what a stale session refused", async () => {
  let runs = 0;
  const stale = Object.assign(new Error('prepared statement "s1" does not exist'), { code: "26000", severity: "ERROR" });
  const work = (): Promise<string> => {
    runs += 1;
    return runs === 1 ? Promise.reject(stale) : Promise.resolve("done");
  };
  assert.deepEqual([await pgonce.transact(work), runs], ["done", 2]);
});

for (const code of ["53100", "53200"]) {
  it(`transact does not repeat a transaction in which the server ran out of space or memory and ended it (${code})`, async () => {
    let runs = 0;
    const full = Object.assign(new Error("out of it"), { code, severity: "FATAL" });
    const work = (): Promise<void> => {
      runs += 1;
      return Promise.reject(full);
    };
    await assert.rejects(pgonce.transact(work), full);
    assert.equal(runs, 1);
  });
}

for (const library of ["pg", "postgres"] as const) {
  it(`transact runs again what got no connection of a server that is full (${library})`, () =>
    withDatabase(async (db) => {
      const role = `full_${String(await db.value("select current_database()"))}_${library}`;
      await db.run(`create role ${role} login connection limit 0`);
      const url = db.url.replace("postgres@", `${role}@`);
      let runs = 0;
      const full = await pgonce
        .transact(async () => {
          runs += 1;
          const made = api(library, url);
          try {
            await made.transaction((conn) => made.execute(conn, "select 1"));
          } catch (error) {
            await db.run(`alter role ${role} connection limit -1`);
            throw error;
          } finally {
            await made.close();
          }
        })
        .catch((error: unknown) => error);
      await db.run(`drop role ${role}`);
      assert.deepEqual([full, runs], [undefined, 2]);
    }));
}

it("transact runs again what was idle for too long in its transaction", () =>
  withDatabase(async (db) => {
    let runs = 0;
    await pgonce.transact(async () => {
      runs += 1;
      const client = new pg.Client(db.url);
      await client.connect();
      try {
        await client.query("begin");
        await client.query(INSERT);
        if (runs === 1) {
          const ended = once(client, "error");
          await client.query("set local idle_in_transaction_session_timeout = '1ms'");
          throw (await ended)[0];
        }
        await client.query("commit");
      } finally {
        await client.end();
      }
    });
    assert.deepEqual([runs, await db.effects()], [2, 1]);
  }));

for (const library of LIBRARIES) {
  it(`an error of a server behind the server leaves every connection usable (${library})`, () =>
    withApi(library, async (api, db) => {
      const raise = "begin raise exception 'the other server is down' using errcode = '08001'; end";
      await db.run(`create function elsewhere() returns integer language plpgsql as $$ ${raise} $$`);
      const options = { retry: { maxTries: 3 } };
      for (const key of ["a", "b", "c"]) {
        const work = (tx: pgonce.Tx): Promise<void> => api.execute(tx.conn, "select elsewhere()");
        await assert.rejects(pgonce.once(api.source, "s", key, REQUEST, work, options), pgonce.Disconnected);
        const over = (tx: pgonce.Tx): Promise<void> => {
          void tx;
          return Promise.reject(new pgonce.Disconnected("a database of somebody else is away"));
        };
        await assert.rejects(pgonce.once(api.source, "s", key, REQUEST, over, options), pgonce.Disconnected);
        // Under another key: a connection that was thrown away may hold this one for a moment, and the statement would run in a transaction.
        const execute = pgonce.execute(api.source, "s", `${key} alone`, REQUEST, "select elsewhere()", [], options);
        await assert.rejects(execute, pgonce.Uncertain);
      }
      for (const key of ["a", "b", "c", "d", "e"]) {
        await pgonce.once(api.source, "s", key, REQUEST, (tx: pgonce.Tx) => api.execute(tx.conn, INSERT));
        await pgonce.execute(api.source, "s", `${key}2`, REQUEST, `${INSERT} returning id`);
      }
      assert.equal(await db.effects(), 10);
    }));

  it(`prepared statements that are gone fail no command (${library})`, () =>
    withApi(library, async (api, db) => {
      const forget = async (tx: pgonce.Tx): Promise<void> => {
        await api.execute(tx.conn, INSERT);
        await api.execute(tx.conn, "deallocate all");
      };
      for (let n = 0; n < 10; n++) {
        await pgonce.once(api.source, "s", `once ${n}`, REQUEST, forget);
        await pgonce.execute(api.source, "s", `first ${n}`, REQUEST, `${INSERT} returning id`, [], { knownFirst: true });
        await pgonce.once(api.source, "s", `forget ${n}`, REQUEST, forget);
        await pgonce.execute(api.source, "s", `later ${n}`, REQUEST, `${INSERT} returning id`);
      }
      assert.equal(await db.effects(), 40);
    }));
}
