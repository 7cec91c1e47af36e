"""What synchronous and asynchronous leases share."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from . import _statements as sql
from ._attempt import TxState, never_open, raise_own
from ._drivers import Driver, Session
from ._drivers._base import translate
from ._intent import UNSET, Ack, Claimed, Done, Intent, Options, seconds, to_text
from ._loop import Loop
from ._protocol import (
    begin,
    discard,
    done_now,
    in_own_transaction,
    never_ended,
    query,
    record_failure,
    settle,
    success_params,
)
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
    TransientFailure,
    Uncertain,
)
from .retry import min_delay

T = TypeVar("T")


class LeaseState:
    """The right to do the work for a while, holding no transaction and no connection.

    It is renewed in the background while the block runs and its end is recorded. After a takeover, success, failure and
    writes by `begin` are turned away with `Fenced`.
    """

    def __init__(
        self,
        driver: Driver,
        intent: Intent,
        options: Options,
        length: float,
        claimed: Claimed | Done,
        renewed: float,
        ran: bool = False,
    ) -> None:
        self._doubtful = False
        """Only this call knows that its work ran before: after this claim, the next one would not say so."""
        if ran and isinstance(claimed, Claimed):
            # The record of a try of this very call may be gone, after a failover or by an operator's act.
            self._doubtful = claimed.outcome != "takeover"
            claimed = replace(claimed, outcome="takeover")
        self._driver = driver
        self._options = options
        self._claimed = claimed if isinstance(claimed, Claimed) else None
        self._done = claimed if isinstance(claimed, Done) else None
        self._ack: Ack | None = None
        self._less: Callable[[Ack, str], Ack | None] = without_what_is_refused
        """What is recorded where the database refuses an acknowledgement with an error of this code."""
        self._settled = False
        self._lost: Fenced | None = None
        self._ending = False
        """An end is being recorded: a renewal that is turned away meanwhile may have met that very end."""
        self._renews = True
        self._renewed = renewed
        self.intent = intent
        self.length = length

    @property
    def is_new(self) -> bool:
        """Whether the work is yours to do, now."""
        return self._done is None

    @property
    def kind(self) -> str:
        """How the claim came to be yours: fresh, retry or takeover; replay where it is not.

        After a takeover the outside world may have seen the first call: ask it before you repeat it.
        """
        return self._claimed.outcome if self._claimed is not None else "replay"

    @property
    def fence(self) -> int:
        """The rising number that shuts out older holders; send it along where others can check it."""
        return self._held().fence

    @property
    def attempts(self) -> int:
        """Which attempt at the intent this is."""
        return self._done.attempts if self._done is not None else self._held().attempts

    @property
    def replayed(self) -> bool:
        """Whether it had happened before this call."""
        return self._done is not None and self._done.replayed

    @property
    def answer(self) -> Any:
        """The answer: the stored one, or what `succeed` was given."""
        if self._done is not None:
            return self._done.answer
        return None if self._ack is None or self._ack.answer is UNSET else self._ack.answer

    @property
    def is_lost(self) -> bool:
        """Whether somebody else may hold the intent now: stop the work. Never after success was recorded."""
        return self._done is None and (self._lost is not None or self._left <= 0)

    @property
    def _left(self) -> float:
        """How many seconds it still holds, as far as is known here."""
        return self._renewed + self.length - time.monotonic()

    def check(self) -> None:
        """Raises `Fenced` where the lease was lost: call it before each step of long work."""
        if self.is_lost:
            raise self._lost or ran_out()

    def succeed(
        self,
        answer: Any = UNSET,
        *,
        reference: tuple[str, object] | None = None,
        keep_for: float | None = None,
    ) -> None:
        """Says that the work is done, and what its answer is. Recorded when the block ends."""
        self._held()
        kept = None if reference is None else (reference[0], to_text(reference[1]))
        ack = Ack(answer, kept, keep_for)
        ack.params()
        self._ack = ack

    def _held(self) -> Claimed:
        if self._claimed is None:
            raise never_open()
        return self._claimed

    def _fenced_names(self) -> dict[str, Any]:
        return {**self.intent.names, "fence": str(self._held().fence)}

    # --- calls ----------------------------------------------------------------------------------

    def _in_time(
        self,
        call: Callable[[Driver], Steps[T]],
        late: type[Error],
        *,
        limit: float | None = None,
        session: Session | None = None,
    ) -> Steps[T]:
        """A connection that falls silent must not use up the lease: what takes longer is tried on another one."""
        return limited(self._driver, call, limit or max_silence(self.length), late, session)

    def _heartbeat(self, limit: float | None = None) -> Steps[None]:
        sent = time.monotonic()
        params = {**self._fenced_names(), "lease": seconds(self.length)}
        yield from self._in_time(
            lambda driver: in_own_transaction(driver, self._options, sql.HEARTBEAT, params), Disconnected, limit=limit
        )
        # Two may be under way, and the later one may have come back first.
        self._renewed = max(self._renewed, sent)

    @property
    def _is_renewed(self) -> bool:
        """Whether there is still something to renew."""
        return self._renews and self._lost is None and self._done is None and not self._settled

    def _beat(self) -> Steps[float]:
        """One turn of the background renewal; answers how long to pause before the next.

        Sets the lease as lost where it was taken over, or could not be renewed before it ran out.
        """
        try:
            silence = max_silence(self.length)
            # One whose end is being recorded is renewed also after it ran out: it needs the time of a whole try.
            limit = silence if self._ending else min(silence, max(self._left, 0.001))
            yield from self._heartbeat(limit)
        except Exception as error:
            self._lose(error if isinstance(error, Fenced) else None)
            return self.length / 20
        return self._until_next_beat()

    def _lose(self, fenced: Fenced | None) -> None:
        """Sets the lease as lost where it is, but for one whose end is being recorded: the record learns who holds it."""
        if self._ending or not self._is_renewed:
            return
        if fenced is not None or self._left <= 0:
            self._lost = fenced or ran_out()

    def _until_next_beat(self) -> float:
        return max(self._renewed + self.length / 3 - time.monotonic(), 0.0)

    def _release(self) -> Steps[None]:
        yield from self._give_back(sql.RELEASE)

    def _forget(self) -> Steps[None]:
        """As if it had never been asked for: the key is free, also for another request."""
        yield from self._give_back(sql.FORGET)

    def _give_back(self, statement: str) -> Steps[None]:
        # A claim in doubt runs out instead: then the next one is a takeover, too.
        if not self._doubtful:
            names = self._fenced_names()
            yield from self._end(
                self._in_time(lambda driver: in_own_transaction(driver, self._options, statement, names), Uncertain)
            )
        self._settled = True

    def _end(self, steps: Steps[T]) -> Steps[T]:
        """Ends the lease, by these steps."""
        self._ending = True
        try:
            return (yield from steps)
        except BaseException:
            self._ending = False
            raise

    def _begin(self) -> Steps[Session]:
        """A transaction for writes under the fence; a zombie is turned away here already."""
        return self._in_time(self._open, Disconnected)

    def _open(self, driver: Driver) -> Steps[Session]:
        session = yield from begin(driver, self._options.isolation, atomic=True)
        try:
            statement = sql.in_schema(sql.GUARD, self._options.schema)
            yield from query(session, statement, self._fenced_names())
        except BaseException as error:
            yield from discard(session, error)
            raise
        return session

    def _finish(self) -> Steps[None]:
        """Records the answer of work that has returned."""
        if self._ack is None:
            raise Invalid(
                "the block ended, but success was never recorded: the claim stays until its lease runs out",
                hint="Call succeed(...), or leave with a PermanentFailure or a TransientFailure.",
            )
        claimed = self._held()
        ack = self._ack
        while not self._settled:
            try:
                yield from self._record(ack)
                self._settled = True
            except Error as error:
                less = self._less(ack, error.code)
                if less is None:
                    raise
                ack = less
        # The first caller gets what all later ones get.
        self._done = done_now(claimed, ack)

    def _record(self, ack: Ack) -> Steps[None]:
        params = success_params(self.intent, self._options, self._held().fence, ack)
        yield from self._until_recorded(
            lambda driver: in_own_transaction(driver, self._options, sql.SUCCEED, params)
        )

    def _fail(self, failure: Failure) -> Steps[None]:
        if self._doubtful and isinstance(failure, TransientFailure):
            return
        fence = self._held().fence
        yield from record_failure(self.intent, self._options, fence, failure, self._until_recorded)

    def _until_recorded(self, call: Callable[[Driver], Steps[Any]]) -> Steps[None]:
        """An error that may pass is no reason to give up the record of work that is done: it is tried again
        until the lease ends, or for as long as the retry policy allows, whichever is later. The lease is
        renewed meanwhile, and between these tries where it is not renewed in the background."""
        yield from self._end(self._tries(call))

    def _tries(self, call: Callable[[Driver], Steps[Any]]) -> Steps[None]:
        until = max(time.monotonic() + self._options.retry.timeout, self._renewed + self.length)
        pause = min(self.length / 20, _MAX_PAUSE)
        lost: Uncertain | None = None
        while True:
            try:
                yield from self._in_time(call, Uncertain)
                return
            except Conflict as error:
                # The key went to another request meanwhile, which denies this work, and it is done.
                raise Uncertain(error.message) from error
            except Error as error:
                if not _may_pass(error) or time.monotonic() >= until:
                    # Of a try whose reply was lost a later error says nothing: where it had worked after
                    # all, the fence turned the next one away, and a claim finds the answer.
                    if lost is not None:
                        raise lost from error
                    raise
                if isinstance(error, Uncertain):
                    lost = error
                # Of different lengths: holders that turn each other away must not meet again at each try.
                delay = min_delay(error) + random.uniform(0, pause)
            yield from self._renew_while_recording()
            yield partial(self._driver.sleep, delay)
            # Short enough to renew the lease in time.
            pause = min(pause * 2, self.length / 6, _MAX_PAUSE)

    def _renew_while_recording(self) -> Steps[None]:
        """Renews the lease where a third of it is over: the work is done, and nobody may repeat it."""
        if self._until_next_beat() > 0:
            return
        try:
            yield from self._heartbeat()
        except Exception:
            pass  # Not to be decided here: the next try learns who holds the intent.

    def _leave(self, error: BaseException) -> Steps[None]:
        """The end of work that raised: records a failure of its own. After any other error the outside
        effect may have happened: the claim stays until its lease runs out, and then the scope's contract
        decides."""
        if self._done is not None or self._settled:
            return
        unrecorded = error
        if isinstance(error, Failure):
            try:
                yield from self._fail(error)
            except Error as raised:
                unrecorded = raised
            else:
                raise_own(error)
                return
        said = left_open(unrecorded)
        if said is not error:
            raise said from (error if said is unrecorded else unrecorded)

    def _exit(self, loop: Loop, error: BaseException | None) -> Steps[None]:
        """The end of a block."""
        if self._done is not None or self._settled:
            return
        if error is not None:
            yield from self._leave(error)
            return
        try:
            yield from self._finish()
        except (Uncertain, LostRace, Fenced) as raised:
            self._renews = False
            yield from loop.again(raised, ran=True)
            found = yield from loop.lease(self.length)
            if isinstance(found, Claimed):
                # The work is done and not recorded. The new claim stays until its lease runs out: were it
                # given back, the next one would repeat what it takes for not done.
                raise loop.uncertain or raised from raised
            self._done = found
        except Error as raised:
            yield from self._leave(raised)
            raise


_MAX_PAUSE = 1.0
"""Between two tries to record what leased work did, in seconds."""

_PASSING = (Class.RETRY, Class.RETRY_AFTER_DELAY, Class.AMBIGUOUS)


def _may_pass(error: Error) -> bool:
    # A timeout of the session: the next try may be faster.
    return error.error_class in _PASSING or error.code == "57014"


def without_what_is_refused(ack: Ack, code: str) -> Ack | None:
    """An acknowledgement without what the database has refused with an error of this code; None where that is about nothing here.
    What is done is recorded, whatever can be kept of its answer."""
    is_of_values = code.startswith("22")
    if (is_of_values or code == "P4040") and ack.answer is not UNSET:
        return replace(ack, answer=UNSET)
    # Of a large answer the reference is what remains.
    return Ack() if is_of_values and ack != Ack() else None


def left_open(error: BaseException) -> BaseException:
    """How leased work ended that is not recorded. The outside world may have seen it, so an error that
    says that nothing was done, of this intent or of another that the work asked for, becomes `Uncertain`."""
    if isinstance(error, (Disconnected, Conflict, Busy, Invalid)) or isinstance(error, DatabaseError) and _may_pass(error):
        return Uncertain(f"leased work could not be recorded: {error.message}")
    return error


def ran_out() -> Fenced:
    return Fenced(
        "the lease could not be renewed before it ran out",
        hint="Somebody else may hold the intent now: stop, and claim again to learn the answer.",
    )


def given_back() -> Invalid:
    return Invalid("the lease was given back, so there is no answer to record")


def finish_writes(lease: LeaseState, tx: TxState, error: BaseException | None) -> Steps[None]:
    """The end of a block of writes under the fence: they commit with the answer, or not at all."""
    if tx._session is None or tx._claimed is None:
        return
    session, tx._session = tx._session, None
    if error is not None:
        yield from discard(session, translate(error) or error)
        return
    if tx._ack is None:
        yield from discard(session, None)
        raise never_ended("block")
    fence, ack = tx._claimed.fence, tx._ack
    yield from lease._end(
        lease._in_time(lambda _: settle(session, tx.intent, tx._options, fence, ack), Uncertain, session=session)
    )
    tx._done = lease._done = done_now(tx._claimed, tx._ack)


def enter(loop: Loop, length: float | None) -> Steps[tuple[float, Claimed | Done, float]]:
    """A committed claim, as long as asked or as the scope's contract says."""
    if not loop.driver.reconnects:
        raise Invalid(
            "a lease needs a pool, an engine or a function that connects",
            hint="It is renewed while you work, and that needs a connection of its own.",
        )
    found = yield from loop.lease(length)
    # Measured before the claim was sent, so that it never ends later than the database thinks.
    return loop.length or 0.0, found, loop.sent
