"""The asynchronous API: the names of `pgonce`, over asynchronous connections and pools."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar, overload

from . import _execute
from ._aio_lease import Lease, LeaseCommand, lease
from ._aio_tx import Tx, accept, accept_batch, publish
from ._attempt import Work, enter_joined, exit_joined
from ._drivers import adapt
from ._intent import UNSET, Done, Intent, Options, make_intent
from ._loop import Loop
from ._steps import drive_async
from .retry import Policy, Schedule, rerun_delay

__all__ = [
    "Command",
    "Joined",
    "Lease",
    "LeaseCommand",
    "Tx",
    "accept",
    "accept_batch",
    "execute",
    "join",
    "lease",
    "once",
    "publish",
    "transact",
]

T = TypeVar("T")


class Command:
    """One command, to be run or entered. Made by `once`."""

    def __init__(self, source: Any, intent: Intent, options: Options) -> None:
        self._driver = adapt(source, is_async=True)
        self.intent = intent
        self._options = options
        self._tx: Tx | None = None
        self._loop: Loop | None = None

    async def run(self, work: Callable[[Tx], Awaitable[Any]]) -> Done:
        """Makes `work` happen once and returns what came of it, now or before.

        `work` may be called several times, each time in a transaction of its own of which at most
        one commits. What it returns is the answer, unless it calls `tx.succeed`.
        """
        loop = Loop(self._driver, self.intent, self._options)
        return await drive_async(Work(loop, work, Tx).run())

    async def __aenter__(self) -> Tx:
        self._loop = loop = Loop(self._driver, self.intent, self._options)
        found = await drive_async(loop.attempt())
        session, claimed = (None, found) if isinstance(found, Done) else found
        self._tx = Tx(self._driver, self.intent, self._options, session, claimed)
        return self._tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tx is not None and self._loop is not None
        await drive_async(self._tx._exit(self._loop, error))


class Joined:
    """A claim inside a transaction of yours. Made by `join`."""

    def __init__(self, source: Any, intent: Intent, options: Options) -> None:
        self._driver = adapt(source, is_async=True)
        self.intent = intent
        self._options = options
        self._tx: Tx | None = None

    async def __aenter__(self) -> Tx:
        self._tx = await drive_async(enter_joined(Tx, self._driver, self.intent, self._options))
        return self._tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tx is not None
        if error is None:
            await drive_async(exit_joined(self._tx))


class Decorator:
    """Turns `work(tx, key, request, ...)` into a command `work(key, request, ...)`. Made by `once`."""

    def __init__(self, make: Callable[[str, Any, str], Command]) -> None:
        self._make = make

    def __call__(self, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Done]]:
        @functools.wraps(work)
        async def command(key: str, request: Any, *args: Any, tenant: str = "", **kwargs: Any) -> Done:
            made = self._make(key, request, tenant)
            return await made.run(lambda tx: work(tx, key, request, *args, **kwargs))

        return command


@overload
def once(
    source: Any,
    scope: str,
    *,
    owner: str | None = None,
    isolation: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> Decorator: ...


@overload
def once(
    source: Any,
    scope: str,
    key: str,
    request: Any = UNSET,
    *,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    isolation: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> Command: ...


@overload
def once(
    source: Any,
    scope: str,
    key: str,
    request: Any,
    work: Callable[[Tx], Awaitable[Any]],
    *,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    isolation: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> Awaitable[Done]: ...


def once(
    source: Any,
    scope: str,
    key: Any = UNSET,
    request: Any = UNSET,
    work: Callable[[Tx], Awaitable[Any]] | None = None,
    *,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    isolation: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> Command | Awaitable[Done] | Decorator:
    """Makes a command happen once: claim, effect and answer commit in one transaction.

    As `pgonce.once`: `await once(pool, scope, key, request, work)`,
    `async with once(pool, scope, key, request) as tx`, and `@once(pool, scope)`.
    """
    options = Options(isolation, retry or Policy(), owner, schema)
    if key is UNSET:
        return Decorator(
            lambda key, request, tenant: Command(source, make_intent(scope, key, request, tenant=tenant), options)
        )
    intent = make_intent(
        scope, key, request, tenant=tenant, correlation=correlation, fingerprint=fingerprint
    )
    command = Command(source, intent, options)
    return command if work is None else command.run(work)


async def execute(
    source: Any,
    scope: str,
    key: str,
    request: Any,
    statement: str,
    params: Mapping[str, Any] | None = None,
    *,
    known_first: bool = False,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    isolation: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> Done:
    """Makes one statement happen once, in one round trip; as `pgonce.execute`."""
    options = Options(isolation, retry or Policy(), owner, schema)
    intent = make_intent(scope, key, request, tenant=tenant, correlation=correlation, fingerprint=fingerprint)
    loop = Loop(adapt(source, is_async=True), intent, options)
    return await drive_async(_execute.execute(loop, _execute.Statement(statement, params, intent, options), known_first))


def join(
    conn: Any,
    scope: str,
    key: str,
    request: Any = UNSET,
    *,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    schema: str = "pgonce",
) -> Joined:
    """Claims inside a transaction that you opened and will commit; as `pgonce.join`."""
    intent = make_intent(
        scope, key, request, tenant=tenant, correlation=correlation, fingerprint=fingerprint
    )
    return Joined(conn, intent, Options(owner=owner, schema=schema))


async def transact(work: Callable[[], Awaitable[T]], policy: Policy | None = None) -> T:
    """Runs a transaction of your own until it succeeds or fails for a reason that does not go away; as `pgonce.transact`."""
    schedule = Schedule(policy or Policy())
    while True:
        try:
            return await work()
        except Exception as raised:
            delay = rerun_delay(schedule, raised)
            if delay is None:
                raise
        await asyncio.sleep(delay)
