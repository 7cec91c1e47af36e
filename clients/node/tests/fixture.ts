/** One server for all tests of a process. */

import { after, before } from "node:test";
import { Server } from "./server.js";

export const server = new Server();

before(async () => {
  await server.start();
  await server.startPooler();
});
after(() => {
  server.stop();
  // What a test that reached its limit left open must not hold the process.
  setTimeout(() => process.exit(1), 10_000).unref();
});
