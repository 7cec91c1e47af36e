"""Claims, waits and retries for one intent."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from . import _statements as sql
from ._drivers import Driver, Session
from ._intent import Claimed, Done, Intent, Options, seconds
from ._protocol import claim_params, contract_of, ended, in_own_transaction, look_up, open_attempt
from ._steps import Steps, limited, max_silence
from ._table import Class
from .errors import Busy, Conflict, DatabaseError, Disconnected, Error, Failure, Fenced, Invalid, LostRace, Uncertain
from .retry import Schedule

T = TypeVar("T")

_MAX_PAUSE = 0.5

# How many callers of a process may wait on a connection each for the answer of another attempt; others
# ask again after a pause, so that waiting never empties a pool.
_WAITERS = threading.BoundedSemaphore(4)


class Loop:
    """Claims, waits and retries for one intent."""

    def __init__(self, driver: Driver, intent: Intent, options: Options) -> None:
        self.driver = driver
        self.intent = intent
        self.options = options
        self.schedule = Schedule(options.retry)
        self.wait_until: float | None = None
        self.pause = 0.005
        self.uncertain: Uncertain | None = None
        self.ran = False
        """The outside world may have seen leased work of this call."""
        self.length: float | None = None
        """How long its leases are, once that is known."""
        self.sent = time.monotonic()
        """When the last claim was sent."""
        self.stored: Done | None = None
        """What was found where there is no time for another claim."""

    def attempt(self) -> Steps[tuple[Session, Claimed] | Done]:
        """The right to do the work, in an open transaction; or how the intent ended before."""
        while True:
            try:
                session, claimed = yield from open_attempt(self.driver, self.intent, self.options)
                if session is not None:
                    return session, claimed
                if claimed.outcome != "busy":
                    return ended(claimed)
                yield from self.wait(claimed.retry_after)
            except Error as error:
                yield from self.again(error)

    def lease(self, length: float | None) -> Steps[Claimed | Done]:
        """A committed claim, as long as asked or as the scope's contract says; or how the intent ended before."""
        # The same for every claim of a call: its contract is asked for before any work ran.
        self.length = self.length if length is None else length

        def ask(driver: Driver) -> Steps[list[tuple[Any, ...]]]:
            params = claim_params(self.intent, self.options, self.length)
            return in_own_transaction(driver, self.options, sql.CLAIM, params)

        while self.stored is None:
            try:
                if self.length is None:
                    self.length = (yield from contract_of(self.driver, self.intent, self.options)).lease
                self.sent = time.monotonic()
                rows = yield from self._in_time(ask, Uncertain)
                claimed = Claimed.read(rows[0])
                if claimed.holds:
                    return claimed
                if claimed.outcome != "busy":
                    return ended(claimed)
                yield from self.wait(claimed.retry_after)
            except Error as error:
                yield from self.again(error)
        return self.stored

    def _in_time(self, ask: Callable[[Driver], Steps[T]], late: type[Error]) -> Steps[T]:
        """After the work ran these calls learn its end: a connection that falls silent must not keep that back."""
        if not self.ran or self.length is None:
            return ask(self.driver)
        return limited(self.driver, ask, max_silence(self.length), late)

    def again(self, error: Error, *, ran: bool = False) -> Steps[None]:
        """Pauses before the next try, or raises where another try does not help.

        `ran` says that the outside world may have seen the work: then only what is stored says otherwise.
        """
        self.ran = self.ran or ran
        if isinstance(error, Uncertain):
            self.uncertain = error
        elif ran:
            self.uncertain = Uncertain(error.message)
        worth = not isinstance(error, (Failure, Busy)) and error.error_class in (
            Class.RETRY,
            Class.RETRY_AFTER_DELAY,
            Class.CLAIM_AGAIN,
            Class.AMBIGUOUS,
        )
        lost = isinstance(error, (Disconnected, Uncertain)) and not self.driver.reconnects
        delay = self.schedule.next_delay(error) if worth and not lost else None
        if delay is None:
            # The tries to record leased work may have used up the time; what is stored counts all the same.
            if worth and self.ran:
                self.stored = yield from self._look()
                if self.stored is not None:
                    return
            last = self.final(error)
            if last is error:
                raise error
            raise last from error
        yield lambda: self.driver.sleep(delay)

    def _look(self) -> Steps[Done | None]:
        """The stored answer, where there is one."""
        params = {**self.intent.names, "fingerprint": self.intent.fingerprint}
        try:
            rows = yield from self._in_time(lambda driver: look_up(driver, self.options, sql.LOOK, params), Disconnected)
        except Error:
            return None
        return Claimed.read(rows[0]).done() if rows[0][0] == "replay" else None

    def final(self, error: Error) -> Error:
        """What to end with: that the last try did nothing says nothing about the one before.

        Only what is stored about the intent settles the doubt. The holder, or the one that was faster, may
        be that very try, still committing.
        """
        doubtful = (Disconnected, Busy, DatabaseError, LostRace, Fenced, Invalid)
        # Who used the key with another request came after work that the outside world may have seen.
        after = self.ran and isinstance(error, Conflict)
        if self.uncertain is not None and (after or isinstance(error, doubtful)):
            return self.uncertain
        return error

    def wait(self, retry_after: float) -> Steps[None]:
        """Does what the scope's contract says about a busy intent."""
        if self.wait_until is None:
            contract = yield from self._in_time(
                lambda driver: contract_of(driver, self.intent, self.options), Disconnected
            )
            if contract.busy != "wait":
                raise Busy(retry_after, accepted=contract.busy == "accept")
            self.wait_until = time.monotonic() + contract.wait_timeout
        left = self.wait_until - time.monotonic()
        if left <= 0:
            raise Busy(retry_after)
        started = time.monotonic()
        # After its work ran a call asks again and again: while it waits, a connection that works is as silent as one
        # that is lost.
        if not self.ran and _WAITERS.acquire(blocking=False):
            # Woken by the lock of the transaction that holds the intent. A lease has no such lock.
            params = {**self.intent.names, "timeout": seconds(left)}
            try:
                yield from look_up(self.driver, self.options, sql.WAIT, params)
            except DatabaseError as error:
                # A timeout of the session is shorter than the wait: look, and sleep again.
                if error.code not in ("57014", "55P03"):
                    raise
            finally:
                _WAITERS.release()
        if time.monotonic() - started < self.pause:
            pause = min(self.pause, left, max(retry_after, 0.005)) * random.uniform(0.5, 1)
            yield lambda: self.driver.sleep(pause)
            self.pause = min(self.pause * 2, _MAX_PAUSE)
