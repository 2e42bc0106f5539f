"""Markers: which data files a write may have left behind.

A marker is created under `.hoodie/.temp/<instant>/` before its data file, so that a process that rolls
the instant back, tablekeeper or Java, knows every file that may exist. Without markers a rollback by
Java leaves the files of a failed write in place, and their rows become visible once the timeline has
been archived past the instant.

Markers are written in the DIRECT layout (one empty object each). Both layouts are read: in the
TIMELINE_SERVER_BASED one the markers are lines of the objects `MARKERS0`, `MARKERS1`, ….
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from tablekeeper.errors import CorruptTableError, NotFoundError
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.model import FileGroupId, join_path
from tablekeeper.storage.protocol import Storage

__all__ = [
    "Marker",
    "MarkerKind",
    "create_marker",
    "delete_markers",
    "load_marked_groups",
    "load_marked_instants",
    "load_markers",
    "load_newest_marker_ms",
]

_ROOT = ".hoodie/.temp"
_TYPE_NAME = "MARKERS.type"
_LAYOUTS = ("", "DIRECT", "TIMELINE_SERVER_BASED")
_BUNDLE_NAME = re.compile(r"MARKERS\d+")
_MARKER_NAME = re.compile(r"(?P<file>.+)\.marker\.(?P<kind>[A-Z]+)")


class MarkerKind(enum.Enum):
    """What the write does to the file; the value is the suffix of the marker's name."""

    CREATE = "CREATE"
    MERGE = "MERGE"
    APPEND = "APPEND"


@dataclass(frozen=True, slots=True, order=True)
class Marker:
    """One data file that an instant announced. `partition` is `""` in a table without partitions."""

    partition: str
    file_name: str
    kind: MarkerKind

    @property
    def path(self) -> str:
        """Path of the data file relative to the table."""
        return join_path(self.partition, self.file_name)


def create_marker(
    storage: Storage, *, instant: str, partition: str, file_name: str, kind: MarkerKind, scope: str | None = None
) -> None:
    """Announce a data file before it is created. Can be repeated for the same file."""
    storage.put_if_absent(join_path(_ROOT, instant, partition, f"{file_name}.marker.{kind.value}"), b"", scope=scope)


def load_markers(storage: Storage, *, instant: str) -> list[Marker]:
    """All markers of `instant` in either layout, sorted; none if it has no marker directory."""
    root = join_path(_ROOT, instant)
    found: set[Marker] = set()
    for info in storage.walk(root):
        inside = info.path.removeprefix(root + "/")
        if info.name.endswith(".crc"):  # written beside every file by Hadoop's local file system
            continue
        if inside == _TYPE_NAME:
            _check_layout(storage, info.path)
        elif _BUNDLE_NAME.fullmatch(inside):
            found.update(_load_bundle(storage, info.path))
        else:
            found.add(_parse(inside, file=info.path))
    return sorted(found, key=lambda marker: (marker.path, marker.kind.value))


def load_marked_groups(storage: Storage, *, instant: str) -> frozenset[FileGroupId]:
    """File groups whose files `instant` has announced; its writer may be running.

    Lines that are still being written and files that disappear during the listing are ignored.
    """
    root = join_path(_ROOT, instant)
    names: list[str] = []
    for info in storage.walk(root):
        inside = info.path.removeprefix(root + "/")
        if not _BUNDLE_NAME.fullmatch(inside):
            names.append(inside)
            continue
        try:
            names += storage.read(info.path).decode("utf-8", "replace").splitlines()
        except NotFoundError:
            continue
    groups = (_group_of(name.strip()) for name in names)
    return frozenset(group for group in groups if group is not None)


def load_marked_instants(storage: Storage) -> list[str]:
    """Instants that have a marker directory, sorted."""
    return storage.list_directories(_ROOT)


def load_newest_marker_ms(storage: Storage, *, instant: str) -> int:
    """When the last marker of `instant` was written, in epoch milliseconds; 0 if it has none."""
    return max((info.modified_ms for info in storage.walk(join_path(_ROOT, instant))), default=0)


def delete_markers(storage: Storage, *, instant: str) -> None:
    """Remove the marker directory of `instant`: after its commit, or after its rollback deleted the files."""
    storage.delete_tree(join_path(_ROOT, instant))


def _check_layout(storage: Storage, path: str) -> None:
    layout = storage.read(path).decode("utf-8", "replace").strip()
    if layout not in _LAYOUTS:
        raise CorruptTableError(file=path, reason=f"the marker layout {layout!r} is not known")


def _load_bundle(storage: Storage, path: str) -> list[Marker]:
    try:
        text = storage.read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptTableError(file=path, reason=f"the marker list is not UTF-8 text ({error.reason})") from error
    return [_parse(line.strip(), file=path) for line in text.splitlines() if line.strip()]


def _group_of(text: str) -> FileGroupId | None:
    partition, _, name = text.rpartition("/")
    match = _MARKER_NAME.fullmatch(name)
    file = (decode_base_name(match["file"]) or decode_log_name(match["file"])) if match is not None else None
    return FileGroupId(partition, file.file_id) if file is not None else None


def _parse(text: str, *, file: str) -> Marker:
    partition, _, name = text.rpartition("/")
    match = _MARKER_NAME.fullmatch(name)
    if match is None or match["kind"] not in MarkerKind.__members__:
        raise CorruptTableError(file=file, reason=f"{text!r} is not the name of a marker")
    return Marker(partition=partition, file_name=match["file"], kind=MarkerKind[match["kind"]])
