"""The commands of the table services: compact, log-compact, cluster, clean, archive, cancel, plans and explain.

Long work shows a progress bar on the error stream if that is a terminal, so that what is printed can be piped.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tablekeeper.cli.arguments import DryRun, TableCall, table_command
from tablekeeper.model import ServiceKind
from tablekeeper.table import Table

__all__ = ["service_commands"]

service_commands = typer.Typer()


class Step(enum.StrEnum):
    """How much of a service to do."""

    RUN = "run"
    SCHEDULE = "schedule"
    EXECUTE = "execute"


class Explained(enum.StrEnum):
    """What can be explained."""

    COMPACTION = "compaction"
    LOG_COMPACTION = "log-compaction"
    CLUSTERING = "clustering"
    CLEAN = "clean"
    ARCHIVE = "archive"


Only = Annotated[
    Step,
    typer.Option(
        "--step", help="run schedules a plan and executes it; schedule only plans; execute only executes plans."
    ),
]
Partitions = Annotated[
    str | None,
    typer.Option(metavar="CONDITION", help="Only partitions that match, such as \"city = 'sf'\".", show_default=False),
]
Cancellable = Annotated[bool, typer.Option("--cancellable", help="The plan yields to writers, and can be cancelled.")]
Mutable = Annotated[bool, typer.Option("--mutable", help="A failed attempt takes the plan with it.")]
OrderBy = Annotated[str | None, typer.Option(metavar="A,B", help="Columns to order the rows by.", show_default=False)]
Curve = Annotated[
    str | None, typer.Option("--strategy", metavar="HOW", help="sort, zorder or hilbert.", show_default=False)
]
TargetSize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Size of the new files, such as 256MB.", show_default=False)
]
KeepCommits = Annotated[int | None, typer.Option(min=1, help="Keep files that the last N commits need.")]
KeepHours = Annotated[int | None, typer.Option(min=1, help="Keep files that commits of the last N hours need.")]
KeepVersions = Annotated[int | None, typer.Option(min=1, help="Number of versions of each file group to keep.")]


@table_command(
    service_commands,
    "tablekeeper compact /lake/trips",
    "tablekeeper compact /lake/trips --partitions \"city = 'sf'\" --cancellable",
    "tablekeeper compact /lake/trips --step schedule",
)
def compact(
    call: TableCall,
    *,
    step: Only = Step.RUN,
    partitions: Partitions = None,
    cancellable: Cancellable = False,
    mutable: Mutable = False,
) -> None:
    """Merge the logs of a merge-on-read table into new base files."""
    asked = {"partitions": partitions, "cancellable": cancellable, "mutable": mutable}
    _do(call, step, ServiceKind.COMPACTION, asked)


@table_command(
    service_commands,
    "tablekeeper log-compact /lake/trips",
    "tablekeeper log-compact /lake/trips --step schedule --json",
    name="log-compact",
)
def log_compact(
    call: TableCall,
    *,
    step: Only = Step.RUN,
    partitions: Partitions = None,
    cancellable: Cancellable = False,
    mutable: Mutable = False,
) -> None:
    """Merge many small logs of a file group into one, leaving base files alone."""
    asked = {"partitions": partitions, "cancellable": cancellable, "mutable": mutable}
    _do(call, step, ServiceKind.LOG_COMPACTION, asked)


@table_command(
    service_commands,
    "tablekeeper cluster /lake/trips --order-by ts --target-file-size 256MB",
    "tablekeeper cluster /lake/trips --order-by city,ts --strategy hilbert --cancellable",
)
def cluster(
    call: TableCall,
    *,
    step: Only = Step.RUN,
    order_by: OrderBy = None,
    strategy: Curve = None,
    target_file_size: TargetSize = None,
    partitions: Partitions = None,
    cancellable: Cancellable = False,
    mutable: Mutable = False,
) -> None:
    """Rewrite small files into larger ones, with their rows in order."""
    asked = {
        "order_by": _columns(order_by),
        "strategy": strategy,
        "target_file_size": target_file_size,
        "partitions": partitions,
        "cancellable": cancellable,
        "mutable": mutable,
    }
    _do(call, step, ServiceKind.CLUSTERING, asked)


@table_command(
    service_commands,
    "tablekeeper clean /lake/trips --keep-commits 10",
    "tablekeeper clean /lake/trips --keep-hours 24 --dry-run",
)
def clean(
    call: TableCall,
    *,
    keep_commits: KeepCommits = None,
    keep_hours: KeepHours = None,
    keep_file_versions: KeepVersions = None,
    dry_run: DryRun = False,
) -> None:
    """Delete files that no reader within the retention window needs, and clean up dead writes and plans."""
    keep: dict[str, Any] = {
        "keep_commits": keep_commits,
        "keep_hours": keep_hours,
        "keep_file_versions": keep_file_versions,
    }
    with _progress() as progress:
        table = call.open(progress=progress)
        done = table.explain_clean(**keep) if dry_run else table.clean(**keep)
    _show_all(call, [done])


@table_command(service_commands, "tablekeeper archive /lake/trips", "tablekeeper archive /lake/trips --dry-run")
def archive(
    call: TableCall,
    *,
    dry_run: DryRun = False,
) -> None:
    """Move old instants out of the active timeline, so that it stays short and fast to load."""
    table = call.open()
    call.show(table.explain_archive() if dry_run else table.archive())


@table_command(
    service_commands, 'tablekeeper cancel /lake/trips 20261115100000000 --reason "the cluster is needed elsewhere"'
)
def cancel(
    call: TableCall,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="The plan.", show_default=False)],
    *,
    reason: Annotated[str, typer.Option(help="Why; kept with the request.")] = "asked for on the command line",
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for a running executor.")] = "10s",
) -> None:
    """Cancel a pending plan. Exit code 1 if it was executed before, or is still being executed."""
    result = call.open().cancel(instant, reason=reason, wait=wait)
    call.show(result)
    if not result.is_removed:
        raise typer.Exit(1)


@table_command(service_commands, "tablekeeper plans /lake/trips", "tablekeeper plans /lake/trips --json")
def plans(
    call: TableCall,
) -> None:
    """Pending plans: how old, how large, and who holds them."""
    call.show_listing(call.open().plans())


@table_command(
    service_commands,
    "tablekeeper explain /lake/trips compaction",
    "tablekeeper explain /lake/trips clustering --order-by ts --json",
    "tablekeeper explain /lake/trips clean",
)
def explain(
    call: TableCall,
    service: Annotated[Explained, typer.Argument(help="The service.", show_default=False)],
    *,
    partitions: Partitions = None,
    order_by: OrderBy = None,
    strategy: Curve = None,
    target_file_size: TargetSize = None,
) -> None:
    """Explain what a service would do now, what it would leave out, and why. Changes nothing."""
    table = call.open()
    match service:
        case Explained.COMPACTION:
            explained: Any = table.explain_compaction(partitions=partitions)
        case Explained.LOG_COMPACTION:
            explained = table.explain_log_compaction(partitions=partitions)
        case Explained.CLUSTERING:
            explained = table.explain_clustering(
                partitions=partitions,
                order_by=_columns(order_by),
                strategy=strategy,
                target_file_size=target_file_size,
            )
        case Explained.CLEAN:
            explained = table.explain_clean()
        case Explained.ARCHIVE:
            explained = table.explain_archive()
    call.show(explained)


def _do(call: TableCall, step: Step, kind: ServiceKind, asked: dict[str, Any]) -> None:
    """Run this step of a service, and show what was done."""
    with _progress() as progress:
        done = _done(step, call.open(progress=progress), kind, asked)
    _show_all(call, done)


def _done(step: Step, table: Table, kind: ServiceKind, asked: dict[str, Any]) -> list[Any]:
    """What was done; None in it stands for nothing."""
    run, schedule = {
        ServiceKind.COMPACTION: (table.compact, table.schedule_compaction),
        ServiceKind.LOG_COMPACTION: (table.log_compact, table.schedule_log_compaction),
        ServiceKind.CLUSTERING: (table.cluster, table.schedule_clustering),
    }[kind]
    match step:
        case Step.RUN:
            return [run(**asked)]
        case Step.SCHEDULE:
            return [schedule(**asked)]
        case Step.EXECUTE:
            return list(table._execute_waiting(kind)) or [None]


def _show_all(call: TableCall, results: list[Any]) -> None:
    for result in results:
        if result is not None:
            call.show(result)
        elif not call.as_json:
            typer.echo("nothing to do")


def _columns(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """What an engine tells of its progress, as a bar for each kind of work; None where nobody would see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        known: dict[str, TaskID] = {}

        def tell(label: str, done: int, total: int) -> None:
            if label not in known:
                known[label] = bars.add_task(label, total=total)
            bars.update(known[label], completed=done, total=total)

        yield tell
