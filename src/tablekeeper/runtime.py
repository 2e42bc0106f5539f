"""Time, identity, randomness, threads, processes and the memory left to this one: the only module that touches them.

Everything else is handed a `Runtime`, so that a simulator can own the clock, make ids
repeatable and decide the order in which concurrent work happens.

Memory may be bounded: Spark enforces `spark.executor.pyspark.memory` by a limit on the address space of its Python
workers. Libraries and thread stacks count against it, and so does what an allocator reserves and does not use. What is
left is known only in the worker, so that kernels ask there and hold less than they would otherwise.

A process is named by machine boot, pid namespace, pid and start time, so that neither a reused pid nor a container of
the same machine is taken for it. Death is claimed only with proof: for a process of another machine, another container,
or a system without `/proc`, the answer is always "not dead".
"""

from __future__ import annotations

import os
import random
import resource
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

__all__ = [
    "FRUGAL_ENVIRONMENT",
    "SYSTEM_RUNTIME",
    "Clock",
    "Event",
    "Ids",
    "LinuxProcesses",
    "Periodic",
    "Pool",
    "ProcessId",
    "Processes",
    "Runtime",
    "SystemClock",
    "SystemIds",
    "Threads",
    "memory_left_bytes",
]

Pool = Executor
"""Threads that a library runs its calls on."""

T = TypeVar("T")
R = TypeVar("R")


class Clock(Protocol):
    """Where the time comes from."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back, for measuring durations."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class Ids(Protocol):
    """Where identities and jitter come from."""

    def uuid(self) -> str:
        """A random UUID in its usual text form."""
        ...

    def number(self, bound: int) -> int:
        """A random whole number from 0 up to, not including, `bound`."""
        ...

    def jitter(self) -> float:
        """A random number in [0, 1)."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SystemIds:
    """The operating system's randomness."""

    def uuid(self) -> str:
        return str(uuid.uuid4())

    def number(self, bound: int) -> int:
        return random.SystemRandom().randrange(bound)

    def jitter(self) -> float:
        return random.random()


class Periodic:
    """Runs `action` every `interval_s` seconds on a daemon thread until stopped.

    An exception ends the loop and is kept in `failure`: the owner decides what it means.
    """

    def __init__(self, action: Callable[[], None], *, interval_s: float, name: str) -> None:
        self._action = action
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(min(self._interval_s, threading.TIMEOUT_MAX)):
            try:
                self._action()
            except BaseException as error:
                self.failure = error
                return

    def stop(self) -> None:
        """End the loop and wait for a running action to finish."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class Event(Protocol):
    """Something that one thread waits for and another one reports."""

    def set(self) -> None:
        """Report it: those who wait go on."""
        ...

    def clear(self) -> None:
        """Forget it, to wait for it again."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait for it, at most `timeout` seconds; False if it did not happen."""
        ...


class Threads:
    """Threads for bounded parallel work and for periodic background actions."""

    def every(self, interval_s: float, action: Callable[[], None], *, name: str) -> Periodic:
        """Start `action` as a periodic background loop."""
        return Periodic(action, interval_s=interval_s, name=name)

    def start(self, action: Callable[[], None], *, name: str) -> None:
        """Run `action` on a thread of its own that nobody has to wait for, not even the end of the process."""
        threading.Thread(target=action, name=name, daemon=True).start()

    def lock(self) -> AbstractContextManager[bool]:
        """A mutex between threads of this process."""
        return threading.Lock()

    def event(self) -> Event:
        """An event that has not happened yet."""
        return threading.Event()

    def pool(self, width: int, *, name: str) -> Pool:
        """At most `width` threads for a library that wants to own them; the caller shuts them down."""
        return ThreadPoolExecutor(max_workers=width, thread_name_prefix=name)

    def call_within(self, seconds: float, function: Callable[[], T], *, name: str) -> T:
        """`function()`; `TimeoutError` if it is not done in time, whose thread is then left to end by itself."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        # A daemon, unlike the threads of a pool: a call that never ends does not keep the process from ending.
        threading.Thread(target=call, name=name, daemon=True).start()
        return future.result(seconds)

    def map(self, function: Callable[[T], R], items: Iterable[T], *, width: int = 32) -> list[R]:
        """`[function(i) for i in items]` on at most `width` threads, in the order of `items`."""
        work = list(items)
        if width <= 1 or len(work) <= 1:
            return [function(item) for item in work]
        with ThreadPoolExecutor(max_workers=min(width, len(work))) as pool:
            return list(pool.map(function, work))

    def together(self, first: Callable[[], T], second: Callable[[], R]) -> tuple[T, R]:
        """Both results, of calls that need not wait for each other. Both are over when one of them raises."""
        results: list[Any] = self.map(lambda call: call(), cast("list[Callable[[], Any]]", [first, second]))
        return results[0], results[1]

    def map_unordered(self, function: Callable[[T], R], items: Iterable[T], *, width: int) -> Iterator[R]:
        """Results as they come; at most `width` calls run, and at most `2 * width` are queued.

        `items` is drawn on the caller's thread, so that a lazy source is never read ahead without bound.
        """
        source = iter(items)
        with ThreadPoolExecutor(max_workers=max(1, width)) as pool:
            running: set[Future[R]] = set()
            exhausted = False
            while True:
                while not exhausted and len(running) < 2 * width:
                    try:
                        running.add(pool.submit(function, next(source)))
                    except StopIteration:
                        exhausted = True
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()


FRUGAL_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
}
"""Lets a process reserve little memory in advance and give back what it frees; to be set before it starts.

