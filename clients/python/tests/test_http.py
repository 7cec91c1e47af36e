"""The HTTP middleware, over ASGI and WSGI alike."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg_pool
import pytest
from conftest import Database
from proxy import Fault
from server import REPOSITORY
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import FileResponse, StreamingResponse

import pgonce
from pgonce._drivers import Driver
from pgonce._intent import Options
from pgonce._protocol import Contract
from pgonce._steps import drive
from pgonce.http import IdempotencyMiddleware, Policy, Request, Response, WsgiIdempotencyMiddleware, _edge
from pgonce.http._edge import Refused, disposition_of, exact_json, read_key, read_token, stored_key, token_of
from pgonce.http._exchange import Retentions

INSERT = "insert into effect (note) values ('x')"


class Service:
    """One handler for both worlds: what it does is in the request."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.calls = 0

    def respond(self, path: str, attempt: Any, body: bytes) -> Response | None:
        """What does not need the database."""
        self.calls += 1
        if path == "/invalid":
            return Response(400, [("content-type", b"text/plain")], b"qty must be at least 1")
        if path == "/crash":
            raise RuntimeError("the handler's own")
        if path == "/forget":
            attempt.disposition = "forget"
            return Response(200, [], b"forgotten")
        if path == "/large":
            return Response(200, [], b"x" * 200)
        if path == "/unavailable":
            return Response(503, [], b"from a proxy")
        if path == "/said":
            return Response(200, [("pgonce-disposition", b"Refuse"), ("pgonce-keep-for", b"3600")], b"said")
        return None

    def answer(self, path: str, body: bytes) -> Response:
        """What comes after the write."""
        if path == "/refuse":
            return Response(409 if body == b"busy" else 404, [], b"no such item")
        if path == "/error":
            return Response(500, [], b"broken")
        if path == "/declined":
            raise pgonce.PermanentFailure("card_declined", "the bank said no")
        headers = [("content-type", b"application/octet-stream"), ("set-cookie", b"a=b"), ("location", b"/orders/1")]
        return Response(201, headers, b"\x00\xff" + str(self.calls).encode())

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        attempt = scope.get("pgonce")
        response = self.respond(scope["path"], attempt, body)
        if response is None:
            if attempt is not None and attempt._tx is not None:
                await attempt.tx.conn.execute(INSERT)
                if scope["path"] == "/again" and self.calls == 1:
                    await attempt.tx.conn.execute("do $$ begin raise exception 'x' using errcode = '40001'; end $$")
            else:
                self.db.admin.execute(INSERT)
            response = self.answer(scope["path"], body)
        headers = [(name.encode(), value) for name, value in response.headers]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def wsgi(self, environ: Any, start_response: Any) -> Any:
        body = environ["wsgi.input"].read()
        attempt, path = environ.get("pgonce"), environ["PATH_INFO"]
        response = self.respond(path, attempt, body)
        if response is None:
            if attempt is not None and attempt._tx is not None:
                attempt.tx.conn.execute(INSERT)
                if path == "/again" and self.calls == 1:
                    attempt.tx.conn.execute("do $$ begin raise exception 'x' using errcode = '40001'; end $$")
            else:
                self.db.admin.execute(INSERT)
            response = self.answer(path, body)
        headers = [(name, value.decode("latin-1")) for name, value in response.headers]
        start_response(f"{response.status} Said", headers)
        return [response.body]


