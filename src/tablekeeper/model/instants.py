"""Instants: the points of a table's timeline, and the actions that they stand for.

`RequestedTime` (when an action started) and `CompletionTime` (when it became visible) are
different types on purpose: which of the two is compared decides whether conflict detection
and incremental planning are right, so comparing one with the other is a `TypeError`.

Hudi has three vocabularies for changes of a table. An `Action` is in the name of a timeline file, an `Operation` in the
metadata of a completed commit, and a `ServiceKind` is the name of a service whose plans rewrite file slices. Only this
module defines how they are related.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

__all__ = ["Action", "CompletionTime", "Instant", "Operation", "RequestedTime", "ServiceKind", "State"]


class Action(enum.Enum):
    """What an instant does; the value is the word used in timeline file names."""

    COMMIT = "commit"
    DELTA_COMMIT = "deltacommit"
    COMPACTION = "compaction"
    LOG_COMPACTION = "logcompaction"
    CLUSTERING = "clustering"
    REPLACE_COMMIT = "replacecommit"
    CLEAN = "clean"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    RESTORE = "restore"
    INDEXING = "indexing"

    # Members are single objects. Enum's own hash is computed in Python, three times for each file of a timeline.
    __hash__ = object.__hash__

    @property
    def service(self) -> ServiceKind | None:
        """The service whose plans have this action; None for all others."""
        return _PLANNED_BY.get(self)

    @property
    def is_plan(self) -> bool:
        """True for the actions of services whose plans rewrite file slices."""
        return self in _PLANNED_BY

    @property
    def completed_as(self) -> Action:
        """The action that the completed instant carries: a finished compaction is a commit."""
        return _COMPLETED_AS.get(self, self)

    @property
    def is_ingestion(self) -> bool:
        """True for writes of rows; False for services, although what they write completes under the same names."""
        return self in _DATA_ACTIONS

    @property
    def writes_data(self) -> bool:
        """True for actions whose completion adds, replaces or rewrites rows or files that readers see."""
        return self.completed_as in _DATA_ACTIONS


class Operation(enum.Enum):
    """Kind of write; the value is Hudi's name for it in commit metadata."""

    INSERT = "INSERT"
    UPSERT = "UPSERT"
    BULK_INSERT = "BULK_INSERT"
    DELETE = "DELETE"
    INSERT_OVERWRITE = "INSERT_OVERWRITE"
    INSERT_OVERWRITE_TABLE = "INSERT_OVERWRITE_TABLE"
    DELETE_PARTITION = "DELETE_PARTITION"
    CLUSTER = "CLUSTER"
    COMPACT = "COMPACT"
    LOG_COMPACT = "LOG_COMPACT"
    INDEX = "INDEX"
    UNKNOWN = "UNKNOWN"

    @property
    def service(self) -> ServiceKind | None:
        """The service that rewrites files so; None for writes of rows."""
        return _OPERATED_BY.get(self)


class ServiceKind(enum.Enum):
    """The services whose plans rewrite file slices; the value is what people call them."""

    COMPACTION = "compaction"
    LOG_COMPACTION = "log compaction"
    CLUSTERING = "clustering"

    @classmethod
    def of(cls, plan: Action) -> ServiceKind:
        """The service whose plans have this action. `KeyError` if none has."""
        return _PLANNED_BY[plan]

    @classmethod
    def completing_as(cls, action: Action) -> ServiceKind | None:
        """The service whose finished plans carry this action, which writes of rows carry too; None if none does."""
        return _FINISHED_BY.get(action)

    @classmethod
    def named(cls, name: str) -> ServiceKind:
        """The service of an `identifier`, `log_compaction`. `ValueError` if there is none."""
        return cls(name.replace("_", " "))

    @property
    def identifier(self) -> str:
        """The name where there can be no space: `log_compaction`."""
        return self.value.replace(" ", "_")

    @property
    def command(self) -> str:
        """What the command line calls the doing of it."""
        return _COMMANDS[self]

    @property
    def action(self) -> Action:
        """The action of its plans."""
        return _ACTIONS[self]

    @property
    def operation(self) -> Operation:
        """The word in the metadata of the completed commit."""
        return _OPERATIONS[self]