Arrow's own allocator reserves at least 128 MiB at once, and the system's 64 MiB for each thread.
"""

_STATM = Path("/proc/self/statm")


def memory_left_bytes() -> int | None:
    """How far the address space of this process may grow; None if there is no limit, or no way to tell."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or not _STATM.exists():
        return None
    used = int(_STATM.read_text().split()[0]) * resource.getpagesize()
    return max(0, limit - used)


_HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process in the world. `machine` is empty where it cannot be known."""

    host: str
    machine: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def to_json(self) -> dict[str, str | int]:
        """As it is written into a lock."""
        return {"host": self.host, "machine": self.machine, "pid": self.pid, "started": self.started}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ProcessId:
        """From what a lock says; `KeyError`, `TypeError` or `ValueError` if it is something else."""
        return cls(
            host=str(fields["host"]),
            machine=str(fields["machine"]),
            pid=int(fields["pid"]),
            started=str(fields["started"]),
        )


class Processes(Protocol):
    """What can be known about processes."""

    def me(self) -> ProcessId:
        """The process that asks."""
        ...

    def is_dead(self, process: ProcessId) -> bool:
        """True only if it certainly does not run any more."""
        ...


class LinuxProcesses:
    """Reads `/proc`."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root

    def me(self) -> ProcessId:
        pid = os.getpid()
        found = self._start(pid)
        return ProcessId(
            host=socket.gethostname(),
            machine=self._machine(),
            pid=pid,
            started="" if found is None else found,
        )

    def is_dead(self, process: ProcessId) -> bool:
        machine = self._machine()
        if not machine or process.machine != machine or not process.started:
            return False
        return self._start(process.pid) not in (process.started, _HIDDEN)

    def _machine(self) -> str:
        try:
            boot = (self._root / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            return f"{boot}/{(self._root / 'self/ns/pid').readlink()}"
        except OSError:
            return ""

    def _start(self, pid: int) -> str | None:
        """Start time in clock ticks since boot; None if there is no such process, or only its remains."""
        home = self._root / str(pid)
        try:
            fields = (home / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            is_remains = fields[0] in "ZX" and len(list((home / "task").iterdir())) <= 1
        except (FileNotFoundError, ProcessLookupError):
            return _HIDDEN if _exists(pid) else None
        return None if is_remains else fields[19]


@dataclass(frozen=True, slots=True)
class Runtime:
    """The components that make a run repeatable, handed to everything that needs them."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    threads: Threads = field(default_factory=Threads)
    processes: Processes = field(default_factory=LinuxProcesses)

    @property
    def process_name(self) -> str:
        """Who this process is, for others to read: host and process id."""
        me = self.processes.me()
        return f"{me.host}:{me.pid}"


SYSTEM_RUNTIME = Runtime()


def _exists(pid: int) -> bool:
    """Asked of the kernel: `/proc` may be mounted so that it hides the processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