class Client:
    """Sends requests through the middleware of one world."""

    def __init__(self, world: str, db: Database, service: Service, policy: Any, dsn: str) -> None:
        self.world = world
        self.db = db
        self.service = service
        self.policy = policy
        self.dsn = dsn
        self.source: Any = None

    def post(
        self, path: str, body: bytes = b"{}", key: str | None = "k", *, method: str = "POST", **headers: str
    ) -> Response:
        sent = {"content-type": "application/json", **{name.replace("_", "-"): v for name, v in headers.items()}}
        if key is not None:
            sent["idempotency-key"] = key
        found = self._asgi(method, path, body, sent) if self.world == "asgi" else self._wsgi(method, path, body, sent)
        assert found.status != 0
        return found

    def _asgi(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Response:
        response = Response(0)

        async def main() -> None:
            async with psycopg_pool.AsyncConnectionPool(self.dsn, min_size=1, max_size=4) as pool:
                app = IdempotencyMiddleware(self.service.asgi, self.source or pool, self.policy)

                async def receive() -> Any:
                    return {"type": "http.request", "body": body}

                async def send(message: Any) -> None:
                    if message["type"] == "http.response.start":
                        response.status = message["status"]
                        response.headers = [(name.decode(), value) for name, value in message["headers"]]
                    else:
                        response.body += message["body"]

                pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
                scope = {"type": "http", "method": method, "path": path, "headers": pairs, "query_string": b""}
                await app(scope, receive, send)
                await app.drained()

        asyncio.run(main())
        return response

    def _wsgi(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Response:
        response = Response(0)

        def start(status: str, found: list[tuple[str, str]], exc_info: Any = None) -> None:
            response.status = int(status[:3])
            response.headers = [(name, value.encode("latin-1")) for name, value in found]

        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
        }
        for name, value in headers.items():
            upper = name.replace("-", "_").upper()
            environ[upper if upper == "CONTENT_TYPE" else f"HTTP_{upper}"] = value
        with psycopg_pool.ConnectionPool(self.dsn, min_size=1, max_size=4) as pool:
            app = WsgiIdempotencyMiddleware(self.service.wsgi, self.source or pool, self.policy)
            response.body = b"".join(app(environ, start))
        return response


class Slow(io.BytesIO):
    """A body that comes in parts, and may break off."""

    breaks = False

    def read(self, size: int | None = -1) -> bytes:
        part = super().read(min(3, size) if size and size > 0 else 3)
        if not part and self.breaks:
            raise OSError("the client is gone")
        return part


def read_wsgi(client: Client, environ: dict[str, Any]) -> Response:
    """The response to a request of WSGI whose body is not as usual."""
    found: list[str] = []

    def start(status: str, headers: Any, exc_info: Any = None) -> None:
        found[:] = [status, dict(headers)["content-type"]]

    with psycopg_pool.ConnectionPool(client.dsn, min_size=1, max_size=4) as pool:
        app = WsgiIdempotencyMiddleware(client.service.wsgi, pool, client.policy)
        usual = {"REQUEST_METHOD": "POST", "PATH_INFO": "/orders", "HTTP_IDEMPOTENCY_KEY": "k"}
        body = b"".join(app({**usual, **environ}, start))
    return Response(int(found[0][:3]), [("content-type", found[1].encode())], body)


@pytest.mark.parametrize(
    "environ",
    [
        {"CONTENT_LENGTH": "16"},
        {"CONTENT_LENGTH": "16", "breaks": True},
        {"wsgi.input_terminated": True, "breaks": True},
        {"CONTENT_LENGTH": "-1"},
        {"CONTENT_LENGTH": "\u00b2"},
        {"HTTP_TRANSFER_ENCODING": "chunked"},
    ],
)
def test_a_body_that_broke_off_is_no_request(db: Database, environ: dict[str, Any]) -> None:
    client = Client("wsgi", db, Service(db), Policy("orders.create", None), db.dsn)
    environ = dict(environ)
    stream = Slow(b'{"qty":1')
    stream.breaks = environ.pop("breaks", False)
    response = read_wsgi(client, {**environ, "wsgi.input": stream})
    assert (response.status, problem_of(response)["code"]) == (400, "body_unreadable")
    assert (client.service.calls, db.value("select count(*) from pgonce.intent")) == (0, 0)


@pytest.mark.parametrize("environ", [{"CONTENT_LENGTH": "0009"}, {"wsgi.input_terminated": True}])
def test_a_body_that_comes_in_parts_is_read_to_its_end(db: Database, environ: dict[str, Any]) -> None:
    client = Client("wsgi", db, Service(db), Policy("orders.create", None), db.dsn)
    bodies: list[bytes] = []
    client.service.respond = lambda path, attempt, body: bodies.append(body)  # type: ignore[method-assign]
    assert read_wsgi(client, {**environ, "wsgi.input": Slow(b'{"qty":1}')}).status == 201
    assert bodies == [b'{"qty":1}']


def test_a_length_of_thousands_of_digits_is_too_large(db: Database) -> None:
    client = Client("wsgi", db, Service(db), Policy("orders.create", None), db.dsn)
    response = read_wsgi(client, {"CONTENT_LENGTH": "9" * 5000, "wsgi.input": Slow(b"")})
    assert problem_of(response)["code"] == "body_too_large"


@pytest.fixture(params=["asgi", "wsgi"])
def world(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def client(world: str, db: Database) -> Client:
    return Client(world, db, Service(db), Policy("orders.create", None), db.cut_dsn)


def headers_of(response: Response) -> dict[str, bytes]:
    return dict(response.headers)


def problem_of(response: Response) -> dict[str, Any]:
    assert headers_of(response)["content-type"] == b"application/problem+json"
    document: dict[str, Any] = json.loads(response.body)
    assert document["status"] == response.status and document["type"].endswith(document["code"].lower())
    return document


def test_a_retry_gets_the_same_status_headers_and_bytes(client: Client) -> None:
    first, again = client.post("/orders"), client.post("/orders", key='"k"')
    assert (first.status, first.body) == (again.status, again.body) == (201, b"\x00\xff1")
    assert "idempotent-replayed" not in headers_of(first)
    kept = headers_of(again)
    assert kept["idempotent-replayed"] == b"true" and kept["location"] == b"/orders/1"
    assert kept["content-type"] == b"application/octet-stream"
    assert "set-cookie" in headers_of(first) and "set-cookie" not in kept
    assert kept["idempotency-expires"] == headers_of(first)["idempotency-expires"]
    assert client.db.effects() == 1


def test_another_request_with_the_key_is_422_and_another_spelling_a_replay(client: Client) -> None:
    client.post("/orders", b'{"a": 1, "b": [1.0]}')
    assert "idempotent-replayed" in headers_of(client.post("/orders", b'{"b":[1],"a":1}'))
    assert problem_of(client.post("/orders", b'{"a": 2}'))["code"] == "P4002"
    assert client.post("/orders", b'{"a": 2}').status == 422
    assert client.db.effects() == 1


def test_a_missing_or_bad_key_is_400_and_nothing_happens(client: Client) -> None:
    assert problem_of(client.post("/orders", key=None))["code"] == "P4001"
    assert problem_of(client.post("/orders", key="a,b"))["code"] == "22023"
    assert client.service.calls == 0 and client.db.effects() == 0


def test_other_methods_pass(client: Client) -> None:
    assert client.post("/orders", key=None, method="PUT").status == 201
    assert client.db.value("select count(*) from pgonce.intent") == 0


def test_validation_does_not_burn_the_key(client: Client) -> None:
    assert client.post("/invalid", b'{"qty": 0}').status == 400
    assert client.db.value("select count(*) from pgonce.intent") == 0
    assert client.post("/invalid", b'{"qty": 1}').status == 400
    assert client.service.calls == 2


def test_a_refusal_is_kept_and_its_write_undone(client: Client) -> None:
    first, again = client.post("/refuse"), client.post("/refuse")
    assert (first.status, first.body) == (again.status, again.body) == (404, b"no such item")
    assert "idempotent-replayed" in headers_of(again)
    assert client.service.calls == 1 and client.db.effects() == 0


def test_a_transient_status_is_not_kept(client: Client) -> None:
    assert client.post("/refuse", b"busy").status == 409
    assert client.post("/refuse", b"busy").status == 409
    assert client.post("/error").status == 500
    assert client.service.calls == 3 and client.db.effects() == 0


def test_a_handler_that_raises_is_500_and_leaves_nothing(client: Client) -> None:
    assert problem_of(client.post("/crash"))["code"] == "handler_failed"
    assert client.db.value("select count(*) from pgonce.intent") == 0


def test_a_permanent_failure_of_the_handler_is_the_same_every_time(client: Client) -> None:
    for replayed in (False, True):
        response = client.post("/declined")
        assert (response.status, problem_of(response)["reason"]) == (422, "card_declined")
        assert ("idempotent-replayed" in headers_of(response)) is replayed
    assert client.service.calls == 1 and client.db.effects() == 0


def test_a_conflict_that_the_handler_met_has_its_own_code(client: Client) -> None:
    def met(path: str, attempt: Any, body: bytes) -> Response:
        raise pgonce.Conflict("the message was another one", code="P4050")

    client.service.respond = met  # type: ignore[method-assign]
    problem = problem_of(client.post("/orders"))
    assert (problem["status"], problem["code"], problem["title"]) == (422, "P4050", "Unprocessable Entity")


def test_a_handler_overrules_the_policy_for_one_response(client: Client) -> None:
    assert client.post("/forget").body == b"forgotten"
    assert client.db.value("select count(*) from pgonce.intent") == 0


def test_a_serialization_failure_runs_the_handler_again(client: Client) -> None:
    assert client.post("/again").status == 201
    assert client.service.calls == 2 and client.db.effects() == 1


def test_a_lost_commit_reply_is_answered_with_what_happened(client: Client) -> None:
    # The first commit is that of the look-up of the contract, the second carries the effect.
    client.db.proxy.faults.append(Fault("commit", "reply", skip=1))
    assert client.post("/orders").status == 201
    assert client.db.proxy.struck
    assert client.service.calls == 1 and client.db.effects() == 1


def test_a_duplicate_in_progress_is_409_with_retry_after(client: Client) -> None:
    client.post("/orders", key="first")
    stored, print_ = client.db.admin.execute("select key, fingerprint from pgonce.intent").fetchone() or ("", b"")
    second = stored_key("second", "POST /orders", None)
    with client.db.admin.transaction():
        client.db.admin.execute("select pgonce.claim('orders.create', %s, %s)", [second, print_])
        response = client.post("/orders", key="second")
    assert stored == stored_key("first", "POST /orders", None)
    assert (response.status, problem_of(response)["code"]) == (409, "P4029")
    assert headers_of(response)["retry-after"] == b"1"


@pytest.mark.parametrize("mode", ["atomic", "leased"])
def test_a_refusal_of_which_only_the_status_is_kept_is_replayed_as_a_refusal(client: Client, mode: str) -> None:
    client.policy = Policy("orders.create", None, mode=mode)
    client.post("/orders", key="first")
    print_ = client.db.value("select fingerprint from pgonce.intent")
    # As the Rust layer records a response that is too large.
    answer = {"http": 1, "status": 404, "unkept": True}
    values = ["orders.create", stored_key("second", "POST /orders", None), print_]
    fail = "select pgonce.fail(%s, %s, %s, 1, false, 'http_404', 'the handler refused', %s)"
    client.db.admin.execute(fail, [*values, json.dumps(answer)])
    again = client.post("/orders", key="second")
    problem = problem_of(again)
    assert (again.status, problem["code"], problem["reason"]) == (422, "P4030", "http_404")
    assert (problem["original_status"], headers_of(again)["idempotent-replayed"]) == (404, b"true")
    assert client.service.calls == 1


def test_a_limit_of_keys_and_another_region_are_said(client: Client) -> None:
    client.db.admin.execute("select pgonce.define_scope('orders.create', interval '1 day', p_max_keys => 1)")
    assert client.post("/orders", key="first").status == 201
    response = client.post("/orders", key="second")
    assert (response.status, problem_of(response)["code"]) == (429, "P4044")
    client.db.admin.execute(
        "create function elsewhere() returns trigger language plpgsql as "
        "$$ begin raise exception 'its home is another region' using errcode = 'P4110'; end $$"
    )
    client.db.admin.execute("create trigger elsewhere before insert on pgonce.intent execute function elsewhere()")
    client.db.admin.execute("select pgonce.define_scope('orders.create', interval '1 day')")
    response = client.post("/orders", key="third")
    assert (response.status, problem_of(response)["code"]) == (421, "P4110")
    assert client.db.effects() == 1


def test_a_contract_that_accepts_is_202_and_a_status_url_until_there_is_a_response(client: Client) -> None:
    client.db.admin.execute("select pgonce.define_scope('orders.create', interval '1 day', p_busy => 'accept')")
    client.policy = Policy("orders.create", lambda r: r.header("x-user"), status_at="/orders/status/")

    def ask(url: str, user: str = "ada") -> Response:
        return client.post(url, b"", None, method="GET", x_user=user)

    client.post("/orders", key="first", x_user="ada")
    print_ = client.db.value("select fingerprint from pgonce.intent")
    second = stored_key("second", "POST /orders", "ada")
    with client.db.admin.transaction(force_rollback=True):
        client.db.admin.execute("select pgonce.claim('orders.create', %s, %s)", [second, print_])
        response = client.post("/orders", key="second", x_user="ada")
        assert (response.status, response.body) == (202, b'{"status":"processing"}')
        assert headers_of(response)["retry-after"] == b"1"
        url = headers_of(response)["location"].decode()
        assert url.startswith("/orders/status/")
        asked = ask(url)
        assert (asked.status, asked.body) == (202, b'{"status":"processing"}')
        assert "location" not in headers_of(asked)
    assert client.service.calls == 1
    assert (ask(url).status, problem_of(ask(url))["code"]) == (404, "not_under_way")
    made, asked = client.post("/orders", key="second", x_user="ada"), ask(url)
    assert (made.status, made.body) == (asked.status, asked.body) == (201, b"\x00\xff2")
    assert headers_of(asked)["idempotent-replayed"] == b"true"
    assert ask(url, "bob").status == ask("/orders/status/nonsense").status == 404
    assert ask(url, "").status == 401
    assert client.service.calls == client.db.effects() == 2


def test_where_no_status_url_is_named_a_contract_that_accepts_is_409(client: Client) -> None:
    client.db.admin.execute("select pgonce.define_scope('orders.create', interval '1 day', p_busy => 'accept')")
    client.post("/orders", key="first")
    print_ = client.db.value("select fingerprint from pgonce.intent")
    with client.db.admin.transaction(force_rollback=True):
        second = stored_key("second", "POST /orders", None)
        client.db.admin.execute("select pgonce.claim('orders.create', %s, %s)", [second, print_])
        assert problem_of(client.post("/orders", key="second"))["code"] == "P4029"


def test_a_key_that_names_an_attempt_is_refused_where_the_policy_says_so(client: Client) -> None:
    assert client.post("/orders", key="order-7-retry-3").status == 201
    client.policy = Policy("orders.create", None, lint_keys=True)
    refused = problem_of(client.post("/orders", key="order-7-retry-4"))
    assert (refused["code"], client.service.calls) == ("22023", 1)
    assert "counts attempts" in refused["detail"] and "retry-4" not in refused["detail"]


def test_a_handler_says_in_headers_what_becomes_of_its_response(client: Client) -> None:
    for mode in ("atomic", "leased"):
        client.policy = Policy("orders.create", None, mode=mode)
        for _ in range(2):
            response = client.post("/said", key=mode)
            assert (response.status, response.body) == (200, b"said")
            assert not any(name.startswith("pgonce-") for name, _ in response.headers)
    kept = "select count(*) from pgonce.intent where status = 'failed_final' and expires_at < now() + interval '2 hours'"
    assert (client.service.calls, client.db.value(kept)) == (2, 2)


def test_large_bodies_and_responses_are_refused(client: Client) -> None:
    client.policy = Policy("orders.create", None, max_body=10, max_response=100)
    problem = problem_of(client.post("/orders", b"x" * 11))
    assert (problem["code"], problem["title"]) == ("body_too_large", "Payload Too Large")
    assert problem_of(client.post("/large"))["code"] == "response_too_large"
    assert client.db.value("select count(*) from pgonce.intent") == 0


def test_principals_and_tenants_never_meet(client: Client) -> None:
    client.policy = Policy(
        "orders.create", lambda r: r.header("x-user"), tenant=lambda r: r.header("x-tenant") or ""
    )
    assert problem_of(client.post("/orders"))["code"] == "principal_missing"
    for user, tenant in (("ada", ""), ("bob", ""), ("ada", "acme")):
        response = client.post("/orders", x_user=user, x_tenant=tenant)
        assert "idempotent-replayed" not in headers_of(response)
    assert "idempotent-replayed" in headers_of(client.post("/orders", x_user="bob"))
    assert client.db.effects() == 3


def fails(request: Request) -> Any:
    raise ZeroDivisionError("of the policy")


@pytest.mark.parametrize("function", ["principal", "tenant", "outcomes", "reauthorise"])
def test_a_function_of_the_policy_that_raises_is_500_and_logged(
    client: Client, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    functions: dict[str, Any] = {"principal": None, function: fails}
    for mode in ("atomic", "leased"):
        client.policy = Policy("orders.create", mode=mode, status_at="/status", **functions)
        responses = [client.post("/declined" if function == "reauthorise" else "/refuse", key=mode) for _ in range(2)]
        # The claim of a leased route whose end is not known stays.
        busy = mode == "leased" and function == "outcomes"
        codes = [problem_of(response)["code"] for response in responses]
        first = "P4030" if function == "reauthorise" else "internal"
        assert codes == [first, "P4029" if busy else "internal"]
        assert responses[0].status == (422 if function == "reauthorise" else 500)
    assert "ZeroDivisionError: of the policy" in caplog.text
    if function == "principal":
        url = f"/status/{token_of('k', 'POST /orders', bytes(32))}"
        assert problem_of(client.post(url, key=None, method="GET"))["code"] == "internal"
    # Of the leased handler, where it was called.
    assert client.db.effects() == (1 if function in ("outcomes", "reauthorise") else 0)


@pytest.mark.parametrize("mode", ["atomic", "leased"])
@pytest.mark.parametrize("by", ["handler", "policy"])
def test_a_disposition_that_there_is_not_is_500_and_not_the_response_of_the_handler(
    client: Client, mode: str, by: str
) -> None:
    outcomes: Any = (lambda response: None) if by == "policy" else None
    client.policy = Policy("orders.create", None, mode=mode, outcomes=outcomes)

    def misspelt(path: str, attempt: Any, body: bytes) -> None:
        attempt.disposition = "kept" if by == "handler" else None

    client.service.respond = misspelt  # type: ignore[method-assign]
    response = client.post("/orders")
    assert (response.status, problem_of(response)["code"]) == (500, "internal")
    statuses = client.db.value("select string_agg(status::text, ',') from pgonce.intent")
    # What a leased route has done outside it cannot undo.
    assert (statuses, client.db.effects()) == ((None, 0) if mode == "atomic" else ("processing", 1))


def test_a_response_without_a_body_has_no_length(client: Client) -> None:
    client.service.respond = lambda path, attempt, body: Response(204)  # type: ignore[method-assign]
    for response in (client.post("/orders"), client.post("/orders")):
        assert (response.status, response.body) == (204, b"")
        assert "content-length" not in headers_of(response)
    client.policy = Policy("orders.create", None, reauthorise=lambda request: Response(304))
    assert "content-length" not in headers_of(client.post("/orders"))


def test_a_replay_is_reauthorised(client: Client) -> None:
    client.policy = Policy("orders.create", None, reauthorise=lambda request: Response(403))
    assert client.post("/orders").status == 201
    assert client.post("/orders").status == 403


def test_without_its_database_a_route_is_503_and_the_handler_does_not_run(client: Client) -> None:
    # A pool would wait for its connections; a function that connects fails at once.
    client.source = refuse
    response = client.post("/orders")
    assert (response.status, problem_of(response)["code"]) == (503, "08006")
    assert headers_of(response)["retry-after"] in (b"1", b"2", b"3") and client.service.calls == 0


def refuse() -> Any:
    raise ConnectionRefusedError("no server")


def test_a_leased_route_keeps_the_first_result(client: Client) -> None:
    client.policy = Policy("orders.pay", None, mode="leased")
    first, again = client.post("/orders"), client.post("/orders")
    assert first.body == again.body and client.db.effects() == 1
    assert client.post("/error", key="e").status == client.post("/error", key="e").status == 500
    assert client.post("/crash", key="c").status == client.post("/crash", key="c").status == 500
    assert client.post("/forget", key="f").status == client.post("/forget", key="f").status == 200
    assert client.service.calls == 5


def test_a_leased_route_frees_the_key_of_a_wrong_request_and_holds_that_of_an_unknown_end(client: Client) -> None:
    client.policy = Policy("orders.pay", None, mode="leased")
    assert client.post("/invalid", b'{"qty": 0}', key="i").status == 400
    assert client.db.value("select count(*) from pgonce.intent") == 0
    assert client.post("/invalid", b'{"qty": 1}', key="i").status == 400
    assert client.post("/unavailable", key="u").status == 503
    assert problem_of(client.post("/unavailable", key="u"))["code"] == "P4029"
    client.db.admin.execute("select pgonce._move_clock(interval '1 day')")
    assert problem_of(client.post("/unavailable", key="u"))["reason"] == "abandoned"
    assert client.service.calls == 3


def test_abandoned_work_of_a_leased_route_is_refused(client: Client) -> None:
    client.policy = Policy("orders.pay", None, mode="leased")
    client.post("/orders", key="first")
    print_ = client.db.value("select fingerprint from pgonce.intent")
    key = stored_key("second", "POST /orders", None)
    client.db.admin.execute("select pgonce.claim('orders.pay', %s, %s, interval '1 minute')", [key, print_])
    client.db.admin.execute("select pgonce._move_clock(interval '2 minutes')")
    for _ in range(2):
        response = client.post("/orders", key="second")
        assert (response.status, problem_of(response)["reason"]) == (422, "abandoned")
    assert client.db.effects() == 1


def test_a_client_that_disconnects_does_not_cancel_the_effect(db: Database) -> None:
    async def main() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def handler(scope: Any, receive: Any, send: Any) -> None:
            await scope["pgonce"].tx.conn.execute(INSERT)
            inside.set()
            await go_on.wait()
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            raise AssertionError("the client is gone")

        async with psycopg_pool.AsyncConnectionPool(db.dsn, min_size=1) as pool:
            app = IdempotencyMiddleware(handler, pool, Policy("orders.create", None))
            headers = [(b"idempotency-key", b"k")]
            scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
            request = asyncio.create_task(app(scope, receive, send))
            await inside.wait()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            go_on.set()
            await app.drained()

    asyncio.run(main())
    assert db.effects() == 1
    assert db.value("select status::text from pgonce.intent") == "succeeded"


def test_a_file_that_a_server_would_send_by_itself_is_recorded(db: Database, tmp_path: Path) -> None:
    (tmp_path / "invoice").write_bytes(b"the invoice")
    extensions = {"http.response.pathsend": {}, "tls": {"cipher_suite": 1}}
    offered: list[Any] = []
    bodies: list[bytes] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        offered.append(scope["extensions"])
        await FileResponse(tmp_path / "invoice")(scope, receive, send)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        assert message["type"] in ("http.response.start", "http.response.body")
        bodies.append(message.get("body", b""))

    async def main() -> None:
        async with psycopg_pool.AsyncConnectionPool(db.dsn, min_size=1) as pool:
            app = IdempotencyMiddleware(handler, pool, Policy("orders.create", None))
            scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}
            for _ in range(2):
                await app({**scope, "extensions": extensions}, receive, send)

    asyncio.run(main())
    assert bodies == [b"", b"the invoice"] * 2
    assert offered == [{"tls": {"cipher_suite": 1}}]


# --- responses without an end -------------------------------------------------------------------

STREAM = "text/event-stream; charset=utf-8"
MIXED = "Multipart/x-mixed-replace;boundary=b"
BYTES = "application/octet-stream"


class Streams:
    """A service whose response has no end, unless it is said how many parts it has."""

    def __init__(self, kind: str, how: str, parts: int | None = None) -> None:
        self.kind = kind
        self.how = how
        self.parts = parts
        self.sent = 0
        self.ended = False

    def __iter__(self) -> Any:
        while self.parts is None or self.sent < self.parts:
            self.sent += 1
            yield b"data: 1\n\n"

    async def stream(self) -> Any:
        for part in self:
            yield part
            await asyncio.sleep(0)

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        await scope["pgonce"].tx.conn.execute(INSERT)
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", self.kind.encode())]}
        if self.how == "starlette":
            await StreamingResponse(self.stream(), headers={"content-type": self.kind})(scope, receive, send)
        elif self.how == "until it is disconnected":
            # It takes no notice of what `send` raises.
            await receive()
            gone = asyncio.ensure_future(receive())
            for message in [start, *[{"type": "http.response.body", "body": b"x", "more_body": True}] * 200]:
                with suppress(OSError):
                    await send(message)
            assert (await gone)["type"] == "http.disconnect"
        else:
            await send(start)
            async for part in self.stream():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body"})
        self.ended = True

    def wsgi(self, environ: Any, start_response: Any) -> Any:
        environ["pgonce"].tx.conn.execute(INSERT)
        head = ("200 OK", [("content-type", self.kind)])
        if self.how == "writes":
            write = start_response(*head)
            for part in self:
                write(part)
            return []
        if self.how == "iterates":
            start_response(*head)
        return Parts(self, None if self.how == "iterates" else lambda: start_response(*head))

    def serve(self, world: str, dsn: str, policy: Policy) -> list[tuple[int, bytes]]:
        """The responses to two requests with a key, over one connection."""
        found: list[tuple[int, bytes]] = []

        async def main() -> None:
            async def receive() -> Any:
                return {"type": "http.request", "body": b""}

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    found.append((message["status"], b""))
                else:
                    found[-1] = (found[-1][0], message["body"])

            async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=1, timeout=30) as pool:
                app = IdempotencyMiddleware(self.asgi, pool, policy)
                scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}
                for version in ("2.3", "2.4"):
                    await app({**scope, "asgi": {"version": "3.0", "spec_version": version}}, receive, send)
                async with pool.connection():
                    pass

        if world == "asgi":
            asyncio.run(main())
            return found
        with psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=1, timeout=30) as pool:
            app = WsgiIdempotencyMiddleware(self.wsgi, pool, policy)
            for _ in range(2):
                statuses: list[str] = []
                environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k"}
                body = b"".join(app(environ, lambda status, headers: statuses.append(status)))
                found.append((int(statuses[0][:3]), body))
            with pool.connection():
                pass
        return found


