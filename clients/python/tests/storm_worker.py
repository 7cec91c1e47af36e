"""One worker of the storm, over psycopg: as clients/node/tests/storm.ts.

    python storm_worker.py <url> python <first key> <keys>
"""

from __future__ import annotations

import sys
import time
from typing import Any

import psycopg

from pgonce import Busy, Error, Lease, Tx, lease, once


def insert(tx: Tx) -> dict[str, str]:
    tx.conn.execute("insert into effect (note) values (%s)", [f"{tx.intent.scope} {tx.intent.key}"])
    tx.publish("storm", "applied", subject=tx.intent.key)
    return {"key": tx.intent.key}


def leased(held: Lease) -> None:
    with held.begin() as tx:
        tx.succeed(insert(tx))


def main(url: str, first: int, keys: int) -> None:
    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(url, sslmode="disable", connect_timeout=5)

    for at in range(keys):
        # Each worker begins elsewhere, so that they meet in the middle.
        key = f"k{(first + at) % keys}"
        is_leased = at % 4 == 3
        while True:
            try:
                if is_leased:
                    done = lease(connect, "storm.leased", key, {"key": key}, leased, length=2)
                else:
                    done = once(connect, "storm", key, {"key": key}, insert)
                break
            except (Error, psycopg.Error) as error:
                # Whatever it was: the same key again, as a client does.
                time.sleep(0.05 if isinstance(error, Busy) else 0.005)
        print("storm.leased" if is_leased else "storm", done.answer["key"], flush=True)
    print("end", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]))
