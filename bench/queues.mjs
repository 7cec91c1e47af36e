// Burns a backlog of jobs down with graphile-worker and with pg-boss, each as fast as its documentation shows.
// node queues.mjs URL JOBS ROUNDS: one JSON line for each turn.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [url, jobsText, roundsText] = process.argv.slice(2);
const jobs = Number(jobsText);
const rounds = Number(roundsText);
// The packages are in the scratch folder that the script installs them into.
const require = createRequire(`${process.cwd()}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { default: pg } = await load('pg');
const { run, runMigrations } = await load('graphile-worker');
const bossModule = await load('pg-boss');
// npm takes the newest one for this Node: from version 12 on the class is a named export, and insert takes the queue.
const PgBoss = bossModule.PgBoss ?? bossModule.default;

const client = new pg.Client(url);
await client.connect();

/** A transaction that begins before and does not end: no dead row goes. */
async function pin() {
  const pinned = new pg.Client(url);
  await pinned.connect();
  await pinned.query('begin isolation level repeatable read');
  await pinned.query('select pg_current_xact_id()');
  return pinned;
}

async function graphile() {
  const { Logger } = await load('graphile-worker');
  const logger = new Logger(() => () => {});
  await runMigrations({ connectionString: url, logger });
  await client.query('truncate graphile_worker._private_jobs');
  await client.query(
    `select 1 from graphile_worker.add_jobs(array(select json_populate_record(null::graphile_worker.job_spec,
       json_build_object('identifier', 'noop', 'payload', json_build_object('n', n))) from generate_series(1, $1::int) n))`,
    [jobs],
  );
  await client.query('analyze graphile_worker._private_jobs');
  return async () => {
    let done = 0;
    let all;
    const over = new Promise((resolve) => (all = resolve));
    const runner = await run({
      preset: {
        worker: {
          connectionString: url,
          maxPoolSize: 16,
          concurrentJobs: 64,
          pollInterval: 2000,
          localQueue: { size: 2000 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
          logger,
        },
      },
      taskList: {
        noop: () => {
          if (++done === jobs) all();
        },
      },
    });
    await over;
    await runner.stop();
    const left = await client.query('select count(*)::int as n from graphile_worker._private_jobs');
    if (left.rows[0].n > 0) throw new Error(`${left.rows[0].n} jobs are left`);
  };
}

async function boss() {
  const boss = new PgBoss({ connectionString: url, max: 16, supervise: false, schedule: false });
  boss.on('error', () => {});
  await boss.start();
  await boss.deleteQueue('bench').catch(() => {});
  await boss.createQueue('bench');
  for (let from = 0; from < jobs; from += 5000) {
    const some = Math.min(5000, jobs - from);
    const list = Array.from({ length: some }, (_, n) => ({ name: 'bench', data: { n: from + n } }));
    await (bossModule.PgBoss ? boss.insert('bench', list.map(({ data }) => ({ data }))) : boss.insert(list));
  }
  await client.query('analyze');
  return async () => {
    let done = 0;
    const loop = async () => {
      for (;;) {
        const some = await boss.fetch('bench', { batchSize: 1000 });
        if (!some || some.length === 0) return;
        await boss.complete('bench', some.map((job) => job.id));
        done += some.length;
      }
    };
    await Promise.all([loop(), loop()]);
    if (done !== jobs) throw new Error(`${done} of ${jobs} jobs were done`);
    await boss.stop({ graceful: false });
  };
}

for (let round = 0; round <= rounds; round++) {
  for (const [name, prepare] of [['graphile-worker', graphile], ['pg-boss', boss]]) {
    for (const pinned of [false, true]) {
      const work = await prepare();
      const pinning = pinned ? await pin() : null;
      const begun = performance.now();
      await work();
      const rate = Math.round((jobs * 1000) / (performance.now() - begun));
      await pinning?.end();
      // The first round warms up.
      if (round > 0) console.log(JSON.stringify({ name, pinned, rate }));
    }
  }
}
await client.end();
