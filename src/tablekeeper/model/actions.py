"""What can be done to a table, in the three vocabularies that Hudi has for it.

An `Action` stands in the name of a timeline file, an `Operation` in the metadata of a completed commit, and a
`ServiceKind` is what people call a service whose plans rewrite file slices. How they hang together is said here only.
"""

from __future__ import annotations

import enum

__all__ = ["Action", "Operation", "ServiceKind"]


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
_OPERATED_BY = {operation: kind for kind, operation in _OPERATIONS.items()}
