"""The lock file of Java's `FileSystemBasedLockProvider`: `.hoodie/lock`, there while the lock is held.

Java creates it if absent, deletes it to release, never reads anything from its content, and, if an
expiry is configured, deletes one whose modification time is older. Ours is the same file with
content that names the owner, so that more can be made safe among our own writers:

- a holder renews its lease by replacing the file on condition that it is still the one it wrote;
- a lock whose lease lapsed, or whose process is dead on this machine, is taken over by a conditional
  replace: one of any number of takers wins;
- release deletes the file only while it is certainly our own.

A lock that Java (or anybody unknown) left is broken only by the configured expiry. Java on its part
deletes the lock file without looking: twice at every release, and once when it gives up waiting. A
lock that is won right after Java's is therefore confirmed after a moment, and `Lease.check` finds
out about the rest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tablekeeper.config.lock_settings import LockSettings
from tablekeeper.errors import StorageError
from tablekeeper.model import join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage.protocol import Storage, VersionedBytes
from tablekeeper.txn.locks.processes import LinuxProcesses, Processes, ProcessId
from tablekeeper.txn.locks.protocol import LockHolder
from tablekeeper.txn.locks.renewed import CLOCK_DRIFT_MS, LeaseTerms, RenewedLease
from tablekeeper.txn.locks.waiting import Pace, wait_for

__all__ = ["FileSystemLock"]

_FILE_NAME = "lock"
_SIGNATURE = "tablekeeper"
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.05
_CONFIRM_AFTER_S = 0.03


class FileSystemLock:
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
        self._storage = storage
        self._path = join_path(directory, _FILE_NAME)
        self._name = f"{storage.spec.uri.rstrip('/')}/{self._path}"
        self._expire_ms = settings.file_system_expire_minutes * 60_000
        self._pace = Pace(_FIRST_PAUSE_S, min(_LONGEST_PAUSE_S, settings.pause_ms / 1000))
        self._runtime = runtime
        self._processes = processes or LinuxProcesses()
        validity_s = float(settings.validity_s)
        if self._expire_ms:
            validity_s = min(validity_s, self._expire_ms / 1000)
        self._terms = LeaseTerms(validity_s, min(settings.renew_interval_s, validity_s / 10))

    def acquire(self, *, timeout_s: float) -> RenewedLease:
        claim = _Claim(
            storage=self._storage,
            path=self._path,
            name=self._name,
            owner=self._runtime.ids.uuid(),
            process=self._processes.me(),
            acquired_at_ms=self._runtime.clock.now_ms(),
        )
        seen_foreign = False

        def attempt() -> RenewedLease | None:
            nonlocal seen_foreign
            try:
                current = self._storage.read_versioned(self._path)
                if current is None:
                    return self._create(claim, after_foreign=seen_foreign)
                seen_foreign = seen_foreign or _decode(current.data) is None
                return self._take_over(claim, current) if self._is_free(claim, current) else None
            except StorageError as error:
                if error.transient:
                    return None
                raise

        return wait_for(
            attempt,
            lock=self._name,
            describe=self.describe,
            timeout_s=timeout_s,
            pace=self._pace,
            runtime=self._runtime,
        )

    def describe(self) -> LockHolder | None:
        current = self._storage.read_versioned(self._path)
        modified_ms = self._modified_ms()
        if current is None or modified_ms is None:
            return None
        record = _decode(current.data)
        since_ms = modified_ms if record is None else record.acquired_at_ms
        return LockHolder(
            lock=self._name,
            owner="a writer that left no name, Java Hudi for instance" if record is None else record.owner,
            age_s=max(0, self._runtime.clock.now_ms() - since_ms) / 1000,
            since_ms=since_ms,
            is_lapsed=self._is_lapsed(record),
            detail=_foreign_detail(current.data) if record is None else str(record.process),
        )

    def _create(self, claim: _Claim, *, after_foreign: bool) -> RenewedLease | None:
        started_s, started_ms = self._now()
        if not self._storage.put_if_absent(self._path, self._content(claim, started_ms)):
            return None
        if after_foreign:
            self._runtime.clock.sleep(_CONFIRM_AFTER_S)
        current = self._storage.read_versioned(self._path)
        if current is None or not claim.is_mine(current.data):
            return None
        return self._lease(claim, version=current.version, started_s=started_s, started_ms=started_ms)

    def _take_over(self, claim: _Claim, current: VersionedBytes) -> RenewedLease | None:
        started_s, started_ms = self._now()
        version = self._storage.replace(self._path, self._content(claim, started_ms), version=current.version)
        if version is None:
            return None
        return self._lease(claim, version=version, started_s=started_s, started_ms=started_ms)

    def _is_free(self, claim: _Claim, current: VersionedBytes) -> bool:
        # A claim of this very call is there when the store took a write but its answer got lost.
        return claim.is_mine(current.data) or self._is_lapsed(_decode(current.data))

    def _is_lapsed(self, record: _Record | None) -> bool:
        now_ms = self._runtime.clock.now_ms()
        if record is not None and (
            now_ms > record.valid_until_ms + CLOCK_DRIFT_MS or self._processes.is_dead(record.process)
        ):
            return True
        if not self._expire_ms:
            return False
        modified_ms = self._modified_ms()
        return modified_ms is not None and now_ms - modified_ms > self._expire_ms

    def _modified_ms(self) -> int | None:
        info = self._storage.stat(self._path)
        return None if info is None else info.modified_ms

    def _now(self) -> tuple[float, int]:
        return self._runtime.clock.monotonic_s(), self._runtime.clock.now_ms()

    def _content(self, claim: _Claim, started_ms: int) -> bytes:
        return claim.encode(valid_until_ms=started_ms + int(self._terms.validity_s * 1000))

    def _lease(self, claim: _Claim, *, version: str, started_s: float, started_ms: int) -> RenewedLease:
        return RenewedLease(
            claim,
            storage=self._storage,
            version=version,
            started_s=started_s,
            started_ms=started_ms,
            terms=self._terms,
            runtime=self._runtime,
        )


@dataclass(frozen=True, slots=True)
class _Record:
    """Content of a lock file of ours."""

    owner: str
    process: ProcessId
    acquired_at_ms: int
    valid_until_ms: int


@dataclass(frozen=True, slots=True)
class _Claim:
    """The lock file as one owner writes it."""

    storage: Storage
    path: str
    name: str
    owner: str
    process: ProcessId
    acquired_at_ms: int

    def encode(self, *, valid_until_ms: int) -> bytes:
        return _encode(
            _Record(
                owner=self.owner,
                process=self.process,
                acquired_at_ms=self.acquired_at_ms,
                valid_until_ms=valid_until_ms,
            )
        )

    def is_mine(self, data: bytes) -> bool:
        record = _decode(data)
        return record is not None and record.owner == self.owner

    def free(self, version: str) -> None:
        current = self.storage.read_versioned(self.path)
        if current is not None and self.is_mine(current.data):
            self.storage.delete(self.path)


def _encode(record: _Record) -> bytes:
    process = record.process
    return json.dumps(
        {
            "by": _SIGNATURE,
            "owner": record.owner,
            "host": process.host,
            "machine": process.machine,
            "pid": process.pid,
            "started": process.started,
            "acquiredAt": record.acquired_at_ms,
            "validUntil": record.valid_until_ms,
        }
    ).encode()


def _decode(data: bytes) -> _Record | None:
    """The record, None if the content is not ours: then it is somebody's lock, whatever it says."""
    try:
        fields = json.loads(data)
        if fields["by"] != _SIGNATURE:
            return None
        return _Record(
            owner=str(fields["owner"]),
            process=ProcessId(
                host=str(fields["host"]),
                machine=str(fields["machine"]),
                pid=int(fields["pid"]),
                started=str(fields["started"]),
            ),
            acquired_at_ms=int(fields["acquiredAt"]),
            valid_until_ms=int(fields["validUntil"]),
        )
    except (ValueError, TypeError, KeyError):
        return None


def _foreign_detail(data: bytes) -> str:
    if not data:
        return "empty lock file"
    return f"content not written by tablekeeper: {data[:80].decode('utf-8', 'replace')!r}"
