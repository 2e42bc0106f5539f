"""Attempts: one execution of a write or of a plan, with an identity of its own.

Its number is in the name of every file that it writes, so that files of two attempts are never confused. Its changes go
through two scopes of the store: one for its tasks, one for its driver. The driver fences the tasks once it has their
results, so that no late or repeated task adds a file to a commit. A process that rolls the attempt back or takes its
plan over fences both before it looks for the attempt's files.

A store without scopes cannot stop a task that wakes up too late. There a task checks directly before and after it
publishes a file that the heartbeat still belongs to its attempt, and removes the file if not (`AttemptGuard`).
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
    """One attempt at `instant`. `owner` is the text of its heartbeat: the process, and a unique mark."""

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
        """The store, for the driver's changes on behalf of the attempt."""
        return ScopedStorage(storage, self.driver_scope)

    def end_tasks(self, storage: Storage) -> None:
        """Fence the tasks: none of them can publish anything from here on."""
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
        look=held.lease.look,
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
    """Fence every attempt at `instant`: none of them can change anything from here on. Also removes their scopes."""
    storage.fence(_group(instant))


class AttemptGuard:
    """Lets the tasks of an attempt notice that it is over: rolled back, cancelled, or taken over by another executor.

    `check` is cheap: it asks the store at most once per interval. Workers get a copy of their own. A task publishes its
    files inside `publishing`, and through `scope`.
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
        """The scope that tasks pass when they publish."""
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
        """Wraps the call that makes a file visible: checks before and after it that the attempt is not over.

        Whoever ends an attempt first ends its heartbeat and then looks for its files. If a file comes too late to be
        found then, the check after it notices that the heartbeat has ended, and removes the file.
        """
        self.check_now()
        yield
        try:
            self.check_now()
        except (FencedError, PlanCancelledError):
            self._store.storage.delete(path)
            raise

    def check_now(self) -> None:
        """Like `check`, regardless of the interval."""
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
