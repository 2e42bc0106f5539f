"""Apache Hudi tables from Python: written, read and kept healthy, on Spark or without it."""

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
