"""Commands that are one statement: claim, effect and success in one round trip."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from . import _statements as sql
from ._drivers import Driver, Session
from ._drivers._params import COLON
from ._intent import Ack, Claimed, Done, Intent, Options
from ._loop import Loop
from ._protocol import (
    acquire,
    commit_alone,
    discard,
    done_now,
    query,
    refuse_open_transaction,
    release,
    settle,
    translated,
)
from ._steps import Steps
from .errors import Disconnected, Error, Invalid, LostRace, Uncertain

# What a statement must begin with to be a part of another one.
_KINDS = ("insert", "update", "delete", "merge", "select", "values")
# What may hold colons: a literal, a quoted name, a comment, a cast, a parameter, or a colon that is none of them.
_COLONS = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    |::|(?<!\w):(?P<name>[A-Za-z_]\w*)|:""",
    re.S | re.X,
)


class Statement:
    """The user's statement, as a part of ours."""

    def __init__(self, text: str, params: Mapping[str, Any] | None, intent: Intent, options: Options) -> None:
        first = (text.split(None, 1) or [""])[0]
        if first.lower() not in _KINDS:
            raise Invalid(
                f"a command of one statement cannot begin with {first!r}",
                hint="Use insert, update, delete or merge with returning, or a select; for all else once(...).",
            )
        # Names of its own, which cannot meet ours, and only those that were given.
        given = dict(params or {})
        names = {name: "own_" + "".join(chr(97 + int(digit)) for digit in str(n)) for n, name in enumerate(given)}

        def own(match: re.Match[str]) -> str:
            name = names.get(match["name"] or "")
            if name is not None:
                return ":" + name
            return match[0] if match[0] == "::" else match[0].replace(":", COLON)

        effect = f"with effect as materialized (\n{_COLONS.sub(own, text.rstrip().rstrip(';'))}\n)"
        self.alone = effect + sql.in_schema(sql.EXECUTE, options.schema)
        self.in_transaction = effect + sql.in_schema(sql.EFFECT, options.schema)
        self.effect_params = {name: given[user] for user, name in names.items()}
        self.params = {
            **self.effect_params,
            **intent.names,
            "fingerprint": intent.fingerprint,
            "correlation": intent.correlation,
            "owner": options.owner,
        }


def execute(loop: Loop, statement: Statement, known_first: bool) -> Steps[Done]:
    """Makes the statement happen once and answers with its row, now or before."""
    look = not known_first
    while loop.options.isolation is None:
        try:
            if look:
                claimed = yield from _look(loop)
                if claimed is None:
                    # A record that is no answer, or somebody holds it: the claim knows more.
                    break
                if claimed.outcome == "replay":
                    return claimed.done()
            look = True
            rows = yield from _alone(loop.driver, statement.alone, statement.params)
            return Done(json.loads(rows[0][0]), None, False, 1)
        except Error as error:
            if error.code == "P4029":
                break
            done = yield from _again(loop, error)
            if done is not None:
                return done
    return (yield from _in_transaction(loop, statement))


def _again(loop: Loop, error: Error) -> Steps[Done | None]:
    """What is stored, where the server refused the statement; else pauses before the next try, or raises."""
    # An earlier attempt's effect may be what stood in the way: its business key, or that nothing was left to do.
    if not isinstance(error, (Disconnected, Uncertain, LostRace)):
        try:
            claimed = yield from _look(loop)
            if claimed is not None and claimed.outcome == "replay":
                return claimed.done()
        except Error as unseen:
            # It says nothing about a try before whose reply was lost: the loop remembers that one.
            error = unseen
    yield from loop.again(error)
    return None


def _look(loop: Loop) -> Steps[Claimed | None]:
    intent = loop.intent
    params = {**intent.names, "fingerprint": intent.fingerprint}
    rows = yield from _alone(loop.driver, sql.in_schema(sql.LOOK, loop.options.schema), params)
    return None if rows[0][0] is None else Claimed.read(rows[0])


def _alone(driver: Driver, statement: str, params: Mapping[str, Any]) -> Steps[list[tuple[Any, ...]]]:
    """One statement that commits by itself, in one round trip where the library can."""
    session: Session = yield from acquire(driver)
    try:
        refuse_open_transaction(session)
    except BaseException as error:
        yield from release(session, isinstance(error, Invalid))
        raise
    rows: list[tuple[Any, ...]]
    if not session.can_query_alone:
        yield from release(session, True)
        return (yield from commit_alone(driver, None, statement, params))
    try:
        rows = yield from translated(lambda: session.query_alone(statement, params))
    except BaseException as error:
        in_doubt = isinstance(error, Error) and error._leaves_commit_open
        yield from release(session, isinstance(error, Error) and not in_doubt and not isinstance(error, Disconnected))
        if isinstance(error, Error) and in_doubt:
            raise Uncertain(f"the reply was lost, whether it happened is not known yet: {error.message}") from error
        raise
    yield from release(session, True)
    return rows


def _in_transaction(loop: Loop, statement: Statement) -> Steps[Done]:
    """The same in a transaction that holds the claim."""
    while True:
        found = yield from loop.attempt()
        if isinstance(found, Done):
            return found
        session, claimed = found
        try:
            try:
                rows = yield from query(session, statement.in_transaction, statement.effect_params)
            except BaseException as error:
                yield from discard(session, error)
                raise
            ack = Ack(json.loads(rows[0][0]))
            yield from settle(session, loop.intent, loop.options, claimed.fence, ack)
            return done_now(claimed, ack)
        except Error as error:
            done = yield from _again(loop, error)
            if done is not None:
                return done
