"""The protocol, written once for every library: generators that yield calls.

Who runs a generator (`_steps`) makes the call, awaits it where it must, and sends the result back or
throws what it raised.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from . import _statements as sql
from ._drivers import Driver, Session
from ._drivers._base import translate
from ._intent import UNSET, Ack, Claimed, Done, Intent, Options, seconds, to_json
from ._steps import Steps, limited, max_silence
from ._table import Class
from .errors import (
    Busy,
    Conflict,
    DatabaseError,
    Disconnected,
    Error,
    Failure,
    Fenced,
    Invalid,
    LostRace,
    NotInTransaction,
    PermanentFailure,
    TransientFailure,
    Uncertain,
)
from .retry import Schedule

T = TypeVar("T")

_MAX_PAUSE = 0.5

# How many callers of a process may wait on a connection each for the answer of another attempt; others
# ask again after a pause, so that waiting never empties a pool.
_WAITERS = threading.BoundedSemaphore(4)


# --- sessions -----------------------------------------------------------------------------------


def acquire(driver: Driver) -> Steps[Session]:
    session: Session = yield from translated(driver.acquire)
    return session


def translated(call: Callable[[], Any]) -> Steps[Any]:
    """Makes a call; its errors become those of pgonce."""
    try:
        return (yield call)
    except BaseException as error:
        known = translate(error) or _no_connection(error)
        if known is None or known is error:
            raise
        raise known from error


def _no_connection(error: BaseException) -> Disconnected | None:
    """What libraries let through of sockets, name servers, clocks and full pools. Only for calls of our own: the
    same error of a caller's work is the caller's."""
    names = {base.__name__ for base in type(error).__mro__}
    lost = isinstance(error, (OSError, asyncio.TimeoutError)) or "TimeoutError" in names
    return Disconnected(str(error) or type(error).__name__) if lost else None


def query(session: Session, statement: str, params: Mapping[str, Any]) -> Steps[list[tuple[Any, ...]]]:
    rows: list[tuple[Any, ...]] = yield from translated(lambda: session.query(statement, params))
    return rows


def roll_back(session: Session, error: BaseException | None) -> Steps[bool]:
    """Rolls back after an error; answers whether the connection can still be used. Still to be released, unless it raises.

    One that was cancelled in the middle of a call cannot: nobody knows what it would answer next.
    """
    if isinstance(error, Disconnected) or error is not None and not isinstance(error, Exception):
        return False
    try:
        yield session.rollback
    except Exception:
        return False
    except BaseException:
        # Cancelled on its way: a session that is not given back is missing from its pool for ever.
        yield from release(session, False)
        raise
    return True


def discard(session: Session, error: BaseException | None) -> Steps[None]:
    keep = yield from roll_back(session, error)
    yield from release(session, keep)


def release(session: Session, keep: bool) -> Steps[None]:
    try:
        yield lambda: session.release(keep)
    except Exception:
        # What matters was decided before: a connection that cannot be given back is lost, no more.
        return
    except asyncio.CancelledError:
        # It was still waiting for its pool, and was not given back.
        try:
            yield lambda: session.release(False)
        except Exception:
            pass
        raise


def refuse_autocommit(session: Session) -> Steps[None]:
    """Raises where a statement would commit by itself: its effect would part from its marker."""
    if (yield from translated(session.autocommits)):
        raise NotInTransaction(
            "the connection is in autocommit: every statement would commit by itself",
            hint="Use a connection without autocommit, or open a transaction first.",
        )


def refuse_open_transaction(session: Session) -> None:
    """Raises where somebody's transaction is open: to commit it is not ours."""
    if session.in_transaction():
        raise Invalid(
            "the connection is in a transaction already, which is not pgonce's to commit",
            hint="Commit or roll back first, or use join(...) to claim inside your transaction.",
        )


def borrow(driver: Driver) -> Steps[Session]:
    """The caller's own connection, in the caller's own transaction."""
    if driver.reconnects:
        raise Invalid(
            "this must happen in a transaction of yours, and a pool has none",
            hint="Pass the connection that holds your transaction.",
        )
    session = yield from acquire(driver)
    yield from refuse_autocommit(session)
    return session


