"""Statements are written with `:name`; each library has a style of its own."""

from __future__ import annotations

import re
from functools import lru_cache

# A cast (::text) is no parameter.
_NAME = re.compile(r"(?<![:\w]):([a-z_]+)")

COLON = "\x01"
"""A colon that begins no parameter, in a statement of the user's."""


@lru_cache(maxsize=256)
def named(sql: str) -> str:
    """For psycopg: `%(name)s`."""
    return _NAME.sub(r"%(\1)s", sql.replace("%", "%%")).replace(COLON, ":")


@lru_cache(maxsize=256)
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """For asyncpg: `$1`, and the names in their order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _NAME.sub(number, sql).replace(COLON, ":"), tuple(names)


@lru_cache(maxsize=256)
def spaced(sql: str) -> str:
    """For SQLAlchemy's text(), which takes no parameter right before a cast."""
    return _NAME.sub(r":\1 ", sql).replace(COLON, "\\:")
