"""File groups of the metadata table: one HFile base file, log files on top, merged by key.

A log file of the metadata table holds HFile blocks and delete blocks, which take away whole
records. Every log file belongs to one completed delta commit, so a block that was cut off is
damage here, not the trace of a crash, and is reported: skipping it would make files of the table
vanish from listings.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.hfile_writer import encode_hfile
from tablekeeper.format.log_blocks import (
    BlockType,
    HeaderKey,
    LogBlock,
    compacted_instants,
    decode_blocks,
    effective_instants,
    encode_block,
)
from tablekeeper.format.log_deletes import decode_deletes
from tablekeeper.format.metadata_records import (
    BloomFilterRecord,
    ColumnStatsRecord,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
    decode_metadata_record,
    encode_metadata_record,
    has_metadata_layout,
    merge_metadata_records,
    metadata_schema_json,
)

__all__ = [
    "MetadataBaseName",
    "MetadataBlock",
    "MetadataFileGroup",
    "decode_metadata_base_name",
    "decode_metadata_log",
    "effective_blocks",
    "encode_metadata_base",
    "encode_metadata_base_name",
    "encode_metadata_log",
]

_BASE_NAME = re.compile(r"([^_./]+)_([^_./]+)_(\d+)\.hfile", re.ASCII)
_SCHEMA_INFO = b"schema"
_MIN_KEY_INFO = b"minRecordKey"
_MAX_KEY_INFO = b"maxRecordKey"


@dataclass(frozen=True, slots=True)
class MetadataBaseName:
    """The parts of a base file name of the metadata table."""

    file_id: str
    write_token: str
    instant: str


@dataclass(frozen=True, slots=True)
class MetadataBlock:
    """What one log block says: records by key as stored, or keys that were deleted.

    `merges` names the instants whose blocks a log compaction has merged into this one.
    """

    instant: str
    file: str
    hfile: HFileReader | None = None
    schema_json: str = ""
    deleted: frozenset[str] = frozenset()
    merges: tuple[str, ...] | None = None

    def stored(self, key: str) -> bytes | None:
        """The value stored under `key` in this block."""
        return None if self.hfile is None else self.hfile.get(key.encode())

    def keys(self) -> Iterator[str]:
        """The keys that have a value in this block."""
        items = () if self.hfile is None else self.hfile.items()
        return (_text(key, file=self.file) for key, _ in items)


class MetadataFileGroup:
    """Records of one file group: a base file and the blocks of its logs, later ones merged over earlier ones."""

    def __init__(self, base: HFileReader | None, blocks: Sequence[MetadataBlock], *, base_file: str = "") -> None:
        self._base = base
        self._base_file = base_file
        self._base_schema = "" if base is None else _schema_of(base, base_file)
        self._blocks = effective_blocks(blocks)

    def find(self, key: str) -> MetadataRecord | None:
        """The merged record of `key`."""
        record: MetadataRecord | None = None
        value = None if self._base is None else self._base.get(key.encode())
        if value is not None:
            record = decode_metadata_record(key, value, schema_json=self._base_schema, file=self._base_file)
        for block in self._blocks:
            if key in block.deleted:
                record = None
            value = block.stored(key)
            if value is not None:
                newer = decode_metadata_record(key, value, schema_json=block.schema_json, file=block.file)
                record = newer if record is None else merge_metadata_records(record, newer)
        return record

    def first_of_each_file(self) -> Iterator[tuple[str, MetadataRecord]]:
        """The name of each base and log file that has records, with one of them: by it their kind is known."""
        hfiles = [(self._base_file, self._base_schema, self._base)]
        hfiles += [(block.file, block.schema_json, block.hfile) for block in self._blocks]
        for file, schema_json, hfile in hfiles:
            for key, value in () if hfile is None else itertools.islice(hfile.items(), 1):
                record = decode_metadata_record(_text(key, file=file), value, schema_json=schema_json, file=file)
                yield file, record

    def records(self) -> Iterator[MetadataRecord]:
        """All merged records by key."""
        keys = {_text(key, file=self._base_file) for key, _ in self._base.items()} if self._base is not None else set()
        keys.update(itertools.chain.from_iterable(block.keys() for block in self._blocks))
        for key in sorted(keys, key=str.encode):
            record = self.find(key)
            if record is not None:
                yield record

    def compacted(self) -> Iterator[tuple[bytes, bytes]]:
        """The entries of a base file that takes the place of all of this, by key.

        What no log touches is copied as it is stored. Deletions go: there is nothing below the new base file that they
        could hide, and what is written on top of it merges with nothing as it would with them.
        """
        entries: dict[bytes, bytes] = {}
        touched = {key.encode() for block in self._blocks for key in (*block.keys(), *block.deleted)}
        if self._base is not None:
            copies = has_metadata_layout(self._base_schema)
            for key, value in self._base.items():
                if not copies:
                    touched.add(key)
                elif key not in touched:
                    entries[key] = value
        for key in touched:
            record = self.find(_text(key, file=self._base_file))
            live = None if record is None else _without_deletions(record)
            if live is not None:
                entries[key] = encode_metadata_record(live)
        return iter(sorted(entries.items()))


def decode_metadata_base_name(name: str) -> MetadataBaseName | None:
    """The parts of `<file id>_<write token>_<instant>.hfile`, or None for any other name."""
    match = _BASE_NAME.fullmatch(name)
    return MetadataBaseName(*match.groups()) if match else None


def encode_metadata_base(entries: Iterable[tuple[bytes, bytes]], *, created_ms: int = 0) -> bytes:
    """A base file of `entries`, as `MetadataFileGroup.compacted` gives them."""
    bounds = (_MIN_KEY_INFO, _MAX_KEY_INFO)
    return encode_hfile(entries, schema_json=metadata_schema_json(), created_ms=created_ms, bounds_info=bounds)


def encode_metadata_base_name(name: MetadataBaseName) -> str:
    """`<file id>_<write token>_<instant>.hfile`."""
    return f"{name.file_id}_{name.write_token}_{name.instant}.hfile"


def encode_metadata_log(records: Iterable[MetadataRecord], *, instant: str, created_ms: int = 0) -> bytes:
    """A log file with one HFile block of `records`, no two of one key, written by the delta commit `instant`."""
    entries = sorted((record.key.encode(), encode_metadata_record(record)) for record in records)
    content = encode_hfile(entries, schema_json=metadata_schema_json(), created_ms=created_ms)
    header = {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: metadata_schema_json()}
    return encode_block(BlockType.HFILE_DATA, header, content)


def decode_metadata_log(data: bytes, *, file: str) -> list[MetadataBlock]:
    """The blocks of a log file in order, without those that a later rollback block took back."""
    if not data:
        raise CorruptTableError(file=file, reason="the log file is empty")
    blocks: list[MetadataBlock] = []
    for block in decode_blocks(data, file=file):
        instant = block.header.get(HeaderKey.INSTANT_TIME)
        if block.type is BlockType.CORRUPT or instant is None:
            raise CorruptTableError(file=file, reason=f"the log block at byte {block.offset} is damaged")
        if block.type is BlockType.COMMAND:
            target = block.header.get(HeaderKey.TARGET_INSTANT_TIME)
            blocks = [earlier for earlier in blocks if earlier.instant != target]
        else:
            blocks.append(_decode_block(block, instant, file=file))
    return blocks


def _decode_block(block: LogBlock, instant: str, *, file: str) -> MetadataBlock:
    merges = compacted_instants(block)
    if block.type is BlockType.DELETE:
        keys = decode_deletes(block, file=file).column("key").to_pylist()
        return MetadataBlock(instant, file, deleted=frozenset(keys), merges=merges)
    schema_json = block.header.get(HeaderKey.SCHEMA)
    if schema_json is None:
        raise CorruptTableError(file=file, reason=f"the log block at byte {block.offset} names no schema")
    if block.type is BlockType.HFILE_DATA:
        hfile = HFileReader(memoryview(block.content), file=file)
        return MetadataBlock(instant, file, hfile=hfile, schema_json=schema_json, merges=merges)
    raise UnsupportedFeatureError(f"{file}: log blocks of type {block.type.name} are not read in a metadata table")


def effective_blocks(blocks: Sequence[MetadataBlock]) -> list[MetadataBlock]:
    """The blocks that count, in order, where log compactions have merged some."""
    by_instant: dict[str, list[MetadataBlock]] = {}
    for block in blocks:
        by_instant.setdefault(block.instant, []).append(block)
    merged = {instant: group[0].merges for instant, group in by_instant.items()}
    return [block for instant in effective_instants(merged) for block in by_instant[instant]]


def _without_deletions(record: MetadataRecord) -> MetadataRecord | None:
    """What is left of a merged record where nothing lies below it; None if that is nothing."""
    match record:
        case PartitionListRecord():
            # Java looks for this record even in a table without partitions.
            return PartitionListRecord({path: there for path, there in record.partitions.items() if there})
        case FileListRecord():
            files = {name: entry for name, entry in record.files.items() if not entry.is_deleted}
            return FileListRecord(record.partition, files) if files else None
        case ColumnStatsRecord() | BloomFilterRecord():
            return None if record.is_deleted else record


def _schema_of(base: HFileReader, file: str) -> str:
    schema = base.info.get(_SCHEMA_INFO)
    if schema is None:
        raise CorruptTableError(file=file, reason="the HFile names no schema")
    return _text(schema, file=file)


def _text(data: bytes, *, file: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptTableError(file=file, reason="a key or schema of the HFile is not text") from error
