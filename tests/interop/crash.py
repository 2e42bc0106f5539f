"""A writer that dies: run as a process of its own, it upserts rows and ends before the commit, as `kill -9` would.

python -m tests.interop.crash TABLE ROWS.parquet
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn
from unittest.mock import patch

import pyarrow.parquet as pq

import tablekeeper as tk
from tablekeeper.txn import publish
from tablekeeper.write import operation

__all__ = ["EXIT_STATUS", "main"]

EXIT_STATUS = 42


def main(path: str, rows: str, options: str, moment: str) -> None:
    """Upsert, and die when all files are written; `before_publish` is after the metadata table was written to."""
    places = {"before_commit": (operation, "finish_write"), "before_publish": (publish, "complete_instant")}
    with patch.object(*places[moment], _die):
        tk.Table.open(path, engine="local", options=json.loads(options)).upsert(pq.read_table(rows))


def _die(*_: object, **__: object) -> NoReturn:
    os._exit(EXIT_STATUS)


if __name__ == "__main__":
    main(*sys.argv[1:])
