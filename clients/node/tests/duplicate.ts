/** One of many processes that all do the same: `node duplicate.js <url> <keys>`. */

import pg from "pg";
import { once } from "pgonce";

async function main([url = "", keys = ""]: string[]): Promise<void> {
  const pool = new pg.Pool({ connectionString: url, max: 2 });
  for (let key = 0; key < Number(keys); key++) {
    const work = async (tx: { conn: pg.PoolClient }): Promise<void> => {
      await tx.conn.query("insert into effect (note) values ('x')");
    };
    const done = await once(pool, "s", `k${key}`, {}, work, { retry: { maxTries: 50 } });
    console.log(key, done.replayed ? "again" : "new");
  }
  await pool.end();
}

void main(process.argv.slice(2));
