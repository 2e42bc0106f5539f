"""The archived timeline of layout 2: Parquet files of old instants, and the manifest that lists the live ones.

A file is named after the instants in it and its layer; a snapshot of the history is a numbered manifest, and
the version file holds the number. Instants are in order of their requested time. The range in a name may be wider than
the instants in the file, never narrower: readers skip files by it.

Java knows layers of one digit only, so that `MAX_LAYER` files are never merged further.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.avro_container import schema_json
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State

__all__ = [
    "MAX_LAYER",
    "ROW_GROUP_INSTANTS",
    "VERSION_FILE_NAME",
    "ArchivedInstant",
    "HistoryFile",
    "HistoryName",
    "decode_history_file",
    "decode_history_name",
    "decode_manifest",
    "decode_manifest_name",
    "decode_version",
    "encode_history_file",
    "encode_history_name",
    "encode_manifest",
    "encode_manifest_name",
    "encode_version",
    "merge_history_files",
]

VERSION_FILE_NAME = "_version_"
MAX_LAYER = 9
ROW_GROUP_INSTANTS = 10

_NAME = re.compile(r"(\d+)_(\d+)_(\d+)\.parquet", re.ASCII)
_MANIFEST_NAME = re.compile(r"manifest_(\d{1,9})", re.ASCII)
_VERSION = re.compile(rb"\s*(\d{1,9})\s*")
_RECORD_VERSION = 1
_INT64_MAX = 2**63 - 1
_ACTIONS = {action.value: action for action in Action}
_SCHEMA = pa.schema(
    [
        pa.field("instantTime", pa.string()),
        pa.field("completionTime", pa.string()),
        pa.field("action", pa.string()),
        pa.field("metadata", pa.binary()),
        pa.field("plan", pa.binary()),
        pa.field("version", pa.int32(), nullable=False),
    ]
)
_IDENTITY_COLUMNS = ("instantTime", "completionTime", "action")
_CONTENT_COLUMNS = ("metadata", "plan")


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """A live file of the history, as the manifest lists it."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class HistoryName:
    """The parts of a history file's name: the range of requested times in it, and its layer."""

    min_instant: str
    max_instant: str
    layer: int

    def overlaps(self, first: RequestedTime, last: RequestedTime) -> bool:
        """Whether the file may hold an instant from `first` to `last`, both included."""
        return RequestedTime(self.min_instant) <= last and first <= RequestedTime(self.max_instant)


@dataclass(frozen=True, slots=True)
class ArchivedInstant:
    """A completed instant with the bytes of its completed file and, where there was one, of its plan."""

    instant: Instant
    metadata: bytes | None = None
    plan: bytes | None = None


def encode_history_name(name: HistoryName) -> str:
    """`<min>_<max>_<layer>.parquet`."""
    return f"{name.min_instant}_{name.max_instant}_{name.layer}.parquet"


def decode_history_name(name: str) -> HistoryName | None:
    """The parts of a history file's name, None for any other file."""
    found = _NAME.fullmatch(name)
    return HistoryName(found[1], found[2], int(found[3])) if found and len(found[3]) < 10 else None


def encode_manifest_name(version: int) -> str:
    """The name of a snapshot's manifest."""
    return f"manifest_{version}"


def decode_manifest_name(name: str) -> int | None:
    """The version of a manifest by its name, None for any other file."""
    found = _MANIFEST_NAME.fullmatch(name)
    return int(found[1]) if found else None


def encode_version(version: int) -> bytes:
    """The contents of the version file."""
    return str(version).encode()


def decode_version(data: bytes, *, file: str) -> int:
    """The version of the current snapshot."""
    found = _VERSION.fullmatch(data)
    if not found:
        raise CorruptTableError(file=file, reason="does not hold the number of a manifest")
    return int(found[1])


def encode_manifest(files: Sequence[HistoryFile]) -> bytes:
    """The manifest as JSON."""
    return json.dumps({"files": [{"fileName": f.name, "fileLen": f.size} for f in files]}, indent=2).encode()


def decode_manifest(data: bytes, *, file: str) -> list[HistoryFile]:
    """The live files of a snapshot. An empty manifest, as of a history just begun, lists none."""
    if not data:
        return []
    try:
        entries = json.loads(data)["files"]
        files = [HistoryFile(entry["fileName"], entry["fileLen"]) for entry in entries]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptTableError(file=file, reason=f"the manifest does not decode ({error})") from error
    if not all(isinstance(f.name, str) and type(f.size) is int and 0 <= f.size <= _INT64_MAX for f in files):
        raise CorruptTableError(file=file, reason="the manifest names a file without a name or a length")
    return files


