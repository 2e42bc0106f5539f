"""Steps of a demonstration: each does one thing, says in a line what came of it, and may show something below.

What a step says is checked against what must be true, so a demonstration that ends has also worked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tablekeeper.errors import TablekeeperError
from tablekeeper.runtime import SYSTEM_RUNTIME, Clock

__all__ = ["Outcome", "Step", "check", "record_table", "report", "run_steps"]

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What came of a step: a line of text, and something to show below it."""

    text: str
    shown: Any = None


@dataclass(frozen=True)
class Step(Generic[T]):
    """One stop of a tour; all of its steps share a `T`."""

    title: str
    run: Callable[[T], Outcome]


def run_steps(
    shared: T, console: Console, *, steps: Sequence[Step[T]], clock: Clock = SYSTEM_RUNTIME.clock, first: int = 1
) -> None:
    """Take the steps in order; a spinner turns while one runs."""
    for number, step in enumerate(steps, start=first):
        began_s = clock.monotonic_s()
        with console.status(f"{step.title} …"):
            outcome = step.run(shared)
        report(console, f"{number}. {step.title}", outcome, seconds=clock.monotonic_s() - began_s)


def report(console: Console, title: str, outcome: Outcome, *, seconds: float) -> None:
    """Print what came of a step."""
    line = Text("✓ ", style="green").append(title, style="bold").append(f"  {seconds:.1f} s", style="cyan")
    console.print(line)
    console.print(Padding(Text(outcome.text), (0, 0, 0, 2), expand=False))
    if outcome.shown is not None:
        console.print(Padding(outcome.shown, (0, 0, 0, 4), expand=False))


def record_table(facts: Sequence[dict[str, Any]]) -> RichTable:
    """Records with the same fields, as a table without lines."""
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, value in facts[0].items():
        table.add_column(name, justify="right" if isinstance(value, int | float) else "left", no_wrap=True)
    for fact in facts:
        table.add_row(*(Text(f"{value:,}" if isinstance(value, int) else str(value)) for value in fact.values()))
    return table


def check(actual: int, expected: int, what: str) -> None:
    """`TablekeeperError` unless the tour found what must be there."""
    if actual != expected:
        raise TablekeeperError(f"the tour expected {expected:,} {what}, and found {actual:,}: please report this")
