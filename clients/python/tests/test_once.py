"""What the cases of conformance/ cannot say: the forms of the API, and what each library does."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from dataclasses import replace
from enum import Enum
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from apis import ASYNC, KINDS, Api, with_api
from conftest import Database
from proxy import Fault
from sqlalchemy.orm import Session

import pgonce
from pgonce import aio, lease, once

REQUEST = {"item": "book"}
# A server takes a moment to notice a cut connection, and holds its locks until then.
WAIT = "select pgonce.define_scope('s', interval '1 day', p_busy => 'wait', p_wait_timeout => '60 seconds')"
INSERT = "insert into effect (note) values ('x')"


def effect(tx: Any) -> dict[str, int]:
    tx.conn.execute(INSERT)
    return {"id": 1}


@pytest.fixture
def pool(db: Database) -> Any:
    with psycopg_pool.ConnectionPool(db.dsn, min_size=1, max_size=4, timeout=10) as pool:
        yield pool


# --- forms --------------------------------------------------------------------------------------


def test_a_decorated_function_is_a_command(db: Database, pool: Any) -> None:
    @once(pool, "orders.create")
    def place(tx: pgonce.Tx, key: str, request: dict[str, Any], factor: int = 1) -> dict[str, int]:
        """Places an order."""
        tx.conn.execute(INSERT)
        return {"qty": request["qty"] * factor}

    assert place.__doc__ == "Places an order."
    assert place("k", {"qty": 2}, factor=3).answer == {"qty": 6}
    again = place("k", {"qty": 2}, factor=4)
    assert again.replayed and again.answer == {"qty": 6}
    assert not place("k", {"qty": 2}, tenant="acme").replayed
    assert db.effects() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_one_statement_keeps_its_colons_casts_and_percents(db: Database, kind: str) -> None:
    statement = """insert into effect (note) -- :note
        values (:note || ' :note 50% ' || to_char('10:30'::time, 'HH24:MI') || (array['a','b','c'])[2:3]::text || :More_2)
        returning note, 5 % 3 as rest, :count::int as count;"""
    params = {"note": "n", "More_2": "m", "count": 7, "unused": None}
    params.pop("unused")
    expected = {"note": "n :note 50% 10:30{b,c}m", "rest": 2, "count": 7}

    async def test(api: Api) -> None:
        for replayed in (False, True):
            done = await api.call("execute", api.source, "s", "k", REQUEST, statement, params)
            assert (done.answer, done.replayed) == (expected, replayed)

    with_api(kind, db.dsn, test)
    assert db.effects() == 1


def test_one_statement_leaves_a_connection_as_it_was(db: Database) -> None:
    insert = "insert into effect (note) values ('x') returning id"
    with psycopg.connect(db.dsn) as conn:
        assert pgonce.execute(conn, "s", "k", REQUEST, insert).answer == {"id": 1}
        with pytest.raises(pgonce.DatabaseError):
            pgonce.execute(conn, "s", "l", REQUEST, "insert into nowhere values (1) returning 1")
        assert not conn.autocommit and not conn.closed
        conn.execute(INSERT)
        with pytest.raises(pgonce.Invalid, match="in a transaction already"):
            pgonce.execute(conn, "s", "l", REQUEST, insert)
        conn.rollback()
        assert pgonce.execute(conn, "s", "k", REQUEST, insert).replayed
    assert db.effects() == 1


def test_one_statement_that_an_earlier_effect_stands_in_the_way_of_is_replayed(db: Database, pool: Any) -> None:
    db.admin.execute("create unique index one_note on effect (note)")
    insert = "insert into effect (note) values ('x') returning id"
    assert not pgonce.execute(pool, "s", "k", REQUEST, insert, known_first=True).replayed
    assert pgonce.execute(pool, "s", "k", REQUEST, insert, known_first=True).replayed
    with pytest.raises(pgonce.DatabaseError) as raised:
        pgonce.execute(pool, "s", "other", REQUEST, insert)
    assert raised.value.code == "23505"


PAY = "update stock set state = 'paid' where item = 'book' and state = 'new' returning item"
STOCK = "create table stock (item text, state text default 'new'); insert into stock (item) values ('book')"


@pytest.mark.parametrize("kind", KINDS)
def test_one_statement_that_an_earlier_one_left_nothing_to_do_for_is_replayed(db: Database, kind: str) -> None:
    db.admin.execute(f"{STOCK}; grant all on stock to public".encode())

    async def test(api: Api) -> None:
        for replayed in (False, True):
            done = await api.call("execute", api.source, "s", "k", REQUEST, PAY, known_first=True)
            assert (done.answer, done.replayed) == ({"item": "book"}, replayed)
        # Of another intent nothing is stored.
        with pytest.raises(pgonce.Invalid) as raised:
            await api.call("execute", api.source, "s", "other", REQUEST, PAY, known_first=True)
        assert raised.value.code == "22023"

    with_api(kind, db.dsn, test)


def test_one_statement_in_a_transaction_whose_claim_came_too_early_is_replayed(db: Database, pool: Any) -> None:
    db.admin.execute(f"{STOCK}; grant all on stock to public".encode())
    first = pgonce.execute(pool, "s", "k", REQUEST, PAY)
    # As a claim sees it whose snapshot is older than the success: there is no record yet.
    db.admin.execute("create table kept as table pgonce.intent; delete from pgonce.intent")
    found: list[pgonce.Done] = []

    def duplicate() -> None:
        found.append(pgonce.execute(pool, "s", "k", REQUEST, PAY, isolation="read committed"))

    thread = threading.Thread(target=duplicate, daemon=True)
    with db.admin.transaction():
        db.admin.execute("lock table stock in exclusive mode")
        thread.start()
        while not db.value("select count(*) from pg_locks where relation = 'stock'::regclass and not granted"):
            assert thread.is_alive()
        db.admin.execute("insert into pgonce.intent table kept")
    thread.join()
    assert [(done.answer, done.replayed) for done in found] == [(first.answer, True)]


def test_a_block_looks_whether_the_work_is_its_own(db: Database, pool: Any) -> None:
    for first in (True, False):
        with once(pool, "s", "k", REQUEST) as tx:
            assert tx.is_new is first
            if tx.is_new:
                tx.conn.execute(INSERT)
                tx.succeed({"id": 7}, reference=("order", 7))
        assert (tx.answer, tx.reference, tx.replayed) == ({"id": 7}, ("order", "7"), not first)
    assert db.effects() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_up_whose_reply_is_lost_leaves_nothing_in_doubt(db: Database, pool: Any, kind: str) -> None:
    async def never(tx: Any) -> None:
        raise AssertionError("the work of another attempt is open")

    async def test(api: Api) -> None:
        # The first COMMIT ends the claim, which is busy; the second the look at the contract.
        db.proxy.faults.append(Fault("commit", "reply", skip=1))
        with pytest.raises(pgonce.Busy):
            await api.work("once", api.source, "s", "k", REQUEST, do=never)

    with once(pool, "s", "k", REQUEST) as tx:
        with_api(kind, db.cut_dsn, test)
        assert not db.proxy.faults
        tx.succeed(1)


def test_a_block_that_forgets_to_succeed_keeps_nothing_and_says_so(db: Database, pool: Any) -> None:
    with pytest.raises(pgonce.Invalid, match="never recorded"):
        with once(pool, "s", "k", REQUEST) as tx:
            tx.conn.execute(INSERT)
    assert db.effects() == 0
    assert once(pool, "s", "k", REQUEST, effect).replayed is False


def test_a_block_records_its_failure_and_raises_it(db: Database, pool: Any) -> None:
    with pytest.raises(pgonce.PermanentFailure):
        with once(pool, "s", "k", REQUEST) as tx:
            tx.conn.execute(INSERT)
            raise pgonce.PermanentFailure("no", "no")
    with pytest.raises(pgonce.PermanentFailure) as caught:
        with once(pool, "s", "k", REQUEST):
            raise AssertionError("the block must not run")
    assert caught.value.replayed and db.effects() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_whose_commit_reply_was_lost_learns_that_it_happened(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        block = api.command("once", api.source, "s", "k", REQUEST)
        tx = await api.enter(block)
        await api.execute(tx.conn, INSERT)
        tx.succeed(7)
        db.proxy.faults.append(Fault("commit", "reply"))
        await api.leave(block)
        assert tx.answer == 7 and db.proxy.struck

    with_api(kind, db.cut_dsn, test)
    assert db.effects() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_whose_commit_was_lost_is_never_called_done(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        db.admin.execute(WAIT)
        block = api.command("once", api.source, "s", "k", REQUEST)
        tx = await api.enter(block)
        await api.execute(tx.conn, INSERT)
        tx.succeed(7)
        db.proxy.faults.append(Fault("commit", "request"))
        with pytest.raises(pgonce.Disconnected):
            await api.leave(block)

    with_api(kind, db.cut_dsn, test)
    assert db.effects() == 0


# From here on a claim that has looked waits for lock 7 before it asks for the intent's.
WAIT_BEFORE_LOCK = """create or replace function pgonce._names_fit(p_tenant text, p_scope text, p_key text, p_fingerprint bytea)
returns boolean language plpgsql volatile
as $$ begin perform pg_advisory_lock(7), pg_advisory_unlock(7); return true; end $$"""
LOCKS = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_whose_commit_becomes_visible_while_it_claims_again_learns_that_it_happened(db: Database, kind: str) -> None:
    late = Fault("commit", "late")

    def commit_meanwhile(conn: psycopg.Connection[Any]) -> None:
        def wait_until(query: str) -> None:
            while conn.execute(query.encode()).fetchone() != (1,):
                pass

        # The claim has looked and found nothing.
        wait_until(f"{LOCKS} and not granted")
        late.go_on.set()
        wait_until("select count(*) from effect")
        # Lock 7 is the only one that is left, and then none is.
        wait_until(f"{LOCKS} and granted")
        conn.execute("select pg_advisory_unlock(7)")

    async def test(api: Api) -> None:
        block = api.command("once", api.source, "s", "k", REQUEST)
        tx = await api.enter(block)
        await api.execute(tx.conn, INSERT)
        tx.succeed(7)
        db.proxy.faults.append(late)
        with psycopg.connect(db.dsn, autocommit=True) as conn:
            conn.execute("select pg_advisory_lock(7)")
            conn.execute(WAIT_BEFORE_LOCK.encode())
            meanwhile = threading.Thread(target=commit_meanwhile, args=(conn,), daemon=True)
            meanwhile.start()
            await api.leave(block)
            meanwhile.join()
        assert (tx.answer, tx.replayed) == (7, True)

    with_api(kind, db.cut_dsn, test)
    assert db.effects() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_that_answers_rollback_is_noticed(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        async def do(tx: Any) -> int:
            await api.execute(tx.conn, INSERT)
            return 1

        db.proxy.faults.append(Fault("commit", "abort"))
        done = await api.work("once", api.source, "s", "k", REQUEST, do=do)
        assert db.proxy.struck and not done.replayed

    with_api(kind, db.cut_dsn, test)
    assert db.effects() == 1, "what was rolled back was run again"


@pytest.mark.parametrize("function", ["once", "lease"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_of_another_command_is_at_first_new_to_the_one_that_asked_for_it(
    db: Database, kind: str, function: str
) -> None:
    async def test(api: Api) -> None:
        async def decline(held: Any) -> None:
            raise pgonce.PermanentFailure("declined", "the bank said no", answer={"by": "bank"})

        async def ask(held: Any) -> None:
            await api.work("once", api.source, "ledger", "k", REQUEST, do=decline)

        with pytest.raises(pgonce.PermanentFailure):
            await ask(None)
        for replayed in (False, True):
            with pytest.raises(pgonce.PermanentFailure) as caught:
                await api.work(function, api.source, "s", "k", REQUEST, do=ask)
            error = caught.value
            assert (error.failure_code, error.answer, error.replayed) == ("declined", {"by": "bank"}, replayed)
        block = api.command(function, api.source, "s", "block", REQUEST)
        await api.enter(block)
        with pytest.raises(pgonce.PermanentFailure) as caught:
            await api.leave(block, error)
        assert not caught.value.replayed

    with_api(kind, db.dsn, test)


# --- autocommit and open transactions -----------------------------------------------------------


def refused(db: Database, call: Any) -> None:
    with pytest.raises(pgonce.NotInTransaction) as caught:
        call()
    assert caught.value.code == "25P01"
    assert db.effects() == 0
    assert db.value("select count(*) from pgonce.intent") == 0


def test_autocommit_is_refused_before_any_effect(db: Database) -> None:
    with psycopg.connect(db.dsn, autocommit=True) as conn:
        refused(db, lambda: once(conn, "s", "k", REQUEST, effect))
        refused(db, lambda: once(conn, "s", "k", REQUEST).__enter__())
        refused(db, lambda: pgonce.join(conn, "s", "k", REQUEST).__enter__())
        refused(db, lambda: pgonce.publish(conn, "t", "e", {}))
        refused(db, lambda: pgonce.accept(conn, "c", "s", "m"))
        refused(db, lambda: pgonce.accept_batch(conn, "c", "s", [("m", b"")]))
        with conn.transaction(), pgonce.join(conn, "s", "k", REQUEST) as tx:
            tx.succeed(1)
    with psycopg_pool.ConnectionPool(db.dsn, min_size=1, kwargs={"autocommit": True}) as pool:
        with pytest.raises(pgonce.NotInTransaction):
            once(pool, "s", "k2", REQUEST, effect)
    assert db.effects() == 0


def test_autocommit_of_sqlalchemy_is_refused_before_any_effect(db: Database) -> None:
    url = db.dsn.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")

    def work(tx: Any) -> None:
        tx.conn.exec_driver_sql(INSERT)

    refused(db, lambda: once(engine, "s", "k", REQUEST, work))
    with engine.connect() as conn:
        refused(db, lambda: once(conn, "s", "k", REQUEST, work))
        refused(db, lambda: pgonce.publish(conn, "t", "e", {}))
    engine.dispose()


def test_autocommit_of_asynchronous_libraries_is_refused(db: Database) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(db.dsn.partition("?")[0], ssl=False)
        with pytest.raises(pgonce.NotInTransaction):
            await aio.publish(conn, "t", "e", {})
        with pytest.raises(pgonce.NotInTransaction):
            await aio.join(conn, "s", "k", REQUEST).__aenter__()
        await conn.close()
        auto = await psycopg.AsyncConnection.connect(db.dsn, autocommit=True)
        with pytest.raises(pgonce.NotInTransaction):
            await aio.once(auto, "s", "k", REQUEST).__aenter__()
        await auto.close()

    asyncio.run(main())


def test_an_open_transaction_is_not_committed_by_pgonce(db: Database) -> None:
    with psycopg.connect(db.dsn) as conn:
        conn.execute(INSERT)
        with pytest.raises(pgonce.Invalid, match="join"):
            once(conn, "s", "k", REQUEST, effect)
        conn.rollback()
    assert db.effects() == 0


def test_a_joined_claim_commits_with_the_callers_transaction(db: Database) -> None:
    with psycopg.connect(db.dsn) as conn:
        conn.execute(INSERT)
        with pgonce.join(conn, "s", "k", REQUEST) as tx:
            assert tx.is_new
            tx.succeed(1)
        conn.rollback()
        assert db.effects() == 0
        conn.execute(INSERT)
        with pgonce.join(conn, "s", "k", REQUEST) as tx:
            assert tx.is_new
            tx.succeed(2)
        conn.commit()
        with pgonce.join(conn, "s", "k", REQUEST) as tx:
            assert not tx.is_new and tx.answer == 2
    assert db.effects() == 1


def test_a_pool_holds_no_transaction_to_publish_in(db: Database, pool: Any) -> None:
    with pytest.raises(pgonce.Invalid, match="pool"):
        pgonce.publish(pool, "t", "e", {})


def test_a_commit_by_hand_is_noticed_and_not_acknowledged(db: Database, pool: Any) -> None:
    def work(tx: Any) -> int:
        tx.conn.execute(INSERT)
        tx.conn.commit()
        return 1

    with pytest.raises(pgonce.DatabaseError) as caught:
        once(pool, "s", "k", REQUEST, work)
    assert caught.value.code == "2D000"
    assert db.value("select count(*) from pgonce.intent") == 0


# --- libraries ----------------------------------------------------------------------------------


def test_a_replay_keeps_the_prepared_statements_of_psycopg(db: Database) -> None:
    with psycopg.connect(db.dsn) as conn:
        conn.prepare_threshold = 0
        once(conn, "s", "k", REQUEST, effect)
        before = conn.execute("select count(*) from pg_prepared_statements", prepare=False).fetchone()
        conn.commit()
        assert once(conn, "s", "k", REQUEST, effect).replayed
        after = conn.execute("select count(*) from pg_prepared_statements", prepare=False).fetchone()
        assert before is not None and before == after and before[0] > 0


def test_an_orm_session_commits_its_objects_with_the_answer(db: Database) -> None:
    engine = sqlalchemy.create_engine(db.dsn.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session:
        for first in (True, False):
            with once(session, "s", "k", REQUEST) as tx:
                assert tx.is_new is first
                if tx.is_new:
                    tx.conn.execute(sqlalchemy.text(INSERT))
                    tx.succeed(1)
        assert tx.replayed
    engine.dispose()
    assert db.effects() == 1


def test_a_block_of_asyncpg_inside_the_work_is_a_savepoint(db: Database) -> None:
    async def test(api: Api) -> None:
        async def do(tx: Any) -> int:
            with pytest.raises(asyncpg.DivisionByZeroError):
                async with tx.conn.transaction():
                    await tx.conn.execute(INSERT)
                    await tx.conn.execute("select 1/0")
            async with tx.conn.transaction():
                await tx.conn.execute(INSERT)
            return 1

        for _ in range(2):
            await api.work("once", api.source, "s", "k", REQUEST, do=do)
        async with api.source.acquire() as conn, conn.transaction():
            await conn.execute("select 1")

    with_api("asyncpg", db.dsn, test)
    assert db.effects() == 1


def test_the_wrong_kind_of_source_is_refused_with_the_right_one(db: Database, pool: Any) -> None:
    with pytest.raises(pgonce.Invalid, match="synchronous"):
        aio.once(pool, "s", "k", REQUEST)
    with pytest.raises(pgonce.Invalid, match="source of connections"):
        once(7, "s", "k", REQUEST)


@pytest.mark.parametrize("kind", ASYNC)
def test_a_cancelled_block_leaves_nothing(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        inside = asyncio.Event()

        async def block() -> None:
            async with aio.once(api.source, "s", "k", REQUEST) as tx:
                await api.execute(tx.conn, INSERT)
                tx.succeed(1)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(block())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_api(kind, db.dsn, test)
    assert db.effects() == 0


@pytest.mark.parametrize("kind", ASYNC)
def test_a_cancelled_command_leaves_nothing_and_its_connection_is_not_used_again(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        inside = asyncio.Event()

        async def hang(tx: Any) -> None:
            await api.execute(tx.conn, INSERT)
            inside.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(aio.once(api.source, "s", "k", REQUEST, hang))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def do(tx: Any) -> int:
            await api.execute(tx.conn, INSERT)
            return 1

        db.admin.execute(WAIT)
        done = await aio.once(api.source, "s", "k", REQUEST, do)
        assert not done.replayed

    with_api(kind, db.dsn, test)
    assert db.effects() == 1


# --- many at once -------------------------------------------------------------------------------


def _duplicate(dsn: str, keys: int, start: Any, results: Any) -> None:
    policy = pgonce.Policy(max_tries=50)
    start.wait()
    for key in range(keys):
        done = once(lambda: psycopg.connect(dsn), "s", f"k{key}", REQUEST, effect, retry=policy)
        results.put((key, done.replayed))


def test_duplicates_from_many_processes_make_one_effect_each(db: Database) -> None:
    db.admin.execute(WAIT)
    context = multiprocessing.get_context("spawn")
    workers, keys = 6, 10
    start, results = context.Barrier(workers), context.Queue()
    processes = [
        context.Process(target=_duplicate, args=(db.dsn, keys, start, results)) for _ in range(workers)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in range(workers * keys)]
    for process in processes:
        process.join()
    assert sorted(key for key, replayed in found if not replayed) == list(range(keys))
    assert db.effects() == keys


def test_a_duplicate_waits_for_the_answer_where_the_contract_says_so(db: Database, pool: Any) -> None:
    db.admin.execute(WAIT)
    answers: list[Any] = []
    with once(pool, "s", "k", REQUEST) as tx:
        other = threading.Thread(target=lambda: answers.append(once(pool, "s", "k", REQUEST, effect)))
        other.start()
        # Only once it waits for the lock is the first attempt ended.
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and wait_event = 'advisory'"
        while db.value(waiting) == 0:
            pass
        tx.succeed("first")
    other.join()
    assert [(done.replayed, done.answer) for done in answers] == [(True, "first")]
    assert db.effects() == 0


def test_a_wait_that_is_ended_by_a_timeout_of_the_session_goes_on(db: Database, pool: Any) -> None:
    db.admin.execute(WAIT)
    answers: list[Any] = []
    cancel = (
        "select pg_cancel_backend(pid) from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'advisory'"
    )
    with once(pool, "s", "k", REQUEST) as tx:
        other = threading.Thread(target=lambda: answers.append(once(pool, "s", "k", REQUEST, effect)))
        other.start()
        for _ in range(2):
            # It sleeps again, unless it has given up.
            while not db.value(cancel) and other.is_alive():
                pass
        tx.succeed("first")
    other.join()
    assert [(done.replayed, done.answer) for done in answers] == [(True, "first")]


class Order(str, Enum):
    FIRST = "order-1"


def test_the_id_of_what_was_made_is_what_a_member_of_an_enumeration_holds(db: Database, pool: Any) -> None:
    for _ in range(2):
        with once(pool, "s", "k", REQUEST) as tx:
            if tx.is_new:
                tx.succeed(reference=("order", Order.FIRST))
        assert tx.reference == ("order", "order-1")


# --- leases -------------------------------------------------------------------------------------


def test_a_lease_is_renewed_while_the_work_runs(db: Database, pool: Any) -> None:
    def work(held: pgonce.Lease) -> int:
        until = "select extract(epoch from lease_until) from pgonce.intent"
        first = db.value(until)
        while db.value(until) == first:
            held.check()
        return held.fence

    done = lease(pool, "s", "k", REQUEST, work, length=9)
    assert done.answer % 2 == 0 and not done.replayed
    assert lease(pool, "s", "k", REQUEST, work, length=9).replayed


def take_over(db: Database, intent: pgonce.Intent) -> int:
    """Claims the intent as if its lease had run out. In one transaction: a heartbeat must not come between."""
    while True:
        with db.admin.transaction(force_rollback=False) as block:
            db.admin.execute("select pgonce._move_clock(interval '1 hour')")
            claim = "select outcome, fence from pgonce.claim('s', 'k', %s, interval '1 hour')"
            row = db.admin.execute(claim, [intent.fingerprint]).fetchone()
            assert row is not None
            if row[0] == "busy":
                # A heartbeat that is being made right now holds the row.
                raise psycopg.Rollback(block)
            assert row[0] == "takeover"
            return int(row[1])


def test_a_lost_lease_is_noticed_and_the_work_of_the_new_holder_stands(db: Database, pool: Any) -> None:
    def work(held: pgonce.Lease) -> str:
        fence = take_over(db, held.intent)
        db.admin.execute("select pgonce.succeed('s', 'k', %s, %s, '\"new\"')", [held.intent.fingerprint, fence])
        while not held.is_lost:
            pass
        with pytest.raises(pgonce.Fenced):
            held.check()
        with pytest.raises(pgonce.Fenced):
            with held.begin() as tx:
                tx.conn.execute(INSERT)
        return "old"

    done = lease(pool, "s", "k", REQUEST, work, length=0.3)
    assert done.replayed and done.answer == "new"
    assert db.effects() == 0


def test_work_that_was_done_is_not_said_to_be_busy_elsewhere(db: Database, pool: Any) -> None:
    """Busy says that nothing was done. Here it was, and the new holder is still at work."""

    def work(held: pgonce.Lease) -> str:
        take_over(db, held.intent)
        return "done outside"

    with pytest.raises(pgonce.Uncertain):
        lease(pool, "s", "k", REQUEST, work, length=0.3)


@pytest.mark.parametrize("kind", ASYNC)
def test_asynchronous_work_is_cancelled_when_its_lease_is_lost(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        with pytest.raises(pgonce.Fenced):
            async with aio.lease(api.source, "s", "k", REQUEST, length=0.3) as held:
                take_over(db, held.intent)
                await asyncio.Event().wait()
        assert held.is_lost

    with_api(kind, db.dsn, test)


@pytest.mark.parametrize("end", ["writes", "release"])
@pytest.mark.parametrize("kind", ASYNC)
def test_a_lease_that_has_ended_is_not_renewed_and_its_block_not_cancelled(db: Database, kind: str, end: str) -> None:
    async def test(api: Api) -> None:
        block = aio.lease(api.source, "s", "k", REQUEST, length=0.3)
        async with block as held:
            if end == "release":
                await held.release()
            else:
                async with held.begin() as tx:
                    tx.succeed(7)
            assert block._renewal is not None
            while not block._renewal.task.done():
                await asyncio.sleep(0.01)
        assert held._lost is None
        assert (held.answer, held.is_lost) == ((7, False) if end == "writes" else (None, held.is_lost))

    with_api(kind, db.dsn, test)
    assert db.value("select status::text from pgonce.intent") == (
        "succeeded" if end == "writes" else "failed_retryable"
    )


def test_a_success_that_is_recorded_is_not_lost_by_the_clock(db: Database, pool: Any) -> None:
    with lease(pool, "s", "k", REQUEST, length=0.3) as held:
        with held.begin() as tx:
            tx.succeed(7)
        while held._left > 0:
            pass
        held.check()
        assert not held.is_lost


@pytest.mark.parametrize("kind", KINDS)
def test_a_lease_without_renewal_is_not_renewed_and_is_lost_by_the_clock(db: Database, kind: str) -> None:
    db.proxy.faults.append(Fault("select 'done' from pgonce.heartbeat", "request"))
    kinds: list[str] = []

    async def test(api: Api) -> None:
        async def work(held: Any) -> str:
            kinds.append(held.kind)
            if len(kinds) == 1:
                if api.is_async:
                    await asyncio.Event().wait()
                while not held.is_lost:
                    pass
                held.check()
            return "second"

        done = await api.work("lease", api.source, "s", "k", REQUEST, do=work, length=0.3, renew=False)
        assert done.answer == "second"

    db.admin.execute("select pgonce.define_scope('s', interval '1 day', p_busy => 'wait', p_wait_timeout => '60 seconds')")
    with_api(kind, db.cut_dsn, test)
    assert (kinds, db.proxy.struck) == (["fresh", "takeover"], [])


@pytest.mark.parametrize("kind", ASYNC)
def test_a_block_whose_lease_runs_out_without_renewal_is_cancelled(db: Database, kind: str) -> None:
    async def test(api: Api) -> None:
        with pytest.raises(pgonce.Fenced):
            async with aio.lease(api.source, "s", "k", REQUEST, length=0.3, renew=False) as held:
                await held.heartbeat()
                await asyncio.Event().wait()
        assert held.is_lost

    with_api(kind, db.dsn, test)


def test_work_under_a_lease_that_raises_leaves_the_claim_to_the_contract(db: Database, pool: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        with lease(pool, "s", "k", REQUEST, length=60):
            1 / 0
    assert db.value("select status::text from pgonce.intent") == "processing"
    with pytest.raises(pgonce.Busy) as caught:
        lease(pool, "s", "k", REQUEST, lambda held: 1, length=60)
    assert 0 < caught.value.retry_after <= 60


def test_a_lease_needs_a_source_of_connections(db: Database) -> None:
    with psycopg.connect(db.dsn) as conn, pytest.raises(pgonce.Invalid, match="needs a pool"):
        lease(conn, "s", "k", REQUEST, lambda held: 1)


# --- retries ------------------------------------------------------------------------------------


def test_the_librarys_own_exception_is_raised_where_a_retry_does_not_help(db: Database, pool: Any) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        once(pool, "s", "k", REQUEST, lambda tx: tx.conn.execute("select 1/0"))
    with pytest.raises(KeyError):
        once(pool, "s", "k", REQUEST, lambda tx: REQUEST["absent"])


def test_a_server_that_is_away_is_reported_as_disconnected() -> None:
    def connect() -> Any:
        return psycopg.connect("postgresql://postgres@127.0.0.1:1/none?connect_timeout=2")

    with pytest.raises(pgonce.Disconnected):
        once(connect, "s", "k", REQUEST, effect, retry=pgonce.Policy(max_tries=2))


def test_asynchronous_work_is_run_again_by_the_transact_that_awaits_it(db: Database) -> None:
    runs = []

    async def work() -> int:
        async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
            runs.append(await conn.execute(INSERT))
            if len(runs) == 1:
                await conn.execute("do $$ begin raise exception 'again' using errcode = '40001'; end $$")
        return len(runs)

    assert asyncio.run(aio.transact(work)) == 2
    with pytest.raises(pgonce.Invalid, match="asynchronous"):
        asyncio.run(pgonce.transact(work))
    assert db.effects() == 1

    async def own() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(aio.transact(own))


def test_transact_runs_again_what_was_rolled_back(db: Database) -> None:
    runs = []

    def work() -> None:
        with psycopg.connect(db.dsn) as conn:
            runs.append(conn.execute(INSERT))
            if len(runs) == 1:
                conn.execute("do $$ begin raise exception 'again' using errcode = '40001'; end $$")

    pgonce.transact(work)
    assert len(runs) == 2 and db.effects() == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault("commit", "reply"),
        Fault("commit", "reply", error=("FATAL", "53100")),
        Fault("commit", "reply", error=("FATAL", "57P01")),
    ],
)
def test_transact_does_not_run_again_what_may_have_been_committed(db: Database, fault: Fault) -> None:
    db.proxy.faults.append(replace(fault))

    def work() -> None:
        with psycopg.connect(db.cut_dsn) as conn:
            conn.execute(INSERT)

    with pytest.raises(psycopg.OperationalError):
        pgonce.transact(work)
    assert (db.effects(), len(db.proxy.struck)) == (1, 1)


def test_transact_runs_again_what_was_idle_for_too_long_in_its_transaction(db: Database) -> None:
    runs = []

    def idle_for_too_long() -> None:
        with psycopg.connect(db.dsn) as conn:
            conn.execute(INSERT)
            pid = conn.info.backend_pid
            conn.execute("set local idle_in_transaction_session_timeout = '1ms'")
            while db.value(f"select count(*) from pg_stat_activity where pid = {pid}"):
                pass
            conn.execute(INSERT)

    def work() -> None:
        runs.append(1)
        while len(runs) == 1:
            try:
                idle_for_too_long()
            except psycopg.Error as error:
                # libpq drops the server's last words where they are read together with the reply before.
                if error.sqlstate is not None:
                    raise
        with psycopg.connect(db.dsn) as conn:
            conn.execute(INSERT)

    pgonce.transact(work)
    assert len(runs) == 2 and db.effects() == 1


def test_transact_runs_again_what_got_no_connection_of_a_server_that_is_full(db: Database) -> None:
    name = f"full_{db.value('select current_database()')}"
    db.admin.execute(f"create role {name} login connection limit 0".encode())
    runs = []

    async def connect() -> None:
        runs.append(1)
        try:
            await (await asyncpg.connect(db.dsn.partition("?")[0], user=name, ssl=False)).close()
        except asyncpg.TooManyConnectionsError:
            db.admin.execute(f"alter role {name} connection limit -1".encode())
            raise

    pgonce.transact(lambda: asyncio.run(connect()))
    assert len(runs) == 2


def test_transact_runs_again_what_a_stale_session_refused() -> None:
    errors = [psycopg.errors.InvalidSqlStatementName('prepared statement "s1" does not exist')]

    def work() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert pgonce.transact(work) == "done"


def test_transact_runs_again_what_pgonce_says_did_nothing() -> None:
    errors: list[pgonce.Error] = [pgonce.Disconnected("gone"), pgonce.DatabaseError("again", code="40001")]

    def work() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert pgonce.transact(work) == "done"


def test_an_attempt_that_is_rolled_back_publishes_nothing_and_the_next_one_event(db: Database, pool: Any) -> None:
    ids = []

    def work(tx: Any) -> None:
        ids.append(tx.publish("orders", "order.created", {"id": 1}, subject="1"))
        if len(ids) == 1:
            tx.conn.execute("do $$ begin raise exception 'again' using errcode = '40001'; end $$")

    once(pool, "s", "k", REQUEST, work)
    assert len(ids) == 2
    assert db.value("select string_agg(message_id::text, ',') from pgonce.outbox") == str(ids[1])
