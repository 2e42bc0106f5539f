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
from tablekeeper.services.plans import ServiceResult
from tablekeeper.services.rollback import RollbackResult
from tablekeeper.services.savepoint import RestoreResult, Savepoint
from tablekeeper.services.scheduling import ScheduledPlan
from tablekeeper.table import Table
from tablekeeper.write.results import WriteResult

__all__ = [
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
]
