"""Writes src/pgonce/codes.json from the Rust table of codes.

    python scripts/make_codes.py           writes it
    python scripts/make_codes.py --check   exits with 1 where it is stale
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
TABLE = PACKAGE.parents[1] / "crates/pgonce/src/retry/table.rs"
TARGET = PACKAGE / "src/pgonce/codes.json"

ENTRY = re.compile(
    r'entry\(\s*"([^"]*)",\s*"([^"]*)",\s*Class::(\w+),\s*"((?:[^"\\]|\\.)*)",?\s*\)', re.S
)


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def entries(source: str, constant: str) -> dict[str, dict[str, str]]:
    body = re.search(rf"pub const {constant}: &\[Entry\] = &\[(.*?)\n\];", source, re.S)
    if body is None:
        raise SystemExit(f"{TABLE} has no constant {constant}")
    found = ENTRY.findall(body[1])
    written = body[1].count("entry(")
    if not found or len(found) != written:
        raise SystemExit(f"read {len(found)} of {written} entries of {constant}: fix ENTRY here")
    return {code: {"name": name, "class": snake(kind)} for code, name, kind, _ in found}


def made() -> str:
    source = TABLE.read_text("utf-8")
    table = {"codes": entries(source, "TABLE"), "groups": entries(source, "GROUPS")}
    return json.dumps(table, indent=1) + "\n"


def is_stale() -> bool:
    return not TARGET.exists() or TARGET.read_text("utf-8") != made()


if __name__ == "__main__":
    if "--check" not in sys.argv:
        TARGET.write_text(made(), "utf-8")
    elif is_stale():
        raise SystemExit(f"{TARGET} is stale: run python {Path(__file__).name}")