class Parts:
    """An iterable of WSGI that has to be closed."""

    def __init__(self, streams: Streams, start: Any) -> None:
        self.streams = streams
        self.start = start

    def __iter__(self) -> Any:
        if self.start is not None:
            self.start()
        yield from self.streams

    def close(self) -> None:
        self.streams.ended = True


HOWS = [("asgi", "raw"), ("asgi", "starlette"), ("asgi", "until it is disconnected"), ("wsgi", "iterates"), ("wsgi", "generates"), ("wsgi", "writes")]


@pytest.mark.parametrize("kind", [STREAM, MIXED, BYTES])
@pytest.mark.parametrize(("world", "how"), HOWS)
def test_a_response_without_an_end_is_refused_and_holds_no_connection(db: Database, world: str, how: str, kind: str) -> None:
    streams = Streams(kind, how)
    for status, body in streams.serve(world, db.dsn, Policy("orders.create", None, max_response=100)):
        document = json.loads(body)
        assert (status, document["code"]) == (500, "response_too_large")
        assert document["detail"].startswith("nothing happened")
    # A stream is not asked for its parts. Those of other responses are 9 bytes long.
    assert streams.sent <= (2 * 12 if kind == BYTES else 2)
    assert streams.ended == (how in ("until it is disconnected", "iterates", "generates"))
    assert (db.effects(), db.value("select count(*) from pgonce.intent")) == (0, 0)


