"""One exchange: how a handler's response becomes the end of its attempt."""

from __future__ import annotations

import logging
import time
from typing import Any

from .._intent import Done, Intent, Options
from .._protocol import Contract, contract_of, discard, ended, open_attempt
from .._steps import Steps
from .._drivers import Driver
from .._drivers._base import translate
from ..errors import Busy, Error, Fenced, Gone, Invalid, PermanentFailure, TransientFailure, Uncertain
from . import _edge
from ._policy import DISPOSITIONS, Attempt, Policy, Request, Response

log = logging.getLogger("pgonce.http")


class Forgotten(Exception):
    """Nothing of the attempt is kept."""


class Unknown(Exception):
    """It may have happened: the claim of a leased attempt stays as it is."""


class BrokenOff(Exception):
    """The handler raised after it had begun a response that says that it is done; the cause is what it raised."""


_STREAMS = ("text/event-stream", "multipart/x-mixed-replace")


class Recorder:
    """Collects a response for as long as it can be kept: a stream may have no end, and its handler holds a transaction or a lease."""

    def __init__(self, policy: Policy) -> None:
        self._max = policy.max_response
        self._response = Response(500)
        self._body = bytearray()

    @property
    def is_refused(self) -> bool:
        """Whether it is too large to be kept, or a stream of events."""
        return not self._response._is_whole

    @property
    def says_done(self) -> bool:
        """Whether it has begun, with a status that says that it is done. Only the application sets another than that of its own failure."""
        return self._response.status < 400

    def start(self, status: int, headers: list[tuple[str, bytes]]) -> None:
        if self.is_refused:
            return
        self._response.status, self._response.headers = status, headers
        if any(name == "content-type" and _is_stream(value) for name, value in headers):
            self._refuse()

    def write(self, part: bytes) -> None:
        if self.is_refused:
            return
        self._body += part
        if len(self._body) > self._max:
            self._refuse()

    def _refuse(self) -> None:
        self._response._is_whole = False
        self._body.clear()

    def response(self) -> Response:
        self._response.body = bytes(self._body)
        return self._response


def _is_stream(content_type: bytes) -> bool:
    return content_type.decode("latin-1").strip().lower().startswith(_STREAMS)


def no_more() -> OSError:
    """What servers raise where the client is gone."""
    return OSError("the response is too large to be kept, and is not sent")


def policy_raised(policy: Policy, error: Exception) -> Response:
    """The response where a function of the policy raised."""
    log.error("the policy raised", exc_info=error)
    return _edge.internal(policy)


def intent_of(request: Request, policy: Policy) -> Intent:
    """The intent that a request names."""
    try:
        intent = _edge.intent_of(request, policy)
    except _edge.Refused:
        raise
    except Exception as error:
        raise _edge.Refused(policy_raised(policy, error)) from error
    if _edge.lost_its_body(request) and _edge.is_keyed(request, policy):
        # Another body with the key would get its response.
        log.error(
            "a request was refused: something in front of the middleware has read its body; put the middleware in front of it, "
            "or pass the body on (Starlette: await request.body(), and neither stream() nor form()): %s %s",
            request.method,
            request.path,
        )
        raise _edge.Refused(_edge.body_lost(policy))
    return intent


_MAX_RETENTIONS = 1000


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
        if len(self._known) >= _MAX_RETENTIONS:
            self._known.clear()
        self._known[place] = (time.monotonic() + 2, contract.retention)
        return contract.retention


# What is recorded about an intent says what happened. Every other error of a leased route whose handler was called leaves it
# open.
_RECORDED = (PermanentFailure, TransientFailure, Gone, Invalid, Uncertain)


