"""A lease on one object of a store, kept alive by conditional writes.

Shared by the lock that is a file on a file system and the lock that is a JSON object in a store.
Invariants:

- The lease counts from *before* the write that started or renewed it, on the monotonic clock and on
  the wall clock; the shorter view counts. A clock that jumps back cannot lengthen a lease, and a
  machine that was suspended notices on the wall clock.
- `check` wants a tenth of the lease to be left, so that the publish that follows it has time.
- Once lapsed or lost, a lease stays so: it is not revived by a late renewal.
- A write whose answer got lost is recognised by its content when the next one is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tablekeeper.errors import StorageError
from tablekeeper.runtime import Runtime
from tablekeeper.txn.locks.claim import Claim
from tablekeeper.txn.locks.held import HeldLease

__all__ = ["CLOCK_DRIFT_MS", "LeaseTerms", "RenewedLease"]

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
    ) -> None:
        super().__init__(name, acquired_s=started_s, clock=runtime.clock)
        self._claim = claim
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

    def _free(self) -> None:
        with self._mutex:
            if not self._end():
                return
            try:
                # A lapsed lease may be about to be taken over: only who still wins a conditional write may free it.
                if self._lost is None and (self._remaining_s() > 0 or self._extend()):
                    self._claim.free()
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
