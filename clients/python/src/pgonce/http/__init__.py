"""Idempotent HTTP APIs: middleware for ASGI and WSGI with the semantics of pgonce's HTTP layer."""

from ._policy import DISPOSITIONS, Attempt, Policy, Request, Response
from .asgi import IdempotencyMiddleware
from .wsgi import WsgiIdempotencyMiddleware

__all__ = [
    "DISPOSITIONS",
    "Attempt",
    "IdempotencyMiddleware",
    "Policy",
    "Request",
    "Response",
    "WsgiIdempotencyMiddleware",
]
