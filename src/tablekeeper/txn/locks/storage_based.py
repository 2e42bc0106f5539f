"""The lock of Java's `StorageBasedLockProvider`: a JSON object that is never deleted, only rewritten.

`.hoodie/.locks/table_lock.json` is `{"expired": bool, "validUntil": epoch ms, "owner": uuid}`. The lock
is free if the object is absent, expired, or valid until a time that has certainly passed. Acquiring,
renewing and releasing are conditional writes, so that the store decides who wins. Java ignores fields
it does not know; ours adds the process, so that on the same machine a killed holder need not be
waited for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tablekeeper.config.lock_settings import LockSettings
from tablekeeper.errors import LockNotAcquiredError
from tablekeeper.runtime import Runtime
from tablekeeper.storage.protocol import Storage, VersionedBytes
from tablekeeper.txn.locks.leased import LeasedLock
from tablekeeper.txn.locks.processes import LinuxProcesses, Processes, ProcessId
from tablekeeper.txn.locks.protocol import LockHolder
from tablekeeper.txn.locks.renewed import CLOCK_DRIFT_MS, LeaseTerms, LockObject
from tablekeeper.txn.locks.waiting import Pace

__all__ = ["StorageBasedLock"]

_PATH = ".hoodie/.locks/table_lock.json"
_FIRST_PAUSE_S = 0.05


class StorageBasedLock(LeasedLock):
    """The lock object of the table in `storage`."""

    def __init__(
        self, storage: Storage, *, settings: LockSettings, runtime: Runtime, processes: Processes | None = None
    ) -> None:
        self._processes = processes or LinuxProcesses()
        longest_pause_s = settings.pause_ms / 1000
        super().__init__(
            storage,
            path=_PATH,
            terms=LeaseTerms(settings.validity_s, settings.renew_interval_s),
            pace=Pace(min(_FIRST_PAUSE_S, longest_pause_s), longest_pause_s),
            runtime=runtime,
        )

    def describe(self) -> LockHolder | None:
        current = self._storage.read_versioned(self._path)
        record = None if current is None else self._record(current.data)
        if current is None or record is None or record.is_expired:
            return None
        since_ms = record.acquired_at_ms
        return LockHolder(
            lock=self.name,
            owner=record.owner,
            age_s=None if since_ms is None else max(0, self._runtime.clock.now_ms() - since_ms) / 1000,
            since_ms=since_ms,
            is_lapsed=self._is_free(current),
            detail="a writer that left no process, such as Java Hudi"
            if record.process is None
            else str(record.process),
        )

    def _claim(self) -> LockObject:
        return _Claim(
            storage=self._storage,
            path=self._path,
            name=self.name,
            owner=self._runtime.ids.uuid(),
            process=self._processes.me(),
            acquired_at_ms=self._runtime.clock.now_ms(),
        )

    def _is_free(self, current: VersionedBytes) -> bool:
        record = self._record(current.data)
        if record.is_expired or self._runtime.clock.now_ms() > record.valid_until_ms + CLOCK_DRIFT_MS:
            return True
        return record.process is not None and self._processes.is_dead(record.process)

    def _record(self, data: bytes) -> _Record:
        record = _decode(data)
        if record is None:
            raise LockNotAcquiredError(
                f"{self.name}: this is not a lock: {data[:80].decode('utf-8', 'replace')!r}. Nothing was changed. "
                f"If no writer is running on the table, delete this one object; the next writer makes a new one."
            )
        return record


@dataclass(frozen=True, slots=True)
class _Record:
    """Content of the lock object. Java leaves no process and no time of acquisition."""

    owner: str
    is_expired: bool
    valid_until_ms: int
    process: ProcessId | None
    acquired_at_ms: int | None


@dataclass(frozen=True, slots=True)
class _Claim:
    """The lock object as one owner writes it."""

    storage: Storage
    path: str
    name: str
    owner: str
    process: ProcessId
    acquired_at_ms: int

    def encode(self, *, valid_until_ms: int) -> bytes:
        return self._encode(valid_until_ms=valid_until_ms, is_expired=False)

    def is_mine(self, data: bytes) -> bool:
        record = _decode(data)
        return record is not None and not record.is_expired and record.owner == self.owner

    def free(self, version: str) -> None:
        current = self.storage.read_versioned(self.path)
        record = None if current is None else _decode(current.data)
        if current is not None and record is not None and self.is_mine(current.data):
            freed = self._encode(valid_until_ms=record.valid_until_ms, is_expired=True)
            # Refused: taken over since, and no longer ours to free.
            self.storage.replace(self.path, freed, version=current.version)

    def _encode(self, *, valid_until_ms: int, is_expired: bool) -> bytes:
        fields = {
            "expired": is_expired,
            "validUntil": valid_until_ms,
            "owner": self.owner,
            "process": self.process.to_json(),
            "acquiredAt": self.acquired_at_ms,
        }
        return json.dumps(fields).encode()


def _decode(data: bytes) -> _Record | None:
    """The record, None if the content is not one."""
    try:
        fields = json.loads(data)
        expired, valid_until_ms, owner = fields["expired"], fields["validUntil"], fields["owner"]
        if not (isinstance(expired, bool) and isinstance(valid_until_ms, int) and isinstance(owner, str)):
            return None
        process, acquired_at_ms = fields.get("process"), fields.get("acquiredAt")
        return _Record(
            owner=owner,
            is_expired=expired,
            valid_until_ms=valid_until_ms,
            process=None if process is None else ProcessId.from_json(process),
            acquired_at_ms=None if acquired_at_ms is None else int(acquired_at_ms),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
