"""Verifying webhooks: Standard Webhooks, HMAC-SHA-256."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping

TOLERANCE = 300.0


class WebhookError(Exception):
    """Why a request is not what it claims to be.

    `code` is one of `secret`, `signature_missing`, `signature_wrong`, `timestamp_missing`,
    `timestamp_outside_window`.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} [{code}]")
        self.code = code
        self.reason = reason


def verify(
    secrets: str | Iterable[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> str:
    """Checks who sent a webhook of Standard Webhooks and returns the message's id, to deduplicate by.

    `secrets` are written `whsec_` and base64; several where one is being replaced. `tolerance` is how
    many seconds the time of a message may be from ours, both ways. Pass the body as it came, before
    any parsing.
    """
    found = {name.lower(): value for name, value in headers.items()}
    identifier = found.get("webhook-id", "")
    timestamp = _required(found, "webhook-timestamp")
    signed = _required(found, "webhook-signature")
    _check_time(timestamp, tolerance, time.time() if now is None else now)
    try:
        content = f"{identifier}.{timestamp}.".encode() + body
    except UnicodeEncodeError:
        raise WebhookError("signature_wrong", "its id is not Unicode, which nobody signs") from None
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise WebhookError("secret", "no secret was given")
    digests = [hmac.new(key, content, hashlib.sha256).digest() for key in keys]
    fits = False
    for signature in signed.split(" "):
        version, _, text = signature.partition(",")
        given = _decoded(text) if version == "v1" else None
        # Every digest is compared, in constant time.
        for digest in digests:
            fits |= given is not None and hmac.compare_digest(given, digest)
    if not fits:
        raise WebhookError("signature_wrong", "no signature fits")
    return identifier


def sign(secret: str, identifier: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature` for a message, as a sender writes it."""
    content = f"{identifier}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode("ascii")


def _required(headers: Mapping[str, str], name: str) -> str:
    if name not in headers:
        raise WebhookError("signature_missing", f"header {name} is missing")
    return headers[name]


def _check_time(timestamp: str, tolerance: float, now: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit()):
        raise WebhookError("timestamp_missing", "its time is no number of seconds")
    # A number of hundreds of digits is none that Python can compare, and none of this age.
    if len(timestamp.lstrip("0")) > 18 or abs(now - int(timestamp)) > tolerance:
        raise WebhookError("timestamp_outside_window", "it was sent too long ago, or in the future")


def _key(secret: str) -> bytes:
    key = _decoded(secret[6:] if secret.startswith("whsec_") else secret)
    if not key:
        raise WebhookError("secret", "a secret of Standard Webhooks is whsec_ and base64")
    return key


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
