"""`python -m tablekeeper.testing`: play histories, and show those that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tablekeeper.testing.campaign import Campaign, Found
from tablekeeper.testing.explore import SCENARIOS, explore
from tablekeeper.testing.history import History
from tablekeeper.testing.play import Outcome, play
from tablekeeper.testing.report import describe_history, draw_timeline, trace_lines
from tablekeeper.testing.shrink import shrink

__all__: list[str] = []

_console = Console(highlight=False, markup=False, soft_wrap=True)


def main(  # noqa: PLR0917 (options of a command)
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 1000,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None,
    guided: Annotated[bool, typer.Option(help="Vary histories that reached something new.")] = False,
    scenario: Annotated[str | None, typer.Option(help="Explore the scenarios whose name has this in it.")] = None,
    preemptions: Annotated[int, typer.Option(min=0, help="Bound of an exploration.")] = 1,
    faults: Annotated[int, typer.Option(min=0, max=2, help="Bound of an exploration.")] = 1,
    stride: Annotated[int, typer.Option(min=1, help="Explore faults at every so-manieth call.")] = 1,
    together: Annotated[bool, typer.Option(help="Explore orders with each fault.")] = False,
    history: Annotated[
        Path | None, typer.Option(help="Play a history that was kept as JSON, and show its trace.")
    ] = None,
    trace: Annotated[bool, typer.Option(help="Show the trace of failures call by call.")] = False,
    out: Annotated[Path, typer.Option(help="Where failures go: history, trace and drawing.")] = Path("sim-failures"),
    most_failures: Annotated[int, typer.Option(min=1, help="Give up after so many.")] = 5,
) -> None:
    """Play seeded histories of many processes on one table, and check what must always hold."""
    if history is not None:
        outcome = play(History.from_json(history.read_text("utf-8")))
        _show(outcome, with_trace=True)
        raise typer.Exit(bool(outcome.complaints))
    if scenario is not None:
        raise typer.Exit(_explore(scenario, preemptions, faults, stride, together))
    campaign = Campaign(is_guided=guided)
    found = 0
    for failure in campaign.run(range(first, first + seeds), most_seconds=seconds):
        found += 1
        _show_failure(failure, out=out, with_trace=trace)
        if found >= most_failures:
            break
    _console.print(campaign.summary())
    for what, count in sorted(campaign.counts.items(), key=lambda pair: -pair[1]):
        _console.print(f"{count:8d} {what}")
    raise typer.Exit(bool(found))


def _explore(name: str, preemptions: int, faults: int, stride: int, is_together: bool) -> bool:
    """Explore, and tell the counts; True if anything failed."""
    has_failed = False
    for scenario in SCENARIOS.values():
        if name in scenario.name:
            found = explore(scenario, preemptions=preemptions, faults=faults, stride=stride, is_together=is_together)
            has_failed |= bool(found.failures)
            counts = f"{found.runs:6d} runs, {found.different:6d} different, {len(found.failures)} failed"
            _console.print(f"{counts}  {scenario.name}")
            for failure in found.failures[:3]:
                _show(failure, with_trace=False)
    return has_failed


def _show_failure(failure: Found, *, out: Path, with_trace: bool) -> None:
    _console.print(f"\nseed {failure.seed} fails; shrinking its history of size {failure.outcome.history.size}")
    smallest = shrink(failure.outcome)
    _show(smallest, with_trace=with_trace)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{failure.seed}.json").write_text(smallest.history.to_json() + "\n", "utf-8")
    (out / f"{failure.seed}.txt").write_text("\n".join(trace_lines(smallest)) + "\n", "utf-8")
    (out / f"{failure.seed}.svg").write_text(draw_timeline(smallest), "utf-8")
    _console.print(f"history, trace and drawing: {out}/{failure.seed}.json, .txt, .svg")


def _show(outcome: Outcome, *, with_trace: bool) -> None:
    for line in describe_history(outcome.history):
        _console.print(line)
    if with_trace:
        for line in trace_lines(outcome):
            _console.print(line)
    for complaint in outcome.complaints:
        _console.print(f"FAILED    {complaint}")


if __name__ == "__main__":
    typer.run(main)
