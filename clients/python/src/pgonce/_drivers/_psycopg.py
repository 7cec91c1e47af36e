"""psycopg 3: connections and pools, synchronous and asynchronous."""

from __future__ import annotations

import inspect
from typing import Any

from psycopg import IsolationLevel
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from ..errors import Invalid
from ._base import Driver, Params, Session, cut
from ._params import named

UNSET = object()

_LEVELS = {
    "read committed": IsolationLevel.READ_COMMITTED,
    "repeatable read": IsolationLevel.REPEATABLE_READ,
    "serializable": IsolationLevel.SERIALIZABLE,
}


class _Shared(Session):
    can_query_alone = True

    def __init__(self, raw: Any, pool: Any = None) -> None:
        if raw.pgconn.pipeline_status != PipelineStatus.OFF:
            raise Invalid(
                "the connection is in pipeline mode, in which no statement is answered before the next is sent",
                hint="Call pgonce before or after `with conn.pipeline()`.",
            )
        self.raw = raw
        self.pool = pool
        self.isolation_before: Any = UNSET

    def autocommits(self) -> bool:
        return bool(self.raw.autocommit) and not self.in_transaction()

    def in_transaction(self) -> bool:
        status = self.raw.info.transaction_status
        return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)

    def cut(self) -> None:
        cut(self.raw)


class SyncSession(_Shared):
    def begin(self, isolation: str | None) -> None:
        # psycopg itself sends BEGIN before the first statement, and this level with it.
        if isolation:
            self.isolation_before = self.raw.isolation_level
            self.raw.set_isolation_level(_LEVELS[isolation])

    def query(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        with self.raw.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(named(sql), params)
            return list(cursor.fetchall())

    def query_alone(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        before = self.raw.autocommit
        self.raw.autocommit = True
        try:
            rows = self.query(sql, params)
        except Exception:
            if not self.raw.closed:
                self.raw.autocommit = before
            raise
        # Not after an interrupt, when it cannot be changed, and the connection is not used again.
        self.raw.autocommit = before
        return rows

    def commit(self) -> str:
        if not self.in_transaction():
            return "COMMIT"
        # conn.commit() does not report the tag.
        return str(self.raw.execute("commit", prepare=False).statusmessage)

    def rollback(self) -> None:
        self.raw.rollback()

    def release(self, keep: bool) -> None:
        if not keep:
            self.raw.close()
        elif self.isolation_before is not UNSET:
            self.raw.set_isolation_level(self.isolation_before)
        if self.pool is not None:
            self.pool.putconn(self.raw)


class AsyncSession(_Shared):
    async def begin(self, isolation: str | None) -> None:
        if isolation:
            self.isolation_before = self.raw.isolation_level
            await self.raw.set_isolation_level(_LEVELS[isolation])

    async def query(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        async with self.raw.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(named(sql), params)
            return list(await cursor.fetchall())

    async def query_alone(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        before = self.raw.autocommit
        await self.raw.set_autocommit(True)
        try:
            rows = await self.query(sql, params)
        except Exception:
            if not self.raw.closed:
                await self.raw.set_autocommit(before)
            raise
        await self.raw.set_autocommit(before)
        return rows

    async def commit(self) -> str:
        if not self.in_transaction():
            return "COMMIT"
        return str((await self.raw.execute("commit", prepare=False)).statusmessage)

    async def rollback(self) -> None:
        await self.raw.rollback()

    async def release(self, keep: bool) -> None:
        if not keep:
            await self.raw.close()
        elif self.isolation_before is not UNSET:
            await self.raw.set_isolation_level(self.isolation_before)
        if self.pool is not None:
            await self.pool.putconn(self.raw)


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
