"""What runs the protocol's steps, and how a call ends in time where a connection falls silent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ._drivers import Driver, Session
from .errors import Error

T = TypeVar("T")
Steps = Generator[Callable[[], Any], Any, T]

MIN_LIMIT = 2.0
"""No try to record or to renew is given up earlier than this many seconds, however short the lease."""


def drive(steps: Steps[T]) -> T:
    """Runs the steps of a synchronous library."""
    try:
        call = next(steps)
        while True:
            try:
                result = call()
            except BaseException as error:
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_async(steps: Steps[T]) -> T:
    """Runs the steps of an asynchronous library."""
    try:
        call = next(steps)
        while True:
            try:
                result = call()
                if hasattr(result, "__await__"):
                    result = await result
            except BaseException as error:
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


# --- a limit of time ----------------------------------------------------------------------------


def max_silence(length: float) -> float:
    """For how many seconds a connection that serves a lease of this length may be silent."""
    return max(length / 3, MIN_LIMIT)


def limited(
    driver: Driver,
    call: Callable[[Driver], Steps[T]],
    limit: float,
    late: Callable[[str], Error],
    session: Session | None = None,
) -> Steps[T]:
    """Makes a call that may take `limit` seconds; `late` is what it means that there was no reply by then.

    What takes longer is left to itself, and its connection, where it has one already, is cut: a library's own way
    to end a call waits for the server, which is what is silent. `session` is one that the call does not acquire. One
    that the call returns is closed where it comes too late.
    """
    watched = Watched(driver)
    if session is not None:
        watched.watch(session)
    run = _run_async if driver.is_async else _run
    answer: T = yield lambda: run(watched, call(watched), limit, late)
    return answer


def _late(late: Callable[[str], Error]) -> Error:
    return late("the database did not answer in time")


def _run(watched: Watched, steps: Steps[T], limit: float, late: Callable[[str], Error]) -> T:
    # A thread: nothing else gets a caller out of a library that connects, or that asks a connection of its pool
    # whether it still works.
    made: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            result = drive(steps)
        except BaseException as error:
            if made.set_running_or_notify_cancel():
                made.set_exception(error)
        else:
            if made.set_running_or_notify_cancel():
                made.set_result(result)
            else:
                drive(watched.close())

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="pgonce-call", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # No thread can be had: better without a limit than not at all.
        return drive(steps)
    try:
        concurrent.futures.wait({made}, limit)
    except BaseException:
        if made.cancel():
            watched.give_up()
        else:
            drive(watched.close())
        raise
    # A call that has just ended cannot be cancelled any more: then this is its result.
    if made.cancel():
        watched.give_up()
        raise _late(late)
    return made.result()


# The loop itself holds its tasks weakly.
_ABANDONED: set[asyncio.Task[Any]] = set()


async def _run_async(watched: Watched, steps: Steps[T], limit: float, late: Callable[[str], Error]) -> T:
    task = asyncio.ensure_future(drive_async(steps))
    try:
        # Not wait_for, which waits for the end of what it cancels.
        await asyncio.wait({task}, timeout=limit)
    except BaseException:
        _abandon(watched, task)
        raise
    if not task.done():
        _abandon(watched, task)
        raise _late(late)
    return task.result()


def _abandon(watched: Watched, task: asyncio.Task[Any]) -> None:
    ended = asyncio.ensure_future(_ended(watched, task))
    _ABANDONED.add(ended)
    ended.add_done_callback(_ABANDONED.discard)
    # Without its connection it ends by itself. To cancel it would have the library talk to the silent server first.
    if not watched.give_up():
        task.cancel()


async def _ended(watched: Watched, task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None:
        await drive_async(watched.close())


class Watched(Driver):
    """The sessions of another driver, one at a time, of which the current one can be cut."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.is_async = driver.is_async
        self.reconnects = driver.reconnects
        self._session: Session | None = None
        self._over = False
        # A session is not cut after it was given back: its connection, or its number, may be another's by then.
        self._lock = threading.Lock()

    def acquire(self) -> Any:
        return self._acquire_async() if self.is_async else self.watch(self._driver.acquire())

    async def _acquire_async(self) -> Session:
        return self.watch(await self._driver.acquire())

    def watch(self, session: Session) -> Session:
        release = session.release

        def release_unless_cut(keep: bool) -> Any:
            with self._lock:
                self._session = None
                keep = keep and not self._over
            return release(keep)

        # The session is ours alone: nobody else sees it with another release.
        session.release = release_unless_cut  # type: ignore[method-assign]
        with self._lock:
            self._session = session
            if self._over:
                self._cut(session)
        return session

    def give_up(self) -> bool:
        """Cuts the connection, now or as soon as there is one; answers whether there was."""
        with self._lock:
            self._over = True
            return self._session is not None and self._cut(self._session)

    def _cut(self, session: Session) -> bool:
        try:
            session.cut()
        except Exception:
            return False
        return True

    def close(self) -> Steps[None]:
        """Closes the session that a call returned to nobody."""
        session = self._session
        if session is None:
            return
        try:
            yield lambda: session.release(False)
        except Exception:
            pass
