"""First attempts, duplicates and outboxes, beside the peers: see docs/src/explanation/peers.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from typing import Any

import psycopg
from server import Server, free_port

import pgonce

SCHEMA = """
create table orders (id bigint generated always as identity primary key, reference text not null unique, item text not null);
create table message (id bigint generated always as identity primary key, body text not null);
create table recipe (key text primary key, status text not null, answer text);
create function place_order(p_reference text) returns bigint language sql begin atomic
    insert into message (body) values (repeat('x', 200));
    insert into orders (reference, item) values (p_reference, 'book') returning id;
end;
"""
ORDER = "insert into orders (reference, item) values (%s, 'book') returning id"
MESSAGE = "insert into message (body) values (repeat('x', 200))"
AGAIN = 100  # how many keys of each connection come again, over and over


def order(conn: Any, key: str) -> int:
    made: int = conn.execute(ORDER, [key]).fetchone()[0]
    conn.execute(MESSAGE)
    return made


class Bare:
    """The transaction by itself: not safe against a retry."""

    duplicates = False

    def __init__(self, dsn: str, redis_port: int) -> None:
        self.conn = psycopg.connect(dsn)

    def place(self, key: str) -> Any:
        with self.conn.transaction():
            return order(self.conn, key)


class Recipe(Bare):
    """As people write it: a key that is inserted first and updated last, in the same transaction."""

    duplicates = True

    def place(self, key: str) -> Any:
        with self.conn.transaction():
            insert = "insert into recipe (key, status) values (%s, 'processing') on conflict do nothing"
            if self.conn.execute(insert, [key]).rowcount == 0:
                select = "select answer from recipe where key = %s for update"
                return self.conn.execute(select, [key]).fetchone()
            answer = str(order(self.conn, key))
            done = "update recipe set status = 'succeeded', answer = %s where key = %s"
            self.conn.execute(done, [answer, key])
            return answer


class Once(Bare):
    """pgonce.once."""

    duplicates = True

    def place(self, key: str) -> Any:
        work = lambda tx: {"id": order(tx.conn, key)}  # noqa: E731
        return pgonce.once(self.conn, "peers", key, {"reference": key}, work).answer


class Execute(Bare):
    """pgonce.execute, which looks first."""

    duplicates = True

    def place(self, key: str) -> Any:
        call = "select place_order(:reference) as id"
        request = {"reference": key}
        return pgonce.execute(self.conn, "peers", key, request, call, request).answer


class Powertools(Bare):
    """AWS Lambda Powertools with Redis: the record and the effect are in two systems."""

    duplicates = True

    def __init__(self, dsn: str, redis_port: int) -> None:
        super().__init__(dsn, redis_port)
        os.environ.pop("POWERTOOLS_IDEMPOTENCY_DISABLED", None)
        os.environ["AWS_LAMBDA_FUNCTION_NAME"] = "peers"
        from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
        from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

        @idempotent_function(
            data_keyword_argument="command",
            persistence_store=RedisCachePersistenceLayer(host="127.0.0.1", port=redis_port, ssl=False),
            config=IdempotencyConfig(event_key_jmespath="reference"),
        )
        def place(command: dict[str, str]) -> dict[str, int]:
            with self.conn.transaction():
                return {"id": order(self.conn, command["reference"])}

        self.decorated = place

    def place(self, key: str) -> Any:
        return self.decorated(command={"reference": key})


class Dbos(Bare):
    """DBOS Transact: a workflow named by the key, whose step is a transaction of its datasource."""

    duplicates = True

    def __init__(self, dsn: str, redis_port: int) -> None:
        import sqlalchemy
        from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource

        url = dsn.partition("?")[0].replace("postgresql:", "postgresql+psycopg:")
        DBOS(config={"name": "peers", "system_database_url": url, "log_level": "ERROR", "sys_db_pool_size": 2})
        source = SQLAlchemyDatasource.create(url, engine_kwargs={"pool_size": 1})

        @source.transaction()
        def insert(key: str) -> int:
            session = source.sql_session()
            made: int = session.execute(sqlalchemy.text(ORDER.replace("%s", ":key")), {"key": key}).scalar_one()
            session.execute(sqlalchemy.text(MESSAGE))
            return made

        @DBOS.workflow()
        def place(key: str) -> int:
            return insert(key)

        DBOS.launch()
        self.workflow, self.named = place, SetWorkflowID

    def place(self, key: str) -> Any:
        with self.named(key):
            return self.workflow(key)


PYTHON: dict[str, type[Bare]] = {
    "bare transaction": Bare,
    "hand-written recipe": Recipe,
    "pgonce once": Once,
    "pgonce execute": Execute,
    "AWS Powertools 3.37, Redis": Powertools,
    "DBOS Transact 3.3": Dbos,
}
RUST = {
    "bare transaction": "bare",
    "hand-written recipe": "recipe",
    "pgonce Once::run": "pgonce",
    "pgonce Once::execute": "pgonce-execute",
    "pgonce Once::run, cache in process": "pgonce-cached",
    "pgonce Once::run, cache in Redis": "pgonce-redis",
    "idempotent 0.3, Redis": "idempotent",
}


def worker(kind: type[Bare], args: tuple[str, int], turn: str, seconds: float, gate: Any, results: Any) -> None:
    try:
        side = kind(*args)
        gate.wait()
        made = timed(lambda n: side.place(f"{turn}-{n}"), seconds)
        gate.wait()
        again = timed(lambda n: side.place(f"{turn}-{n % min(max(made, 1), AGAIN)}"), seconds) if side.duplicates else 0
        results.put((made, again))
    except BaseException as error:
        gate.abort()
        results.put(error)
    finally:
        results.close()
        results.join_thread()
        os._exit(0)  # DBOS keeps threads.


def timed(do: Any, seconds: float) -> int:
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        do(count)
        count += 1
    return count


def run_python(kind: type[Bare], args: tuple[str, int], connections: int, seconds: float, turn: str) -> tuple[float, float]:
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(connections), context.Queue()
    workers = [
        context.Process(target=worker, args=(kind, args, f"{turn}-{n}", seconds, gate, results)) for n in range(connections)
    ]
    for process in workers:
        process.start()
    counts = [results.get(timeout=120) for _ in workers]
    for process in workers:
        process.join()
    for count in counts:
        if isinstance(count, BaseException):
            raise count
    return sum(c[0] for c in counts) / seconds, sum(c[1] for c in counts) / seconds


# --- outboxes -----------------------------------------------------------------------------------


def drain_skip_locked(conn: Any, batch: int) -> int:
    take = (
        "delete from queue where id in (select id from queue order by id for update skip locked limit %s) returning body"
    )
    return len(conn.execute(take, [batch]).fetchall())


def drain_pgmq_style(conn: Any, batch: int) -> int:
    read = (
        "update queue q set vt = clock_timestamp() + interval '30 s', read_ct = read_ct + 1 from (select id from queue "
        "where vt <= clock_timestamp() order by id for update skip locked limit %s) t where q.id = t.id returning q.id, q.body"
    )
    ids = [row[0] for row in conn.execute(read, [batch]).fetchall()]
    if ids:
        conn.execute("delete from queue where id = any(%s)", [ids])
    return len(ids)


def drain_pgonce(conn: Any, batch: int) -> int:
    count = 0
    for events, settled in conn.execute("select events, batch from pgonce.claim_events('peers', 'peers')").fetchall():
        conn.execute("select pgonce.settle_events('peers', %s)", [json.dumps(settled)])
        count += len(events)
    return count


OUTBOXES = {
    "SKIP LOCKED and DELETE": ("queue", drain_skip_locked),
    "pgmq-style: visibility, then DELETE": ("queue", drain_pgmq_style),
    "pgonce claim_events, settle_events": ("outbox", drain_pgonce),
}
RUST_OUTBOXES = {"obix 0.16, listener": "obix", "pgonce relay": "pgonce"}
BODY = "jsonb_build_object('n', n, 'x', repeat('x', 180))"


def run_outbox(dsn: str, name: str, messages: int) -> float:
    table, drain = OUTBOXES[name]
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "create table if not exists queue (id bigint generated always as identity primary key, read_ct int not null "
            "default 0, vt timestamptz not null default clock_timestamp(), body jsonb not null)"
        )
        if table == "queue":
            body = f"insert into queue (body) select {BODY} from generate_series(1, %s) n"
        else:
            conn.execute("select pgonce.create_subscription('peers', 'start', p_topics => '{peers}') where not exists "
                         "(select from pgonce.outbox_subscription where subscription = 'peers')")
            body = (
                f"select count(pgonce.publish('peers', 'made', (n %% 97)::text, {BODY})) from generate_series(1, %s) n"
            )
        conn.execute(body, [messages])
        began, left = time.monotonic(), messages
        while left > 0:
            left -= drain(conn, 1000)
        return messages / (time.monotonic() - began)


def run_rust_outbox(dsn: str, program: str, side: str, messages: int, schema: list[str]) -> float:
    with psycopg.connect(dsn, autocommit=True) as conn:
        if side == "obix":
            for table in schema:
                conn.execute(table.encode())
            fill = f"insert into persistent_outbox_events (payload) select {BODY} from generate_series(1, %s) n"
        else:
            conn.execute("select pgonce.create_subscription('relay', 'start', p_topics => '{relay}')")
            fill = f"select count(pgonce.publish('relay', 'made', n::text, {BODY})) from generate_series(1, %s) n"
        conn.execute(fill, [messages])
    arguments = [dsn.partition("?")[0], "-", "outbox", side, str(messages)]
    return float(subprocess.check_output([program, *arguments], text=True))


# --- the run ------------------------------------------------------------------------------------


@contextlib.contextmanager
def redis_server() -> Any:
    port, folder = free_port(), tempfile.mkdtemp(prefix="pgonce-peers-")
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--dir", folder]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def median(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f}" if any(values) else "-"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rust", required=True)
    options.add_argument("--obix", required=True, help="the folder of the tables of obix")
    options.add_argument("--seconds", type=float, default=5)
    options.add_argument("--connections", type=int, default=8)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--messages", type=int, default=50_000)
    options.add_argument("--only", default="")
    args = options.parse_args()
    schema = [path.read_text() for path in sorted(pathlib.Path(args.obix).glob("*.sql"))]
    server = Server()
    commands: dict[tuple[str, str], list[tuple[float, float]]] = {}
    outboxes: dict[tuple[str, str], list[float]] = {}
    try:
        server.start()
        dsn = server.dsn(server.database())
        with psycopg.connect(dsn) as conn:
            conn.execute(SCHEMA)
        with redis_server() as redis_port:
            for turn in range(args.rounds):
                for name, kind in PYTHON.items():
                    if args.only in name:
                        ran = run_python(kind, (dsn, redis_port), args.connections, args.seconds, f"py-{turn}-{kind.__name__}")
                        commands.setdefault(("Python", name), []).append(ran)
                for name, side in RUST.items():
                    if args.only in name:
                        urls = [dsn.partition("?")[0], f"redis://127.0.0.1:{redis_port}"]
                        numbers = [str(args.connections), str(args.seconds)]
                        ran_rust = subprocess.check_output([args.rust, *urls, side, *numbers], text=True).split()
                        commands.setdefault(("Rust", name), []).append((float(ran_rust[0]), float(ran_rust[1])))
                for name in OUTBOXES:
                    if args.only in name:
                        outboxes.setdefault(("Python", name), []).append(run_outbox(dsn, name, args.messages))
                for name, side in RUST_OUTBOXES.items():
                    if args.only in name:
                        # In a database of its own: it reads a log from its start.
                        rate = run_rust_outbox(server.dsn(server.database()), args.rust, side, args.messages, schema)
                        outboxes.setdefault(("Rust", name), []).append(rate)
    finally:
        server.stop()
    load = os.getloadavg()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load[0]:.1f} at the end; PostgreSQL with fsync off, Redis with "
          f"appendonly; {args.connections} connections, {args.rounds} rounds of {args.seconds:g} s, medians, a second\n")
    print("| language | side | first attempts | duplicates |\n|---|---|---|---|")
    for (language, name), counts in commands.items():
        print(f"| {language} | {name} | {median([c[0] for c in counts])} | {median([c[1] for c in counts])} |")
    print(f"\n| language | outbox, {args.messages:,} messages in batches of 1,000 | drained |\n|---|---|---|")
    for (language, name), rates in outboxes.items():
        print(f"| {language} | {name} | {median(rates)} |")


if __name__ == "__main__":
    main()
