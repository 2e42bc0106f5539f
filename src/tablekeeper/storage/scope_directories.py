"""Scopes of a file system: each is a directory, and every change goes through it by one rename or hard link.

A file is written inside its scope's directory and moved out of it; a file that is deleted is moved into it first. To
fence a scope is to rename its directory away: whoever comes later finds no such directory, with nothing in between.
Nobody but `take` makes these directories.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat as stat_modes
from contextlib import suppress
from pathlib import Path

from tablekeeper.runtime import Runtime
from tablekeeper.storage.faults import fenced_error
from tablekeeper.storage.paths import checked_path
from tablekeeper.storage.scratch import Scratch, remove_file, remove_sidecar

__all__ = ["ScopeDirectories"]

_ABANDONED_AFTER_NS = 7 * 24 * 3600 * 1_000_000_000


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

    def take(self, group: str, names: tuple[str, ...], *, through: str | None) -> None:
        """Open the scopes of these names, and then fence all others of the group."""
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
        with os.scandir(parent) as entries:
            others = [entry.name for entry in entries if entry.name not in names]
        for other in others:
            self.fence(f"{group}/{other}", through=through)

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
                if now_ns - newest_ns > _ABANDONED_AFTER_NS:
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
