/** An effect that may have happened is not handed on, or reported, as one that did not. */

import assert from "node:assert/strict";
import path from "node:path";
import { describe } from "node:test";
import pg from "pg";
import * as pgonce from "pgonce";
import { LIBRARIES, api, withDatabase } from "./apis.js";
import { FRAMEWORKS, quiet, withClient, type Client } from "./frameworks.js";
import { it } from "./limit.js";
import { PACKAGE, type Database } from "./server.js";
import type { Policy } from "pgonce/http";

const REQUEST = { item: "book" };
const INSERT = "insert into effect (note) values ('x')";
const LOSE = "delete from pgonce.intent";
const STATUS = "select status::text from pgonce.intent";

/** A source of connections that can be taken away. */
class Source {
  away = false;

  constructor(private readonly url: string) {}

  readonly connect = async (): Promise<pg.Client> => {
    if (this.away) throw new Error("connect ECONNREFUSED");
    const client = new pg.Client(this.url);
    client.on("error", quiet);
    await client.connect();
    return client;
  };
}

function withSource(test: (source: Source, db: Database) => Promise<void>): Promise<void> {
  return withDatabase((db) => test(new Source(db.cutUrl), db));
}

/** How the next claim of the intent begins, once every lease has run out. */
async function nextKind(source: Source, db: Database): Promise<unknown> {
  await db.run("select pgonce._move_clock(interval '1 day')");
  const { answer } = await pgonce.lease(source.connect, "s", "k", REQUEST, (held) => held.kind);
  return answer;
}

/** Makes the record of a success fail while a condition is true. */
async function refuseSuccess(db: Database, refused: string): Promise<void> {
  await db.run("create sequence tries");
  await db.run(`create function refuse() returns trigger language plpgsql as $$
    begin
      if ${refused} then raise exception 'not now' using errcode = '40001'; end if;
      return new;
    end $$`);
  await db.run(
    "create trigger refuse before update on pgonce.intent for each row when (new.status = 'succeeded') execute function refuse()",
  );
}

