"""From a request to its intent, and from a response to what is stored of it and back."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
import time
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from .._intent import MAX_KEEP, MAX_NAME_BYTES, Ack, Intent
from .._table import Class
from ..errors import Busy, Conflict, Error, Gone, Invalid, PermanentFailure, TransientFailure, Uncertain
from ..fingerprint import fingerprint
from ..keys import BadKey, derived_key, lint_key, new_key
from ._policy import Attempt, Policy, Request, Response

_USUAL = frozenset(
    "accept-patch accept-post accept-ranges access-control-allow-credentials access-control-allow-origin "
    "access-control-expose-headers allow cache-control content-disposition content-encoding content-language "
    "content-location content-range content-security-policy content-security-policy-report-only content-type "
    "cross-origin-embedder-policy cross-origin-opener-policy cross-origin-resource-policy deprecation etag "
    "expires grpc-encoding grpc-message grpc-status grpc-status-details-bin last-modified link location "
    "permissions-policy preference-applied referrer-policy strict-transport-security sunset vary "
    "x-content-type-options x-frame-options x-xss-protection".split()
)
_NEVER = frozenset(
    "age alt-svc clear-site-data connection content-length date idempotency-expires idempotent-replayed "
    "keep-alive proxy-authenticate proxy-authentication-info proxy-connection set-cookie set-cookie2 te "
    "trailer transfer-encoding upgrade via www-authenticate".split()
)
# What a status says about the work: the request is wrong, was not processed, meets another state, or came from a proxy.
_INVALID = frozenset((400, 405, 406, 411, 413, 414, 415, 417, 422, 428, 431))
_UNPROCESSED = frozenset((401, 403, 407, 408, 421, 425, 426, 429))
_STATE = frozenset((409, 423, 424))
_BETWEEN = frozenset((502, 503, 504))
_TITLES = {
    "P4001": "Key missing",
    "P4002": "Key reused with another request",
    "P4029": "Under way",
    "P4030": "Refused",
    "P4031": "Gone",
    "P4050": "Unprocessable Entity",
    "P4110": "Wrong region",
    "body_too_large": "Payload Too Large",
    "22023": "Key unusable",
    "08006": "Database unavailable",
    "08007": "Not known",
}
# They have no body; and the length of a 304 would be that of another response.
WITHOUT_LENGTH = (204, 304)
_COME_BACK = "send the same request with the same key again"
_TAG_BYTES = 33


class Refused(Exception):
    """The request is refused before the database is asked."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


# --- the request --------------------------------------------------------------------------------


def intent_of(request: Request, policy: Policy) -> Intent:
    """The intent that a request names."""
    client_key = read_key(request, policy)
    operation = operation_of(request, policy)
    try:
        print_ = fingerprint_of(request, operation, policy)
    except Invalid as error:
        raise Refused(problem(policy, 400, "22023", error.message)) from error
    return name_of(request, policy, client_key, operation, print_)


def is_keyed(request: Request, policy: Policy) -> bool:
    """Whether a request may be repeated: without a key it gets one that no other has."""
    return policy.key_required or bool(request.all(policy.header.lower()))


def lost_its_body(request: Request) -> bool:
    """Whether a body was sent, and read by something in front of the middleware."""
    if request.body:
        return False
    length = request.header("content-length")
    if length is not None:
        return bool(length.strip(" 0"))
    kind = (request.header("content-type") or "").lower()
    # A proxy may send an empty body in chunks, but not a form without its boundary.
    return kind.startswith("multipart/") or (kind != "" and bool(request.all("transfer-encoding")))


def operation_of(request: Request, policy: Policy) -> str:
    return policy.operation or f"{request.method} {request.path}"


