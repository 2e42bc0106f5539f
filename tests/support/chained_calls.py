"""Calls to a store in a row: the longest chain of calls each of which began after the one before had ended.

Where a call takes long, as on an object store, that chain is the time. It is counted without any clock. What goes to
threads runs one after the other; a lane for each thread remembers how long the chain behind it is, the next piece
of work takes the shortest lane, and whoever waits for all goes on with the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from tablekeeper.runtime import Runtime, Threads
from tablekeeper.storage import FileInfo, Storage
from tests.support.scopeless import ScopelessStorage
from tests.support.storage_wrappers import WatchedStorage

__all__ = ["Chain", "ChainedCall", "ChainedStorage"]

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ChainedCall:
    """The call with which a chain became `depth` calls long."""

    depth: int
    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.depth:4} {self.kind:16} {self.path}"


class Chain:
    """The calls so far, and how many of them lie in a row behind whoever runs now."""

    def __init__(self) -> None:
        self.calls: list[ChainedCall] = []
        self.depth = 0

    def __str__(self) -> str:
        return "\n".join(map(str, self.calls))

    @property
    def runtime(self) -> Runtime:
        """The runtime of whoever calls."""
        return Runtime(threads=_Lanes(self))

    def reset(self) -> None:
        """Begin to count anew."""
        self.calls, self.depth = [], 0

    def add(self, kind: str, path: str) -> None:
        self.depth += 1
        self.calls.append(ChainedCall(self.depth, kind, path))

    def depths(self, kind: str, part: str) -> list[int]:
        """Where calls of this kind to paths with this part stand."""
        return [call.depth for call in self.calls if call.kind == kind and part in call.path]


class _Lanes(Threads):
    """Parallel calls one after the other, and the chain as if they had run at once."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    def map(self, function: Callable[[T], R], items: Iterable[T], *, width: int = 32) -> list[R]:
        lanes = [self._chain.depth] * max(1, width)
        results = []
        for item in items:
            lane = lanes.index(min(lanes))
            self._chain.depth = lanes[lane]
            results.append(function(item))
            lanes[lane] = self._chain.depth
        self._chain.depth = max(lanes)
        return results

    def map_unordered(self, function: Callable[[T], R], items: Iterable[T], *, width: int) -> Iterator[R]:
        return iter(self.map(function, items, width=width))


class ChainedStorage(WatchedStorage):
    """A store like an object store, without scopes, that adds each call to a chain: an output once, at its end."""

    def __init__(self, storage: Storage, chain: Chain) -> None:
        super().__init__(ScopelessStorage(storage).as_storage)
        self._chain = chain

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        if kind not in ("take_scope", "fence"):
            self._chain.add(kind, path)
        return call()

    def walk(self, directory: str) -> Iterator[FileInfo]:
        return self.around("walk", directory, lambda: iter(list(self.storage.walk(directory))))

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        return self._output(path, scope)

    @contextmanager
    def _output(self, path: str, scope: str | None) -> Iterator[BinaryIO]:
        with self.storage.open_output(path, scope=scope) as stream:
            yield stream
        self._chain.add("publish", path)
