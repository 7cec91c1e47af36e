"""SQLAlchemy 2: engines, connections and ORM sessions over psycopg 3, psycopg2 and asyncpg."""

from __future__ import annotations

from typing import Any

import sqlalchemy
from sqlalchemy.orm import Session as OrmSession

from ._base import Driver, Params, Session, cut
from ._params import spaced


class SyncSession(Session):
    def __init__(self, raw: Any, *, lent: bool = False) -> None:
        self.raw = raw
        self.lent = lent

    def _connection(self) -> Any:
        return self.raw.connection() if isinstance(self.raw, OrmSession) else self.raw

    def autocommits(self) -> bool:
        was_open = self.raw.in_transaction()
        connection = self._connection()
        found = bool(getattr(connection.connection.dbapi_connection, "autocommit", False))
        if isinstance(self.raw, OrmSession) and not was_open:
            # To ask an ORM session for its connection begins a transaction.
            self.raw.rollback()
        return found

    def in_transaction(self) -> bool:
        return bool(self.raw.in_transaction())

    def begin(self, isolation: str | None) -> None:
        self.raw.begin()
        if isolation:
            self._connection().exec_driver_sql(f"set transaction isolation level {isolation}")

    def query(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        if isinstance(self.raw, OrmSession):
            self.raw.flush()
        rows = self._connection().execute(sqlalchemy.text(spaced(sql)), dict(params))
        return [tuple(row) for row in rows]

    def commit(self) -> str:
        if not self.raw.in_transaction():
            return "COMMIT"
        if isinstance(self.raw, OrmSession):
            self.raw.flush()
        # The library's own commit does not report the tag; it has nothing left to do after this one.
        driver = self._connection().connection.driver_connection
        if hasattr(driver, "pgconn"):  # psycopg 3
            tag = driver.execute("commit", prepare=False).statusmessage
        else:
            with driver.cursor() as cursor:
                cursor.execute("commit")
                tag = cursor.statusmessage
        self.raw.commit()
        return str(tag)

    def rollback(self) -> None:
        self.raw.rollback()

    def release(self, keep: bool) -> None:
        if not keep:
            self.raw.invalidate()
        if self.lent:
            self.raw.close()

    def cut(self) -> None:
        cut(self._connection().connection.driver_connection)


class AsyncSession(Session):
    """Over AsyncConnection and AsyncSession: their synchronous inside does the work."""

    def __init__(self, raw: Any, *, lent: bool = False) -> None:
        self.raw = raw
        self.lent = lent

    async def autocommits(self) -> Any:
        return await self.raw.run_sync(lambda inner: SyncSession(inner).autocommits())

    def in_transaction(self) -> bool:
        return bool(self.raw.in_transaction())

    async def begin(self, isolation: str | None) -> None:
        await self.raw.run_sync(lambda inner: SyncSession(inner).begin(isolation))

    async def query(self, sql: str, params: Params) -> Any:
        return await self.raw.run_sync(lambda inner: SyncSession(inner).query(sql, params))

    async def commit(self) -> str:
        if not self.raw.in_transaction():
            return "COMMIT"
        if hasattr(self.raw, "flush"):
            await self.raw.flush()
        connection = self.raw if hasattr(self.raw, "get_raw_connection") else await self.raw.connection()
        lent = await connection.get_raw_connection()
        driver = lent.driver_connection
        if hasattr(driver, "pgconn"):  # psycopg 3
            tag = str((await driver.execute("commit", prepare=False)).statusmessage)
        else:
            tag = await _commit_asyncpg(driver, lent.dbapi_connection)
        await self.raw.commit()
        return tag

    async def rollback(self) -> None:
        await self.raw.rollback()

    async def release(self, keep: bool) -> None:
        if not keep:
            await self.raw.invalidate()
        if self.lent:
            await self.raw.close()

    def cut(self) -> None:
        cut(self.raw.sync_connection.connection.driver_connection)


async def _commit_asyncpg(driver: Any, adapted: Any) -> str:
    """Commits and answers the tag, which neither asyncpg's block nor SQLAlchemy's wrapper reports."""
    try:
        return str(await driver.execute("COMMIT"))
    finally:
        # Whatever came of it, the block is over. What still took it for open would send another COMMIT.
        driver._top_xact = None
        adapted._transaction = None
        if hasattr(adapted, "_started"):  # SQLAlchemy 2.0
            adapted._started = False


class SyncConnection(Driver):
    reconnects = False

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def acquire(self) -> SyncSession:
        return SyncSession(self.raw)


class SyncEngine(Driver):
    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def acquire(self) -> SyncSession:
        return SyncSession(self.engine.connect(), lent=True)


class AsyncConnection(Driver):
    is_async = True
    reconnects = False

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def acquire(self) -> AsyncSession:
        return AsyncSession(self.raw)


class AsyncEngine(Driver):
    is_async = True

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    async def acquire(self) -> AsyncSession:
        return AsyncSession(await self.engine.connect(), lent=True)


def driver(source: Any) -> Driver | None:
    if isinstance(source, sqlalchemy.Engine):
        return SyncEngine(source)
    if isinstance(source, (sqlalchemy.Connection, OrmSession)):
        return SyncConnection(source)
    # The asynchronous half of SQLAlchemy needs greenlet: it is imported only where it is used.
    from sqlalchemy.ext import asyncio

    if isinstance(source, asyncio.AsyncEngine):
        return AsyncEngine(source)
    if isinstance(source, (asyncio.AsyncConnection, asyncio.AsyncSession)):
        return AsyncConnection(source)
    return None
