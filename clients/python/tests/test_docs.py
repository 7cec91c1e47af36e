"""The page of the book runs from top to bottom, and so does the README."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from conftest import Database
from server import REPOSITORY


def blocks(path: str) -> str:
    text = (REPOSITORY / path).read_text("utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    assert found
    return "\n".join(found)


def test_every_block_of_the_page_runs(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", db.dsn)
    names: dict[str, Any] = {"__name__": "page"}
    try:
        exec(compile(blocks("docs/src/how-to/python.md"), "python.md", "exec"), names)
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/orders",
            "HTTP_IDEMPOTENCY_KEY": "k",
            "CONTENT_LENGTH": "0",
            "wsgi.input": io.BytesIO(),
        }
        sent: list[str] = []
        for _ in range(2):
            assert names["app"](dict(environ), lambda status, headers: sent.append(status)) == [b"created"]
        assert sent == ["201 Created"] * 2
    finally:
        names["pool"].close()
    items = db.value("select string_agg(item, ',' order by id) from orders")
    assert items == "book,pen,cup,ink,from a message,by http"


def test_the_readme_runs(db: Database) -> None:
    db.admin.execute("create table orders (id bigint generated always as identity, item text, qty int)")
    names: dict[str, Any] = {"__name__": "readme"}
    text = blocks("clients/python/README.md").replace("postgresql:///shop", db.dsn)
    try:
        exec(compile(text, "README.md", "exec"), names)
        assert names["done"].answer == {"id": 1}
    finally:
        names["pool"].close()
