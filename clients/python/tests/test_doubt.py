"""An effect that may have happened is not handed on, or reported, as one that did not."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import psycopg_pool
import pytest
from apis import ASYNC, SYNC, Api, with_api
from conftest import Database
from proxy import Fault
from test_http import Client, Service, problem_of

import pgonce
from pgonce import aio, lease
from pgonce.http import Policy, Response, _edge
from pgonce._intent import Ack
from pgonce.http._edge import from_error

REQUEST = {"item": "book"}
INSERT = "insert into effect (note) values ('x')"
LOSE = "delete from pgonce.intent"
STATUS = "select status::text from pgonce.intent"
SHORT = pgonce.retry.Policy(timeout=0.6)


class Source:
    """A source of connections that can be taken away."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.away = False
        self.connections = 0
        self.back_after = 0
        self.error: Exception = ConnectionRefusedError("no server")

    def connect(self) -> psycopg.Connection[Any]:
        self._count()
        return psycopg.connect(self.dsn)

    async def connect_async(self) -> psycopg.AsyncConnection[Any]:
        self._count()
        return await psycopg.AsyncConnection.connect(self.dsn)

    def _count(self) -> None:
        self.connections += 1
        if self.connections == self.back_after:
            self.away = False
        if self.away:
            raise self.error


@pytest.fixture
def source(db: Database) -> Source:
    return Source(db.cut_dsn)


@pytest.fixture(params=["sync", "async"])
def run(request: Any, source: Source) -> Callable[..., pgonce.Done]:
    """`lease` in its function form. Work may answer an awaitable where it is asynchronous."""

    def sync(work: Callable[[Any], Any], length: float | None = None, **options: Any) -> pgonce.Done:
        return lease(source.connect, "s", "k", REQUEST, work, length=length, **options)

    def asynchronous(work: Callable[[Any], Any], length: float | None = None, **options: Any) -> pgonce.Done:
        async def awaited(held: Any) -> Any:
            value = work(held)
            return await value if isinstance(value, Awaitable) else value

        async def main() -> pgonce.Done:
            return await aio.lease(source.connect_async, "s", "k", REQUEST, awaited, length=length, **options)

        return asyncio.run(main())

    return sync if request.param == "sync" else asynchronous


def next_kind(db: Database, source: Source) -> Any:
    """How the next claim of the intent begins, once every lease has run out."""
    source.away = False
    while True:
        db.admin.execute("select pgonce._move_clock(interval '1 day')")
        try:
            return lease(source.connect, "s", "k", REQUEST, lambda held: held.kind).answer
        except pgonce.Busy:
            pass  # A renewal was under way when the call ended, and came after the clock was moved.


def refuse_success(db: Database, refused: str) -> None:
    """Makes the record of a success fail while a condition is true."""
    db.admin.execute("create sequence tries")
    db.admin.execute(
        f"""create function refuse() returns trigger language plpgsql as $$
        begin
            if {refused} then raise exception 'not now' using errcode = '40001'; end if;
            return new;
        end $$""".encode()
    )
    db.admin.execute(
        "create trigger refuse before update on pgonce.intent for each row "
        "when (new.status = 'succeeded') execute function refuse()"
    )


# --- what the next attempt gets -----------------------------------------------------------------


def test_a_call_that_ran_the_work_takes_over_from_itself(db: Database, run: Any) -> None:
    kinds: list[str] = []

    def work(held: Any) -> None:
        kinds.append(held.kind)
        if len(kinds) == 1:
            db.admin.execute(LOSE)

    done = run(work)
    assert kinds == ["fresh", "takeover"] and not done.replayed


@pytest.mark.parametrize("end", ["fails", "releases"])
def test_a_call_that_took_over_from_itself_and_gives_up_leaves_a_takeover(
    db: Database, source: Source, run: Any, end: str
) -> None:
    runs: list[int] = []

    def work(held: Any) -> Any:
        runs.append(1)
        if len(runs) == 1:
            db.admin.execute(LOSE)
            return None
        if end == "fails":
            raise pgonce.TransientFailure("down", "later")
        return held.release()

    with pytest.raises(pgonce.Error):
        run(work)
    assert (len(runs), db.value(STATUS)) == (2, "processing")
    assert next_kind(db, source) == "takeover"


def test_work_that_gave_its_lease_back_is_not_run_again(db: Database, run: Any) -> None:
    runs: list[int] = []

    def work(held: Any) -> Any:
        runs.append(1)
        return held.release()

    with pytest.raises(pgonce.Invalid, match="given back"):
        run(work)
    assert (len(runs), db.value(STATUS)) == (1, "failed_retryable")


