"""A shard of an index in the metadata table whose entries stand for themselves: a later one replaces an earlier one.

So it is with the record index and with secondary indexes; a shard is a file group, an HFile with logs on top, whose
blocks have entries or take keys away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.hfile_writer import encode_hfile
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.log_deletes import encode_deletes
from tablekeeper.format.metadata_log import MetadataBlock, effective_blocks
from tablekeeper.format.metadata_records import metadata_schema_json

__all__ = ["IndexShard", "encode_empty_log", "encode_index_log"]


class IndexShard:
    """One shard: its base file and the blocks of its logs, later ones replacing what earlier ones say."""

    def __init__(self, base: HFileReader | None, blocks: Sequence[MetadataBlock], *, base_file: str = "") -> None:
        self._base = base
        self._base_file = base_file
        self._base_schema = "" if base is None else base.info.get(b"schema", b"").decode()
        self._blocks = effective_blocks(blocks)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """The entries of a base file that takes the place of all of this, by key. Holds those of the logs in memory."""
        changes: dict[bytes, bytes | None] = {}
        for block in self._blocks:
            changes.update((key.encode(), None) for key in block.deleted)
            if block.hfile is not None:
                changes.update(self._stored(block.hfile, schema_json=block.schema_json, file=block.file))
        later = sorted(changes.items())
        place = 0
        stored: Iterator[tuple[bytes, bytes | None]] = iter(())
        if self._base is not None:
            stored = self._stored(self._base, schema_json=self._base_schema, file=self._base_file)
        for key, value in stored:
            while place < len(later) and later[place][0] < key:
                yield from _live(*later[place])
                place += 1
            if place < len(later) and later[place][0] == key:
                yield from _live(*later[place])
                place += 1
            else:
                yield from _live(key, value)
        for change in later[place:]:
            yield from _live(*change)

    def _stored(self, hfile: HFileReader, *, schema_json: str, file: str) -> Iterator[tuple[bytes, bytes | None]]:
        """The entries of a file as they are stored in the layout of now; None for one that takes its key away."""
        raise NotImplementedError


def encode_index_log(
    entries: Iterable[tuple[bytes, bytes]], deleted: pa.Array, *, index: str, instant: str, created_ms: int
) -> bytes:
    """A log file of a shard of an index: `entries` by rising key, and keys to be forgotten, none of them an entry."""
    header = {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: metadata_schema_json()}
    content = encode_hfile(entries, schema_json=metadata_schema_json(), created_ms=created_ms)
    log = encode_block(BlockType.HFILE_DATA, header, content)
    if len(deleted):
        body = encode_deletes(deleted, partition=index, ordering=None)
        log += encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: instant}, body)
    return log


def encode_empty_log(*, instant: str) -> bytes:
    """A log file that says nothing, with which a file group of the metadata table begins."""
    body = encode_deletes(pa.array([], pa.string()), partition="", ordering=None)
    return encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: instant}, body)


def _live(key: bytes, value: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if value is not None:
        yield key, value
