// Burns a backlog of jobs down with graphile-worker and with pg-boss, each as fast as its documentation shows.
// node queues.mjs URL JOBS ROUNDS: one JSON line for each turn, and one for graphile-worker at half load.
// node queues.mjs summary PEERS BENCH: what `pgonce bench queue --json BENCH` measured beside these lines.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

/** Our median rate divided by each of theirs, and how soon a job starts. */
function summary(peersFile, benchFile) {
  const turns = readFileSync(peersFile, 'utf8').trim().split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line));
  const lines = JSON.parse(readFileSync(benchFile, 'utf8')).lines;
  const ours = (name) => lines.find((line) => line.name === `queue: ${name}`).measured;
  const together = 'worker, ends recorded together';
  for (const name of ['graphile-worker', 'pg-boss']) {
    for (const pinned of [false, true]) {
      const theirs = median(turns.filter((turn) => turn.name === name && turn.pinned === pinned && turn.rate).map((turn) => turn.rate));
      const rate = ours(pinned ? `${together}, xmin pinned` : together);
      console.log(`burn-down${pinned ? ', xmin pinned' : ''}: pgonce ÷ ${name}: ${(rate / theirs).toFixed(2)} (${Math.round(rate)} ÷ ${theirs} jobs a second)`);
    }
  }
  const half = turns.find((turn) => turn.load);
  const ms = (micros) => (micros / 1000).toFixed(1);
  console.log(
    `start latency at half load, median and p99: pgonce ${ms(ours('start latency at half load, median'))} and ` +
      `${ms(ours('start latency at half load, p99'))} ms at ${Math.round(ours('half load'))} jobs a second; ` +
      `${half.name} ${ms(half.median)} and ${ms(half.p99)} ms at ${half.load}`,
  );
}

if (process.argv[2] === 'summary') {
  summary(process.argv[3], process.argv[4]);
  process.exit(0);
}
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

/**
 * graphile-worker at half of what it can enqueue and do, as `pgonce bench queue` does it: the time from enqueuing one job to the start
 * of its handler. Without the local queue, which is for bursts.
 */
async function graphileAtHalfLoad(burnt) {
  const { Logger, makeWorkerUtils } = await load('graphile-worker');
  const logger = new Logger(() => () => {});
  await client.query('truncate graphile_worker._private_jobs');
  const pool = new pg.Pool({ connectionString: url, max: 16 });
  const utils = await makeWorkerUtils({ pgPool: pool, logger });
  const enqueue = (task) => utils.addJob(task, { at: performance.now() });
  const begun = performance.now();
  let count = 0;
  while (performance.now() - begun < 2000) {
    await Promise.all(Array.from({ length: 8 }, () => enqueue('idle')));
    count += 8;
  }
  const enqueued = (count * 1000) / (performance.now() - begun);
  const load = 0.5 / (1 / enqueued + 1 / burnt);
  await client.query('truncate graphile_worker._private_jobs');
  const wanted = Math.floor(load * 6);
  const times = [];
  let all;
  const over = new Promise((resolve) => (all = resolve));
  const runner = await run({
    preset: { worker: { connectionString: url, maxPoolSize: 16, concurrentJobs: 32, pollInterval: 500, logger } },
    taskList: {
      live: ({ at }) => {
        times.push((performance.now() - at) * 1000);
        if (times.length === wanted) all();
      },
    },
  });
  const start = performance.now();
  const calls = [];
  for (let n = 0; n < wanted; n++) {
    const due = start + (n * 1000) / load;
    if (due > performance.now()) await new Promise((resolve) => setTimeout(resolve, due - performance.now()));
    calls.push(enqueue('live'));
    if (calls.length >= 4) await Promise.all(calls.splice(0));
  }
  await Promise.all(calls);
  await over;
  await runner.stop();
  await utils.release();
  await pool.end();
  times.sort((a, b) => a - b);
  const at = (share) => Math.round(times[Math.floor((times.length - 1) * share)]);
  return { name: 'graphile-worker', load: Math.round(load), median: at(0.5), p99: at(0.99) };
}

const burnt = [];
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
      if (round > 0 && name === 'graphile-worker' && !pinned) burnt.push(rate);
    }
  }
}
console.log(JSON.stringify(await graphileAtHalfLoad(median(burnt))));
await client.end();
