/** The package as it is shipped. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { describe, it } from "node:test";
import { PACKAGE, REPOSITORY } from "./server.js";

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

describe("the package", () => {
  it("installs from its tarball without a network, for ESM, CJS and TypeScript", () => {
    const folder = mkdtempSync(path.join(tmpdir(), "pgonce-pack-"));
    const run = (program: string, ...parts: string[]): string =>
      execFileSync(program, parts, { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
    try {
      const packed = execFileSync("npm", ["pack", "--ignore-scripts", "--json", "--offline", "--pack-destination", folder], {
        cwd: PACKAGE,
        encoding: "utf8",
      });
      const [{ filename, files }] = JSON.parse(packed) as [{ filename: string; files: { path: string }[] }];
      assert.ok(files.every(({ path: name }) => /^(?:dist\/|package\.json$|README\.md$|LICENSE)/.test(name)));
      writeFileSync(path.join(folder, "package.json"), '{"private": true}');
      run("npm", "install", "--offline", "--no-audit", "--no-fund", `./${filename}`);
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
