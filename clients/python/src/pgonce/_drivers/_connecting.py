"""A function that connects: a connection for each call, closed after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ._base import Driver, Session


class Connecting(Driver):
    def __init__(self, connect: Callable[[], Any], *, is_async: bool) -> None:
        self.connect = connect
        self.is_async = is_async

    def acquire(self) -> Any:
        return self._acquire_async() if self.is_async else self._acquire()

    def _acquire(self) -> Session:
        from . import adapt

        raw = self.connect()
        session: Session = adapt(raw, is_async=False).acquire()
        return _closing(session, raw.close)

    async def _acquire_async(self) -> Session:
        from . import adapt

        raw = self.connect()
        if inspect.isawaitable(raw):
            raw = await raw
        session: Session = await adapt(raw, is_async=True).acquire()
        return _closing(session, raw.close)


def _closing(session: Session, close: Callable[[], Any]) -> Session:
    release = session.release

    def release_and_close(keep: bool) -> Any:
        return close() if keep else release(False)

    # The session is ours alone: nobody else sees it with another release.
    session.release = release_and_close  # type: ignore[method-assign]
    return session
