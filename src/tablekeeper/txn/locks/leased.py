"""Locks that are one object of a store: claimed, kept alive and given back by conditional writes.

An attempt looks at the object, and creates it if it is absent, or replaces it on condition that it is
still the one looked at if its holder has given it back or is gone. The store lets one writer win.

The two kinds of such locks, a file on a file system and a JSON object in a store, differ in how a record is written and
in how a lock is given back (a file is deleted, an object is rewritten as expired); all else, from the first write to
the last, is one `Claim`.

Invariants of the lease:

- The lease counts from *before* the write that started or renewed it, on the monotonic clock and on
  the wall clock; the shorter view counts. A clock that jumps back cannot lengthen a lease, and a
  machine that was suspended notices on the wall clock.
- `check` wants a tenth of the lease to be left, so that the publish that follows it has time.
- Once lapsed or lost, a lease stays so: it is not revived by a late renewal.
- A write whose answer got lost is recognised by its content when the next one is refused.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tablekeeper.errors import FencedError, StorageError
from tablekeeper.runtime import Processes, ProcessId, Runtime
from tablekeeper.storage.protocol import Storage, VersionedBytes
from tablekeeper.txn.locks.protocol import HeldLease, LockHolder, Pace, wait_for

__all__ = [
    "CLOCK_DRIFT_MS",
    "Claim",
    "Freed",
    "LeaseTerms",
    "LeasedLock",
    "LockFormat",
    "LockRecord",
    "Owner",
    "RenewedLease",
]


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

    def give_back(
        self, storage: Storage, path: str, *, current: VersionedBytes, freed: LockRecord, scope: str | None
    ) -> VersionedBytes | None:
        """Leave the lock free for others. `current` is what its owner found to be its own just now.

        What is there then, if something is and it is known. `FencedError` if another process, which has fenced `scope`,
        has taken the lock over since.
        """
        ...

    def give_back_at(self, storage: Storage, path: str, *, version: str, freed: LockRecord) -> VersionedBytes | None:
        """The same on condition that the object still has this version, what is there then; None if that was not done.

        Kinds of locks that cannot make it a condition do nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class Freed:
    """Whether a lock was its owner's until it was given back, and the free lock that is `left`, if that is known."""

    was_mine: bool
    left: VersionedBytes | None = None


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

    def free(self, *, version: str, valid_until_ms: int, scope: str | None = None) -> Freed:
        """Give the lock back, if it is still this owner's. It had this version when it was looked at last."""
        record = LockRecord(self.owner, valid_until_ms, is_expired=True)
        left = self.format.give_back_at(self.storage, self.path, version=version, freed=record)
        if left is not None:
            return Freed(was_mine=True, left=left)
        current = self.storage.read_versioned(self.path)
        held = None if current is None else self._mine(current.data)
        if current is None or held is None:
            return Freed(was_mine=False)
        freed = replace(held, is_expired=True)
        try:
            left = self.format.give_back(self.storage, self.path, current=current, freed=freed, scope=scope)
        except FencedError:
            return Freed(was_mine=False)
        return Freed(True, left)

    def _mine(self, data: bytes) -> LockRecord | None:
        record = self.format.decode(data)
        if record is None or record.is_expired or record.owner.id != self.owner.id:
            return None
        return record


CLOCK_DRIFT_MS = 500
"""How far clocks of two writers may be apart before a lease is taken for lapsed; Java allows as much."""

