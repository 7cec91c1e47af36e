"""An asynchronous attempt, and calls in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _messages
from ._attempt import TxState
from ._drivers import adapt
from ._steps import drive_async


class Tx(TxState):
    __doc__ = TxState.__doc__

    async def publish(
        self,
        topic: str,
        type: str,
        payload: Any = None,
        *,
        subject: str | None = None,
        message_id: str | None = None,
        headers: dict[str, Any] | None = None,
        deliver_at: str | None = None,
    ) -> str:
        """Publishes an event that exists if and only if this attempt succeeds.

        Returns its message id, which is the same on every attempt at the intent.
        """
        return await publish(
            self.conn,
            topic,
            type,
            payload,
            subject=subject,
            message_id=message_id,
            headers=headers,
            deliver_at=deliver_at,
            tenant=self.intent.tenant,
            schema=self._options.schema,
        )

    async def accept(
        self, consumer: str, source: str, message_id: str, payload: bytes | str | None = None
    ) -> bool:
        """Whether this consumer may apply this message now: true where it is new."""
        return await accept(
            self.conn,
            consumer,
            source,
            message_id,
            payload,
            tenant=self.intent.tenant,
            schema=self._options.schema,
        )


async def publish(
    conn: Any,
    topic: str,
    type: str,
    payload: Any = None,
    *,
    subject: str | None = None,
    message_id: str | None = None,
    headers: dict[str, Any] | None = None,
    deliver_at: str | None = None,
    tenant: str = "",
    schema: str = "pgonce",
) -> str:
    """Publishes an event in your open transaction; as `pgonce.publish`."""
    event = _messages.event(topic, type, payload, subject, message_id, headers, deliver_at, tenant)
    return await drive_async(_messages.publish(adapt(conn, is_async=True), event, schema))


async def accept(
    conn: Any,
    consumer: str,
    source: str,
    message_id: str,
    payload: bytes | str | None = None,
    *,
    tenant: str = "",
    schema: str = "pgonce",
) -> bool:
    """Whether this consumer may apply this message now; as `pgonce.accept`."""
    message = _messages.message(consumer, source, message_id, payload, tenant)
    return await drive_async(_messages.accept(adapt(conn, is_async=True), message, schema))


async def accept_batch(
    conn: Any,
    consumer: str,
    source: str,
    messages: Sequence[tuple[str, bytes | str]],
    *,
    tenant: str = "",
    schema: str = "pgonce",
) -> list[str]:
    """As `accept`, for many messages, as (id, payload), in one statement."""
    batch = _messages.batch(consumer, source, messages, tenant)
    return await drive_async(_messages.accept_batch(adapt(conn, is_async=True), batch, schema))