@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_a_block_whose_work_is_done_never_gives_its_lease_back(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        block = api.command("lease", api.source, "s", "k", REQUEST, length=60)
        held = await api.enter(block)
        db.admin.execute(LOSE)
        held.succeed("done outside")
        with pytest.raises(pgonce.Uncertain):
            await api.leave(block)

    with_api(kind, db.dsn, test)
    assert db.value(STATUS) == "processing"
    assert next_kind(db, Source(db.dsn)) == "takeover"


# --- what the caller gets -----------------------------------------------------------------------


def done(held: Any) -> Any:
    return 1


def failed(held: Any) -> Any:
    raise pgonce.PermanentFailure("no", "no")


def renews(held: Any) -> Any:
    return held.heartbeat()


@pytest.mark.parametrize("end", [done, failed, renews])
def test_work_that_cannot_be_recorded_is_uncertain(db: Database, source: Source, run: Any, end: Any) -> None:
    def work(held: Any) -> Any:
        source.away = True
        return end(held)

    with pytest.raises(pgonce.Uncertain) as caught:
        run(work, 0.3, retry=SHORT)
    assert caught.value.code == "08007"
    assert next_kind(db, source) == "takeover"


@pytest.mark.parametrize("end", [done, failed, renews])
def test_a_block_that_cannot_be_recorded_is_uncertain(db: Database, source: Source, end: Any) -> None:
    with pytest.raises(pgonce.Uncertain):
        with lease(source.connect, "s", "k", REQUEST, length=0.3, retry=SHORT) as held:
            source.away = True
            held.succeed(end(held))
    assert next_kind(db, source) == "takeover"


def test_a_success_that_met_an_error_that_passes_is_recorded_by_the_next_try(db: Database, run: Any) -> None:
    refuse_success(db, "nextval('public.tries') <= 2")
    runs: list[int] = []
    done = run(lambda held: runs.append(1), 20)
    assert (len(runs), done.replayed, db.value(STATUS)) == (1, False, "succeeded")


def test_a_lease_is_renewed_while_its_work_is_being_recorded(db: Database, run: Any) -> None:
    refuse_success(db, "clock_timestamp() < new.first_at + interval '1.2 seconds'")
    assert (run(done, 0.4).replayed, db.value(STATUS)) == (False, "succeeded")


@pytest.mark.parametrize("kind", ["psycopg-connect", "psycopg-async", "asyncpg"])
def test_a_lease_that_runs_out_while_its_work_is_being_recorded_costs_a_connection_per_try(
    db: Database, kind: str
) -> None:
    ran_out = "select clock_timestamp() > lease_until + interval '3 seconds' from pgonce.intent"

    async def test(api: Api) -> None:
        locked = psycopg.connect(db.dsn)
        opened_before = 0

        def unlock() -> None:
            while not db.value(ran_out):
                pass
            locked.rollback()

        async def work(held: Any) -> int:
            nonlocal opened_before
            locked.execute("select from pgonce.intent for update")
            opened_before = db.proxy.links
            threading.Thread(target=unlock, daemon=True).start()
            return 1

        done = await api.work("lease", api.source, "s", "k", REQUEST, do=work, length=1)
        locked.close()
        assert (done.answer, db.value(STATUS)) == (1, "succeeded")
        # For four seconds a record and a renewal were tried, each for two seconds at least.
        assert db.proxy.links - opened_before <= 16

    with_api(kind, db.cut_dsn, test)


def test_a_database_that_is_away_for_longer_than_the_lease_is_waited_for(db: Database, source: Source, run: Any) -> None:
    def work(held: Any) -> int:
        source.away = True
        source.back_after = source.connections + 20
        return 1

    assert (run(work, 0.1).answer, db.value(STATUS)) == (1, "succeeded")


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent connection is given up after a third of the lease, which a busy machine needs, not after two seconds at least."""
    monkeypatch.setattr("pgonce._steps.MIN_LIMIT", 0.1)


SUCCEED = "select 'done' from pgonce.succeed"


@pytest.mark.parametrize("function", ["lease", "block"])
@pytest.mark.parametrize("action", ["silence", "silent reply"])
@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_a_connection_that_falls_silent_does_not_keep_the_end_of_the_work_from_its_record(
    db: Database, short_limits: None, kind: str, action: str, function: str
) -> None:
    # What the server did and answered to nobody, it did with the commit.
    pattern = "commit" if action == "silent reply" else SUCCEED
    runs: list[str] = []

    async def test(api: Api) -> None:
        async def work(held: Any) -> str:
            runs.append(held.kind)
            db.proxy.faults.append(Fault(pattern, action))
            return "done outside"

        if function == "block":
            block = api.command("lease", api.source, "s", "k", REQUEST, length=3)
            held = await api.enter(block)
            held.succeed(await work(held))
            await api.leave(block)
        else:
            held = await api.work("lease", api.source, "s", "k", REQUEST, do=work, length=3)
        assert held.answer == "done outside"

    with_api(kind, db.cut_dsn, test)
    assert (db.proxy.faults, len(db.proxy.struck)) == ([], 1)
    assert (runs, db.value(STATUS)) == (["fresh"], "succeeded")


@pytest.mark.parametrize("action", ["silence", "silent reply"])
@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_writes_under_a_fence_whose_connection_falls_silent_end_in_time(
    db: Database, short_limits: None, kind: str, action: str
) -> None:
    async def test(api: Api) -> None:
        block = api.command("lease", api.source, "s", "k", REQUEST, length=3)
        writes = (await api.enter(block)).begin()
        tx = await api.enter(writes)
        await api.execute(tx.conn, INSERT)
        tx.succeed(7)
        db.proxy.faults.append(Fault("commit" if action == "silent reply" else SUCCEED, action))
        with pytest.raises(pgonce.Uncertain) as caught:
            await api.leave(writes)
        with pytest.raises(pgonce.Uncertain):
            await api.leave(block, caught.value)
            raise caught.value

    with_api(kind, db.cut_dsn, test)
    assert db.proxy.faults == []
    assert db.effects() == (1 if action == "silent reply" else 0)


@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_a_release_whose_connection_falls_silent_ends_in_time(db: Database, short_limits: None, kind: str) -> None:
    async def test(api: Api) -> None:
        block = api.command("lease", api.source, "s", "k", REQUEST, length=3)
        held = await api.enter(block)
        db.proxy.faults.append(Fault("select 'done' from pgonce.release", "silence"))
        with pytest.raises(pgonce.Uncertain):
            released = held.release()
            if api.is_async:
                await released
        held.succeed(1)
        await api.leave(block)

    with_api(kind, db.cut_dsn, test)
    assert db.value(STATUS) == "succeeded"


@pytest.mark.parametrize("pattern", ["begin", "select 'done' from pgonce.guard"])
@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_writes_under_a_fence_whose_opening_falls_silent_end_in_time(
    db: Database, short_limits: None, kind: str, pattern: str
) -> None:
    async def test(api: Api) -> None:
        async def work(held: Any) -> None:
            db.proxy.faults.append(Fault(pattern, "silence"))
            with pytest.raises(pgonce.Disconnected):
                await api.enter(held.begin())
            writes = held.begin()
            tx = await api.enter(writes)
            await api.execute(tx.conn, INSERT)
            tx.succeed(7)
            await api.leave(writes)

        done = await api.work("lease", api.source, "s", "k", REQUEST, do=work, length=3, renew=False)
        assert done.answer == 7

    with_api(kind, db.cut_dsn, test)
    assert (len(db.proxy.struck), db.effects()) == (1, 1)


CONTRACT = "select busy"


@pytest.mark.parametrize("pattern", [CONTRACT, "select pgonce.wait"])
@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_a_connection_that_falls_silent_does_not_keep_back_what_became_of_work_that_was_lost(
    db: Database, short_limits: None, kind: str, pattern: str
) -> None:
    db.admin.execute("select pgonce.define_scope('s', interval '1 day', p_busy => 'wait', p_wait_timeout => '10 minutes')")
    claim = "select fence from pgonce.claim('s', 'k', %s, interval '1 hour')"
    # It does nothing to a transaction that has not begun: one that begins later than any call before the first pause.
    again = Fault("begin", "abort", skip=12)

    async def test(api: Api) -> None:
        async def work(held: Any) -> str:
            db.admin.execute(LOSE)
            row = db.admin.execute(claim.encode(), [held.intent.fingerprint]).fetchone()
            assert row is not None

            def succeed() -> None:
                values = [held.intent.fingerprint, row[0]]
                with psycopg.connect(db.dsn) as conn:
                    # Its first claim was answered, and it asks again and again.
                    while again not in db.proxy.struck:
                        conn.execute("select 1")
                    conn.execute("select pgonce.succeed('s', 'k', %s, %s, '\"new\"')", values)

            threading.Thread(target=succeed, daemon=True).start()
            db.proxy.faults += [Fault(pattern, "silence"), again]
            return "old"

        done = await api.work("lease", api.source, "s", "k", REQUEST, do=work, length=3)
        assert (done.answer, done.replayed) == ("new", True)

    with_api(kind, db.cut_dsn, test)


@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_a_call_that_runs_its_work_again_does_not_ask_for_its_contract_again(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        kinds: list[str] = []

        async def work(held: Any) -> None:
            kinds.append(held.kind)
            if len(kinds) == 1:
                db.admin.execute(LOSE)
                db.proxy.faults.append(Fault(CONTRACT, "silence"))

        await api.work("lease", api.source, "s", "k", REQUEST, do=work)
        assert kinds == ["fresh", "takeover"]

    with_api(kind, db.cut_dsn, test)
    assert db.proxy.struck == []


def test_a_pool_that_asks_a_silent_connection_whether_it_works_does_not_hold_up_the_record(
    db: Database, short_limits: None
) -> None:
    def work(held: Any) -> int:
        db.proxy.faults.append(Fault("$", "silence"))
        return 1

    check = psycopg_pool.ConnectionPool.check_connection
    with psycopg_pool.ConnectionPool(db.cut_dsn, min_size=1, max_size=2, check=check) as pool:
        # The others are new, and are not asked for a while.
        assert lease(pool, "s", "k", REQUEST, work, length=3).answer == 1
    assert (len(db.proxy.struck), db.value(STATUS)) == (1, "succeeded")


HEARTBEAT = "select 'done' from pgonce.heartbeat"


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg"])
def test_a_renewal_whose_connection_falls_silent_is_made_on_another_one(
    db: Database, short_limits: None, kind: str
) -> None:
    until = "select extract(epoch from lease_until) from pgonce.intent"
    db.proxy.faults.append(Fault(HEARTBEAT, "silence"))

    async def test(api: Api) -> None:
        async def work(held: Any) -> int:
            first = db.value(until)
            while db.value(until) == first:
                held.check()
                if api.is_async:
                    await asyncio.sleep(0)
            return len(db.proxy.struck)

        done = await api.work("lease", api.source, "s", "k", REQUEST, do=work, length=4.5)
        assert (done.answer, done.replayed) == (1, False)

    with_api(kind, db.cut_dsn, test)


@pytest.mark.parametrize("end", ["returns", "is lost"])
@pytest.mark.parametrize("kind", ASYNC)
def test_a_renewal_that_hangs_holds_up_neither_the_end_of_the_work_nor_the_loss_of_the_lease(
    db: Database, kind: str, end: str
) -> None:
    db.proxy.faults.append(Fault(HEARTBEAT, "silence"))

    async def test(api: Api) -> None:
        started = asyncio.get_running_loop().time()
        try:
            async with aio.lease(api.source, "s", "k", REQUEST, length=3 if end == "is lost" else 9) as held:
                while not db.proxy.struck or end == "is lost":
                    await asyncio.sleep(0.01)
                held.succeed(1)
        except pgonce.Fenced:
            assert end == "is lost"
        # psycopg itself takes five seconds and more to cancel a call that gets no reply.
        assert asyncio.get_running_loop().time() - started < (5 if end == "is lost" else 7)

    with_api(kind, db.cut_dsn, test)
    assert db.value(STATUS) == ("processing" if end == "is lost" else "succeeded")


@pytest.mark.parametrize("error", [socket.gaierror("no such name"), OSError("several"), TimeoutError("late")])
def test_whatever_a_library_lets_through_while_connecting_is_a_lost_connection(
    db: Database, source: Source, run: Any, error: Exception
) -> None:
    source.error = error

    def work(held: Any) -> int:
        source.away = True
        source.back_after = source.connections + 3
        return 1

    assert (run(work).answer, db.value(STATUS)) == (1, "succeeded")


def test_a_success_that_the_database_refuses_for_longer_than_the_policy_allows_is_uncertain(
    db: Database, run: Any
) -> None:
    refuse_success(db, "true")
    with pytest.raises(pgonce.Uncertain):
        run(done, 0.3, retry=SHORT)


def test_work_that_ends_with_an_error_of_the_input_may_have_happened(db: Database, source: Source, run: Any) -> None:
    def work(held: Any) -> None:
        raise pgonce.Invalid("the amount is missing")

    with pytest.raises(pgonce.Uncertain, match="the amount is missing"):
        run(work)
    with pytest.raises(pgonce.Uncertain):
        with lease(source.connect, "s", "block", REQUEST) as held:
            work(held)
    assert next_kind(db, source) == "takeover"


@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_an_error_of_the_input_says_nothing_about_a_commit_whose_reply_was_lost(db: Database, kind: str) -> None:
    db.admin.execute("select pgonce.define_scope('s', interval '1 day', p_busy => 'wait', p_wait_timeout => '60 seconds')")
    runs: list[int] = []

    async def test(api: Api) -> None:
        async def work(tx: Any) -> None:
            runs.append(1)
            if len(runs) == 2:
                raise pgonce.Invalid("the amount is missing")
            db.proxy.faults.append(Fault("commit", "request"))

        with pytest.raises(pgonce.Uncertain):
            await api.work("once", api.source, "s", "k", REQUEST, do=work)

    with_api(kind, db.cut_dsn, test)
    assert len(runs) == 2


def test_work_that_was_done_is_not_said_to_be_in_conflict_with_who_got_the_key_after_it(db: Database, run: Any) -> None:
    def work(held: Any) -> None:
        db.admin.execute(LOSE)
        db.admin.execute("select pgonce.claim('s', 'k', '\\x01', interval '1 hour')")

    with pytest.raises(pgonce.Uncertain):
        run(work)


def test_work_that_used_up_the_time_for_retries_still_ends_with_what_is_stored(
    db: Database, source: Source, run: Any
) -> None:
    def work(held: Any) -> str:
        claim = "select fence from pgonce.claim('s', 'k', %s, interval '1 hour')"
        succeed = "select pgonce.succeed('s', 'k', %s, %s, '\"new\"')"
        print_ = held.intent.fingerprint
        db.admin.execute(LOSE)
        row = db.admin.execute(claim, [print_]).fetchone()
        assert row is not None
        db.admin.execute(succeed, [print_, row[0]])
        return "old"

    once_only = pgonce.Policy(max_tries=1)
    done = run(work, retry=once_only)
    assert (done.answer, done.replayed) == ("new", True)
    db.admin.execute(LOSE)
    with lease(source.connect, "s", "k", REQUEST, retry=once_only) as held:
        held.succeed(work(held))
    assert (held.answer, held.replayed) == ("new", True)


def test_a_conflict_of_another_command_that_leased_work_asked_for_is_not_its_own(
    db: Database, source: Source, run: Any
) -> None:
    for request in ({"amount": 1}, {"amount": 2}):

        def work(held: Any, request: Any = request) -> Any:
            # It calls out, and then it writes down what came of it.
            return pgonce.once(source.connect, "ledger", "k", request, lambda tx: tx.conn.execute(INSERT) and None).answer

        if request["amount"] == 1:
            run(work)
            db.admin.execute("delete from pgonce.intent where scope = 's'")
            continue
        with pytest.raises(pgonce.Uncertain):
            run(work)
        with pytest.raises(pgonce.Uncertain):
            with lease(source.connect, "s", "block", REQUEST) as held:
                work(held)


def test_what_is_stored_counts_not_what_the_work_says_afterwards(db: Database, source: Source) -> None:
    def work(held: pgonce.Lease) -> None:
        with held.begin() as tx:
            tx.conn.execute(INSERT)
            tx.succeed(7)
        raise pgonce.TransientFailure("down", "later")

    made = lease(source.connect, "s", "k", REQUEST, work)
    assert (made.answer, db.value(STATUS), db.effects()) == (7, "succeeded", 1)


def test_cancelled_work_under_a_lease_leaves_the_claim_to_the_contract(db: Database, source: Source) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def work(held: aio.Lease) -> None:
            inside.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(aio.lease(source.connect_async, "s", "k", REQUEST, work, length=60))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert db.value(STATUS) == "processing"
    assert next_kind(db, source) == "takeover"


# A server that cannot write its log any more; one that is out of space; one that says that it does not know.
OPEN = [("PANIC", "XX000"), ("FATAL", "53100"), ("ERROR", "40003")]


@pytest.mark.parametrize("error", OPEN)
@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_a_commit_that_is_answered_with_the_end_of_its_session_is_looked_up(
    db: Database, kind: str, error: tuple[str, str]
) -> None:
    async def test(api: Api) -> None:
        async def work(tx: Any) -> int:
            await api.execute(tx.conn, INSERT)
            db.proxy.faults.append(Fault("commit", "reply", error=error))
            return 1

        done = await api.work("once", api.source, "s", "k", REQUEST, do=work)
        assert (done.answer, done.replayed, len(db.proxy.struck)) == (1, True, 1)

    with_api(kind, db.cut_dsn, test)
    assert db.effects() == 1


@pytest.mark.parametrize("error", OPEN)
@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
def test_one_statement_that_is_answered_with_the_end_of_its_session_is_looked_up(
    db: Database, kind: str, error: tuple[str, str]
) -> None:
    db.proxy.faults.append(Fault("with effect", "reply", error=error))

    async def test(api: Api) -> None:
        statement = "insert into effect (note) values ('x') returning id"
        done = await api.call("execute", api.source, "s", "k", REQUEST, statement)
        assert (done.replayed, len(db.proxy.struck)) == (True, 1)

    with_api(kind, db.cut_dsn, test)
    assert db.effects() == 1


def test_a_call_that_commits_by_itself_and_is_answered_with_the_end_of_its_session_is_uncertain(db: Database) -> None:
    db.proxy.faults.append(Fault("select 'done' from pgonce.heartbeat", "reply", error=("PANIC", "XX000")))

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(db.cut_dsn, autocommit=True)

    with lease(connect, "s", "k", REQUEST, renew=False) as held:
        with pytest.raises(pgonce.Uncertain):
            held.heartbeat()
        held.succeed(1)


@pytest.mark.parametrize("kind", ["sqlalchemy-psycopg", "sqlalchemy-psycopg-async"])
def test_one_statement_that_commits_by_itself_and_whose_reply_is_lost_is_uncertain(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        engine = api.source.execution_options(isolation_level="AUTOCOMMIT")
        statement = "insert into effect (note) values ('x') returning id"
        db.proxy.faults.append(Fault("with effect", "reply"))
        once_only = pgonce.Policy(max_tries=1)
        with pytest.raises(pgonce.Uncertain):
            await api.call("execute", engine, "s", "k", REQUEST, statement, known_first=True, retry=once_only)
        assert (await api.call("execute", engine, "s", "k", REQUEST, statement)).replayed

    with_api(kind, db.cut_dsn, test)
    assert db.effects() == 1


def test_an_error_that_says_that_nobody_knows_is_no_problem_that_says_that_nothing_was_done() -> None:
    problem = from_error(Policy("s", None), pgonce.DatabaseError("lost", code="40003"))
    assert (problem.status, problem_of(problem)["code"]) == (503, "08007")


def test_one_statement_whose_reply_was_lost_stays_uncertain_when_nobody_can_look(db: Database, source: Source) -> None:
    db.proxy.faults.append(Fault("with effect", "request"))

    def connect() -> psycopg.Connection[Any]:
        # The statement, a look, the statement again; and the look after its error finds no server.
        source.away = source.connections >= 3
        return source.connect()

    statement = "insert into effect (note) values ((1 / :zero::int)::text) returning id"
    retry = pgonce.Policy(max_tries=4)
    with pytest.raises(pgonce.Uncertain):
        pgonce.execute(
            connect, "s", "k", REQUEST, statement, {"zero": "0"}, known_first=True, retry=retry
        )


# --- what the database refuses for its values ---------------------------------------------------

EURO = "5 \u20ac"


def test_a_failure_is_recorded_whatever_the_database_can_hold_of_it(latin1: Database) -> None:
    failures = [
        lambda: pgonce.PermanentFailure("declined", "no", answer={"said": EURO}),
        lambda: pgonce.PermanentFailure("declined", EURO),
        lambda: pgonce.PermanentFailure("declined", "5\0", answer="5\0", keep_for=1e300),
    ]
    messages = ["no", "5 ?", "5?"]
    calls: list[str] = []

    async def test(api: Api) -> None:
        for function in ("once", "lease"):
            for number, failure in enumerate(failures):

                async def work(held: Any, failure: Any = failure) -> None:
                    calls.append(api.kind)
                    raise failure()

                for replayed in (False, True):
                    with pytest.raises(pgonce.PermanentFailure) as caught:
                        key = f"{api.kind} {function} {number}"
                        await api.work(function, api.source, "s", key, REQUEST, do=work)
                    assert caught.value.replayed is replayed
                assert (caught.value.message, caught.value.answer) == (messages[number], None)

    for kind in SYNC + ASYNC:
        with_api(kind, latin1.dsn, test)
    assert [calls.count(kind) for kind in SYNC + ASYNC] == [6] * len(SYNC + ASYNC)


def test_leased_work_is_recorded_without_an_answer_that_cannot_be_kept(latin1: Database) -> None:
    latin1.admin.execute("select pgonce.define_scope('s', interval '1 day', p_max_answer => 100)")
    calls: list[str] = []

    async def test(api: Api) -> None:
        for number, (answer, id, kept) in enumerate(((EURO, "7", "7"), ("x" * 200, "7", "7"), (1, EURO, None))):

            async def work(held: Any, answer: Any = answer, id: str = id) -> None:
                calls.append(api.kind)
                held.succeed(answer, reference=("order", id))

            for replayed in (False, True):
                done = await api.work("lease", api.source, "s", f"{api.kind} {number}", REQUEST, do=work)
                assert (done.replayed, done.answer, done.reference) == (replayed, None, kept and ("order", kept))

    for kind in SYNC + ASYNC:
        with_api(kind, latin1.dsn, test)
    assert [calls.count(kind) for kind in SYNC + ASYNC] == [3] * len(SYNC + ASYNC)


def test_a_reference_that_cannot_be_stored_is_left_out_of_a_lease_and_refused_elsewhere(db: Database, source: Source) -> None:
    reference = ("order", "a\0b")
    with lease(source.connect, "s", "leased", REQUEST) as held:
        held.succeed(1, reference=reference)
    with lease(source.connect, "s", "written", REQUEST) as held:
        with held.begin() as tx:
            tx.succeed(1, reference=reference)
    assert tx.reference is None
    with pytest.raises(pgonce.Invalid, match="U.0000"):
        pgonce.once(source.connect, "s", "k", REQUEST, lambda tx: tx.succeed(1, reference=reference))
    assert db.value("select string_agg(key, ',' order by key) from pgonce.intent") == "leased,written"


# --- leased routes ------------------------------------------------------------------------------


class Scripted(Service):
    """Answers what a test says, before or after it has begun its response."""

    own: Callable[[], Response] | None = None
    breaks_off = False

    def respond(self, path: str, attempt: Any, body: bytes) -> Response | None:
        self.calls += 1
        assert self.own is not None
        return self.own()

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        await super().asgi(scope, receive, send)
        if self.breaks_off:
            raise RuntimeError("broken")

    def wsgi(self, environ: Any, start_response: Any) -> Any:
        yield from super().wsgi(environ, start_response)
        if self.breaks_off:
            raise RuntimeError("broken")


@pytest.fixture(params=["asgi", "wsgi"])
def client(request: Any, db: Database, source: Source) -> Client:
    policy = Policy("orders.pay", None, mode="leased", lease=0.3, retry=SHORT)
    made = Client(request.param, db, Scripted(db), policy, db.dsn)
    made.source = source.connect_async if request.param == "asgi" else source.connect
    return made


def scripted(client: Client, own: Callable[[], Response]) -> Scripted:
    assert isinstance(client.service, Scripted)
    client.service.own = own
    return client.service


def answering(status: int, size: int) -> Callable[[], Response]:
    return lambda: Response(status, [], b"x" * size)


def test_without_its_database_after_its_handler_was_called_a_route_is_503_and_not_known(
    client: Client, source: Source
) -> None:
    def own() -> Response:
        source.away = True
        return Response(201, [], b"done")

    scripted(client, own)
    response = client.post("/orders")
    assert (response.status, problem_of(response)["code"]) == (503, "08007")
    assert client.db.value(STATUS) == "processing"


def test_a_wrong_request_is_answered_as_such_where_its_key_cannot_be_freed(client: Client, source: Source) -> None:
    def own() -> Response:
        source.away = True
        return Response(400, [], b"wrong")

    scripted(client, own)
    response = client.post("/orders")
    assert (response.status, response.body) == (400, b"wrong")


def test_an_error_that_says_that_nothing_was_done_is_not_the_answer_of_a_handler_that_was_called(client: Client) -> None:
    errors = (
        pgonce.Disconnected("gone"),
        pgonce.Busy(0.1),
        pgonce.Conflict("another request"),
        pgonce.Invalid("the amount is missing"),
        pgonce.DatabaseError("full", code="53300"),
    )
    for error in errors:

        def own(error: Exception = error) -> Response:
            raise error

        scripted(client, own)
        response = client.post("/orders", key=type(error).__name__)
        assert (response.status, problem_of(response)["code"]) == (503, "08007"), error
    assert client.db.value("select count(*) from pgonce.intent where status = 'processing'") == len(errors)


def test_a_response_is_not_sent_for_another_end_than_its_own(client: Client) -> None:
    client.policy = Policy("orders.pay", None, mode="leased")

    def own() -> Response:
        client.db.admin.execute(LOSE)
        return Response(201, [], b"done")

    scripted(client, own)
    for _ in range(2):
        response = client.post("/orders")
        assert (response.status, problem_of(response)["reason"]) == (422, "abandoned")
    assert client.service.calls == 1


def test_a_response_that_is_too_large_says_what_may_have_happened(client: Client) -> None:
    client.policy = Policy("orders.pay", None, mode="leased", max_response=100)
    why = "too large to be kept, and this route passes no such answers on"
    texts = {
        200: f"it happened, but its answer is {why}",
        400: f"it may have happened: the answer is {why}",
        500: f"it may have happened: the answer is {why}",
    }
    for status, detail in texts.items():
        scripted(client, answering(status, 200))
        problem = problem_of(client.post("/orders", key=str(status)))
        assert (problem["code"], problem["detail"]) == ("response_too_large", detail)


def test_an_answer_that_is_larger_than_the_contract_allows_is_recorded_without_its_body(client: Client) -> None:
    client.policy = Policy("orders.pay", None, mode="leased")
    client.db.admin.execute("select pgonce.define_scope('orders.pay', interval '1 day', p_max_answer => 200)")
    for status, again, recorded in ((201, 410, "succeeded"), (500, 422, "failed_final")):
        scripted(client, answering(status, 1000))
        response = client.post("/orders", key=recorded)
        assert (response.status, len(response.body)) == (status, 1000)
        assert client.post("/orders", key=recorded).status == again
    statuses = "select string_agg(status::text, ',' order by first_at) from pgonce.intent"
    assert (client.service.calls, client.db.value(statuses)) == (2, "succeeded,failed_final")


@pytest.mark.parametrize("encoding", ["", "&client_encoding=utf8"])
@pytest.mark.parametrize("world", ["asgi", "wsgi"])
def test_a_response_is_recorded_whatever_the_database_can_hold_of_it(latin1: Database, world: str, encoding: str) -> None:
    client = Client(world, latin1, Scripted(latin1), Policy("orders.pay", None, mode="leased"), latin1.dsn + encoding)
    headers = [("location", EURO.encode()), ("pgonce-keep-for", b"9" * 400)]
    for number, (status, again) in enumerate(((201, 201), (404, 422))):
        scripted(client, lambda status=status: Response(status, list(headers), EURO.encode()))  # type: ignore[misc]
        first, second = client.post("/orders", key=str(number)), client.post("/orders", key=str(number))
        assert (first.status, second.status) == (status, again)
        assert dict(second.headers)["idempotent-replayed"] == b"true"
        if status == 201:
            assert (second.body, dict(second.headers)["location"]) == (EURO.encode(), EURO.encode())
    statuses = "select string_agg(status::text, ',' order by first_at) from pgonce.intent"
    assert (client.service.calls, latin1.value(statuses)) == (2, "succeeded,failed_final")


def test_what_is_recorded_of_a_response_is_less_each_time_that_it_is_refused() -> None:
    stored = {"http": 1, "status": 201, "headers": [["location", EURO]], "body": EURO}
    ack: Ack | None = Ack(stored, None, 60)
    seen: list[Ack] = []
    while ack is not None:
        seen.append(ack)
        ack = _edge.without_what_is_refused(ack, "22P05")
    written = {"base64": "NSDigqw="}
    plain = {**stored, "headers": [["location", written]], "body": written}
    bare = {"http": 1, "status": 201, "unkept": True}
    assert seen == [Ack(stored, None, 60), Ack(plain, None, 60), Ack(plain), Ack(bare)]
    assert _edge.without_what_is_refused(Ack(stored, None, 60), "P4040") == Ack(bare, None, 60)
    assert _edge.without_what_is_refused(Ack(stored), "40001") is None


@pytest.mark.parametrize("outcomes", ["final", "finish"])
def test_a_handler_that_breaks_off_after_it_said_that_it_is_done_is_not_repeated(client: Client, outcomes: str) -> None:
    client.policy = Policy("orders.pay", None, mode="leased", outcomes=outcomes)
    service = scripted(client, lambda: Response(201, [], b"done"))
    service.breaks_off = True
    assert problem_of(client.post("/orders"))["code"] == "handler_failed"
    assert problem_of(client.post("/orders"))["code"] == "P4029"
    assert (service.calls, client.db.value(STATUS)) == (1, "processing")


def test_a_run_of_an_atomic_route_is_not_answered_with_the_response_of_the_one_before(client: Client) -> None:
    db = client.db
    client.policy = Policy("orders.create", None)
    wait = "select pgonce.define_scope('orders.create', interval '1 day', p_busy => 'wait', p_wait_timeout => '60 seconds')"
    db.admin.execute(wait)
    # The first one is that of a look-up.
    db.proxy.faults.append(Fault("commit", "request", skip=1))

    def own() -> Response:
        if client.service.calls == 2:
            raise pgonce.PermanentFailure("card_declined", "the bank said no")
        return Response(201, [], b"done")

    scripted(client, own)
    response = client.post("/orders")
    assert (client.service.calls, response.status) == (2, 422)
    assert problem_of(response)["reason"] == "card_declined"
