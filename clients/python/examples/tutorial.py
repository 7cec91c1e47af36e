"""The service of the tutorial, docs/src/tutorial/python.md, which includes this file part by part."""

# ANCHOR: uses
from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from psycopg.errors import DuplicateObject
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

from pgonce import PermanentFailure, aio
from pgonce.http import IdempotencyMiddleware, Policy

pool = AsyncConnectionPool(os.environ["DATABASE_URL"], open=False)
# ANCHOR_END: uses


# ANCHOR: types
class PlaceOrder(BaseModel):
    """The request: what a client wants."""

    item: str
    qty: int


# ANCHOR_END: types


# ANCHOR: effect
async def insert_order(tx: aio.Tx, order: PlaceOrder) -> dict[str, int]:
    """The work itself, in an open transaction. What it returns is the answer, which every attempt gets."""
    if order.qty < 1:
        # Stored: every retry gets this failure.
        raise PermanentFailure("bad_quantity", "qty must be at least 1")
    insert = "insert into orders (item, qty) values (%s, %s) returning id"
    cursor = await tx.conn.execute(insert, [order.item, order.qty])
    (id,) = await cursor.fetchone()
    await tx.publish("orders", "order.created", order.model_dump(), subject=str(id))
    return {"id": id}


# ANCHOR_END: effect


# ANCHOR: command
@aio.once(pool, "orders.create")
async def place_order(tx: aio.Tx, key: str, order: PlaceOrder) -> dict[str, int]:
    """Places an order. However often it is called with this key: one order, and the same receipt."""
    return await insert_order(tx, order)  # order, event and answer commit together


# ANCHOR_END: command


# ANCHOR: http
app = FastAPI()
POLICIES = {"/orders": Policy("orders.create", principal=None)}  # principal: whose keys these are
app.add_middleware(IdempotencyMiddleware, source=pool, policy=lambda scope: POLICIES.get(scope["path"]))


@app.post("/orders", status_code=201)
async def create(order: PlaceOrder, request: Request) -> dict[str, Any]:
    return await insert_order(request.scope["pgonce"].tx, order)


# ANCHOR_END: http


# ANCHOR: consumer
async def take_from_stock() -> int:
    """Applies the next events, each of them once; answers how many there were."""
    async with pool.connection() as conn:
        claim = "select events, batch from pgonce.claim_events('stock', %s)"
        claimed = await (await conn.execute(claim, [f"shop-{os.getpid()}"])).fetchall()
    for events, batch in claimed:
        async with pool.connection() as conn:  # markers, effects and the cursor commit together
            for event in events:
                order = event["payload"]
                if await aio.accept(conn, "stock", "orders", event["message_id"], json.dumps(order, sort_keys=True)):
                    take = "update stock set qty = qty - %s where item = %s"
                    await conn.execute(take, [order["qty"], order["item"]])
            await conn.execute("select pgonce.settle_events('stock', %s)", [json.dumps(batch)])
    return sum(len(events) for events, _ in claimed)


async def keep_stock() -> None:
    while True:
        try:
            await take_from_stock()
        except Exception as error:  # the database is away, or another process has the lane: again
            print("the stock waits:", error)
        await asyncio.sleep(0.2)


# ANCHOR_END: consumer


# ANCHOR: main
async def main() -> None:
    async with pool:  # opened here, and closed however this ends
        try:
            async with pool.connection() as conn:
                await conn.execute("select pgonce.create_subscription('stock', 'start', p_topics => '{orders}')")
        except DuplicateObject:
            pass  # it exists already
        consumer = asyncio.create_task(keep_stock())
        await uvicorn.Server(uvicorn.Config(app, port=int(os.environ.get("PORT", "8080")))).serve()
        consumer.cancel()


if __name__ == "__main__":
    asyncio.run(main())
# ANCHOR_END: main
