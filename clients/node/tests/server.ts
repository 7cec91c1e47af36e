/** A private PostgreSQL for the tests: on a free port, in a temporary folder, gone at the end. */

import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import {
  accessSync,
  chownSync,
  constants,
  existsSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import pg from "pg";
import { LIMIT_MS } from "./limit.js";
import { Proxy } from "./proxy.js";

// From build/tests.
export const PACKAGE = path.resolve(__dirname, "../..");
export const REPOSITORY = path.resolve(PACKAGE, "../..");
const CORE = path.join(REPOSITORY, "crates/pgonce");

/** The folder of the server's programs, found as scripts/setup finds it. */
function binaries(): string {
  const named = process.env.PGONCE_PG_BIN;
  const found = named ? [named] : [];
  if (!named) {
    const config = spawnSync("pg_config", ["--bindir"], { encoding: "utf8" });
    if (config.status === 0) found.push(config.stdout.trim());
    for (const root of ["/usr/lib/postgresql", "/opt/homebrew/opt"]) {
      try {
        found.push(...readdirSync(root).sort().reverse().map((name) => path.join(root, name, "bin")));
      } catch {
        // It does not exist here.
      }
    }
    found.push(...(process.env.PATH ?? "").split(path.delimiter));
    const cached = path.join(process.env.PGONCE_CACHE ?? path.join(REPOSITORY, ".cache"), "postgres");
    try {
      found.push(...readdirSync(cached).map((name) => path.join(cached, name, "bin")));
    } catch {
      // Nothing was fetched.
    }
  }
  for (const folder of found) {
    try {
      for (const name of ["initdb", "postgres", "pg_ctl"]) accessSync(path.join(folder, name), constants.X_OK);
      return folder;
    } catch {
      continue;
    }
  }
  throw new Error("no server programs of PostgreSQL: run scripts/setup, or set PGONCE_PG_BIN");
}

/** The program; Debian puts it into a folder that is not on every user's PATH. */
function pgbouncer(): string {
  const folders = [...(process.env.PATH ?? "").split(path.delimiter), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"];
  const found = folders.map((folder) => path.join(folder, "pgbouncer")).find((program) => existsSync(program));
  if (found === undefined) throw new Error("there is no pgbouncer: run scripts/setup");
  return found;
}

/** The SQL files of the repository, in the order in which the program loads them. */
function sources(): string[] {
  const lists = ["files.rs", "routines.rs"].map((file) => readFileSync(path.join(CORE, "src/migrate", file), "utf8"));
  const text = lists.join("\n");
  const migrations = /MIGRATIONS: &\[Migration\]\s*=\s*migrations!\[(.*?)\];/s.exec(text)?.[1];
  const routines = /ROUTINES: &\[Routine\]\s*=\s*routines!\[(.*?)\];/s.exec(text)?.[1];
  if (migrations === undefined || routines === undefined) {
    throw new Error("src/migrate/ has another form than tests/server.ts reads");
  }
  const named = (list: string): string[] => [...list.matchAll(/"([^"]+)"/g)].map(([, name]) => name ?? "");
  const names = [...named(migrations).map((name) => `migrations/${name}`), ...named(routines)];
  return names.map((name) => readFileSync(path.join(CORE, "sql", `${name}.sql`), "utf8"));
}

function unprivileged(): { uid: number; gid: number } {
  for (const name of ["postgres", "nobody"]) {
    const [uid, gid] = ["-u", "-g"].map((flag) => Number(spawnSync("id", [flag, name], { encoding: "utf8" }).stdout));
    if (uid && gid) return { uid, gid };
  }
  throw new Error("PostgreSQL refuses to run as root, and there is no user postgres or nobody");
}

async function freePort(): Promise<number> {
  const probe = net.createServer();
  await new Promise<void>((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const { port } = probe.address() as net.AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** A running server with a template database that has pgonce installed. */
export class Server {
  port = 0;
  private readonly bin = binaries();
  private readonly folder = mkdtempSync(path.join(tmpdir(), "pgonce-node-"));
  private readonly user = process.geteuid?.() === 0 ? unprivileged() : undefined;
  private count = 0;
  private strategy = "";
  private pooler: ChildProcess | undefined;
  private poolerPort = 0;

  async start(): Promise<void> {
    if (this.user !== undefined) chownSync(this.folder, this.user.uid, this.user.gid);
    const data = path.join(this.folder, "data");
    this.run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C");
    for (let tries = 1; !(await this.started(data)); tries++) {
      if (tries === 10) throw new Error("ten free ports were taken by others");
    }
    await this.administer("postgres", async (client) => {
      await client.query("create database pgonce");
      // Through the log, as is usual from 15 on, a copy takes half as long again.
      const { rows } = await client.query<{ later: boolean }>("select current_setting('server_version_num')::int >= 150000 as later");
      if (rows[0]?.later === true) this.strategy = "strategy file_copy";
    });
    await this.install("pgonce");
  }

  private async install(database: string): Promise<void> {
    await this.administer(database, async (client) => {
      const effect = "create table public.effect (id bigint generated always as identity primary key, note text)";
      const install = ["begin", "set local search_path = pg_catalog, pg_temp", "create schema pgonce", ...sources()];
      for (const statement of [...install, effect, "commit"]) await client.query(statement);
    });
  }

  /** Whether it runs. Somebody else may get the port first. */
  private async started(data: string): Promise<boolean> {
    this.port = await freePort();
    const options =
      `-p ${this.port} -k ${this.folder} -c listen_addresses=127.0.0.1 -c fsync=off ` +
      "-c synchronous_commit=on -c max_connections=200 -c full_page_writes=off -c shared_preload_libraries=plpgsql";
    const log = path.join(this.folder, `log-${this.port}`);
    try {
      this.run("pg_ctl", "-D", data, "-w", "-l", log, "-o", options, "start");
      return true;
    } catch (error) {
      if (readFileSync(log, "utf8").includes("Address already in use")) return false;
      throw error;
    }
  }

  /** PgBouncer in transaction mode in front of the server. */
  async startPooler(): Promise<void> {
    this.poolerPort = await freePort();
    const config = path.join(this.folder, "pgbouncer.ini");
    const lines = [
      "[databases]",
      `* = host=127.0.0.1 port=${this.port} auth_user=postgres`,
      "[pgbouncer]",
      "listen_addr = 127.0.0.1",
      `listen_port = ${this.poolerPort}`,
      "unix_socket_dir =",
      "auth_type = trust",
      "pool_mode = transaction",
      "default_pool_size = 8",
      "max_client_conn = 500",
      "server_idle_timeout = 2",
      "ignore_startup_parameters = extra_float_digits",
    ];
    writeFileSync(config, `${lines.join("\n")}\n`);
    const log = path.join(this.folder, "pgbouncer.out");
    const output = openSync(log, "w");
    const pooler = spawn(pgbouncer(), [config], { cwd: this.folder, stdio: ["ignore", output, output], ...this.user });
    this.pooler = pooler;
    for (;;) {
      if (pooler.exitCode !== null) throw new Error(`pgbouncer ended: ${readFileSync(log, "utf8")}`);
      const client = new pg.Client(this.url("postgres", this.poolerPort));
      try {
        await client.connect();
        await client.end();
        return;
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    }
  }

  stop(): void {
    this.pooler?.kill();
    try {
      this.run("pg_ctl", "-D", path.join(this.folder, "data"), "-m", "immediate", "-w", "stop");
    } finally {
      rmSync(this.folder, { recursive: true, force: true });
    }
  }

  /**
   * A fresh database with pgonce and a table `effect`; where `pooled`, the proxy is in front of PgBouncer. `isolation` is
   * the level of every transaction that does not ask for one; `encoding` is another one than UTF8.
   */
  async database(pooled = false, isolation?: string, encoding?: string): Promise<Database> {
    const name = `t${++this.count}`;
    const how = encoding === undefined ? `template pgonce ${this.strategy}` : `template template0 encoding '${encoding}'`;
    await this.administer("postgres", async (client) => {
      await client.query(`create database ${name} ${how}`);
      if (isolation === undefined) return;
      await client.query(`alter database ${name} set default_transaction_isolation = '${isolation}'`);
    });
    if (encoding !== undefined) await this.install(name);
    const proxy = new Proxy(pooled ? this.poolerPort : this.port);
    await proxy.listen();
    return new Database(this, name, proxy);
  }

  async drop(name: string): Promise<void> {
    await this.administer("postgres", async (client) => client.query(`drop database ${name} with (force)`));
  }

  url(database: string, port = this.port): string {
    return `postgresql://postgres@127.0.0.1:${port}/${database}`;
  }

  private async administer(database: string, work: (client: pg.Client) => Promise<unknown>): Promise<void> {
    const client = new pg.Client(this.url(database));
    await client.connect();
    try {
      await work(client);
    } finally {
      await client.end();
    }
  }

  private run(program: string, ...parts: string[]): void {
    const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("PG")));
    // Output to a file: a server that inherits a pipe would keep it open.
    const log = path.join(this.folder, `${program}.out`);
    const output = openSync(log, "w");
    const ended = spawnSync(path.join(this.bin, program), parts, {
      cwd: this.folder,
      env: environment,
      stdio: ["ignore", output, output],
      timeout: LIMIT_MS,
      ...this.user,
    });
    if (ended.status !== 0) throw new Error(`${program} failed: ${readFileSync(log, "utf8")}`);
  }
}

/** A fresh database, its address, and the address that goes through the proxy. */
export class Database {
  readonly url: string;
  readonly cutUrl: string;
  private connected: pg.Client | undefined;

  constructor(
    private readonly server: Server,
    private readonly name: string,
    readonly proxy: Proxy,
  ) {
    this.url = server.url(name);
    this.cutUrl = server.url(name, proxy.port);
  }

  async admin(): Promise<pg.Client> {
    if (this.connected === undefined) {
      this.connected = new pg.Client(this.url);
      await this.connected.connect();
      // Whatever the database's own level is: who only looks must not get in the way of a serializable transaction.
      await this.connected.query("set default_transaction_isolation = 'read committed'");
    }
    return this.connected;
  }

  async run(sql: string, values: unknown[] = []): Promise<void> {
    await (await this.admin()).query(sql, values);
  }

  /** The first value of a query; a count as a number. */
  async value(sql: string): Promise<unknown> {
    const { rows } = await (await this.admin()).query<unknown[]>({ text: sql, rowMode: "array" });
    const found = rows[0]?.[0];
    return typeof found === "string" && /^-?[0-9]{1,15}$/.test(found) ? Number(found) : found;
  }

  async effects(): Promise<unknown> {
    return this.value("select count(*) from effect");
  }

  async close(): Promise<void> {
    await this.connected?.end();
    this.proxy.close();
    await this.server.drop(this.name);
  }
}
