"""How files of a file system become visible: written aside, moved into place, guarded by a lock and by scopes.

The scratch directory must be on the file system of the files that are published from it. It holds unpublished
files and the lock's side file, nothing else; what dead processes left there is removed after a day.

A change or removal of an existing file holds the lock shared; a conditional replacement holds it exclusively,
so nothing can come between its comparison and its rename. Creating a file that must not exist needs no lock: a
hard link never touches an existing name. A holder may be stopped at that moment, so the wait for the lock is bounded.

A scope of a file system is a directory, and every change goes through it by one rename or hard link: a file is written
inside its scope's directory and moved out of it; a file that is deleted is moved into it first. To fence a scope is to
rename its directory away: a later change finds no such directory, with nothing in between. Nobody but `take` makes
these directories."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat as stat_modes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tablekeeper.errors import FencedError, StorageError
from tablekeeper.runtime import Runtime
from tablekeeper.storage.faults import fenced_error
from tablekeeper.storage.protocol import checked_path

__all__ = ["ScopeDirectories", "Scratch", "remove_file", "remove_sidecar"]


T = TypeVar("T")

_LOCK_NAME = "publish.lock"
_TIMEOUT_S = 30.0
_ABANDONED_AFTER_NS = 24 * 3600 * 1_000_000_000
_SCOPE_ABANDONED_AFTER_NS = 7 * 24 * 3600 * 1_000_000_000
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}
_NO_FILE_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class Scratch:
    """The scratch directory of one store, and the ways out of it."""

    def __init__(self, directory: Path, *, fsync: bool, runtime: Runtime) -> None:
        self._directory = directory
        self._fsync = fsync
        self._runtime = runtime
        self._exclusive = runtime.threads.lock()
        self._swept = False

    @contextmanager
    def holding(self, data: bytes, *, inside: Path | None = None) -> Iterator[Path]:
        """An unpublished file with `data`; gone afterwards unless it was published. `inside` as for `create`.

        The sub-millisecond digits of its time are random: the same bytes written twice within one tick of the
        file system's clock, on a reused inode, are still told apart.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        temporary, descriptor = self.create(lambda path: os.open(path, flags, 0o666), inside=inside)
        try:
            try:
                _write_all(descriptor, data)
                facts = os.fstat(descriptor)
                tick_ns = facts.st_mtime_ns - facts.st_mtime_ns % 1_000_000
                os.utime(descriptor, ns=(facts.st_atime_ns, tick_ns + self._runtime.ids.number(1_000_000)))
            finally:
                os.close(descriptor)
            self.sync(temporary)
            yield temporary
        finally:
            remove_file(temporary)

    def directory(self) -> Path:
        """The scratch directory, made if it is not there."""
        if not self._directory.is_dir():
            self._make_directories(self._directory)
        return self._directory

    def create(self, opener: Callable[[Path], T], *, inside: Path | None = None) -> tuple[Path, T]:
        """A new name in the scratch directory and what `opener` made of it.

        With `inside` it lies in that directory, which is not made: somebody may have taken it away on purpose.
        """
        if inside is not None:
            temporary = inside / f"{os.getpid()}-{self._runtime.ids.uuid()}"
            return temporary, opener(temporary)
        temporary = self._directory / f"{os.getpid()}-{self._runtime.ids.uuid()}"
        opened = self._within(lambda: opener(temporary))
        if not self._swept:
            self._swept = True
            self._remove_abandoned(temporary)
        return temporary, opened

    def publish(self, temporary: Path, target: Path) -> None:
        """Move the file to `target`, over whatever file is there. The caller holds the lock."""
        self._with_parent(temporary, target, lambda: temporary.replace(target))
        self.sync(target.parent)

    def publish_if_absent(self, temporary: Path, target: Path) -> bool:
        """Give the file the name `target` unless that is taken."""
        try:
            self._with_parent(temporary, target, lambda: target.hardlink_to(temporary))
        except FileExistsError:
            # A network file system may report a link that it made itself and whose answer was lost.
            return temporary.stat().st_nlink > 1
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            raise StorageError(
                f"{target}: cannot create: this file system refuses hard links, which creating a file exactly once "
                "needs. Keep the table on a file system that has them.",
                path=str(target),
            ) from error
        self.sync(target.parent)
        return True

    def remove(self, target: Path) -> None:
        """Remove `target` and its checksum sidecar, if there; a directory stays."""
        remove_sidecar(target)
        # Where nothing is, no scratch directory is made only to hold the lock.
        if os.path.lexists(target):
            with self.shared():
                remove_file(target)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock among others that change files unconditionally.

        Where the file system has no locks this is no lock: nobody can hold it exclusively there either.
        """
        try:
            descriptor = self._locked(fcntl.LOCK_SH)
        except OSError as error:
            if error.errno not in _NO_FILE_LOCKS:
                raise
            descriptor = -1
        try:
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone, among threads and processes."""
        with self._exclusive:
            try:
                descriptor = self._locked(fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_FILE_LOCKS:
                    raise
                raise StorageError(
                    f"{self._directory}: cannot lock: this file system has no file locks, which replacing a file "
                    "conditionally needs. Keep the table on a file system that has them.",
                    path=str(self._directory),
                ) from error
            try:
                yield
            finally:
                os.close(descriptor)

    def sync(self, location: Path) -> None:
        """Force a file or directory to disk, if this store does that at all."""
        if not self._fsync:
            return
        descriptor = os.open(location, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _locked(self, operation: int) -> int:
        """A descriptor of the side file that holds the lock; closing it releases the lock."""
        path = self._directory / _LOCK_NAME
        while True:
            descriptor = self._within(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
            try:
                self._wait_for_lock(descriptor, operation)
                # Someone may have removed the whole directory meanwhile: a lock on an unlinked file guards nothing.
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _wait_for_lock(self, descriptor: int, operation: int) -> None:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                self._runtime.threads.call_within(
                    _TIMEOUT_S, lambda: fcntl.flock(descriptor, operation), name="tablekeeper-publish-lock"
                )
            except TimeoutError as error:
                path = self._directory / _LOCK_NAME
                raise StorageError(
                    f"{path}: another process has held this lock for {_TIMEOUT_S:g} s, although nobody needs it for "
                    f"longer than a moment: it was probably stopped. Let it go on, or kill it (`fuser {path}` names "
                    "those that have the file open), and try again.",
                    path=str(path),
                    transient=True,
                ) from error

    def _within(self, create: Callable[[], T]) -> T:
        try:
            return create()
        except FileNotFoundError:
            self._make_directories(self._directory)
            return create()

    def _with_parent(self, temporary: Path, target: Path, publish: Callable[[], object]) -> None:
        # Before its file: Hadoop refuses a file that does not fit its sidecar.
        if temporary.exists():
            remove_sidecar(target)
        try:
            publish()
        except FileNotFoundError:
            if not temporary.exists():
                raise
            self._make_directories(target.parent)
            publish()

    def _make_directories(self, directory: Path) -> None:
        missing = [directory] if self._fsync else []
        while missing and not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        directory.mkdir(parents=True, exist_ok=True)
        for created in missing:
            self.sync(created.parent)

    def _remove_abandoned(self, fresh: Path) -> None:
        """Remove old leftovers. `fresh` tells the time: the file system's clock may differ from ours."""
        now_ns = fresh.stat().st_mtime_ns
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    age_ns = now_ns - entry.stat(follow_symlinks=False).st_mtime_ns
                    if entry.name != _LOCK_NAME and age_ns > _ABANDONED_AFTER_NS:
                        remove_file(Path(entry.path))


def remove_file(path: Path) -> None:
    """Remove a file if it is there."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        path.unlink()


def remove_sidecar(target: Path) -> None:
    """Remove the checksum that Hadoop keeps beside a file, if it is there."""
    remove_file(target.with_name(f".{target.name}.crc"))


def _write_all(descriptor: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


class ScopeDirectories:
    """The scopes below one directory. What is fenced is moved to `scratch` on its way out."""

    def __init__(self, directory: Path, *, scratch: Scratch, runtime: Runtime) -> None:
        self._directory = directory
        self._scratch = scratch
        self._runtime = runtime
        self._swept = False

    def find(self, scope: str) -> Path:
        """The directory of a scope that has not been fenced."""
        directory = self._directory / checked_path(scope)
        if not directory.is_dir():
            raise fenced_error(str(directory), scope)
        return directory

    def take(
        self, group: str, names: tuple[str, ...], *, through: str | None, look: Callable[[], None] = lambda: None
    ) -> None:
        """Open the scopes of these names, and then fence all others of the group.

        The others are moved into one of the new scopes: whoever has taken the group since has moved that away, and
        then nothing is fenced here.
        """
        parent = self._directory / checked_path(group)
        parent.mkdir(parents=True, exist_ok=True)
        for name in names:
            target = parent / checked_path(name)
            if through is None:
                target.mkdir(exist_ok=True)
                continue
            fresh = self.find(through) / self._runtime.ids.uuid()
            try:
                fresh.mkdir()
                fresh.rename(target)
            except FileNotFoundError:
                raise fenced_error(str(target), through) from None
        try:
            look()
        except FencedError:
            for name in names:
                self.fence(f"{group}/{name}", through=through)
            raise
        with os.scandir(parent) as entries:
            others = [entry.name for entry in entries if entry.name not in names]
        for other in others:
            self.fence(f"{group}/{other}", through=through or f"{group}/{names[0]}")

    def fence(self, target: str, *, through: str | None) -> None:
        """Move the directory of `target` away, with the scopes below it, and remove it."""
        directory = self._directory / checked_path(target)
        aside = self._aside(through)
        try:
            directory.rename(aside)
        except FileNotFoundError:
            if through is not None:
                self.find(through)
            return
        shutil.rmtree(aside, ignore_errors=True)

    def remove(self, target: Path, *, through: str) -> None:
        """Remove a file or symbolic link, if there; a directory stays."""
        aside = self._aside(through)
        try:
            if not stat_modes.S_ISDIR(target.lstat().st_mode):
                self._move(target, aside, through)
        except (FileNotFoundError, NotADirectoryError):
            self.find(through)
            return
        remove_sidecar(target)
        remove_file(aside)

    def remove_tree(self, target: Path, *, through: str) -> None:
        """Remove a directory with everything in it, or the symbolic link to one."""
        aside = self._aside(through)
        try:
            self._move(target, aside, through)
        except (FileNotFoundError, NotADirectoryError):
            self.find(through)
            return
        if aside.is_symlink():
            remove_file(aside)
        else:
            shutil.rmtree(aside, ignore_errors=True)

    def remove_abandoned(self) -> None:
        """Fence scopes in which nothing has happened for a week: their processes died, and nobody asked about them.

        Looks once in the life of a store.
        """
        if self._swept:
            return
        self._swept = True
        now_ns = self._runtime.clock.now_ms() * 1_000_000
        for group in self._directory.glob("attempts/*"):
            with suppress(OSError):
                newest_ns = max(path.lstat().st_mtime_ns for path in (group, *group.rglob("*")))
                if now_ns - newest_ns > _SCOPE_ABANDONED_AFTER_NS:
                    self.fence(f"attempts/{group.name}", through=None)

    def _aside(self, through: str | None) -> Path:
        name = self._runtime.ids.uuid()
        return self._scratch.directory() / name if through is None else self.find(through) / name

    def _move(self, target: Path, aside: Path, through: str) -> None:
        try:
            target.rename(aside)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # Behind a link to another file system nothing can be moved at one stroke: look, and then remove.
            self.find(through)
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                remove_file(target)
