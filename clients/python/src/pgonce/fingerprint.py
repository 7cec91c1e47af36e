"""The digest of the canonical request: guards a key against a second meaning.

The same request gives the same fingerprint in every client: SHA-256 over canonical JSON
(RFC 8785, with integers of 64 bits written exactly), preceded by operation and API version where given.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from .errors import Invalid


def canonical(value: Any) -> bytes:
    """Canonical JSON of a value, as bytes of UTF-8."""
    parts: list[str] = []
    _write(value, parts)
    try:
        return "".join(parts).encode("utf-8")
    except UnicodeEncodeError:
        raise _unfit("a text holds half of a surrogate pair, which is not Unicode") from None


def fingerprint(
    request: Any,
    *,
    operation: str = "",
    version: str = "",
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
) -> bytes:
    """The fingerprint of a request.

    `include` and `exclude` are JSON pointers (`/customer/id`): only these fields count, or these
    do not. A field that is absent counts as absent, not as null.
    """
    value = plain(request)
    included, excluded = None if include is None else list(include), set(exclude)
    for pointer in (*(included or ()), *excluded):
        if not pointer.startswith("/"):
            raise _no_field(f"{pointer!r} is not a JSON pointer")
    # From the back: what is removed from an array must not move what is to be removed next.
    for pointer in sorted(excluded, key=_place, reverse=True):
        _remove(value, pointer)
    if included is not None:
        # Pairs, not an object of picked values: no field can pose as another.
        found = ((pointer, *_find(value, pointer)) for pointer in included)
        value = [[pointer, picked] for pointer, exists, picked in found if exists]
        if not value:
            raise _no_field("the request has none of the fields that its fingerprint includes")
    digest = hashlib.sha256()
    if operation or version:
        for part in (utf8(operation, "operation"), utf8(version, "version")):
            # The length first: ("ab", "c") and ("a", "bc") must not meet.
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    digest.update(canonical(value))
    return digest.digest()


def fingerprint_of_bytes(data: bytes) -> bytes:
    """The fingerprint of raw bytes, for requests that are not JSON."""
    return hashlib.sha256(data).digest()


def utf8(text: str, what: str) -> bytes:
    """A text as the bytes that count, the same in every client."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise Invalid(f"the {what} is not Unicode", hint="Leave out the half of a surrogate pair.") from None


def plain(value: Any) -> Any:
    """A request as JSON values: dataclasses, pydantic models and UUIDs become what they stand for.

    Lists and objects are copied, so that a caller's own are never changed.
    """
    if value is None or isinstance(value, (bool, str, int, float)):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise _unfit(f"a member's name is {type(name).__name__}, not a text")
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return plain(dump(mode="json"))
    raise _unfit(f"{type(value).__name__} has no JSON form; pass texts, numbers, lists and dicts")


def _write(value: Any, out: list[str]) -> None:
    # bool before int: True is an int in Python.
    if value is None:
        out.append("null")
    elif isinstance(value, bool):
        out.append("true" if value else "false")
    elif isinstance(value, str):
        # As it is stored: str() of a member of an enumeration is its name.
        out.append(json.dumps(str.__str__(value), ensure_ascii=False))
    elif isinstance(value, int):
        out.append(_integer(value))
    elif isinstance(value, float):
        out.append(number(value))
    elif isinstance(value, dict):
        out.append("{")
        # By UTF-16 code units, as the RFC says.
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        for at, name in enumerate(names):
            out.append("," if at else "")
            out.append(json.dumps(str.__str__(name), ensure_ascii=False) + ":")
            _write(value[name], out)
        out.append("}")
    elif isinstance(value, list):
        out.append("[")
        for at, item in enumerate(value):
            out.append("," if at else "")
            _write(item, out)
        out.append("]")
    else:
        _write(plain(value), out)


def _integer(value: int) -> str:
    if -(2**63) <= value < 2**64:
        return int.__repr__(value)
    try:
        # As everywhere: what does not fit 64 bits counts as the nearest double.
        return number(float(value))
    except OverflowError:
        raise _unfit("an integer is beyond the range of a double") from None


def number(value: float) -> str:
    """A double as ECMAScript writes it."""
    if not math.isfinite(value):
        raise _unfit(f"{value} is no number of JSON")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    # repr has the shortest digits that give this very double, as ECMAScript wants.
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + ("" if fraction == "0" else fraction)).lstrip("0")
    # The value is 0.digits times ten to the power of `point`.
    point = len(whole.lstrip("0")) + int(exponent or 0)
    if whole == "0":
        point -= len(fraction) - len(fraction.lstrip("0"))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        text = digits + "0" * (point - count)
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        power = point - 1
        head = digits if count == 1 else f"{digits[0]}.{digits[1:]}"
        text = f"{head}e{'+' if power > 0 else '-'}{abs(power)}"
    return sign + text


def _no_field(message: str) -> Invalid:
    return Invalid(message, hint="Name fields that every request has, each with a slash before it: /customer/id.")


def _place(pointer: str) -> list[tuple[int, str]]:
    """What to sort by for the order of the items of an array."""
    return [(int(step) if step.isascii() and step.isdigit() else 0, step) for step in pointer.split("/")]


def _steps(pointer: str) -> list[str]:
    if pointer == "":
        return []
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def _index(step: str, items: list[Any]) -> int | None:
    # As RFC 6901 has it: no sign and no leading zero.
    usual = step.isascii() and step.isdigit() and (step == "0" or step[0] != "0")
    return int(step) if usual and int(step) < len(items) else None


def _find(value: Any, pointer: str) -> tuple[bool, Any]:
    for step in _steps(pointer):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and (index := _index(step, value)) is not None:
            value = value[index]
        else:
            return False, None
    return True, value


def _remove(value: Any, pointer: str) -> None:
    steps = _steps(pointer)
    if not steps:
        return
    exists, parent = _find(value, pointer.rpartition("/")[0])
    if exists and isinstance(parent, dict):
        parent.pop(steps[-1], None)
    elif exists and isinstance(parent, list):
        if (index := _index(steps[-1], parent)) is not None:
            del parent[index]


def _unfit(message: str) -> Invalid:
    return Invalid(message, code="22030", hint="Pass what JSON can hold, or a fingerprint of your own.")
