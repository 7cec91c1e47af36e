"""Keys: making them, deriving them from facts, and finding bad ones."""

from __future__ import annotations

import hashlib
import os
import time
from uuid import NAMESPACE_URL, UUID

from ._key_lint import BadKey, lint_key
from .fingerprint import utf8

__all__ = ["BadKey", "derived_key", "lint_key", "new_key", "resource_id"]


def new_key() -> str:
    """A key for a new intent: a UUIDv7, which sorts by time and so is kind to indexes.

    Call it once, where the intent arises, and keep the result for the retries.
    """
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(UUID(int=value))


def derived_key(namespace: str, *parts: str) -> str:
    """A key from the facts that make the intent what it is: the same facts give the same key, in
    any process, language and release.

    SHA-256, in hex, over the namespace and the parts, each preceded by its length as eight bytes,
    most significant first.
    """
    return hashlib.sha256(_joined("namespace", namespace) + _joined("part", *parts)).hexdigest()


def resource_id(namespace: str, *parts: str) -> UUID:
    """A resource's id from its natural name: a UUIDv5, the same on every attempt."""
    space = _uuid5(NAMESPACE_URL, b"urn:pgonce:" + utf8(namespace, "namespace"))
    return _uuid5(space, _joined("part", *parts))


def _uuid5(space: UUID, name: bytes) -> UUID:
    # uuid.uuid5 takes only texts before Python 3.12.
    return UUID(bytes=hashlib.sha1(space.bytes + name, usedforsecurity=False).digest()[:16], version=5)


def _joined(what: str, *parts: str) -> bytes:
    texts = [utf8(part, what) for part in parts]
    return b"".join(len(text).to_bytes(8, "big") + text for text in texts)
