"""What synchronous and asynchronous attempts share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ._drivers import Driver, Session
from ._drivers._base import translate
from ._intent import UNSET, Ack, Claimed, Done, Intent, Options, to_text
from ._loop import Loop
from ._protocol import (
    borrow,
    claim,
    discard,
    done_now,
    ended,
    fail,
    never_ended,
    settle,
    succeed,
)
from ._steps import Steps
from .errors import (
    Busy,
    Disconnected,
    Error,
    Failure,
    Fenced,
    Invalid,
    LostRace,
    PermanentFailure,
    TransientFailure,
    Uncertain,
)

TX = TypeVar("TX", bound="TxState")


class TxState:
    """One attempt in a transaction: `is_new` says whether the work is yours to do.

    Do your writes on `conn`, then call `succeed`: when the block ends, the answer and your writes
    commit together. Where `is_new` is false it happened before, and `answer` is what it answered.
    """

    def __init__(
        self, driver: Driver, intent: Intent, options: Options, session: Session | None, claimed: Claimed | Done
    ) -> None:
        self._driver = driver
        self._options = options
        self._session = session
        self._claimed = claimed if isinstance(claimed, Claimed) else None
        self._done = claimed if isinstance(claimed, Done) else None
        self._ack: Ack | None = None
        self._touched = False
        self.intent = intent

    @property
    def is_new(self) -> bool:
        """Whether the work is yours to do, now."""
        return self._done is None and self._claimed is not None

    @property
    def conn(self) -> Any:
        """Your library's connection, inside the transaction. Never send COMMIT or ROLLBACK on it."""
        if self._session is None:
            raise never_open()
        self._touched = True
        return self._session.raw

    @property
    def kind(self) -> str:
        """How the claim came to be yours: fresh, retry or takeover; replay where it is not."""
        return self._claimed.outcome if self._claimed is not None else "replay"

    @property
    def fence(self) -> int:
        """The number that shuts out older attempts."""
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
    def reference(self) -> tuple[str, str] | None:
        """What was made, as (type, id)."""
        if self._done is not None:
            return self._done.reference
        return None if self._ack is None else self._ack.reference

    def succeed(
        self,
        answer: Any = UNSET,
        *,
        reference: tuple[str, object] | None = None,
        keep_for: float | None = None,
    ) -> None:
        """Says that the work is done, and what its answer is. Sent when the block ends.

        `reference` names what was made, as (type, id). `keep_for` keeps this one answer for so many
        seconds, instead of the retention of its scope.
        """
        self._held()
        kept = None if reference is None else (reference[0], to_text(reference[1]))
        ack = Ack(answer, kept, keep_for)
        ack.params()  # an answer that does not fit is refused here, where it was made
        self._ack = ack

    def _held(self) -> Claimed:
        if self._claimed is None or self._done is not None:
            raise never_open()
        return self._claimed

    # --- the end of a `with` block --------------------------------------------------------------

    def _exit(self, loop: Loop, error: BaseException | None) -> Steps[None]:
        if self._session is None or self._claimed is None:
            return
        session, self._session = self._session, None
        if isinstance(error, Failure):
            yield from fail(self._driver, session, self.intent, self._options, self._claimed.fence, error)
            raise_own(error)
            return
        if error is None and self._ack is None:
            error = never_ended("block")
            yield from discard(session, error)
            raise error
        if error is not None or self._ack is None:
            yield from discard(session, error and (translate(error) or error))
            return
        try:
            yield from settle(session, self.intent, self._options, self._claimed.fence, self._ack)
            self._done = done_now(self._claimed, self._ack)
        except (Uncertain, LostRace, Fenced) as raised:
            yield from self._resolve(loop, raised)

    def _resolve(self, loop: Loop, raised: Error) -> Steps[None]:
        """The claim knows what came of a commit whose reply was lost, and who was faster."""
        yield from loop.again(raised)
        # Twice: a claim looks before it takes the lock, and that very commit may become visible, and free the lock, in between.
        # Once the lock was held it is over, and the next look sees what it left.
        for _ in range(2):
            found = yield from loop.attempt()
            if isinstance(found, Done):
                self._done = found
                return
            yield from discard(found[0], None)
        if isinstance(raised, Uncertain):
            raise Disconnected(
                "the connection broke and nothing was committed",
                hint="Run the block again; run(...) and the function form do so by themselves.",
            ) from raised
        raise raised