@pytest.mark.parametrize(("world", "how"), [("asgi", "raw"), ("wsgi", "iterates"), ("wsgi", "generates"), ("wsgi", "writes")])
def test_a_stream_of_events_is_not_kept_however_small_it_is(db: Database, world: str, how: str) -> None:
    found = Streams(STREAM, how, 1).serve(world, db.dsn, Policy("orders.create", None))
    assert [(status, json.loads(body)["code"]) for status, body in found] == [(500, "response_too_large")] * 2
    assert (db.effects(), db.value("select count(*) from pgonce.intent")) == (0, 0)


@pytest.mark.parametrize("outcomes", ["freeze", "final", "finish"])
def test_a_stream_of_events_of_a_leased_route_is_not_one_that_broke_off(client: Client, outcomes: str) -> None:
    client.policy = Policy("orders.pay", None, mode="leased", outcomes=outcomes)
    events = Response(200, [("content-type", STREAM.encode())], b"data: 1")
    client.service.respond = lambda path, attempt, body: replace(events)  # type: ignore[method-assign]
    for replayed in (False, True):
        response = client.post("/orders")
        assert problem_of(response)["code"] == "response_too_large"
        assert problem_of(response)["detail"].startswith("it happened, but its answer is too large")
        assert ("idempotent-replayed" in headers_of(response)) is replayed


