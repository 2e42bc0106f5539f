"""What a write changes in the bloom filters of the metadata table: it adds the filter of each base file's footer.

The name of a file determines its shard, so that a task makes the whole log of one shard. For a file that was written
without a filter (`hoodie.bloom.index.write=false`) one is built from its keys: Java's look-ups fail where an entry is
missing.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tablekeeper.engine.protocol import Engine
from tablekeeper.format.bloom import BloomFilterBuilder
from tablekeeper.format.data_files import decode_footer
from tablekeeper.format.metadata_keys import bloom_filter_key, metadata_file_group_index
from tablekeeper.format.metadata_log import encode_metadata_log
from tablekeeper.format.metadata_records import BloomFilterRecord, bloom_filter_record
from tablekeeper.metadata_table.index_changes import IndexLog
from tablekeeper.model import CommitMetadata, WriteStat
from tablekeeper.read.slice_rows import open_base_file, read_row_group
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.snapshot.slices import decode_partition_files
from tablekeeper.write.context import WriteContext
from tablekeeper.write.index_logs import EncodedLog, Parked

__all__ = ["filter_logs"]

_SIMPLE = "SIMPLE"


def filter_logs(
    engine: Engine, context: WriteContext, metadata: CommitMetadata, *, shards: int
) -> Mapping[int, IndexLog]:
    """The logs of the shards that get a filter of a base file that was written, by number."""
    by_shard: dict[int, list[WriteStat]] = defaultdict(list)
    for stat in metadata.stats:
        if not stat.is_log:
            key = bloom_filter_key(partition=stat.group.partition, file_name=stat.file_name)
            by_shard[metadata_file_group_index(key, groups=shards)].append(stat)
    tasks = [_FilterTask(context, tuple(stats)) for stats in by_shard.values()]
    encoded = engine.run(_encode, tasks, label="index bloom filters", weights=[_weight(task.stats) for task in tasks])
    return {shard: each.log(context.store) for shard, each in zip(by_shard, encoded, strict=True)}


@dataclass(frozen=True, slots=True)
class _FilterTask:
    context: WriteContext
    stats: tuple[WriteStat, ...]


def _weight(stats: Sequence[WriteStat]) -> float:
    """Footers are small compared with their files: about so many bytes are read."""
    return float(sum(min(stat.size, 1 << 19) for stat in stats))


def _encode(task: _FilterTask) -> EncodedLog:
    """Kernel: the log of one shard."""
    runtime = task.context.runtime
    records = runtime.threads.map(lambda stat: _record(task.context, stat), task.stats)
    log = encode_metadata_log(records, instant=task.context.instant, created_ms=runtime.clock.now_ms())
    return EncodedLog(len(records), Parked.of(task.context, log))


def _record(context: WriteContext, stat: WriteStat) -> BloomFilterRecord:
    (base,) = decode_partition_files(stat.group.partition, [(stat.file_name, stat.size)]).bases
    with open_base_file(context.store, base) as file:
        footer = decode_footer(file.metadata.metadata or {}, file=base.path)
        kind, content = footer.bloom_type or _SIMPLE, footer.bloom
        if content is None:
            rate = context.settings.bloom_false_positive_rate
            builder = BloomFilterBuilder(file.metadata.num_rows, rate)
            for number in range(file.num_row_groups):
                builder.add(read_row_group(file, number, columns=[KEY_COLUMN], file=base.path).column(0))
            kind, content = _SIMPLE, builder.encode()
    return bloom_filter_record(
        partition=stat.group.partition,
        file_name=stat.file_name,
        instant=context.instant,
        kind=kind,
        content=base64.b64encode(content),
    )
