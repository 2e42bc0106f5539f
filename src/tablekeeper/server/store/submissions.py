"""What is submitted to the job store, and what it says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.server.model import ManagedTable, Operation, RunParameters, ServiceAction

__all__ = ["KnownPlans", "NamedPlans", "PastOperation", "Submission", "Submitted"]


@dataclass(frozen=True, slots=True)
class Submission:
    """An operation to be done. `owner`, `queue` and `priority` default to the table's; `note` is why it is delayed."""

    table_id: int
    instant: str
    action: ServiceAction
    engine: str = ""
    retry_on_error: bool = True
    owner: str | None = None
    queue: str | None = None
    priority: int | None = None
    parameters: RunParameters = field(default_factory=RunParameters)
    delay_s: float = 0.0
    deadline_in_s: float | None = None
    why: str = ""
    note: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class NamedPlans:
    """Plans of a table as a writer names them."""

    db_name: str
    table_name: str
    instants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownPlans:
    """The table of that name, if it is registered, and the operations that there are of these plans, by instant."""

    table: ManagedTable | None
    operations: Mapping[str, Operation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PastOperation:
    """A service that a timeline has as completed. Times are the timeline's, in epoch milliseconds."""

    instant: str
    action: ServiceAction
    requested_ms: int
    completed_ms: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """The operation as it is now. `is_new`: this call made it, or revived it after it had been removed."""

    operation: Operation
    is_new: bool
