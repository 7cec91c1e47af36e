"""A private PostgreSQL for the tests: on a free port, in a temporary folder, gone at the end."""

from __future__ import annotations

import glob
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import psycopg
from psycopg import sql

REPOSITORY = Path(__file__).resolve().parents[3]
CORE = REPOSITORY / "crates/pgonce"


def binaries() -> Path:
    """The folder of the server's programs, found as scripts/setup finds it."""
    named = os.environ.get("PGONCE_PG_BIN")
    found = [named] if named else []
    if not named:
        config = shutil.which("pg_config")
        if config:
            found.append(subprocess.run([config, "--bindir"], capture_output=True, text=True).stdout.strip())
        for pattern in ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin"):
            found += sorted(glob.glob(pattern), reverse=True)
        found += os.environ.get("PATH", "").split(os.pathsep)
    for folder in found:
        if all(os.access(os.path.join(folder, name), os.X_OK) for name in ("initdb", "postgres", "pg_ctl")):
            return Path(folder)
    raise RuntimeError("no server programs of PostgreSQL: run scripts/setup, or set PGONCE_PG_BIN")


class Server:
    """A running server with a template database that has pgonce installed."""

    def __init__(self) -> None:
        self.bin = binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="pgonce-python-"))
        self.user: int | None = None
        self.group: int | None = None
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root.
            entry = _unprivileged()
            self.user, self.group = entry.pw_uid, entry.pw_gid
            os.chown(self.folder, self.user, self.group)
        self.port = 0
        self.count = 0
        self._maintenance: psycopg.Connection | None = None
        self.pooler: subprocess.Popen[bytes] | None = None
        self.pooler_port = 0

    def start(self) -> None:
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        if not any(self._started(data) for _ in range(10)):
            raise RuntimeError("ten free ports were taken by others")
        self._install()

    def _started(self, data: str) -> bool:
        """Whether it runs. Somebody else may get the port first."""
        self.port = free_port()
        options = (
            f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off "
            "-c synchronous_commit=on -c max_connections=200 -c full_page_writes=off -c shared_preload_libraries=plpgsql"
        )
        log = self.folder / f"log-{self.port}"
        try:
            self._run("pg_ctl", "-D", data, "-w", "-l", str(log), "-o", options, "start")
        except Exception:
            if "Address already in use" in log.read_text():
                return False
            raise
        return True

    def start_pooler(self) -> None:
        """PgBouncer in transaction mode in front of the server."""
        self.pooler_port = free_port()
        config = self.folder / "pgbouncer.ini"
        config.write_text(
            f"""[databases]
* = host=127.0.0.1 port={self.port} auth_user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.pooler_port}
unix_socket_dir =
auth_type = trust
pool_mode = transaction
default_pool_size = 8
max_client_conn = 500
server_idle_timeout = 2
ignore_startup_parameters = extra_float_digits
"""
        )
        with open(self.folder / "pgbouncer.out", "wb") as output:
            self.pooler = subprocess.Popen(
                [pgbouncer(), str(config)],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=self.user,
                group=self.group,
                start_new_session=True,
            )
        while True:
            try:
                psycopg.connect(self.dsn("postgres", self.pooler_port)).close()
                return
            except psycopg.OperationalError:
                if self.pooler.poll() is not None:
                    text = (self.folder / "pgbouncer.out").read_text("utf-8", "replace")
                    raise RuntimeError(f"pgbouncer ended: {text}") from None

    def stop(self) -> None:
        if self.pooler is not None:
            self.pooler.terminate()
            self.pooler.wait()
        if self._maintenance is not None:
            self._maintenance.close()
        try:
            self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def database(self, isolation: str | None = None, encoding: str | None = None) -> str:
        """A fresh database with pgonce and a table `effect`; answers its name. `isolation` is the level of every
        transaction that does not ask for one. `encoding` is another one than UTF8."""
        self.count += 1
        name = f"t{self.count}"
        if encoding is not None:
            self._install(name, f"template template0 encoding '{encoding}'")
            return name
        conn = self.maintenance
        # Through the log, as is usual from 15 on, it takes half as long again.
        how = "create database {} template pgonce" + (" strategy file_copy" if conn.info.server_version >= 150000 else "")
        conn.execute(sql.SQL(how).format(sql.Identifier(name)))
        if isolation is not None:
            usual = sql.SQL("alter database {} set default_transaction_isolation = {}")
            conn.execute(usual.format(sql.Identifier(name), sql.Literal(isolation)))
        return name

    def drop(self, name: str) -> None:
        self.maintenance.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    @property
    def maintenance(self) -> psycopg.Connection:
        """The one connection that makes and drops databases, for all tests."""
        if self._maintenance is None:
            self._maintenance = psycopg.connect(self.dsn("postgres"), autocommit=True)
        return self._maintenance

    def dsn(self, database: str, port: int | None = None) -> str:
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}?sslmode=disable"

    def _run(self, program: str, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        # Output to a file: a server that inherits a pipe would keep it open.
        with open(self.folder / f"{program}.out", "wb") as output:
            ended = subprocess.run(
                [str(self.bin / program), *arguments],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=self.user,
                group=self.group,
                start_new_session=True,
            )
        if ended.returncode != 0:
            text = (self.folder / f"{program}.out").read_text("utf-8", "replace")
            raise RuntimeError(f"{program} failed: {text}")

    def _install(self, name: str = "pgonce", how: str = "") -> None:
        self.maintenance.execute(f"create database {name} {how}".encode())
        with psycopg.connect(self.dsn(name)) as conn:
            conn.execute("set local search_path = pg_catalog, pg_temp")
            conn.execute("create schema pgonce")
            for path in sources():
                conn.execute(path.read_text("utf-8").encode("utf-8"))
            conn.execute(
                "create table public.effect (id bigint generated always as identity primary key, note text)"
            )


def sources() -> list[Path]:
    """The SQL files of the repository, in the order in which the program loads them."""
    text = "".join((CORE / "src/migrate" / file).read_text("utf-8") for file in ("files.rs", "routines.rs"))
    migrations = re.search(r"MIGRATIONS: &\[Migration\]\s*=\s*migrations!\[(.*?)\];", text, re.S)
    routines = re.search(r"ROUTINES: &\[Routine\]\s*=\s*routines!\[(.*?)\];", text, re.S)
    if migrations is None or routines is None:
        raise RuntimeError("src/migrate/ has another form than tests/server.py reads")
    names = [f"migrations/{name}" for name in re.findall(r'"([^"]+)"', migrations[1])]
    names += re.findall(r'"([^"]+)"', routines[1])
    return [CORE / "sql" / f"{name}.sql" for name in names]


def pgbouncer() -> str:
    """The program; Debian puts it into a folder that is not on every user's PATH."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/opt/homebrew/bin"
    found = shutil.which("pgbouncer", path=path)
    if found is None:
        raise RuntimeError("there is no pgbouncer: run scripts/setup")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
