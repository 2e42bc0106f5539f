"""Who wants or holds a lock, and how that stands in a lock that is an object of a store.

The two kinds of such locks differ in how a record is written and in how a lock is given back (a file is
deleted, an object is rewritten as expired); all else, from the first write to the last, is one `Claim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tablekeeper.storage.protocol import Storage, VersionedBytes
from tablekeeper.txn.locks.processes import ProcessId

__all__ = ["Claim", "LockFormat", "LockRecord", "Owner"]


@dataclass(frozen=True, slots=True)
class Owner:
    """One acquisition of a lock: an id of its own, and, unless Java wrote it, the process and the time."""

    id: str
    process: ProcessId | None = None
    acquired_at_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is written into a lock."""
        process = None if self.process is None else self.process.to_json()
        return {"owner": self.id, "process": process, "acquiredAt": self.acquired_at_ms}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Owner:
        """From what a lock says; `KeyError`, `TypeError` or `ValueError` if it is something else."""
        owner, process, acquired_at_ms = fields["owner"], fields.get("process"), fields.get("acquiredAt")
        if not isinstance(owner, str):
            raise TypeError("the owner of a lock is a text")
        return cls(
            id=owner,
            process=None if process is None else ProcessId.from_json(process),
            acquired_at_ms=None if acquired_at_ms is None else int(acquired_at_ms),
        )

    def age_s(self, now_ms: int) -> float | None:
        """Seconds since the lock was acquired, if that is known."""
        return None if self.acquired_at_ms is None else max(0, now_ms - self.acquired_at_ms) / 1000


@dataclass(frozen=True, slots=True)
class LockRecord:
    """What a lock object says: who holds it until when, or that it was given back (`is_expired`)."""

    owner: Owner
    valid_until_ms: int
    is_expired: bool = False


class LockFormat(Protocol):
    """How one kind of lock writes its records."""

    def encode(self, record: LockRecord) -> bytes: ...

    def decode(self, data: bytes) -> LockRecord | None:
        """The record, None if these bytes are not one of this kind."""
        ...

    def give_back(self, storage: Storage, path: str, *, current: VersionedBytes, freed: LockRecord) -> None:
        """Leave the lock free for others. `current` is what its owner found to be its own just now."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The lock object `path` as one owner writes it."""

    storage: Storage
    path: str
    format: LockFormat
    owner: Owner

    def encode(self, *, valid_until_ms: int) -> bytes:
        """Content that says: this owner holds the lock until then."""
        return self.format.encode(LockRecord(self.owner, valid_until_ms))

    def is_mine(self, data: bytes) -> bool:
        """True if this content says that this owner holds the lock."""
        return self._mine(data) is not None

    def free(self) -> None:
        """Give the lock back, if it is still this owner's."""
        current = self.storage.read_versioned(self.path)
        record = None if current is None else self._mine(current.data)
        if current is not None and record is not None:
            freed = replace(record, is_expired=True)
            self.format.give_back(self.storage, self.path, current=current, freed=freed)

    def _mine(self, data: bytes) -> LockRecord | None:
        record = self.format.decode(data)
        if record is None or record.is_expired or record.owner.id != self.owner.id:
            return None
        return record