class Exchange:
    """What is known of one request while its handler runs, maybe several times."""

    def __init__(self, policy: Policy, request: Request, intent: Intent, retention: float | None) -> None:
        self.policy = policy
        self.request = request
        self.intent = intent
        self.retention = retention
        self.live: Response | None = None
        self._called = False
        """Whether the handler of a leased route was called: the outside world may have seen its work."""

    def start(self, lease: Any = None) -> None:
        """One run of the handler. Refuses work whose earlier holder vanished, where the policy says so."""
        # The response of a run before is none of this one.
        self.live = None
        if lease is None:
            return
        if lease.kind == "takeover" and self.policy.stale == "refuse":
            raise PermanentFailure("abandoned", "the holder vanished; whether it happened is not known")
        self._called = True

    def give_back(self, lease: Any) -> Steps[None]:
        """Frees the key of a leased route, where nothing is to be kept."""
        try:
            yield from lease._forget()
        except Fenced:
            # What another holder, or the handler itself, has recorded counts.
            raise
        except Error as error:
            log.warning("a lease could not be released; it expires by itself: %s", error)

    def crashed(self, raised: BaseException, attempt: Attempt) -> Response:
        """The response for a handler that raised; raises what is to be retried or recorded."""
        error = raised.__cause__ or raised if isinstance(raised, BrokenOff) else raised
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
        if isinstance(raised, BrokenOff) and self.policy.outcomes in ("final", "finish"):
            # It had said that it is done: no retry may be made of that.
            attempt.disposition = attempt.disposition or "unknown"
        return response

    def judge(self, held: Any, attempt: Attempt, response: Response) -> None:
        """Ends the attempt as the response says: records the answer, or raises."""
        policy = self.policy
        keep_for = _edge.take_words(response, attempt)
        chosen = _edge.disposition_of(response, policy, attempt.disposition, attempt._begun)
        if chosen not in DISPOSITIONS:
            # The handler's own response would say that what is not kept has happened.
            log.error("a disposition is %r, none of %s", chosen, ", ".join(DISPOSITIONS))
            response, chosen = _edge.internal(policy), "unknown"
        if not response._is_whole or len(response.body) > policy.max_response:
            log.error("a response is too large to be kept: it has more than %d bytes, or is a stream of events", policy.max_response)
            response = _edge.too_large_to_keep(policy, chosen)
            chosen = "forget" if policy.mode == "atomic" else "refuse" if chosen == "keep" else chosen
        response.headers = [item for item in response.headers if item[0] != "idempotent-replayed"]
        stored = _edge.to_stored(response, policy, self.retention if keep_for is None else keep_for)
        self.live = response
        if chosen in ("keep", "refuse"):
            _edge.announce(response, stored.get("expires"))
        if chosen == "keep":
            held.succeed(stored, keep_for=keep_for)
            if policy.mode == "leased":
                # It happened, and that is recorded whatever the contract and the database's encoding allow an answer to be.
                held._less = _edge.without_what_is_refused
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
            return self._replay(done.answer, None)
        return self.live

    def _replay(self, answer: Any, failure: PermanentFailure | None) -> Response:
        try:
            return _edge.replay(self.policy, self.request, answer, failure)
        except Exception as error:
            return policy_raised(self.policy, error)

    def failed(self, error: Exception) -> Response:
        """The response that fits the end of the run: the handler's own only where this run made it."""
        if isinstance(error, PermanentFailure) and error.replayed:
            return self._replay(error.answer, error)
        if isinstance(error, (Forgotten, Unknown, PermanentFailure, TransientFailure)) and self.live is not None:
            return self.live
        known = translate(error)
        if known is None:
            log.error("the handler raised", exc_info=error)
            return _edge.internal(self.policy)
        log.warning("the command failed: %s", known)
        if self._called and not isinstance(known, _RECORDED):
            known = Uncertain(known.message)
        if isinstance(known, Busy) and known.accepted and self.policy.status_at is not None:
            return _edge.accepted(self.policy, self.request, self.intent, known.retry_after)
        return _edge.from_error(self.policy, known)


def status(driver: Driver, policy: Policy, request: Request, token: str) -> Steps[Response]:
    """The response of a request that is or was under way: 202, the stored one, or 404.

    Who asks is read from this request: with another principal the same token finds nothing.
    """
    try:
        return (yield from _look_at(driver, policy, request, token))
    except Exception as error:
        return policy_raised(policy, error)


def _look_at(driver: Driver, policy: Policy, request: Request, token: str) -> Steps[Response]:
    found = _edge.read_token(token)
    if found is None:
        return _edge.not_under_way(policy)
    try:
        intent = _edge.name_of(request, policy, *found)
        session, claimed = yield from open_attempt(driver, intent, Options(retry=policy.retry, schema=policy.schema))
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
