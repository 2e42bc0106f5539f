"""A process that takes table locks, for tests that need several processes.

    python -m tests.support.lock_worker count KIND DIRECTORY TIMES
    python -m tests.support.lock_worker hold KIND DIRECTORY

`count` adds one to the file `counter` TIMES times, in steps that would lose updates without the lock.
`hold` takes the lock, says so on a line, and checks it at every line of its input, saying `good` or `fenced`, until
the input ends. KIND is `file_system`, `storage_based` or `zookeeper=HOST:PORT`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tablekeeper.config.concurrency_settings import LockSettings, ZookeeperSettings
from tablekeeper.errors import FencedError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage.local import LocalStorage
from tablekeeper.txn.locks import Lease, TableLock
from tablekeeper.txn.locks.file_system import FileSystemLock
from tablekeeper.txn.locks.storage_based import StorageBasedLock
from tablekeeper.txn.locks.zookeeper import ZookeeperLock


def open_lock(kind: str, directory: Path) -> TableLock:
    """The lock of the table in `directory`, with pauses short enough for a test."""
    kind, _, url = kind.partition("=")
    if kind == "zookeeper":
        zookeeper = ZookeeperSettings(url=url, session_timeout_ms=2_000)
        return ZookeeperLock(f"/locks/{directory.name}", settings=zookeeper, runtime=SYSTEM_RUNTIME)
    settings = LockSettings(pause_ms=20)
    storage = LocalStorage(directory)
    if kind == "file_system":
        return FileSystemLock(storage, settings=settings, runtime=SYSTEM_RUNTIME)
    return StorageBasedLock(storage, settings=settings, runtime=SYSTEM_RUNTIME)


def count(lock: TableLock, counter: Path, *, times: int) -> None:
    """Increment the number in `counter`, one lock at a time."""
    for _ in range(times):
        with lock.acquire(timeout_s=60) as lease:
            value = int(counter.read_text())
            lease.check()
            counter.write_text(str(value + 1))


def hold(lease: Lease) -> None:
    """Check the lease as often as asked."""
    say("held")
    for _ in sys.stdin:
        try:
            lease.check()
        except FencedError:
            say("fenced")
        else:
            say("good")


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    command, kind, directory = sys.argv[1:4]
    lock = open_lock(kind, Path(directory))
    if command == "count":
        count(lock, Path(directory) / "counter", times=int(sys.argv[4]))
    else:
        with lock.acquire(timeout_s=60) as lease:
            hold(lease)


if __name__ == "__main__":
    main()
