"""One exchange: how a handler's response becomes the end of its attempt."""

from __future__ import annotations

import logging
import time
from typing import Any

from .._intent import Done, Intent, Options
from .._protocol import Contract, Steps, contract_of, discard, ended, open_attempt
from .._drivers import Driver
from .._drivers._base import translate
from ..errors import Busy, Error, PermanentFailure, TransientFailure
from . import _edge
from ._policy import Attempt, Policy, Request, Response

log = logging.getLogger("pgonce.http")


class Forgotten(Exception):
    """Nothing of the attempt is kept."""


class Unknown(Exception):
    """It may have happened: the claim of a leased attempt stays as it is."""


class Retentions:
    """How long responses are kept, by scope; asked for at most once in two seconds."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[float, float]] = {}

    def of(self, driver: Driver, intent: Intent, options: Options) -> Steps[float | None]:
        place = (intent.tenant, intent.scope)
        until, retention = self._known.get(place, (0.0, 0.0))
        if time.monotonic() < until:
            return retention
        try:
            contract: Contract = yield from contract_of(driver, intent, options)
        except Error:
            return None
        self._known[place] = (time.monotonic() + 2, contract.retention)
        return contract.retention


class Exchange:
    """What is known of one request while its handler runs, maybe several times."""

    def __init__(self, policy: Policy, request: Request, intent: Intent, retention: float | None) -> None:
        self.policy = policy
        self.request = request
        self.intent = intent
        self.retention = retention
        self.live: Response | None = None

    def abandoned(self, held: Any) -> None:
        """Refuses work whose earlier holder vanished, where the policy says so."""
        if held.kind == "takeover" and self.policy.stale == "refuse":
            raise PermanentFailure("abandoned", "the holder vanished; whether it happened is not known")

    def crashed(self, error: Exception) -> Response:
        """The response for a handler that raised; raises what is to be retried or recorded."""
        if isinstance(error, Error):
            raise error
        known = translate(error)
        if known is not None and self.policy.mode == "atomic":
            raise error
        log.error("the handler raised", exc_info=error)
        response = _edge.internal(self.policy, "handler_failed")
        if self.policy.mode == "atomic":
            self.live = response
            raise Forgotten from error
        return response

    def judge(self, held: Any, attempt: Attempt, response: Response) -> None:
        """Ends the attempt as the response says: records the answer, or raises."""
        policy = self.policy
        keep_for = _edge.take_words(response, attempt)
        chosen = _edge.disposition_of(response, policy, attempt.disposition, attempt._begun)
        if len(response.body) > policy.max_response:
            log.error("a response of %d bytes is too large to be kept", len(response.body))
            happened = policy.mode == "leased" and chosen == "keep"
            chosen = "forget" if policy.mode == "atomic" else "refuse" if chosen == "keep" else chosen
            what = "it happened" if happened else "nothing happened"
            detail = f"{what}; the response is too large to be kept"
            response = _edge.problem(policy, 500, "response_too_large", detail)
        response.headers = [item for item in response.headers if item[0] != "idempotent-replayed"]
        stored = _edge.to_stored(response, policy, self.retention if keep_for is None else keep_for)
        self.live = response
        if chosen in ("keep", "refuse"):
            _edge.announce(response, stored.get("expires"))
        if chosen == "keep":
            held.succeed(stored, keep_for=keep_for)
        elif chosen == "refuse":
            code = f"http_{response.status}"
            raise PermanentFailure(code, "the handler refused", answer=stored, keep_for=keep_for)
        elif chosen == "retry":
            raise TransientFailure(f"http_{response.status}", "the handler failed")
        elif chosen == "unknown" and policy.mode == "leased":
            raise Unknown
        else:
            raise Forgotten

    def ended(self, done: Done) -> Response:
        if done.replayed or self.live is None:
            return _edge.replay(self.policy, self.request, done.answer, None)
        return self.live

    def failed(self, error: Exception) -> Response:
        """The response that fits the end of the run: the handler's own only where this run made it."""
        if isinstance(error, PermanentFailure) and error.replayed:
            return _edge.replay(self.policy, self.request, error.answer, error)
        if isinstance(error, (Forgotten, Unknown, PermanentFailure, TransientFailure)) and self.live is not None:
            return self.live
        known = translate(error)
        if known is None:
            log.error("the handler raised", exc_info=error)
            return _edge.internal(self.policy)
        log.warning("the command failed: %s", known)
        if isinstance(known, Busy) and known.accepted and self.policy.status_at is not None:
            return _edge.accepted(self.policy, self.request, self.intent, known.retry_after)
        return _edge.from_error(self.policy, known)


def status(driver: Driver, policy: Policy, request: Request, token: str) -> Steps[Response]:
    """The response of a request that is or was under way: 202, the stored one, or 404.

    Who asks is read from this request: with another principal the same token finds nothing.
    """
    found = _edge.read_token(token)
    if found is None:
        return _edge.not_under_way(policy)
    try:
        intent = _edge.name_of(request, policy, *found)
        session, claimed = yield from open_attempt(driver, intent, Options(schema=policy.schema))
        if session is not None:
            # Only looked: the right to do the work goes back.
            yield from discard(session, None)
            return _edge.not_under_way(policy)
        if claimed.outcome == "busy":
            return _edge.under_way(claimed.retry_after)
        return _edge.replay(policy, request, ended(claimed).answer, None)
    except _edge.Refused as refused:
        return refused.response
    except PermanentFailure as failure:
        return _edge.replay(policy, request, failure.answer, failure)
    except Error as error:
        return _edge.from_error(policy, error)
