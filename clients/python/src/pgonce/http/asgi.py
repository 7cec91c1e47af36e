"""Idempotency for ASGI applications: Starlette, FastAPI, Django, Litestar."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .._drivers import adapt
from .._intent import Intent, Options
from .._steps import drive_async
from ..aio import Command, Lease, LeaseCommand, Tx
from . import _edge
from ._exchange import BrokenOff, Exchange, Forgotten, Recorder, Retentions, intent_of, no_more, status
from ._policy import Attempt, Policy, Request, Response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class IdempotencyMiddleware:
    """Makes requests with an `Idempotency-Key` happen once.

    `policy` is a Policy, or a function of the ASGI scope that returns one, or None to let a request
    pass. `source` is an asynchronous pool or engine. The handler finds its transaction at
    `scope["pgonce"].tx`.
    """

    def __init__(self, app: App, source: Any, policy: Policy | Callable[[Scope], Policy | None]) -> None:
        self.app = app
        self.source = adapt(source, is_async=True)
        self.policy = policy
        self._retentions = Retentions()
        self._running: set[asyncio.Task[Response]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        policy = None
        if scope["type"] == "http":
            policy = self.policy if isinstance(self.policy, Policy) else self.policy(scope)
        if policy is not None:
            token = _edge.status_token(scope["method"], _path(scope), policy)
            if token is not None:
                await _send(send, await drive_async(status(self.source, policy, _head(scope), token)))
                return
        if policy is None or scope["method"] not in policy.methods:
            await self.app(scope, receive, send)
            return
        try:
            request = await _read(scope, receive, policy)
            if request is None:
                return
            intent = intent_of(request, policy)
        except _edge.Refused as refused:
            await _send(send, refused.response)
            return
        # A task of its own: a client that disconnects stops waiting and nothing else.
        task = asyncio.create_task(self._respond(scope, request, intent, policy))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await _send(send, await asyncio.shield(task))

    async def drained(self) -> None:
        """Returns when no request is in progress: call it before the process ends."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def _respond(self, scope: Scope, request: Request, intent: Intent, policy: Policy) -> Response:
        options = Options(retry=policy.retry, schema=policy.schema)
        retention = await drive_async(self._retentions.of(self.source, intent, options))
        exchange = Exchange(policy, request, intent, retention)

        async def atomic(tx: Tx) -> None:
            exchange.start()
            await self._handle(scope, exchange, tx, Attempt(tx, None))

        async def leased(lease: Lease) -> None:
            exchange.start(lease)
            try:
                await self._handle(scope, exchange, lease, Attempt(None, lease))
            except Forgotten:
                await drive_async(exchange.give_back(lease))
                raise

        try:
            if policy.mode == "atomic":
                done = await Command(self.source, intent, options).run(atomic)
            else:
                command = LeaseCommand(self.source, intent, options, policy.lease, True)
                done = await command.run(leased)
        except Exception as error:
            return exchange.failed(error)
        return exchange.ended(done)

    async def _handle(self, scope: Scope, exchange: Exchange, held: Any, attempt: Attempt) -> None:
        try:
            response = await _call(self.app, _inner(scope, attempt), exchange.request.body, exchange.policy)
        except Exception as error:
            response = exchange.crashed(error, attempt)
        exchange.judge(held, attempt, response)


async def _read(scope: Scope, receive: Receive, policy: Policy) -> Request | None:
    """The whole request; None where the client disconnected before it was sent."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > policy.max_body:
            raise _edge.Refused(_edge.too_large(policy))
    return _head(scope, bytes(body))


def _head(scope: Scope, body: bytes = b"") -> Request:
    headers = [(name.decode("latin-1").lower(), value) for name, value in scope["headers"]]
    query = scope.get("query_string", b"").decode("latin-1")
    return Request(scope["method"], _path(scope), query, headers, body)


def _path(scope: Scope) -> str:
    """The path that the client sent, undecoded where the server says it."""
    path: str = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
    return path.partition("?")[0]


def _inner(scope: Scope, attempt: Attempt) -> Scope:
    """The scope of the handler. Extensions are other ways to send a response than those that are recorded; that of TLS only informs."""
    extensions = {name: value for name, value in (scope.get("extensions") or {}).items() if name == "tls"}
    return {**scope, "pgonce": attempt, "extensions": extensions}


async def _call(app: App, scope: Scope, body: bytes, policy: Policy) -> Response:
    """The application's response, whole where it can be kept."""
    recorder = Recorder(policy)
    sent = begun = False
    waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not waiting.done():
            waiting.set_result({"type": "http.disconnect"})

    async def receive() -> Message:
        nonlocal sent
        if sent:
            # The client's connection is not the handler's business: there is nothing more to come.
            return await waiting
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal begun
        if message["type"] == "http.response.start":
            begun = True
            headers = [(name.decode("latin-1").lower(), value) for name, value in message.get("headers", [])]
            recorder.start(message["status"], headers)
        elif message["type"] == "http.response.body":
            recorder.write(message.get("body", b""))
            if not message.get("more_body", False):
                end()
        if recorder.is_refused:
            # As if the client were gone: who sends without end learns it by one or the other.
            end()
            raise no_more()

    try:
        await app(scope, receive, send)
    except Exception as error:
        if not recorder.is_refused:
            if begun and recorder.says_done:
                raise BrokenOff from error
            raise
    return recorder.response()


async def _send(send: Send, response: Response) -> None:
    headers = [(name.encode("latin-1"), value) for name, value in response.headers if name != "content-length"]
    if response.status not in _edge.WITHOUT_LENGTH:
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
