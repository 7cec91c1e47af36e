"""What to do about an error, and how to try again."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ._drivers._base import translate
from ._table import Class, classify
from .errors import Busy, Disconnected, Error, Invalid

__all__ = ["Class", "Policy", "classify", "transact"]

T = TypeVar("T")

_UNHURRIED = 0.1


@dataclass(frozen=True)
class Policy:
    """Bounds for retries at the transaction boundary: exponential with full jitter."""

    max_tries: int = 8
    """Maximum number of tries, the first included."""
    base: float = 0.005
    """Maximum first pause, in seconds; each further one may be twice as long."""
    cap: float = 1.0
    """Maximum pause, in seconds."""
    timeout: float = 30.0
    """No try starts later than this many seconds after the first."""

    @staticmethod
    def none() -> Policy:
        """One try, no retry."""
        return Policy(max_tries=1)


class Schedule:
    """The retries of one piece of work."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.started = time.monotonic()
        self.retries = 0

    def next_delay(self, error: Error) -> float | None:
        """Seconds to pause before the next try; None where tries or time are used up."""
        if self.retries + 1 >= max(self.policy.max_tries, 1):
            return None
        ceiling = min(self.policy.base * 2.0**self.retries, self.policy.cap)
        delay = min_delay(error) + random.uniform(0, ceiling)
        if delay >= self.policy.timeout - (time.monotonic() - self.started):
            return None
        self.retries += 1
        return delay


def min_delay(error: Error) -> float:
    """The least time to wait before trying again after this error, in seconds."""
    if isinstance(error, Busy):
        return error.retry_after
    return _UNHURRIED if error.error_class is Class.RETRY_AFTER_DELAY else 0.0


def transact(work: Callable[[], T], policy: Policy | None = None) -> T:
    """Runs a transaction of your own, from begin to commit, until it succeeds or fails for a reason
    that does not go away. The last exception is raised as it came.

    Only errors after which nothing was committed are tried again. A lost connection and the crash of a
    server are not: they may have come in COMMIT.
    """
    schedule = Schedule(policy or Policy())
    while True:
        try:
            value = work()
        except Exception as raised:
            delay = rerun_delay(schedule, raised)
            if delay is None:
                raise
            time.sleep(delay)
            continue
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise Invalid("the work is asynchronous, and nobody would await it", hint="Use transact of pgonce.aio.")
        return value


def rerun_delay(schedule: Schedule, raised: Exception) -> float | None:
    """Seconds to pause before a transaction that raised is run again; None where that is not safe, or does not help."""
    error = translate(raised)
    # Errors of pgonce itself know whether it was in COMMIT.
    lost = isinstance(error, Disconnected) and not error._did_nothing
    is_open = error is not raised and (lost or error is not None and error._is_crash)
    safe = error is not None and not is_open and error.error_class.is_safe_to_rerun
    return schedule.next_delay(error) if error is not None and safe else None
