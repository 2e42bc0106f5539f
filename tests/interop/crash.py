"""A writer that dies: run as a process of its own, it upserts rows and ends before the commit, as `kill -9` would.

python -m tests.interop.crash TABLE ROWS.parquet
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn
from unittest.mock import patch

import pyarrow.parquet as pq

import tablekeeper as tk
from tablekeeper.write import operation

__all__ = ["EXIT_STATUS", "main"]

EXIT_STATUS = 42


def main(path: str, rows: str) -> None:
    """Upsert, and die when all files are written and nothing is committed."""
    with patch.object(operation, "finish_write", _die):
        tk.Table.open(path, engine="local").upsert(pq.read_table(rows))


def _die(*_: object, **__: object) -> NoReturn:
    os._exit(EXIT_STATUS)


if __name__ == "__main__":
    main(*sys.argv[1:])
