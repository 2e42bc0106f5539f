"""The archived timeline: instants that left the active one, kept in an LSM tree of Parquet files.

A snapshot of the history is a manifest: the list of live files. `_version_` names the current one. An archive adds
files and manifests and keeps those that readers are using; it removes old ones a few versions later, so that only a
very slow reader misses a file, and starts again.

An archive that died can leave an instant in two files, or in a file and on the active timeline. It is the same instant:
this module returns it once, and code that joins both timelines takes the active one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError, NotFoundError
from tablekeeper.format.history import (
    VERSION_FILE_NAME,
    ArchivedInstant,
    HistoryFile,
    HistoryName,
    decode_history_file,
    decode_history_name,
    decode_manifest,
    decode_manifest_name,
    decode_version,
    encode_manifest_name,
)
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State, join_path
from tablekeeper.storage import Storage

__all__ = [
    "HistorySnapshot",
    "archived_completions",
    "find_archived",
    "iterate_history",
    "load_archive_reach",
    "load_archived_content",
    "load_history",
    "load_history_snapshot",
    "refuse_lost_history",
]

_ATTEMPTS = 3
_UNBOUNDED = RequestedTime("99999999999999999")
T = TypeVar("T")
_Identity = tuple[RequestedTime, Action]


@dataclass(frozen=True, slots=True)
class HistorySnapshot:
    """The live files of a history at one version; version 0 is a history that has not begun.

    `token` is the version token of the version file, None if there is no such file.
    """

    directory: str
    version: int
    files: tuple[HistoryFile, ...]
    token: str | None = None

    def overlapping(self, first: RequestedTime, last: RequestedTime) -> tuple[HistoryFile, ...]:
        """Files that may hold instants from `first` to `last`."""
        return tuple(file for file in self.files if _range_of(file).overlaps(first, last))

    def reaches_back_to(self, time: RequestedTime) -> bool:
        """Whether the history covers that time: older instants that are not in it were not archived at all."""
        return any(RequestedTime(_range_of(file).min_instant) <= time for file in self.files)

    def path_of(self, file: HistoryFile) -> str:
        return join_path(self.directory, file.name)


def load_archive_reach(storage: Storage, config: TableConfig) -> RequestedTime | None:
    """A time after which nothing has been archived; None if nothing has been archived at all. One listing of names.

    Names of files are enough, even those of an archive that died: their instants are still on the active timeline. An
    archive in the format of version 6 is not read; if there is one, it counts as containing everything.
    """
    if config.version >= 8:
        names = (decode_history_name(name) for name in storage.list_names(config.history_directory))
        newest = max((RequestedTime(name.max_instant) for name in names if name is not None), default=None)
        # The upgrade of a table brings its archive along, unless that failed, which it only logs.
        if newest is not None or not config.may_have_old_log_names:
            return newest
    return _UNBOUNDED if storage.list_names(config.old_history_directory) else None


def refuse_lost_history(storage: Storage, config: TableConfig) -> None:
    """Raise `CorruptTableError` if a file of the archived timeline is gone: its instants count as never committed then.

    For readers that met files of an instant of which nothing is known.
    """
    if config.version < 8:
        return
    lost: set[str] = set()
    for _ in range(_ATTEMPTS):
        snapshot = load_history_snapshot(storage, config.history_directory)
        # Listed after the manifest was read; an archive in between may have removed files of older manifests.
        lost = {file.name for file in snapshot.files} - set(storage.list_names(config.history_directory))
        if not lost:
            return
    raise CorruptTableError(
        file=join_path(config.history_directory, min(lost)),
        reason="it is gone, and the archived timeline names it: nobody can tell which files its instants committed",
    )


def load_history_snapshot(storage: Storage, directory: str) -> HistorySnapshot:
    """The current snapshot; the highest manifest counts if there is no version file, or none that can be read."""
    return _retried(lambda: _load_snapshot(storage, directory))


def load_history(
    storage: Storage,
    config: TableConfig,
    *,
    first: RequestedTime | None = None,
    last: RequestedTime | None = None,
    with_contents: bool = True,
) -> list[ArchivedInstant]:
    """Archived instants from `first` to `last`, each once, by requested time.

    There are none where there is no LSM history (version 6, or a young table).
    """
    if config.version < 8:
        return []
    return _retried(lambda: _load_range(storage, config, first, last, with_contents=with_contents))


def iterate_history(storage: Storage, config: TableConfig, *, with_contents: bool = True) -> Iterator[ArchivedInstant]:
    """Archived instants, the newest first, each once. Files are read lazily."""
    if config.version < 8:
        return
    given: set[_Identity] = set()
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            for archived in _iterate_snapshot(storage, config.history_directory, with_contents=with_contents):
                if _identity(archived.instant) not in given:
                    given.add(_identity(archived.instant))
                    yield archived
        except NotFoundError:
            if not attempts_left:
                raise
        else:
            return


def find_archived(storage: Storage, config: TableConfig, instant: Instant) -> ArchivedInstant | None:
    """The archived instant of this time and action, with its contents."""
    at = instant.requested_at
    for archived in load_history(storage, config, first=at, last=at):
        if _identity(archived.instant) == _identity(instant):
            return archived
    return None


def load_archived_content(storage: Storage, config: TableConfig, instant: Instant) -> bytes | None:
    """The contents of the instant's file before it was archived; None if they were not kept, or it is not archived.

    Completed files and plans are kept. An instant whose completed file was empty has no contents either.
    """
    if instant.state is State.INFLIGHT:
        return None
    archived = find_archived(storage, config, instant)
    if archived is None:
        return None
    return archived.metadata or b"" if instant.is_completed else archived.plan


def archived_completions(storage: Storage, config: TableConfig) -> Callable[[RequestedTime], CompletionTime | None]:
    """A function that looks up completion times in the history. It reads only the relevant files, each once."""
    index = _CompletionIndex(storage, config)
    return index.completion_of


class _CompletionIndex:
    """Completion times by requested time, from the files that were asked about so far."""

    def __init__(self, storage: Storage, config: TableConfig) -> None:
        self._storage = storage
        self._config = config
        self._snapshot: HistorySnapshot | None = None
        self._known: dict[RequestedTime, CompletionTime] = {}
        self._read: set[str] = set()

    def completion_of(self, requested_at: RequestedTime) -> CompletionTime | None:
        if self._config.version < 8:
            return None
        _retried(lambda: self._read_files_of(requested_at))
        return self._known.get(requested_at)

    def _read_files_of(self, requested_at: RequestedTime) -> None:
        snapshot = self._snapshot or load_history_snapshot(self._storage, self._config.history_directory)
        self._snapshot = None  # taken again if a file of it is gone
        for file in snapshot.overlapping(requested_at, requested_at):
            if file.name not in self._read:
                for archived in _load_file(self._storage, snapshot, file, with_contents=False):
                    if archived.instant.completed_at is not None:
                        self._known.setdefault(archived.instant.requested_at, archived.instant.completed_at)
                self._read.add(file.name)
        self._snapshot = snapshot


def _retried(load: Callable[[], T]) -> T:
    """The result of `load`, which is repeated if a file was removed while it was running."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return load()
        except NotFoundError:
            continue
    return load()


