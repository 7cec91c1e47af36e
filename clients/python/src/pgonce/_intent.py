"""What somebody wants to happen once, and what came of it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import Invalid
from .fingerprint import fingerprint as fingerprint_of
from .fingerprint import plain, utf8
from .retry import Policy

MAX_NAME_BYTES = 255
MAX_KEEP = 1000 * 8766 * 3600
"""In seconds. What is kept for longer, 1000 years, would have an end that no timestamp holds, and could not be recorded."""

_ISOLATIONS = (None, "read committed", "repeatable read", "serializable")
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


@dataclass(frozen=True)
class Intent:
    """What somebody wants to happen once, named by (tenant, scope, key)."""

    scope: str
    key: str
    fingerprint: bytes
    tenant: str = ""
    correlation: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.scope, "P4000", "scope", "Name a bounded kind of command, such as 'orders.create'.")
        _check_name(self.key, "P4001", "key", "Send the caller's name for this one request; the same on every retry.")
        if self.tenant:
            _check_name(self.tenant, "22023", "tenant", "")
        if not self.fingerprint:
            raise Invalid("the fingerprint is missing", code="P4003", hint="Pass the request.")
        if len(self.fingerprint) > 64:
            raise Invalid(
                f"the fingerprint has {len(self.fingerprint)} bytes; at most 64",
                hint="Send a digest, not the request itself.",
            )

    @property
    def names(self) -> dict[str, Any]:
        return {"scope": self.scope, "key": self.key, "tenant": self.tenant}


def make_intent(
    scope: str,
    key: str,
    request: Any,
    *,
    tenant: str = "",
    correlation: str | None = None,
    fingerprint: bytes | None = None,
) -> Intent:
    if fingerprint is None:
        if request is UNSET:
            raise Invalid(
                "the fingerprint is missing",
                code="P4003",
                hint="Pass the request, or a fingerprint of your own.",
            )
        fingerprint = fingerprint_of(request)
    return Intent(scope, key, fingerprint, tenant, correlation)


@dataclass(frozen=True)
class Options:
    """How attempts are made."""

    isolation: str | None = None
    retry: Policy = field(default_factory=Policy)
    owner: str | None = None
    schema: str = "pgonce"

    def __post_init__(self) -> None:
        if self.isolation not in _ISOLATIONS:
            raise Invalid(
                f"{self.isolation!r} is no isolation level",
                hint="One of 'read committed', 'repeatable read', 'serializable'.",
            )
        if not _SCHEMA.fullmatch(self.schema):
            raise Invalid(
                f"{self.schema!r} cannot be the name of pgonce's schema",
                hint="Use at most 63 small letters, digits and underscores.",
            )


@dataclass(frozen=True)
class Ack:
    """The answer to store, the same for every later attempt."""

    answer: Any = UNSET
    reference: tuple[str, str] | None = None
    keep_for: float | None = None

    def params(self) -> dict[str, Any]:
        ref_type, ref_id = self.reference or (None, None)
        return {
            "answer": None if self.answer is UNSET else to_json(self.answer),
            "ref_type": ref_type,
            "ref_id": ref_id,
            "keep": None if self.keep_for is None else seconds(min(self.keep_for, MAX_KEEP)),
        }

    def kept(self, fence: int) -> Ack:
        """What is recorded of it under this fence."""
        if self.reference is None or "\0" not in "".join(self.reference):
            return self
        # An atomic attempt: nothing has happened yet.
        if fence % 2 == 1:
            raise Invalid(
                "the reference holds the character U+0000, which PostgreSQL cannot store",
                hint="Refer to what was made by its key, or put the text into the answer.",
            )
        return replace(self, reference=None)


@dataclass(frozen=True)
class Done:
    """The end of an intent that worked out."""

    answer: Any
    """The stored answer; None where the scope keeps none."""
    reference: tuple[str, str] | None
    """What was made, as (type, id), where that was stored."""
    replayed: bool
    """Whether it had happened before this call."""
    attempts: int
    """How many attempts the intent took."""


@dataclass(frozen=True)
class Claimed:
    """A claim's row."""

    outcome: str
    fence: int
    answer: Any
    reference: tuple[str, str] | None
    attempts: int
    failure_code: str
    failure_message: str
    retry_after: float

    @property
    def holds(self) -> bool:
        return self.outcome in ("fresh", "takeover", "retry")

    @staticmethod
    def read(row: tuple[Any, ...]) -> Claimed:
        outcome, fence, answer, ref_type, ref_id, attempts, code, message, after = row
        if outcome not in ("fresh", "takeover", "retry", "replay", "refused", "busy"):
            raise Invalid(
                f"the database answered a claim with {outcome!r}, which this release does not know",
                code="P4099",
                hint="Update this package, or run `pgonce migrate status`.",
            )
        return Claimed(
            outcome=outcome,
            fence=int(fence or 1),
            answer=None if answer is None else json.loads(answer),
            reference=None if ref_type is None or ref_id is None else (ref_type, ref_id),
            attempts=int(attempts or 1),
            failure_code=code or "",
            failure_message=message or "",
            retry_after=float(after) if after is not None else 0.1,
        )

    def done(self) -> Done:
        return Done(self.answer, self.reference, True, self.attempts)


def to_json(value: Any) -> str:
    """A value as the JSON text that PostgreSQL stores."""
    try:
        text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except (ValueError, UnicodeEncodeError) as error:
        raise Invalid(f"the answer does not fit: {error}", code="22030") from None
    if _NUL.search(text):
        raise Invalid(
            "a text holds the character U+0000, which PostgreSQL cannot store",
            hint="Leave it out, or pass such bytes in base64.",
        )
    return text


# An escaped NUL, and not an escaped backslash before the letters u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def to_text(value: Any) -> str:
    """An id as a text. That of a member of an enumeration is what it holds, not its name."""
    return str.__str__(value) if isinstance(value, str) else str(value)


def seconds(value: float) -> str:
    """A time as PostgreSQL's interval. Version 14 keeps each number in 32 bits."""
    if 2**31 <= value < math.inf:
        return f"{value // 3600:.0f} hours {value % 3600:.6f} seconds"
    return f"{value:.6f} seconds"


def _check_name(name: str, missing: str, what: str, hint: str) -> None:
    if not isinstance(name, str):
        raise Invalid(f"the {what} is {type(name).__name__}, not a text", code=missing, hint=hint)
    if not name:
        raise Invalid(f"the {what} is missing", code=missing, hint=hint)
    size = len(utf8(name, what))
    if size > MAX_NAME_BYTES:
        raise Invalid(
            f"the {what} has {size} bytes; at most {MAX_NAME_BYTES}",
            hint="Hash a long name: derived_key does.",
        )
    if "\0" in name:
        raise Invalid(
            f"the {what} contains a NUL character, which PostgreSQL cannot store",
            hint="Remove it, or hash the name with derived_key.",
        )
