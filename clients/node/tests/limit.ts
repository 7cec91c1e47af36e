/** Tests with a time limit: one that hangs fails, is named, and holds up none of the others. */

import { it as plain } from "node:test";

/** Far above what any test needs on a busy machine. Programs that a test waits for get it, too: meanwhile nothing else runs. */
export const LIMIT_MS = 120_000;

/** `it` of node:test, with a limit. */
export function it(name: string, body: () => unknown, limitMs = LIMIT_MS): void {
  void plain(name, { timeout: limitMs }, async () => {
    await body();
  });
}