def name_of(request: Request, policy: Policy, client_key: str, operation: str, print_: bytes) -> Intent:
    """The intent of a client's key, for the principal and the tenant of the request."""
    principal = None
    if policy.principal is not None:
        principal = policy.principal(request)
        if not principal:
            detail = "the request does not name its principal; log in and send it again with the same key"
            raise Refused(problem(policy, 401, "principal_missing", detail))
    tenant: str | None = ""
    if policy.tenant is not None:
        tenant = policy.tenant(request)
        if tenant is None:
            detail = "the request does not say for which tenant it is"
            raise Refused(problem(policy, 400, "tenant_missing", detail))
    try:
        key = client_key if policy.plain_keys else stored_key(client_key, operation, principal)
        return Intent(policy.scope, key, print_, tenant or "")
    except Invalid as error:
        raise Refused(problem(policy, 400, "22023", error.message)) from error


def read_key(request: Request, policy: Policy) -> str:
    """The key: the quoted form (a structured-field string) and the raw form are the same key."""
    name = policy.header.lower()
    values = request.all(name)
    if not values and not policy.key_required:
        return new_key()

    def unusable(detail: str) -> Refused:
        return Refused(problem(policy, 400, "22023", detail))

    if len(values) > 1:
        raise unusable(f"the header {name} was sent more than once; send one key")
    text = values[0].decode("latin-1").strip(" \t") if values else ""
    if not text.isascii() or any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise unusable(f"the header {name} holds other than visible ASCII characters; send a UUID, say")
    if text.startswith('"'):
        # Parameters mean nothing here, and unknown ones are to be ignored.
        quoted = re.fullmatch(r'"((?:[^"\\]|\\["\\])*)"((?:; *[a-z*][a-z0-9_.*-]*(?:=[^;," ]*)?)*)', text)
        if quoted is None:
            raise unusable(f"the header {name} begins with a quote but is not a structured-field string")
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    else:
        bad = re.search(r'[",\\ ]', text)
        if bad is not None:
            raise unusable(f"the key in the header {name} holds {bad[0]!r}; send one key, in quotes if it must")
        key = text
    if not key:
        detail = f"the header {name} is missing or empty; make a key once for each request and send it with every attempt"
        raise Refused(problem(policy, 400, "P4001", detail))
    if len(key) > policy.max_key_bytes:
        raise unusable(f"the key has {len(key)} bytes; at most {policy.max_key_bytes}")
    if policy.lint_keys:
        try:
            lint_key(key)
        except BadKey as bad:
            raise unusable(f"{bad.message}. {bad.hint}") from bad
    return key


def stored_key(key: str, operation: str, principal: str | None) -> str:
    """The client's key, readable, then a digest that keeps principals and operations apart."""
    who = ("nobody",) if principal is None else ("somebody", principal)
    digest = derived_key("pgonce-http", *who, operation, key)
    return f"{key[: MAX_NAME_BYTES - _TAG_BYTES]}#{digest[: _TAG_BYTES - 1]}"


