"""What a run of a service saves and costs, from what the last look showed and from runs that completed. Pure.

The cost is the median of the last few runs of the same service on the same table, so that one slow run does not count.
The saving is the purpose of the service: logs that reads no longer merge, files that are no longer stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tablekeeper.server.decisions.sizes import size_text
from tablekeeper.server.model import Attempt, AttemptOutcome, ServiceAction, TableFacts

__all__ = ["RUNS_COMPARED", "Estimate", "estimate_run"]

RUNS_COMPARED = 5


@dataclass(frozen=True, slots=True)
class Estimate:
    """`runs` is how many earlier runs the costs are taken from; without any they are None. `saves` is for people.

    `read_amplification` is how many times the files of a slice are read now, where the service lowers it to one.
    """

    saves: str
    runs: int = 0
    seconds: float | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    read_amplification: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def sentences(self) -> list[str]:
        """The same for people."""
        saving = f"It saves: {self.saves}."
        if self.seconds is None:
            return [saving, "What it costs is not known: no earlier run of it on this table has completed."]
        moved = [
            f"{size_text(count)} {verb}"
            for count, verb in ((self.bytes_read, "read"), (self.bytes_written, "written"))
            if count is not None
        ]
        runs = "the last run" if self.runs == 1 else f"the last {self.runs} runs"
        return [saving, f"It costs about {', '.join([f'{self.seconds:.1f} s', *moved])}, judging by {runs}."]


def estimate_run(action: ServiceAction, facts: TableFacts, past: Sequence[Attempt]) -> Estimate:
    """`past` are the last attempts of this service on this table that completed, the newest first."""
    done = [each for each in past if each.outcome is AttemptOutcome.COMPLETED and each.ended_ms is not None]
    done = done[:RUNS_COMPARED]
    return Estimate(
        saves=_saves(action, facts, done),
        runs=len(done),
        seconds=_middle([(each.ended_ms or 0) / 1000 - each.started_ms / 1000 for each in done]),
        bytes_read=_middle_of(done, "bytes_read"),
        bytes_written=_middle_of(done, "bytes_written"),
        read_amplification=facts.read_amplification if action.merges_logs else None,
    )


def _saves(action: ServiceAction, facts: TableFacts, done: Sequence[Attempt]) -> str:
    match action:
        case ServiceAction.COMPACTION:
            return f"reads merge up to {facts.commits_behind} logs on a base file, and none after it"
        case ServiceAction.LOG_COMPACTION:
            return f"reads merge up to {facts.commits_behind} logs on a base file, and one for the older ones after it"
        case ServiceAction.CLUSTERING:
            return "reads that filter by the order columns pass over more files, and small files become large ones"
        case ServiceAction.CLEAN:
            files, size = _middle_of(done, "files_deleted"), _middle_of(done, "bytes")
            last = "" if files is None else f", {files} the last times{'' if size is None else f' ({size_text(size)})'}"
            return f"storage of files that no reader needs any more{last}"
        case ServiceAction.ARCHIVE:
            return "every look at the timeline lists fewer files"
        case ServiceAction.METADATA_COMPACTION:
            return "lookups in the metadata table merge fewer logs"


def _middle_of(done: Sequence[Attempt], name: str) -> int | None:
    found = [value for each in done if isinstance(value := each.result.get(name), int) and not isinstance(value, bool)]
    middle = _middle([float(value) for value in found])
    return None if middle is None else round(middle)


def _middle(values: Sequence[float]) -> float | None:
    return round(median(values), 3) if values else None
