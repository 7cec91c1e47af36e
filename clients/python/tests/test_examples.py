"""The examples do what they say."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest
from conftest import Database
from server import REPOSITORY

from pgonce import webhooks


@pytest.fixture
def example(db: Database, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DATABASE_URL", db.dsn)
    monkeypatch.syspath_prepend(str(REPOSITORY / "clients/python/examples"))

    def load(name: str) -> Any:
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return load


def test_fastapi_orders_are_created_once(db: Database, example: Any) -> None:
    from starlette.testclient import TestClient

    module = example("fastapi_orders")
    with TestClient(module.app) as client:
        order, key = {"item": "book", "qty": 2}, {"Idempotency-Key": "k"}
        first, again = (client.post("/orders", json=order, headers=key) for _ in range(2))
        assert first.status_code == again.status_code == 201
        assert first.json() == again.json() == {"id": 1}
        assert again.headers["idempotent-replayed"] == "true"
        assert client.post("/orders", json={**order, "qty": 3}, headers=key).status_code == 422
        assert client.post("/orders", json=order).status_code == 400
        # What FastAPI refuses before the handler runs does not burn the key.
        other = {"Idempotency-Key": "other"}
        assert client.post("/orders", json={"item": "book", "qty": 0}, headers=other).status_code == 422
        assert client.post("/orders", json=order, headers=other).status_code == 201

        paid = [client.post("/orders/1/pay").json() for _ in range(2)]
        assert [answer["replayed"] for answer in paid] == [False, True]
        assert [client.post("/orders/13/pay").status_code for _ in range(2)] == [402, 402]

        body, now = b'{"charge": 7}', int(time.time())
        signature = webhooks.sign(module.WEBHOOK_SECRETS[0], "m1", now, body)
        headers = {"webhook-id": "m1", "webhook-timestamp": str(now), "webhook-signature": signature}
        hooks = [client.post("/webhooks/payments", content=body, headers=headers).json() for _ in range(2)]
        assert hooks == [{"applied": True}, {"applied": False}]
        headers["webhook-signature"] = "v1,AAAA"
        assert client.post("/webhooks/payments", content=body, headers=headers).status_code == 401
    assert db.value("select count(*) from orders") == 2
    assert db.value("select count(*) from pgonce.outbox") == 2
    assert db.value("select count(*) from payments") == 1


def test_a_fastapi_service_that_cannot_start_ends(db: Database) -> None:
    # Its table cannot be created.
    db.admin.execute("alter database " + str(db.value("select current_database()")) + " set default_transaction_read_only = on")
    env = {**os.environ, "DATABASE_URL": db.dsn, "PYTHONPATH": str(REPOSITORY / "clients/python/src")}
    start = [sys.executable, "-m", "uvicorn", "fastapi_orders:app", "--port", "0"]
    ended = subprocess.run(start, env=env, cwd=REPOSITORY / "clients/python/examples", capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0 and "read-only transaction" in ended.stderr, ended.stderr


def test_the_service_of_the_tutorial_creates_orders_and_takes_them_from_the_stock_once(
    db: Database, example: Any
) -> None:
    db.admin.execute((REPOSITORY / "examples/tutorial/schema.sql").read_bytes())
    order, stock = {"item": "book", "qty": 2}, "select qty from stock where item = 'book'"
    script = REPOSITORY / "clients/python/examples/tutorial.py"
    env = {**os.environ, "PORT": "0", "PYTHONPATH": str(REPOSITORY / "clients/python/src")}
    with subprocess.Popen([sys.executable, script], env=env, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            found = (re.search(r"running on (http://\S+)", line) for line in service.stderr)
            address = next(match[1] for match in found if match)

            def post(order: dict[str, Any], *key: str) -> httpx.Response:
                headers = {"Idempotency-Key": key[0]} if key else {}
                return httpx.post(f"{address}/orders", json=order, headers=headers, timeout=60)

            first, again = post(order, "order-1"), post(order, "order-1")
            assert (first.status_code, first.json()) == (again.status_code, again.json()) == (201, {"id": 1})
            assert again.headers["idempotent-replayed"] == "true"
            assert (post({**order, "qty": 3}, "order-1").status_code, post(order).status_code) == (422, 400)
            for replayed in (False, True):
                refused = post({**order, "qty": 0}, "order-2")
                assert refused.status_code == 422 and "bad_quantity" in refused.text
                assert ("idempotent-replayed" in refused.headers) == replayed
            give_up = time.monotonic() + 60
            while db.value(stock) != 98 and time.monotonic() < give_up:
                time.sleep(0.02)
        finally:
            service.kill()
    assert (db.value(stock), db.value("select count(*) from orders")) == (98, 1)

    async def replay(module: Any) -> list[int]:
        async with module.pool:
            command = module.PlaceOrder(**order)
            placed = [await module.place_order("call", command) for _ in range(2)]
            assert [done.replayed for done in placed] == [False, True]
            return [await module.take_from_stock() for _ in range(2)]

    # Every event comes again, and is recognised by its marker; that of the call is new.
    db.admin.execute("select pgonce.replay('stock')")
    db.admin.execute("select pgonce.release_events('stock', %s)", [f"shop-{service.pid}"])
    assert sum(asyncio.run(replay(example("tutorial")))) == 2
    assert db.value(stock) == 96


def test_django_orders_are_created_once(db: Database, example: Any) -> None:
    module = example("django_orders")
    from django.db import connection
    from django.test import Client

    with connection.schema_editor() as editor:
        editor.create_model(module.Order)
    client = Client()

    def post(order: dict[str, Any], key: str) -> Any:
        return client.post("/orders", json.dumps(order), content_type="application/json", HTTP_IDEMPOTENCY_KEY=key)

    order = {"item": "book", "qty": 2}
    first, again = post(order, "k"), post(order, "k")
    assert (first.status_code, first.json()) == (again.status_code, again.json()) == (201, {"id": 1})
    assert (first["Idempotent-Replayed"], again["Idempotent-Replayed"]) == ("false", "true")
    assert post({**order, "qty": 3}, "k").status_code == 422
    assert post({**order, "qty": 0}, "v").status_code == 400
    assert post(order, "").status_code == 400
    assert db.value("select count(*) from django_order") == 1
    assert db.value("select count(*) from pgonce.outbox") == 1
    connection.close()
