"""A store on a POSIX file system.

Files are written to a scratch directory of the same file system, `.hoodie/.tablekeeper/tmp`, and then moved into
place (see `scratch`), so that partition directories stay clean when a process dies. The scratch directory holds no
objects and is in no listing.

A version names inode, size, time and contents of a file, and changes with every replacement.

Java's Hadoop client keeps a checksum in `.NAME.crc` beside each file and refuses a file that does not fit it. The
sidecar is removed before its file is replaced, and together with a deleted file. Listings leave sidecars out.

A file system may list a directory that holds no objects, which no other store does.
"""

from __future__ import annotations

import os
import shutil
import stat as stat_modes
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import xxhash

from tablekeeper.errors import NotFoundError, StorageError
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.storage.faults import ABSENT, is_write_fault, storage_fault
from tablekeeper.storage.paths import canonical_uri, checked_directory, checked_path, checked_range, child_prefix
from tablekeeper.storage.protocol import FileInfo, StorageSpec, VersionedBytes
from tablekeeper.storage.scratch import Scratch, remove_file

__all__ = ["SCRATCH", "LocalStorage"]

SCRATCH = ".hoodie/.tablekeeper/tmp"
"""Where unpublished files live, relative to the store's root."""

_DELETE_WIDTH = 8
_REMOVE_ATTEMPTS = 5


class LocalStorage:
    """`Storage` below one directory. With `fsync`, what was published survives a power cut."""

    def __init__(self, root: str | os.PathLike[str], *, fsync: bool = False, runtime: Runtime = SYSTEM_RUNTIME) -> None:
        self._root = Path(root).absolute()
        self._runtime = runtime
        self._scratch = Scratch(self._root / SCRATCH, fsync=fsync, runtime=runtime)
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

    def put(self, path: str, data: bytes) -> None:
        location = self._locate(path)
        with _writing(location), self._scratch.holding(data) as temporary, self._scratch.shared():
            self._scratch.publish(temporary, location)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        location = self._locate(path)
        with _writing(location):
            if os.path.lexists(location):
                return False
            with self._scratch.holding(data) as temporary:
                return self._scratch.publish_if_absent(temporary, location)

    def replace(self, path: str, data: bytes, *, version: str) -> str | None:
        location = self._locate(path)
        with _writing(location), self._scratch.holding(data) as temporary:
            replacement = _version(temporary.stat(), data)
            with self._scratch.exclusive():
                current = _read_versioned(location)
                if current is None or current.version != version:
                    return None
                self._scratch.publish(temporary, location)
            return replacement

    def delete(self, path: str) -> None:
        location = self._locate(path)
        with _writing(location, action="delete"):
            self._scratch.remove(location)

    def delete_many(self, paths: Iterable[str]) -> None:
        self._runtime.threads.map(self.delete, paths, width=_DELETE_WIDTH)

    def delete_tree(self, prefix: str) -> None:
        location = self._root / checked_directory(prefix)
        for attempt in range(1, _REMOVE_ATTEMPTS + 1):
            try:
                _remove_tree(location)
            except FileNotFoundError:
                continue  # someone else removes the same tree: look again at what is left
            except OSError as error:
                # A writer that is still at work fills a directory again between its listing and its removal.
                if attempt == _REMOVE_ATTEMPTS:
                    raise storage_fault(error, action="delete the directory", location=str(location)) from error
            else:
                return

    def list_files(self, directory: str) -> list[FileInfo]:
        return sorted(_files_in(self._scan(directory), directory), key=lambda info: info.path)

    def list_names(self, directory: str) -> list[str]:
        # The kind of an entry comes with the directory; only links have to be followed.
        return sorted(entry.name for entry in self._scan(directory) if not _is_checksum(entry) and entry.is_file())

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

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self._output(self._locate(path))

    @contextmanager
    def _output(self, location: Path) -> Iterator[BinaryIO]:
        with _writing(location):
            temporary, stream = self._scratch.create(lambda path: pa.OSFile(str(path), "wb"))
        try:
            try:
                yield cast(BinaryIO, stream)
            except OSError as error:
                if is_write_fault(error):
                    raise storage_fault(error, action="write", location=str(location)) from error
                raise
            with _writing(location):
                stream.close()
                self._scratch.sync(temporary)
                with self._scratch.shared():
                    self._scratch.publish(temporary, location)
        finally:
            _discard(stream, temporary)

    def _locate(self, path: str) -> Path:
        return self._root / checked_path(path)

    def _scan(self, directory: str) -> list[os.DirEntry[str]]:
        location = self._root / checked_directory(directory)
        if directory == SCRATCH:
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
def _writing(location: Path, *, action: str = "write") -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
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
        try:
            facts = entry.stat()
        except FileNotFoundError:
            continue  # removed since the directory was read, or a link to nothing
        if stat_modes.S_ISREG(facts.st_mode):
            yield _file_info(prefix + entry.name, facts)


def _is_checksum(entry: os.DirEntry[str]) -> bool:
    """True for the files that Hadoop puts beside its own."""
    return entry.name.startswith(".") and entry.name.endswith(".crc")


def _directories_in(entries: Iterable[os.DirEntry[str]], directory: str) -> list[os.DirEntry[str]]:
    prefix = child_prefix(directory)
    return [entry for entry in entries if entry.is_dir() and prefix + entry.name != SCRATCH]


def _is_first_visit(entry: os.DirEntry[str], linked: set[tuple[int, int]]) -> bool:
    """A directory behind a symbolic link is entered once: links can form a circle."""
    if not entry.is_symlink():
        return True
    facts = entry.stat()
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