def begin(driver: Driver, isolation: str | None, *, atomic: bool) -> Steps[Session]:
    """A session with a transaction of ours."""
    session = yield from acquire(driver)
    try:
        refuse_open_transaction(session)
        if atomic and session.can_autocommit:
            yield from refuse_autocommit(session)
    except BaseException as error:
        yield from release(session, isinstance(error, Invalid))
        raise
    try:
        yield from translated(lambda: session.begin(isolation))
    except BaseException as error:
        yield from discard(session, error)
        raise
    return session


def commit(session: Session) -> Steps[None]:
    """Commits and gives the session back.

    An error that carries no SQLSTATE, that ended its session, or that says itself that nobody knows, leaves open what
    happened.
    """
    try:
        tag = yield session.commit
    except BaseException as raised:
        error = translate(raised)
        if not isinstance(raised, Exception):
            yield from release(session, False)
            raise
        if error is None or error._leaves_commit_open:
            yield from release(session, False)
            raise Uncertain(
                f"the reply to the commit was lost, whether it happened is not known yet: {raised}"
            ) from raised
        yield from discard(session, error)
        raise error from raised
    if tag not in ("COMMIT", "ROLLBACK"):
        yield from release(session, False)
        raise Uncertain(f"the commit was answered with {tag}, whether it happened is not known yet")
    if tag == "ROLLBACK":
        yield from release(session, True)
        raise DatabaseError(
            "the commit was answered with ROLLBACK: the transaction had failed before",
            code="25P02",
            hint="An earlier error of this transaction was ignored: look for that first error.",
        )
    yield from release(session, True)


def in_own_transaction(
    driver: Driver, options: Options, statement: str, params: Mapping[str, Any]
) -> Steps[list[tuple[Any, ...]]]:
    """One call that is committed when this returns."""
    session = yield from begin(driver, "read committed", atomic=False)
    by_itself = False
    try:
        by_itself = bool((yield from translated(session.autocommits)))
        rows = yield from query(session, sql.in_schema(statement, options.schema), params)
    except BaseException as error:
        yield from discard(session, error)
        if by_itself and isinstance(error, Error) and error._leaves_commit_open:
            raise Uncertain(error.message) from error
        raise
    yield from commit(session)
    return rows


def look_up(
    driver: Driver, options: Options, statement: str, params: Mapping[str, Any]
) -> Steps[list[tuple[Any, ...]]]:
    """A call that changes nothing: a lost reply leaves nothing in doubt."""
    try:
        return (yield from in_own_transaction(driver, options, statement, params))
    except Uncertain as error:
        raise Disconnected(error.message) from error


# --- claims -------------------------------------------------------------------------------------


def claim(
    session: Session, intent: Intent, options: Options, lease: float | None = None
) -> Steps[Claimed]:
    params = claim_params(intent, options, lease)
    rows = yield from query(session, sql.in_schema(sql.CLAIM, options.schema), params)
    return Claimed.read(rows[0])


def claim_params(intent: Intent, options: Options, lease: float | None) -> dict[str, Any]:
    return {
        **intent.names,
        "fingerprint": intent.fingerprint,
        "lease": None if lease is None else seconds(lease),
        "owner": options.owner,
        "correlation": intent.correlation,
    }


def open_attempt(driver: Driver, intent: Intent, options: Options) -> Steps[tuple[Session | None, Claimed]]:
    """Claims in a transaction of our own, which stays open where the work is ours to do."""
    session = yield from begin(driver, options.isolation, atomic=True)
    try:
        claimed = yield from claim(session, intent, options)
    except BaseException as error:
        yield from discard(session, error)
        raise
    if claimed.holds:
        return session, claimed
    # COMMIT, not ROLLBACK: psycopg drops its prepared statements at a ROLLBACK. And a refusal that
    # the claim itself has just decided must last before anybody learns of it.
    try:
        yield from commit(session)
    except Error:
        if claimed.outcome == "refused":
            raise
    return None, claimed


def succeed(session: Session, intent: Intent, options: Options, fence: int, ack: Ack) -> Steps[None]:
    """Records the success in the open transaction of the claim."""
    params = success_params(intent, options, fence, ack)
    yield from query(session, sql.in_schema(sql.SUCCEED_HERE, options.schema), params)


