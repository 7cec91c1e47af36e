"""Asynchronous leases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, overload

from ._aio_tx import Tx
from ._drivers import adapt
from ._intent import UNSET, Done, Intent, Options, make_intent
from ._lease import LeaseState, enter, finish_writes, given_back, ran_out
from ._protocol import Loop, drive_async
from .errors import Error, Fenced, LostRace, Uncertain
from .retry import Policy


class Lease(LeaseState):
    """The right to do the work for a while, holding no transaction and no connection.

    It is renewed in the background while the block runs. When it is lost, the block is cancelled
    and ends with `Fenced`: the new holder must not meet a twin.
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

    async def _renew(self, work: asyncio.Task[Any]) -> None:
        delay = self._until_next_beat()
        while self._lost is None:
            await asyncio.sleep(delay)
            left = self._renewed + self.length - time.monotonic()
            try:
                delay = await asyncio.wait_for(drive_async(self._beat()), max(left, 0.001))
            except (TimeoutError, asyncio.TimeoutError):
                self._lost = ran_out()
        work.cancel()


class _Renewal:
    """Renews a lease while a block runs, and cancels the block when the lease is lost."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    async def __aenter__(self) -> None:
        work = asyncio.current_task()
        assert work is not None
        self.work = work
        self.task = asyncio.create_task(self.lease._renew(work))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = isinstance(error, asyncio.CancelledError) and self.lease._lost is not None
        if not cancelled:
            self.task.cancel()
        try:
            await self.task
        except asyncio.CancelledError:
            pass
        if cancelled and self.lease._lost is not None:
            uncancel = getattr(self.work, "uncancel", None)  # Python 3.11
            if uncancel is not None:
                uncancel()
            raise self.lease._lost from error


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
            try:
                async with _Renewal(held):
                    value = await work(held)
                    if held._ack is None and held._done is None:
                        held.succeed(UNSET if value is None else value)
                if held._done is None and not held._settled:
                    await drive_async(held._finish())
            except (Fenced, LostRace, Uncertain) as error:
                if held._done is None:
                    if held._settled:
                        raise
                    # The claim knows what is true now.
                    await drive_async(loop.again(error, ran=True))
                    continue
            except Error as error:
                if held._done is None:
                    await drive_async(held._leave(error))
                    raise
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
        if self._held.is_new and self._renew:
            self._renewal = _Renewal(self._held)
            await self._renewal.__aenter__()
        return self._held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._held is not None and self._loop is not None
        if self._renewal is not None:
            await self._renewal.__aexit__(kind, error, trace)
        await drive_async(self._held._exit(self._loop, error))


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
