"""A store in the memory of this process, for tests and simulation.

Stores are known by the name in their URI, `memory://name/path`, and live until `forget_memory`. All stores of one name
see the same objects, as two clients of one bucket do. Times come from the writer's clock.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import pyarrow as pa

from tablekeeper.errors import InvalidRequestError, NotFoundError
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.storage.faults import fenced_error
from tablekeeper.storage.protocol import (
    FileInfo,
    StorageSpec,
    VersionedBytes,
    canonical_uri,
    checked_directory,
    checked_path,
    checked_range,
    child_prefix,
)

__all__ = ["MemoryStorage", "forget_memory"]


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    version: str
    modified_ms: int


@dataclass(slots=True)
class _Space:
    """The objects of one name, with their keys in order. `lock` is held for every access."""

    objects: dict[str, _Object] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    writes: int = 0
    scopes: set[str] = field(default_factory=set)
    lock: AbstractContextManager[bool] = field(default_factory=SYSTEM_RUNTIME.threads.lock)

    def write(self, key: str, data: bytes, *, now_ms: int) -> str:
        if key not in self.objects:
            insort(self.keys, key)
        self.writes += 1
        version = str(self.writes)
        self.objects[key] = _Object(bytes(data), version, now_ms)
        return version

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def below(self, prefix: str) -> list[str]:
        return self.keys[bisect_left(self.keys, prefix) : bisect_left(self.keys, _after(prefix))]

    def children(self, prefix: str) -> tuple[list[str], list[str]]:
        """Keys directly below `prefix`, and names of the directories there, skipping what lies deeper."""
        files: list[str] = []
        directories: list[str] = []
        at, end = bisect_left(self.keys, prefix), bisect_left(self.keys, _after(prefix))
        while at < end:
            name, slash, _ = self.keys[at][len(prefix) :].partition("/")
            if slash:
                directories.append(name)
                at = bisect_left(self.keys, _after(f"{prefix}{name}/"))
            else:
                files.append(self.keys[at])
                at += 1
        return files, directories


_SPACES: dict[str, _Space] = {}


def forget_memory(name: str) -> None:
    """Drop everything stored under `memory://name`."""
    _SPACES.pop(name, None)


class MemoryStorage:
    """`Storage` below `memory://name/path`."""

    def __init__(self, uri: str, *, runtime: Runtime = SYSTEM_RUNTIME) -> None:
        canonical = canonical_uri(uri)
        if not canonical.startswith("memory://"):
            raise InvalidRequestError(f"{uri!r} is no memory store. Write it as memory://name/path.")
        self._spec = StorageSpec(canonical)
        self._name, _, path = canonical.removeprefix("memory://").partition("/")
        self._prefix = child_prefix(path)
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"MemoryStorage({self._spec.uri!r})"

    @property
    def spec(self) -> StorageSpec:
        return self._spec

    @property
    def has_scopes(self) -> bool:
        return True

    def take_scope(
        self, group: str, *names: str, scope: str | None = None, look: Callable[[], None] = lambda: None
    ) -> None:
        prefix = self._scope(group) + "/"
        with self._changing(scope) as space:
            look()
            space.scopes = {each for each in space.scopes if not each.startswith(prefix)}
            space.scopes |= {prefix + checked_path(name) for name in names}

    def fence(self, target: str, *, scope: str | None = None) -> None:
        fenced = self._scope(target)
        with self._changing(scope) as space:
            below = {each for each in space.scopes if each.startswith(f"{fenced}/")}
            space.scopes -= {fenced, *below}

    def stat(self, path: str) -> FileInfo | None:
        found = self._find(path)
        return None if found is None else FileInfo(path, len(found.data), found.modified_ms)

    def read(self, path: str) -> bytes:
        return self._require(path).data

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        checked_range(path, start=start, length=length)
        return self._require(path).data[start : start + length]

    def read_versioned(self, path: str) -> VersionedBytes | None:
        found = self._find(path)
        return None if found is None else VersionedBytes(found.data, found.version)

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        key = self._key(path)
        with self._changing(scope) as space:
            space.write(key, data, now_ms=self._now_ms())

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        key = self._key(path)
        with self._changing(scope) as space:
            if key in space.objects:
                return False
            space.write(key, data, now_ms=self._now_ms())
            return True

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        key = self._key(path)
        with self._changing(scope) as space:
            found = space.objects.get(key)
            if found is None or found.version != version:
                return None
            return space.write(key, data, now_ms=self._now_ms())

    def delete(self, path: str, *, scope: str | None = None) -> None:
        key = self._key(path)
        with self._changing(scope) as space:
            space.remove(key)

    def delete_many(self, paths: Iterable[str], *, scope: str | None = None) -> None:
        for path in paths:
            self.delete(path, scope=scope)

    def delete_tree(self, prefix: str, *, scope: str | None = None) -> None:
        checked_directory(prefix)
        with self._changing(scope) as space:
            for key in space.below(self._prefix + child_prefix(prefix)):
                space.remove(key)

    def list_files(self, directory: str) -> list[FileInfo]:
        checked_directory(directory)
        with self._space.lock:
            files, _ = self._space.children(self._prefix + child_prefix(directory))
            return self._describe(files)

    def list_names(self, directory: str) -> list[str]:
        return [info.name for info in self.list_files(directory)]

    def list_directories(self, directory: str) -> list[str]:
        checked_directory(directory)
        with self._space.lock:
            _, directories = self._space.children(self._prefix + child_prefix(directory))
        return sorted(directories)

    def walk(self, directory: str) -> Iterator[FileInfo]:
        checked_directory(directory)
        with self._space.lock:
            found = self._describe(self._space.below(self._prefix + child_prefix(directory)))
        yield from found

    def open_input(self, path: str) -> BinaryIO:
        return cast(BinaryIO, pa.BufferReader(self._require(path).data))

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        checked_path(path)
        return self._output(path, scope)

    @contextmanager
    def _output(self, path: str, scope: str | None) -> Iterator[BinaryIO]:
        stream = pa.BufferOutputStream()
        yield cast(BinaryIO, stream)
        self.put(path, stream.getvalue().to_pybytes(), scope=scope)

    @contextmanager
    def _changing(self, scope: str | None) -> Iterator[_Space]:
        """The objects, for one change that nothing comes between; `FencedError` if `scope` was fenced."""
        space = self._space
        with space.lock:
            if scope is not None and self._scope(scope) not in space.scopes:
                raise fenced_error(self._spec.uri, scope)
            yield space

    def _scope(self, scope: str) -> str:
        return self._prefix + checked_path(scope)

    @property
    def _space(self) -> _Space:
        # `setdefault` is one step to other threads, so that all of them get the same space.
        return _SPACES.get(self._name) or _SPACES.setdefault(self._name, _Space())

    def _now_ms(self) -> int:
        return self._runtime.clock.now_ms()

    def _key(self, path: str) -> str:
        return self._prefix + checked_path(path)

    def _find(self, path: str) -> _Object | None:
        key = self._key(path)
        with self._space.lock:
            return self._space.objects.get(key)

    def _require(self, path: str) -> _Object:
        found = self._find(path)
        if found is None:
            raise NotFoundError(f"{self._spec.uri}/{path}")
        return found

    def _describe(self, keys: Iterable[str]) -> list[FileInfo]:
        found = ((key, self._space.objects[key]) for key in keys)
        return [FileInfo(key[len(self._prefix) :], len(item.data), item.modified_ms) for key, item in found]


def _after(prefix: str) -> str:
    """The smallest string above everything that begins with `prefix`; `prefix` is empty or ends in `/`."""
    return prefix[:-1] + "0" if prefix else "\U0010ffff"
