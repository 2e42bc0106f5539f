"""Places to store in, for tests that hold every store to the same promises, and processes that compete for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from tablekeeper.storage import Storage

Opener = Callable[[], Storage]
"""Opens the same place again and again, each time as a new client."""

ALL_STORES = ["local", "memory", "s3"]
STORES_BETWEEN_PROCESSES = ["local", "s3"]


def names_below(store: Storage, directory: str = "") -> list[str]:
    return sorted(info.path for info in store.walk(directory))


def top_directories(store: Storage) -> list[str]:
    """Directories of the root, without the one that a file system shows for its scratch directory."""
    return [name for name in store.list_directories("") if name != ".hoodie"]


def spec_argument(store: Storage) -> str:
    return json.dumps([store.spec.uri, dict(store.spec.options)])


def start_script(script: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def run_script(script: str, *arguments: str) -> subprocess.Popen[str]:
    process = start_script(script, *arguments)
    process.communicate(timeout=60)
    return process


def let_go(processes: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    """Release the processes that wait for a line, all at about the same time."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes
