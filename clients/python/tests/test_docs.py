"""The page of the book runs from top to bottom, and so does the README."""

from __future__ import annotations

import ast
import importlib
import io
import re
import subprocess
from typing import Any

import psycopg
import pytest
from conftest import Database
from server import REPOSITORY

import pgonce.aio


def blocks(path: str, language: str = "python") -> str:
    text = (REPOSITORY / path).read_text("utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.S | re.M)
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
    assert items == "book,pen,stamp,cup,ink,from a message,by http"


def test_every_name_of_the_pages_is_exported() -> None:
    pages = [REPOSITORY / "clients/python/README.md", *(REPOSITORY / "docs/src").rglob("*.md")]
    texts = [blocks(str(page)) for page in pages if "```python\n" in page.read_text("utf-8")]
    # What a page includes of them.
    texts = [re.sub(r"^{{.*}}$", "", text, flags=re.M) for text in texts]
    texts += [path.read_text("utf-8") for path in (REPOSITORY / "clients/python/examples").glob("*.py")]
    found = set()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pgonce"):
            found |= {(node.module, name.name) for name in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("pgonce", "aio"):
            found.add(("pgonce" if node.value.id == "pgonce" else "pgonce.aio", node.attr))
    assert ("pgonce", "BadKey") in found
    for module, name in found:
        exported = importlib.import_module(str(module))
        submodules = ("aio", "http", "keys", "retry", "webhooks")
        assert name in getattr(exported, "__all__", dir(exported)) or module == "pgonce" and name in submodules, name


def test_asynchronous_names_are_those_of_the_package() -> None:
    assert set(pgonce.aio.__all__) <= set(pgonce.__all__)
    assert len(set(pgonce.__all__)) == len(pgonce.__all__) and all(hasattr(pgonce, name) for name in pgonce.__all__)


def test_the_loops_of_the_page_run_in_psql_and_in_python(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    psql = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", db.dsn]
    ran = subprocess.run(psql, input=blocks("docs/src/how-to/loops.md", "sql"), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    balances = "select string_agg(account || ' ' || amount, ',' order by account) from balance"
    assert db.value(balances) == "ada 105"
    assert db.value("select answer::text from pgonce.intent") == '{"sent": true}'
    monkeypatch.setenv("DATABASE_URL", db.dsn)
    exec(compile(blocks("docs/src/how-to/loops.md"), "loops.md", "exec"), {"__name__": "page"})
    assert db.value(balances) == "ada 105,bob 207"
    failed = "select string_agg(message_id || ' ' || status || ' ' || failure_code, ',' order by seq) from pgonce.inbox_message"
    assert db.value(f"{failed} where failure_code is not null") == "py-0 failed_retryable JSONDecodeError,py-2 failed_retryable 23502"


def test_commands_of_one_statement_run_as_the_page_says(db: Database) -> None:
    orders = "create table orders (id bigint generated always as identity, item text, qty int)"
    page = blocks("docs/src/how-to/sql.md", "psql")
    with psycopg.connect(db.dsn, autocommit=True) as conn:
        conn.execute(orders)
        # psql knows \\bind from version 16 on: what it does is sent here.
        for statement, values in re.findall(r"(.*?)\\bind (.*?) \\g\n", page, re.S):
            assert "\\" not in values, "psql ends its arguments there"
            params = [value.encode() for value in values.split()]
            result = conn.pgconn.exec_params(statement.encode(), params)
            assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
        assert db.value("select item || qty from orders") == "book2"
        assert db.value("select answer::text from pgonce.intent where key = 'key-2'") == '{"id": 1}'
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(blocks("docs/src/how-to/sql.md"), "sql.md", "exec"), names)
        answers = [names["place_order"](conn, "key-3", b"one", "pen", 1) for _ in range(3)]
        assert answers == [{"id": 2}] * 3
        with pytest.raises(psycopg.DatabaseError) as raised:
            names["place_order"](conn, "key-3", b"another", "pen", 1)
        assert raised.value.sqlstate == "P4002"
    assert db.value("select count(*) from orders") == 2


def test_the_readme_runs(db: Database) -> None:
    db.admin.execute("create table orders (id bigint generated always as identity, item text, qty int)")
    names: dict[str, Any] = {"__name__": "readme"}
    text = blocks("clients/python/README.md").replace("postgresql:///shop", db.dsn)
    try:
        exec(compile(text, "README.md", "exec"), names)
        assert names["done"].answer == {"id": 1}
    finally:
        names["pool"].close()
