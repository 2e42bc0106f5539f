"""The lock of Java's `ZookeeperBasedLockProvider`: a queue of ephemeral nodes, as Curator's mutex keeps it.

Every writer that wants the lock puts a child `_c_<uuid>-lock-<sequence>` below the node of the lock. The
one with the lowest sequence holds it; each other one watches the one before it, and nobody polls. Java's
writers and ours stand in one queue: same path, same names, same order. Invariants:

- An acquisition has a ZooKeeper session of its own. When the session ends, so does the lock, and no node
  of it is left.
- A lease whose connection was interrupted is lost for good, though the session may have survived it:
  another writer may hold the lock by now, and nobody can tell before the connection is back.
- `check` asks the ensemble, by a transaction that goes through the leader like any write: a holder that
  slept past its session is refused, whatever its own threads have noticed by then.
- The node of a process that is dead on this machine is removed by the one that waits behind it, so that a
  killed writer need not be waited for until its session expires. Java's nodes are never touched.
"""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack, closing
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from tablekeeper.config.concurrency_settings import ZookeeperSettings
from tablekeeper.errors import LockNotAcquiredError, StorageError
from tablekeeper.runtime import Processes, Runtime
from tablekeeper.txn.locks.leased import Owner
from tablekeeper.txn.locks.protocol import HeldLease, LockHolder, Pace, wait_for

__all__ = ["ZookeeperLock"]

_LOG = logging.getLogger(__name__)
# What the client library says about connections goes to the logging of the application, and to no screen by itself.
_CLIENT_LOG = logging.getLogger(f"{__name__}.client")
_CLIENT_LOG.addHandler(logging.NullHandler())

