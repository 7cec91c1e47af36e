"""Synchronous leases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, overload

from ._drivers import adapt
from ._intent import UNSET, Done, Intent, Options, make_intent
from ._lease import LeaseState, enter, finish_writes, given_back
from ._loop import Loop
from ._steps import drive
from ._sync import Tx
from .errors import Error, Fenced, LostRace, Uncertain
from .retry import Policy


class Lease(LeaseState):
    __doc__ = LeaseState.__doc__

    def heartbeat(self) -> None:
        """Renews the lease once, by its own length. The block does so in the background."""
        drive(self._heartbeat())

    def release(self) -> None:
        """Gives the lease back, the work not done: the next claim gets it at once."""
        drive(self._release())

    @contextmanager
    def begin(self) -> Iterator[Tx]:
        """A transaction for writes of your own under the fence.

        `tx.succeed` commits them with the answer when the block ends; a holder that was taken over is
        turned away before any write.
        """
        tx = Tx(self._driver, self.intent, self._options, drive(self._begin()), self._held())
        try:
            yield tx
        except BaseException as error:
            drive(finish_writes(self, tx, error))
            raise
        drive(finish_writes(self, tx, None))


class _Renewal:
    """Renews a lease while its work runs and is recorded."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.stopped = threading.Event()
        threading.Thread(target=self._run, name="pgonce-heartbeat", daemon=True).start()

    def _run(self) -> None:
        delay = self.lease._until_next_beat()
        while not self.stopped.wait(delay) and self.lease._is_renewed:
            delay = drive(self.lease._beat())

    def stop(self) -> None:
        # Not joined: a renewal that hangs must not hold up who has its answer.
        self.lease._renews = False
        self.stopped.set()


class LeaseCommand:
    """One command under a lease, to be run or entered. Made by `lease`."""

    def __init__(
        self, source: Any, intent: Intent, options: Options, length: float | None, renew: bool
    ) -> None:
        self._driver = adapt(source, is_async=False)
        self.intent = intent
        self._options = options
        self._length = length
        self._renew = renew
        self._held: Lease | None = None
        self._loop: Loop | None = None
        self._renewal: _Renewal | None = None

    def run(self, work: Callable[[Lease], Any]) -> Done:
        """Makes `work` happen under a lease and returns what came of it, now or before.

        What `work` returns is the answer, unless it calls `succeed`.
        """
        loop = Loop(self._driver, self.intent, self._options)
        ran = False
        while True:
            held = self._enter(loop, ran)
            if held._done is not None:
                return held._done
            ran = True
            renewal = _Renewal(held) if self._renew else None
            try:
                value = work(held)
                if held._ack is None and held._done is None:
                    held.succeed(UNSET if value is None else value)
                if held._done is None and not held._settled:
                    drive(held._finish())
            except (Fenced, LostRace, Uncertain) as error:
                if held._done is None:
                    if held._settled:
                        raise
                    held._renews = False
                    # The claim knows what is true now.
                    drive(loop.again(error, ran=True))
                    continue
            except Error as error:
                if held._done is None:
                    drive(held._leave(error))
                    raise
            finally:
                if renewal is not None:
                    renewal.stop()
            if held._done is None:
                raise given_back()
            # What is stored counts, not what the work says afterwards.
            return held._done

    def _enter(self, loop: Loop, ran: bool = False) -> Lease:
        length, found, renewed = drive(enter(loop, self._length))
        return Lease(self._driver, self.intent, self._options, length, found, renewed, ran)

    def __enter__(self) -> Lease:
        self._loop = loop = Loop(self._driver, self.intent, self._options)
        self._held = self._enter(loop)
        if self._held.is_new and self._renew:
            self._renewal = _Renewal(self._held)
        return self._held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._held is not None and self._loop is not None
        try:
            drive(self._held._exit(self._loop, error))
        finally:
            if self._renewal is not None:
                self._renewal.stop()


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
    work: Callable[[Lease], Any],
    *,
    length: float | None = None,
    renew: bool = True,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> Done: ...


def lease(
    source: Any,
    scope: str,
    key: str,
    request: Any = UNSET,
    work: Callable[[Lease], Any] | None = None,
    *,
    length: float | None = None,
    renew: bool = True,
    tenant: str = "",
    fingerprint: bytes | None = None,
    correlation: str | None = None,
    owner: str | None = None,
    retry: Policy | None = None,
    schema: str = "pgonce",
) -> LeaseCommand | Done:
    """Makes work that calls the outside world happen once: a committed claim, renewed while the work
    runs, fenced against a holder that was taken over.

    As a function it runs `work(lease)` and returns a `Done`; as a context manager it runs the block.
    Leave either with a `PermanentFailure` or a `TransientFailure` to have that recorded. With any
    other exception the outside effect may have happened: the claim stays until its lease runs out,
    and then the scope's contract decides. `length` is in seconds; default: the contract's. Without
    `renew` nothing is renewed in the background: call `heartbeat`.
    """
    intent = make_intent(
        scope, key, request, tenant=tenant, correlation=correlation, fingerprint=fingerprint
    )
    options = Options(None, retry or Policy(), owner, schema)
    command = LeaseCommand(source, intent, options, length, renew)
    return command if work is None else command.run(work)
