"""A store on a POSIX file system.

Files are written to a scratch directory of the same file system, `.hoodie/.tablekeeper/tmp`, and then moved into
place (see `scratch`), so that partition directories stay clean when a process dies. Who works through a scope has a
directory of its own for that below `.hoodie/.tablekeeper/scopes` (see `ScopeDirectories`). Neither holds objects nor
is in a listing.

A version names inode, size, time and contents of a file, and changes with every replacement.

Java's Hadoop client keeps a checksum in `.NAME.crc` beside each file and refuses a file that does not fit it. The
sidecar is removed before its file is replaced, and together with a deleted file. Listings leave sidecars out.

A file system may list a directory that holds no objects, which no other store does.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat as stat_modes
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import pyarrow as pa
import xxhash

from tablekeeper.errors import NotFoundError, StorageError
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.storage.faults import ABSENT, fenced_error, is_write_fault, storage_fault
from tablekeeper.storage.protocol import (
    FileInfo,
    StorageSpec,
    VersionedBytes,
    canonical_uri,
    checked_directory,
    checked_path,
    checked_range,
    child_prefix,
    local_path,
)
from tablekeeper.storage.scratch import ScopeDirectories, Scratch, remove_file

__all__ = ["SCOPES", "SCRATCH", "LocalStorage", "find_linked"]


SCRATCH = ".hoodie/.tablekeeper/tmp"
"""Where unpublished files live, relative to the store's root."""

SCOPES = ".hoodie/.tablekeeper/scopes"
"""Where the scopes are, and the unpublished files of those who work through one."""

T = TypeVar("T")

_HIDDEN = (SCRATCH, SCOPES)
_DELETE_WIDTH = 8
_REMOVE_ATTEMPTS = 5


