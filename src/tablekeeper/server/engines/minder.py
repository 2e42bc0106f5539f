"""A small process that minds one job: starts it, keeps its output within bounds, ends it at its time limit.

It belongs to no instance: when the one that started it dies, it goes on, and the next instance finds it by the lock on
its file, which it holds as long as it lives. A second minder for the same attempt finds the lock taken and leaves.

Run as `python -m tablekeeper.server.engines.minder SPEC`, where SPEC is a file with the command, the environment, the
places of log and exit code, and the limits. Or forked with its job by `fork_server.py`, which spares both their start.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from tablekeeper.runtime import SYSTEM_RUNTIME, Clock
from tablekeeper.server.engines.files import save_json

__all__ = ["Child", "MinderSpec", "claimed_spec", "give_way", "main", "mind", "pid_file_of"]

_GRACE_S = 10.0
_TICK_S = 0.5
_CHUNK = 1 << 16
_PR_SET_PDEATHSIG = 1
_NICENESS = 5
_SESSION_NICENESS = Path("/proc/self/autogroup")


@dataclass(frozen=True, slots=True)
class MinderSpec:
    """What to run and within which bounds. `exit_path` gets the exit code, and whether the time limit ended it."""

    command: tuple[str, ...]
    log_path: str
    exit_path: str
    time_limit_s: float
    log_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)


class Child(Protocol):
    """The process of a job, of which its minder reads the output: what `subprocess.Popen` has of it."""

    pid: int

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


class _BoundedLog:
    """Keeps the newest output: what does not fit goes to one older file, and then away."""

    def __init__(self, path: str, size_bytes: int) -> None:
        self._path = Path(path)
        self._half = max(1, size_bytes // 2)
        self._file: IO[bytes] = self._path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            room = self._half - self._file.tell()
            if room <= 0:
                self._file.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._file = self._path.open("ab", buffering=0)
                continue
            rest = rest[self._file.write(rest[:room]) :]

    def close(self) -> None:
        self._file.close()


class _Asked:
    """Set by SIGTERM: somebody wants the job to end."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _note(self, *_: Any) -> None:
        self.is_set = True


def pid_file_of(spec_file: Path) -> Path:
    """Where the minder that holds this file says who it is."""
    return spec_file.with_suffix(".pid")


@contextmanager
def claimed_spec(path: Path) -> Iterator[MinderSpec | None]:
    """What is to be minded, locked against every other minder; None if another has it, or if it is over already.

    The lock is held as long as a process has the file open that had it at the time: a forked one keeps it.
    """
    with path.open("r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        spec = MinderSpec(**json.load(file))
        yield None if Path(spec.exit_path).exists() else spec


def mind(spec: MinderSpec, *, clock: Clock, start: Callable[[MinderSpec], Child] | None = None) -> int:
    """Run the command to its end; its exit code. `start` runs it in another way than as a program of its own."""
    asked = _Asked()
    log = _BoundedLog(spec.log_path, spec.log_bytes)
    child = (start or _start_program)(spec)
    limit_s = clock.monotonic_s() + spec.time_limit_s
    kill_s: float | None = None
    timed_out = False
    for data in _output(child):
        log.write(data)
        now_s = clock.monotonic_s()
        if kill_s is None and (asked.is_set or now_s > limit_s):
            timed_out = not asked.is_set
            log.write(b"\n-- the time limit is over --\n" if timed_out else b"\n-- asked to stop --\n")
            kill_s = now_s + _GRACE_S
            _signal(child, signal.SIGTERM)
        elif kill_s is not None and now_s > kill_s:
            _signal(child, signal.SIGKILL)
    code = child.wait()
    # Whatever it started goes with it.
    _signal(child, signal.SIGKILL)
    log.close()
    save_json(Path(spec.exit_path), {"code": code, "timed_out": timed_out, "cancelled": asked.is_set})
    return code


def _start_program(spec: MinderSpec) -> Child:
    return subprocess.Popen(
        list(spec.command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **spec.environment},
        start_new_session=True,
        preexec_fn=give_way,  # noqa: PLW1509 (this process has one thread)
    )


def give_way() -> None:
    """Maintenance yields to writers of the same machine. And it ends with its minder, without which it would have no
    time limit any more: on Linux the kernel sees to that.
    """
    os.nice(_NICENESS)
    # Linux may weigh sessions against each other before it looks at processes. A courtesy: the job runs without it too.
    with suppress(OSError):
        _SESSION_NICENESS.write_text(str(_NICENESS))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _output(child: Child) -> Any:
    """Pieces of output, empty ones between them, until the process has ended."""
    assert child.stdout is not None
    descriptor = child.stdout.fileno()
    os.set_blocking(descriptor, False)
    is_open = True
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            has_ended = child.poll() is not None
            ready = selector.select(0 if has_ended else _TICK_S) if is_open else []
            data = os.read(descriptor, _CHUNK) if ready else b""
            if ready and not data:
                selector.unregister(descriptor)
                is_open = False
            if not is_open and not has_ended:
                # It closed its output and goes on.
                SYSTEM_RUNTIME.clock.sleep(_TICK_S)
            yield data
            if has_ended and not data:
                return


def _signal(child: Child, number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return


def main(path: str) -> int:
    """Mind the job of this file, unless somebody does."""
    with claimed_spec(Path(path)) as spec:
        if spec is None:
            return 0
        pid_file_of(Path(path)).write_text(str(os.getpid()), encoding="utf-8")
        return mind(spec, clock=SYSTEM_RUNTIME.clock)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
