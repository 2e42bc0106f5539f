"""Figures as a table in the terminal, as JSON and as a plot, each contender beside Java Hudi."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.console import Console
from rich.table import Table

from bench.workload import STEPS, Check

__all__ = ["find_disagreements", "print_table", "save"]

REFERENCE = "java"
# Java's own compaction is one of Avro logs, so that ours of its logs is measured against it.
SAME_WORK = {"compact_java_logs": "compact_run"}
Figures = dict[str, dict[str, Any]]
"""Contender -> {"steps": {step: {"seconds", "check", "memory"}}, "memory": {...}}."""


def find_disagreements(figures: Figures) -> list[str]:
    """Steps at which a contender's aggregate differs from the reference's (or the first one's that has it)."""
    wrong = []
    for step in STEPS:
        checks = {
            name: Check(**entry["steps"][step]["check"])
            for name, entry in figures.items()
            if "check" in entry["steps"].get(step, {})
        }
        if not checks:
            continue
        trusted = REFERENCE if REFERENCE in checks else next(iter(checks))
        wrong += [
            f"{name} at {step}: {check} but {trusted} has {checks[trusted]}"
            for name, check in checks.items()
            if not check.agrees(checks[trusted])
        ]
    return wrong


def print_table(figures: Figures, *, rows: int, console: Console) -> None:
    """Seconds, and in brackets how many times faster than Java."""
    table = Table(title=f"{rows:,} rows: seconds (times faster than Java Hudi)")
    table.add_column("step")
    for name in figures:
        table.add_column(name, justify="right")
    for step in STEPS:
        if any(step in entry["steps"] for entry in figures.values()):
            table.add_row(step, *(_cell(figures, name, step) for name in figures))
    for kind in ("jvm", "python", "worker"):
        values = [entry["memory"].get(kind, 0) for entry in figures.values()]
        table.add_row(f"peak {kind} memory", *(f"{value / 2**20:,.0f} MB" if value else "" for value in values))
    console.print(table)


def save(figures: Figures, *, rows: int, directory: Path) -> tuple[Path, Path]:
    """Write `bench-<rows>.json` and `bench-<rows>.png`; their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    data, plot = directory / f"bench-{rows}.json", directory / f"bench-{rows}.png"
    data.write_text(json.dumps({"rows": rows, "contenders": figures}, indent=1) + "\n", encoding="utf-8")
    _plot(figures, rows=rows, path=plot)
    return data, plot


def _cell(figures: Figures, name: str, step: str) -> str:
    seconds = figures[name]["steps"].get(step, {}).get("seconds")
    if seconds is None:
        return ""
    like = SAME_WORK.get(step, step)
    reference = figures.get(REFERENCE, {}).get("steps", {}).get(like, {}).get("seconds")
    if name == REFERENCE or not reference:
        return f"{seconds:.2f}"
    return f"{seconds:.2f} ({reference / seconds:.1f}x)"


def _plot(figures: Figures, *, rows: int, path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  the backend has to be chosen first

    steps = [step for step in STEPS if any(step in entry["steps"] for entry in figures.values())]
    chart, axes = plt.subplots(figsize=(12, 0.5 * len(steps) * max(1, len(figures)) * 0.5 + 2))
    height = 0.8 / len(figures)
    for index, (name, entry) in enumerate(figures.items()):
        seconds = [entry["steps"].get(step, {}).get("seconds") or 0 for step in steps]
        places = [place + index * height for place in range(len(steps))]
        bars = axes.barh(places, seconds, height=height, label=name)
        axes.bar_label(bars, labels=[f"{value:.1f}" if value else "" for value in seconds], fontsize=7, padding=2)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(steps))], steps)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("seconds (logarithmic), lower is better")
    axes.set_title(f"{rows:,} rows, two cores")
    axes.legend()
    chart.tight_layout()
    chart.savefig(path, dpi=120)
    plt.close(chart)
