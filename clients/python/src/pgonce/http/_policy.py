"""What a route promises, and what passes through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import Invalid
from ..retry import Policy as RetryPolicy

DISPOSITIONS = ("keep", "refuse", "retry", "forget", "unknown")
"""What becomes of an attempt once the handler has answered.

`keep`: effect and response are kept. `refuse`: a permanent failure, the response is kept. `retry`: a
transient failure, a retry does the work again. `forget`: nothing is kept and the key is free. `unknown`: it may
have happened; on a leased route the claim stays until its lease runs out and then `stale` decides, on an atomic
one it is the same as `forget`.
"""

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class Request:
    """A request: header names are in lower case, values as they came."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes = b""

    def all(self, name: str) -> list[bytes]:
        return [value for found, value in self.headers if found == name]

    def header(self, name: str) -> str | None:
        """The value of a header, None where it is missing or sent more than once."""
        values = self.all(name.lower())
        return values[0].decode("latin-1") if len(values) == 1 else None


@dataclass
class Response:
    """A whole response."""

    status: int
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    body: bytes = b""
    _is_whole: bool = field(default=True, init=False, repr=False, compare=False)
    """Whether `body` is all of it: what cannot be kept is not collected."""


class Attempt:
    """What a handler finds under `pgonce` in its ASGI scope or WSGI environ."""

    def __init__(self, tx: Any, lease: Any) -> None:
        self._tx = tx
        self.lease = lease
        """The lease of a leased route; None on others."""
        self.disposition: str | None = None
        """Set it to one of DISPOSITIONS to overrule the policy for this one response."""

    @property
    def tx(self) -> Any:
        """The open transaction of an atomic route: what is written on `tx.conn` commits with the response."""
        if self._tx is None:
            raise Invalid("a leased route has no transaction", hint="Use mode='atomic'.")
        return self._tx

    @property
    def _begun(self) -> bool:
        return self._tx is None or self._tx._touched


@dataclass(frozen=True)
class Policy:
    """What a route promises. `principal` is a required decision: keys belong to somebody, or say None."""

    scope: str
    """The scope of the route's intents."""
    principal: Callable[[Request], str | None] | None
    """Who asks: the account, never the credential. None where keys belong to nobody."""
    operation: str | None = None
    """Method and path template, such as `POST /orders/{id}/pay`. Default: method and path."""
    mode: str = "atomic"
    """`atomic`: response and writes commit together. `leased`: for handlers that call out."""
    methods: tuple[str, ...] = ("POST", "PATCH")
    """Methods that are protected; others pass."""
    key_required: bool = True
    """Whether a request without a key is refused with 400."""
    header: str = "idempotency-key"
    """The header that carries the key."""
    lint_keys: bool = False
    """Whether keys that name an attempt, or nothing, are refused with 400: see `pgonce.lint_key`."""
    plain_keys: bool = False
    """Whether keys are stored as the client sent them, without the digest of operation: only where `principal` is None."""
    tenant: Callable[[Request], str | None] | None = None
    """The tenant of a request. Default: no tenants."""
    version: str = ""
    """The version of the API that gives a request its meaning."""
    with_query: bool = True
    """Whether the query counts for the fingerprint."""
    outcomes: str | Callable[[Response], str] | None = None
    """Which responses are kept: `freeze`, `final`, `finish`, or a function that returns a disposition.
    Default: `final` for atomic routes, `freeze` for leased ones."""
    replay_headers: tuple[str, ...] = ()
    """Headers to replay besides the usual ones."""
    reauthorise: Callable[[Request], Response | None] | None = None
    """Asked before a stored response is given out; what it returns is sent instead."""
    status_at: str | None = None
    """Path under which a client asks for the response of a request that is under way, where the scope's contract
    says `accept`: it gets 202 and a Location there. The middleware answers GET below it."""
    stale: str = "refuse"
    """Leased routes: what becomes of work whose holder vanished, `refuse` or `takeover`."""
    lease: float | None = None
    """Length of a lease in seconds. Default: that of the scope's contract."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How often a claim, and the record of a leased route's response, is tried again."""
    max_key_bytes: int = 255
    max_body: int = 2 << 20
    """Largest body of a request, in bytes."""
    max_response: int = 1 << 20
    """Largest response that is kept, in bytes."""
    errors_at: str = "https://docs.rs/pgonce-http/latest/pgonce_http/errors/#"
    """Where the pages of the error codes are."""
    schema: str = "pgonce"

    def __post_init__(self) -> None:
        if self.plain_keys and self.principal is not None:
            raise Invalid(
                "plain_keys and a principal exclude each other: two callers' keys would meet",
                hint="Drop plain_keys, or make the principal the tenant.",
            )
        choices = (
            (self.mode, ("atomic", "leased"), "mode"),
            (self.stale, ("refuse", "takeover"), "stale"),
        )
        for value, known, name in choices:
            if value not in known:
                raise Invalid(f"{name} is {value!r}", hint=f"One of {', '.join(known)}.")
        if isinstance(self.outcomes, str) and self.outcomes not in ("freeze", "final", "finish"):
            raise Invalid(f"outcomes is {self.outcomes!r}", hint="One of freeze, final, finish.")
