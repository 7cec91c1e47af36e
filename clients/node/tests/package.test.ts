/** The package as it is shipped. */

import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { describe } from "node:test";
import { promisify } from "node:util";
import { withDatabase } from "./apis.js";
import { it, LIMIT_MS } from "./limit.js";
import { PACKAGE, REPOSITORY } from "./server.js";

const execFileAsync = promisify(execFile);

const ESM = `
import { once, PermanentFailure, classify } from "pgonce";
import { idempotentExpress } from "pgonce/http";
import { createRequire } from "node:module";
const same = createRequire(import.meta.url)("pgonce").PermanentFailure === PermanentFailure;
console.log(typeof once, typeof idempotentExpress, classify("40001"), same);
`;
const CJS = `
const { once, classify } = require("pgonce");
const { idempotentHono } = require("pgonce/http");
console.log(typeof once, typeof idempotentHono, classify("40001"));
`;
const TYPED = `
import { once, type Done } from "pgonce";
import { attemptOf, type Policy } from "pgonce/http";
const policy: Policy = { scope: "s", principal: null };
export const done: Promise<Done<number>> = once(async () => ({ query() {} }), policy.scope, "k", {}, () => 1);
export const tx = attemptOf({}).tx;
`;

/** What a service does, over both libraries and `node:http`; nothing else is installed beside them. */
const SERVICE = `
import assert from "node:assert/strict";
import { createServer } from "node:http";
import pg from "pg";
import postgres from "postgres";
import { execute, lease, lintKey, once, PermanentFailure } from "pgonce";
import { attemptOf, idempotentExpress } from "pgonce/http";

const [, , url] = process.argv;
const insert = "insert into effect (note) values ('x') returning id";
const request = { item: "book", big: 9007199254740993n };
const pool = new pg.Pool({ connectionString: url });
const sql = postgres(url);
lintKey("order-7");
for (const [source, run] of [[pool, (conn) => conn.query(insert)], [sql, (conn) => conn.unsafe(insert)]]) {
  const name = source === pool ? "pg" : "postgres";
  for (const replayed of [false, true]) {
    const done = await once(source, "s", name, request, async (tx) => {
      await run(tx.conn);
      await tx.publish("orders", "order.created", { id: 1 }, { subject: "1" });
      return [name, null, 2 ** 40];
    });
    assert.deepEqual([done.answer, done.replayed], [[name, null, 2 ** 40], replayed]);
    const leased = await lease(source, "s", name + "-leased", request, async (held) => String(held.fence));
    assert.equal(leased.replayed, replayed);
    assert.equal((await execute(source, "s", name + "-one", request, insert, [])).replayed, replayed);
    const declined = once(source, "s", name + "-declined", request, () => {
      throw new PermanentFailure("declined", "no");
    });
    await assert.rejects(declined, (error) => error instanceof PermanentFailure && error.replayed === replayed);
  }
}
const handler = idempotentExpress(pool, { scope: "http", principal: null }, async (req, res) => {
  await attemptOf(req).tx.conn.query(insert);
  res.writeHead(201, { "content-type": "application/json" });
  res.end(JSON.stringify(req.body));
});
const server = createServer((req, res) => handler(req, res));
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
for (const replayed of [null, "true"]) {
  const headers = { "idempotency-key": "k", "content-type": "application/json" };
  const at = "http://127.0.0.1:" + server.address().port;
  const response = await fetch(at, { method: "POST", headers, body: '{"qty":2}' });
  assert.deepEqual([response.status, response.headers.get("idempotent-replayed"), await response.text()], [201, replayed, '{"qty":2}']);
}
await handler.drained();
server.closeAllConnections();
server.close();
await pool.end();
await sql.end();
console.log(process.version);
`;

/** A folder in which the packed package is installed. */
function installed(): string {
  const folder = mkdtempSync(path.join(tmpdir(), "pgonce-pack-"));
  const packed = execFileSync("npm", ["pack", "--ignore-scripts", "--json", "--offline", "--pack-destination", folder], {
    cwd: PACKAGE,
    encoding: "utf8",
    timeout: LIMIT_MS,
  });
  const [{ filename, files }] = JSON.parse(packed) as [{ filename: string; files: { path: string }[] }];
  assert.ok(files.every(({ path: name }) => /^(?:dist\/|package\.json$|README\.md$|LICENSE)/.test(name)));
  writeFileSync(path.join(folder, "package.json"), '{"private": true}');
  const flags = ["install", "--offline", "--no-audit", "--no-fund", `./${filename}`];
  execFileSync("npm", flags, { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], timeout: LIMIT_MS });
  return folder;
}

describe("the package", () => {
  it("works on Node 18 without any framework, as ESM and CJS", () =>
    withDatabase(async (db) => {
      const node = process.env.NODE18;
      assert.ok(node, "NODE18 names no Node 18: run scripts/node-tests");
      const folder = installed();
      try {
        for (const name of ["pg", "postgres"]) {
          symlinkSync(path.join(PACKAGE, "node_modules", name), path.join(folder, "node_modules", name));
        }
        writeFileSync(path.join(folder, "service.mjs"), SERVICE);
        writeFileSync(path.join(folder, "cjs.cjs"), CJS);
        const run = async (...parts: string[]): Promise<string> => (await execFileAsync(node, parts, { cwd: folder, timeout: LIMIT_MS })).stdout.trim();
        assert.match(await run("service.mjs", db.url), /^v18\./);
        assert.equal(await run("cjs.cjs"), "function function retry");
        assert.equal(await db.effects(), 5);
        assert.equal(await db.value("select count(*) from pgonce.outbox"), 2);
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    }));

  it("installs from its tarball without a network, for ESM, CJS and TypeScript", () => {
    const folder = installed();
    const run = (program: string, ...parts: string[]): string =>
      execFileSync(program, parts, { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], timeout: LIMIT_MS });
    try {
      writeFileSync(path.join(folder, "esm.mjs"), ESM);
      writeFileSync(path.join(folder, "cjs.cjs"), CJS);
      assert.equal(run(process.execPath, "esm.mjs").trim(), "function function retry true");
      assert.equal(run(process.execPath, "cjs.cjs").trim(), "function function retry");
      for (const name of ["typed.mts", "typed.cts"]) writeFileSync(path.join(folder, name), TYPED);
      const types = path.join(PACKAGE, "node_modules/@types");
      symlinkSync(path.join(PACKAGE, "node_modules/undici-types"), path.join(folder, "node_modules/undici-types"));
      const tsc = path.join(PACKAGE, "node_modules/typescript/bin/tsc");
      const flags = ["--noEmit", "--skipLibCheck", "--strict", "--module", "node16", "--target", "es2022", "--typeRoots", types, "--types", "node"];
      run(process.execPath, tsc, ...flags, "typed.mts", "typed.cts");
    } catch (error) {
      const { stdout, stderr } = error as { stdout?: string; stderr?: string };
      throw new Error(`${stdout ?? ""}${stderr ?? ""}${String(error)}`);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });

  it("has the version of the workspace", () => {
    const own = JSON.parse(readFileSync(path.join(PACKAGE, "package.json"), "utf8")) as { version: string };
    const workspace = /^version = "(.*)"$/m.exec(readFileSync(path.join(REPOSITORY, "Cargo.toml"), "utf8"))?.[1];
    assert.equal(own.version, workspace);
  });
});
