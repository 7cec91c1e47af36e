"""SQLAlchemy 2: engines, connections and ORM sessions over psycopg 3, psycopg2 and asyncpg."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy.orm import Session as OrmSession

from ._base import Driver, Params, Session, cut, uncancelled
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

    def query_alone(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        driver = self._connection().connection.dbapi_connection
        if not hasattr(driver, "pgconn"):
            return self.query(sql, params)
        from . import _psycopg

        return _psycopg.SyncSession(driver).query_alone(sql, params)

    def commit(self) -> str:
        return self.commit_by(_commit_driver) if self.raw.in_transaction() else "COMMIT"

    def commit_by(self, send: Callable[[Any], str]) -> str:
        """Commits with the library's own commit, which runs its hooks and flushes, but does not report the tag: `send` commits before
        it, when nothing else is left to do."""
        connection = self._connection()
        tags = []

        def sent(_: Any) -> None:
            tags.append(send(connection.connection.dbapi_connection))

        sqlalchemy.event.listen(connection, "commit", sent)
        try:
            self.raw.commit()
        finally:
            sqlalchemy.event.remove(connection, "commit", sent)
        return tags[-1] if tags else "COMMIT"

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
        self.committing: Any = None
        """The library's own connection, for which an ORM session cannot be asked while it commits."""

    async def autocommits(self) -> Any:
        return await self.raw.run_sync(lambda inner: SyncSession(inner).autocommits())

    def in_transaction(self) -> bool:
        return bool(self.raw.in_transaction())

    async def begin(self, isolation: str | None) -> None:
        await self.raw.run_sync(lambda inner: SyncSession(inner).begin(isolation))

    async def query(self, sql: str, params: Params) -> Any:
        return await self.raw.run_sync(lambda inner: SyncSession(inner).query(sql, params))

    async def query_alone(self, sql: str, params: Params) -> Any:
        return await uncancelled(self, self.query(sql, params))

    async def commit(self) -> str:
        if not self.raw.in_transaction():
            return "COMMIT"
        self.committing = self._driver_connection()
        call = self.raw.run_sync(lambda inner: SyncSession(inner).commit_by(_commit_adapted))
        return str(await uncancelled(self, call))

    async def rollback(self) -> None:
        await self.raw.rollback()

    async def release(self, keep: bool) -> None:
        if not keep:
            await self.raw.invalidate()
        if self.lent:
            await self.raw.close()

    def cut(self) -> None:
        cut(self.committing or self._driver_connection())

    def _driver_connection(self) -> Any:
        inner = self.raw.sync_session if hasattr(self.raw, "sync_session") else self.raw.sync_connection
        return SyncSession(inner)._connection().connection.driver_connection


def _commit_driver(driver: Any) -> str:
    if hasattr(driver, "pgconn"):  # psycopg 3
        from . import _psycopg

        return str(_psycopg.committing(driver).execute("commit", prepare=False).statusmessage)
    with driver.cursor() as cursor:
        cursor.execute("commit")
        return str(cursor.statusmessage)


def _commit_adapted(adapted: Any) -> str:
    """Commits in what SQLAlchemy makes of an asynchronous connection."""
    if hasattr(adapted.driver_connection, "pgconn"):  # psycopg 3
        return str(adapted.run_async(lambda driver: driver.execute("commit", prepare=False)).statusmessage)
    try:
        return str(adapted.run_async(lambda driver: driver.execute("COMMIT")))
    finally:
        # asyncpg's block is over, whatever came of it. What still took it for open would send another COMMIT.
        adapted.driver_connection._top_xact = None
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
