"""What the Table Management Service is worth: one lake, written to in three ways.

    python -m bench.worth --tables 20 --seconds 75

Writers upsert at a fixed rate, each its own tables: with no table services at all, with services inline in the write,
and with services left to `tablekeeper serve` on the same machine. Every write is timed from the moment at which it was
due, so that a write that holds up the next one is seen. Printed and drawn: ingestion latency, time to read a table at
the end, log files that a reader has to merge, data files on disk, and conflicts.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa

import tablekeeper as tk
from tablekeeper.client.http import ServiceClient, ServiceUnreachableError
from tablekeeper.errors import ConflictError

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
MODES = {"none": "no services", "inline": "inline services", "service": "Table Management Service"}
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("ts", pa.int64()), ("fare", pa.float64())])
CITIES = ("lima", "oslo")
UPDATES = 400
WRITERS = 2
PORT = 9871
COMPACT_AFTER = 5
# The same triggers wherever services run.
OFF = {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false"}
INLINE = {
    "hoodie.compact.inline": "true",
    "hoodie.compact.inline.max.delta.commits": str(COMPACT_AFTER),
    "hoodie.clean.automatic": "true",
    "hoodie.archive.automatic": "true",
}
HOSTED = {**OFF, "hoodie.table.service.manager.uris": f"http://127.0.0.1:{PORT}"}
OPTIONS = {"none": OFF, "inline": INLINE, "service": HOSTED}


def rows(keys: list[int], ts: int) -> pa.Table:
    """Versions of these keys as of `ts`."""
    count = len(keys)
    return pa.table(
        {"id": keys, "city": [CITIES[key % len(CITIES)] for key in keys], "ts": [ts] * count, "fare": [1.0] * count},
        schema=SCHEMA,
    )


def make_lake(folder: Path, tables: int, keys: int) -> None:
    """Merge-on-read tables with all their keys."""
    first = rows(list(range(keys)), 0)
    for number in range(tables):
        made = tk.Table.create(
            folder / f"t{number:03d}", name=f"t{number:03d}", schema=SCHEMA, key="id", partition_by="city",
            ordering="ts", engine="local",
        )  # fmt: skip
        made.bulk_insert(first)


def write(folder: Path, mode: str, writer: int, *, seconds: float, every_s: float, keys: int) -> None:
    """The life of one writer: its tables in turn, one every `every_s`; what came of it goes into a file."""
    chance = random.Random(writer)
    tables = [tk.Table.open(path, engine="local", options=OPTIONS[mode]) for path in sorted(folder.glob("t*"))]
    mine = tables[writer::WRITERS]
    latencies, conflicts, number = [], 0, 0
    began = time.monotonic()
    while (due := number * every_s) < seconds:
        time.sleep(max(0.0, began + due - time.monotonic()))
        conflicts += upsert(mine[number % len(mine)], rows(chance.sample(range(keys), UPDATES), number + 1))
        latencies.append(time.monotonic() - began - due)
        number += 1
        if time.monotonic() - began > 2 * seconds:
            break
    report = {"latencies": latencies, "conflicts": conflicts}
    (folder.parent / f"{mode}-{writer}.json").write_text(json.dumps(report), encoding="utf-8")


def upsert(table: tk.Table, changed: pa.Table) -> int:
    """Write until it is there; how many conflicts that took."""
    conflicts = 0
    while True:
        try:
            table.upsert(changed)
        except ConflictError:
            conflicts += 1
        else:
            return conflicts


def run_mode(home: Path, lake: Path, mode: str, given: argparse.Namespace) -> dict[str, Any]:
    """One way on a copy of the lake."""
    folder = home / mode
    shutil.copytree(lake, folder)
    service = start_service(home, folder) if mode == "service" else None
    try:
        command = [sys.executable, "-m", "bench.worth", "--seconds", str(given.seconds)]
        command += ["--every", str(given.every), "--keys", str(given.keys)]
        writers = [
            subprocess.Popen([*command, "--write", f"{folder}:{mode}:{writer}"], cwd=ROOT) for writer in range(WRITERS)
        ]
        codes = [each.wait() for each in writers]
        if any(codes):
            raise SystemExit(f"a writer ended with {codes}")
        # What reads find when the writers stop, with the service still running.
        figures = look(folder, given.keys)
    finally:
        if service is not None:
            service.terminate()
            service.wait()
    reports = [json.loads((home / f"{mode}-{writer}.json").read_text()) for writer in range(WRITERS)]
    latencies = sorted(each for report in reports for each in report["latencies"])
    return {
        "commits": len(latencies),
        "conflicts": sum(report["conflicts"] for report in reports),
        "latency_p50_ms": 1000 * latencies[len(latencies) // 2],
        "latency_p99_ms": 1000 * latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)],
        **figures,
    }


def start_service(home: Path, folder: Path) -> subprocess.Popen[bytes]:
    """The service over this lake, with every table registered."""
    command = [sys.executable, "-m", "tablekeeper", "serve", "--allow", str(folder), "--engine", "arrow"]
    command += ["--work-dir", str(home / "work"), "--port", str(PORT), "--slots", "1"]
    with (home / "service.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
    client = ServiceClient([f"http://127.0.0.1:{PORT}"])
    for _ in range(600):
        try:
            client.get("/healthz")
            break
        except ServiceUnreachableError:
            time.sleep(0.1)
    policy = {"compact_after_commits": COMPACT_AFTER}
    for path in sorted(folder.glob("t*")):
        client.post("/v1/tables", {"db_name": "lake", "base_path": str(path), "policy": policy})
    return process


def look(folder: Path, keys: int) -> dict[str, Any]:
    """How the lake is for those who read it."""
    took, logs, most, files = [], 0, 0, 0
    for path in sorted(folder.glob("t*")):
        table = tk.Table.open(path, engine="local")
        began = time.monotonic()
        seen = table.read().num_rows
        took.append(time.monotonic() - began)
        if seen != keys:
            raise SystemExit(f"{path}: {seen} rows, and {keys} were written")
        slices = table.files().slices
        logs += sum(len(each.logs) for each in slices)
        most = max(most, *(len(each.logs) for each in slices))
        files += sum(1 for each in path.rglob("*") if each.is_file() and ".hoodie" not in each.parts)
    return {
        "read_ms": 1000 * sum(took) / len(took),
        "log_files": logs,
        "most_logs_of_a_group": most,
        "files_on_disk": files,
    }


def draw(figures: dict[str, dict[str, Any]], told: str, path: Path) -> None:
    """Four small plots beside each other."""
    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  the backend has to be chosen first

    panels = (
        ("Ingestion, ms", (("latency_p50_ms", "p50"), ("latency_p99_ms", "p99"))),
        ("Read of a table, ms", (("read_ms", "mean"),)),
        ("Logs to merge", (("log_files", "all"),)),
        ("Data files on disk", (("files_on_disk", "all"),)),
    )
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3.2), layout="constrained")
    for axis, (title, bars) in zip(axes, panels, strict=True):
        for position, (name, label) in enumerate(bars):
            places = [number + position * 0.4 for number in range(len(figures))]
            width = 0.38 if len(bars) > 1 else 0.6
            shade = ("#0a58a6", "#f0a030")[position]
            drawn = axis.bar(places, [each[name] for each in figures.values()], width, label=label, color=shade)
            axis.bar_label(drawn, fmt="{:,.0f}", fontsize=8)
        axis.set_xticks([number + 0.2 * (len(bars) - 1) for number in range(len(figures))], figures, fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.margins(y=0.15)
        axis.spines[["top", "right"]].set_visible(False)
        if len(bars) > 1:
            axis.legend(frameon=False, fontsize=8)
    figure.suptitle(told, fontsize=9)
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Run the three ways one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--keys", type=int, default=20_000, help="rows of a table")
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two writes of one writer")
    parser.add_argument("--plot", type=Path, help="where the picture goes")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.write:
        folder, mode, writer = given.write.rsplit(":", 2)
        write(Path(folder), mode, int(writer), seconds=given.seconds, every_s=given.every, keys=given.keys)
        return
    with tempfile.TemporaryDirectory(prefix="worth-") as home:
        lake = Path(home) / "lake"
        make_lake(lake, given.tables, given.keys)
        figures = {}
        for mode in MODES:
            figures[mode] = run_mode(Path(home), lake, mode, given)
            print(mode, json.dumps(figures[mode]), flush=True)
    if given.plot:
        told = (
            f"{given.tables} merge-on-read tables of {given.keys:,} rows; {WRITERS} writers, each {UPDATES} updates "
            f"every {given.every:g} s for {given.seconds:g} s"
        )
        draw(figures, told, given.plot)


if __name__ == "__main__":
    main()
