/** One server for all tests of a process. */

import { after, before } from "node:test";
import { Server } from "./server.js";

export const server = new Server();

before(async () => {
  await server.start();
  await server.startPooler();
});
after(() => server.stop());