describe("leased work in doubt", { concurrency: 4 }, () => {
  it("a call that ran the work takes over from itself", () =>
    withSource(async ({ connect }, db) => {
      const kinds: string[] = [];
      const work = async (held: pgonce.Lease): Promise<void> => {
        kinds.push(held.kind);
        if (kinds.length === 1) await db.run(LOSE);
      };
      const done = await pgonce.lease(connect, "s", "k", REQUEST, work);
      assert.deepEqual([kinds, done.replayed], [["fresh", "takeover"], false]);
    }));

  const ends: Record<string, (held: pgonce.Lease) => Promise<void>> = {
    "fails for the moment": () => Promise.reject(new pgonce.TransientFailure("down", "later")),
    "gives the lease back": (held) => held.release(),
  };
  for (const [name, end] of Object.entries(ends)) {
    it(`a call that took over from itself and ${name} leaves a takeover`, () =>
      withSource(async (source, db) => {
        let runs = 0;
        const work = async (held: pgonce.Lease): Promise<void> => {
          runs += 1;
          await (runs === 1 ? db.run(LOSE) : end(held));
        };
        await assert.rejects(pgonce.lease(source.connect, "s", "k", REQUEST, work));
        assert.deepEqual([runs, await db.value(STATUS)], [2, "processing"]);
        assert.equal(await nextKind(source, db), "takeover");
      }));
  }

  const works: Record<string, (held: pgonce.Lease) => unknown> = {
    "that is done": () => 1,
    "that failed": () => Promise.reject(new pgonce.PermanentFailure("no", "no")),
    "that lost the database": (held) => held.heartbeat(),
    "whose writes were not begun": (held) => held.begin(() => 1),
  };
  for (const [name, end] of Object.entries(works)) {
    it(`work ${name}, and cannot be recorded, is uncertain`, () =>
      withSource(async (source, db) => {
        const work = (held: pgonce.Lease): unknown => {
          source.away = true;
          return end(held);
        };
        const ended = pgonce.lease(source.connect, "s", "k", REQUEST, work, { leaseMs: 300, retry: { timeoutMs: 600 } });
        await assert.rejects(ended, { name: "Uncertain", code: "08007" });
        source.away = false;
        assert.equal(await nextKind(source, db), "takeover");
      }));
  }

  it("a success that met an error that passes is recorded by the next try", () =>
    withSource(async ({ connect }, db) => {
      await refuseSuccess(db, "nextval('public.tries') <= 2");
      let runs = 0;
      const done = await pgonce.lease(connect, "s", "k", REQUEST, () => (runs += 1), { leaseMs: 20_000 });
      assert.deepEqual([done.answer, done.replayed, runs, await db.value(STATUS)], [1, false, 1, "succeeded"]);
    }));

  it("a lease is renewed while its work is being recorded", () =>
    withSource(async ({ connect }, db) => {
      await refuseSuccess(db, "clock_timestamp() < new.first_at + interval '1.2 seconds'");
      const done = await pgonce.lease(connect, "s", "k", REQUEST, () => 1, { leaseMs: 400 });
      assert.deepEqual([done.answer, done.replayed, await db.value(STATUS)], [1, false, "succeeded"]);
    }));

  it("a success that the database refuses for longer than the policy allows is uncertain", () =>
    withSource(async ({ connect }, db) => {
      await refuseSuccess(db, "true");
      const ended = pgonce.lease(connect, "s", "k", REQUEST, () => 1, { leaseMs: 300, retry: { timeoutMs: 600 } });
      await assert.rejects(ended, pgonce.Uncertain);
    }));

  it("work that was done is not said to be in conflict with who got the key after it", () =>
    withSource(async ({ connect }, db) => {
      const work = async (): Promise<void> => {
        await db.run(LOSE);
        await db.run("select pgonce.claim('s', 'k', '\\x01', interval '1 hour')");
      };
      await assert.rejects(pgonce.lease(connect, "s", "k", REQUEST, work), pgonce.Uncertain);
    }));

  it("work that used up the time for retries still ends with what is stored", () =>
    withSource(async ({ connect }, db) => {
      const work = async (held: pgonce.Lease): Promise<string> => {
        await db.run(LOSE);
        const admin = await db.admin();
        const claim = "select fence from pgonce.claim('s', 'k', $1, interval '1 hour')";
        const { rows } = await admin.query<{ fence: string }>(claim, [held.intent.fingerprint]);
        await db.run("select pgonce.succeed('s', 'k', $1, $2, '\"new\"')", [held.intent.fingerprint, rows[0]?.fence]);
        return "old";
      };
      const done = await pgonce.lease(connect, "s", "k", REQUEST, work, { retry: { maxTries: 1 } });
      assert.deepEqual([done.answer, done.replayed], ["new", true]);
    }));

  it("a conflict of another command that leased work asked for is not its own", () =>
    withSource(async ({ connect }) => {
      const write = (amount: number) => (): Promise<unknown> => pgonce.once(connect, "ledger", "k", { amount }, () => null);
      await pgonce.lease(connect, "s", "first", REQUEST, write(1));
      await assert.rejects(pgonce.lease(connect, "s", "second", REQUEST, write(2)), pgonce.Uncertain);
    }));

  it("work that ends with an error of the input may have happened", () =>
    withSource(async (source, db) => {
      const work = (): never => {
        throw new pgonce.Invalid("the amount is missing");
      };
      const ended = pgonce.lease(source.connect, "s", "k", REQUEST, work);
      await assert.rejects(ended, { name: "Uncertain", message: /the amount is missing/ });
      assert.equal(await nextKind(source, db), "takeover");
    }));

  it("an error of the input says nothing about a commit whose reply was lost", () =>
    withSource(async ({ connect }, db) => {
      await db.run("select pgonce.define_scope('s', interval '1 day', p_busy => 'wait', p_wait_timeout => '60 seconds')");
      db.proxy.faults.push({ at: "commit", action: "request" });
      let runs = 0;
      const work = (): void => {
        runs += 1;
        if (runs === 2) throw new pgonce.Invalid("the amount is missing");
      };
      await assert.rejects(pgonce.once(connect, "s", "k", REQUEST, work), pgonce.Uncertain);
      assert.equal(runs, 2);
    }));

  it("what is stored counts, not what the work says afterwards", () =>
    withSource(async ({ connect }, db) => {
      const work = async (held: pgonce.Lease<pg.Client>): Promise<never> => {
        await held.begin(async (tx) => void (await tx.conn.query(INSERT)));
        throw new pgonce.TransientFailure("down", "later");
      };
      const done = await pgonce.lease(connect, "s", "k", REQUEST, work);
      assert.deepEqual([done.replayed, await db.value(STATUS), await db.effects()], [false, "succeeded", 1]);
    }));

  it("one statement whose reply was lost stays uncertain when nobody can look", () =>
    withSource(async (source, db) => {
      // The statement, a look, the statement again; and the look after its error is cut.
      db.proxy.faults.push({ at: "with effect", action: "request" }, { at: "select outcome", action: "request", skip: 1 });
      const statement = "insert into effect (note) values ((1 / $1::int)::text) returning id";
      const options = { knownFirst: true, retry: { maxTries: 2 } };
      await assert.rejects(pgonce.execute(source.connect, "s", "k", REQUEST, statement, [0], options), pgonce.Uncertain);
      assert.equal(db.proxy.struck, 2);
    }));

  it("transact does not repeat what was cut off, maybe in its COMMIT", async () => {
    let runs = 0;
    const cut = Object.assign(new Error("terminating connection"), { code: "57P01", severity: "FATAL" });
    const work = (): Promise<void> => {
      runs += 1;
      return Promise.reject(cut);
    };
    await assert.rejects(pgonce.transact(work), cut);
    assert.equal(runs, 1);
  });
});

