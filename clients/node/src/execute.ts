/** Commands that are one statement: claim, effect and success in one round trip. */

import { adapt, type Row, type Session } from "./drivers/index.js";
import {
  DatabaseError,
  Disconnected,
  Invalid,
  LostRace,
  PgonceError,
  Uncertain,
  isStale,
  keepsSession,
  leavesOpen,
  translate,
} from "./errors.js";
import { Ack, makeIntent, makeOptions, names, readClaimed, type Claimed, type CommandOptions, type Done } from "./intent.js";
import { parse } from "./json.js";
import { Loop } from "./loop.js";
import { afterOwnError, discard, doneNow, ended, fromCall, inCall, openIdle, release, settle } from "./protocol.js";
import * as sql from "./statements.js";
import type { Params } from "./statements.js";

// What a statement must begin with to be a part of another one.
const KINDS = ["insert", "update", "delete", "merge", "select", "values"];

export interface ExecuteOptions extends CommandOptions {
  /** Send it at once: this is known to be the first attempt. Default: look for an earlier answer first. */
  knownFirst?: boolean;
}

/**
 * Makes one statement happen once, in one round trip: the row that it returns is the answer.
 *
 * The statement is an insert, update, delete or merge with `returning`, or a select that calls a function; it returns
 * exactly one row, and its values are `$1`, `$2`, and so on. It becomes a part of one that also claims the intent and
 * records its success, so that all of it commits or none. Events go along where it returns `pgonce.publish(...)` among
 * its columns. Throws what `once` throws, and `Invalid` (22023) where the statement returned no row.
 */
export async function execute<A = unknown>(
  source: unknown,
  scope: string,
  key: string,
  request: unknown,
  statement: string,
  values: readonly unknown[] = [],
  options: ExecuteOptions = {},
): Promise<Done<A>> {
  const intent = makeIntent(scope, key, request, options);
  const driver = adapt(source);
  const command = new OneStatement(new Loop(driver, intent, makeOptions(options)), statement, values);
  return (await inCall(driver, () => command.run(options.knownFirst === true))) as Done<A>;
}

function unanswered(raised: unknown): Uncertain {
  const { reason } = fromCall(raised);
  return new Uncertain(`the reply was lost, whether it happened is not known yet: ${reason}`, { cause: raised });
}

/**
 * Whether the server said no. An earlier attempt's effect may be what stood in the way: its business key, or that nothing was
 * left to do.
 */
function isRefusal(error: unknown): boolean {
  const unknown = [Disconnected, Uncertain, LostRace].some((kind) => error instanceof kind);
  return error instanceof PgonceError && !unknown;
}

class OneStatement {
  private readonly effect: string;
  private readonly params: Params;

  constructor(
    private readonly loop: Loop,
    statement: string,
    private readonly values: readonly unknown[],
  ) {
    const [first = ""] = statement.trim().split(/\s+/, 1);
    if (!KINDS.includes(first.toLowerCase())) {
      throw new Invalid(`a command of one statement cannot begin with ${JSON.stringify(first)}`, {
        hint: "Use insert, update, delete or merge with returning, or a select; for all else once(...).",
      });
    }
    // The line's end closes a comment.
    this.effect = `with effect as materialized (\n${statement.trimEnd().replace(/;+$/, "")}\n)`;
    const { intent, options } = loop;
    const { fingerprint, correlation } = intent;
    this.params = { ...names(intent), fingerprint, correlation, owner: options.owner };
  }

  async run(knownFirst: boolean): Promise<Done> {
    if (this.loop.options.isolation !== undefined) return this.inTransaction();
    for (let look = !knownFirst; ; look = true) {
      try {
        if (look) {
          const found = await this.look();
          // A record that is no answer, or somebody holds it: the claim knows more.
          if (found === undefined) return await this.inTransaction();
          if (found.outcome === "replay") return ended(found);
        }
        return await this.send();
      } catch (error) {
        if (error instanceof DatabaseError && error.code === "P4029") return this.inTransaction();
        await this.loop.again(error);
      }
    }
  }

