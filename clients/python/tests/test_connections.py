"""`once` over one connection of the caller's own, of every library."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from apis import run
from conftest import Database
from proxy import Fault
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

import pgonce
from pgonce import aio

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
