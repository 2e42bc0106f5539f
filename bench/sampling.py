"""Peak memory of a contender's processes, sampled from outside: the JVM, all Python processes, the largest worker."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass

import psutil

__all__ = ["MemorySampler", "PeakMemory"]

_INTERVAL_S = 0.1


@dataclass
class PeakMemory:
    """Resident bytes. `python` is the sum over all Python processes at one moment, `worker` the largest single one."""

    jvm: int = 0
    python: int = 0
    worker: int = 0

    def note(self, *, jvm: int, python: int, worker: int) -> None:
        self.jvm, self.python, self.worker = max(self.jvm, jvm), max(self.python, python), max(self.worker, worker)

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class MemorySampler:
    """Watches the process tree of `pid` until stopped, and keeps peaks for the step that is running."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._step = PeakMemory()
        self.overall = PeakMemory()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._thread.start()

    def next_step(self) -> PeakMemory:
        """Peaks since the last call."""
        with self._lock:
            finished, self._step = self._step, PeakMemory()
        return finished

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            try:
                processes = [self._root, *self._root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            self._sample(processes)

    def _sample(self, processes: list[psutil.Process]) -> None:
        jvm = python = worker = 0
        for process in processes:
            try:
                name, resident = process.name(), process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            if "java" in name:
                jvm += resident
            elif "python" in name:
                python += resident
                worker = max(worker, resident)
        with self._lock:
            self._step.note(jvm=jvm, python=python, worker=worker)
        self.overall.note(jvm=jvm, python=python, worker=worker)
