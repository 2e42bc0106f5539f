"""Where the lock suites fight: one table, any number of writers that want its lock, one clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from tablekeeper.config.concurrency_settings import LockSettings, ZookeeperSettings
from tablekeeper.errors import LockNotAcquiredError
from tablekeeper.runtime import ProcessId, Runtime
from tablekeeper.storage.local import LocalStorage
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.storage.object_store import ObjectStorage
from tablekeeper.storage.protocol import Storage
from tablekeeper.txn.locks import Lease, LockHolder, TableLock
from tablekeeper.txn.locks.file_system import FileSystemLock
from tablekeeper.txn.locks.in_process import InProcessLock
from tablekeeper.txn.locks.storage_based import StorageBasedLock
from tablekeeper.txn.locks.zookeeper import ZookeeperLock
from tests.support.fake_runtime import FakeClock, FakeWorld
from tests.support.moto_server import MotoServer
from tests.support.zookeeper_server import ZookeeperServer

LOCK_FILE = ".hoodie/lock"
LOCK_OBJECT = ".hoodie/.locks/table_lock.json"
PATHS = {"file_system": LOCK_FILE, "storage_based": LOCK_OBJECT}
SETTINGS = LockSettings(pause_ms=20)
_NUMBERS = itertools.count()


@dataclass
class FakeProcesses:
    """Processes of a test: all are alive but those in `dead`."""

    pid: int
    dead: set[int] = field(default_factory=set)

    def me(self) -> ProcessId:
        return ProcessId(host="host", machine="boot", pid=self.pid, started="1")

    def is_dead(self, process: ProcessId) -> bool:
        return process.pid in self.dead


class Arena:
    """One table and any number of writers that want its lock, on one clock."""

    def __init__(
        self,
        kind: str,
        directory: Path,
        s3: MotoServer | None = None,
        zookeeper: ZookeeperServer | None = None,
    ) -> None:
        self.kind, _, self._store = kind.partition("-")
        self._directory = directory
        self._s3 = s3
        self._zookeeper = zookeeper
        self._sessions: list[Lease] = []
        self.world = FakeWorld()
        self._writers = 0
        self.dead: set[int] = set()
        self.clock: FakeClock = self.world.clock
        self.path = PATHS.get(self.kind, "")
        # The in-process lock has one registry for all tests: a name of its own keeps them apart.
        self._name = f"locks-{next(_NUMBERS)}"
        self.storage = self.open_store(self.world.process())

    def open_store(self, runtime: Runtime) -> Storage:
        if self._store == "local":
            return LocalStorage(self._directory, runtime=runtime)
        if self._store == "s3":
            assert self._s3 is not None
            return ObjectStorage(f"s3://locks/{self._name}", options=self._s3.options, runtime=runtime)
        return MemoryStorage(f"memory://{self._name}/table", runtime=runtime)

    def writer(
        self, *, storage: Storage | None = None, runtime: Runtime | None = None, settings: LockSettings = SETTINGS
    ) -> TableLock:
        """The lock as a further process sees it."""
        self._writers += 1
        runtime = runtime or self.world.process()
        storage = storage or self.open_store(runtime)
        processes = FakeProcesses(self._writers, self.dead)
        if self.kind == "in_process":
            return InProcessLock(storage.spec.uri, runtime=runtime)
        if self.kind == "file_system":
            return FileSystemLock(storage, settings=settings, runtime=runtime, processes=processes)
        if self.kind == "zookeeper":
            return self._zookeeper_lock(runtime, processes)
        return StorageBasedLock(storage, settings=settings, runtime=runtime, processes=processes)

    def is_taken(self) -> bool:
        """True if a newcomer does not get the lock at once."""
        try:
            self.writer().acquire(timeout_s=0).release()
        except LockNotAcquiredError:
            return True
        return False

    def close(self) -> None:
        """End the sessions of writers that still hold the lock, or think so."""
        for lease in self._sessions:
            lease.release()

    def _zookeeper_lock(self, runtime: Runtime, processes: FakeProcesses) -> TableLock:
        assert self._zookeeper is not None
        settings = ZookeeperSettings(url=self._zookeeper.url, session_timeout_ms=20_000)
        lock = ZookeeperLock(f"/locks/{self._name}", settings=settings, runtime=runtime, processes=processes)
        return _Remembering(lock, self._sessions)


@dataclass(frozen=True)
class _Remembering:
    """A lock whose leases somebody else can end."""

    lock: TableLock
    leases: list[Lease]

    def acquire(self, *, timeout_s: float) -> Lease:
        lease = self.lock.acquire(timeout_s=timeout_s)
        self.leases.append(lease)
        return lease

    def look_ahead(self) -> None:
        self.lock.look_ahead()

    def describe(self) -> LockHolder | None:
        return self.lock.describe()
