"""Idempotency for WSGI applications: Flask, Django, Pyramid."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from .._drivers import adapt
from .._intent import Intent, Options
from .._steps import drive
from .._sync import Command, Tx
from .._sync_lease import Lease, LeaseCommand
from . import _edge
from ._exchange import BrokenOff, Exchange, Forgotten, Recorder, Retentions, intent_of, no_more, status
from ._policy import Attempt, Policy, Request, Response

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class WsgiIdempotencyMiddleware:
    """Makes requests with an `Idempotency-Key` happen once.

    `policy` is a Policy, or a function of the WSGI environ that returns one, or None to let a request
    pass. `source` is a synchronous pool or engine. The handler finds its transaction at
    `environ["pgonce"].tx`.
    """

    def __init__(self, app: App, source: Any, policy: Policy | Callable[[Environ], Policy | None]) -> None:
        self.app = app
        self.source = adapt(source, is_async=False)
        self.policy = policy
        self._retentions = Retentions()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        policy = self.policy if isinstance(self.policy, Policy) else self.policy(environ)
        if policy is not None:
            token = _edge.status_token(environ["REQUEST_METHOD"], _path(environ), policy)
            if token is not None:
                return _send(start_response, drive(status(self.source, policy, _head(environ), token)))
        if policy is None or environ["REQUEST_METHOD"] not in policy.methods:
            return self.app(environ, start_response)
        try:
            request = _read(environ, policy)
            intent = intent_of(request, policy)
        except _edge.Refused as refused:
            return _send(start_response, refused.response)
        return _send(start_response, self._respond(environ, request, intent, policy))

    def _respond(self, environ: Environ, request: Request, intent: Intent, policy: Policy) -> Response:
        options = Options(retry=policy.retry, schema=policy.schema)
        exchange = Exchange(policy, request, intent, drive(self._retentions.of(self.source, intent, options)))

        def atomic(tx: Tx) -> None:
            exchange.start()
            self._handle(environ, exchange, tx, Attempt(tx, None))

        def leased(lease: Lease) -> None:
            exchange.start(lease)
            try:
                self._handle(environ, exchange, lease, Attempt(None, lease))
            except Forgotten:
                drive(exchange.give_back(lease))
                raise

        try:
            if policy.mode == "atomic":
                done = Command(self.source, intent, options).run(atomic)
            else:
                done = LeaseCommand(self.source, intent, options, policy.lease, True).run(leased)
        except Exception as error:
            return exchange.failed(error)
        return exchange.ended(done)

    def _handle(self, environ: Environ, exchange: Exchange, held: Any, attempt: Attempt) -> None:
        try:
            response = _call(self.app, {**environ, "pgonce": attempt}, exchange.request.body, exchange.policy)
        except Exception as error:
            response = exchange.crashed(error, attempt)
        exchange.judge(held, attempt, response)


def _read(environ: Environ, policy: Policy) -> Request:
    """The whole request. A part of it is another request, which its key must not stand for."""
    length = environ.get("CONTENT_LENGTH") or ""
    if length:
        if not (length.isascii() and length.isdigit()):
            raise _edge.Refused(_edge.broken_off(policy))
        # Not as a number: a text of thousands of digits is none to Python.
        if len(length.lstrip("0")) > 18 or int(length) > policy.max_body:
            raise _edge.Refused(_edge.too_large(policy))
        body = _read_body(environ, policy, int(length))
        if len(body) < int(length):
            raise _edge.Refused(_edge.broken_off(policy))
    elif environ.get("wsgi.input_terminated"):
        body = _read_body(environ, policy, policy.max_body + 1)
        if len(body) > policy.max_body:
            raise _edge.Refused(_edge.too_large(policy))
    elif environ.get("HTTP_TRANSFER_ENCODING"):
        # There is a body, and the server does not say where it ends.
        raise _edge.Refused(_edge.broken_off(policy))
    else:
        body = b""
    return _head(environ, body)


def _read_body(environ: Environ, policy: Policy, size: int) -> bytes:
    """So many bytes, or less where there are no more."""
    body = bytearray()
    try:
        while len(body) < size:
            part = environ["wsgi.input"].read(size - len(body))
            if not part:
                break
            body += part
    except OSError as error:
        raise _edge.Refused(_edge.broken_off(policy)) from error
    return bytes(body)


def _head(environ: Environ, body: bytes = b"") -> Request:
    headers = [
        (name[5:].replace("_", "-").lower(), str(value).encode("latin-1"))
        for name, value in environ.items()
        if name.startswith("HTTP_")
    ]
    if environ.get("CONTENT_TYPE"):
        headers.append(("content-type", environ["CONTENT_TYPE"].encode("latin-1")))
    if environ.get("CONTENT_LENGTH"):
        headers.append(("content-length", environ["CONTENT_LENGTH"].encode("latin-1")))
    return Request(environ["REQUEST_METHOD"], _path(environ), environ.get("QUERY_STRING", ""), headers, body)


def _path(environ: Environ) -> str:
    return str(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))


def _call(app: App, environ: Environ, body: bytes, policy: Policy) -> Response:
    """The application's response, whole where it can be kept."""
    recorder = Recorder(policy)
    iterates = False

    def write(part: bytes) -> None:
        recorder.write(part)
        if recorder.is_refused:
            raise no_more()

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        recorder.start(int(status.split(" ", 1)[0]), [(name.lower(), value.encode("latin-1")) for name, value in headers])
        if recorder.is_refused and iterates:
            # It may wait for its first event. Before that its parts are not asked for.
            raise no_more()
        return write

    environ["wsgi.input"] = io.BytesIO(body)
    environ["CONTENT_LENGTH"] = str(len(body))
    try:
        parts = app(environ, start_response)
        iterates = True
        try:
            if not recorder.is_refused:
                for part in parts:
                    write(part)
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()
    except Exception as error:
        if not recorder.is_refused:
            if recorder.says_done:
                raise BrokenOff from error
            raise
    return recorder.response()


def _send(start_response: StartResponse, response: Response) -> Iterable[bytes]:
    headers = [(name, value.decode("latin-1")) for name, value in response.headers if name != "content-length"]
    if response.status not in _edge.WITHOUT_LENGTH:
        headers.append(("content-length", str(len(response.body))))
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = "Status"
    start_response(f"{response.status} {phrase}", headers)
    return [response.body]