def test_a_response_as_large_as_one_may_be_is_kept(client: Client) -> None:
    client.policy = Policy("orders.create", None, max_response=200)
    assert [client.post("/large").body for _ in range(2)] == [b"x" * 200] * 2
    assert client.db.value("select status::text from pgonce.intent") == "succeeded"


MULTIPART = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-length": "3", "content-type": "application/octet-stream"}, 500),
        ({"transfer-encoding": "chunked", "content-type": "application/octet-stream"}, 500),
        ({"content-type": MULTIPART}, 500),
        # As a proxy may send what has no body.
        ({"transfer-encoding": "chunked"}, 201),
        ({"content-length": "0", "content-type": MULTIPART}, 201),
    ],
)
def test_a_body_that_was_read_in_front_of_the_middleware_is_refused(
    db: Database, caplog: pytest.LogCaptureFixture, headers: dict[str, str], status: int
) -> None:
    service = Service(db)

    async def read(request: Any, call_next: Any) -> Any:
        async for _ in request.stream():
            pass
        return await call_next(request)

    async def post(app: Any, body: bytes, key: str | None) -> Response:
        response = Response(0)

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                response.status = message["status"]
                response.headers = [(name.decode(), value) for name, value in message["headers"]]
            else:
                response.body += message.get("body", b"")

        sent = headers if key is None else {**headers, "idempotency-key": key}
        pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
        await app({"type": "http", "method": "POST", "path": "/orders", "headers": pairs}, receive, send)
        return response

    async def main(policy: Policy, key: str | None) -> list[Response]:
        async with psycopg_pool.AsyncConnectionPool(db.dsn, min_size=1, max_size=4) as pool:
            app = BaseHTTPMiddleware(IdempotencyMiddleware(service.asgi, pool, policy), read)
            return [await post(app, b"one", key), await post(app, b"two", key)]

    found = asyncio.run(main(Policy("orders.create", None), "k"))
    assert [response.status for response in found] == [status, status]
    if status == 500:
        assert [problem_of(response)["code"] for response in found] == ["internal", "internal"]
        assert "nothing was done" in problem_of(found[0])["detail"]
        assert (service.calls, db.value("select count(*) from pgonce.intent")) == (0, 0)
        assert "has read its body; put the middleware in front of it" in caplog.text
    # Where there is no key nothing is repeated.
    found = asyncio.run(main(Policy("orders.create", None, key_required=False), None))
    assert [response.status for response in found] == [201, 201]


