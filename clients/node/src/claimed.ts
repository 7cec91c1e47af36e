/** What an attempt in a transaction and a lease have in common. */

import type { ClaimKind, Held, Intent, Options } from "./intent.js";

/** The right to do the work of an intent. */
export abstract class Claimed {
  /** @internal */
  constructor(
    /** What is to happen once. */
    readonly intent: Intent,
    /** @internal */ protected readonly options: Options,
    /** @internal */ protected readonly claimed: Held,
  ) {}

  /**
   * How the claim came to be yours. After a takeover the outside world may have seen the first call of leased work: ask it
   * before you repeat it.
   */
  get kind(): ClaimKind {
    return this.claimed.outcome;
  }

  /** The rising number that shuts out older holders; send it along where others can check it. */
  get fence(): bigint {
    return this.claimed.fence;
  }

  /** Which attempt at the intent this is. */
  get attempts(): number {
    return this.claimed.attempts;
  }
}
