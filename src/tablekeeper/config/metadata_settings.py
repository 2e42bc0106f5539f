"""Settings of the metadata table: whether it is kept at all, when it is compacted here, and its record index."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tablekeeper.config.keys import METADATA_ENABLE
from tablekeeper.config.registry import Setting, Settings, field_of, setting
from tablekeeper.errors import InvalidRequestError

__all__ = ["PARTITION_SHARDS", "MetadataSettings", "RecordIndexSettings"]

PARTITION_SHARDS = Setting(
    "hoodie.metadata.record.level.index.min.filegroup.count",
    1,
    "File groups that a new partition gets in a record index by partitions; the fewest when such an index is built.",
    older="hoodie.metadata.partitioned.record.index.min.filegroup.count",
    least=1,
)

_ENTRY_BYTES = 48
"""What Java reckons for an entry of the record index."""


@dataclass(frozen=True, slots=True)
class MetadataSettings(Settings):
    """`compact_after`: delta commits since the last compaction that make the next one due."""

    compact_after: int = setting(
        "hoodie.metadata.compact.max.delta.commits",
        10,
        "Delta commits of the metadata table after which a clean or an archive compacts it, as Java's writes do.",
        least=1,
    )
    compacts: bool = setting(
        "tablekeeper.metadata.compact",
        True,
        "Compact the metadata table and delete its old files; false leaves that to Java.",
    )
    keeps_table: bool = setting(METADATA_ENABLE, True, "Keep the metadata table in step; false switches it off.")

    @property
    def is_enabled(self) -> bool:
        """Whether it is compacted here. Who switches the metadata table off has none."""
        return self.compacts and self.keeps_table


@dataclass(frozen=True, slots=True)
class RecordIndexSettings(Settings):
    """Whether a write builds a record index where there is none, and how many shards a new one gets."""

    is_wanted: bool = setting(
        "hoodie.metadata.global.record.level.index.enable",
        False,
        "Build a record index of the whole table with the next write, if there is none.",
        older="hoodie.metadata.record.index.enable",
    )
    least_shards: int = setting(
        "hoodie.metadata.global.record.level.index.min.filegroup.count",
        10,
        "Fewest file groups of a new record index.",
        older="hoodie.metadata.record.index.min.filegroup.count",
        least=1,
    )
    most_shards: int = setting(
        "hoodie.metadata.global.record.level.index.max.filegroup.count",
        10_000,
        "Most file groups of a new record index.",
        older="hoodie.metadata.record.index.max.filegroup.count",
        least=1,
    )
    growth: float = setting(
        "hoodie.metadata.record.index.growth.factor",
        2.0,
        "How many times the rows of now a new record index is made for.",
    )
    shard_bytes: int = setting(
        "hoodie.metadata.record.index.max.filegroup.size",
        1_073_741_824,
        "Bytes of a file group for which a new record index is made.",
        least=1,
    )
    is_wanted_by_partition: bool = setting(
        "hoodie.metadata.record.level.index.enable",
        False,
        "Build a record index by partitions with the next write, if there is no record index: a key is unique in its "
        "partition.",
    )
    least_partition_shards: int = field_of(PARTITION_SHARDS)
    most_partition_shards: int = setting(
        "hoodie.metadata.record.level.index.max.filegroup.count",
        10,
        "Most file groups of a partition when a record index by partitions is built.",
        older="hoodie.metadata.partitioned.record.index.max.filegroup.count",
        least=1,
    )

    def shards(self, rows: int, *, by_partition: bool = False) -> int:
        """The number of shards for a table, or for a partition of it, of so many rows: Java's rule."""
        least, most = self.least_shards, self.most_shards
        if by_partition:
            least, most = self.least_partition_shards, self.most_partition_shards
        wanted = math.ceil(rows * self.growth) // max(1, self.shard_bytes // _ENTRY_BYTES)
        return max(1, least, min(most, wanted))

    def _check(self) -> None:
        if self.is_wanted and self.is_wanted_by_partition:
            raise InvalidRequestError(
                "a table has one record index, of the whole table or by partitions: set only one of "
                "hoodie.metadata.global.record.level.index.enable and hoodie.metadata.record.level.index.enable."
            )