  /** What is stored, where the server refused the statement in its transaction; else pauses before the next try, or throws. */
  private async again(raised: unknown): Promise<Done | undefined> {
    let error = raised;
    try {
      const found = isRefusal(raised) ? await this.look() : undefined;
      if (found?.outcome === "replay") return ended(found);
    } catch (unseen) {
      // It says nothing about a try before whose reply was lost: the loop remembers that one.
      error = unseen;
    }
    await this.loop.again(error);
    return undefined;
  }

  /** The answer, or that there is no record; undefined where the full claim has to say. */
  private async look(): Promise<Claimed | undefined> {
    return this.withSession(async (session) => {
      try {
        return await this.lookOn(session);
      } catch (raised) {
        throw fromCall(raised);
      }
    });
  }

  private async lookOn(session: Session): Promise<Claimed | undefined> {
    const [row] = await this.query(session, sql.LOOK);
    return row?.[0] == null ? undefined : readClaimed(row);
  }

  /** Sends the statement, which commits by itself. */
  private async send(): Promise<Done> {
    return this.withSession(async (session) => {
      let isSent = false;
      process.nextTick(() => (isSent = true));
      try {
        const [row] = await this.query(session, sql.EXECUTE, this.effect, this.values);
        return { answer: parse(row?.[0] ?? "null"), reference: null, replayed: false, attempts: 1 };
      } catch (raised) {
        const error = translate(raised);
        // What fails in the turn in which it was to be sent has no reply, and was not sent.
        const unsent = error === undefined && !isSent;
        if (error !== undefined && isStale(raised)) throw error;
        if (session.lost || (error !== undefined && leavesOpen(raised))) throw unanswered(raised);
        if (error !== undefined && (!isRefusal(error) || error.code === "P4029")) throw error;
        // An error of the library itself, of a value that it cannot send, is no word of the server: only what is recorded says
        // what happened.
        const look = (): Promise<Claimed | undefined> => this.lookOn(session);
        const found = await (error === undefined ? afterOwnError(session, look) : look()).catch((unseen: unknown) => {
          if (unsent) throw raised;
          const known = translate(unseen);
          throw known === undefined || known instanceof Disconnected ? unanswered(raised) : known;
        });
        if (found?.outcome === "replay") return ended(found);
        throw error ?? raised;
      }
    });
  }

  /** Lends a connection without a transaction. */
  private async withSession<T>(call: (session: Session) => Promise<T>): Promise<T> {
    const session = await openIdle(this.loop.driver);
    let result: T;
    try {
      result = await call(session);
    } catch (raised) {
      await release(session, !session.lost && keepsSession(raised));
      throw raised;
    }
    await release(session, true);
    return result;
  }

  private query(session: Session, text: string, before = "", values: readonly unknown[] = []): Promise<Row[]> {
    const statement = sql.numbered(text, this.loop.options.schema, values.length);
    const ours = statement.names.map((name) => this.params[name] ?? null);
    return session.query(before + statement.text, [...values, ...ours]);
  }

  /** The same in a transaction that holds the claim. */
  private async inTransaction(): Promise<Done> {
    const { intent, options } = this.loop;
    const { text } = sql.numbered(sql.EFFECT, options.schema);
    for (;;) {
      const found = await this.loop.attempt();
      if (!("session" in found)) return found;
      const { session, claimed } = found;
      try {
        let ack: Ack;
        try {
          const [row] = await session.query(this.effect + text, this.values);
          ack = new Ack(parse(row?.[0] ?? "null"));
        } catch (raised) {
          const error = translate(raised) ?? (session.lost ? fromCall(raised) : undefined);
          await discard(session, error);
          throw error ?? raised;
        }
        await settle(session, intent, options, claimed.fence, ack);
        return doneNow(claimed, ack);
      } catch (error) {
        const done = await this.again(error);
        if (done !== undefined) return done;
      }
    }
  }
}
