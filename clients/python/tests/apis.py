"""Every library behind one small interface, so that a case is written once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import pgonce
from pgonce import aio

SYNC = ("psycopg", "psycopg-connect", "sqlalchemy-psycopg")
ASYNC = ("psycopg-async", "asyncpg", "sqlalchemy-psycopg-async", "sqlalchemy-asyncpg")
KINDS = SYNC + ASYNC


class Api:
    """The package's functions over one library; the synchronous ones wrapped."""

    def __init__(self, kind: str, source: Any) -> None:
        self.kind = kind
        self.source = source
        self.is_async = kind in ASYNC

    async def execute(self, conn: Any, statement: str) -> None:
        if self.kind == "asyncpg" or self.kind == "psycopg-async":
            await conn.execute(statement)
        elif self.is_async:
            await conn.exec_driver_sql(statement)
        elif self.kind.startswith("sqlalchemy"):
            conn.exec_driver_sql(statement)
        else:
            conn.execute(statement)

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """A function of the package that is done when it returns."""
        if self.is_async:
            return await getattr(aio, name)(*args, **kwargs)
        return getattr(pgonce, name)(*args, **kwargs)

    async def work(self, function: str, *args: Any, do: Callable[[Any], Any], **kwargs: Any) -> pgonce.Done:
        """`once` or `lease` in its function form. `do` is a coroutine function."""
        if self.is_async:
            made: pgonce.Done = await getattr(aio, function)(*args, do, **kwargs)
            return made
        done: pgonce.Done = getattr(pgonce, function)(*args, lambda held: run(do(held)), **kwargs)
        return done

    def command(self, function: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(aio if self.is_async else pgonce, function)(*args, **kwargs)

    async def enter(self, block: Any) -> Any:
        return await block.__aenter__() if self.is_async else block.__enter__()

    async def leave(self, block: Any, error: BaseException | None = None) -> None:
        kind = None if error is None else type(error)
        if self.is_async:
            await block.__aexit__(kind, error, None)
        else:
            block.__exit__(kind, error, None)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction as a user of the library would open it."""
        if self.kind == "psycopg":
            with self.source.connection() as conn:
                yield conn
        elif self.kind == "psycopg-connect":
            with self.source() as conn:
                yield conn
        elif self.kind == "sqlalchemy-psycopg":
            with self.source.begin() as conn:
                yield conn
        elif self.kind == "psycopg-async":
            async with self.source.connection() as conn:
                yield conn
        elif self.kind == "asyncpg":
            async with self.source.acquire() as conn, conn.transaction():
                yield conn
        else:
            async with self.source.begin() as conn:
                yield conn


def run(coroutine: Any) -> Any:
    """Runs a coroutine that never waits: the work of a synchronous library."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the work of a synchronous library waited")


@asynccontextmanager
async def open_api(kind: str, dsn: str, *, pooled: bool = False) -> AsyncIterator[Api]:
    bare = dsn.partition("?")[0]
    # PgBouncer keeps no named statements before 1.21.
    options: dict[str, Any] = {"prepare_threshold": None} if pooled else {}
    if kind == "psycopg":
        with psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=8, timeout=10, kwargs=options) as pool:
            yield Api(kind, pool)
    elif kind == "psycopg-connect":
        yield Api(kind, lambda: psycopg.connect(dsn))
    elif kind == "sqlalchemy-psycopg":
        engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), pool_size=8)
        try:
            yield Api(kind, engine)
        finally:
            engine.dispose()
    elif kind == "psycopg-async":
        async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=8, timeout=10) as apool:
            yield Api(kind, apool)
    elif kind == "asyncpg":
        async with asyncpg.create_pool(
            bare, ssl=False, min_size=1, max_size=8, statement_cache_size=0 if pooled else 100
        ) as gpool:
            yield Api(kind, gpool)
    else:
        if kind == "sqlalchemy-asyncpg":
            url = bare.replace("postgresql:", "postgresql+asyncpg:") + "?ssl=disable"
        else:
            url = dsn.replace("postgresql:", "postgresql+psycopg:")
        aengine = create_async_engine(url, pool_size=8)
        try:
            yield Api(kind, aengine)
        finally:
            await aengine.dispose()


def with_api(kind: str, dsn: str, test: Callable[[Api], Any], *, pooled: bool = False) -> None:
    """Runs a test written as a coroutine function over one library."""

    async def main() -> None:
        async with open_api(kind, dsn, pooled=pooled) as api:
            await test(api)

    asyncio.run(main())
