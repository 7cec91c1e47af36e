"""`once` over one connection of the caller's own, of every library."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from apis import ASYNC, KINDS, Api, run, with_api
from conftest import Database
from proxy import Fault
from server import Server
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

import pgonce
from pgonce import aio
from pgonce._drivers import Driver, Session, adapt
from pgonce._execute import _alone
from pgonce._intent import Options
from pgonce._protocol import begin, commit, fail, in_own_transaction
from pgonce._steps import drive, drive_async, limited

REQUEST = {"item": "book"}
INSERT = "insert into effect (note) values ('x')"
CONNECTIONS = (
    "psycopg Connection",
    "psycopg AsyncConnection",
    "asyncpg Connection",
    "SQLAlchemy Connection",
    "SQLAlchemy Session",
    "SQLAlchemy AsyncConnection over psycopg",
    "SQLAlchemy AsyncConnection over asyncpg",
    "SQLAlchemy AsyncSession over psycopg",
    "SQLAlchemy AsyncSession over asyncpg",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lease_without_a_length_asks_again_for_its_contract(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        async def work(held: Any) -> int:
            return 1

        db.proxy.faults.append(Fault("select busy", "request"))
        assert (await api.work("lease", api.source, "s", "k", REQUEST, do=work)).answer == 1

    with_api(kind, db.cut_dsn, test)
    assert len(db.proxy.struck) == 1


@asynccontextmanager
async def connected(kind: str, dsn: str) -> AsyncIterator[Any]:
    bare = dsn.partition("?")[0]
    psycopg_url = dsn.replace("postgresql:", "postgresql+psycopg:")
    if kind == "psycopg Connection":
        with psycopg.connect(dsn) as conn:
            yield conn
    elif kind == "psycopg AsyncConnection":
        async with await psycopg.AsyncConnection.connect(dsn) as aconn:
            yield aconn
    elif kind == "asyncpg Connection":
        gconn = await asyncpg.connect(bare, ssl=False)
        try:
            yield gconn
        finally:
            await gconn.close()
    elif "Async" not in kind:
        engine = sqlalchemy.create_engine(psycopg_url)
        with engine.connect() if kind.endswith("Connection") else orm.Session(engine) as sconn:
            yield sconn
        engine.dispose()
    else:
        asyncpg_url = bare.replace("postgresql:", "postgresql+asyncpg:") + "?ssl=disable"
        aengine = sqlalchemy_asyncio.create_async_engine(asyncpg_url if kind.endswith("asyncpg") else psycopg_url)
        session = sqlalchemy_asyncio.AsyncSession(aengine) if "Session" in kind else aengine.connect()
        async with session as saconn:
            yield saconn
        await aengine.dispose()


class Connection:
    """One connection, and how to use it."""

    def __init__(self, kind: str, raw: Any) -> None:
        self.raw = raw
        self.is_async = "Async" in kind or "asyncpg" in kind
        self.is_sqlalchemy = kind.startswith("SQLAlchemy")

    async def execute(self, conn: Any, statement: str) -> None:
        await finished(conn.execute(sqlalchemy.text(statement) if self.is_sqlalchemy else statement))

    async def once(self, key: str, do: Callable[[Any], Awaitable[Any]]) -> pgonce.Done:
        if self.is_async:
            done: pgonce.Done = await aio.once(self.raw, "s", key, REQUEST, do)
            return done

        return pgonce.once(self.raw, "s", key, REQUEST, lambda tx: run(do(tx)))

    async def insert(self, tx: Any) -> int:
        assert tx.conn is self.raw, "the work gets the caller's own connection"
        await self.execute(tx.conn, INSERT)
        return 7


async def finished(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def over(kind: str, dsn: str, test: Callable[[Connection], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connected(kind, dsn) as raw:
            await test(Connection(kind, raw))

    asyncio.run(main())


@pytest.mark.parametrize("kind", CONNECTIONS)
def test_a_command_over_one_connection_happens_once_and_leaves_it_usable(db: Database, kind: str) -> None:
    async def test(conn: Connection) -> None:
        for replayed in (False, True):
            done = await conn.once("k", conn.insert)
            assert (done.answer, done.replayed) == (7, replayed)
        # A transaction of the caller's own follows, and another command.
        await conn.execute(conn.raw, "select 1")
        if hasattr(conn.raw, "rollback"):
            await finished(conn.raw.rollback())
        assert not (await conn.once("other", conn.insert)).replayed

    over(kind, db.dsn, test)
    assert db.effects() == 2


@pytest.mark.parametrize("kind", CONNECTIONS)
def test_a_failure_over_one_connection_is_recorded_and_its_write_undone(db: Database, kind: str) -> None:
    async def test(conn: Connection) -> None:
        async def decline(tx: Any) -> None:
            await conn.insert(tx)
            raise pgonce.PermanentFailure("declined", "the bank said no")

        for replayed in (False, True):
            with pytest.raises(pgonce.PermanentFailure) as caught:
                await conn.once("k", decline)
            assert caught.value.replayed is replayed

    over(kind, db.dsn, test)
    assert db.effects() == 0


@pytest.mark.parametrize("kind", CONNECTIONS)
def test_over_one_connection_a_commit_that_answers_rollback_is_noticed(db: Database, kind: str) -> None:
    async def test(conn: Connection) -> None:
        db.proxy.faults.append(Fault("commit", "abort"))
        done = await conn.once("k", conn.insert)
        assert db.proxy.struck and not done.replayed
        assert (await conn.once("k", conn.insert)).replayed

    over(kind, db.cut_dsn, test)
    assert db.effects() == 1, "what was rolled back was run again"


@pytest.mark.parametrize("kind", CONNECTIONS)
def test_over_one_connection_a_lost_commit_is_uncertain(db: Database, kind: str) -> None:
    async def test(conn: Connection) -> None:
        db.proxy.faults.append(Fault("commit", "reply"))
        with pytest.raises(pgonce.Uncertain) as caught:
            await conn.once("k", conn.insert)
        assert caught.value.code == "08007"

    over(kind, db.cut_dsn, test)
    with psycopg.connect(db.dsn) as other:
        assert pgonce.once(other, "s", "k", REQUEST, lambda tx: 1).replayed
    assert db.effects() == 1


@pytest.mark.parametrize("kind", ["psycopg Connection", "psycopg AsyncConnection"])
def test_a_connection_that_is_closed_before_its_commit_has_not_committed(db: Database, kind: str) -> None:
    async def test(conn: Connection) -> None:
        acquired = adapt(conn.raw, is_async=conn.is_async).acquire()
        session = await acquired if conn.is_async else acquired
        await conn.execute(conn.raw, INSERT)
        await finished(conn.raw.close())
        with pytest.raises(pgonce.Uncertain):
            await drive_async(commit(session))

    over(kind, db.dsn, test)
    assert db.effects() == 0


@pytest.mark.parametrize("kind", ["psycopg Connection", "psycopg AsyncConnection"])
def test_one_statement_has_the_isolation_and_the_mode_of_its_connection(db: Database, kind: str) -> None:
    insert = "insert into effect (note) values (current_setting('transaction_isolation')) returning note"

    async def test(conn: Connection) -> None:
        async def execute(key: str) -> pgonce.Done:
            if conn.is_async:
                return await aio.execute(conn.raw, "s", key, REQUEST, insert, known_first=True)
            return pgonce.execute(conn.raw, "s", key, REQUEST, insert, known_first=True)

        async def set_to(name: str, value: Any) -> None:
            await finished(getattr(conn.raw, f"set_{name}")(value))

        await set_to("isolation_level", psycopg.IsolationLevel.SERIALIZABLE)
        assert (await execute("k")).answer == {"note": "serializable"}
        await set_to("isolation_level", None)
        assert (await execute("default")).answer == {"note": "read committed"}
        await set_to("read_only", True)
        with pytest.raises(pgonce.DatabaseError) as caught:
            await execute("l")
        assert caught.value.code == "25006"

    over(kind, db.dsn, test)
    assert db.effects() == 2


# --- work that outlives its attempt -------------------------------------------------------------

AGAIN = "do $$ begin raise exception 'again' using errcode = '40P01'; end $$"


@pytest.mark.parametrize("kind", ASYNC)
def test_work_that_outlives_its_attempt_does_not_write_into_the_next_one(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        late: list[asyncio.Task[None]] = []
        go_on = asyncio.Event()

        async def write_late(conn: Any) -> None:
            await go_on.wait()
            await api.execute(conn, INSERT)

        async def work(tx: Any) -> None:
            if not late:
                late.append(asyncio.ensure_future(write_late(tx.conn)))
                await asyncio.gather(late[0], api.execute(tx.conn, AGAIN))
            go_on.set()
            await asyncio.wait(late)
            await api.execute(tx.conn, INSERT)

        assert not (await api.work("once", api.source, "s", "k", REQUEST, do=work)).replayed
        assert late[0].exception() is not None

    with_api(kind, db.dsn, test)
    assert db.effects() == 1


@pytest.mark.parametrize("kind", ["psycopg-async", "asyncpg"])
def test_a_connection_that_was_lent_sends_nothing_from_the_end_of_its_attempt_on(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        session = await adapt(api.source, is_async=True).acquire()
        for end in (session.commit, session.rollback):
            await session.begin(None)
            await end()
            # It is not back in its pool yet.
            with pytest.raises((pgonce.Disconnected, asyncpg.InterfaceError)):
                await session.raw.execute(INSERT)
        await session.release(True)

    with_api(kind, db.dsn, test)
    assert db.effects() == 0


def test_a_connection_of_psycopg_is_lent_with_all_that_it_has(db: Database) -> None:
    kept: list[Any] = []

    def work(tx: Any) -> None:
        conn = tx.conn
        assert isinstance(conn, psycopg.Connection)
        if not kept:
            kept.extend((conn, conn.cursor()))
            conn.execute(AGAIN)
        for send in (
            lambda: kept[0].execute(INSERT),
            lambda: kept[1].execute(INSERT),
            lambda: kept[0].transaction().__enter__(),
            kept[0].commit,
            kept[0].rollback,
        ):
            with pytest.raises(pgonce.Disconnected, match="has ended"):
                send()
        assert psycopg.sql.Identifier("a").as_string(conn) == '"a"'
        assert psycopg.types.TypeInfo.fetch(conn, "effect") is not None
        with conn.transaction(), conn.cursor().copy("copy effect (note) from stdin") as copy:
            copy.write_row(("copied",))
        with conn.cursor("named") as cursor:
            assert cursor.execute("select note from effect").fetchall() == [("copied",)]
        pgonce.publish(conn, "t", "e", {})
        with pgonce.join(conn, "s", "joined", REQUEST) as joined:
            joined.conn.execute(INSERT)
            joined.succeed(1)
        conn.execute(INSERT)

    with psycopg_pool.ConnectionPool(db.dsn, min_size=1, max_size=1) as pool:
        assert not pgonce.once(pool, "s", "k", REQUEST, work).replayed
        with pool.connection() as conn:
            assert type(conn) is psycopg.Connection and conn.closed is False
            with pgonce.join(conn, "s", "own", REQUEST) as tx:
                own = tx.conn
                tx.succeed(1)
            assert own is conn, "in the caller's own transaction it stays usable"
    assert db.effects() == 3


# --- interrupts ---------------------------------------------------------------------------------


class Interrupted(Session):
    """A session that is interrupted in one of its calls."""

    raw = None
    can_query_alone = True

    def __init__(self, where: str, error: type[BaseException]) -> None:
        self.where = where
        self.error = error
        self.released: list[bool] = []

    def _call(self, name: str) -> None:
        if name == self.where:
            self.where = ""
            raise self.error

    def autocommits(self) -> bool:
        self._call("autocommits")
        return False

    def in_transaction(self) -> bool:
        self._call("in_transaction")
        return False

    def begin(self, isolation: str | None) -> None:
        self._call("begin")

    def query(self, sql: str, params: Any) -> Any:
        self._call("query")
        if self.where == "rollback":
            raise ZeroDivisionError
        return [("done",)]

    def query_alone(self, sql: str, params: Any) -> Any:
        self._call("query_alone")
        return [("done",)]

    def commit(self) -> str:
        self._call("commit")
        return "COMMIT"

    def rollback(self) -> None:
        self._call("rollback")

    def release(self, keep: bool) -> None:
        self._call("release")
        self.released.append(keep)


class OneSession(Driver):
    def __init__(self, session: Session) -> None:
        self.session = session

    def acquire(self) -> Session:
        return self.session


ENDS: dict[str, Callable[[Driver, Session], Any]] = {
    "in_own_transaction": lambda driver, _: in_own_transaction(driver, Options(), "select 1", {}),
    "begin": lambda driver, _: begin(driver, None, atomic=True),
    "alone": lambda driver, _: _alone(driver, "select 1", {}),
    "fail": lambda driver, session: fail(
        driver, session, pgonce.Intent("s", "k", b"x"), Options(), 1, pgonce.PermanentFailure("no", "no")
    ),
}


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ("in_own_transaction", "in_transaction"),
        ("in_own_transaction", "begin"),
        ("in_own_transaction", "autocommits"),
        ("in_own_transaction", "query"),
        ("in_own_transaction", "rollback"),
        ("in_own_transaction", "commit"),
        ("in_own_transaction", "release"),
        ("begin", "autocommits"),
        ("alone", "in_transaction"),
        ("alone", "query_alone"),
        ("fail", "rollback"),
    ],
)
@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_a_session_whose_call_is_interrupted_is_closed_and_given_back(
    steps: str, where: str, error: type[BaseException]
) -> None:
    session = Interrupted(where, error)
    with pytest.raises(error):
        drive(ENDS[steps](OneSession(session), session))
    # An interrupt leaves open whether the connection was given back: to close it then could close another's.
    assert session.released == ([] if (where, error) == ("release", KeyboardInterrupt) else [False])


class Late(Session):
    """A session that goes on although it was cut: what it waited for had come by then."""

    raw = None

    def __init__(self) -> None:
        self.released: list[bool] = []
        self.is_cut = threading.Event()
        self.is_released = threading.Event()

    def cut(self) -> None:
        self.is_cut.set()

    def release(self, keep: bool) -> None:
        self.released.append(keep)
        self.is_released.set()


def opened(driver: Driver) -> Any:
    session = yield driver.acquire
    yield lambda: session.is_cut.wait()
    return session


async def wait_for(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.01)


class OneLateSession(OneSession):
    is_async = True

    async def acquire(self) -> Session:  # type: ignore[override]
        return self.session


def opened_async(driver: Driver) -> Any:
    session = yield driver.acquire
    yield lambda: wait_for(session.is_cut)
    return session


def test_a_session_that_is_opened_too_late_is_closed() -> None:
    session = Late()
    with pytest.raises(pgonce.Disconnected):
        drive(limited(OneSession(session), opened, 0.01, pgonce.Disconnected))
    session.is_released.wait()
    assert session.released == [False]


def test_a_session_that_is_opened_too_late_is_closed_by_its_loop() -> None:
    session = Late()

    async def main() -> None:
        with pytest.raises(pgonce.Disconnected):
            await drive_async(limited(OneLateSession(session), opened_async, 0.01, pgonce.Disconnected))
        await wait_for(session.is_released)

    asyncio.run(main())
    assert session.released == [False]


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg", "SQLAlchemy"])
def test_work_that_is_cancelled_while_it_is_rolled_back_leaves_its_place_in_the_pool_free(db: Database, kind: str) -> None:
    db.proxy.faults.append(Fault("rollback", "silence"))

    async def work(tx: Any) -> None:
        raise ZeroDivisionError

    async def cancelled(source: Any) -> None:
        task = asyncio.ensure_future(aio.once(source, "s", "k", REQUEST, work))
        while not db.proxy.struck:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> None:
        bare = db.cut_dsn.partition("?")[0]
        if kind == "psycopg":
            async with psycopg_pool.AsyncConnectionPool(db.cut_dsn, min_size=1, max_size=1) as pool:
                await cancelled(pool)
                async with pool.connection(timeout=30):
                    return
        if kind == "asyncpg":
            async with asyncpg.create_pool(bare, ssl=False, min_size=1, max_size=1) as gpool:
                await cancelled(gpool)
                async with gpool.acquire(timeout=30):
                    return
        url = bare.replace("postgresql:", "postgresql+asyncpg:") + "?ssl=disable"
        engine = sqlalchemy_asyncio.create_async_engine(url, pool_size=1, max_overflow=0)
        await cancelled(engine)
        async with engine.connect():
            pass
        await engine.dispose()

    asyncio.run(main())


# --- commits that wait for a standby ------------------------------------------------------------

WAITS = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep'"


@pytest.fixture
def give_standby_up(server: Server, db: Database) -> Iterator[Callable[[], None]]:
    """Every commit waits for a synchronous standby that does not exist, until this is called."""

    def set_standby(statement: str) -> None:
        server.maintenance.execute(statement.encode())
        server.maintenance.execute("select pg_reload_conf()")

    def give_up() -> None:
        set_standby("alter system reset synchronous_standby_names")
        while db.value(WAITS):
            pass

    def commit_until_terminated(conn: psycopg.Connection[Any]) -> None:
        with suppress(psycopg.OperationalError):
            while True:
                conn.execute("select pg_logical_emit_message(true, 'probe', '')")

    set_standby("alter system set synchronous_standby_names = 'missing'")
    try:
        # The server has it in effect a moment later.
        probe = psycopg.connect(db.dsn, autocommit=True)
        probing = threading.Thread(target=commit_until_terminated, args=(probe,), daemon=True)
        probing.start()
        while not db.value(WAITS):
            pass
        db.admin.execute("select pg_terminate_backend(%s)", [probe.info.backend_pid])
        probing.join()
        probe.close()
        yield give_up
    finally:
        give_up()


class Committing:
    """A call that ends with a commit, over one library."""

    def __init__(self, kind: str, function: str, db: Database) -> None:
        self.kind = kind
        self.function = function
        self.by_itself = function == "claim"
        """Its connection is in autocommit."""
        bare = db.dsn.partition("?")[0]
        self.source: Any
        if kind == "psycopg":
            self.source = lambda: psycopg.connect(db.dsn, autocommit=self.by_itself)
        elif kind == "psycopg-async":
            self.source = lambda: psycopg.AsyncConnection.connect(db.dsn, autocommit=self.by_itself)
        elif kind == "asyncpg":
            self.source = lambda: asyncpg.connect(bare, ssl=False)
        else:
            driver = "asyncpg" if kind.endswith("asyncpg") else "psycopg"
            url = bare.replace("postgresql:", f"postgresql+{driver}:") + ("?ssl=disable" if driver == "asyncpg" else "")
            make: Any = sqlalchemy_asyncio.create_async_engine if kind in ASYNC else sqlalchemy.create_engine
            level = {"isolation_level": "AUTOCOMMIT"} if self.by_itself else {}
            self.source = make(url, **level)
        self.api = Api(kind, self.source)

    async def call(self) -> Any:
        async def work(held: Any) -> None:
            await self.api.execute(held.conn, INSERT)

        if self.function == "once":
            return await self.api.work("once", self.source, "s", "k", REQUEST, do=work)
        if self.function == "execute":
            statement = f"{INSERT} returning id"
            return await self.api.call("execute", self.source, "s", "k", REQUEST, statement, known_first=True)
        return await self.api.work("lease", self.source, "s", "k", REQUEST, do=work, length=60)


def stays_invisible(db: Database, give_standby_up: Callable[[], None]) -> None:
    """Whether the commit still waits after the caller has left, and is there when the wait ends."""
    intents = "select count(*) from pgonce.intent"
    # A request to cancel takes a connection of its own.
    for _ in range(50):
        assert (db.value(WAITS), db.value(intents), db.effects()) == (1, 0, 0)
    give_standby_up()
    assert db.value(intents) == 1


@pytest.mark.parametrize("function", ["once", "execute", "claim"])
@pytest.mark.parametrize("how", ["by its caller", "with its loop"])
@pytest.mark.parametrize("kind", ASYNC)
def test_a_commit_that_is_cancelled_while_it_waits_for_its_standby_goes_on_waiting(
    db: Database, give_standby_up: Callable[[], None], kind: str, how: str, function: str
) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(Committing(kind, function, db).call())
        while not db.value(WAITS):
            assert not task.done()
            await asyncio.sleep(0.01)
        if how == "by its caller":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    stays_invisible(db, give_standby_up)


@pytest.mark.parametrize("kind", [kind for kind in CONNECTIONS if "Async" in kind or "asyncpg" in kind])
def test_over_one_connection_a_commit_that_is_cancelled_while_it_waits_for_its_standby_goes_on_waiting(
    db: Database, give_standby_up: Callable[[], None], kind: str
) -> None:
    async def test(conn: Connection) -> None:
        task = asyncio.ensure_future(conn.once("k", conn.insert))
        while not db.value(WAITS):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    over(kind, db.dsn, test)
    stays_invisible(db, give_standby_up)


@pytest.mark.parametrize("function", ["once", "execute", "claim"])
@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy-psycopg"])
def test_a_commit_that_is_interrupted_while_it_waits_for_its_standby_goes_on_waiting(
    db: Database, give_standby_up: Callable[[], None], kind: str, function: str
) -> None:
    def interrupt() -> None:
        while not db.value(WAITS):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt, daemon=True)
    # Who runs in the background of a shell ignores this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupting.start()
            run(Committing(kind, function, db).call())
    finally:
        signal.signal(signal.SIGINT, before)
    interrupting.join()
    stays_invisible(db, give_standby_up)


@pytest.mark.parametrize("kind", [kind for kind in CONNECTIONS if "Session" in kind])
def test_what_a_session_writes_as_it_commits_is_part_of_the_command(db: Database, kind: str) -> None:
    async def test(conn: Connection) -> None:
        session = conn.raw.sync_session if conn.is_async else conn.raw
        statements = ["do $$ begin raise unique_violation; end $$", INSERT]

        @sqlalchemy.event.listens_for(session, "before_commit")
        def before_commit(inner: Any) -> None:
            inner.execute(sqlalchemy.text(statements.pop(0)))

        with pytest.raises(pgonce.DatabaseError) as caught:
            await conn.once("k", conn.insert)
        assert caught.value.code == "23505" and db.effects() == 0
        assert not (await conn.once("k", conn.insert)).replayed
        assert statements == []

    over(kind, db.dsn, test)
    assert db.effects() == 2
    assert db.value("select count(distinct xmin::text) from effect") == 1


@pytest.mark.parametrize("kind", ["psycopg Connection", "psycopg AsyncConnection"])
def test_a_connection_in_pipeline_mode_is_refused_before_anything_happens(db: Database, kind: str) -> None:
    async def test(conn: Connection) -> None:
        async def in_pipeline() -> None:
            with pytest.raises(pgonce.Invalid, match="pipeline mode"):
                await conn.once("k", conn.insert)

        if conn.is_async:
            async with conn.raw.pipeline():
                await in_pipeline()
        else:
            with conn.raw.pipeline():
                await in_pipeline()
        assert not (await conn.once("k", conn.insert)).replayed

    over(kind, db.dsn, test)
    assert db.effects() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_prepared_statements_that_are_gone_fail_no_command(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        async def forget(tx: Any) -> None:
            await api.execute(tx.conn, INSERT)
            await api.execute(tx.conn, "deallocate all")

        insert = f"{INSERT} returning id"
        # psycopg prepares what it has sent five times.
        for n in range(12):
            await api.work("once", api.source, "s", f"once {n}", REQUEST, do=forget)
            await api.call("execute", api.source, "s", f"first {n}", REQUEST, insert, known_first=True)
            await api.work("once", api.source, "s", f"forget {n}", REQUEST, do=forget)
            await api.call("execute", api.source, "s", f"later {n}", REQUEST, insert)

    with_api(kind, db.dsn, test)
    assert db.effects() == 48
