/** What happens to a connection: calls that share one, and ones that end in the middle of a call. */

import assert from "node:assert/strict";
import { describe } from "node:test";
import * as pgonce from "pgonce";
import { withApi, type Api } from "./apis.js";
import { it } from "./limit.js";
import type { Database } from "./server.js";

const REQUEST = { item: "book" };
const INSERT = "insert into effect (note) values ('x')";

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
