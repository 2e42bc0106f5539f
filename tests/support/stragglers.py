"""Attempts at tasks that Spark cannot stop: they sleep where they publish their first file, until somebody wakes them.

`StragglingEngine` is Spark's engine; in each of its jobs the first attempt at the first task sleeps, by stopping its
own process. Spark starts a copy on another host (`SPECULATION`) and goes on with what that brings back. `wake` lets the
sleepers go on and says how each of them ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from tablekeeper.engine.protocol import Frame, Kernel, SourceKernel
from tablekeeper.engine.spark import SparkEngine
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.txn.attempts import AttemptGuard

__all__ = ["SPECULATION", "Stragglers", "StragglingEngine"]

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.efficiency.enabled": "false",
    # Spark kills the attempt that lost; a machine that does not answer goes on with it all the same.
    "spark.python.task.killTimeout": "600s",
}
"""Copies of tasks are started at once, and attempts that lost go on."""

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Sleepers leave a file each in `folder`; they sleep before they publish their first file, or `after` that."""

    folder: Path
    after: bool = False

    @contextmanager
    def sleeping(self, job: int) -> Iterator[None]:
        """Around a kernel: it sleeps at its first file, and tells how it ended after it was woken."""
        publishing, slept = AttemptGuard.publishing, False

        @contextmanager
        def straggling(guard: AttemptGuard, path: str) -> Iterator[None]:
            nonlocal slept
            is_first, slept = not slept, True
            with publishing(guard, path):
                if is_first and not self.after:
                    self._sleep(job)
                yield
                if is_first and self.after:
                    self._sleep(job)

        outcome = "success"
        try:
            with patch.object(AttemptGuard, "publishing", straggling):
                yield
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            if slept:
                self._note(f"ended-{os.getpid()}", outcome)
            else:
                self._note(f"reached-{job}", "its end")

    @property
    def has_sleeper(self) -> bool:
        """A stage that Spark repeats counts its attempts anew; one sleeper in an operation is enough."""
        return any(self.folder.glob("asleep-*"))

    def await_sleeper(self, job: int) -> None:
        """What a copy does first: it must not win while the one that is to lose has not come to its file yet."""
        clock = SYSTEM_RUNTIME.clock
        until_s = clock.monotonic_s() + _TIMEOUT_S
        while not (self.folder / f"reached-{job}").exists() and clock.monotonic_s() < until_s:
            clock.sleep(0.02)

    def wake(self) -> list[str]:
        """Let every sleeper go on to its end; how they ended."""
        pids = [path.name.partition("-")[2] for path in sorted(self.folder.glob("asleep-*"))]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGCONT)
        outcomes = [self._outcome_of(pid) for pid in pids]
        for path in self.folder.iterdir():
            path.unlink()
        return outcomes

    def _sleep(self, job: int) -> None:
        self._note(f"asleep-{os.getpid()}", "")
        self._note(f"reached-{job}", "a file")
        os.kill(os.getpid(), signal.SIGSTOP)

    def _note(self, name: str, text: str) -> None:
        mine = self.folder / f".{os.getpid()}"
        mine.write_text(text)
        mine.rename(self.folder / name)

    def _outcome_of(self, pid: str) -> str:
        clock = SYSTEM_RUNTIME.clock
        until_s = clock.monotonic_s() + _TIMEOUT_S
        ended = self.folder / f"ended-{pid}"
        while not ended.exists():
            if clock.monotonic_s() > until_s:
                return "never ended"
            clock.sleep(0.02)
        return ended.read_text()


class StragglingEngine(SparkEngine):
    """Spark's engine, every kernel in workers; while there are `stragglers`, one attempt of each job sleeps."""

    stragglers: Stragglers | None = None

    def __init__(self, spark: Any) -> None:
        super().__init__(spark, driver_bytes=0)

    def run(self, kernel: Kernel[T, R], tasks: Sequence[T], *, label: str, weights: Sequence[float] = ()) -> list[R]:
        return super().run(self._straggling(kernel), tasks, label=label, weights=weights)

    def consume(self, kernel: SourceKernel[C, R], context: C, source: Frame, *, label: str, parts: int = 0) -> list[R]:
        return super().consume(self._straggling(kernel), context, source, label=label, parts=parts)

    def _straggling(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        return kernel if self.stragglers is None else _Straggling(kernel, self.stragglers)


@dataclass(frozen=True, slots=True)
class _Straggling:
    """A kernel whose first attempt at the first task of its job sleeps."""

    kernel: Callable[..., Any]
    stragglers: Stragglers

    def __call__(self, *arguments: Any) -> Any:
        from pyspark import TaskContext  # noqa: PLC0415 (exists on workers only)

        task = TaskContext.get()
        if task is None or task.partitionId() != 0 or self.stragglers.has_sleeper:
            return self.kernel(*arguments)
        if task.attemptNumber() != 0:
            self.stragglers.await_sleeper(task.stageId())
            return self.kernel(*arguments)
        with self.stragglers.sleeping(task.stageId()):
            return self.kernel(*arguments)