const EURO = "5 \u20ac";

describe("what the database refuses for its values", { concurrency: 4 }, () => {
  const failures: [() => pgonce.PermanentFailure, string][] = [
    [() => new pgonce.PermanentFailure("declined", "no", { answer: { said: EURO } }), "no"],
    [() => new pgonce.PermanentFailure("declined", EURO), "5 ?"],
    [() => new pgonce.PermanentFailure("declined", "5\0", { answer: "5\0", keepForMs: 1e300 }), "5?"],
  ];
  for (const library of LIBRARIES) {
    it(`a failure is recorded whatever the database can hold of it, over ${library}`, () =>
      withDatabase(async (db) => {
        const { source, close } = api(library, db.url);
        let calls = 0;
        for (const [name, run] of Object.entries({ once: pgonce.once, lease: pgonce.lease })) {
          for (const [number, [failure, reason]] of failures.entries()) {
            for (const replayed of [false, true]) {
              const work = (): never => {
                calls += 1;
                throw failure();
              };
              const ended = await run(source, "s", `${name} ${number}`, REQUEST, work).catch((error: unknown) => error);
              assert.ok(ended instanceof pgonce.PermanentFailure, String(ended));
              assert.equal(ended.replayed, replayed);
              if (replayed) assert.deepEqual([ended.reason, ended.answer], [reason, undefined]);
            }
          }
        }
        assert.equal(calls, 6);
        await close();
      }, false, undefined, "LATIN1"));
  }

  it("leased work is recorded without an answer that cannot be kept", () =>
    withDatabase(async (db) => {
      const { connect } = new Source(db.url);
      await db.run("select pgonce.define_scope('s', interval '1 day', p_max_answer => 100)");
      let calls = 0;
      for (const [answer, id, kept] of [[EURO, "7", "7"], ["x".repeat(200), "7", "7"], [1, EURO, undefined]] as const) {
        const work = (held: pgonce.Lease): void => {
          calls += 1;
          held.succeed(answer, { reference: { type: "order", id } });
        };
        const key = String(calls);
        const run = (): Promise<pgonce.Done<void>> => pgonce.lease(connect, "s", key, REQUEST, work);
        const [first, again] = [await run(), await run()];
        assert.deepEqual([first.replayed, again.replayed], [false, true]);
        for (const done of [first, again]) assert.deepEqual([done.answer, done.reference?.id], [undefined, kept]);
      }
      assert.equal(calls, 3);
    }, false, undefined, "LATIN1"));

  it("a reference that cannot be stored is left out of a lease, and refused elsewhere", () =>
    withSource(async ({ connect }, db) => {
      const reference = { type: "order", id: "a\0b" };
      const leased = await pgonce.lease(connect, "s", "leased", REQUEST, (held) => held.succeed(1, { reference }));
      const written = await pgonce.lease(connect, "s", "written", REQUEST, (held) => held.begin((tx) => tx.succeed(1, { reference })));
      assert.deepEqual([leased.reference, written.reference], [null, null]);
      await assert.rejects(
        pgonce.once(connect, "s", "k", REQUEST, (tx) => tx.succeed(1, { reference })),
        { name: "Invalid", message: /U\+0000/ },
      );
      assert.equal(await db.value("select string_agg(key, ',' order by key) from pgonce.intent"), "leased,written");
    }));

  it("what is recorded of a response is less each time that it is refused", () => {
    type Stored = typeof import("../dist/http/stored.js");
    type Intents = typeof import("../dist/intent.js");
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { withoutWhatIsRefused } = require(path.join(PACKAGE, "dist/http/stored.js")) as Stored;
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const { Ack } = require(path.join(PACKAGE, "dist/intent.js")) as Intents;
    const stored = { http: 1, status: 201, headers: [["location", EURO]], body: EURO };
    const keep = { keepForMs: 60_000 };
    const seen: unknown[] = [];
    for (let ack = withoutWhatIsRefused(new Ack(stored, keep), "22P05"); ack; ack = withoutWhatIsRefused(ack, "22P05")) {
      seen.push([ack.answer, ack.options]);
    }
    const written = { base64: "NSDigqw=" };
    const plain = { ...stored, headers: [["location", written]], body: written };
    const bare = { http: 1, status: 201, unkept: true };
    assert.deepEqual(seen, [[plain, keep], [plain, {}], [bare, {}]]);
    assert.deepEqual(withoutWhatIsRefused(new Ack(stored, keep), "P4040"), new Ack(bare, keep));
    assert.equal(withoutWhatIsRefused(new Ack(stored), "40001"), undefined);
  });
});

