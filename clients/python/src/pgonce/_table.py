"""The table that says, for each SQLSTATE, what a caller does next: `codes.json`, generated."""

from __future__ import annotations

import json
from enum import Enum
from importlib import resources


class Class(str, Enum):
    """What to do about an error."""

    RETRY = "retry"
    RETRY_AFTER_DELAY = "retry_after_delay"
    CLAIM_AGAIN = "claim_again"
    CLASSIFY = "classify"
    CONFLICT = "conflict"
    FINAL = "final"
    AMBIGUOUS = "ambiguous"

    @property
    def is_safe_to_rerun(self) -> bool:
        """Whether nothing was committed and running the transaction again is worth it."""
        return self in (Class.RETRY, Class.RETRY_AFTER_DELAY, Class.CLAIM_AGAIN)


_CODES: dict[str, dict[str, dict[str, str]]] = json.loads(
    resources.files(__package__).joinpath("codes.json").read_text("utf-8")
)


def classify(code: str) -> Class:
    """What to do about an error with this SQLSTATE. A code in neither list is final."""
    entry = _CODES["codes"].get(code)
    if entry is None and len(code) == 5:
        entry = _CODES["groups"].get(code[:2])
    return Class(entry["class"]) if entry else Class.FINAL
