"""Say what services have summed up, once they are there: `totals.py LAST_ID DATABASE...`."""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import closing

QUERY = "SELECT last_id, (SELECT sum(orders) FROM totals), (SELECT sum(cents) FROM totals)"


def main(last_id: int, paths: list[str]) -> None:
    for path in paths:
        with closing(sqlite3.connect(path)) as database:
            while True:
                [(id_, orders, cents)] = database.execute(f"{QUERY} FROM cursor")
                if id_ >= last_id:
                    break
                time.sleep(0.1)
        print(f"{path}: {orders} orders, {cents} cents")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
