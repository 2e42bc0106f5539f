"""The lock file of Java's `FileSystemBasedLockProvider`: `.hoodie/lock`, there while the lock is held.

Java creates it if absent, deletes it to release, never reads anything from its content, and, if an
expiry is configured, deletes one whose modification time is older. Ours is the same file with
content that names the owner, so that more can be made safe among our own writers:

- a holder renews its lease by replacing the file on condition that it is still the one it wrote;
- a lock whose lease lapsed, or whose process is dead on this machine, is taken over by a conditional
  replace: one of any number of takers wins;
- release deletes the file only while it is certainly our own, and through the scope of the lease: whoever takes the
  lock over fences that before anything else.

A lock that Java (or anybody unknown) left is broken only by the configured expiry. Java on its part
deletes the lock file without looking: twice at every release, and once when it gives up waiting. A
lock that is won right after Java's is therefore confirmed after a moment, and `Lease.check` finds
out about the rest.
"""

from __future__ import annotations

import json

from tablekeeper.config.concurrency_settings import LockSettings
from tablekeeper.model import join_path
from tablekeeper.runtime import Processes, Runtime
from tablekeeper.storage.protocol import Storage, VersionedBytes
from tablekeeper.txn.locks.leased import LeasedLock, LeaseTerms, LockRecord, Owner
from tablekeeper.txn.locks.protocol import LockHolder, Pace

__all__ = ["FileSystemLock"]

_FILE_NAME = "lock"
_SIGNATURE = "tablekeeper"
_NO_NAME = "a writer that left no name, such as Java Hudi"
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.05
_CONFIRM_AFTER_S = 0.03


class FileSystemLock(LeasedLock):
    """The lock file in `directory` of `storage`."""

    def __init__(
        self,
        storage: Storage,
        *,
        settings: LockSettings,
        runtime: Runtime,
        directory: str = ".hoodie",
        processes: Processes | None = None,
    ) -> None:
        self._expire_ms = settings.file_system_expire_minutes * 60_000
        # A peer with the expiry configured breaks a lock that is older, so that the lease may not be longer.
        validity_s = min(settings.validity_s, self._expire_ms / 1000 or settings.validity_s)
        super().__init__(
            storage,
            path=join_path(directory, _FILE_NAME),
            lock_format=_LockFile(),
            terms=LeaseTerms(validity_s, min(settings.renew_interval_s, validity_s / 10)),
            pace=Pace(_FIRST_PAUSE_S, min(_LONGEST_PAUSE_S, settings.pause_ms / 1000)),
            runtime=runtime,
            processes=processes,
        )

    def look_ahead(self) -> None:
        """Nothing: a lock that is taken by creating its file is not seen ahead."""

    def describe(self) -> LockHolder | None:
        current = self._storage.read_versioned(self._path)
        info = self._storage.stat(self._path)
        if current is None or info is None:
            return None
        record = self._format.decode(current.data)
        owner = Owner(_NO_NAME, acquired_at_ms=info.modified_ms) if record is None else record.owner
        detail = _foreign_detail(current.data) if record is None else str(owner.process)
        return self._holder(owner, is_lapsed=self._is_free(current), detail=detail)

    def _is_free(self, current: VersionedBytes) -> bool:
        record = self._format.decode(current.data)
        if record is not None and self._is_lapsed(record):
            return True
        info = self._storage.stat(self._path) if self._expire_ms else None
        return info is not None and self._runtime.clock.now_ms() - info.modified_ms > self._expire_ms

    def _confirmation_s(self, seen: VersionedBytes | None) -> float:
        return 0.0 if seen is None or self._format.decode(seen.data) is not None else _CONFIRM_AFTER_S


class _LockFile:
    """The content of one of our lock files, and its end."""

    def encode(self, record: LockRecord) -> bytes:
        fields = {"by": _SIGNATURE, **record.owner.to_json(), "validUntil": record.valid_until_ms}
        return json.dumps(fields).encode()

    def decode(self, data: bytes) -> LockRecord | None:
        """The record, None if the content is not ours: then it is somebody's lock, whatever it says."""
        try:
            fields = json.loads(data)
            if fields["by"] != _SIGNATURE:
                return None
            return LockRecord(Owner.from_json(fields), valid_until_ms=int(fields["validUntil"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def give_back(
        self, storage: Storage, path: str, *, current: VersionedBytes, freed: LockRecord, scope: str | None
    ) -> None:
        del current, freed
        storage.delete(path, scope=scope)

    def give_back_at(self, storage: Storage, path: str, *, version: str, freed: LockRecord) -> None:
        """Nothing: a deletion cannot depend on the version."""


def _foreign_detail(data: bytes) -> str:
    if not data:
        return "empty lock file"
    return f"content not written by tablekeeper: {data[:80].decode('utf-8', 'replace')!r}"
