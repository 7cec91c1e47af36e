/** The table that says, for each SQLSTATE, what a caller does next. */

import { CODES, GROUPS } from "./codes.js";

/** What to do about an error. */
export type ErrorClass =
  | "retry"
  | "retry_after_delay"
  | "claim_again"
  | "classify"
  | "conflict"
  | "final"
  | "ambiguous";

/** What to do about an error with this SQLSTATE. A code in neither list is final. */
export function classify(code: string): ErrorClass {
  return CODES.get(code) ?? (code.length === 5 ? GROUPS.get(code.slice(0, 2)) : undefined) ?? "final";
}
