"""The lock of Java's `StorageBasedLockProvider`: a JSON object that is never deleted, only rewritten.

`.hoodie/.locks/table_lock.json` is `{"expired": bool, "validUntil": epoch ms, "owner": uuid}`. The lock
is free if the object is absent, expired, or valid until a time that has certainly passed. Acquiring,
renewing and releasing are conditional writes, so that the store decides who wins. Java ignores fields
it does not know; ours adds the process, so that on the same machine a killed holder need not be
waited for.
"""

from __future__ import annotations

import json
import logging

from tablekeeper.config.concurrency_settings import LockSettings
from tablekeeper.errors import LockNotAcquiredError, StorageError
from tablekeeper.runtime import Processes, Runtime
from tablekeeper.storage.protocol import Storage, VersionedBytes
from tablekeeper.txn.locks.leased import LeasedLock, LeaseTerms, LockRecord, Owner
from tablekeeper.txn.locks.protocol import LockHolder, Pace

__all__ = ["StorageBasedLock"]

_PATH = ".hoodie/.locks/table_lock.json"
_FIRST_PAUSE_S = 0.05
_LOG = logging.getLogger(__name__)


class StorageBasedLock(LeasedLock):
    """The lock object of the table in `storage`."""

    def __init__(
        self, storage: Storage, *, settings: LockSettings, runtime: Runtime, processes: Processes | None = None
    ) -> None:
        longest_pause_s = settings.pause_ms / 1000
        super().__init__(
            storage,
            path=_PATH,
            lock_format=_LockObject(),
            terms=LeaseTerms(settings.validity_s, settings.renew_interval_s),
            pace=Pace(min(_FIRST_PAUSE_S, longest_pause_s), longest_pause_s),
            runtime=runtime,
            processes=processes,
        )

    def look_ahead(self) -> None:
        try:
            current = self._storage.read_versioned(self._path)
        except StorageError as error:
            # Whoever acquires the lock looks for himself, and says so if it still fails.
            _LOG.debug("%s could not be looked at ahead: %s", self.name, error)
            return
        record = None if current is None else self._format.decode(current.data)
        if current is not None and record is not None and self._is_lapsed(record):
            self._remember_free(current)

    def describe(self) -> LockHolder | None:
        current = self._storage.read_versioned(self._path)
        record = None if current is None else self._record(current.data)
        if record is None or record.is_expired:
            return None
        process = record.owner.process
        detail = "a writer that left no process, such as Java Hudi" if process is None else str(process)
        return self._holder(record.owner, is_lapsed=self._is_lapsed(record), detail=detail)

    def _is_free(self, current: VersionedBytes) -> bool:
        return self._is_lapsed(self._record(current.data))

    def _record(self, data: bytes) -> LockRecord:
        record = self._format.decode(data)
        if record is None:
            raise LockNotAcquiredError(
                f"{self.name}: this is not a lock: {data[:80].decode('utf-8', 'replace')!r}. Nothing was changed. "
                f"If no writer is running on the table, delete this one object; the next writer makes a new one."
            )
        return record


class _LockObject:
    """The JSON of the lock object. Java leaves no process and no time of acquisition."""

    def encode(self, record: LockRecord) -> bytes:
        fields = {"expired": record.is_expired, "validUntil": record.valid_until_ms, **record.owner.to_json()}
        return json.dumps(fields).encode()

    def decode(self, data: bytes) -> LockRecord | None:
        """The record, None if the content is not one."""
        try:
            fields = json.loads(data)
            expired, valid_until_ms = fields["expired"], fields["validUntil"]
            if not (isinstance(expired, bool) and isinstance(valid_until_ms, int)):
                return None
            return LockRecord(Owner.from_json(fields), valid_until_ms=valid_until_ms, is_expired=expired)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def give_back(
        self, storage: Storage, path: str, *, current: VersionedBytes, freed: LockRecord, scope: str | None
    ) -> VersionedBytes | None:
        del scope
        # Refused: taken over since, and no longer ours to free.
        return self.give_back_at(storage, path, version=current.version, freed=freed)

    def give_back_at(self, storage: Storage, path: str, *, version: str, freed: LockRecord) -> VersionedBytes | None:
        content = self.encode(freed)
        left = storage.replace(path, content, version=version)
        return None if left is None else VersionedBytes(content, left)
