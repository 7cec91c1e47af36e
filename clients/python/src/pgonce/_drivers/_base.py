"""The seam."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from ..errors import Disconnected, Error, from_sqlstate

Row = tuple[Any, ...]
_CRASH = re.compile(r"58|XX|53[12]00$")
Params = Mapping[str, "str | bytes | None"]


class Session:
    """One connection, lent. Methods marked (call) return an awaitable in asynchronous libraries."""

    raw: Any
    """What the user's work gets: the library's own connection."""

    can_autocommit = True
    """Whether the library has a mode in which an idle connection commits every statement."""

    can_query_alone = False
    """Whether `query_alone` works on every idle connection, in one round trip, and not only on one in autocommit."""

    def autocommits(self) -> Any:
        """(call) Whether a statement sent now would commit by itself, with no transaction open."""
        raise NotImplementedError

    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        raise NotImplementedError

    def begin(self, isolation: str | None) -> Any:
        """(call) Opens a transaction."""
        raise NotImplementedError

    def query(self, sql: str, params: Params) -> Any:
        """(call) Runs one statement with `:name` parameters; answers its rows."""
        raise NotImplementedError

    def query_alone(self, sql: str, params: Params) -> Any:
        """(call) As `query`, on an idle connection: the statement commits by itself. Not to be cancelled, as `commit`."""
        raise NotImplementedError

    def commit(self) -> Any:
        """(call) Commits; answers the command tag, `COMMIT` or `ROLLBACK`.

        An interrupt ends the connection and sends the server no request to cancel: that ends its wait for a synchronous
        standby, and the commit becomes visible that no standby has.
        """
        raise NotImplementedError

    def rollback(self) -> Any:
        """(call) Rolls back."""
        raise NotImplementedError

    def release(self, keep: bool) -> Any:
        """(call) Gives the connection back; closes it where it must not be used again."""
        raise NotImplementedError

    def cut(self) -> None:
        """Ends the connection at once, from any thread: what waits on it fails. It has still to be released."""
        raise NotImplementedError


class Driver:
    """A source of sessions."""

    is_async = False
    reconnects = True
    """Whether another connection can be had after one was lost."""

    def acquire(self) -> Any:
        """(call) A session."""
        raise NotImplementedError

    def sleep(self, seconds: float) -> Any:
        """(call) Pauses."""
        return asyncio.sleep(seconds) if self.is_async else time.sleep(seconds)


class _Uncancelled(asyncio.Task[Any]):
    """A task that ends because its connection is cut, where it is to be cancelled: by who waits for it, or at the end of its loop."""

    session: Session
    is_cut = False

    def cancel(self, msg: Any = None) -> bool:
        if not self.done() and not self.is_cut:
            try:
                self.session.cut()
            except Exception:
                # There is no connection, and so nothing that could commit.
                return super().cancel(msg)
            self.is_cut = True
        return not self.done()


async def uncancelled(session: Session, call: Coroutine[Any, Any, Any]) -> Any:
    """What commits over an asynchronous library, which would ask the server to cancel it."""
    task = _Uncancelled(call, loop=asyncio.get_running_loop())
    task.session = session
    try:
        return await task
    finally:
        if task.is_cut:
            raise asyncio.CancelledError


def cut(raw: Any) -> None:
    """Ends a library's own connection at once."""
    terminate = getattr(raw, "terminate", None)  # asyncpg
    if terminate is not None:
        terminate()
        return
    # To close it is not for another thread than the one that waits on it; and that one sees the end of its socket.
    with socket.fromfd(raw.fileno(), socket.AF_INET, socket.SOCK_STREAM) as end:
        end.shutdown(socket.SHUT_RDWR)


def translate(error: BaseException) -> Error | None:
    """What an exception of a library means; None where it is not of a database library."""
    if isinstance(error, Error):
        return error
    if not isinstance(error, Exception):
        return None
    libraries = {base.__module__.partition(".")[0] for base in type(error).__mro__}
    known = libraries & {"psycopg", "psycopg_pool", "psycopg2", "asyncpg", "sqlalchemy", "django"}
    if not known:
        # asyncpg lets the errors of sockets through.
        lost = isinstance(error, (ConnectionError, EOFError))
        return Disconnected(str(error) or type(error).__name__) if lost else None
    found: Any = error
    seen = 0
    # SQLAlchemy and Django wrap the library's own error.
    while _sqlstate(found) is None and seen < 5:
        inner = getattr(found, "orig", None) or found.__cause__
        if inner is None:
            break
        found, seen = inner, seen + 1
    code = _sqlstate(found)
    message = str(getattr(found, "message", None) or found).strip()
    if code is None:
        return Disconnected(message) if _is_lost(error, found) else None
    diag = getattr(found, "diag", found)
    if code == "26000" or code == "0A000" and _text(diag, "source_function", "server_source_function") == "RevalidateCachedQuery":
        # What this connection has prepared is gone (DISCARD ALL, another server behind a pooler), or returns other types than before.
        # It refuses the same again; another connection does not.
        stale = Disconnected(f"the session is out of date: {message} [{code}]")
        stale._did_nothing = True
        return stale
    known_error = from_sqlstate(
        code,
        getattr(diag, "message_primary", None) or message,
        detail=_text(diag, "message_detail", "detail"),
        hint=_text(diag, "message_hint", "hint"),
        constraint=_text(diag, "constraint_name", "constraint_name"),
    )
    severity = _severity(found)
    known_error._ended_session = severity in ("FATAL", "PANIC")
    known_error._is_crash = severity == "PANIC" or severity == "FATAL" and _CRASH.match(code) is not None
    return known_error


def _sqlstate(error: Any) -> str | None:
    for name in ("sqlstate", "pgcode"):
        code = getattr(error, name, None)
        if isinstance(code, str) and len(code) == 5:
            return code
    return None


def _severity(error: Any) -> str | None:
    # SQLAlchemy's own error over asyncpg has a code, and only its cause the severity.
    for _ in range(5):
        diag = getattr(error, "diag", error)
        found = _text(diag, "severity_nonlocalized", "severity_en", "severity")
        if found is not None or error is None:
            return found
        error = getattr(error, "orig", None) or error.__cause__
    return None


def _text(source: Any, *names: str) -> str | None:
    for name in names:
        text = getattr(source, name, None)
        if isinstance(text, str):
            return text
    return None


def _is_lost(error: BaseException, inner: BaseException) -> bool:
    """Whether an error without a code says that there is no connection."""
    if getattr(error, "connection_invalidated", False):
        return True
    if isinstance(inner, (ConnectionError, EOFError, OSError, TimeoutError)):
        return True
    names = {base.__name__ for base in type(inner).__mro__}
    if "OperationalError" in names:
        return True
    # asyncpg: "connection is closed", "connection was closed in the middle of operation".
    return "InterfaceError" in names and "clos" in str(inner)
