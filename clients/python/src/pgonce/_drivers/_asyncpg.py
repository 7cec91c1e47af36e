"""asyncpg: connections and pools."""

from __future__ import annotations

from typing import Any

from ._base import Driver, Params, Session, cut
from ._params import numbered

_LEVELS = {
    "read committed": "read_committed",
    "repeatable read": "repeatable_read",
    "serializable": "serializable",
}


class AsyncpgSession(Session):
    # Idle means autocommit in asyncpg, and begin opens a block.
    can_autocommit = False
    can_query_alone = True

    def __init__(self, raw: Any, pool: Any = None) -> None:
        self.raw = raw
        self.pool = pool
        self.block: Any = None

    def autocommits(self) -> bool:
        return not self.in_transaction()

    def in_transaction(self) -> bool:
        return bool(self.raw.is_in_transaction())

    async def begin(self, isolation: str | None) -> None:
        # A block of asyncpg's own, so that a block inside the work becomes a savepoint.
        block = self.raw.transaction(isolation=_LEVELS[isolation] if isolation else None)
        await block.start()
        self.block = block

    async def query(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        text, names = numbered(sql)
        rows = await self.raw.fetch(text, *(params[name] for name in names))
        return [tuple(row) for row in rows]

    async def query_alone(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        return await self.query(sql, params)

    async def commit(self) -> str:
        if self.block is None:
            return "COMMIT"
        # block.commit() does not report the tag.
        block, self.block = self.block, None
        try:
            return str(await self.raw.execute("COMMIT"))
        finally:
            connection = block._connection
            if connection._top_xact is block:
                connection._top_xact = None

    async def rollback(self) -> None:
        if self.block is not None:
            block, self.block = self.block, None
            await block.rollback()

    async def release(self, keep: bool) -> None:
        if not keep:
            self.raw.terminate()
        if self.pool is not None:
            await self.pool.release(self.raw)

    def cut(self) -> None:
        cut(self.raw)


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
