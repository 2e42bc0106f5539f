"""What the locks in a store have in common: one object, claimed by conditional writes.

An attempt looks at the object, and creates it if it is absent, or replaces it on condition that it is
still the one looked at if its holder has given it back or is gone. The store lets one writer win.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tablekeeper.errors import StorageError
from tablekeeper.runtime import Runtime
from tablekeeper.storage.protocol import Storage, VersionedBytes
from tablekeeper.txn.locks.claim import Claim, LockFormat, LockRecord, Owner
from tablekeeper.txn.locks.processes import LinuxProcesses, Processes
from tablekeeper.txn.locks.protocol import LockHolder
from tablekeeper.txn.locks.renewed import CLOCK_DRIFT_MS, LeaseTerms, RenewedLease
from tablekeeper.txn.locks.waiting import Pace, wait_for

__all__ = ["LeasedLock"]


class LeasedLock(ABC):
    """A lock that is the object `path` of `storage`."""

    def __init__(
        self,
        storage: Storage,
        *,
        path: str,
        lock_format: LockFormat,
        terms: LeaseTerms,
        pace: Pace,
        runtime: Runtime,
        processes: Processes | None,
    ) -> None:
        self.name = f"{storage.spec.uri.rstrip('/')}/{path}"
        self._storage = storage
        self._path = path
        self._format = lock_format
        self._terms = terms
        self._pace = pace
        self._runtime = runtime
        self._processes = processes or LinuxProcesses()

    @abstractmethod
    def describe(self) -> LockHolder | None: ...

    @abstractmethod
    def _is_free(self, current: VersionedBytes) -> bool:
        """True if the holder that `current` names has given the lock back or is gone."""

    def _confirmation_s(self, seen: VersionedBytes | None) -> float:
        """Seconds after which a lock that was just created is looked at again; `seen` held it before."""
        del seen
        return 0.0

    def acquire(self, *, timeout_s: float) -> RenewedLease:
        claim = self._claim()
        seen: VersionedBytes | None = None

        def attempt() -> RenewedLease | None:
            nonlocal seen
            try:
                current = self._storage.read_versioned(self._path)
                if current is None:
                    return self._create(claim, confirm_after_s=self._confirmation_s(seen))
                seen = current
                # The claim itself is there when the store took a write whose answer got lost.
                if claim.is_mine(current.data) or self._is_free(current):
                    return self._take(claim, current)
            except StorageError as error:
                if not error.transient:
                    raise
            return None

        return wait_for(
            attempt,
            lock=self.name,
            describe=self.describe,
            timeout_s=timeout_s,
            pace=self._pace,
            runtime=self._runtime,
        )

    def _holder(self, owner: Owner, *, is_lapsed: bool, detail: str) -> LockHolder:
        age_s = owner.age_s(self._runtime.clock.now_ms())
        return LockHolder(self.name, owner.id, age_s, owner.acquired_at_ms, is_lapsed, detail)

    def _is_lapsed(self, record: LockRecord) -> bool:
        """True if the record says so itself, or its time has certainly passed, or its process is dead."""
        if record.is_expired or self._runtime.clock.now_ms() > record.valid_until_ms + CLOCK_DRIFT_MS:
            return True
        process = record.owner.process
        return process is not None and self._processes.is_dead(process)

    def _claim(self) -> Claim:
        owner = Owner(
            id=self._runtime.ids.uuid(),
            process=self._processes.me(),
            acquired_at_ms=self._runtime.clock.now_ms(),
        )
        return Claim(self._storage, self._path, self._format, owner)

    def _create(self, claim: Claim, *, confirm_after_s: float) -> RenewedLease | None:
        started_s, started_ms = self._now()
        if not self._storage.put_if_absent(self._path, self._content(claim, started_ms)):
            return None
        if confirm_after_s:
            self._runtime.clock.sleep(confirm_after_s)
        current = self._storage.read_versioned(self._path)
        if current is None or not claim.is_mine(current.data):
            return None
        return self._lease(claim, version=current.version, started_s=started_s, started_ms=started_ms)

    def _take(self, claim: Claim, current: VersionedBytes) -> RenewedLease | None:
        started_s, started_ms = self._now()
        version = self._storage.replace(self._path, self._content(claim, started_ms), version=current.version)
        if version is None:
            return None
        return self._lease(claim, version=version, started_s=started_s, started_ms=started_ms)

    def _now(self) -> tuple[float, int]:
        return self._runtime.clock.monotonic_s(), self._runtime.clock.now_ms()

    def _content(self, claim: Claim, started_ms: int) -> bytes:
        return claim.encode(valid_until_ms=started_ms + int(self._terms.validity_s * 1000))

    def _lease(self, claim: Claim, *, version: str, started_s: float, started_ms: int) -> RenewedLease:
        return RenewedLease(
            self.name,
            claim,
            version=version,
            started_s=started_s,
            started_ms=started_ms,
            terms=self._terms,
            runtime=self._runtime,
        )
