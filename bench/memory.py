"""Memory of a merge: 10 % updates into one base file of about 1 GB. The peak of the worker must stay below 1.5 GB.

    python -m bench.memory [--engine local,spark] [--rows 20000000]

The table is built first, in a process of its own. The upsert then runs in a fresh process while its memory and
that of its Python workers is sampled from outside; on the local engine the worker is the process itself, and
the updates that it was given count as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from rich.console import Console

import tablekeeper as tk
from bench.sampling import MemorySampler
from bench.workload import generate

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
LIMIT_BYTES = 1.5 * 1e9
_OPTIONS = {
    "hoodie.metadata.enable": "false",
    "hoodie.parquet.max.file.size": str(8 * 2**30),
}


def main() -> int:
    """Build, upsert, sample, report; exit status 1 over the limit."""
    parser = argparse.ArgumentParser(description="Peak memory of merging updates into one large base file.")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--engine", default="local,spark")
    parser.add_argument("--work", type=Path, default=ROOT / "bench" / "work")
    parser.add_argument("--role", choices=["build", "local", "spark"])
    arguments = parser.parse_args()
    data, table = arguments.work / f"rows-{arguments.rows}", arguments.work / "memory-table"
    if arguments.role == "build":
        _build(data, table)
        return 0
    if arguments.role:
        _upsert(arguments.role, data, table)
        return 0
    return _measure(arguments, table)


def _measure(arguments: argparse.Namespace, table: Path) -> int:
    console = Console()
    with console.status("making the input"):
        generate(arguments.rows, arguments.work)
    figures: dict[str, Any] = {"rows": arguments.rows}
    for engine in arguments.engine.split(","):
        with console.status(f"{engine}: building the base file"):
            _spawn("build", arguments)
        files = list(table.glob("*.parquet"))
        if len(files) != 1:
            raise SystemExit(f"the table has {len(files)} base files instead of one")
        with console.status(f"{engine}: merging"):
            peak = _spawn(engine, arguments)
        figures[engine] = {"base_bytes": files[0].stat().st_size, **peak}
        console.print(
            f"{engine}: base file of {figures[engine]['base_bytes'] / 1e9:.2f} GB, "
            f"peak of the largest Python process {peak['worker'] / 1e9:.2f} GB (limit {LIMIT_BYTES / 1e9:.1f} GB)"
        )
    target = ROOT / "bench" / "results" / "memory.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(figures, indent=1) + "\n")
    return int(any(f["worker"] > LIMIT_BYTES for f in figures.values() if isinstance(f, dict)))


def _spawn(role: str, arguments: argparse.Namespace) -> dict[str, int]:
    command = [sys.executable, "-m", "bench.memory", "--role", role, "--rows", str(arguments.rows)]
    roots = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(root for root in roots if root), "TZ": "UTC"}
    process = subprocess.Popen([*command, "--work", str(arguments.work)], cwd=ROOT, env=environment)
    sampler = MemorySampler(process.pid)
    status = process.wait()
    sampler.stop()
    if status:
        raise SystemExit(f"{role} failed with status {status}")
    return sampler.overall.as_dict()


def _build(data: Path, table: Path) -> None:
    shutil.rmtree(table, ignore_errors=True)
    # A reader is one source, and one source writes one file as long as it is not full.
    base = ds.dataset(data / "base", format="parquet").scanner().to_reader()
    tk.Table.create(
        str(table),
        name="memory",
        schema=base.schema,
        key="id",
        ordering="ts",
        table_type="cow",
        engine="local",
        options=_OPTIONS,
    ).bulk_insert(base)


def _upsert(engine: str, data: Path, table: Path) -> None:
    if engine == "local":
        rows: pa.Table = ds.dataset(data / "update1", format="parquet").to_table()
        tk.Table.open(str(table), engine="local").upsert(rows)
        return
    from bench.spark_session import start_session  # noqa: PLC0415  the local role must not pay for PySpark

    spark = start_session("bench-memory", {})
    tk.Table.open(str(table), spark=spark).upsert(spark.read.parquet(str(data / "update1")))
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
