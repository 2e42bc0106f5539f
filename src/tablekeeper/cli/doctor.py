"""The commands that look for trouble: `doctor`, `locks` and `heartbeats`.

`doctor` exits with 0 for a table that needs nothing and with 1 if something is left to be done, so that a scheduled
job can run it. With `--fix` it says what it is going to do before it does it.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tablekeeper.cli.arguments import DryRun, TableCall, table_command
from tablekeeper.cli.escapes import escaped, escaped_lines
from tablekeeper.cli.json_text import json_document
from tablekeeper.services.doctor import DoctorReport, Finding, Severity

__all__ = ["doctor_commands"]

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_SHOWN_PATHS = 5

doctor_commands = typer.Typer()


@table_command(doctor_commands, "tablekeeper doctor /lake/trips", "tablekeeper doctor /lake/trips --fix --dry-run")
def doctor(
    call: TableCall,
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what is safe to repair, and list it first.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --fix: also delete more data files than a few, or a tenth of the table.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read all base files too, and compare their checksums.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Look a table over: dead writes and plans, stray files, a stale metadata table, locks that do not protect."""
    table = call.open()
    report = table.doctor(deep=deep)
    if not call.as_json:
        _show(report)
    if fix and report.repairs:
        if not call.as_json:
            _show_repairs(report, "would be repaired" if dry_run else "to be repaired")
        if not dry_run:
            report = table.doctor(fix=True, yes=yes, deep=deep)
            if not call.as_json:
                _show_outcome(report)
    elif report.repairs and not call.as_json:
        _print(f"{_count(len(report.repairs), 'thing')} can be repaired: run with --fix, or --fix --dry-run first.")
    if call.as_json:
        typer.echo(json_document(report.to_dict()))
    if not report.is_healthy:
        raise typer.Exit(1)


@table_command(doctor_commands, "tablekeeper locks /lake/trips")
def locks(
    call: TableCall,
) -> None:
    """Who holds the lock of a table."""
    holder = call.open().lock_holder()
    if call.as_json:
        facts: dict[str, Any] = {"held": holder is not None}
        if holder is not None:
            facts |= {"lock": holder.lock, "owner": holder.owner, "age_s": holder.age_s, "since_ms": holder.since_ms}
            facts |= {"lapsed": holder.is_lapsed, "detail": holder.detail}
        typer.echo(json_document(facts))
    elif holder is None:
        _print("The lock is free.")
    else:
        lapsed = " Its lease is over: the next writer takes it." if holder.is_lapsed else ""
        _print(f"{holder.lock} is held by {holder}.{lapsed}")


@table_command(doctor_commands, "tablekeeper heartbeats /lake/trips --json")
def heartbeats(
    call: TableCall,
) -> None:
    """The heartbeats of running and of dead writes."""
    call.show_listing(call.open().heartbeats())


def _show(report: DoctorReport) -> None:
    _print(f"{report.path}: {'healthy' if report.is_healthy else 'needs attention'}", style="bold")
    for finding in report.findings:
        _show_finding(finding)


def _show_finding(finding: Finding) -> None:
    head = Text(f"{finding.severity.value:<8}", style=_STYLES[finding.severity])
    _console().print(head.append(escaped(f"{finding.kind}: {finding.subject}"), style=""), soft_wrap=True)
    _print(f"        {finding.meaning}")
    for path in finding.paths[:_SHOWN_PATHS]:
        _print(f"          {path}", style="dim")
    if len(finding.paths) > _SHOWN_PATHS:
        _print(f"          and {len(finding.paths) - _SHOWN_PATHS:,} more", style="dim")
    _print(f"        {finding.advice}", style="dim")


def _show_repairs(report: DoctorReport, title: str) -> None:
    _print(f"{_count(len(report.repairs), 'thing')} {title}:")
    for repair in report.repairs:
        _print(f"  {repair}")
        for path in repair.paths if repair.deletes_data else ():
            _print(f"    {path}", style="dim")


def _show_outcome(report: DoctorReport) -> None:
    _print(f"{_count(len(report.repaired), 'thing')} repaired.")
    for repair, reason in report.failed:
        _print(f"  not repaired: {repair}: {reason}", style="red")
    if not report.is_healthy:
        _print("What is left:")
        _show(report)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _print(text: str, *, style: str = "") -> None:
    _console().print(Text(escaped_lines(text), style=style), soft_wrap=True)


def _console() -> Console:
    return Console(highlight=False)