@pytest.mark.parametrize("sent", ["chunked", "length", "nothing"])
def test_a_body_that_was_read_in_front_of_the_middleware_of_wsgi_is_refused(db: Database, sent: str) -> None:
    client = Client("wsgi", db, Service(db), Policy("orders.create", None), db.dsn)
    environ: dict[str, Any] = {"CONTENT_TYPE": MULTIPART, "wsgi.input_terminated": True}
    environ |= {"chunked": {"HTTP_TRANSFER_ENCODING": "chunked"}, "length": {"CONTENT_LENGTH": "3"}}.get(
        sent, {"CONTENT_LENGTH": "0"}
    )
    found = [read_wsgi(client, {**environ, "wsgi.input": io.BytesIO(b"")}) for _ in range(2)]
    expected = {"chunked": (500, "internal"), "length": (400, "body_unreadable")}.get(sent)
    if expected is None:
        assert [response.status for response in found] == [201, 201]
    else:
        assert [(response.status, problem_of(response)["code"]) for response in found] == [expected, expected]
        assert (client.service.calls, db.value("select count(*) from pgonce.intent")) == (0, 0)


def test_plain_keys_and_a_principal_exclude_each_other() -> None:
    with pytest.raises(pgonce.Invalid, match="two callers' keys would meet"):
        Policy("orders.create", lambda request: "ada", plain_keys=True)
    assert Policy("orders.create", None, plain_keys=True, tenant=lambda request: "ada").plain_keys


