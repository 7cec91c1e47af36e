"""What can go wrong, each with a stable code to branch on."""

from __future__ import annotations

from typing import Any

from ._table import Class, classify


class Error(Exception):
    """Base of every error of pgonce. Branch on the type or on `code`, never on the text."""

    default_code = "P4099"

    _ended_session = False
    """Whether it is one that ended its session (FATAL, PANIC)."""

    _did_nothing = False
    """Whether the server said that it did not run the statement, although the connection is as good as lost."""

    _is_crash = False
    """Whether it says that the server, or a pooler before it, broke: a commit may have been written before. Others that
    end a session refuse a connection, or end one that did nothing."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        detail: str | None = None,
        hint: str | None = None,
        constraint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.detail = detail
        self.hint = hint
        self.constraint = constraint

    @property
    def error_class(self) -> Class:
        """What to do about it, from the one table that every client shares."""
        return classify(self.code)

    @property
    def _leaves_commit_open(self) -> bool:
        """Whether a COMMIT that was answered with it may have happened: its session ended, or nobody knows."""
        if self._did_nothing:
            return False
        return self._ended_session or isinstance(self, Disconnected) or self.error_class is Class.AMBIGUOUS

    def __str__(self) -> str:
        text = f"{self.message} [{self.code}]"
        if self.detail:
            text += f". {self.detail}"
        if self.hint:
            text += f" Hint: {self.hint}"
        return text


class Invalid(Error):
    """The input cannot name an intent, or breaks a rule (P4000, P4001, P4003, 22023, 22030)."""

    default_code = "22023"


class NotInTransaction(Invalid):
    """The connection is in autocommit, where marker and effect would commit apart (25P01).

    Raised before anything was sent.
    """

    default_code = "25P01"


class Conflict(Error):
    """The key, or the message id, was used before with another request (P4002, P4050)."""

    default_code = "P4002"


class Busy(Error):
    """Somebody else holds the intent (P4029)."""

    default_code = "P4029"

    def __init__(self, retry_after: float, *, accepted: bool = False) -> None:
        super().__init__(f"somebody else holds the intent, try again in {retry_after:g} s")
        self.retry_after = retry_after
        """Seconds after which it is worth asking again."""
        self.accepted = accepted
        """Whether the scope's contract says: answer that it is accepted, and where to poll."""


class Gone(Error):
    """The answer's retention is over and the contract keeps a tombstone (P4031)."""

    default_code = "P4031"


class Fenced(Error):
    """A newer attempt holds the intent (P4012)."""

    default_code = "P4012"


class LostRace(Error):
    """Another attempt settled the intent first: claim again to get its answer (P4010, P4011)."""

    default_code = "P4010"


class Uncertain(Error):
    """The reply to a commit was lost. It may have happened: claim again, never guess (08007)."""

    default_code = "08007"


class Disconnected(Error):
    """No connection, or it broke before anything could have been committed (08006)."""

    default_code = "08006"


class DatabaseError(Error):
    """Any other error of the database."""


class Failure(Error):
    """A failure that is recorded. Raise a subclass from the work of an attempt."""

    def __init__(
        self,
        failure_code: str,
        message: str,
        *,
        answer: Any = None,
        keep_for: float | None = None,
        replayed: bool = False,
    ) -> None:
        super().__init__(_without_nul(message))
        self.failure_code = _without_nul(failure_code)
        """Your code for it, such as `card_declined`."""
        self.answer = answer
        """What the caller is answered, as JSON."""
        self.keep_for = keep_for
        """Seconds to keep this one failure, instead of the retention of its scope."""
        self.replayed = replayed
        """Whether it had been recorded before this call."""

    def __str__(self) -> str:
        return f"{self.message} ({self.failure_code}) [{self.code}]"


class PermanentFailure(Failure):
    """It will never work: every later attempt gets this same failure (P4030)."""

    default_code = "P4030"


class TransientFailure(Failure):
    """It did not work this time: a later attempt may try again."""

    def __init__(
        self,
        failure_code: str,
        message: str,
        *,
        answer: Any = None,
        keep_for: float | None = None,
        replayed: bool = False,
    ) -> None:
        super().__init__(
            failure_code, message, answer=answer, keep_for=keep_for, replayed=replayed
        )
        self.code = failure_code

    @property
    def error_class(self) -> Class:
        return Class.RETRY


def _without_nul(text: str) -> str:
    """PostgreSQL's texts have no U+0000; a failure must not be lost for one."""
    return text.replace("\0", "\ufffd") if "\0" in text else text


_BY_CODE: dict[str, type[Error]] = {
    "P4000": Invalid,
    "P4001": Invalid,
    "P4003": Invalid,
    "22023": Invalid,
    "P4002": Conflict,
    "P4050": Conflict,
    "P4012": Fenced,
    "P4010": LostRace,
    "P4011": LostRace,
    "P4031": Gone,
    "57P01": Disconnected,
    "57P02": Disconnected,
    "57P03": Disconnected,
    "57P05": Disconnected,
}


def from_sqlstate(
    code: str,
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
    constraint: str | None = None,
) -> Error:
    """The error that a SQLSTATE stands for."""
    if code == "23505" and constraint == "one_row_per_intent":
        # The insert of the finished row met another attempt's: the race is lost.
        return LostRace(
            "the success was not recorded: another attempt finished first",
            detail=detail,
            hint="Claim again: it answers what the other attempt did.",
            constraint=constraint,
        )
    kind = _BY_CODE.get(code) or (Disconnected if code.startswith("08") else DatabaseError)
    return kind(message, code=code, detail=detail, hint=hint, constraint=constraint)