def fingerprint_of(request: Request, operation: str, policy: Policy) -> bytes:
    """Operation, version, path, query and body. A body counts by its meaning where it is JSON."""
    meaning: dict[str, Any] = {"path": request.path}
    if policy.with_query and request.query:
        meaning["query"] = request.query
    kind = (request.header("content-type") or "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            exact = {**meaning, "json": exact_json(request.body)}
            return fingerprint(exact, operation=operation, version=policy.version)
        except (ValueError, RecursionError, Invalid):
            pass
    meaning["bytes"] = hashlib.sha256(request.body).hexdigest()
    return fingerprint(meaning, operation=operation, version=policy.version)


def exact_json(text: bytes) -> Any:
    """JSON whose canonical form says all that the text says; ValueError otherwise.

    A number of more than 15 digits or a member that comes twice says more: such a text counts by its bytes.
    """
    # UTF-8 and nothing else, without a byte order mark: json.loads would guess at bytes.
    return json.loads(
        text.decode("utf-8"),
        object_pairs_hook=_members,
        parse_int=lambda number: int(_exact(number)),
        parse_float=lambda number: float(_exact(number)),
        parse_constant=_refuse,
    )


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member comes twice")
    return members


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _exact(number: str) -> str:
    mantissa, _, exponent = number.lower().partition("e")
    digits = mantissa.lstrip("-").replace(".", "")
    power = exponent.lstrip("+-0") or "0"
    # Lengths before values: a number of thousands of digits takes long to read.
    if len(digits.strip("0")) > 15 or len(power) > 3 or int(power) + len(digits) > 290:
        raise ValueError("a number is not exact")
    return number


# --- the response -------------------------------------------------------------------------------


def disposition_of(response: Response, policy: Policy, chosen: str | None, begun: bool) -> str:
    """As the handler says, else as the policy does."""
    if chosen is not None:
        return chosen
    outcomes = policy.outcomes or ("final" if policy.mode == "atomic" else "freeze")
    if callable(outcomes):
        return outcomes(response)
    status, atomic = response.status, policy.mode == "atomic"
    if status < 400:
        return "keep"
    # Validation does not burn the key: nothing was begun, and a corrected request may use it again.
    if atomic and not begun and status < 500:
        return "forget"
    if outcomes == "finish":
        return "retry"
    if status in _BETWEEN:
        # An atomic attempt is rolled back, so nothing happened.
        return "retry" if atomic else "unknown"
    if status in _INVALID:
        return "refuse" if atomic else "forget"
    if outcomes == "freeze":
        return "forget" if status in _UNPROCESSED else "refuse"
    return "retry" if status >= 500 or status in _UNPROCESSED or status in _STATE else "refuse"


def take_words(response: Response, attempt: Attempt) -> float | None:
    """Takes what a handler says in `Pgonce-Disposition` and `Pgonce-Keep-For` off its response: these headers are never
    for clients. Answers how long to keep it, where the handler says so."""
    words = {name: value.decode("latin-1").strip() for name, value in response.headers if name.startswith("pgonce-")}
    response.headers = [item for item in response.headers if item[0] not in ("pgonce-disposition", "pgonce-keep-for")]
    disposition = words.get("pgonce-disposition", "").lower()
    if attempt.disposition is None and disposition in ("keep", "refuse", "retry", "forget"):
        attempt.disposition = disposition
    seconds = words.get("pgonce-keep-for", "")
    # No time at all would be no answer at all.
    return min(max(float(seconds), 1.0), MAX_KEEP) if seconds.isascii() and seconds.isdigit() else None


def to_stored(response: Response, policy: Policy, retention: float | None) -> dict[str, Any]:
    """What is kept of a response."""
    named = {
        name.strip().lower()
        for header, value in response.headers
        if header == "connection"
        for name in value.decode("latin-1").split(",")
    }
    also = {name.lower() for name in policy.replay_headers}
    kept: dict[str, Any] = {"http": 1, "status": response.status}
    headers = [
        [name, _text(value)]
        for name, value in response.headers
        if (name in _USUAL or name in also) and not _is_never_kept(name) and name not in named
    ]
    if headers:
        kept["headers"] = headers
    if response.body:
        kept["body"] = _text(response.body)
    if retention is not None:
        kept["expires"] = int(time.time() + retention)
    return kept


def without_body(stored: dict[str, Any]) -> dict[str, Any]:
    """The same, where the whole response is more than the scope's contract allows."""
    kept = {name: value for name, value in stored.items() if name in ("http", "status", "expires")}
    return {**kept, "unkept": True}


def without_what_is_refused(ack: Ack, code: str) -> Ack | None:
    """A stored response without what the database has refused with an error of this code; None where that is about nothing here."""
    is_of_values = code.startswith("22")
    # Characters that the encoding of the database does not have.
    written = in_ascii(ack.answer)
    if code in ("22P05", "22021") and written != ack.answer:
        return replace(ack, answer=written)
    # A time that no timestamp holds.
    if is_of_values and ack.keep_for is not None:
        return replace(ack, keep_for=None)
    bare = without_body(ack.answer)
    return replace(ack, answer=bare) if (is_of_values or code == "P4040") and bare != ack.answer else None


def in_ascii(stored: dict[str, Any]) -> dict[str, Any]:
    """The same in the characters that every encoding of a database has."""

    def written(text: Any) -> Any:
        return text if isinstance(text, dict) or text.isascii() else _base64(text.encode("utf-8"))

    kept = dict(stored)
    if "headers" in kept:
        kept["headers"] = [[name, written(value)] for name, value in kept["headers"]]
    if "body" in kept:
        kept["body"] = written(kept["body"])
    return kept


def _is_never_kept(name: str) -> bool:
    return name in _NEVER or name.startswith(("ratelimit", "x-ratelimit", "x-rate-limit"))


def _text(data: bytes) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    return _base64(data) if "\0" in text else text


def _base64(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode("ascii")}


def _bytes(text: Any) -> bytes:
    return base64.b64decode(text["base64"]) if isinstance(text, dict) else str(text).encode("utf-8")


def replay(policy: Policy, request: Request, answer: Any, failure: PermanentFailure | None) -> Response:
    """The stored response, for those who may still see it."""
    if policy.reauthorise is not None:
        instead = policy.reauthorise(request)
        if instead is not None:
            return instead
    if isinstance(answer, dict) and answer.get("http") == 1:
        if answer.get("unkept"):
            members = {"original_status": answer["status"]}
            response = _not_kept(policy, **members) if failure is None else _refused(policy, failure, **members)
        else:
            headers = [(name, _bytes(value)) for name, value in answer.get("headers", [])]
            response = Response(answer["status"], headers, _bytes(answer.get("body", "")))
        announce(response, answer.get("expires"))
    elif failure is not None:
        response = from_error(policy, failure)
    elif answer is not None:
        # Another entry point of the scope ended it.
        body = json.dumps(answer, ensure_ascii=False).encode("utf-8")
        response = Response(200, [("content-type", b"application/json")], body)
    else:
        response = _not_kept(policy)
    response.headers.append(("idempotent-replayed", b"true"))
    return response


def announce(response: Response, expires: int | None) -> None:
    """Says until when a response is kept."""
    if expires is not None and expires < 253_402_300_800:
        response.headers.append(("idempotency-expires", formatdate(expires, usegmt=True).encode()))


def _refused(policy: Policy, failure: PermanentFailure, **members: Any) -> Response:
    return problem(policy, 422, "P4030", failure.message, reason=failure.failure_code, **members)


def _not_kept(policy: Policy, **members: Any) -> Response:
    detail = "it happened once, and its answer was not kept: look for what it made"
    return problem(policy, 410, "P4031", detail, reason="answer_not_kept", **members)


# --- under way ----------------------------------------------------------------------------------


def token_of(client_key: str, operation: str, print_: bytes) -> str:
    """What a status URL stands for, apart from who asks; in the form of the Rust layer."""
    text = json.dumps([client_key, operation, _url_base64(print_)], ensure_ascii=False, separators=(",", ":"))
    return _url_base64(text.encode("utf-8"))


def read_token(token: str) -> tuple[str, str, bytes] | None:
    try:
        client_key, operation, print_ = json.loads(_from_url_base64(token))
        return str(client_key), str(operation), _from_url_base64(print_)
    except (ValueError, TypeError, RecursionError):
        return None


def _url_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _from_url_base64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def status_token(method: str, path: str, policy: Policy) -> str | None:
    """The token of a request that asks for the response of another one; None where it is none."""
    if policy.status_at is None or method != "GET":
        return None
    base = policy.status_at.rstrip("/") + "/"
    return path[len(base) :] if path.startswith(base) else None


def under_way(retry_after: float, location: str | None = None) -> Response:
    headers = [("content-type", b"application/json"), ("retry-after", _seconds(min(retry_after, 5)))]
    if location is not None:
        headers.append(("location", location.encode("latin-1")))
    return Response(202, headers, b'{"status":"processing"}')


def accepted(policy: Policy, request: Request, intent: Intent, retry_after: float) -> Response:
    """202, and where to ask for the response."""
    token = token_of(read_key(request, policy), operation_of(request, policy), intent.fingerprint)
    return under_way(retry_after, f"{(policy.status_at or '').rstrip('/')}/{token}")


def not_under_way(policy: Policy) -> Response:
    detail = "nothing is under way here; send the request again with the same key"
    return problem(policy, 404, "not_under_way", detail)


# --- problems -----------------------------------------------------------------------------------


def _seconds(time: float) -> bytes:
    # Never 0, which would ask for a busy loop.
    return str(max(math.ceil(min(time, 3600)), 1)).encode()


def problem(
    policy: Policy, status: int, code: str, detail: str, *, retry_after: float | None = None, **members: Any
) -> Response:
    """An error as application/problem+json."""
    document = {
        "type": policy.errors_at + code.lower(),
        "title": _TITLES.get(code) or HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        **members,
    }
    headers = [("content-type", b"application/problem+json")]
    if retry_after is not None:
        headers.append(("retry-after", _seconds(retry_after)))
    return Response(status, headers, json.dumps(document).encode("utf-8"))


def from_error(policy: Policy, error: Error) -> Response:
    """What a client gets for an error of pgonce."""
    said = f"{error.message}. {error.hint}" if error.hint else error.message
    if isinstance(error, Conflict):
        # Another code is of something that the handler wrote, such as a message: not of the request's key.
        return problem(policy, 422, error.code, said)
    if isinstance(error, Gone):
        return problem(policy, 410, "P4031", said)
    if error.code == "P4044":
        return problem(policy, 429, "P4044", said)
    if error.code == "P4110":
        return problem(policy, 421, "P4110", "its home is another region, and this attempt did nothing")
    if isinstance(error, PermanentFailure):
        return _refused(policy, error)
    if isinstance(error, TransientFailure):
        return problem(policy, 503, error.failure_code, error.message, retry_after=_soon())
    if isinstance(error, Busy):
        detail = f"another request with this key is under way; {_COME_BACK} later"
        return problem(policy, 409, "P4029", detail, retry_after=min(error.retry_after, 5))
    if isinstance(error, Uncertain) or error.error_class is Class.AMBIGUOUS:
        detail = f"it is not known yet whether it happened; {_COME_BACK} to learn it"
        return problem(policy, 503, "08007", detail, retry_after=_soon())
    if error.error_class in (Class.RETRY, Class.RETRY_AFTER_DELAY, Class.CLAIM_AGAIN):
        detail = f"the database is unavailable and this attempt did nothing; {_COME_BACK}"
        return problem(policy, 503, "08006", detail, retry_after=_soon())
    return internal(policy)


def _soon() -> float:
    """Another for each client: those whom one outage turned away must not all come back at once."""
    return random.randint(1, 3)


def internal(policy: Policy, code: str = "internal") -> Response:
    # What the database says about itself is for our logs, not for clients.
    detail = "something is wrong on the server's side; it is safe to send the same request with the same key again"
    return problem(policy, 500, code, detail)


def body_lost(policy: Policy) -> Response:
    # What became of it is for our logs.
    detail = "the server did not keep the body of the request, so that it cannot be compared with another one; nothing was done"
    return problem(policy, 500, "internal", detail)


def too_large_to_keep(policy: Policy, chosen: str) -> Response:
    """The problem of a response that is too large to be kept, and what it says about the effect."""
    why = "too large to be kept, and this route passes no such answers on"
    if policy.mode == "atomic":
        detail = "nothing happened; the response is too large to be kept"
    elif chosen == "keep":
        detail = f"it happened, but its answer is {why}"
    else:
        detail = f"it may have happened: the answer is {why}"
    return problem(policy, 500, "response_too_large", detail)


def broken_off(policy: Policy) -> Response:
    detail = "the body broke off; send the whole request again with the same key"
    return problem(policy, 400, "body_unreadable", detail)


def too_large(policy: Policy) -> Response:
    return problem(policy, 413, "body_too_large", f"the body has more than {policy.max_body} bytes")
