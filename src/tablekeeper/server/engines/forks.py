"""`ForkServer`: the service's side of the warm process that forks jobs. It is started when it is first needed, once
an instance, started again if it died, and ends with its instance; the jobs that it forked go on.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from tablekeeper.runtime import Runtime

__all__ = ["ForkServer"]

_TIMEOUT_S = 60.0
# More than one thread in a process that forks is trouble: this one would come with numpy.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ForkServer:
    """All methods may be called from several threads."""

    def __init__(self, folder: Path, *, runtime: Runtime) -> None:
        self._folder = folder
        self._mutex = runtime.threads.lock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The number of the process, None while there is none."""
        return None if self._process is None else self._process.pid

    def fork(self, spec_file: Path) -> int:
        """Start the job of this spec and its minder, unless it was; the minder's number. `OSError` if it cannot be."""
        with self._mutex:
            answer = self._ask(spec_file) or self._ask(spec_file)
            if not answer:
                self._end()
                raise OSError(f"the process that forks jobs does not answer for {spec_file.name}")
            return int(answer)

    def close(self) -> None:
        with self._mutex:
            self._end()

    def _ask(self, spec_file: Path) -> bytes:
        """Empty if the process died or sleeps: then it is ended, so that it cannot fork any more."""
        process = self._process or self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(os.fsencode(spec_file) + b"\n")
            answer = _line(process.stdout)
        except BrokenPipeError:
            answer = b""
        if not answer:
            self._end()
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tablekeeper.server.engines.fork_server", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
            bufsize=0,
            start_new_session=True,
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with process, suppress(BrokenPipeError):
            # Its pipes are closed, and it is waited for.
            process.wait()


def _line(stream: IO[bytes] | None) -> bytes:
    """What is read up to the end of a line; empty if the stream ended or nothing came for a while."""
    assert stream is not None
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            data = stream.read(64) if selector.select(_TIMEOUT_S) else b""
            if not data:
                return b""
            line += data
    return line
