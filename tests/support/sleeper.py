"""A process that sleeps in the middle of its work, longer than its lease and its heartbeat, and then goes on.

`SleeperStorage` stops its process at one of its changing calls, before the call or after it: all of the process, the
renewals of its lock and its heartbeat too. Time passes, others act, then the process goes on as if nothing had
happened. `RepeatingEngine` runs every task twice; the attempt that does not count stops at one of its changing calls
and goes on when it is told to, for instance after the commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from tablekeeper.engine.local import LocalEngine
from tablekeeper.engine.protocol import Frame, Kernel, SourceKernel
from tablekeeper.errors import TablekeeperError
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tests.support.fake_runtime import FakeClock, FakePeriodic
from tests.support.step_faults import WRITES, OneThread, StepStorage

__all__ = ["ASLEEP_S", "LateAttempts", "Nap", "RepeatingEngine", "SleeperStorage"]

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

ASLEEP_S = 3_600.0
"""Longer than any lease and any heartbeat."""

_LOCKS = ".hoodie/.locks/"
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Nap:
    """The call (from 1) at which a process sleeps.

    It sleeps before the call happens or `after` it; its `renewals` may be the first that wake up.
    """

    step: int
    after: bool = False
    renewals_first: bool = False

    def __str__(self) -> str:
        order = ", renewals wake up first" if self.renewals_first else ""
        return f"asleep {'after' if self.after else 'before'} call {self.step}{order}"


class LateAttempts:
    """Attempts at tasks that stop at a changing call and go on, to their ends, when `release` says so."""

    def __init__(self, *, at_publish: bool) -> None:
        self._at_publish = at_publish
        self._threads: dict[threading.Thread, threading.Semaphore] = {}
        self._stopped: set[threading.Thread] = set()
        self._arrived = threading.Semaphore(0)
        self.broken = 0
        self.fenced = 0

    def start(self, work: Callable[[], object]) -> None:
        """Begin an attempt; returns when it has stopped or ended."""
        thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._threads[thread] = threading.Semaphore(0)
        thread.start()
        self._await()

    def stop_here(self, kind: str) -> bool:
        """Called before every storage call; False if this thread is none of the attempts."""
        thread = threading.current_thread()
        if thread not in self._threads:
            return False
        if thread not in self._stopped and (kind == "publish" if self._at_publish else kind in WRITES):
            self._stopped.add(thread)
            self._arrived.release()
            self._threads[thread].acquire()
        return True

    def release(self) -> int:
        """Let all attempts go on to their ends, one after the other; how many there were."""
        waiting = [thread for thread in self._threads if thread.is_alive()]
        for thread in waiting:
            self._threads[thread].release()
            self._await()
            thread.join()
        return len(waiting)

    def _run(self, work: Callable[[], object]) -> None:
        # Any other error ends the thread with a traceback, and is counted until it turns out to be none.
        self.broken += 1
        try:
            work()
            self.broken -= 1
        except TablekeeperError:
            # It was told that it is too late.
            self.broken -= 1
            self.fenced += 1
        finally:
            self._arrived.release()

    def _await(self) -> None:
        if not self._arrived.acquire(timeout=_TIMEOUT_S):
            raise TimeoutError("an attempt neither stopped at a call nor ended")


class RepeatingEngine(LocalEngine):
    """Runs each task twice. What the second attempt returns counts; the first one is one of the late attempts."""

    may_repeat_tasks = True

    def __init__(self, *, runtime: Runtime, late: LateAttempts) -> None:
        super().__init__(threads=1, runtime=runtime)
        self._late = late

    def run(self, kernel: Kernel[T, R], tasks: Sequence[T], *, label: str, weights: Sequence[float] = ()) -> list[R]:
        def twice(task: T) -> R:
            if label != "read":
                self._late.start(lambda: kernel(task))
            return kernel(task)

        return super().run(twice, tasks, label=label, weights=weights)

    def consume(self, kernel: SourceKernel[C, R], context: C, source: Frame, *, label: str, parts: int = 0) -> list[R]:
        def twice(context: C, number: int, batches: Iterator[pa.RecordBatch]) -> list[R]:
            rows = list(batches)
            self._late.start(lambda: kernel(context, number, iter(rows)))
            return kernel(context, number, iter(rows))

        return super().consume(twice, context, source, label=label, parts=parts)


class SleeperStorage(StepStorage):
    """The store of a process that sleeps once, at the call that `nap` names, while `meanwhile` happens."""

    def __init__(
        self,
        storage: Storage,
        *,
        threads: OneThread,
        clock: FakeClock,
        nap: Nap | None = None,
        meanwhile: Callable[[], None] = lambda: None,
        late: LateAttempts | None = None,
    ) -> None:
        super().__init__(storage)
        self._threads = threads
        self._clock = clock
        self._nap = nap
        self._meanwhile = meanwhile
        self._late = late
        self.slept = False

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        if self._late is not None and self._late.stop_here(kind):
            return call()
        self.calls.append((kind, path))
        if self._nap is None or self._nap.step != len(self.calls):
            return call()
        if not self._nap.after:
            self._sleep(path)
            return call()
        result = call()
        self._sleep(path)
        return result

    def _sleep(self, path: str) -> None:
        assert self._nap is not None
        self.slept = True
        asleep: list[FakePeriodic] = [periodic for periodic in self._threads.periodics if periodic.is_running]
        for periodic in asleep:
            periodic.is_running = False
        self._clock.stall(ASLEEP_S)
        self._meanwhile()
        # A call for the lock holds the mutex that a renewal of the lock waits for.
        renews = self._nap.renewals_first and not path.startswith(_LOCKS)
        for periodic in asleep:
            periodic.is_running = True
            if renews:
                periodic.fire()