_LOG = logging.getLogger(__name__)
_RESERVE = 0.1


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How long a lease is good for, and how often it is renewed."""

    validity_s: float
    renew_interval_s: float


class RenewedLease(HeldLease):
    """The lock while held; renewed in the background until it is released."""

    def __init__(
        self,
        name: str,
        claim: Claim,
        *,
        version: str,
        started_s: float,
        started_ms: int,
        terms: LeaseTerms,
        runtime: Runtime,
        leave: Callable[[VersionedBytes], None],
    ) -> None:
        super().__init__(name, acquired_s=started_s, clock=runtime.clock)
        self._claim = claim
        self._leave = leave
        self._storage = claim.storage
        self._version = version
        self._terms = terms
        self._mutex = runtime.threads.lock()
        self._good_from_s = started_s
        self._good_from_ms = started_ms
        self._lost: str | None = None
        self._renewal = runtime.threads.every(terms.renew_interval_s, self.renew, name="tablekeeper-lock-renewal")

    def check(self) -> None:
        with self._mutex:
            self._refuse_if_over()
            current = self._storage.read_versioned(self._claim.path)
            if current is None:
                self._lost = "the lock was removed while it was held"
            elif not self._claim.is_mine(current.data):
                self._lost = "another writer has taken the lock over"
            self._refuse_if_over()

    def renew(self) -> None:
        """Extend the lease. Faults of the store are borne until the lease is over: the next renewal may succeed."""
        with self._mutex:
            if self._over() is not None:
                return
            try:
                self._extend()
            except StorageError as error:
                _LOG.warning("%s: the lock could not be renewed and will be tried again: %s", self._name, error)

    def release(self) -> None:
        self._free()
        # After the lock is free, so that nobody waits for our thread to end; a renewal of its finds the lock released.
        self._renewal.stop()

    def end(self) -> None:
        with self._mutex:
            self._refuse_if_over()
            self._end()
            try:
                was_mine = self._give_back()
            except BaseException:
                # Not known to be free: it may be tried once more.
                self._released_s = None
                raise
            if not was_mine:
                self._lost = "another writer has taken the lock over"
        self._renewal.stop()
        if not was_mine:
            raise self._fenced("another writer had taken the lock over before it was given back")

    def _give_back(self) -> bool:
        """Whether the lock was ours until it was given back."""
        valid_until_ms = self._good_from_ms + int(self._terms.validity_s * 1000)
        freed = self._claim.free(version=self._version, valid_until_ms=valid_until_ms, scope=self._scope)
        if freed.left is not None:
            self._leave(freed.left)
        return freed.was_mine

    def _free(self) -> None:
        with self._mutex:
            if not self._end():
                return
            try:
                # A lapsed lease may be about to be taken over: only who still wins a conditional write may free it.
                if self._lost is None and (self._remaining_s() > 0 or self._extend()):
                    self._give_back()
            except StorageError as error:
                _LOG.warning("%s: the lock was not freed and will lapse by itself: %s", self._name, error)

    def _loss(self) -> str | None:
        if self._lost is None and self._remaining_s() <= 0:
            self._lost = f"the lock was not renewed within its {self._terms.validity_s:g} s, another writer may hold it"
        return self._lost

    def _remaining_s(self) -> float:
        spent_s = self._clock.monotonic_s() - self._good_from_s
        spent_wall_s = (self._clock.now_ms() - self._good_from_ms + CLOCK_DRIFT_MS) / 1000
        return self._terms.validity_s * (1 - _RESERVE) - max(spent_s, spent_wall_s)

    def _extend(self) -> bool:
        started_s, started_ms = self._clock.monotonic_s(), self._clock.now_ms()
        data = self._claim.encode(valid_until_ms=started_ms + int(self._terms.validity_s * 1000))
        version = self._storage.replace(self._claim.path, data, version=self._version)
        if version is None:
            version = self._recover(data)
        if version is None:
            self._lost = "another writer has taken the lock over"
            return False
        self._version = version
        self._good_from_s, self._good_from_ms = started_s, started_ms
        return True

    def _recover(self, data: bytes) -> str | None:
        """After a refused write: if an earlier one of ours had landed unanswered, write on top of that."""
        current = self._storage.read_versioned(self._claim.path)
        if current is None or not self._claim.is_mine(current.data):
            return None
        return self._storage.replace(self._claim.path, data, version=current.version)


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
        self._processes = processes or runtime.processes
        # The free lock as it was seen last. Taking it depends on its version, so that it does no harm if it is old.
        self._seen_free: VersionedBytes | None = None

    @abstractmethod
    def look_ahead(self) -> None: ...

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
                free, self._seen_free = self._seen_free, None
                lease = None if free is None else self._take(claim, free)
                if lease is not None:
                    return lease
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
            leave=self._remember_free,
        )

    def _remember_free(self, free: VersionedBytes) -> None:
        self._seen_free = free