def encode_history_file(instants: Sequence[ArchivedInstant], *, row_group_instants: int = ROW_GROUP_INSTANTS) -> bytes:
    """The Parquet file of these instants, sorted by requested time."""
    ordered = sorted(instants, key=lambda archived: archived.instant.requested_at)
    rows = [
        {
            "instantTime": archived.instant.requested_at.value,
            "completionTime": archived.instant.completed_at and archived.instant.completed_at.value,
            "action": archived.instant.action.completed_as.value,
            "metadata": archived.metadata,
            "plan": archived.plan,
            "version": _RECORD_VERSION,
        }
        for archived in ordered
    ]
    sink = pa.BufferOutputStream()
    with _open_writer(sink) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), row_group_size=row_group_instants)
        _end_file(writer)
    return bytes(sink.getvalue())


def decode_history_file(data: bytes | BinaryIO, *, file: str, with_contents: bool = True) -> list[ArchivedInstant]:
    """The instants of a history file; without their metadata and plans if `with_contents` is False.

    From an open stream only the columns that are needed are read.
    """
    columns = _IDENTITY_COLUMNS + (_CONTENT_COLUMNS if with_contents else ())
    tables = _read_tables(data, columns, file=file)
    return [_decode_row(row, file=file) for table in tables for row in table.to_pylist()]


def merge_history_files(sources: Sequence[tuple[str, BinaryIO]], sink: BinaryIO) -> int:
    """Write the instants of all `sources` (names and streams) into one file; the number of instants in it.

    Rows are taken over as they are, in the order of the sources, one row group in memory at a time. An instant that
    an archive which died left in two files is written once.
    """
    seen: set[tuple[str, str]] = set()
    with _open_writer(sink) as writer:
        for file, stream in sources:
            for table in _read_tables(stream, _SCHEMA.names, file=file):
                identities = list(zip(table["instantTime"].to_pylist(), table["action"].to_pylist(), strict=True))
                fresh = [identity not in seen for identity in identities]
                if any(fresh):
                    writer.write_table(table.filter(pa.array(fresh)))
                seen.update(identities)
        _end_file(writer)
    return len(seen)


def _open_writer(sink: Any) -> Any:
    return pq.ParquetWriter(
        sink, _SCHEMA, compression="gzip", store_schema=False, write_page_checksum=True, use_dictionary=False
    )


def _end_file(writer: Any) -> None:
    schema = schema_json("HoodieLSMTimelineInstant")
    writer.add_key_value_metadata({"parquet.avro.schema": schema, "writer.model.name": "avro"})


def _read_tables(data: bytes | BinaryIO, columns: Sequence[str], *, file: str) -> Iterator[Any]:
    """The row groups of a file, each with `columns` as this module writes them."""
    expected = pa.schema([_SCHEMA.field(name) for name in columns])
    source = pa.BufferReader(data) if isinstance(data, bytes) else data
    try:
        with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
            _verify_row_count(parquet.metadata, size=_size(source), file=file)
            for group in range(parquet.num_row_groups):
                yield parquet.read_row_group(group, columns=list(columns)).select(list(columns)).cast(expected)
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        raise CorruptTableError(file=file, reason=f"the Parquet file does not decode ({error})") from error


def _size(source: Any) -> int:
    size: int = source.size()
    return size


def _verify_row_count(metadata: Any, *, size: int, file: str) -> None:
    """Refuse a footer whose counts disagree, or that claims rows without bytes, before anything is allocated.

    Columns are not looked at here: pyarrow ends the process on some damaged column metadata.
    """
    rows = sum(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
    if not metadata.num_rows == rows <= size:
        raise CorruptTableError(file=file, reason="the row counts in the footer disagree")


def _decode_row(row: dict[str, Any], *, file: str) -> ArchivedInstant:
    action = _ACTIONS.get(row["action"])
    if action is None:
        raise CorruptTableError(file=file, reason=f"names an action that does not exist ({row['action']!r})")
    try:
        requested_at = RequestedTime(row["instantTime"] or "")
        completed_at = CompletionTime(row["completionTime"]) if row["completionTime"] else None
    except ValueError as error:
        raise CorruptTableError(file=file, reason=f"an instant time is wrong ({error})") from error
    instant = Instant(requested_at, action, State.COMPLETED, completed_at)
    return ArchivedInstant(instant, row.get("metadata"), row.get("plan"))
