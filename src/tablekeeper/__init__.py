"""Apache Hudi tables from Python: written, read and kept healthy, on Spark or without it."""

from tablekeeper.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    CorruptTableError,
    FencedError,
    InvalidRequestError,
    LockNotAcquiredError,
    StorageError,
    TablekeeperError,
    UnsupportedFeatureError,
)
from tablekeeper.services.doctor import DoctorReport
from tablekeeper.services.rollback import RollbackResult
from tablekeeper.services.savepoint import RestoreResult, Savepoint
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
    "RestoreResult",
    "RollbackResult",
    "Savepoint",
    "StorageError",
    "Table",
    "TablekeeperError",
    "UnsupportedFeatureError",
    "WriteResult",
]
