"""`make bench-scale`: what an upsert costs in a table of few and of many file groups, beside Java Hudi.

    python -m bench.scale [--rows 4000000] [--groups 8,100,700] [--only ours_local,ours_spark,java] [--type mor]

One flat table for each number of file groups, in which the same half of the rows is updated, in copies of it: each
contender in a process of its own, warmed up before. Time, processor time and memory are of the upsert alone; what
a read gives afterwards has to be the same for all. `--groups` that differ in nothing else show how cost grows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

import tablekeeper as tk
from bench.sampling import MemorySampler
from bench.spark_session import hudi_jar, start_session
from bench.workload import aggregate

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
CONTENDERS = {"java": "Java Hudi", "ours_spark": "Spark engine", "ours_local": "local engine"}
SHADES = {"java": "#888888", "ours_spark": "#0a58a6", "ours_local": "#f0a030"}
_TYPES = {"mor": "MERGE_ON_READ", "cow": "COPY_ON_WRITE"}
_WARM_ROWS = 2_000
_JAVA = {
    "hoodie.table.name": "flat",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.table.ordering.fields": "ts",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.index.type": "SIMPLE",
    "hoodie.metadata.enable": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.upsert.shuffle.parallelism": "4",
}
_JAVA_SESSION = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}


def main() -> int:
    """Measure what was asked for; exit status 1 if a contender failed or disagrees."""
    given = _arguments()
    if given.role:
        _upsert(given.role, given.table, given.work, table_type=given.type)
        return 0
    console = Console(width=max(Console().width, 110))
    figures: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in given.only}
    checks = set()
    for groups in given.groups:
        origin = _make_table(given, groups)
        for name in given.only:
            found = _measure(given, name, origin)
            checks.add(json.dumps(found.pop("check")))
            figures[name][str(groups)] = found
            console.print(f"{groups:>5} file groups, {CONTENDERS[name]}: {json.dumps(found)}")
    told = {"rows": given.rows, "updated": given.rows // 2, "type": given.type, "figures": figures}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"scale-{given.type}-{given.rows}.json"
    path.write_text(json.dumps({**told, "load": os.getloadavg()[0]}, indent=1) + "\n")
    console.print(f"saved {path.relative_to(ROOT)}")
    if given.plot:
        _draw(told, given.plot)
    if len(checks) > 1:
        console.print(f"[red]void: what is read afterwards differs: {sorted(checks)}")
    return int(len(checks) > 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=int(os.environ.get("ROWS") or 4_000_000))
    parser.add_argument("--groups", type=lambda text: [int(n) for n in text.split(",")], default=[8, 100, 700])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CONTENDERS))
    parser.add_argument("--type", choices=list(_TYPES), default="mor")
    parser.add_argument("--plot", type=Path, help="where the picture goes")
    parser.add_argument("--work", type=Path, default=ROOT / "bench" / "work" / "scale")
    parser.add_argument("--role", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _rows(numbers: Any, *, ts: int) -> pa.Table:
    count = len(numbers)
    rng = np.random.default_rng(ts)
    return pa.table(
        {
            "id": pa.array(numbers).cast(pa.string()),
            "ts": pa.array(np.full(count, ts, np.int64)),
            "f1": rng.random(count),
            "l1": rng.integers(0, 1_000_000, count),
            "s1": pa.array(rng.integers(0, 1 << 40, count)).cast(pa.string()),
            "s2": pa.array([f"city_{n}" for n in range(1000)]).take(pa.array(rng.integers(0, 1000, count))),
        }
    )


def _make_table(given: argparse.Namespace, groups: int) -> Path:
    """A flat table of so many file groups, and the rows that update half of it."""
    shutil.rmtree(given.work / "tables", ignore_errors=True)
    home = given.work / "tables" / str(groups)
    order = np.random.default_rng(7).permutation(given.rows)
    options = {
        # In rows, by an estimate of one byte a row.
        "hoodie.parquet.max.file.size": str(-(-given.rows // groups)),
        "hoodie.copyonwrite.record.size.estimate": "1",
        "hoodie.parquet.small.file.limit": "0",
        "hoodie.metadata.enable": "false",
    }
    for name, numbers in (("flat", order), ("warm", order[:_WARM_ROWS])):
        rows = _rows(numbers, ts=1)
        table = tk.Table.create(
            str(home / name), name="flat", schema=rows.schema, key="id", partition_by=None, ordering="ts",
            table_type=given.type, engine="local", options=options,
        )  # fmt: skip
        table.insert(rows)
    found = len(tk.Table.open(str(home / "flat"), engine="local").files())
    if not 0.9 * groups <= found <= 1.1 * groups:
        raise RuntimeError(f"the table has {found} file groups, and was to have {groups}")
    changed = np.random.default_rng(8).choice(given.rows, given.rows // 2, replace=False)
    for name, numbers in (("update", changed), ("warm-update", order[:_WARM_ROWS])):
        (given.work / name).mkdir(parents=True, exist_ok=True)
        rows = _rows(numbers, ts=2)
        for part in range(4):
            share = rows.slice(part * (len(rows) // 4), len(rows) // 4 + (len(rows) if part == 3 else 0))
            pq.write_table(share, given.work / name / f"{part}.parquet", store_schema=False)
    return home


def _measure(given: argparse.Namespace, name: str, origin: Path) -> dict[str, Any]:
    """One contender on a copy of the table, in a process of its own that is watched from outside."""
    copy = given.work / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(origin, copy)
    command = [sys.executable, "-m", "bench.scale", "--role", name, "--table", str(copy)]
    command += ["--work", str(given.work), "--type", given.type]
    roots = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(root for root in roots if root), "TZ": "UTC"}
    log = given.work / f"{name}.log"
    with log.open("w") as sink:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sink, stderr=subprocess.STDOUT)
        sampler = MemorySampler(process.pid)
        code = process.wait()
        sampler.stop()
    if code:
        raise RuntimeError(f"{name} failed, see {log}: {log.read_text(errors='replace')[-2000:]}")
    found: dict[str, Any] = json.loads((copy / "result.json").read_text())
    memory = sampler.overall
    found["peak_mb"] = round((memory.jvm + memory.python) / 1e6)
    read = tk.Table.open(str(copy / "flat"), engine="local").read(columns=["f1", "s1"])
    check = aggregate(read)
    return {**found, "check": [check.rows, round(check.sum_f1, 3), check.max_s1]}


def _upsert(name: str, home: Path, work: Path, *, table_type: str) -> None:
    """In the process of one contender: warm up, then time the upsert."""
    write = _writer(name, table_type)
    write(home / "warm", work / "warm-update")
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    before_s, started_s = _processor_s(processes), time.perf_counter()
    write(home / "flat", work / "update")
    seconds = time.perf_counter() - started_s
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    spent_s = _processor_s(processes) - before_s
    result = {"seconds": round(seconds, 2), "processor_s": round(spent_s, 2)}
    (home / "result.json").write_text(json.dumps(result))


def _writer(name: str, table_type: str) -> Any:
    if name == "ours_local":
        return lambda table, rows: tk.Table.open(str(table), engine="local").upsert(pq.read_table(rows))
    spark = start_session(f"scale-{name}", {**_JAVA_SESSION, "spark.jars": hudi_jar()} if name == "java" else {})
    if name == "ours_spark":
        return lambda table, rows: tk.Table.open(str(table), spark=spark).upsert(spark.read.parquet(str(rows)))

    def write(table: Path, rows: Path) -> None:
        options = {**_JAVA, "hoodie.datasource.write.table.type": _TYPES[table_type]}
        spark.read.parquet(str(rows)).write.format("hudi").options(**options).mode("append").save(str(table))

    return write


def _processor_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def _draw(told: Mapping[str, Any], path: Path) -> None:
    """Time and memory over file groups."""
    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  the backend has to be chosen first

    panels = (("Upsert, s", "seconds"), ("Processor time, s", "processor_s"), ("Peak memory, MB", "peak_mb"))
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3.2), layout="constrained")
    for axis, (title, value) in zip(axes, panels, strict=True):
        for name, found in told["figures"].items():
            places = [int(groups) for groups in found]
            values = [each[value] for each in found.values()]
            axis.plot(places, values, marker="o", label=CONTENDERS[name], color=SHADES[name])
        axis.set_xlabel("file groups", fontsize=9)
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"{told['updated']:,} of {told['rows']:,} rows upserted ({told['type']}, simple index, two cores)", fontsize=9
    )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
