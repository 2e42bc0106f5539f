"""How far a newcomer has to read: the modules and functions of tablekeeper that one operation runs through.

    python -m bench.walk [--list]

On a small table on the local engine it follows an upsert of a few rows, and the cancel of a clustering that waits. With
`--list` every module is named with its functions. Counted is what runs in any thread, each function once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pyarrow as pa

import tablekeeper as tk

__all__ = ["main"]

PACKAGE = str(Path(tk.__file__).resolve().parent) + "/"
SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])

Walk = dict[str, set[str]]


def follow(operation: Callable[[], object]) -> Walk:
    """The functions of each module that the operation runs through; comprehensions count with their function."""
    walk: Walk = defaultdict(set)

    def note(frame: FrameType, event: str, argument: object) -> None:
        del argument
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            name = code.co_qualname.replace(".<locals>", "")
            walk[code.co_filename.removeprefix(PACKAGE).removesuffix(".py")].add(name.partition(".<")[0])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walk


def rows(*, first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": [f"{i}" for i in ids], "part": [f"p{i % 2}" for i in ids], "ts": list(ids)}, schema=SCHEMA)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.walk", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name every module and function")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tablekeeper-walk-") as folder:
        table = tk.Table.create(
            f"{folder}/table", name="walk", schema=SCHEMA, key="id", partition_by="part", ordering="ts", engine="local"
        )
        for _ in range(2):
            table.insert(rows(first=0, count=20))
        plan = None

        def cancel() -> None:
            assert plan is not None
            table.cancel(plan)

        walks = {"upsert": follow(lambda: table.upsert(rows(first=10, count=20)))}
        plan = table.schedule_clustering(cancellable=True)
        walks["cancel of a clustering"] = follow(cancel)
    for name, walk in walks.items():
        print(f"{name}: {len(walk)} modules, {sum(map(len, walk.values()))} functions")
        if given.list:
            for module in sorted(walk):
                print(f"  {module}: {', '.join(sorted(walk[module]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
