"""Connections of psycopg 3, asyncpg and SQLAlchemy behind one small seam.

The protocol (`pgonce._protocol`) is written once, as generators that yield calls. A session's
methods return a value, or an awaitable where its library is asynchronous; who drives the
generator awaits or does not.
"""

from __future__ import annotations

from typing import Any

from ..errors import Invalid
from ._base import Driver, Session

__all__ = ["Driver", "Session", "adapt"]


def _libraries(kind: type) -> set[str]:
    return {base.__module__.partition(".")[0] for base in kind.__mro__}


def adapt(source: Any, *, is_async: bool) -> Driver:
    """The driver for a connection, a pool, an engine, or a function that connects."""
    if isinstance(source, Driver):
        return source
    found = _adapt(source, is_async)
    if found is None:
        raise Invalid(
            f"{type(source).__name__} is no source of connections that pgonce knows",
            hint="Pass a connection or a pool of psycopg 3 or asyncpg, a connection, session or "
            "engine of SQLAlchemy, or a function that connects.",
        )
    if found.is_async != is_async:
        raise Invalid(
            f"{type(source).__name__} is {'asynchronous' if found.is_async else 'synchronous'}",
            hint="Import from pgonce.aio for asynchronous connections, from pgonce for others.",
        )
    return found


def _adapt(source: Any, is_async: bool) -> Driver | None:
    libraries = _libraries(type(source))
    if "psycopg" in libraries or "psycopg_pool" in libraries:
        from . import _psycopg

        return _psycopg.driver(source)
    if "asyncpg" in libraries:
        from . import _asyncpg

        return _asyncpg.driver(source)
    if "sqlalchemy" in libraries:
        from . import _sqlalchemy

        return _sqlalchemy.driver(source)
    if callable(source):
        from ._connecting import Connecting

        return Connecting(source, is_async=is_async)
    return None