_SIGNATURE = "tablekeeper"
_MARK = "lock-"
_LONGEST_ANSWER_S = 10.0
# Watches bring the news; the one ahead is still checked now and then, because its process may have been killed.
_LOOK_AGAIN = Pace(first_s=2.0, longest_s=2.0)
_RECONNECT = {"max_tries": -1, "delay": 0.1, "max_delay": 2.0}
_TROUBLE = (
    ConnectionClosedError,
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
"""Failures of the connection: nothing is known, and the next try may succeed."""


class ZookeeperLock:
    """The lock whose queue is the node `path`."""

    def __init__(
        self, path: str, *, settings: ZookeeperSettings, runtime: Runtime, processes: Processes | None = None
    ) -> None:
        self._path = path
        self._settings = settings
        self._servers = settings.servers()
        self._runtime = runtime
        self._processes = processes or runtime.processes
        self.name = f"zookeeper://{self._servers}{path}"

    def acquire(self, *, timeout_s: float) -> _ZookeeperLease:
        with ExitStack() as cleanup:
            queue = self._open_queue()
            cleanup.callback(queue.close)
            contender = _Contender(queue, processes=self._processes, runtime=self._runtime)
            lease = wait_for(
                contender.attempt,
                lock=self.name,
                describe=lambda: self._holder(queue, ours=contender.prefix),
                timeout_s=timeout_s,
                pace=_LOOK_AGAIN,
                runtime=self._runtime,
                pause=queue.news.wait,
            )
            cleanup.pop_all()
        return lease

    def look_ahead(self) -> None:
        """Nothing: this lock need not be read in advance."""

    def describe(self) -> LockHolder | None:
        with closing(self._open_queue()) as queue:
            return self._holder(queue)

    def _open_queue(self) -> _Queue:
        queue = _Queue(self._path, name=self.name, settings=self._settings, runtime=self._runtime)
        timeout_s = self._settings.connection_timeout_ms / 1000
        if not queue.open(timeout_s=timeout_s):
            queue.close()
            raise LockNotAcquiredError(
                f"{self.name}: no ZooKeeper server answers at {self._servers} (tried for {timeout_s:g} s). Nothing was "
                f"changed. Start it, or correct the URL of the ZooKeeper lock in the options."
            )
        return queue

    def _holder(self, queue: _Queue, *, ours: str | None = None) -> LockHolder | None:
        """Who is at the head of the queue; None if that is nobody, or the contender `ours` itself."""
        try:
            while (head := next(iter(queue.contenders()), None)) is not None:
                found = queue.read(head)
                if found is not None:
                    return None if ours and head.startswith(ours) else self._described(*found)
        except _TROUBLE as error:
            raise LockNotAcquiredError(
                f"{self.name}: the connection with ZooKeeper at {self._servers} is lost ({type(error).__name__}), and "
                f"who holds the lock is not known. Nothing was changed. Try again when it is back."
            ) from None
        return None

    def _described(self, data: bytes, created_ms: int) -> LockHolder:
        owner = _decode(data)
        is_lapsed = owner is not None and owner.process is not None and self._processes.is_dead(owner.process)
        detail = "counted from when it began to wait, which may be before it got the lock"
        if owner is None:
            owner = Owner(f"a writer such as Java Hudi that says {data[:80].decode('utf-8', 'replace')!r}")
        elif owner.process is not None:
            detail = str(owner.process)
        if owner.acquired_at_ms is None:
            owner = Owner(owner.id, owner.process, created_ms)
        age_s = owner.age_s(self._runtime.clock.now_ms())
        return LockHolder(self.name, owner.id, age_s, owner.acquired_at_ms, is_lapsed, detail)


class _Queue:
    """The node of one lock, seen through a session of its own.

    `news` is set when a watched node or the connection changes. `interruptions` counts how often the connection was
    lost: code that relies on the session compares it with what it was.
    """

    def __init__(self, path: str, *, name: str, settings: ZookeeperSettings, runtime: Runtime) -> None:
        self.name = name
        self.news = runtime.threads.event()
        self.interruptions = 0
        session_s = settings.session_timeout_ms / 1000
        # An answer that is older than this says too little about a session that may be over soon.
        self.answer_s = min(_LONGEST_ANSWER_S, session_s / 3)
        self._path = path
        self._client = KazooClient(
            hosts=settings.servers(), timeout=session_s, connection_retry=dict(_RECONNECT), logger=_CLIENT_LOG
        )
        self._session_s = session_s
        self._connected = self._client.handler.event_object()
        self._has_session = False
        self._client.add_listener(self._on_state)

    @property
    def session(self) -> int | None:
        """The id of the session, None while there is no connection."""
        known: tuple[int, bytes] | None = self._client.client_id
        return None if known is None else known[0]

    def open(self, *, timeout_s: float) -> bool:
        """Connect; False if no server answered in time."""
        return bool(self._client.start_async().wait(timeout_s))

    def close(self) -> None:
        """End the session, and with it every node that it made: now, or when the connection is back."""
        if self._client.connected:
            self._stop()
        else:
            self._client.handler.spawn(self._stop_later)

    def contenders(self) -> list[str]:
        """The names of those who want the lock, the holder first. Curator sorts by what stands behind the mark."""
        try:
            names = self._answer(self._client.get_children_async(self._path))
        except NoNodeError:
            return []
        return sorted(names, key=lambda name: str(name).rpartition(_MARK)[2])

    def join(self, prefix: str, data: bytes) -> None:
        """Take the last place in the queue."""
        path = f"{self._path}/{prefix}"
        self._answer(self._client.create_async(path, data, ephemeral=True, sequence=True, makepath=True))

    def read(self, name: str, *, watch: bool = False) -> tuple[bytes, int] | None:
        """What a contender says, and when it came (epoch ms by the server's clock); None if it is gone."""
        watcher = self._on_watch if watch else None
        try:
            data, stat = self._answer(self._client.get_async(f"{self._path}/{name}", watch=watcher))
        except NoNodeError:
            return None
        return data, stat.ctime

    def write(self, name: str, data: bytes) -> int | None:
        """Change what the own node says; its version then, None if it is gone or belongs to an earlier session."""
        try:
            stat = self._answer(self._client.set_async(f"{self._path}/{name}", data))
        except NoNodeError:
            return None
        return stat.version if stat.ephemeralOwner == self.session else None

    def remove(self, name: str) -> None:
        """Take a node out of the queue, if it is still there."""
        try:
            self._answer(self._client.delete_async(f"{self._path}/{name}"))
        except NoNodeError:
            return

    def confirm(self, name: str, *, version: int) -> bool:
        """True if the ensemble agrees that the node is there, and as it was written."""
        transaction = self._client.transaction()
        transaction.check(f"{self._path}/{name}", version)
        [outcome] = self._answer(transaction.commit_async())
        return not isinstance(outcome, Exception)

    def _answer(self, request: Any) -> Any:
        try:
            return request.get(timeout=self.answer_s)
        except (*_TROUBLE, NoNodeError):
            raise
        except KazooException as error:
            raise StorageError(
                f"{self.name}: ZooKeeper refused to work on the lock: {type(error).__name__} {error}".rstrip()
                + ". Let an administrator look at the access rights of this path.",
                path=self._path,
            ) from error

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._has_session = True
            self._connected.set()
        else:
            self._connected.clear()
            self.interruptions += 1
        self.news.set()

    def _on_watch(self, _: object) -> None:
        self.news.set()

    def _stop_later(self) -> None:
        # A client that is stopped before it is back leaves its session, and the lock, to expire.
        if self._has_session:
            self._connected.wait(self._session_s)
        self._stop()

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except KazooException as error:
            _LOG.warning("%s: the session was not closed and will expire by itself: %r", self.name, error)


class _Contender:
    """One acquisition on its way through the queue."""

    def __init__(self, queue: _Queue, *, processes: Processes, runtime: Runtime) -> None:
        self._queue = queue
        self._processes = processes
        self._runtime = runtime
        self._session: int | None = None
        self._owner = Owner("")
        self.prefix = ""

    def attempt(self) -> _ZookeeperLease | None:
        """The lease if it is our turn; None if somebody is ahead, or there is no connection."""
        self._queue.news.clear()
        session = self._queue.session
        if session is None:
            return None
        if session != self._session:
            # A node of an earlier session goes when that expires: this one must not take it for its own.
            self._session = session
            self._owner = Owner(self._runtime.ids.uuid(), self._processes.me())
            self.prefix = f"_c_{self._owner.id}-{_MARK}"
        try:
            return self._advance()
        except _TROUBLE:
            return None

    def _advance(self) -> _ZookeeperLease | None:
        interruptions = self._queue.interruptions
        while True:
            names = self._queue.contenders()
            mine = next((name for name in names if name.startswith(self.prefix)), None)
            if mine is None:
                # Not there yet, or the answer to its creation got lost, in which case it is found by its prefix.
                self._queue.join(self.prefix, _encode(self._owner))
                continue
            place = names.index(mine)
            if place > 0:
                if self._is_gone(names[place - 1]):
                    continue
                return None
            return self._take(mine, interruptions=interruptions)

    def _is_gone(self, name: str) -> bool:
        """False if the one ahead is alive, as far as can be known; its end will be news."""
        found = self._queue.read(name, watch=True)
        if found is None:
            return True
        owner = _decode(found[0])
        if owner is None or owner.process is None or not self._processes.is_dead(owner.process):
            return False
        self._queue.remove(name)
        return True

    def _take(self, mine: str, *, interruptions: int) -> _ZookeeperLease | None:
        clock = self._runtime.clock
        acquired_s = clock.monotonic_s()
        owner = Owner(self._owner.id, self._owner.process, acquired_at_ms=clock.now_ms())
        version = self._queue.write(mine, _encode(owner))
        if version is None:
            self._queue.news.set()
            return None
        return _ZookeeperLease(
            self._queue,
            mine,
            version=version,
            interruptions=interruptions,
            acquired_s=acquired_s,
            runtime=self._runtime,
        )


class _ZookeeperLease(HeldLease):
    """The head of the queue, and the session that keeps it there."""

    def __init__(
        self,
        queue: _Queue,
        node: str,
        *,
        version: int,
        interruptions: int,
        acquired_s: float,
        runtime: Runtime,
    ) -> None:
        super().__init__(queue.name, acquired_s=acquired_s, clock=runtime.clock)
        self._queue = queue
        self._node = node
        self._version = version
        self._interruptions = interruptions
        self._mutex = runtime.threads.lock()
        self._lost: str | None = None

    def check(self) -> None:
        with self._mutex:
            self._refuse_if_over()
            asked_s = self._clock.monotonic_s()
            try:
                if not self._queue.confirm(self._node, version=self._version):
                    self._lost = "the lock was removed or taken over while it was held"
            except (*_TROUBLE, StorageError) as error:
                self._lost = f"ZooKeeper did not confirm the lock ({type(error).__name__})"
            if self._lost is None and self._clock.monotonic_s() - asked_s > self._queue.answer_s:
                self._lost = "ZooKeeper took too long to confirm the lock, and the session may be over by now"
            self._refuse_if_over()

    def release(self) -> None:
        with self._mutex:
            if not self._end():
                return
            try:
                if self._queue.session is not None:
                    self._queue.remove(self._node)
            except (*_TROUBLE, StorageError) as error:
                _LOG.warning("%s: the lock was not freed yet and ends with its session: %r", self._name, error)
        self._queue.close()

    def _loss(self) -> str | None:
        if self._lost is None and self._queue.interruptions != self._interruptions:
            self._lost = "the connection with ZooKeeper was interrupted, and another writer may hold the lock"
        return self._lost


def _encode(owner: Owner) -> bytes:
    return json.dumps({"by": _SIGNATURE, **owner.to_json()}).encode()


def _decode(data: bytes) -> Owner | None:
    """The owner, None if the node is not one of ours."""
    try:
        fields = json.loads(data)
        return Owner.from_json(fields) if fields["by"] == _SIGNATURE else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
