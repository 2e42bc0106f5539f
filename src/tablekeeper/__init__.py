"""Apache Hudi tables from Python: write, read and maintain them, with or without Spark.

The names below are loaded when they are first used: workers and command lines that need few of them start faster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tablekeeper.errors import (
        CommitOutcomeUnknownError,
        ConflictError,
        CorruptTableError,
        FencedError,
        InvalidRequestError,
        LockNotAcquiredError,
        PlanCancelledError,
        PlanHeldError,
        StorageError,
        TablekeeperError,
        UnsupportedFeatureError,
    )
    from tablekeeper.services.doctor import DoctorReport
    from tablekeeper.services.plans.schedule import ScheduledPlan
    from tablekeeper.services.plans.service import ServiceResult
    from tablekeeper.services.recovery.rollback import RollbackResult
    from tablekeeper.services.recovery.savepoint import RestoreResult, Savepoint
    from tablekeeper.table import Table
    from tablekeeper.table.times import Changes
    from tablekeeper.write.results import WriteResult

__version__ = "0.1.0"

__all__ = [
    "Changes",
    "CommitOutcomeUnknownError",
    "ConflictError",
    "CorruptTableError",
    "DoctorReport",
    "FencedError",
    "InvalidRequestError",
    "LockNotAcquiredError",
    "PlanCancelledError",
    "PlanHeldError",
    "RestoreResult",
    "RollbackResult",
    "Savepoint",
    "ScheduledPlan",
    "ServiceResult",
    "StorageError",
    "Table",
    "TablekeeperError",
    "UnsupportedFeatureError",
    "WriteResult",
    "__version__",
]

_HOMES = {
    "Changes": "tablekeeper.table.times",
    "CommitOutcomeUnknownError": "tablekeeper.errors",
    "ConflictError": "tablekeeper.errors",
    "CorruptTableError": "tablekeeper.errors",
    "DoctorReport": "tablekeeper.services.doctor",
    "FencedError": "tablekeeper.errors",
    "InvalidRequestError": "tablekeeper.errors",
    "LockNotAcquiredError": "tablekeeper.errors",
    "PlanCancelledError": "tablekeeper.errors",
    "PlanHeldError": "tablekeeper.errors",
    "RestoreResult": "tablekeeper.services.recovery.savepoint",
    "RollbackResult": "tablekeeper.services.recovery.rollback",
    "Savepoint": "tablekeeper.services.recovery.savepoint",
    "ScheduledPlan": "tablekeeper.services.plans.schedule",
    "ServiceResult": "tablekeeper.services.plans.service",
    "StorageError": "tablekeeper.errors",
    "Table": "tablekeeper.table",
    "TablekeeperError": "tablekeeper.errors",
    "UnsupportedFeatureError": "tablekeeper.errors",
    "WriteResult": "tablekeeper.write.results",
}

if not TYPE_CHECKING:
    # Type checkers would accept any name of the package.
    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