def _load_snapshot(storage: Storage, directory: str) -> HistorySnapshot:
    stored = storage.read_versioned(join_path(directory, VERSION_FILE_NAME))
    version = 0
    if stored is not None:
        try:
            version = decode_version(stored.data, file=join_path(directory, VERSION_FILE_NAME))
        except CorruptTableError:
            version = 0
    if version == 0:
        version = _highest_manifest(storage, directory)
    token = stored.version if stored is not None else None
    if version == 0:
        return HistorySnapshot(directory, 0, (), token)
    try:
        files = _load_manifest(storage, directory, version)
    except NotFoundError:
        highest = _highest_manifest(storage, directory)
        if highest in (0, version):
            raise
        version, files = highest, _load_manifest(storage, directory, highest)
    return HistorySnapshot(directory, version, files, token)


def _load_manifest(storage: Storage, directory: str, version: int) -> tuple[HistoryFile, ...]:
    path = join_path(directory, encode_manifest_name(version))
    return tuple(decode_manifest(storage.read(path), file=path))


def _highest_manifest(storage: Storage, directory: str) -> int:
    numbers = (decode_manifest_name(file.name) for file in storage.list_files(directory))
    return max((number for number in numbers if number is not None), default=0)


def _iterate_snapshot(storage: Storage, directory: str, *, with_contents: bool) -> Iterator[ArchivedInstant]:
    snapshot = load_history_snapshot(storage, directory)
    files = sorted(snapshot.files, key=lambda file: RequestedTime(_range_of(file).max_instant), reverse=True)
    waiting: dict[_Identity, ArchivedInstant] = {}
    for number, file in enumerate(files):
        for archived in _load_file(storage, snapshot, file, with_contents=with_contents):
            waiting.setdefault(_identity(archived.instant), archived)
        # Instants newer than all remaining files are complete.
        limit = RequestedTime(_range_of(files[number + 1]).max_instant) if number + 1 < len(files) else None
        for key in sorted((k for k in waiting if limit is None or k[0] > limit), key=_newest_last, reverse=True):
            yield waiting.pop(key)


def _load_range(
    storage: Storage,
    config: TableConfig,
    first: RequestedTime | None,
    last: RequestedTime | None,
    *,
    with_contents: bool,
) -> list[ArchivedInstant]:
    snapshot = load_history_snapshot(storage, config.history_directory)
    found: dict[_Identity, ArchivedInstant] = {}
    for file in snapshot.files:
        name = _range_of(file)
        if not name.overlaps(first or RequestedTime(name.min_instant), last or RequestedTime(name.max_instant)):
            continue
        for archived in _load_file(storage, snapshot, file, with_contents=with_contents):
            at = archived.instant.requested_at
            if (first is None or first <= at) and (last is None or at <= last):
                found.setdefault(_identity(archived.instant), archived)
    return [found[key] for key in sorted(found, key=_newest_last)]


def _load_file(
    storage: Storage, snapshot: HistorySnapshot, file: HistoryFile, *, with_contents: bool
) -> list[ArchivedInstant]:
    path = snapshot.path_of(file)
    if with_contents:
        return decode_history_file(storage.read(path), file=path)
    with storage.open_input(path) as stream:
        return decode_history_file(stream, file=path, with_contents=False)


def _identity(instant: Instant) -> _Identity:
    return instant.requested_at, instant.action.completed_as


def _newest_last(key: _Identity) -> tuple[str, str]:
    return key[0].order, key[1].value


def _range_of(file: HistoryFile) -> HistoryName:
    name = decode_history_name(file.name)
    if name is None:
        raise CorruptTableError(file=file.name, reason="the manifest of the history names a foreign file")
    return name
