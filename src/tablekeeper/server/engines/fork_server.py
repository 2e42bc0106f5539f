"""A warm process behind the engine `arrow`: it has imported what jobs need, and forks each job with its minder.

Starting Python and importing Arrow costs a second of processor time, many times what a small table costs; a fork costs
milliseconds. All else is as for a program of its own: a job that crashes, hangs or grows takes nobody with it, and its
memory ends with it. This process does nothing but fork, in one thread, so that there is nothing in it that a fork
could break or that could grow.

Run as `python -m tablekeeper.server.engines.fork_server FOLDER`: reads paths of specs from its input, one a line, and
answers each with the number of the minder's process. It ends with its input, its jobs go on.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

import pyarrow as pa

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines import worker
from tablekeeper.server.engines.minder import Child, MinderSpec, claimed_spec, give_way, mind, pid_file_of

__all__ = ["WORKER_COMMAND", "main"]

WORKER_COMMAND = (sys.executable, "-m", worker.__name__)
"""Commands that start with this can be forked."""
_PR_SET_NAME = 15
_MOST_FILES = 1 << 20


@dataclass(slots=True)
class _Forked:
    """A forked job, as its minder sees it."""

    pid: int
    stdout: IO[bytes] | None
    _code: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        code = self._wait(0)
        assert code is not None
        return code

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def main(_folder: str) -> int:
    """Fork until the input ends. The folder tells people which service the process belongs to."""
    # With its first scalar Arrow imports pandas, where that is installed.
    pa.scalar(0)
    # What was imported is shared with all jobs for ever, and is not looked at again.
    gc.freeze()
    signal.signal(signal.SIGCHLD, _bury)
    # A job can be told to end from its first moment on: its minder lets the signal in when it can take it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with os.fdopen(0, "rb") as requests:
        for line in requests:
            os.write(1, f"{_fork_minder(Path(os.fsdecode(line.rstrip())))}\n".encode())
    return 0


def _bury(*_: object) -> None:
    """Take note of minders that have ended: what they and their jobs cost counts as this process's then."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_minder(path: Path) -> int:
    """The minder's number; 0 if the job is over already."""
    with claimed_spec(path) as spec:
        if spec is None:
            pid_file = pid_file_of(path)
            return int(pid_file.read_text(encoding="utf-8")) if pid_file.exists() else 0
        if tuple(spec.command[: len(WORKER_COMMAND)]) != WORKER_COMMAND:
            raise ValueError(f"{spec.command} is no command of a worker")
        pid = os.fork()
        if pid == 0:
            _leave_with(lambda: _mind(path.stem, spec))
        pid_file_of(path).write_text(str(pid), encoding="utf-8")
        return pid


def _mind(name: str, spec: MinderSpec) -> int:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _name_process(f"minder {name}")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    return mind(spec, clock=SYSTEM_RUNTIME.clock, start=lambda spec: _fork_job(name, spec))


def _fork_job(name: str, spec: MinderSpec) -> Child:
    output, its_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _leave_with(lambda: _run_job(name, spec, its_end))
    os.close(its_end)
    return _Forked(pid, os.fdopen(output, "rb", buffering=0))


def _run_job(name: str, spec: MinderSpec, output: int) -> int:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    give_way()
    _name_process(f"job {name}")
    os.dup2(output, 1)
    os.dup2(output, 2)
    # The lock on the spec among them, which is the minder's.
    os.closerange(3, _MOST_FILES)
    os.environ.update(spec.environment)
    return worker.main(*spec.command[len(WORKER_COMMAND) :])


def _leave_with(run: Callable[[], int]) -> NoReturn:
    """End this process with the code of `run`: nothing of the process it was forked from happens twice."""
    code = 1
    try:
        code = run()
    except BaseException:  # noqa: BLE001 (the outermost place of a process: it is told where its output goes)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _name_process(name: str) -> None:
    """What `ps -o comm` and `top` show, of which the kernel keeps 15 characters."""
    short = name.replace("tablekeeper-", "")
    ctypes.CDLL(None).prctl(_PR_SET_NAME, short.encode(), 0, 0, 0)


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
