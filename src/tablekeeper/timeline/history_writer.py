"""Adding to the archived timeline: a new file of instants, files merged into larger ones, old versions removed.

The caller holds the table lock. But a process that slept until its lease expired may wake up in the middle of any call
here. So nothing relies on the lock alone:

- the files of a snapshot never change and no name is used twice, not even that of a file of a dead archive; so a late
  clean cannot delete a live file;
- a snapshot is published by compare-and-set, first its manifest and then the version file: of two archives that
  began with the same snapshot one fails (`FencedError`), and nothing that it wrote is part of the history;
- a file that no kept manifest names is removed only if it is older than all of them.

The order of the writes is Java's: data file, manifest, version file. If the process dies in between, the last snapshot
remains valid, and a later archive removes the unused files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tablekeeper.errors import CorruptTableError, FencedError, NotFoundError
from tablekeeper.format.history import (
    MAX_LAYER,
    VERSION_FILE_NAME,
    ArchivedInstant,
    HistoryFile,
    HistoryName,
    decode_history_name,
    decode_manifest,
    decode_manifest_name,
    encode_history_file,
    encode_history_name,
    encode_manifest,
    encode_manifest_name,
    encode_version,
    merge_history_files,
)
from tablekeeper.model import RequestedTime, join_path
from tablekeeper.storage import FileInfo, Storage
from tablekeeper.timeline.history import HistorySnapshot

__all__ = ["MergeLimits", "append_history", "clean_history", "merge_history"]


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """When files of one layer are merged, and how many bytes of them at most at a time."""

    files: int
    max_bytes: int


def append_history(
    storage: Storage, snapshot: HistorySnapshot, instants: Sequence[ArchivedInstant], *, row_group_instants: int
) -> HistorySnapshot:
    """The snapshot with one more file, which holds these instants. There must be at least one."""
    times = sorted((archived.instant.requested_at for archived in instants), key=lambda time: time.order)
    name = _unused_name(storage, snapshot.directory, HistoryName(times[0].value, times[-1].value, 0))
    data = encode_history_file(instants, row_group_instants=row_group_instants)
    if not storage.put_if_absent(join_path(snapshot.directory, name), data):
        raise _beaten(snapshot)
    return _publish(storage, snapshot, (*snapshot.files, HistoryFile(name, len(data))))


def merge_history(storage: Storage, snapshot: HistorySnapshot, limits: MergeLimits) -> HistorySnapshot:
    """The snapshot with the oldest files of each full layer merged into one of the next layer."""
    for layer in range(MAX_LAYER):
        sources = _plan_merge(snapshot, layer, limits)
        if not sources:
            break
        merged = _merge(storage, snapshot, sources, layer)
        left = tuple(file for file in snapshot.files if file not in sources)
        snapshot = _publish(storage, snapshot, (*left, merged))
    return snapshot


def clean_history(storage: Storage, snapshot: HistorySnapshot, *, manifests_kept: int) -> tuple[str, ...]:
    """Remove old manifests and the files that only they name. Returns the deleted paths.

    Readers of the kept manifests find all their files.
    """
    listed = storage.list_files(snapshot.directory)
    versions = {number: info for info in listed if (number := decode_manifest_name(info.name)) is not None}
    kept = sorted((number for number in versions if number <= snapshot.version), reverse=True)[:manifests_kept]
    old = [info for number, info in versions.items() if kept and number < kept[-1]]
    if not old:
        return ()
    named = set().union(*(_names_in(storage, versions[number]) for number in kept))
    oldest_ms = min(versions[number].modified_ms for number in kept)
    garbage = [
        info
        for info in listed
        if decode_history_name(info.name) and info.name not in named and info.modified_ms < oldest_ms
    ]
    # Manifests first: one whose files are gone would mislead a reader, files without a manifest mislead nobody.
    storage.delete_many(info.path for info in old)
    storage.delete_many(info.path for info in garbage)
    return tuple(info.path for info in (*old, *garbage))


def _publish(storage: Storage, before: HistorySnapshot, files: tuple[HistoryFile, ...]) -> HistorySnapshot:
    version = before.version + 1
    manifest = join_path(before.directory, encode_manifest_name(version))
    content = encode_manifest(files)
    # An existing manifest of this number was written by an archive that died, or that is about to fail.
    leftover = storage.read_versioned(manifest)
    if leftover is None:
        landed = storage.put_if_absent(manifest, content)
    else:
        landed = storage.replace(manifest, content, version=leftover.version) is not None
    if not landed:
        raise _beaten(before)
    token = _move_version(storage, before, version)
    return replace(before, version=version, files=files, token=token)


def _move_version(storage: Storage, before: HistorySnapshot, version: int) -> str | None:
    path = join_path(before.directory, VERSION_FILE_NAME)
    if before.token is not None:
        token = storage.replace(path, encode_version(version), version=before.token)
        if token is None:
            raise _beaten(before)
        return token
    if not storage.put_if_absent(path, encode_version(version)):
        raise _beaten(before)
    stored = storage.read_versioned(path)
    if stored is None or stored.data != encode_version(version):
        raise _beaten(before)
    return stored.version


def _plan_merge(snapshot: HistorySnapshot, layer: int, limits: MergeLimits) -> list[HistoryFile]:
    """The oldest neighbouring files of a layer with enough files; none if they are too large."""
    files = sorted((file for file in snapshot.files if _layer_of(file) == layer), key=lambda file: file.name)
    if len(files) < limits.files:
        return []
    chosen: list[HistoryFile] = []
    for file in files:
        chosen.append(file)
        if len(chosen) >= limits.files:
            break
        if sum(each.size for each in chosen) > limits.max_bytes:
            if len(chosen) > 1:
                break
            chosen.clear()
    return chosen if len(chosen) > 1 else []


def _merge(storage: Storage, snapshot: HistorySnapshot, sources: Sequence[HistoryFile], layer: int) -> HistoryFile:
    ranges = [found for file in sources if (found := decode_history_name(file.name)) is not None]
    # In the order of times: those of old tables are shorter, and text would order them wrongly.
    first = min((r.min_instant for r in ranges), key=lambda text: RequestedTime(text).order)
    last = max((r.max_instant for r in ranges), key=lambda text: RequestedTime(text).order)
    wanted = HistoryName(first, last, layer + 1)
    name = _unused_name(storage, snapshot.directory, wanted)
    with ExitStack() as stack:
        streams = [(file.name, stack.enter_context(storage.open_input(snapshot.path_of(file)))) for file in sources]
        sink = stack.enter_context(storage.open_output(join_path(snapshot.directory, name)))
        merge_history_files(streams, sink)
        size = sink.tell()
    return HistoryFile(name, size)


def _unused_name(storage: Storage, directory: str, name: HistoryName) -> str:
    """A name that no file has. If a file was left behind, the range in the name is widened a little."""
    while storage.stat(join_path(directory, encode_history_name(name))) is not None:
        wider = str(int(name.max_instant) + 1).zfill(len(name.max_instant))
        name = replace(name, max_instant=wider)
    return encode_history_name(name)


def _names_in(storage: Storage, manifest: FileInfo) -> set[str]:
    """The files that a manifest lists. A damaged or missing one protects nothing."""
    try:
        return {file.name for file in decode_manifest(storage.read(manifest.path), file=manifest.path)}
    except (CorruptTableError, NotFoundError):
        return set()


def _layer_of(file: HistoryFile) -> int | None:
    name = decode_history_name(file.name)
    return name.layer if name is not None else None


def _beaten(snapshot: HistorySnapshot) -> FencedError:
    return FencedError(
        f"{snapshot.directory}: another process archived instants at the same time, after this one lost the table "
        "lock. Nothing of its own is part of the history; run the archive again."
    )