def test_what_is_remembered_of_the_retentions_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def contract(*_: Any) -> Any:
        yield from ()
        return Contract(("reject", "0", "60", "86400"))

    monkeypatch.setattr("pgonce.http._exchange.contract_of", contract)
    retentions = Retentions()
    for tenant in range(2500):
        intent = pgonce.Intent("s", "k", b"x", str(tenant))
        assert drive(retentions.of(Driver(), intent, Options())) == 86400
        assert len(retentions._known) <= 1000


# --- the form of keys and bodies ----------------------------------------------------------------


def key_of(*values: bytes) -> str:
    request = Request("POST", "/", "", [("idempotency-key", value) for value in values])
    return read_key(request, Policy("s", None))


def test_the_quoted_and_the_raw_form_are_one_key() -> None:
    assert {key_of(form) for form in (b"abc-1", b'"abc-1"', b"  abc-1 ", b'"abc-1";a=1')} == {"abc-1"}
    assert key_of(rb'"a \"b\" \\ ,c"') == r'a "b" \ ,c'
    assert key_of(b"a:b;c=d/e") == "a:b;c=d/e"


@pytest.mark.parametrize("bad", [b'"abc', b'"a" b', b"a,b", b"a b", b'abc"', b"a\\b", b'"a", "b"', b"\xc3\xa4", b"k" * 256])
def test_a_key_that_could_mean_two_things_is_refused(bad: bytes) -> None:
    with pytest.raises(Refused) as caught:
        key_of(bad)
    assert json.loads(caught.value.response.body)["code"] == "22023"
    with pytest.raises(Refused):
        key_of(b"a", b"a")