def never_open() -> Error:
    return Invalid(
        "there is no attempt here: it happened before, or the block has ended",
        hint="Look at is_new before you do the work.",
    )


def raise_own(failure: Failure) -> None:
    """Raises a failure that the command has just recorded, as its own, where it is that of another one, which its work asked for."""
    if failure.replayed:
        kind = TransientFailure if isinstance(failure, TransientFailure) else PermanentFailure
        raise kind(
            failure.failure_code, failure.message, answer=failure.answer, keep_for=failure.keep_for
        ) from failure


class _WorkError(Exception):
    """The work raised an error of its own."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised = raised


class Work:
    """The user's work, and the kind of transaction it gets."""

    def __init__(self, loop: Loop, work: Callable[[Any], Any], kind: type[TxState]) -> None:
        self.loop = loop
        self.work = work
        self.kind = kind

    def run(self) -> Steps[Done]:
        """Makes the work happen once and answers what came of it, now or before."""
        loop = self.loop
        while True:
            found = yield from loop.attempt()
            if isinstance(found, Done):
                return found
            raised: list[BaseException] = []
            try:
                return (yield from self._try_once(*found, raised))
            except _WorkError as left:
                if loop.uncertain is not None and isinstance(left.raised, Exception):
                    # The work's own error says nothing about the try whose commit is in doubt.
                    raise loop.uncertain from left.raised
                raise left.raised from left.raised.__cause__
            except Error as error:
                try:
                    yield from loop.again(error)
                except Error as last:
                    if last is error and raised and not isinstance(error, Disconnected):
                        # The library's own exception, where that is what the work raised.
                        raise raised[0] from raised[0].__cause__
                    raise

    def _try_once(self, session: Session, claimed: Claimed, raised: list[BaseException]) -> Steps[Done]:
        loop = self.loop
        tx = self.kind(loop.driver, loop.intent, loop.options, session, claimed)
        try:
            value = yield lambda: self.work(tx)
            if tx._ack is None:
                tx.succeed(UNSET if value is None else value)
            ack = tx._ack
        except Failure as failure:
            yield from fail(loop.driver, session, loop.intent, loop.options, claimed.fence, failure)
            raise_own(failure)
            raise
        except BaseException as error:
            known = translate(error)
            yield from discard(session, known or error)
            if known is None:
                raise _WorkError(error) from None
            if known is error:
                raise
            raised.append(error)
            raise known from error
        finally:
            tx._session = None
        assert ack is not None
        yield from settle(session, loop.intent, loop.options, claimed.fence, ack)
        return done_now(claimed, ack)


def enter_joined(kind: type[TX], driver: Driver, intent: Intent, options: Options) -> Steps[TX]:
    """Claims inside the caller's transaction."""
    session = yield from borrow(driver)
    claimed = yield from claim(session, intent, options)
    if claimed.outcome == "busy":
        raise Busy(claimed.retry_after)
    if claimed.holds:
        return kind(driver, intent, options, session, claimed)
    return kind(driver, intent, options, None, ended(claimed))


def exit_joined(tx: TxState) -> Steps[None]:
    """Records the success in the caller's transaction."""
    if tx._session is None or tx._claimed is None:
        return
    session, tx._session = tx._session, None
    if tx._ack is None:
        raise never_ended("block")
    yield from succeed(session, tx.intent, tx._options, tx._claimed.fence, tx._ack)
    tx._done = done_now(tx._claimed, tx._ack)
