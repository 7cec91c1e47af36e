"""psycopg 3: connections and pools, synchronous and asynchronous."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

from psycopg import IsolationLevel, waiting
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from ..errors import Disconnected, Invalid
from ._base import Driver, Params, Session, cut, uncancelled
from ._params import named

UNSET = object()

_LEVELS = {
    "read committed": IsolationLevel.READ_COMMITTED,
    "repeatable read": IsolationLevel.REPEATABLE_READ,
    "serializable": IsolationLevel.SERIALIZABLE,
}


@lru_cache
def _lent_kind(kind: Any) -> type[Any]:
    """A kind of connection that sends nothing once its attempt has ended, when another one may have got the connection."""

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Whatever sends comes by here, that of cursors and blocks, too.
        if self.attempt_ended:
            raise Disconnected("the transaction of this attempt has ended")
        return kind.wait(self, *args, **kwargs)

    members = {"__slots__": ("attempt_ended",), "__module__": kind.__module__, "wait": wait}
    return type(kind.__name__, (kind,), members)


def _lend(connection: Any) -> Any:
    """A connection of a pool as an attempt lends it to its work: another object with all of its state."""
    lent: Any = object.__new__(_lent_kind(connection.__class__))
    lent.__dict__ = connection.__dict__
    lent.attempt_ended = False
    return lent


@lru_cache
def _committing_kind(kind: Any) -> type[Any]:
    """A kind of connection that does not ask the server to cancel what is interrupted."""

    def wait(self: Any, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return waiting.wait(gen, self.pgconn.socket, _INTERVAL)

    members = {"__slots__": (), "__module__": kind.__module__, "wait": wait, "__del__": lambda self: None}
    return type(kind.__name__, (kind,), members)


_INTERVAL = 0.1
"""After so many seconds psycopg, too, looks for an interrupt."""


def committing(connection: Any) -> Any:
    """A synchronous connection as it is used for what commits: another object with all of its state."""
    made: Any = object.__new__(_committing_kind(connection.__class__))
    made.__dict__ = connection.__dict__
    return made


class _Shared(Session):
    def __init__(self, raw: Any, pool: Any = None) -> None:
        if raw.pgconn.pipeline_status != PipelineStatus.OFF:
            raise Invalid(
                "the connection is in pipeline mode, in which no statement is answered before the next is sent",
                hint="Call pgonce before or after `with conn.pipeline()`.",
            )
        self.connection = raw
        self.raw = raw if pool is None else _lend(raw)
        self.pool = pool
        # In autocommit, where one statement commits by itself, these would not hold.
        self.can_query_alone = (raw.isolation_level, raw.read_only, raw.deferrable) == (None, None, None)
        self.isolation_before: Any = UNSET

    def autocommits(self) -> bool:
        return bool(self.connection.autocommit) and not self.in_transaction()

    def in_transaction(self) -> bool:
        status = self.connection.info.transaction_status
        return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)

    def is_idle(self) -> bool:
        """Whether there is nothing to commit. Of a connection that is lost nobody knows."""
        return bool(self.connection.info.transaction_status == TransactionStatus.IDLE)

    def end_attempt(self) -> None:
        """Work that outlives its attempt must not write into the next one."""
        if self.pool is not None:
            self.raw.attempt_ended = True

    def cut(self) -> None:
        cut(self.connection)


class SyncSession(_Shared):
    def begin(self, isolation: str | None) -> None:
        # psycopg itself sends BEGIN before the first statement, and this level with it.
        if isolation:
            self.isolation_before = self.connection.isolation_level
            self.connection.set_isolation_level(_LEVELS[isolation])

    def query(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        return self._query_on(self.connection, sql, params)

    def _query_on(self, connection: Any, sql: str, params: Params) -> list[tuple[Any, ...]]:
        with connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(named(sql), params)
            return list(cursor.fetchall())

    def query_alone(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        before = self.connection.autocommit
        self.connection.autocommit = True
        try:
            rows = self._query_on(committing(self.connection), sql, params)
        except Exception:
            if not self.connection.closed:
                self.connection.autocommit = before
            raise
        # Not after an interrupt, when it cannot be changed, and the connection is not used again.
        self.connection.autocommit = before
        return rows

    def commit(self) -> str:
        self.end_attempt()
        if self.is_idle():
            return "COMMIT"
        # conn.commit() does not report the tag.
        return str(committing(self.connection).execute("commit", prepare=False).statusmessage)

    def rollback(self) -> None:
        self.end_attempt()
        self.connection.rollback()

    def release(self, keep: bool) -> None:
        self.end_attempt()
        if not keep:
            self.connection.close()
        elif self.isolation_before is not UNSET:
            self.connection.set_isolation_level(self.isolation_before)
        if self.pool is not None:
            self.pool.putconn(self.connection)


class AsyncSession(_Shared):
    async def begin(self, isolation: str | None) -> None:
        if isolation:
            self.isolation_before = self.connection.isolation_level
            await self.connection.set_isolation_level(_LEVELS[isolation])

    async def query(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        async with self.connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(named(sql), params)
            return list(await cursor.fetchall())

    async def query_alone(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        before = self.connection.autocommit
        await self.connection.set_autocommit(True)
        try:
            rows: list[tuple[Any, ...]] = await uncancelled(self, self.query(sql, params))
        except Exception:
            if not self.connection.closed:
                await self.connection.set_autocommit(before)
            raise
        await self.connection.set_autocommit(before)
        return rows

    async def commit(self) -> str:
        self.end_attempt()
        if self.is_idle():
            return "COMMIT"
        return str((await uncancelled(self, self.connection.execute("commit", prepare=False))).statusmessage)

    async def rollback(self) -> None:
        self.end_attempt()
        await self.connection.rollback()

    async def release(self, keep: bool) -> None:
        self.end_attempt()
        if not keep:
            await self.connection.close()
        elif self.isolation_before is not UNSET:
            await self.connection.set_isolation_level(self.isolation_before)
        if self.pool is not None:
            await self.pool.putconn(self.connection)


class SyncConnection(Driver):
    reconnects = False

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def acquire(self) -> SyncSession:
        return SyncSession(self.raw)


class SyncPool(Driver):
    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def acquire(self) -> SyncSession:
        return SyncSession(self.pool.getconn(), self.pool)


class AsyncConnection(Driver):
    is_async = True
    reconnects = False

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def acquire(self) -> AsyncSession:
        return AsyncSession(self.raw)


class AsyncPool(Driver):
    is_async = True

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    async def acquire(self) -> AsyncSession:
        return AsyncSession(await self.pool.getconn(), self.pool)


def driver(source: Any) -> Driver | None:
    if hasattr(source, "getconn") and hasattr(source, "putconn"):
        return AsyncPool(source) if inspect.iscoroutinefunction(source.getconn) else SyncPool(source)
    if hasattr(source, "info") and hasattr(source, "cursor"):
        asynchronous = inspect.iscoroutinefunction(source.execute)
        return AsyncConnection(source) if asynchronous else SyncConnection(source)
    return None