_COMMANDS = {
    ServiceKind.COMPACTION: "compact",
    ServiceKind.LOG_COMPACTION: "log-compact",
    ServiceKind.CLUSTERING: "cluster",
}
_ACTIONS = {
    ServiceKind.COMPACTION: Action.COMPACTION,
    ServiceKind.LOG_COMPACTION: Action.LOG_COMPACTION,
    ServiceKind.CLUSTERING: Action.CLUSTERING,
}
_OPERATIONS = {
    ServiceKind.COMPACTION: Operation.COMPACT,
    ServiceKind.LOG_COMPACTION: Operation.LOG_COMPACT,
    ServiceKind.CLUSTERING: Operation.CLUSTER,
}
_COMPLETED_AS = {
    Action.COMPACTION: Action.COMMIT,
    Action.LOG_COMPACTION: Action.DELTA_COMMIT,
    Action.CLUSTERING: Action.REPLACE_COMMIT,
}
_DATA_ACTIONS = frozenset({Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT})
_PLANNED_BY = {action: kind for kind, action in _ACTIONS.items()}
_FINISHED_BY = {_COMPLETED_AS[action]: kind for kind, action in _ACTIONS.items()}
_OPERATED_BY = {operation: kind for kind, operation in _OPERATIONS.items()}


_FULL_LENGTH = 17


class _InstantTime:
    """Digits `yyyyMMddHHmmssSSS`. Old tables have 14 digits, which order as if padded with 999.

    `order` sorts as the time itself does, among times of one kind, and faster.
    """

    __slots__ = ("order", "value")
    value: str
    order: str

    def __init__(self, value: str) -> None:
        if not value.isascii() or not value.isdigit():
            raise ValueError(f"an instant time has digits only, not {value!r}")
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "order", value + "999" if len(value) == _FULL_LENGTH - 3 else value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[type[_InstantTime], tuple[str]]:
        return type(self), (self.value,)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.value == other.value

    def __lt__(self, other: _InstantTime) -> bool:
        return self.order < self._comparable(other).order

    def __le__(self, other: _InstantTime) -> bool:
        return self.order <= self._comparable(other).order

    def __gt__(self, other: _InstantTime) -> bool:
        return self.order > self._comparable(other).order

    def __ge__(self, other: _InstantTime) -> bool:
        return self.order >= self._comparable(other).order

    def _comparable(self, other: _InstantTime) -> _InstantTime:
        if type(other) is not type(self):
            raise TypeError(f"a {type(self).__name__} does not compare with a {type(other).__name__}")
        return other

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class RequestedTime(_InstantTime):
    """When an action was put on the timeline; the action's identity."""

    __slots__ = ()


class CompletionTime(_InstantTime):
    """When an action completed and became visible to readers."""

    __slots__ = ()


class State(enum.Enum):
    """How far an instant has come."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"

    __hash__ = object.__hash__

    @property
    def rank(self) -> int:
        """0, 1, 2: the later state of an instant counts."""
        return _STATE_RANK[self]


_STATE_RANK = {State.REQUESTED: 0, State.INFLIGHT: 1, State.COMPLETED: 2}


@dataclass(frozen=True, slots=True)
class Instant:
    """One action on the timeline in its latest state. `completed_at` is set exactly when completed."""

    requested_at: RequestedTime
    action: Action
    state: State
    completed_at: CompletionTime | None = None

    @property
    def is_completed(self) -> bool:
        return self.state is State.COMPLETED

    @property
    def is_pending(self) -> bool:
        return self.state is not State.COMPLETED

    def __str__(self) -> str:
        return f"{self.requested_at}.{self.action.value}.{self.state.value}"
