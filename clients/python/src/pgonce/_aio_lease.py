"""Asynchronous leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, overload

from ._aio_tx import Tx
from ._drivers import adapt
from ._intent import UNSET, Done, Intent, Options, make_intent
from ._lease import LeaseState, enter, finish_writes, given_back
from ._loop import Loop
from ._steps import drive_async
from .errors import Error, Fenced, LostRace, Uncertain
from .retry import Policy


class Lease(LeaseState):
    """The right to do the work for a while, holding no transaction and no connection.

    It is renewed in the background while the block runs and its end is recorded. When it is lost, the
    block is cancelled and ends with `Fenced`: the new holder must not meet a twin.
    """

    async def heartbeat(self) -> None:
        """Renews the lease once, by its own length. The block does so in the background."""
        await drive_async(self._heartbeat())

    async def release(self) -> None:
        """Gives the lease back, the work not done: the next claim gets it at once."""
        await drive_async(self._release())

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Tx]:
        """A transaction for writes of your own under the fence; as `pgonce.Lease.begin`."""
        session = await drive_async(self._begin())
        tx = Tx(self._driver, self.intent, self._options, session, self._held())
        try:
            yield tx
        except BaseException as error:
            await drive_async(finish_writes(self, tx, error))
            raise
        await drive_async(finish_writes(self, tx, None))


class _Renewal:
    """Renews a lease while its work runs and is recorded, and cancels the work when the lease is lost.

    Without `renew` it only looks at the clock.
    """

    def __init__(self, lease: Lease, renew: bool) -> None:
        work = asyncio.current_task()
        assert work is not None
        self.lease = lease
        self.work: asyncio.Task[Any] | None = work
        # Python 3.11 counts who else has cancelled the task.
        self.cancelled_before = work.cancelling() if hasattr(work, "cancelling") else 0
        self.has_cancelled = False
        self.task = asyncio.create_task(self._renew() if renew else self._wait())

    async def _renew(self) -> None:
        delay = self.lease._until_next_beat()
        while self.lease._is_renewed:
            await asyncio.sleep(delay)
            if self.lease._is_renewed:
                delay = await drive_async(self.lease._beat())
        self._cancel_if_lost()

    async def _wait(self) -> None:
        while self.lease._is_renewed:
            # One whose end is being recorded is not lost, whatever the clock says.
            await asyncio.sleep(max(self.lease._left, self.lease.length / 20))
            self.lease._lose(None)
        self._cancel_if_lost()

    def _cancel_if_lost(self) -> None:
        if self.lease._lost is not None and self.work is not None:
            self.has_cancelled = True
            self.work.cancel()

    def work_ended(self, error: BaseException | None) -> None:
        """To be called before anything is recorded, which nothing cancels. Raises `Fenced` where the work was cancelled
        because the lease is lost."""
        work, self.work = self.work, None
        if work is None or not self.has_cancelled:
            return
        uncancel = getattr(work, "uncancel", None)
        by_others = uncancel is not None and uncancel() > self.cancelled_before
        if isinstance(error, asyncio.CancelledError) and not by_others and self.lease._lost is not None:
            raise self.lease._lost from error

    async def stop(self) -> None:
        self.lease._renews = False
        self.task.cancel()
        # It has nothing to wait for: a renewal that hangs is left to itself.
        await asyncio.wait({self.task}, timeout=1)


class LeaseCommand:
    """One command under a lease, to be run or entered. Made by `lease`."""

    def __init__(
        self, source: Any, intent: Intent, options: Options, length: float | None, renew: bool
    ) -> None:
        self._driver = adapt(source, is_async=True)
        self.intent = intent
        self._options = options
        self._length = length
        self._renew = renew
        self._held: Lease | None = None
        self._loop: Loop | None = None
        self._renewal: _Renewal | None = None

    async def run(self, work: Callable[[Lease], Awaitable[Any]]) -> Done:
        """Makes `work` happen under a lease and returns what came of it, now or before.

        What `work` returns is the answer, unless it calls `succeed`.
        """
        loop = Loop(self._driver, self.intent, self._options)
        ran = False
        while True:
            held = await self._enter(loop, ran)
            if held._done is not None:
                return held._done
            ran = True
            renewal = _Renewal(held, self._renew)
            try:
                try:
                    value = await work(held)
                except BaseException as error:
                    renewal.work_ended(error)
                    raise
                renewal.work_ended(None)
                if held._ack is None and held._done is None:
                    held.succeed(UNSET if value is None else value)
                if held._done is None and not held._settled:
                    await drive_async(held._finish())
            except (Fenced, LostRace, Uncertain) as error:
                if held._done is None:
                    if held._settled:
                        raise
                    await renewal.stop()
                    # The claim knows what is true now.
                    await drive_async(loop.again(error, ran=True))
                    continue
            except Error as error:
                if held._done is None:
                    await drive_async(held._leave(error))
                    raise
            finally:
                await renewal.stop()
            if held._done is None:
                raise given_back()
            # What is stored counts, not what the work says afterwards.
            return held._done

    async def _enter(self, loop: Loop, ran: bool = False) -> Lease:
        length, found, renewed = await drive_async(enter(loop, self._length))
        return Lease(self._driver, self.intent, self._options, length, found, renewed, ran)

    async def __aenter__(self) -> Lease:
        self._loop = loop = Loop(self._driver, self.intent, self._options)
        self._held = await self._enter(loop)
        if self._held.is_new:
            self._renewal = _Renewal(self._held, self._renew)
        return self._held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._held is not None and self._loop is not None
        try:
            if self._renewal is not None:
                self._renewal.work_ended(error)
            await drive_async(self._held._exit(self._loop, error))
        finally:
            if self._renewal is not None:
                await self._renewal.stop()


@overload
def lease(
    source: Any,
    scope: str,
    key: str,
    request: Any = UNSET,
    *,
    length: float | None = None,
    renew: bool = True,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> LeaseCommand: ...


@overload
def lease(
    source: Any,
    scope: str,
    key: str,
    request: Any,
    work: Callable[[Lease], Awaitable[Any]],
    *,
    length: float | None = None,
    renew: bool = True,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> Awaitable[Done]: ...


def lease(
    source: Any,
    scope: str,
    key: str,
    request: Any = UNSET,
    work: Callable[[Lease], Awaitable[Any]] | None = None,
    *,
    length: float | None = None,
    renew: bool = True,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> LeaseCommand | Awaitable[Done]:
    """Makes work that calls the outside world happen once; as `pgonce.lease`.

    `await lease(pool, scope, key, request, work)`, or `async with lease(...) as held`.
    """
    intent = make_intent(
        scope, key, request, tenant=tenant, correlation=correlation, fingerprint=fingerprint
    )
    options = Options(None, retry or Policy(), owner, schema)
    command = LeaseCommand(source, intent, options, length, renew)
    return command if work is None else command.run(work)
