"""What synchronous and asynchronous leases share."""

from __future__ import annotations

import time
from typing import Any

from . import _statements as sql
from ._attempt import TxState, never_open
from ._drivers import Driver, Session
from ._drivers._base import translate
from ._intent import UNSET, Ack, Claimed, Done, Intent, Options, seconds
from ._protocol import (
    Loop,
    Steps,
    begin,
    contract_of,
    discard,
    done_now,
    in_own_transaction,
    never_ended,
    query,
    record_failure,
    settle,
    success_params,
)
from .errors import Disconnected, Failure, Fenced, Invalid, LostRace, Uncertain


class LeaseState:
    """The right to do the work for a while, holding no transaction and no connection.

    It is renewed in the background while the block runs. After a takeover, success, failure and
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
    ) -> None:
        self._driver = driver
        self._options = options
        self._claimed = claimed if isinstance(claimed, Claimed) else None
        self._done = claimed if isinstance(claimed, Done) else None
        self._ack: Ack | None = None
        self._settled = False
        self._lost: Fenced | None = None
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
        """Whether somebody else may hold the intent now: stop the work."""
        return self._lost is not None or time.monotonic() >= self._renewed + self.length

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
        kept = None if reference is None else (reference[0], str(reference[1]))
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

    def _heartbeat(self) -> Steps[None]:
        sent = time.monotonic()
        params = {**self._fenced_names(), "lease": seconds(self.length)}
        yield from in_own_transaction(self._driver, self._options, sql.HEARTBEAT, params)
        self._renewed = sent

    def _beat(self) -> Steps[float]:
        """One turn of the background renewal; answers how long to pause before the next.

        Sets the lease as lost where it was taken over, or could not be renewed before it ran out.
        """
        try:
            yield from self._heartbeat()
        except Fenced as fenced:
            self._lost = fenced
        except Exception:
            if time.monotonic() >= self._renewed + self.length:
                self._lost = ran_out()
            return self.length / 20
        return self._until_next_beat()

    def _until_next_beat(self) -> float:
        return max(self._renewed + self.length / 3 - time.monotonic(), 0.0)

    def _release(self) -> Steps[None]:
        yield from in_own_transaction(self._driver, self._options, sql.RELEASE, self._fenced_names())
        self._settled = True

    def _forget(self) -> Steps[None]:
        """As if it had never been asked for: the key is free, also for another request."""
        yield from in_own_transaction(self._driver, self._options, sql.FORGET, self._fenced_names())
        self._settled = True

    def _begin(self) -> Steps[Session]:
        """A transaction for writes under the fence; a zombie is turned away here already."""
        session = yield from begin(self._driver, self._options.isolation, atomic=True)
        try:
            statement = sql.in_schema(sql.GUARD, self._options.schema)
            yield from query(session, statement, self._fenced_names())
        except BaseException as error:
            yield from discard(session, error)
            raise
        return session

    def _record(self, ack: Ack) -> Steps[None]:
        """Records the answer. A connection that breaks before anything was sent is no reason to give
        up work that is done: it is tried again for as long as the lease holds."""
        params = success_params(self.intent, self._options, self._held().fence, ack)
        while True:
            try:
                yield from in_own_transaction(self._driver, self._options, sql.SUCCEED, params)
            except (Disconnected, Uncertain):
                # Where it had worked after all, the fence turns the next try away, and a claim
                # finds the answer.
                if time.monotonic() >= self._renewed + self.length:
                    raise
                pause = min(self.length / 20, 1.0)
                yield lambda: self._driver.sleep(pause)
            else:
                self._settled = True
                return

    def _exit(self, loop: Loop, error: BaseException | None) -> Steps[None]:
        """The end of a block. The renewal has stopped."""
        if self._done is not None or self._settled:
            return
        claimed = self._held()
        if isinstance(error, Failure):
            yield from record_failure(self._driver, self.intent, self._options, claimed.fence, error)
            return
        if error is not None:
            # The outside effect may have happened: the claim stays until its lease runs out, and then
            # the scope's contract decides.
            return
        if self._ack is None:
            raise never_ended("block")
        try:
            yield from self._record(self._ack)
            self._done = done_now(claimed, self._ack)
        except (Uncertain, LostRace, Fenced) as raised:
            yield from loop.again(raised, ran=True)
            found = yield from loop.lease(self.length)
            if isinstance(found, Claimed):
                # Nothing is recorded: the next claim may have it.
                self._claimed = found
                yield from self._release()
                raise raised
            self._done = found


def ran_out() -> Fenced:
    return Fenced(
        "the lease could not be renewed before it ran out",
        hint="Somebody else may hold the intent now: stop, and claim again to learn the answer.",
    )


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
    yield from settle(session, tx.intent, tx._options, tx._claimed.fence, tx._ack)
    tx._done = lease._done = done_now(tx._claimed, tx._ack)


def enter(loop: Loop, length: float | None) -> Steps[tuple[float, Claimed | Done, float]]:
    """A committed claim, as long as asked or as the scope's contract says."""
    if not loop.driver.reconnects:
        raise Invalid(
            "a lease needs a pool, an engine or a function that connects",
            hint="It is renewed while you work, and that needs a connection of its own.",
        )
    if length is None:
        length = (yield from contract_of(loop.driver, loop.intent, loop.options)).lease
    found = yield from loop.lease(length)
    # Measured before the claim was sent, so that it never ends later than the database thinks.
    return length, found, loop.sent
