/**
 * One worker of the storm: applies every key of a list once, and repeats what it does not know the end of.
 * `node storm.js <url> <library> <first key> <keys>`: prints each key that it knows to be done.
 */

import pg from "pg";
import postgres from "postgres";
import { Busy, lease, once, PgonceError, type Tx } from "pgonce";

async function main([url = "", library = "", first = "", keys = ""]: string[]): Promise<void> {
  const isPg = library === "pg";
  const source = isPg ? new pg.Pool({ connectionString: url, max: 3 }) : postgres(url, { max: 3 });
  if (source instanceof pg.Pool) source.on("error", () => undefined);
  const insert = async (tx: Tx<unknown>): Promise<{ key: string }> => {
    const statement = `insert into effect (note) values ('${tx.intent.scope} ${tx.intent.key}')`;
    if (isPg) await (tx.conn as pg.PoolClient).query(statement);
    else await (tx.conn as postgres.Sql).unsafe(statement);
    await tx.publish("storm", "applied", null, { subject: tx.intent.key });
    return { key: tx.intent.key };
  };
  for (let at = 0; at < Number(keys); at++) {
    // Each worker begins elsewhere, so that they meet in the middle.
    const key = `k${(Number(first) + at) % Number(keys)}`;
    for (;;) {
      try {
        const done =
          at % 4 === 3
            ? await lease(source as unknown, "storm.leased", key, { key }, (held) => held.begin(insert), { leaseMs: 2000 })
            : await once(source as unknown, "storm", key, { key }, insert);
        const { key: found } = done.answer;
        console.log(`${at % 4 === 3 ? "storm.leased" : "storm"} ${found}`);
        break;
      } catch (error) {
        if (!(error instanceof PgonceError)) throw error;
        // Whatever it was: the same key again, as a client does.
        await new Promise((resolve) => setTimeout(resolve, error instanceof Busy ? 50 : 5));
      }
    }
  }
  console.log("end");
  process.exit(0);
}

void main(process.argv.slice(2));
