from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))
# The proxy reads the protocol: nothing may be negotiated before it.
os.environ["PGGSSENCMODE"] = "disable"

from proxy import Proxy  # noqa: E402
from server import Server  # noqa: E402


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    try:
        server.start()
        server.start_pooler()
        yield server
    finally:
        server.stop()


class Database:
    """A fresh database, its address, and the address that goes through the proxy."""

    def __init__(self, server: Server, name: str, proxy: Proxy) -> None:
        self.dsn = server.dsn(name)
        self.cut_dsn = server.dsn(name, proxy.port)
        self.proxy = proxy
        self._admin: psycopg.Connection | None = None

    @property
    def admin(self) -> psycopg.Connection:
        if self._admin is None:
            self._admin = psycopg.connect(self.dsn, autocommit=True)
            # Whatever the database's own level is: who only looks must not get in the way of a serializable transaction.
            self._admin.execute("set default_transaction_isolation = 'read committed'")
        return self._admin

    def value(self, query: str) -> object:
        row = self.admin.execute(query.encode()).fetchone()
        return None if row is None else row[0]

    def effects(self) -> int:
        count = self.value("select count(*) from effect")
        assert isinstance(count, int)
        return count

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
        self.proxy.close()


@pytest.fixture
def db(server: Server) -> Iterator[Database]:
    with fresh_database(server, pooled=False) as database:
        yield database


@pytest.fixture
def latin1(server: Server) -> Iterator[Database]:
    """A database that lacks most characters."""
    with fresh_database(server, pooled=False, encoding="LATIN1") as database:
        yield database


@contextmanager
def fresh_database(
    server: Server, *, pooled: bool, isolation: str | None = None, encoding: str | None = None
) -> Iterator[Database]:
    """A fresh database, whose transactions have the level `isolation`; where `pooled`, the proxy is in front of PgBouncer."""
    name = server.database(isolation, encoding)
    database = Database(server, name, Proxy(server.pooler_port if pooled else server.port))
    try:
        yield database
    finally:
        database.close()
        server.drop(name)
