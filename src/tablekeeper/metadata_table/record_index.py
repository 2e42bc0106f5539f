"""The record index in the metadata table, which knows the file group of each record key.

A compaction of the table changes nothing in it: no key moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hfile import HFileReader, RangeSource
from tablekeeper.format.metadata_log import MetadataBlock, decode_metadata_log
from tablekeeper.format.record_index import RECORD_INDEX, RecordIndexShard
from tablekeeper.format.secondary_index import SecondaryIndexShard
from tablekeeper.metadata_table.layout import (
    METADATA_DIRECTORY,
    MetadataSlice,
    load_metadata_timeline,
    metadata_config,
    plan_metadata_slices,
)
from tablekeeper.model import join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline
from tablekeeper.timeline.history import archived_completions

__all__ = ["load_record_index", "load_record_index_shard", "load_secondary_index_shard", "open_record_index_shard"]

# A thread costs as much as a few reads of a local file.
_READS_IN_A_ROW = 8
_DIRECTORY = join_path(METADATA_DIRECTORY, RECORD_INDEX)


def load_record_index(
    storage: Storage, config: TableConfig, timeline: Timeline, *, by_partition: bool = False
) -> tuple[MetadataSlice, ...]:
    """The slices of the shards, by number. `timeline` is the table's, loaded before.

    An index `by_partition` of a table without rows has none.
    """
    slices = plan_metadata_slices(
        storage.list_files(_DIRECTORY),
        metadata_timeline=load_metadata_timeline(storage, config),
        data_timeline=timeline,
        archived_completion=archived_completions(storage, metadata_config(config)),
    )
    if not slices and not by_partition:
        raise CorruptTableError(file=_DIRECTORY, reason="the record index has no file group here, though it is in use")
    return tuple(sorted(slices, key=lambda each: (len(each.file_id), each.file_id)))


def open_record_index_shard(storage: Storage, slice_: MetadataSlice, *, runtime: Runtime) -> RecordIndexShard:
    """A shard in which to look up a few keys: only the blocks of its base file that can contain them are read."""
    base = None
    if slice_.base is not None:
        path = slice_.base.path

        def read(start: int, length: int) -> bytes:
            return storage.read_range(path, start=start, length=length)

        def read_share(share: Sequence[tuple[int, int]]) -> list[bytes]:
            return [read(*each) for each in share]

        def read_many(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
            shares = [ranges[n : n + _READS_IN_A_ROW] for n in range(0, len(ranges), _READS_IN_A_ROW)]
            return [data for found in runtime.threads.map(read_share, shares) for data in found]

        base = HFileReader(RangeSource(size=slice_.base.size, read=read, ranges=read_many), file=path)
    blocks = _blocks(storage, slice_, runtime=runtime)
    return RecordIndexShard(base, blocks, base_file=_base_file(slice_))


def load_record_index_shard(storage: Storage, slice_: MetadataSlice, *, runtime: Runtime) -> RecordIndexShard:
    """A shard, to read all its entries."""
    base = _whole_base(storage, slice_)
    blocks, base_file = _blocks(storage, slice_, runtime=runtime), _base_file(slice_)
    return RecordIndexShard(base, blocks, base_file=base_file)


def load_secondary_index_shard(storage: Storage, slice_: MetadataSlice, *, runtime: Runtime) -> SecondaryIndexShard:
    """A shard of a secondary index, to read all its entries."""
    base = _whole_base(storage, slice_)
    blocks, base_file = _blocks(storage, slice_, runtime=runtime), _base_file(slice_)
    return SecondaryIndexShard(base, blocks, base_file=base_file)


def _whole_base(storage: Storage, slice_: MetadataSlice) -> HFileReader | None:
    return None if slice_.base is None else HFileReader(storage.read(slice_.base.path), file=slice_.base.path)


def _base_file(slice_: MetadataSlice) -> str:
    return slice_.base.path if slice_.base is not None else ""


def _blocks(storage: Storage, slice_: MetadataSlice, *, runtime: Runtime) -> list[MetadataBlock]:
    paths = [log.path for log in slice_.logs]
    contents = runtime.threads.map(partial(_read, storage), paths)
    return [block for path, data in zip(paths, contents, strict=True) for block in decode_metadata_log(data, file=path)]


def _read(storage: Storage, path: str) -> bytes:
    return storage.read(path)
