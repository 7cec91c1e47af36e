/** Idempotent HTTP APIs, with the semantics of pgonce's HTTP layer. */

export { attemptOf } from "./exchange.js";
export { idempotentExpress, type Drained } from "./express.js";
export { idempotentFastify } from "./fastify.js";
export { idempotentHono } from "./hono.js";
export type { Attempt, Disposition, HeaderList, HttpRequest, HttpResponse, Policy } from "./policy.js";
export { storedKey } from "./request.js";
