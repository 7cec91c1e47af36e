"""The protocol, written once for every library: generators that yield calls.

Who runs a generator (`_steps`) makes the call, awaits it where it must, and sends the result back or
throws what it raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from . import _statements as sql
from ._drivers import Driver, Session
from ._drivers._base import translate
from ._intent import MAX_KEEP, UNSET, Ack, Claimed, Done, Intent, Options, seconds, to_json
from ._steps import Steps
from .errors import (
    DatabaseError,
    Disconnected,
    Error,
    Failure,
    Invalid,
    NotInTransaction,
    PermanentFailure,
    TransientFailure,
    Uncertain,
)

# --- sessions -----------------------------------------------------------------------------------


def acquire(driver: Driver) -> Steps[Session]:
    session: Session = yield from translated(driver.acquire)
    return session


def translated(call: Callable[[], Any]) -> Steps[Any]:
    """Makes a call; its errors become those of pgonce."""
    try:
        return (yield call)
    except BaseException as error:
        known = translate(error) or _no_connection(error) or _no_encoding(error)
        if known is None or known is error:
            raise
        raise known from error


def _no_connection(error: BaseException) -> Disconnected | None:
    """What libraries let through of sockets, name servers, clocks and full pools. Only for calls of our own: the
    same error of a caller's work is the caller's."""
    names = {base.__name__ for base in type(error).__mro__}
    lost = isinstance(error, (OSError, asyncio.TimeoutError)) or "TimeoutError" in names
    return Disconnected(str(error) or type(error).__name__) if lost else None


def _no_encoding(error: BaseException) -> DatabaseError | None:
    """psycopg writes texts in the encoding of the connection, and says itself what this lacks."""
    return DatabaseError(str(error), code="22P05") if isinstance(error, UnicodeEncodeError) else None


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
    return commit_alone(driver, "read committed", sql.in_schema(statement, options.schema), params)


def commit_alone(
    driver: Driver, isolation: str | None, statement: str, params: Mapping[str, Any]
) -> Steps[list[tuple[Any, ...]]]:
    """One statement that is committed when this returns, by itself where the connection is in autocommit."""
    session = yield from begin(driver, isolation, atomic=False)
    by_itself = False
    try:
        by_itself = bool((yield from translated(session.autocommits)))
        ask = session.query_alone if by_itself else session.query
        rows: list[tuple[Any, ...]] = yield from translated(lambda: ask(statement, params))
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
        **ack.kept(fence).params(),
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
    intent: Intent,
    options: Options,
    fence: int,
    failure: Failure,
    record: Callable[[Callable[[Driver], Steps[Any]]], Steps[Any]],
) -> Steps[None]:
    """Records a failure under its fence, in a transaction of its own that `record` makes. That it failed is recorded whatever
    the contract and the database's encoding allow its answer and its texts to be."""

    def recorded(answer: Any, texts: Mapping[str, Any]) -> Steps[None]:
        params = {
            **intent.names,
            **texts,
            "fingerprint": intent.fingerprint,
            "fence": str(fence),
            "retryable": "true" if isinstance(failure, TransientFailure) else "false",
            "answer": None if answer is None else to_json(answer),
            "correlation": intent.correlation,
            "owner": options.owner,
        }
        yield from record(lambda driver: in_own_transaction(driver, options, sql.FAIL, params))

    keep = None if failure.keep_for is None else seconds(min(failure.keep_for, MAX_KEEP))
    texts = {"code": failure.failure_code, "message": failure.message, "keep": keep}
    plain = {"code": _in_ascii(failure.failure_code), "message": _in_ascii(failure.message), "keep": None}
    for answer, said in ((failure.answer, texts), (None, texts), (None, plain)):
        try:
            yield from recorded(answer, said)
            return
        except Error as error:
            if said is plain or not (error.code == "P4040" or error.code.startswith("22")):
                raise


def _in_ascii(text: str) -> str:
    """A reason in the characters that every encoding of a database has."""
    return text.encode("ascii", "replace").decode("ascii")


def fail(
    driver: Driver, session: Session, intent: Intent, options: Options, fence: int, failure: Failure
) -> Steps[None]:
    """Rolls the work back, then records why: the transaction that failed would take the record along."""
    keep = yield from roll_back(session, None)
    yield from release(session, keep)
    if not keep:
        # A failure that was not recorded is not reported either: the next attempt may end differently.
        raise Disconnected("the connection broke while the work was rolled back")
    yield from record_failure(intent, options, fence, failure, lambda call: call(driver))


# --- how it ended ------------------------------------------------------------------------------


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
    return Done(answer, ack.kept(claimed.fence).reference, False, claimed.attempts)


def never_ended(what: str) -> Invalid:
    return Invalid(
        f"the {what} ended, but success was never recorded: nothing of it is kept",
        hint="Call succeed(...), or leave with a PermanentFailure or a TransientFailure.",
    )
