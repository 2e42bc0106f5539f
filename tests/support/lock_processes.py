"""Other processes that take table locks: started, talked to and ended by a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def spawn(*arguments: str) -> subprocess.Popen[str]:
    """A `tests.support.lock_worker` with these arguments."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.lock_worker", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def holding_process(kind: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of this kind."""
    process = spawn("hold", kind, str(directory))
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()


def ask(process: subprocess.Popen[str]) -> str:
    """Let the process check its lease: `good` or `fenced`."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("check\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def count_in_processes(kind: str, directory: Path, *, workers: int, times: int) -> int:
    """Let several processes count at once under the lock; what they arrive at."""
    counter = directory / "counter"
    counter.write_text("0")
    processes = [spawn("count", kind, str(directory), str(times)) for _ in range(workers)]
    assert [process.wait(timeout=120) for process in processes] == [0] * workers
    for process in processes:
        process.communicate()
    return int(counter.read_text())