def success_params(intent: Intent, options: Options, fence: int, ack: Ack) -> dict[str, Any]:
    return {
        **intent.names,
        **ack.params(),
        "fingerprint": intent.fingerprint,
        "fence": str(fence),
        "correlation": intent.correlation,
        "owner": options.owner,
    }


def settle(session: Session, intent: Intent, options: Options, fence: int, ack: Ack) -> Steps[None]:
    """Records the success, commits it with the effect, and gives the session back."""
    try:
        yield from succeed(session, intent, options, fence, ack)
    except BaseException as error:
        yield from discard(session, error)
        raise
    yield from commit(session)


def record_failure(
    driver: Driver, intent: Intent, options: Options, fence: int, failure: Failure, answer: Any = UNSET
) -> Steps[None]:
    """Records a failure under its fence, in a transaction of its own; with its own answer where none is given."""
    answer = failure.answer if answer is UNSET else answer
    yield from in_own_transaction(
        driver,
        options,
        sql.FAIL,
        {
            **intent.names,
            "fingerprint": intent.fingerprint,
            "fence": str(fence),
            "retryable": "true" if isinstance(failure, TransientFailure) else "false",
            "code": failure.failure_code,
            "message": failure.message,
            "answer": None if answer is None else to_json(answer),
            "correlation": intent.correlation,
            "owner": options.owner,
            "keep": None if failure.keep_for is None else seconds(failure.keep_for),
        },
    )


def fail(
    driver: Driver, session: Session, intent: Intent, options: Options, fence: int, failure: Failure
) -> Steps[None]:
    """Rolls the work back, then records why: the transaction that failed would take the record along."""
    keep = yield from roll_back(session, None)
    yield from release(session, keep)
    if not keep:
        # A failure that was not recorded is not reported either: the next attempt may end differently.
        raise Disconnected("the connection broke while the work was rolled back")
    yield from record_failure(driver, intent, options, fence, failure)


# --- loops --------------------------------------------------------------------------------------


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

    def lease(self, length: float) -> Steps[Claimed | Done]:
        """A committed claim; or how the intent ended before."""
        self.length = length
        params = claim_params(self.intent, self.options, length)

        def ask(driver: Driver) -> Steps[list[tuple[Any, ...]]]:
            return in_own_transaction(driver, self.options, sql.CLAIM, params)

        while True:
            try:
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
            last = self.final(error)
            if last is error:
                raise error
            raise last from error
        yield lambda: self.driver.sleep(delay)

    def final(self, error: Error) -> Error:
        """What to end with: that the last try did nothing says nothing about the one before.

        Only what is stored about the intent settles the doubt. The holder, or the one that was faster, may
        be that very try, still committing.
        """
        doubtful = (Disconnected, Busy, DatabaseError, LostRace, Fenced)
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
            finally:
                _WAITERS.release()
        if time.monotonic() - started < self.pause:
            pause = min(self.pause, left, max(retry_after, 0.005)) * random.uniform(0.5, 1)
            yield lambda: self.driver.sleep(pause)
            self.pause = min(self.pause * 2, _MAX_PAUSE)


class Contract:
    """The part of a scope's contract that a client acts on."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.busy = str(row[0])
        self.wait_timeout = float(row[1])
        self.lease = float(row[2])
        self.retention = float(row[3])


def contract_of(driver: Driver, intent: Intent, options: Options) -> Steps[Contract]:
    params = {"tenant": intent.tenant, "scope": intent.scope}
    rows = yield from look_up(driver, options, sql.CONTRACT, params)
    return Contract(rows[0])


def ended(claimed: Claimed) -> Done:
    if claimed.outcome == "refused":
        raise PermanentFailure(
            claimed.failure_code,
            claimed.failure_message,
            answer=claimed.answer,
            replayed=True,
        )
    return claimed.done()


def done_now(claimed: Claimed, ack: Ack) -> Done:
    answer = None if ack.answer is UNSET else ack.answer
    return Done(answer, ack.reference, False, claimed.attempts)


def never_ended(what: str) -> Invalid:
    return Invalid(
        f"the {what} ended, but success was never recorded: nothing of it is kept",
        hint="Call succeed(...), or leave with a PermanentFailure or a TransientFailure.",
    )
