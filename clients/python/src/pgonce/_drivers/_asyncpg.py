"""asyncpg: connections and pools."""

from __future__ import annotations

from typing import Any

from ._base import Driver, Params, Session, cut, uncancelled
from ._params import numbered

_LEVELS = {
    "read committed": "read_committed",
    "repeatable read": "repeatable_read",
    "serializable": "serializable",
}


def _lend(proxy: Any) -> Any:
    """A connection of a pool as an attempt lends it to its work: another proxy than the one that is given back later."""
    lent = object.__new__(type(proxy))
    lent._con, lent._holder = proxy._con, proxy._holder
    return lent


class AsyncpgSession(Session):
    # Idle means autocommit in asyncpg, and begin opens a block.
    can_autocommit = False
    can_query_alone = True

    def __init__(self, raw: Any, pool: Any = None) -> None:
        self.connection = raw
        self.raw = raw if pool is None else _lend(raw)
        self.pool = pool
        self.block: Any = None

    def end_attempt(self) -> None:
        """Work that outlives its attempt must not write after it, by itself or into the next one."""
        if self.pool is not None:
            # As asyncpg takes back its own proxy, but that only when the pool has the connection.
            self.raw._con = None

    def autocommits(self) -> bool:
        return not self.in_transaction()

    def in_transaction(self) -> bool:
        return bool(self.connection.is_in_transaction())

    async def begin(self, isolation: str | None) -> None:
        # A block of asyncpg's own, so that a block inside the work becomes a savepoint.
        block = self.connection.transaction(isolation=_LEVELS[isolation] if isolation else None)
        await block.start()
        self.block = block

    async def query(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        text, names = numbered(sql)
        rows = await self.connection.fetch(text, *(params[name] for name in names))
        return [tuple(row) for row in rows]

    async def query_alone(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = await uncancelled(self, self.query(sql, params))
        return rows

    async def commit(self) -> str:
        self.end_attempt()
        if self.block is None:
            return "COMMIT"
        # block.commit() does not report the tag.
        block, self.block = self.block, None
        try:
            return str(await uncancelled(self, self.connection.execute("COMMIT")))
        finally:
            connection = block._connection
            if connection._top_xact is block:
                connection._top_xact = None

    async def rollback(self) -> None:
        self.end_attempt()
        if self.block is not None:
            block, self.block = self.block, None
            await block.rollback()

    async def release(self, keep: bool) -> None:
        self.end_attempt()
        if not keep:
            self.connection.terminate()
        if self.pool is not None:
            await self.pool.release(self.connection)

    def cut(self) -> None:
        cut(self.connection)


class AsyncpgConnection(Driver):
    is_async = True
    reconnects = False

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def acquire(self) -> AsyncpgSession:
        return AsyncpgSession(self.raw)


class AsyncpgPool(Driver):
    is_async = True

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    async def acquire(self) -> AsyncpgSession:
        return AsyncpgSession(await self.pool.acquire(), self.pool)


def driver(source: Any) -> Driver | None:
    if hasattr(source, "acquire") and hasattr(source, "release"):
        return AsyncpgPool(source)
    if hasattr(source, "is_in_transaction"):
        return AsyncpgConnection(source)
    return None