class LocalStorage:
    """`Storage` below one directory. With `fsync`, what was published survives a power cut."""

    def __init__(self, root: str | os.PathLike[str], *, fsync: bool = False, runtime: Runtime = SYSTEM_RUNTIME) -> None:
        self._root = Path(root).absolute()
        self._runtime = runtime
        self._scratch = Scratch(self._root / SCRATCH, fsync=fsync, runtime=runtime)
        self._scopes = ScopeDirectories(self._root / SCOPES, scratch=self._scratch, runtime=runtime)
        self._spec = StorageSpec(canonical_uri(self._root), {"fsync": "true"} if fsync else {})

    def __repr__(self) -> str:
        return f"LocalStorage({str(self._root)!r})"

    @property
    def spec(self) -> StorageSpec:
        return self._spec

    @property
    def root(self) -> Path:
        """The directory that the paths are relative to."""
        return self._root

    @property
    def has_scopes(self) -> bool:
        return True

    def take_scope(
        self, group: str, *names: str, scope: str | None = None, look: Callable[[], None] = lambda: None
    ) -> None:
        with _writing(self._root / SCOPES / checked_path(group)):
            self._scopes.take(group, names, through=scope, look=look)
            self._scopes.remove_abandoned()

    def fence(self, target: str, *, scope: str | None = None) -> None:
        with _writing(self._root / SCOPES / checked_path(target)):
            self._scopes.fence(target, through=scope)

    def stat(self, path: str) -> FileInfo | None:
        location = self._locate(path)
        try:
            facts = location.stat()
        except ABSENT:
            return None
        except OSError as error:
            raise storage_fault(error, action="look at the file", location=str(location)) from error
        return _file_info(path, facts) if stat_modes.S_ISREG(facts.st_mode) else None

    def read(self, path: str) -> bytes:
        location = self._locate(path)
        with _reading(location):
            return location.read_bytes()

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        checked_range(path, start=start, length=length)
        location = self._locate(path)
        with _reading(location), location.open("rb") as stream:
            stream.seek(start)
            return stream.read(length)

    def read_versioned(self, path: str) -> VersionedBytes | None:
        return _read_versioned(self._locate(path))

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        location = self._locate(path)
        with _writing(location, scope=scope), self._holding(data, scope) as temporary, self._scratch.shared():
            self._scratch.publish(temporary, location)

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        location = self._locate(path)
        with _writing(location, scope=scope):
            if os.path.lexists(location):
                return False
            with self._holding(data, scope) as temporary:
                return self._scratch.publish_if_absent(temporary, location)

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        location = self._locate(path)
        with _writing(location, scope=scope), self._holding(data, scope) as temporary:
            replacement = _version(temporary.stat(), data)
            with self._scratch.exclusive():
                current = _read_versioned(location)
                if current is None or current.version != version:
                    return None
                self._scratch.publish(temporary, location)
            return replacement

    def delete(self, path: str, *, scope: str | None = None) -> None:
        location = self._locate(path)
        with _writing(location, action="delete", scope=scope):
            if scope is None:
                self._scratch.remove(location)
            else:
                with self._scratch.shared():
                    self._scopes.remove(location, through=scope)

    def delete_many(self, paths: Iterable[str], *, scope: str | None = None) -> None:
        self._runtime.threads.map(lambda path: self.delete(path, scope=scope), paths, width=_DELETE_WIDTH)

    def delete_tree(self, prefix: str, *, scope: str | None = None) -> None:
        location = self._root / checked_directory(prefix)
        if scope is not None:
            with _writing(location, action="delete", scope=scope):
                self._scopes.remove_tree(location, through=scope)
            return
        for attempt in range(1, _REMOVE_ATTEMPTS + 1):
            try:
                _remove_tree(location)
            except FileNotFoundError:
                continue  # someone else removes the same tree: look again at what is left
            except OSError as error:
                # A writer that is still running fills a directory again between its listing and its removal.
                if attempt == _REMOVE_ATTEMPTS:
                    raise storage_fault(error, action="delete the directory", location=str(location)) from error
            else:
                return

    def list_files(self, directory: str) -> list[FileInfo]:
        return sorted(_files_in(self._scan(directory), directory), key=lambda info: info.path)

    def list_names(self, directory: str) -> list[str]:
        # The kind of an entry comes with the directory; only links have to be followed.
        entries = [entry for entry in self._scan(directory) if not _is_checksum(entry)]
        return sorted(entry.name for entry in entries if _followed(entry, entry.is_file))

    def list_directories(self, directory: str) -> list[str]:
        return sorted(entry.name for entry in _directories_in(self._scan(directory), directory))

    def walk(self, directory: str) -> Iterator[FileInfo]:
        pending = [directory]
        linked: set[tuple[int, int]] = set()
        while pending:
            current = pending.pop()
            entries = self._scan(current)
            yield from _files_in(entries, current)
            for entry in _directories_in(entries, current):
                if _is_first_visit(entry, linked):
                    pending.append(child_prefix(current) + entry.name)

    def open_input(self, path: str) -> BinaryIO:
        location = self._locate(path)
        with _reading(location):
            if location.is_dir():
                raise NotFoundError(str(location))
            # Not a memory map: its pages count as this process's memory, and a truncated file would kill the process.
            return cast(BinaryIO, pa.OSFile(str(location), "rb"))

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        return self._output(self._locate(path), scope)

    @contextmanager
    def _output(self, location: Path, scope: str | None) -> Iterator[BinaryIO]:
        with _writing(location, scope=scope):
            inside = self._inside(scope)
            temporary, stream = self._scratch.create(lambda path: pa.OSFile(str(path), "wb"), inside=inside)
        try:
            try:
                yield cast(BinaryIO, stream)
            except OSError as error:
                if is_write_fault(error):
                    raise storage_fault(error, action="write", location=str(location)) from error
                raise
            with _writing(location, scope=scope):
                stream.close()
                self._scratch.sync(temporary)
                with self._scratch.shared():
                    self._scratch.publish(temporary, location)
        finally:
            _discard(stream, temporary)

    def _holding(self, data: bytes, scope: str | None) -> AbstractContextManager[Path]:
        return self._scratch.holding(data, inside=self._inside(scope))

    def _inside(self, scope: str | None) -> Path | None:
        return None if scope is None else self._scopes.find(scope)

    def _locate(self, path: str) -> Path:
        return self._root / checked_path(path)

    def _scan(self, directory: str) -> list[os.DirEntry[str]]:
        location = self._root / checked_directory(directory)
        if directory in _HIDDEN:
            return []
        try:
            with os.scandir(location) as entries:
                return list(entries)
        except ABSENT:
            return []
        except OSError as error:
            raise storage_fault(error, action="list the directory", location=str(location)) from error


