"""Runs the cases of conformance/ over every library, isolation level and pooler of its matrix."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apis import KINDS, Api, with_api
from conftest import Database, fresh_database
from proxy import Fault
from server import REPOSITORY, Server

import pgonce
from pgonce import PermanentFailure, TransientFailure
from pgonce._drivers._base import translate

CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted((REPOSITORY / "conformance/cases").glob("*.json"))
    for case in json.loads(path.read_text("utf-8"))
]
RUNS = [
    run
    for run in json.loads((REPOSITORY / "conformance/matrix.json").read_text("utf-8"))
    if run["language"] == "Python"
]

OUTCOMES: list[tuple[type[BaseException], str]] = [
    (pgonce.Conflict, "conflict"),
    (pgonce.Busy, "busy"),
    (pgonce.Gone, "gone"),
    (pgonce.Fenced, "fenced"),
    (pgonce.Invalid, "invalid"),
    (pgonce.Uncertain, "uncertain"),
    (pgonce.PermanentFailure, "refused"),
    (pgonce.TransientFailure, "failed"),
    (Exception, "error"),
]


class OwnError(Exception):
    """An error of the work's own."""


class Runner:
    def __init__(self, api: Api, db: Database, isolation: str | None) -> None:
        self.api = api
        self.db = db
        self.isolation = isolation
        # A statement that fails at any other level: no transaction of a step may leave that of its row.
        self.at_level = f"""do $$ begin if current_setting('transaction_isolation') <> '{isolation or "read committed"}' then
            raise exception using message = 'at ' || current_setting('transaction_isolation'); end if; end $$"""
        self.held: dict[str, tuple[Any, Any]] = {}

    async def run(self, case: dict[str, Any]) -> None:
        for step in case["steps"]:
            for fault in step.get("faults", []):
                assert fault["action"] in ("request", "reply"), f"{step}: an action that no runner knows"
                self.db.proxy.faults.append(Fault(fault["at"], fault["action"]))
            found = await self.outcome(step)
            assert not self.db.proxy.faults, f"{step}: a fault did not strike"
            expected = step.get("expect", {})
            assert {name: found.get(name, "absent") for name in expected} == expected, (step, found)
            if "outcome" not in expected:
                assert found["outcome"] not in {name for _, name in OUTCOMES}, (step, found)
        for check in case.get("finally", []):
            assert self.db.value(check["sql"]) == check["value"], check

    async def outcome(self, step: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"outcome": "done", "runs": 0}
        try:
            await getattr(self, "do_" + step["do"])(step, found)
        except Exception as raised:
            # The COMMIT of a transaction of the caller's own raises what the driver raises.
            error = (translate(raised) or raised) if step["do"] == "join" else raised
            found["outcome"] = next(name for kind, name in OUTCOMES if isinstance(error, kind))
            found["error"] = repr(error)
            for name in ("code", "failure_code", "answer", "replayed"):
                if hasattr(error, name):
                    found[name] = getattr(error, name)
        return found

    def names(self, step: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        request = step.get("request", {"item": "book"})
        args = (self.api.source, step.get("scope", "conformance"), step["key"], request)
        return args, {"tenant": step.get("tenant", "")}

    async def do_sql(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        self.db.admin.execute(step["sql"].encode())

    async def do_clock(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        self.db.admin.execute("select pgonce._move_clock(%s::interval)", [step["move"]])

    async def do_once(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        work = step["work"]

        async def do(tx: Any) -> Any:
            found["runs"] += 1
            first = work.get("first_run_sql", []) if found["runs"] == 1 else []
            for statement in first + work.get("sql", []):
                await self.api.execute(tx.conn, statement)
            await self.api.execute(tx.conn, self.at_level)
            for event in work.get("publish", []):
                published = tx.publish(event["topic"], event["type"], event.get("payload"), subject=event["subject"])
                if self.api.is_async:
                    await published
            if "fail" in work:
                raise failure(work["fail"])
            if work.get("raise"):
                raise OwnError
            if "answer" in work:
                tx.succeed(work["answer"])

        args, names = self.names(step)
        done = await self.api.work("once", *args, do=do, isolation=self.isolation, **names)
        self.note(done, found)

    def note(self, done: pgonce.Done, found: dict[str, Any]) -> None:
        found.update(replayed=done.replayed, answer=done.answer, attempts=done.attempts)

    async def do_hold(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        args, names = self.names(step)
        block = self.api.command("once", *args, isolation=self.isolation, **names)
        tx = await self.api.enter(block)
        for statement in step.get("sql", []):
            await self.api.execute(tx.conn, statement)
        await self.api.execute(tx.conn, self.at_level)
        self.held[step["as"]] = block, tx
        found.update(outcome=tx.kind, attempts=tx.attempts)

    async def do_finish(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        block, tx = self.held.pop(step["as"])
        if step.get("rollback"):
            await self.api.leave(block, OwnError())
            return
        tx.succeed(step["answer"])
        await self.api.leave(block)
        found.update(replayed=tx.replayed, answer=tx.answer)

    async def do_lease(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        args, names = self.names(step)
        block = self.api.command("lease", *args, length=step["seconds"], renew=False, **names)
        held = await self.api.enter(block)
        self.held[step["as"]] = block, held
        found.update(outcome=held.kind, attempts=held.attempts, answer=held.answer)

    async def do_heartbeat(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        beaten = self.held[step["as"]][1].heartbeat()
        if self.api.is_async:
            await beaten

    async def do_release(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        released = self.held[step["as"]][1].release()
        if self.api.is_async:
            await released

    async def do_lease_succeed(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        block, held = self.held[step["as"]]
        held.succeed(step["answer"])
        await self.api.leave(block)
        found.update(answer=held.answer)

    async def do_lease_fail(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        error = failure(step["fail"])
        await self.api.leave(self.held[step["as"]][0], error)
        raise error

    async def do_lease_write(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        held = self.held[step["as"]][1]
        block = held.begin()
        tx = await self.api.enter(block)
        for statement in step["sql"]:
            await self.api.execute(tx.conn, statement)
        await self.api.execute(tx.conn, self.at_level)
        tx.succeed(step["answer"])
        await self.api.leave(block)
        found.update(answer=held.answer)

    async def do_join(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        args, names = self.names(step)
        found["outcome"] = "joined"
        async with self.api.transaction() as conn:
            if step["end"] == "return":
                # As somebody would who calls the SQL functions without this package.
                digest = pgonce.fingerprint(args[3]).hex()
                claim = f"select pgonce.claim('{args[1]}', '{args[2]}', '\\x{digest}')"
                await self.api.execute(conn, claim)
                if self.db.value(f"select count(*) from pgonce.intent where key = '{args[2]}'"):
                    found["outcome"] = "replay"
                    return
                for statement in step["sql"]:
                    await self.api.execute(conn, statement)
                return
            block = self.api.command("join", conn, *args[1:], **names)
            tx = await self.api.enter(block)
            error = None
            for statement in step["sql"]:
                await self.api.execute(tx.conn, statement)
            await self.api.execute(tx.conn, self.at_level)
            if step["end"] == "raise":
                error = OwnError()
            else:
                tx.succeed(step["answer"])
            await self.api.leave(block, error)
            found.update(answer=tx.answer)

    async def do_execute(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        args, names = self.names(step)
        statement = step["statement"].replace("$1", ":value")
        done = await self.api.call(
            "execute",
            *args,
            statement,
            {"value": step["value"]},
            known_first=step.get("first", False),
            isolation=self.isolation,
            **names,
        )
        self.note(done, found)

    async def do_accept(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        async with self.api.transaction() as conn:
            new = await self.api.call(
                "accept",
                conn,
                step["consumer"],
                step["source"],
                step["id"],
                step["payload"],
                tenant=step.get("tenant", ""),
            )
            for statement in step["sql"] if new else []:
                await self.api.execute(conn, statement)
            await self.api.execute(conn, self.at_level)
        found["new"] = new
        found["outcome"] = "accepted"

    async def do_accept_batch(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        messages = [(name, payload) for name, payload in step["messages"]]
        async with self.api.transaction() as conn:
            new = await self.api.call("accept_batch", conn, step["consumer"], step["source"], messages)
            await self.api.execute(conn, self.at_level)
        found["new"] = new
        found["outcome"] = "accepted"

    async def do_publish(self, step: dict[str, Any], found: dict[str, Any]) -> None:
        try:
            async with self.api.transaction() as conn:
                await self.api.call(
                    "publish", conn, step["topic"], step["type"], step["payload"], subject=step["subject"]
                )
                await self.api.execute(conn, self.at_level)
                if step.get("rollback"):
                    raise OwnError
        except OwnError:
            pass
        found["outcome"] = "published"


def failure(spec: dict[str, Any]) -> pgonce.Failure:
    kind = PermanentFailure if spec["kind"] == "permanent" else TransientFailure
    return kind(spec["code"], spec["message"], answer=spec.get("answer"))


def name_of(run: dict[str, Any]) -> str:
    return ", ".join([run["library"], run.get("isolation", "default"), *["pgbouncer"] * run.get("pooler", False)])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", RUNS, ids=name_of)
def test_case(server: Server, setting: dict[str, Any], case: dict[str, Any]) -> None:
    pooled, isolation = setting.get("pooler", False), setting.get("isolation")
    with fresh_database(server, pooled=pooled, isolation=isolation) as db:
        runner = lambda api: Runner(api, db, isolation).run(case)  # noqa: E731
        with_api(setting["library"], db.cut_dsn, runner, pooled=pooled)


def test_the_matrix_names_every_library() -> None:
    assert {run["library"] for run in RUNS} == set(KINDS)
