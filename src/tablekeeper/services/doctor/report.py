"""What the doctor says: findings with their weight, their meaning and the next step, as values that print well."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

__all__ = ["DoctorReport", "Finding", "Repair", "RepairKind", "Severity"]

_SHOWN_PATHS = 5


class Severity(enum.Enum):
    """INFO is worth knowing, WARNING wants something done, ERROR means that readers get or will get wrong rows."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """The worst first."""
        return _RANKS[self]


_RANKS = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


class RepairKind(enum.Enum):
    """Kinds of repairs, in the order in which they are made."""

    FINISH_PROPERTIES = "finish the change of the table's properties"
    FINISH_RESTORE = "finish the restore"
    FINISH_ROLLBACK = "finish the rollback"
    ROLL_BACK = "roll back the write"
    ROLL_BACK_ATTEMPT = "roll back the attempt at the plan"
    REMOVE_PLAN = "take off the timeline the plan"
    FINISH_CLEAN = "finish the clean"
    DELETE_SAVEPOINT = "remove the unfinished savepoint"
    DELETE_FILES = "delete the data files"
    DELETE_MARKERS = "delete the markers"
    DELETE_HEARTBEAT = "delete the heartbeat"
    DELETE_CANCEL_REQUEST = "delete the request to cancel"
    DELETE_LEFTOVERS = "delete the leftovers"
    COMPACT_METADATA_TABLE = "compact the metadata table"
    SWITCH_OFF_METADATA_TABLE = "switch the metadata table off"


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair: `subject` is the instant or directory that it concerns."""

    kind: RepairKind
    subject: str
    paths: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = f" ({len(self.paths)} files)" if self.paths else ""
        return f"{self.kind.value} {self.subject}{count}".rstrip()

    @property
    def deletes_data(self) -> bool:
        """Whether it deletes data files of the table."""
        return self.kind is RepairKind.DELETE_FILES or (self.kind is RepairKind.DELETE_MARKERS and bool(self.paths))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. `kind` is a short name for programs; `repair` is None if there is no automatic one."""

    kind: str
    severity: Severity
    subject: str
    meaning: str
    advice: str
    paths: tuple[str, ...] = ()
    repair: Repair | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity.value,
            "subject": self.subject,
            "meaning": self.meaning,
            "advice": self.advice,
            "paths": list(self.paths),
            "repair": str(self.repair) if self.repair is not None else None,
        }

    def __str__(self) -> str:
        lines = [f"{self.severity.value:<7}  {self.kind}: {self.subject}", f"         {self.meaning}"]
        lines += [f"           {path}" for path in self.paths[:_SHOWN_PATHS]]
        if len(self.paths) > _SHOWN_PATHS:
            lines.append(f"           and {len(self.paths) - _SHOWN_PATHS} more")
        lines.append(f"         {self.advice}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The state of a table. After a repair `findings` are what is left, `repaired` and `failed` what was tried."""

    path: str
    findings: tuple[Finding, ...]
    repaired: tuple[Repair, ...] = ()
    failed: tuple[tuple[Repair, str], ...] = ()

    @property
    def is_healthy(self) -> bool:
        """True if nothing but information was found."""
        return all(finding.severity is Severity.INFO for finding in self.findings)

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The repairs that can be made now, in order, each once."""
        order = list(RepairKind)
        found = dict.fromkeys(finding.repair for finding in self.findings if finding.repair is not None)
        return tuple(sorted(found, key=lambda repair: (order.index(repair.kind), repair.subject)))

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "healthy": self.is_healthy,
            "findings": [finding.to_dict() for finding in self.findings],
            "repairs": [str(repair) for repair in self.repairs],
            "deletes": [path for repair in self.repairs if repair.deletes_data for path in repair.paths],
            "repaired": [str(repair) for repair in self.repaired],
            "failed": [{"repair": str(repair), "reason": reason} for repair, reason in self.failed],
        }

    def __repr__(self) -> str:
        lines = [f"{self.path}: {'healthy' if self.is_healthy else 'needs attention'}"]
        lines += [str(finding) for finding in self.findings]
        lines += [f"repaired   {repair}" for repair in self.repaired]
        lines += [f"failed   {repair}: {reason}" for repair, reason in self.failed]
        if self.repairs:
            lines += ["doctor(fix=True) would", *(f"  {repair}" for repair in self.repairs)]
        return "\n".join(lines)
