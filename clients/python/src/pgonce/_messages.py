"""Publishing and accepting, in the caller's transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from . import _statements as sql
from ._drivers import Driver
from ._intent import to_json, to_text
from ._protocol import borrow, query
from ._steps import Steps
from .fingerprint import utf8


def event(
    topic: str,
    type: str,
    payload: Any,
    subject: str | None,
    message_id: str | None,
    headers: dict[str, Any] | None,
    deliver_at: str | None,
    tenant: str,
) -> dict[str, Any]:
    return {
        "topic": topic,
        "type": type,
        "subject": subject,
        "payload": None if payload is None else to_json(payload),
        "message_id": None if message_id is None else to_text(message_id),
        "headers": to_json(headers or {}),
        "deliver_at": deliver_at,
        "tenant": tenant,
    }


def message(
    consumer: str, source: str, message_id: str, payload: bytes | str | None, tenant: str
) -> dict[str, Any]:
    digest = None if payload is None else _hash(payload)
    return {
        "consumer": consumer,
        "source": source,
        "message_id": message_id,
        "hash": digest,
        "tenant": tenant,
    }


def batch(
    consumer: str, source: str, messages: Sequence[tuple[str, bytes | str]], tenant: str
) -> dict[str, Any]:
    return {
        "consumer": consumer,
        "source": source,
        "ids": json.dumps([name for name, _ in messages]),
        "hashes": json.dumps([_hash(payload).hex() for _, payload in messages]),
        "tenant": tenant,
    }


def _hash(payload: bytes | str) -> bytes:
    data = utf8(payload, "payload") if isinstance(payload, str) else payload
    return hashlib.sha256(data).digest()


def _in_transaction(driver: Driver, statement: str, params: dict[str, Any]) -> Steps[list[tuple[Any, ...]]]:
    session = yield from borrow(driver)
    return (yield from query(session, statement, params))


def publish(driver: Driver, params: dict[str, Any], schema: str) -> Steps[str]:
    rows = yield from _in_transaction(driver, sql.in_schema(sql.PUBLISH, schema), params)
    return str(rows[0][0])


def accept(driver: Driver, params: dict[str, Any], schema: str) -> Steps[bool]:
    rows = yield from _in_transaction(driver, sql.in_schema(sql.ACCEPT, schema), params)
    return bool(rows[0][0] == "true")


def accept_batch(driver: Driver, params: dict[str, Any], schema: str) -> Steps[list[str]]:
    rows = yield from _in_transaction(driver, sql.in_schema(sql.ACCEPT_BATCH, schema), params)
    return [str(row[0]) for row in rows]
