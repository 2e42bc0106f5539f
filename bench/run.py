"""`make bench`: every contender in a process of its own, one after the other, then checked and compared.

Figures of a contender whose aggregates disagree are void: the run prints the difference and fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.report import find_disagreements, print_table, save
from bench.sampling import MemorySampler
from bench.workload import STEPS, generate

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
CONTENDERS = {
    "java": "bench.java",
    "delta-rs": "bench.deltars",
    "pyarrow": "bench.bare_pyarrow",
    "ours_spark": "bench.ours_spark",
    "ours_local": "bench.ours_local",
}
QUIET_LOAD = 1.0
SAVED_JAVA = RESULTS / "java.json"


def main() -> int:
    """Run what was asked for; exit status 1 if a contender failed or disagrees."""
    arguments = _arguments()
    console = Console(width=max(Console().width, 130))
    with console.status(f"making {arguments.rows:,} rows of input"):
        data = generate(arguments.rows, arguments.work)
    figures: dict[str, dict[str, Any]] = {}
    for name in arguments.only:
        if name == "java" and arguments.reuse_java:
            figures[name] = _saved_java(arguments.rows)
            continue
        figures[name] = _run(name, data=data, arguments=arguments, console=console)
        if name == "java" and not figures[name].get("failed") and set(arguments.steps) == set(STEPS):
            RESULTS.mkdir(exist_ok=True)
            SAVED_JAVA.write_text(json.dumps({"rows": arguments.rows, "figures": figures[name]}, indent=1) + "\n")
    print_table(figures, rows=arguments.rows, console=console)
    paths = save(figures, rows=arguments.rows, directory=RESULTS)
    console.print("saved " + " and ".join(str(path.relative_to(ROOT)) for path in paths))
    problems = find_disagreements(figures) + [
        f"{n} failed: {f['failed']}" for n, f in figures.items() if f.get("failed")
    ]
    for problem in problems:
        console.print(f"[red]void: {problem}")
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed of tablekeeper beside Java Hudi and delta-rs.")
    parser.add_argument("--rows", type=int, default=int(os.environ.get("ROWS") or 4_000_000))
    parser.add_argument("--only", type=_names(CONTENDERS), default=list(CONTENDERS), help="contenders, comma separated")
    parser.add_argument("--steps", type=_names(STEPS), default=list(STEPS), help="steps, comma separated")
    parser.add_argument("--reuse-java", action="store_true", help="take Java's figures from bench/results/java.json")
    parser.add_argument("--work", type=Path, default=ROOT / "bench" / "work", help="where input and tables go")
    return parser.parse_args()


def _names(known: Any) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown} not among {', '.join(known)}")
        return names

    return parse


def _saved_java(rows: int) -> dict[str, Any]:
    if not SAVED_JAVA.exists():
        raise SystemExit(f"{SAVED_JAVA} is missing: run once without --reuse-java")
    saved: dict[str, Any] = json.loads(SAVED_JAVA.read_text())
    if saved["rows"] != rows:
        raise SystemExit(
            f"{SAVED_JAVA} holds figures for {saved['rows']:,} rows, not {rows:,}: run without --reuse-java"
        )
    figures: dict[str, Any] = saved["figures"]
    return figures


def _run(name: str, *, data: Path, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """One contender from start to end."""
    tables = arguments.work / f"tables-{arguments.rows}" / name
    results = arguments.work / f"{name}.jsonl"
    log = arguments.work / f"{name}.log"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", CONTENDERS[name], "--data", str(data), "--tables", str(tables)]
    command += ["--results", str(results), "--steps", ",".join(arguments.steps)]
    roots = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(root for root in roots if root), "TZ": "UTC"}
    figures: dict[str, Any] = {"steps": {}, "load_at_start": os.getloadavg()[0]}
    if figures["load_at_start"] > QUIET_LOAD:
        console.print(
            f"[yellow]load is {figures['load_at_start']:.1f}: figures of {name} are not those of a quiet machine"
        )
    with log.open("w") as sink:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sink, stderr=subprocess.STDOUT)
        sampler = MemorySampler(process.pid)
        with console.status(name) as status:
            _follow(process, results, name=name, figures=figures, sampler=sampler, status=status)
        sampler.stop()
    figures["memory"] = sampler.overall.as_dict()
    if process.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
        figures["failed"] = f"{lines[-1]} (see {log})"
    return figures


def _follow(
    process: subprocess.Popen[bytes],
    results: Path,
    *,
    name: str,
    figures: dict[str, Any],
    sampler: MemorySampler,
    status: Any,
) -> None:
    """Take in result lines as the contender writes them, with the memory peaks of each step."""
    seen = 0
    while True:
        running = process.poll() is None
        lines = results.read_text().splitlines() if results.exists() else []
        for line in lines[seen:]:
            entry = json.loads(line)
            memory = sampler.next_step().as_dict()
            if entry["state"] == "started":
                status.update(f"{name}: {entry['step']}")
            else:
                figures["steps"][entry.pop("step")] = {**entry, "memory": memory}
                status.console.print(f"  {name} {line}")
        seen = len(lines)
        if not running:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
