"""Finds keys that name an attempt, or nothing at all: the rules of the Rust lint, held to them by conformance/vectors/lint.json."""

from __future__ import annotations

import ipaddress
import re

from ._intent import MAX_NAME_BYTES
from .errors import Invalid

_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
_HYPHENATED = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_UUID = re.compile(rf"[0-9a-fA-F]{{32}}|{_HYPHENATED}|\{{{_HYPHENATED}\}}|urn:uuid:{_HYPHENATED}")
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")
_LOST = frozenset(
    "none nil nan true false null undefined infinity key idempotency-key idempotency_key idempotencykey".split()
)
_NOT_FILLED_IN = ("${", "{{", "[object ", "<no value>", "%s", "%d", "#<")
_COUNTS = frozenset("retry retries retrycount attempt attempts try tries redelivery".split())
# Overlapping: a date may begin inside of what looked like one.
_DATE_AND_TIME = re.compile(
    r"(?=([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt _]([0-9]{2})[-:._]([0-9]{2}))"
)
_COMPACT_TIME = re.compile(r"([0-9]{8})[Tt]?((?:[0-9]{3})?[0-9]{6})[Zz]?")
_SEPARATORS = "-_:/=#"

_WORDS = {
    "empty": ("the key is empty", "Send the caller's name for this one request; the same on every retry."),
    "too_long": ("the key is too long", "Hash the facts that name the request: derived_key(...)."),
    "unprintable": (
        "the key has a control character, or white space around it",
        "Send letters, digits and signs such as - _ : only.",
    ),
    "accident": (
        "the key is what a missing value looks like",
        "Find out where the key got lost before it was sent.",
    ),
    "timestamp": (
        "the key is made from the time of day",
        "Make the key once when the request arises (new_key) and keep it for the retries, or derive it from "
        "what the request is about.",
    ),
    "attempt": (
        "the key counts attempts",
        "Leave the count out: every attempt of one request has the same key.",
    ),
    "bare_number": ("the key is just a number", "Say of what, and what for: `order-7421`, not `7421`."),
    "principal": (
        "the key says who asks, not what is asked for",
        "Add what is asked for: `user-42:welcome-mail`, not `user-42`.",
    ),
}


class BadKey(Invalid):
    """A key that cannot be right. The text never repeats the key: keys do not belong into logs."""

    def __init__(self, fault: str, message: str, hint: str) -> None:
        super().__init__(message, code="P4001" if fault == "empty" else "22023", hint=hint)
        self.fault = fault
        """What is wrong, to branch on: `empty`, `too_long`, `unprintable`, `accident`, `timestamp`, `attempt`,
        `bare_number` or `principal`."""


def lint_key(key: str) -> None:
    """Raises `BadKey` for a key that names an attempt, or nothing: the mistakes that make every retry a new
    request, or two requests one.

    What it cannot know: a random number made for every try looks exactly like one made once for the request.
    """
    fault = _fault(key)
    if fault is None:
        return
    message, hint = _WORDS[fault]
    if fault == "too_long":
        message = f"the key has {_bytes(key)} bytes; at most {MAX_NAME_BYTES}"
    raise BadKey(fault, message, hint)


def _bytes(key: str) -> int:
    return len(key.encode("utf-8", "surrogatepass"))


def _fault(key: str) -> str | None:
    if not key.strip(_SPACE):
        return "empty"
    if _bytes(key) > MAX_NAME_BYTES:
        return "too_long"
    if re.search(r"[\x00-\x1f\x7f-\x9f]", key) or key.strip(_SPACE) != key:
        return "unprintable"
    if _is_accident(key):
        return "accident"
    if _is_or_holds_a_moment(key):
        return "timestamp"
    if _counts_attempts(key):
        return "attempt"
    if _NUMBER.fullmatch(key) and len(key) < 20:
        return "bare_number"
    return "principal" if _is_principal(key) else None


def _segments(key: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in key).split()


def _is_accident(key: str) -> bool:
    lower = key.lower()
    segments = _segments(key)
    # Exact case inside a longer key: Nan is a name, NaN is a mistake.
    part_is_missing = not {"undefined", "null", "NaN"}.isdisjoint(segments)
    unfilled = any(sign in lower for sign in _NOT_FILLED_IN)
    digits = set(re.sub(r"urn:uuid:|[-{}]", "", lower)) if _UUID.fullmatch(key) else set()
    return lower in _LOST or not segments or part_is_missing or unfilled or digits in ({"0"}, {"f"})


def _is_or_holds_a_moment(key: str) -> bool:
    if _UUID.fullmatch(key):
        return False
    whole = key.partition(".")[0]
    if _NUMBER.fullmatch(key) and (_is_epoch(whole, 10) or _is_compact_time(whole)):
        return True
    # Within a longer key, ten digits may well be an order number.
    if any(_is_epoch(segment, 13) or _is_compact_time(segment) for segment in _segments(key)):
        return True
    return any(
        _is_day(*found.groups()[:3]) and int(found[4]) <= 23 and int(found[5]) <= 59
        for found in _DATE_AND_TIME.finditer(key)
    )


def _is_epoch(text: str, shortest: int) -> bool:
    """Seconds, milli-, micro- or nanoseconds since 1970, of the years 2015 to 2039."""
    if not re.fullmatch("[0-9]+", text) or len(text) < shortest or len(text) not in (10, 13, 16, 19):
        return False
    return 1_420_070_400 <= int(text[:10]) <= 2_208_988_799


def _is_compact_time(text: str) -> bool:
    """`20260131101500`, with or without a `T` after the day and a `Z` or fraction at the end."""
    found = _COMPACT_TIME.fullmatch(text)
    if found is None:
        return False
    day, time = found[1], found[2]
    hour, minute, second = int(time[:2]), int(time[2:4]), int(time[4:6])
    return _is_day(day[:4], day[4:6], day[6:]) and hour <= 23 and minute <= 59 and second <= 60


def _is_day(year: str, month: str, day: str) -> bool:
    return 2015 <= int(year) <= 2039 and 1 <= int(month) <= 12 and 1 <= int(day) <= 31


def _counts_attempts(key: str) -> bool:
    """`retry-3`, `attempt_2`, `try1`, `retryCount=4`, or such a word at the end."""
    parts = _segments(key.lower())
    for part, after in zip(parts, [*parts[1:], None]):
        word = part.rstrip("0123456789")
        counted = after is None or re.fullmatch("[0-9]{1,4}", after) is not None
        if word in _COUNTS and (word != part or counted):
            return True
    return False


def _is_principal(key: str) -> bool:
    return _is_email(key) or _is_address(key) or _is_user_id(key)


def _is_email(key: str) -> bool:
    name, at, host = key.partition("@")
    if not at or not name or re.search("[:/ ]", name) or re.search("[@:/ ]", host):
        return False
    labels = host.split(".")
    return len(labels) > 1 and all(labels)


def _is_address(key: str) -> bool:
    try:
        ipaddress.ip_address(key)
    except ValueError:
        return False
    # A zone makes it the name of a link.
    return "%" not in key


def _is_user_id(key: str) -> bool:
    lower = key.lower()
    word = lower[: next((at for at, letter in enumerate(lower) if not letter.isalpha()), len(lower))]
    rest = lower[len(word) :].lstrip(_SEPARATORS)
    if rest.startswith("id"):
        rest = rest[2:].lstrip(_SEPARATORS)
    return word in ("user", "userid", "uid", "usr") and _NUMBER.fullmatch(rest) is not None
