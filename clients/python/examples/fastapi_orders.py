"""An orders service with FastAPI: three ways to be safe under retries.

    pip install pgonce fastapi uvicorn "psycopg[binary,pool]"
    pgonce migrate up                                      # installs the schema
    DATABASE_URL=postgresql:///shop uvicorn fastapi_orders:app

    curl -i localhost:8000/orders -H 'Idempotency-Key: 0190f5a2' -H 'Content-Type: application/json' \\
         -d '{"item": "book", "qty": 2}'
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel, Field

from pgonce import PermanentFailure, aio, webhooks
from pgonce.http import IdempotencyMiddleware, Policy

pool = AsyncConnectionPool(os.environ.get("DATABASE_URL", "postgresql:///shop"), open=False)
WEBHOOK_SECRETS = os.environ.get("WEBHOOK_SECRETS", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").split()

TABLES = """
create table if not exists orders (id bigint generated always as identity primary key, item text, qty integer);
create table if not exists payments (id text primary key, charge text not null);
"""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with pool:  # closed also where the service does not start: its tasks would keep the process
        async with pool.connection() as conn:
            await conn.execute(TABLES.encode())
        yield


app = FastAPI(lifespan=lifespan)


class Order(BaseModel):
    item: str
    qty: int = Field(ge=1)


# 1. The middleware: clients send an Idempotency-Key. The order, its event and the response commit
# together, and every retry gets the same response. In a real service name the principal: the account.
POLICIES = {"/orders": Policy("orders.create", principal=None)}
app.add_middleware(IdempotencyMiddleware, source=pool, policy=lambda scope: POLICIES.get(scope["path"]))


@app.post("/orders", status_code=201)
async def create_order(order: Order, request: Request) -> dict[str, int]:
    tx = request.scope["pgonce"].tx
    cursor = await tx.conn.execute(
        "insert into orders (item, qty) values (%s, %s) returning id", [order.item, order.qty]
    )
    (id,) = await cursor.fetchone()
    await tx.publish("orders", "order.created", {"id": id, "item": order.item}, subject=str(id))
    return {"id": id}


# 2. A lease: the payment provider is outside of our database. The claim is committed first and
# renewed while we call; the provider gets a key that is the same on every attempt.
@app.post("/orders/{order}/pay")
async def pay(order: int) -> dict[str, Any]:
    async def work(lease: aio.Lease) -> dict[str, Any]:
        charge = await call_provider(f"order-{order}", takeover=lease.kind == "takeover")
        return {"charge": charge}

    try:
        done = await aio.lease(pool, "orders.pay", f"order-{order}", {"order": order}, work, length=30)
    except PermanentFailure as refused:
        raise HTTPException(402, refused.failure_code) from None
    return {**done.answer, "replayed": done.replayed}


async def call_provider(key: str, takeover: bool) -> str:
    """Stands for a provider that knows our key. After a takeover ask it first what became of the call."""
    if key == "order-13":
        raise PermanentFailure("card_declined", "the bank said no")
    return f"charge-of-{key}"


# 3. A webhook: verified, and applied once however often it is delivered.
@app.post("/webhooks/payments")
async def payment_webhook(request: Request) -> dict[str, bool]:
    body = await request.body()
    try:
        message_id = webhooks.verify(WEBHOOK_SECRETS, request.headers, body)
    except webhooks.WebhookError as error:
        raise HTTPException(401, error.code) from None
    async with pool.connection() as conn:
        new = await aio.accept(conn, "payments", "provider", message_id, body)
        if new:
            await conn.execute("insert into payments (id, charge) values (%s, %s)", [message_id, body.decode()])
    return {"applied": new}
