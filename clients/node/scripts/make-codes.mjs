// Writes src/codes.ts from the table of codes that the program publishes.
// The page is generated from the Rust table, and a Rust test holds it to that.
//
//     node scripts/make-codes.mjs           writes it
//     node scripts/make-codes.mjs --check   exits with 1 where it is stale

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const page = fileURLToPath(new URL("../../../docs/src/reference/errors/classification.md", import.meta.url));
const target = fileURLToPath(new URL("../src/codes.ts", import.meta.url));
const row = /^\| \[?`(\w+)`(?:\]\(\w+\.md\))? \| [^|]+ \| (\w+) \|/gm;

function entries(text) {
  const found = [...text.matchAll(row)];
  // Two lines are the head of the table.
  const written = text.split("\n").filter((line) => line.startsWith("|")).length - 2;
  if (found.length === 0 || found.length !== written) {
    throw new Error(`read ${found.length} of ${written} lines of ${page}: fix the pattern here`);
  }
  return found.map(([, code, kind]) => `  ["${code}", "${kind}"],\n`).join("");
}

const table = readFileSync(page, "utf8").split("<!-- table: begin -->")[1].split("<!-- table: end -->")[0];
const [codes, groups] = table.split("Codes without a line of their own");
const made = `// Made by scripts/make-codes.mjs.

import type { ErrorClass } from "./table.js";

export const CODES: ReadonlyMap<string, ErrorClass> = new Map<string, ErrorClass>([
${entries(codes)}]);

export const GROUPS: ReadonlyMap<string, ErrorClass> = new Map<string, ErrorClass>([
${entries(groups)}]);
`;

if (!process.argv.includes("--check")) {
  writeFileSync(target, made);
} else if (!existsSync(target) || readFileSync(target, "utf8") !== made) {
  console.error(`${target} is stale: run node scripts/make-codes.mjs`);
  process.exit(1);
}
