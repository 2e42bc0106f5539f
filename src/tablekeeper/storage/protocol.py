"""The store a table lives in, as the rest of the package sees it.

Paths are relative to the store's root, with `/` and without a leading one; `""` is the root.
Three properties carry everything that is built on top, and the contract suite checks them for
every implementation:

- **Atomic publish.** An object appears whole or not at all, under `put`, `put_if_absent`,
  `replace` and when an output of `open_output` is closed. An output that is left by an
  exception, or whose process dies, publishes nothing.
- **One winner.** Of any number of concurrent `put_if_absent` of one path, exactly one returns True;
  of concurrent `replace` with the same version, at most one succeeds.
- **Read your writes.** Once a write has returned, reads and listings see it.

Refused preconditions are return values, not exceptions. Faults are `StorageError`s; those that
may pass by themselves have been retried, with a bound, before they are raised. A `StorageError` from
`put_if_absent` or `replace` whose `transient` is true leaves open whether the write was executed.

A version says when an object was replaced, not by whom: a store may give equal contents the same version,
so contents that processes compete for must differ between them.

A **scope** is a right to change things that can be taken away. Whoever works on something that may become another's
(an attempt at a write, the table lock) opens one and names it in every changing call; whoever takes the work over
fences it first. From then on a change through it fails with `FencedError`, also one that was under way, such as an
output that is closed later. Stores for which `has_scopes` is true do this exactly, with nothing in between. Object
stores have no such step: they pass over scopes, and who works there looks for itself, before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

__all__ = ["FileInfo", "Storage", "StorageSpec", "VersionedBytes"]


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """How to open a store again elsewhere: small, picklable, sent along with tasks.

    `uri` is canonical: `file:///abs/path`, `memory://name/path`, `s3://bucket/path`, …
    `options` may hold credentials, and is therefore not shown.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One object: its path relative to the store's root, bytes, and last change in epoch milliseconds."""

    path: str
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class VersionedBytes:
    """An object's bytes with the version token that `replace` takes."""

    data: bytes
    version: str


class Storage(Protocol):
    """A flat, consistent object store. Implementations are safe to share between threads."""

    @property
    def spec(self) -> StorageSpec:
        """What `open_storage` needs to open this store again."""
        ...

    def stat(self, path: str) -> FileInfo | None:
        """The object's facts, or None if there is none. A directory is not an object."""
        ...

    def read(self, path: str) -> bytes:
        """All bytes; `NotFoundError` if there is no such object."""
        ...

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        """Bytes `[start, start + length)`, shorter only at the end of the object."""
        ...

    def read_versioned(self, path: str) -> VersionedBytes | None:
        """Bytes and version for a later `replace`; None if there is no such object."""
        ...

    @property
    def has_scopes(self) -> bool:
        """Whether a fenced scope changes nothing any more, exactly; False where scopes are passed over."""
        ...

    def take_scope(self, group: str, *names: str, scope: str | None = None) -> None:
        """Open the scopes `group/name` for each of the names, and fence all others of the group."""
        ...

    def fence(self, target: str, *, scope: str | None = None) -> None:
        """Take away the right of the scope `target`, and of all scopes below it. Unknown ones have none anyway."""
        ...

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        """Publish, replacing what was there. Here and below: through `scope`, `FencedError` if that was fenced."""
        ...

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        """Publish only if nothing is there; False if something is."""
        ...

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        """Publish only if the object still has `version`; the new version, or None if it has not."""
        ...

    def delete(self, path: str, *, scope: str | None = None) -> None:
        """Remove the object. Nothing there is no error."""
        ...

    def delete_many(self, paths: Iterable[str], *, scope: str | None = None) -> None:
        """Remove objects, in parallel with bounded concurrency."""
        ...

    def delete_tree(self, prefix: str, *, scope: str | None = None) -> None:
        """Remove everything below the directory `prefix`, and itself."""
        ...

    def list_files(self, directory: str) -> list[FileInfo]:
        """Objects directly in `directory`, by name. A missing directory is an empty one."""
        ...

    def list_names(self, directory: str) -> list[str]:
        """Names (not paths) of what `list_files` lists, sorted. Cheaper where sizes and times have to be asked for."""
        ...

    def list_directories(self, directory: str) -> list[str]:
        """Names (not paths) of the directories directly in `directory`, sorted.

        A file system may name a directory that holds no objects; other stores have no such thing.
        """
        ...

    def walk(self, directory: str) -> Iterator[FileInfo]:
        """Every object at any depth below `directory`."""
        ...

    def open_input(self, path: str) -> BinaryIO:
        """A seekable binary stream, in fact a pyarrow `NativeFile`. Close it after use."""
        ...

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        """A binary stream that publishes `path` when left normally and nothing when left by an exception.

        It is a pyarrow `NativeFile`, and replaces what was there, as `put` does.
        """
        ...
