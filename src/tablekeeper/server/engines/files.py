"""The files through which a job and the service talk: the job itself, what came of it, and its output.

All are replaced whole, so that a reader never sees a half. They outlive both sides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.model import AttemptOutcome, RunParameters, ServiceAction

__all__ = ["load_job", "load_log_tail", "load_report", "save_job", "save_json", "save_report"]


def save_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write the file whole."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(value, default=str), encoding="utf-8")
    fresh.replace(path)


def save_job(path: Path, job: Job) -> None:
    save_json(path, {**asdict(job), "action": job.action.value})


def load_job(path: Path) -> Job:
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields["action"] = ServiceAction(fields["action"])
    fields["parameters"] = RunParameters(**fields["parameters"])
    return Job(**fields)


def save_report(path: Path, report: JobReport) -> None:
    """What the job says of itself: once when it has a plan, once when it ends."""
    outcome = None if report.outcome is None else report.outcome.value
    save_json(
        path,
        {
            "state": report.state.value,
            "plan": report.plan,
            "outcome": outcome,
            "message": report.message,
            "result": dict(report.result),
        },
    )


def load_report(path: Path) -> JobReport | None:
    """What the job said last; None if nothing yet."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    outcome = fields["outcome"]
    return JobReport(
        state=JobState(fields["state"]),
        plan=fields["plan"],
        outcome=None if outcome is None else AttemptOutcome(outcome),
        message=fields["message"],
        result=fields["result"],
    )


def load_log_tail(log_path: str, *, size_bytes: int = 64_000) -> str:
    """The end of an attempt's output, also while it is being written; empty if there is none here."""
    data = b""
    for path in (Path(log_path + ".1"), Path(log_path)):
        try:
            data += path.read_bytes()
        except FileNotFoundError:
            continue
    return data[-size_bytes:].decode("utf-8", errors="replace")
