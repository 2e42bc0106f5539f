"""Attempts: one execution of a write or of a plan, with an identity of its own.

Its number is in the name of every file that it writes, so that files of two attempts are never taken for one another.
Its changes go through two scopes of the store: one for its tasks, one for its driver. The driver fences the tasks when
their results are in, so that no straggler and no repeated task adds a file to a commit; a process that rolls the
attempt back or takes its plan over fences both, before it looks for the attempt's files.

A store without scopes cannot stop a task that wakes up too late. There a task looks whether the heartbeat is still its
attempt's directly before and directly after it publishes, and takes its file back if it is not (`AttemptGuard`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tablekeeper.errors import FencedError, PlanCancelledError
from tablekeeper.model import RequestedTime
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.storage.scoped import ScopedStorage
from tablekeeper.txn.cancel_requests import load_cancel_request
from tablekeeper.txn.environment import LockedEnvironment
from tablekeeper.txn.heartbeat import Heartbeat, load_heartbeat_owner, start_heartbeat

__all__ = ["AttemptGuard", "AttemptId", "begin_attempt", "fence_attempts", "take_attempt"]

_ROOT = "attempts"
_NUMBERS = 1 << 31
"""Java reads the parts of a write token as numbers of 32 bits with a sign."""


@dataclass(frozen=True, slots=True)
class AttemptId:
    """One attempt at `instant`. `owner` is what its heartbeat says: who runs it, and a mark that nobody else has."""

    instant: RequestedTime
    number: int
    owner: str

    @property
    def driver_scope(self) -> str:
        return f"{_group(self.instant)}/{self.number}"

    @property
    def task_scope(self) -> str:
        return f"{_group(self.instant)}/{self.number}-tasks"

    def driver_storage(self, storage: Storage) -> Storage:
        """The store, for changes that the driver makes on behalf of the attempt."""
        return ScopedStorage(storage, self.driver_scope)

    def end_tasks(self, storage: Storage) -> None:
        """No task of the attempt publishes anything from here on."""
        storage.fence(self.task_scope, scope=self.driver_scope)

    def wrote(self, write_token: str) -> bool:
        """Whether a file with this write token is one of the attempt's."""
        parts = write_token.split("-")
        return len(parts) == 3 and parts[1] == str(self.number)


def begin_attempt(held: LockedEnvironment, instant: RequestedTime) -> tuple[AttemptId, Heartbeat]:
    """A new attempt at `instant` and its heartbeat, which outlives the lock; all earlier attempts are fenced."""
    attempt = take_attempt(held.storage, instant, runtime=held.runtime)
    heartbeat = start_heartbeat(
        attempt.driver_storage(held.unlocked.storage),
        instant,
        settings=held.heartbeat_settings,
        runtime=held.runtime,
        owner=attempt.owner,
    )
    return attempt, heartbeat


def take_attempt(storage: Storage, instant: RequestedTime, *, runtime: Runtime) -> AttemptId:
    """The identity of a new attempt at `instant`, and its scopes; all earlier attempts are fenced."""
    attempt = AttemptId(instant, runtime.ids.number(_NUMBERS), f"{runtime.process_name} {runtime.ids.uuid()}")
    _, _, driver = attempt.driver_scope.rpartition("/")
    _, _, tasks = attempt.task_scope.rpartition("/")
    storage.take_scope(_group(instant), driver, tasks)
    return attempt


def fence_attempts(storage: Storage, instant: RequestedTime) -> None:
    """Nobody who works on `instant` changes anything from here on. Also removes what the scopes hold."""
    storage.fence(_group(instant))


class AttemptGuard:
    """Lets the tasks of an attempt notice that it is over: rolled back, cancelled, or another executor's now.

    Cheap to ask: `check` looks at most once an interval. Travels to workers, where it starts afresh. A task publishes
    its files inside `publishing`, and through `scope`.
    """

    def __init__(
        self,
        store: StorageHandle,
        attempt: AttemptId,
        *,
        runtime: Runtime,
        is_plan: bool = False,
        interval_s: float = 2.0,
    ) -> None:
        self.attempt = attempt
        self._store = store
        self._is_plan = is_plan
        self._clock = runtime.clock
        self._threads = runtime.threads
        self._interval_s = interval_s
        self._looked_s: float | None = None

    @property
    def scope(self) -> str:
        """What tasks name when they publish."""
        return self.attempt.task_scope

    def check(self) -> None:
        """Raise `PlanCancelledError` if the plan was cancelled, `FencedError` if the attempt is over."""
        now_s = self._clock.monotonic_s()
        if self._looked_s is not None and 0 <= now_s - self._looked_s < self._interval_s:
            return
        self._looked_s = now_s
        self.check_now()

    @contextmanager
    def publishing(self, path: str) -> Iterator[None]:
        """Around the call that makes a file of the attempt visible: it must not be over, before and after.

        To end an attempt is to end its heartbeat first, and then to look for its files. A file that came too late to be
        found there finds the heartbeat ended, and is taken back.
        """
        self.check_now()
        yield
        try:
            self.check_now()
        except (FencedError, PlanCancelledError):
            self._store.storage.delete(path)
            raise

    def check_now(self) -> None:
        """The same as `check` without regard to the interval."""
        storage, instant = self._store.storage, self.attempt.instant
        request, owner = self._threads.together(
            lambda: load_cancel_request(storage, instant) if self._is_plan else None,
            lambda: load_heartbeat_owner(storage, instant),
        )
        if request is not None:
            raise PlanCancelledError(
                f"plan {instant} was cancelled ({request.reason}). Nothing was committed; schedule a new plan "
                "when the time has come.",
                instant=instant.value,
                reason=request.reason,
            )
        if owner != self.attempt.owner:
            raise FencedError(
                f"instant {instant} is not this process's any more: its heartbeat has ended or is another's. "
                "Nothing was committed; reload the table."
            )


def _group(instant: RequestedTime) -> str:
    return f"{_ROOT}/{instant.value}"