for (const [name, framework] of Object.entries(FRAMEWORKS)) {
  const test = (title: string, run: (client: Client) => Promise<void>, policy: Partial<Policy> = {}): void => {
    it(title, () => withClient(framework, { mode: "leased", ...policy }, run));
  };
  const statuses = "select string_agg(status::text, ',' order by first_at) from pgonce.intent";

  describe(`a leased route in doubt, over ${name}`, { concurrency: 4 }, () => {
    test(
      "without its database after its handler was called it is 503 and not known",
      async ({ db, service, post }) => {
        service.own = () => {
          db.proxy.close();
          return { status: 201, body: "done" };
        };
        const { status, problem } = await post("/orders");
        assert.deepEqual([status, problem.code, await db.value(statuses)], [503, "08007", "processing"]);
      },
      { leaseMs: 300, retry: { timeoutMs: 600 } },
    );

    test("a wrong request is answered as such where its key cannot be freed", async ({ db, service, post }) => {
      service.own = () => {
        db.proxy.close();
        return { status: 400, body: "wrong" };
      };
      const { status, body } = await post("/orders");
      assert.deepEqual([status, body.toString()], [400, "wrong"]);
    });

    test("an error that says that nothing was done is not the answer of a handler that was called", async ({ db, service, post }) => {
      const thrown = [
        new pgonce.Disconnected("gone"),
        new pgonce.Busy(100),
        new pgonce.Conflict("another request"),
        new pgonce.Invalid("the amount is missing"),
        new pgonce.DatabaseError("full", { code: "53300" }),
      ];
      for (const error of thrown) {
        service.own = () => {
          throw error;
        };
        const { status, problem } = await post("/orders", "{}", error.name);
        assert.deepEqual([status, problem.code], [503, "08007"], error.name);
      }
      assert.equal(await db.value(`${statuses} where status <> 'processing'`), null);
    });

    test("a response is not sent for another end than its own", async ({ db, service, post }) => {
      service.own = async () => {
        await db.run(LOSE);
        return { status: 201, body: "done" };
      };
      const { status, problem } = await post("/orders");
      assert.deepEqual([status, problem.reason, service.calls], [422, "abandoned", 1]);
      assert.equal((await post("/orders")).problem.reason, "abandoned");
    });

    test(
      "a response that is too large says what may have happened",
      async ({ service, post }) => {
        const why = "too large to be kept, and this route passes no such answers on";
        for (const [status, detail, calls] of [
          [200, `it happened, but its answer is ${why}`, 1],
          [400, `it may have happened: the answer is ${why}`, 2],
          [500, `it may have happened: the answer is ${why}`, 3],
        ] as const) {
          service.own = () => ({ status, body: "x".repeat(200) });
          const { problem } = await post("/orders", "{}", String(status));
          assert.deepEqual([problem.code, problem.detail, service.calls], ["response_too_large", detail, calls]);
        }
      },
      { maxResponse: 100 },
    );

    test("an answer that is larger than the contract allows is recorded without its body", async ({ db, service, post }) => {
      await db.run("select pgonce.define_scope('orders.create', interval '1 day', p_max_answer => 200)");
      for (const [status, again, recorded] of [
        [201, 410, "succeeded"],
        [500, 422, "failed_final"],
      ] as const) {
        service.own = () => ({ status, body: "x".repeat(1000) });
        const reply = await post("/orders", "{}", recorded);
        assert.deepEqual([reply.status, reply.body.length], [status, 1000]);
        assert.equal((await post("/orders", "{}", recorded)).status, again);
      }
      assert.deepEqual([service.calls, await db.value(statuses)], [2, "succeeded,failed_final"]);
    });

    it("a response is recorded whatever the database can hold of it", () =>
      withClient(framework, { mode: "leased" }, async ({ db, service, post }) => {
        const headers = { location: Buffer.from(EURO).toString("latin1"), "pgonce-keep-for": "9".repeat(400) };
        for (const [status, again] of [[201, 201], [404, 422]] as const) {
          service.own = () => ({ status, headers, body: EURO });
          const [first, second] = [await post("/orders", "{}", String(status)), await post("/orders", "{}", String(status))];
          assert.deepEqual([first.status, second.status], [status, again]);
          assert.equal(second.headers.get("idempotent-replayed"), "true");
          if (status === 201) assert.deepEqual([second.body.toString(), second.headers.get("location")], [EURO, headers.location]);
        }
        assert.deepEqual([service.calls, await db.value(statuses)], [2, "succeeded,failed_final"]);
      }, "LATIN1"));

    test("the error of a service that the handler called does not free the key", async ({ db, service, post }) => {
      for (const upstream of [{ statusCode: 400 }, { status: 401 }, { statusCode: 422, expose: false }]) {
        service.own = () => {
          throw Object.assign(new Error("the bank's own words"), upstream);
        };
        for (let turn = 0; turn < 2; turn++) {
          const { status, problem } = await post("/orders", "{}", JSON.stringify(upstream).replace(/\W/g, ""));
          assert.deepEqual([status, problem.code], [500, "handler_failed"]);
        }
      }
      assert.deepEqual([service.calls, await db.value(statuses)], [3, "failed_final,failed_final,failed_final"]);
      // One that is made for the caller is a refusal, as on every route.
      service.own = () => {
        throw Object.assign(new Error("qty must be at least 1"), { statusCode: 400, expose: true });
      };
      assert.equal((await post("/orders", "{}", "wrong")).status, 400);
      assert.equal(await db.value(`select count(*) from pgonce.intent`), 3);
    });

    for (const outcomes of ["final", "finish"] as const) {
      test(
        `a handler that breaks off after it said that it is done is not repeated (${outcomes})`,
        async ({ db, service, post }) => {
          service.breaksOff = Object.assign(new Error("broken"), { statusCode: 400, expose: true });
          service.own = () => ({ status: 201, body: "done" });
          assert.equal((await post("/orders")).problem.code, "handler_failed");
          assert.deepEqual([(await post("/orders")).problem.code, service.calls], ["P4029", 1]);
          assert.equal(await db.value(statuses), "processing");
        },
        { outcomes },
      );
    }
  });
}

it("a run of an atomic route is not answered with the response of the one before", () =>
  withClient(FRAMEWORKS.express!, {}, async ({ db, service, post }) => {
    db.proxy.faults.push({ at: "commit", action: "request", skip: 1 });
    await db.run("select pgonce.define_scope('orders.create', interval '1 day', p_busy => 'wait', p_wait_timeout => '60 seconds')");
    service.own = async (attempt) => {
      await attempt.tx.conn.query(INSERT);
      if (service.calls === 2) throw new pgonce.PermanentFailure("card_declined", "the bank said no");
      return { status: 201, body: "done" };
    };
    const { status, problem } = await post("/orders");
    assert.deepEqual([service.calls, status, problem.reason, await db.effects()], [2, 422, "card_declined", 0]);
  }));
