"""Every error that this package raises, one class for each reaction of a caller.

One root class, and a subclass only where a caller would act differently. Messages name
the table or file concerned and end with the next step; the same facts are typed fields.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CommitOutcomeUnknownError",
    "ConflictError",
    "CorruptTableError",
    "EmptyWriteError",
    "FencedError",
    "InvalidRequestError",
    "LockNotAcquiredError",
    "NotFoundError",
    "PlanCancelledError",
    "PlanHeldError",
    "StorageError",
    "TablekeeperError",
    "UnsupportedFeatureError",
]


class TablekeeperError(Exception):
    """Root of all errors raised by tablekeeper. They travel between processes whole, with their fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


class InvalidRequestError(TablekeeperError):
    """The request cannot be executed as made: change the call. The table is unchanged."""


class EmptyWriteError(InvalidRequestError):
    """There were no rows to write: go on if empty input is expected."""


class UnsupportedFeatureError(TablekeeperError):
    """The table or request needs a Hudi feature that this version does not handle."""


class CorruptTableError(TablekeeperError):
    """Bytes of the table do not decode. `file` names the object, `reason` what is wrong in it."""

    def __init__(self, *, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}. Restore the file from a backup, or run `tablekeeper doctor` on the table.")
        self.file = file
        self.reason = reason


class StorageError(TablekeeperError):
    """The store failed, after retries."""

    def __init__(self, message: str, *, path: str = "", transient: bool = False) -> None:
        super().__init__(message)
        self.path = path
        self.transient = transient


class NotFoundError(StorageError):
    """The object asked for does not exist."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: no such file", path=path)


class ConflictError(TablekeeperError):
    """Another commit changed the same file groups: retry on a new snapshot. Nothing was committed."""

    def __init__(self, message: str, *, instant: str, beaten_by: str, file_groups: tuple[str, ...]) -> None:
        super().__init__(message)
        self.instant = instant
        self.beaten_by = beaten_by
        self.file_groups = file_groups


class FencedError(TablekeeperError):
    """This writer lost its lock, heartbeat or inflight instant: stop, and touch nothing more."""


class CommitOutcomeUnknownError(TablekeeperError):
    """The commit may or may not have succeeded: reload the timeline before deciding."""

    def __init__(self, message: str, *, instant: str) -> None:
        super().__init__(message)
        self.instant = instant


class LockNotAcquiredError(TablekeeperError):
    """The table lock was not free within the time limit: try again, or find out who holds it."""


class PlanHeldError(TablekeeperError):
    """Another process is executing the plan: leave it to that one, or try again once its heartbeat has lapsed."""

    def __init__(self, message: str, *, instant: str, heartbeat_age_s: float) -> None:
        super().__init__(message)
        self.instant = instant
        self.heartbeat_age_s = heartbeat_age_s


class PlanCancelledError(TablekeeperError):
    """The plan was cancelled while, or before, it was executed: do not try it again."""

    def __init__(self, message: str, *, instant: str, reason: str) -> None:
        super().__init__(message)
        self.instant = instant
        self.reason = reason


def _restore(kind: type[TablekeeperError], args: tuple[Any, ...], fields: dict[str, Any]) -> TablekeeperError:
    # Without calling `__init__`, whose parameters are not the arguments of the exception.
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error
