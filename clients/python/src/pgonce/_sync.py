"""The synchronous API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from . import _execute, _messages
from ._attempt import TxState, Work, enter_joined, exit_joined
from ._drivers import adapt
from ._intent import UNSET, Done, Intent, Options, make_intent
from ._loop import Loop
from ._steps import drive
from .retry import Policy

T = TypeVar("T")


class Tx(TxState):
    __doc__ = TxState.__doc__

    def publish(
        self,
        topic: str,
        type: str,
        payload: Any = None,
        *,
        subject: str | None = None,
        message_id: str | None = None,
        headers: dict[str, Any] | None = None,
        deliver_at: str | None = None,
    ) -> str:
        """Publishes an event that exists if and only if this attempt succeeds.

        Returns its message id, which is the same on every attempt at the intent.
        """
        return publish(
            self.conn,
            topic,
            type,
            payload,
            subject=subject,
            message_id=message_id,
            headers=headers,
            deliver_at=deliver_at,
            tenant=self.intent.tenant,
            schema=self._options.schema,
        )

    def accept(self, consumer: str, source: str, message_id: str, payload: bytes | str | None = None) -> bool:
        """Whether this consumer may apply this message now: true where it is new."""
        return accept(
            self.conn,
            consumer,
            source,
            message_id,
            payload,
            tenant=self.intent.tenant,
            schema=self._options.schema,
        )


class Command:
    """One command, to be run or entered. Made by `once`."""

    def __init__(self, source: Any, intent: Intent, options: Options) -> None:
        self._driver = adapt(source, is_async=False)
        self.intent = intent
        self._options = options
        self._tx: Tx | None = None
        self._loop: Loop | None = None

    def run(self, work: Callable[[Tx], Any]) -> Done:
        """Makes `work` happen once and returns what came of it, now or before.

        `work` may be called several times, each time in a transaction of its own of which at most
        one commits. What it returns is the answer, unless it calls `tx.succeed`.
        """
        loop = Loop(self._driver, self.intent, self._options)
        return drive(Work(loop, work, Tx).run())

    def __enter__(self) -> Tx:
        self._loop = loop = Loop(self._driver, self.intent, self._options)
        found = drive(loop.attempt())
        session, claimed = (None, found) if isinstance(found, Done) else found
        self._tx = Tx(self._driver, self.intent, self._options, session, claimed)
        return self._tx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tx is not None and self._loop is not None
        drive(self._tx._exit(self._loop, error))


class Joined:
    """A claim inside a transaction of yours. Made by `join`."""

    def __init__(self, source: Any, intent: Intent, options: Options) -> None:
        self._driver = adapt(source, is_async=False)
        self.intent = intent
        self._options = options
        self._tx: Tx | None = None

    def __enter__(self) -> Tx:
        self._tx = drive(enter_joined(Tx, self._driver, self.intent, self._options))
        return self._tx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tx is not None
        if error is None:
            drive(exit_joined(self._tx))


class Decorator(Generic[T]):
    """Turns `work(tx, key, request, ...)` into a command `work(key, request, ...)`. Made by `once`."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, work: Callable[..., Any]) -> Callable[..., T]:
        @functools.wraps(work)
        def command(key: str, request: Any, *args: Any, tenant: str = "", **kwargs: Any) -> Any:
            made = self._make(key, request, tenant)
            return made.run(lambda tx: work(tx, key, request, *args, **kwargs))

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
) -> Decorator[Done]: ...


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
    work: Callable[[Tx], Any],
    *,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    isolation: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> Done: ...


def once(
    source: Any,
    scope: str,
    key: Any = UNSET,
    request: Any = UNSET,
    work: Callable[[Tx], Any] | None = None,
    *,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    isolation: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> Command | Done | Decorator[Done]:
    """Makes a command happen once: claim, effect and answer commit in one transaction.

    As a function, `once(pool, scope, key, request, work)` runs `work(tx)` with retries and returns a
    `Done`. As a context manager, `with once(pool, scope, key, request) as tx` runs the block, which
    looks at `tx.is_new`. As a decorator, `@once(pool, scope)` turns `work(tx, key, request)` into
    a command.

    Raises `Conflict`, `Busy`, `Gone`, `PermanentFailure`, `TransientFailure`, `Uncertain` and
    `NotInTransaction`; each has a `code`.
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


def execute(
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
    """Makes one statement happen once, in one round trip: the row that it returns is the answer.

    The statement is an insert, update, delete or merge with `returning`, or a select that calls a
    function; it returns exactly one row, and its parameters are written as `:name`. It becomes a
    part of one that also claims the intent and records its success, so that all of it commits or
    none. A look-up goes first, unless `known_first` says that this is the first attempt. Events go
    along where it returns `pgonce.publish(...)` among its columns.

    Raises what `once` raises, and `Invalid` (22023) where the statement returned no row.
    """
    options = Options(isolation, retry or Policy(), owner, schema)
    intent = make_intent(scope, key, request, tenant=tenant, correlation=correlation, fingerprint=fingerprint)
    loop = Loop(adapt(source, is_async=False), intent, options)
    return drive(_execute.execute(loop, _execute.Statement(statement, params, intent, options), known_first))


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
    """Claims inside a transaction that you opened and will commit.

    `with join(conn, scope, key, request) as tx:` records the success when the block ends. Nothing
    is true before you commit; if the reply to that is lost, claim again.
    """
    intent = make_intent(
        scope, key, request, tenant=tenant, correlation=correlation, fingerprint=fingerprint
    )
    return Joined(conn, intent, Options(owner=owner, schema=schema))


def publish(
    conn: Any,
    topic: str,
    type: str,
    payload: Any = None,
    *,
    subject: str | None = None,
    message_id: str | None = None,
    headers: dict[str, Any] | None = None,
    deliver_at: str | None = None,
    tenant: str = "",
    schema: str = "pgonce",
) -> str:
    """Publishes an event in your open transaction: it exists if and only if that commits.

    Returns its message id. `deliver_at` is a timestamp of PostgreSQL, such as ISO 8601.
    """
    event = _messages.event(topic, type, payload, subject, message_id, headers, deliver_at, tenant)
    return drive(_messages.publish(adapt(conn, is_async=False), event, schema))


def accept(
    conn: Any,
    consumer: str,
    source: str,
    message_id: str,
    payload: bytes | str | None = None,
    *,
    tenant: str = "",
    schema: str = "pgonce",
) -> bool:
    """Whether this consumer may apply this message now: true where it is new.

    Call it in the transaction of the effect: marker and effect commit together. Raises `Conflict`
    with code P4050 where the id came before with another payload.
    """
    message = _messages.message(consumer, source, message_id, payload, tenant)
    return drive(_messages.accept(adapt(conn, is_async=False), message, schema))


def accept_batch(
    conn: Any,
    consumer: str,
    source: str,
    messages: Sequence[tuple[str, bytes | str]],
    *,
    tenant: str = "",
    schema: str = "pgonce",
) -> list[str]:
    """As `accept`, for many messages, as (id, payload), in one statement.

    Returns the ids that are new, each once.
    """
    batch = _messages.batch(consumer, source, messages, tenant)
    return drive(_messages.accept_batch(adapt(conn, is_async=False), batch, schema))
