"""The store of a simulated process: each call is a step of the scheduler, and may go wrong.

Below lies the store in memory, which keeps the contract of `storage/protocol.py`. What goes wrong is what that
contract allows: an answer that got lost, a call that did not happen, a process that stops or dies before or after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import BinaryIO, Protocol, TypeVar

from tablekeeper.errors import StorageError
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.storage.protocol import FileInfo, StorageSpec, VersionedBytes
from tablekeeper.testing.history import Fault, FaultKind
from tablekeeper.testing.loop import Call, Died
from tablekeeper.testing.process import Process

__all__ = ["CHANGES", "SORTS", "SimulatedStorage", "Witness", "sort_of", "take_step"]

T = TypeVar("T")

_SCOPES = ".hoodie/.tablekeeper/scopes/"
CHANGES = frozenset(
    {"put", "put_if_absent", "replace", "delete", "delete_many", "delete_tree", "publish", "take_scope", "fence"}
)
"""Calls that change the store; the others only look."""


_BY_HOLDERS = ("claim", "start_attempt", "resume_attempt", "record_", "renew", "settle")
_SORTS = {
    ".hoodie/timeline/": "timeline",
    ".hoodie/.locks/": "lock",
    ".hoodie/.heartbeat/": "heartbeat",
    ".hoodie/metadata/": "metadata table",
    ".hoodie/": "",
    # Of a service, where there is one.
    "database/claim_looks": "database",
    **dict.fromkeys((f"database/{name}" for name in _BY_HOLDERS), "lease"),
    "database/": "database",
    "engine/": "engine",
    "request/": "request",
}
SORTS = ("timeline", "lock", "heartbeat", "metadata table", "deleting", "publishing")
"""Sorts of calls that decide something."""


def sort_of(call: Call) -> str:
    """Which sort of changing call this is, empty if none that matters."""
    if not call.changes:
        return ""
    for prefix, sort in _SORTS.items():
        if call.path.startswith(prefix):
            return sort
    return "deleting" if call.kind.startswith("delete") else "publishing"


class Witness(Protocol):
    """Sees every call of every process."""

    def fault_at(self, process: Process, call: Call) -> Fault | None:
        """What goes wrong at the call that the process is about to make; asked once a call."""
        ...

    def saw(self, process: Process, call: Call, answer: object, fault: Fault | None) -> None:
        """A call has happened. `answer` is an error if there was one."""
        ...


class SimulatedStorage:
    """The store at `uri` as one process has it."""

    def __init__(self, uri: str, process: Process, witness: Witness, *, has_scopes: bool = True) -> None:
        self._inner = MemoryStorage(uri, runtime=process.runtime)
        self._process = process
        self._witness = witness
        self._has_scopes = has_scopes

    @property
    def spec(self) -> StorageSpec:
        return self._inner.spec

    def without_scopes(self) -> SimulatedStorage:
        """The same for a program that knows nothing of scopes."""
        return SimulatedStorage(self.spec.uri, self._process, self._witness, has_scopes=False)

    @property
    def has_scopes(self) -> bool:
        return self._has_scopes

    def take_scope(
        self, group: str, *names: str, scope: str | None = None, look: Callable[[], None] = lambda: None
    ) -> None:
        if not self._has_scopes:
            look()
            return
        inner = partial(self._inner.take_scope, group, *names, scope=scope, look=look)
        self._step("take_scope", _SCOPES + group, inner)

    def fence(self, target: str, *, scope: str | None = None) -> None:
        if self._has_scopes:
            self._step("fence", _SCOPES + target, lambda: self._inner.fence(target, scope=scope))

    def stat(self, path: str) -> FileInfo | None:
        return self._step("stat", path, lambda: self._inner.stat(path))

    def read(self, path: str) -> bytes:
        return self._step("read", path, lambda: self._inner.read(path))

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        return self._step("read_range", path, lambda: self._inner.read_range(path, start=start, length=length))

    def read_versioned(self, path: str) -> VersionedBytes | None:
        return self._step("read_versioned", path, lambda: self._inner.read_versioned(path))

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        self._step("put", path, lambda: self._inner.put(path, data, scope=self._scope(scope)))

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        return self._step(
            "put_if_absent", path, lambda: self._inner.put_if_absent(path, data, scope=self._scope(scope))
        )

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        return self._step(
            "replace", path, lambda: self._inner.replace(path, data, version=version, scope=self._scope(scope))
        )

    def delete(self, path: str, *, scope: str | None = None) -> None:
        self._step("delete", path, lambda: self._inner.delete(path, scope=self._scope(scope)))

    def delete_many(self, paths: Iterable[str], *, scope: str | None = None) -> None:
        # As it is on every real store: one after the other, so that a death leaves a part of them.
        for path in paths:
            self.delete(path, scope=scope)

    def delete_tree(self, prefix: str, *, scope: str | None = None) -> None:
        self._step("delete_tree", prefix, lambda: self._inner.delete_tree(prefix, scope=self._scope(scope)))

    def list_files(self, directory: str) -> list[FileInfo]:
        return self._step("list_files", directory, lambda: self._inner.list_files(directory))

    def list_names(self, directory: str) -> list[str]:
        return self._step("list_names", directory, lambda: self._inner.list_names(directory))

    def list_directories(self, directory: str) -> list[str]:
        return self._step("list_directories", directory, lambda: self._inner.list_directories(directory))

    def walk(self, directory: str) -> Iterator[FileInfo]:
        yield from self._step("walk", directory, lambda: list(self._inner.walk(directory)))

    def open_input(self, path: str) -> BinaryIO:
        return self._step("open_input", path, lambda: self._inner.open_input(path))

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        return self._output(path, self._scope(scope))

    @contextmanager
    def _output(self, path: str, scope: str | None) -> Iterator[BinaryIO]:
        """Opening changes nothing; publishing what was written is one call."""
        output = self._inner.open_output(path, scope=scope)
        stream = output.__enter__()
        try:
            yield stream
        except BaseException as error:
            output.__exit__(type(error), error, error.__traceback__)
            raise
        self._step("publish", path, lambda: output.__exit__(None, None, None))

    def _scope(self, scope: str | None) -> str | None:
        return scope if self._has_scopes else None

    def _step(self, kind: str, path: str, call: Callable[[], T]) -> T:
        about_to = Call(kind, path, kind in CHANGES)
        return take_step(self._process, self._witness, about_to, call, failure=_storage_error)


def take_step(
    process: Process,
    witness: Witness,
    about_to: Call,
    call: Callable[[], T],
    *,
    failure: Callable[[str, str], Exception],
) -> T:
    """Make a call that others may see: wait until it is this process's turn, and let go wrong what is to go wrong.

    `failure` makes the error of a path and a text.
    """
    if process.is_dead:
        raise Died
    if process.loop.current is None:
        return call()
    process.loop.park(call=about_to)
    fault = witness.fault_at(process, about_to)
    if fault is not None:
        _go_wrong_before(process, fault, about_to.path, failure)
    try:
        answer = call()
    except Exception as error:
        witness.saw(process, about_to, error, fault)
        raise
    witness.saw(process, about_to, answer, fault)
    if fault is not None:
        _go_wrong_after(process, fault, about_to.path, failure)
    return answer


def _go_wrong_before(process: Process, fault: Fault, path: str, failure: Callable[[str, str], Exception]) -> None:
    match fault.kind:
        case FaultKind.DEATH_BEFORE:
            _die(process)
        case FaultKind.SLEEP_BEFORE:
            process.stop(fault.seconds)
        case FaultKind.SLOW:
            process.sleep(fault.seconds)
        case FaultKind.CLOCK:
            process.skew_s += fault.seconds
        case FaultKind.ERROR_BEFORE:
            raise failure(path, "the call was not made (simulated)")


def _go_wrong_after(process: Process, fault: Fault, path: str, failure: Callable[[str, str], Exception]) -> None:
    match fault.kind:
        case FaultKind.DEATH_AFTER:
            _die(process)
        case FaultKind.SLEEP_AFTER:
            process.stop(fault.seconds)
        case FaultKind.ERROR_AFTER:
            raise failure(path, "the answer got lost (simulated)")


def _die(process: Process) -> None:
    process.is_dead = True
    raise Died


def _storage_error(path: str, what: str) -> StorageError:
    return StorageError(f"{path}: {what}", path=path, transient=True)