@pytest.mark.parametrize("mode", ["atomic", "leased"])
@pytest.mark.parametrize("outcomes", ["freeze", "final", "finish"])
def test_a_status_means_what_it_means_to_the_rust_layer(mode: str, outcomes: str) -> None:
    vectors = json.loads((REPOSITORY / "conformance/vectors/dispositions.json").read_text("utf-8"))
    policy = Policy("s", None, mode=mode, outcomes=outcomes)
    for vector in vectors:
        for status in vector["statuses"]:
            assert disposition_of(Response(status), policy, None, True) == vector[mode][outcomes], status


def test_the_headers_that_are_replayed_are_those_of_the_rust_layer() -> None:
    vectors = json.loads((REPOSITORY / "conformance/vectors/headers.json").read_text("utf-8"))
    assert (sorted(_edge._USUAL), sorted(_edge._NEVER)) == (vectors["replayed"], vectors["never"])
    never = [*vectors["never"], *(f"{beginning}-reset" for beginning in vectors["never_beginning_with"])]
    headers = [(name, b"1") for name in [*vectors["replayed"], *never, "x-own", "x-other"]]
    # Those that never are, are not where a policy names them either.
    policy = Policy("s", None, replay_headers=("X-Own", *never))
    stored = _edge.to_stored(Response(200, headers), policy, None)
    assert [name for name, _ in stored["headers"]] == [*vectors["replayed"], "x-own"]


def test_a_status_token_is_that_of_the_rust_layer() -> None:
    made = token_of("k1", "POST /orders", bytes(range(32)))
    assert made == "WyJrMSIsIlBPU1QgL29yZGVycyIsIkFBRUNBd1FGQmdjSUNRb0xEQTBPRHhBUkVoTVVGUllYR0JrYUd4d2RIaDgiXQ"
    assert read_token(made) == ("k1", "POST /orders", bytes(range(32)))
    deep = base64.urlsafe_b64encode(b"[" * 300_000).decode()
    for bad in ("", "nonsense", "W10", "WzEsMl0", "e30", made[:-1], deep):
        assert read_token(bad) is None


def test_a_stored_key_is_that_of_the_rust_layer() -> None:
    assert stored_key("k1", "POST /orders", "ada") == "k1#fd61ec214f6d260dade5382c10dce71d"
    assert len(stored_key("k" * 255, "POST /a", None)) == 255


@pytest.mark.parametrize(
    "text",
    [
        b"9007199254740993",
        b"[1234567890123456.78]",
        b'{"a":1,"a":2}',
        b"1e400",
        b"1e-9999",
        b"1E0000300",
        b"{",
        b"",
        b"NaN",
        b"\xff",
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        '{"a":12345678901234567.1}'.encode("utf-16-le"),
        '{"a":1}'.encode("utf-32"),
        b'{"a":"\xff"}',
    ],
)
def test_a_text_that_says_more_than_its_canonical_form_is_not_json(text: bytes) -> None:
    with pytest.raises(ValueError):
        exact_json(text)


@pytest.mark.parametrize("text", [r"""b'"' + b'\\"' * 500_000""", "b'9' * 1_000_000", "b'1e' + b'9' * 1_000_000"])
def test_a_text_that_is_made_to_take_long_does_not(text: str) -> None:
    # Hours, in a process that can be ended, where its time grows with the square of its length.
    code = f"from pgonce.http._edge import exact_json\ntry: exact_json({text})\nexcept ValueError: print('refused')"
    source = str(REPOSITORY / "clients/python/src")
    ended = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "refused\n", ended.stderr


def test_usual_texts_are_json() -> None:
    text = rb'{"a":":1,\"9007199254740993","b":[1.50,-2e3,0,100000000000000000000]}'
    assert exact_json(text) == json.loads(text)


def test_a_principal_that_is_not_unicode_is_refused(client: Client) -> None:
    client.policy = Policy("orders.create", lambda request: "\ud800")
    assert problem_of(client.post("/orders"))["code"] == "22023"
    assert client.service.calls == 0