@contextmanager
def _reading(location: Path) -> Iterator[None]:
    try:
        yield
    except ABSENT as error:
        raise NotFoundError(str(location)) from error
    except OSError as error:
        raise storage_fault(error, action="read", location=str(location)) from error


@contextmanager
def _writing(location: Path, *, action: str = "write", scope: str | None = None) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if scope is not None:
            # What publishes through a scope makes every other directory that it needs.
            raise fenced_error(str(location), scope) from error
        # Directories are made as needed, so something took them away while this file was on its way.
        raise StorageError(
            f"{location}: cannot {action}: its directory was removed meanwhile. Check that the table still exists.",
            path=str(location),
        ) from error
    except OSError as error:
        raise storage_fault(error, action=action, location=str(location)) from error


def _file_info(path: str, facts: os.stat_result) -> FileInfo:
    return FileInfo(path=path, size=facts.st_size, modified_ms=facts.st_mtime_ns // 1_000_000)


def _read_versioned(location: Path) -> VersionedBytes | None:
    try:
        with location.open("rb") as stream:
            facts = os.fstat(stream.fileno())
            data = stream.read()
    except ABSENT:
        return None
    except OSError as error:
        raise storage_fault(error, action="read", location=str(location)) from error
    return VersionedBytes(data, _version(facts, data))


def _version(facts: os.stat_result, data: bytes) -> str:
    return f"{facts.st_ino}-{facts.st_mtime_ns}-{len(data)}-{xxhash.xxh3_128_hexdigest(data)}"


def _files_in(entries: Iterable[os.DirEntry[str]], directory: str) -> Iterator[FileInfo]:
    prefix = child_prefix(directory)
    for entry in entries:
        if _is_checksum(entry):
            continue
        facts = _followed(entry, entry.stat)
        if facts is not None and stat_modes.S_ISREG(facts.st_mode):
            yield _file_info(prefix + entry.name, facts)


def _is_checksum(entry: os.DirEntry[str]) -> bool:
    """True for the files that Hadoop puts beside its own."""
    return entry.name.startswith(".") and entry.name.endswith(".crc")


def _directories_in(entries: Iterable[os.DirEntry[str]], directory: str) -> list[os.DirEntry[str]]:
    prefix = child_prefix(directory)
    found = [entry for entry in entries if _followed(entry, entry.is_dir) and prefix + entry.name not in _HIDDEN]
    return [entry for entry in found if not (entry.is_symlink() and _leads_back(entry.path))]


def _leads_back(link: str) -> bool:
    """Whether a link leads to a directory on the way to it: what is there would be found again and again."""
    target = os.path.realpath(link)
    return any(os.path.realpath(directory) == target for directory in Path(link).parents)


def _followed(entry: os.DirEntry[str], look: Callable[[], T]) -> T | None:
    """What `look` says of the entry; None if it was removed since, or is a link to nothing or in a circle."""
    try:
        return look()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise storage_fault(error, action="look at the file", location=entry.path) from error


def _is_first_visit(entry: os.DirEntry[str], linked: set[tuple[int, int]]) -> bool:
    """A directory behind a symbolic link is entered once: links can form a circle."""
    if not entry.is_symlink():
        return True
    facts = _followed(entry, entry.stat)
    if facts is None:
        return False
    key = (facts.st_dev, facts.st_ino)
    seen = key in linked
    linked.add(key)
    return not seen


def _remove_tree(location: Path) -> None:
    if location.is_symlink():
        location.unlink()
    elif location.is_dir():
        shutil.rmtree(location)


def _discard(stream: pa.NativeFile, temporary: Path) -> None:
    """Drop what was not published; harmless for what was."""
    try:
        if not stream.closed:
            stream.close()
    finally:
        remove_file(temporary)


def find_linked(spec: StorageSpec, paths: Iterable[str]) -> frozenset[str]:
    """Those of `paths` that are symbolic links, or lie behind one below the store's root. Other stores have none."""
    if not spec.uri.startswith("file:"):
        return frozenset()
    root = Path(local_path(spec.uri))
    known: dict[str, bool] = {"": False}

    def is_linked(path: str) -> bool:
        if path not in known:
            known[path] = is_linked(path.rpartition("/")[0]) or (root / path).is_symlink()
        return known[path]

    return frozenset(path for path in paths if is_linked(path))
