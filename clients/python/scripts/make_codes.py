"""Writes src/pgonce/codes.json from the table of codes that the program publishes.

The page is generated from the Rust table, and a Rust test holds it to that.

    python scripts/make_codes.py           writes it
    python scripts/make_codes.py --check   exits with 1 where it is stale
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
PAGE = PACKAGE.parents[1] / "docs/src/reference/errors/classification.md"
TARGET = PACKAGE / "src/pgonce/codes.json"

ROW = re.compile(r"^\| \[?`(\w+)`(?:\]\(\w+\.md\))? \| ([^|]+) \| (\w+) \|", re.M)
CLASSES = {"retry", "retry_after_delay", "claim_again", "classify", "conflict", "final", "ambiguous"}


def entries(text: str) -> dict[str, dict[str, str]]:
    found = ROW.findall(text)
    # Two lines are the head of the table.
    written = sum(line.startswith("|") for line in text.splitlines()) - 2
    if not found or len(found) != written or not {kind for _, _, kind in found} <= CLASSES:
        raise SystemExit(f"read {len(found)} of {written} lines of {PAGE}: fix ROW here")
    return {code: {"name": name, "class": kind} for code, name, kind in found}


def made() -> str:
    table = PAGE.read_text("utf-8").partition("<!-- table: begin -->")[2].partition("<!-- table: end -->")[0]
    codes, _, groups = table.partition("Codes without a line of their own")
    return json.dumps({"codes": entries(codes), "groups": entries(groups)}, indent=1) + "\n"


def is_stale() -> bool:
    return not TARGET.exists() or TARGET.read_text("utf-8") != made()


if __name__ == "__main__":
    if "--check" not in sys.argv:
        TARGET.write_text(made(), "utf-8")
    elif is_stale():
        raise SystemExit(f"{TARGET} is stale: run python {Path(__file__).name}")
