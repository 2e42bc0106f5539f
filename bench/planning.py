"""Planning: scheduling on a table with very many partitions, of which ten were touched since the last plan.

    python -m bench.planning --memory 640000 --disk 64000 --full 64000

Three tables: in memory, in memory with a metadata table, and on local disk; each also with a hundredth of the
partitions, so that one sees what depends on their number. Printed are the seconds and the storage calls of scheduling,
beside those of planning that looks at all partitions, which is measured on a smaller table where it would take too
long: its size is printed too. Ends with status 1 if scheduling took a second or more, or if the number of its storage
calls follows the number of partitions.

The partitions that make up the number are put in place file by file, as in `tests/support/wide_table.py`; the writes to
the ten, the plans and the timeline are made through the public API.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from tablekeeper.storage import forget_memory
from tests.support.wide_table import FULL, WideTable, make_wide_table

__all__ = ["main"]

RESULTS = Path(__file__).resolve().parent / "results"
LIMIT_S = 1.0
ROUNDS = 3
SMALLER = 100
TOUCHED = 10
STORES = ("memory", "memory, metadata table", "local disk")


@dataclass(frozen=True)
class Figure:
    """One service on one table. `calls` are storage calls; of full planning on a table with `full_partitions`."""

    store: str
    partitions: int
    service: str
    seconds: float
    calls: int
    full_partitions: int
    full_seconds: float
    full_calls: int


T = TypeVar("T")
Spent = dict[str, tuple[float, int]]
"""Seconds and storage calls by service."""


def main() -> int:
    """Measure, print and save; exit status 1 if a figure is not good enough."""
    arguments = _arguments()
    console = Console(width=max(Console().width, 120))
    load = os.getloadavg()[0]
    if load > 1:
        console.print(f"[yellow]load is {load:.1f}: figures are not those of a quiet machine")
    figures: list[Figure] = []
    for store in arguments.stores:
        most = arguments.disk if store == "local disk" else arguments.memory
        for partitions in dict.fromkeys((max(most // SMALLER, TOUCHED), most)):
            with console.status(f"{store}: {partitions:,} partitions"):
                figures += _measure(store, partitions, full_partitions=min(partitions, arguments.full))
    console.print(_table(figures))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "planning.json"
    saved = {"touched": TOUCHED, "load_at_start": load, "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    console.print(f"saved {path.relative_to(RESULTS.parent.parent)}")
    problems = find_problems(figures)
    for problem in problems:
        console.print(f"[red]{problem}")
    return 1 if problems else 0


def find_problems(figures: list[Figure]) -> list[str]:
    """Where scheduling took too long, or its storage calls follow the number of partitions."""
    problems = [
        f"{each.store}: scheduling {each.service} on {each.partitions:,} partitions took {each.seconds:.2f} s"
        for each in figures
        if each.seconds >= LIMIT_S
    ]
    calls: dict[tuple[str, str], set[int]] = defaultdict(set)
    for each in figures:
        calls[each.store, each.service].add(each.calls)
    problems += [
        f"{store}: scheduling {service} made {sorted(different)} storage calls, depending on the number of partitions"
        for (store, service), different in calls.items()
        if len(different) > 1
    ]
    return problems


def _measure(store: str, partitions: int, *, full_partitions: int) -> list[Figure]:
    with _wide_table(store, partitions) as wide:
        rounds = [_schedule_all(wide) for _ in range(ROUNDS)]
        full = _plan_in_full(wide) if partitions == full_partitions else {}
    if not full and partitions > full_partitions:
        with _wide_table(store, full_partitions) as wide:
            wide.touch()
            full = _plan_in_full(wide)
    return [
        Figure(
            store=store,
            partitions=partitions,
            service=service,
            seconds=statistics.median(spent[service][0] for spent in rounds),
            calls=calls,
            full_partitions=full_partitions,
            full_seconds=full[service][0],
            full_calls=full[service][1],
        )
        for service, (_, calls) in rounds[-1].items()
    ]


@contextmanager
def _wide_table(store: str, partitions: int) -> Iterator[WideTable]:
    """A table with a first plan of every service behind it, and then so many partitions."""
    folder, name = tempfile.mkdtemp(prefix="tablekeeper-planning-"), str(uuid.uuid4())
    try:
        place = f"{folder}/table" if store == "local disk" else f"memory://{name}/table"
        wide = make_wide_table(place, lived_in=TOUCHED, spread=max(1, partitions // TOUCHED))
        wide.touch()
        wide.run_services()
        wide.widen(partitions, metadata="metadata table" in store)
        yield wide
    finally:
        forget_memory(name)
        shutil.rmtree(folder)


def _schedule_all(wide: WideTable) -> Spent:
    """Touch the ten partitions, then schedule and execute one service after the other; only scheduling is timed."""
    wide.touch()
    table, spent = wide.table, Spent()
    for service, schedule in (
        ("log compaction", table.schedule_log_compaction),
        ("compaction", table.schedule_compaction),
        ("clustering", table.schedule_clustering),
    ):
        plan, spent[service] = _timed(wide, schedule)
        if plan is None or len(plan.partitions) != TOUCHED:
            raise RuntimeError(f"{service}: {TOUCHED} partitions were touched, and the plan is {plan}")
        table.execute(plan)
    wide.touch()
    explained, spent["clean (dry run)"] = _timed(wide, lambda: table.explain_clean(keep_commits=1))
    if not explained.files:
        raise RuntimeError(f"clean: there was nothing to delete: {explained}")
    table.clean(keep_commits=1)
    return spent


def _plan_in_full(wide: WideTable) -> Spent:
    """The same plans, made by looking at all partitions, and not put on the timeline."""
    table, spent = wide.table, Spent()
    _, spent["log compaction"] = _timed(wide, lambda: table.explain_log_compaction(options=FULL))
    _, spent["compaction"] = _timed(wide, lambda: table.explain_compaction(options=FULL))
    _, spent["clustering"] = _timed(wide, lambda: table.explain_clustering(options=FULL))
    _, spent["clean (dry run)"] = _timed(wide, lambda: table.explain_clean(keep_commits=1, options=FULL))
    return spent


def _timed(wide: WideTable, call: Callable[[], T]) -> tuple[T, tuple[float, int]]:
    wide.store.reset()
    started_s = time.perf_counter()
    result = call()
    return result, (time.perf_counter() - started_s, len(wide.store.calls))


def _table(figures: list[Figure]) -> Table:
    table = Table(title=f"planning after {TOUCHED} partitions were touched")
    for name in ("store", "partitions", "service"):
        table.add_column(name, justify="right" if name == "partitions" else "left")
    for name in ("seconds", "storage calls", "full planning of", "seconds", "storage calls"):
        table.add_column(name, justify="right")
    last = ""
    for each in figures:
        title = f"{each.store} {each.partitions}"
        if last and title != last:
            table.add_section()
        table.add_row(
            *(("", "") if title == last else (each.store, f"{each.partitions:,}")),
            each.service,
            f"{each.seconds:.3f}",
            f"{each.calls:,}",
            f"{each.full_partitions:,}",
            f"{each.full_seconds:.1f}",
            f"{each.full_calls:,}",
        )
        last = title
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", type=int, default=640_000, help="partitions of the tables in memory")
    parser.add_argument("--disk", type=int, default=64_000, help="partitions of the table on local disk")
    parser.add_argument("--full", type=int, default=64_000, help="partitions of which all are looked at, at most")
    parser.add_argument("--stores", type=_stores, default=STORES, help=f"of {STORES}, with semicolons between them")
    return parser.parse_args()


def _stores(text: str) -> list[str]:
    names = [name.strip() for name in text.split(";")]
    unknown = [name for name in names if name not in STORES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown} not among {'; '.join(STORES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
