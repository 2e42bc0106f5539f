"""What a write changes in the indexes of the metadata table. Each index has its own module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.engine.protocol import Engine
from tablekeeper.format.key_shards import KeyShards
from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.format.secondary_index import SECONDARY_INDEX_PREFIX
from tablekeeper.metadata_table.index_changes import IndexLog, IndexShards
from tablekeeper.metadata_table.layout import BLOOM_FILTERS
from tablekeeper.model import CommitMetadata
from tablekeeper.timeline import Timeline
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.filter_changes import filter_logs
from tablekeeper.write.key_changes import key_logs
from tablekeeper.write.value_changes import value_logs

__all__ = ["WrittenIndexes"]


@dataclass
class WrittenIndexes:
    """What was written, for all indexes. `is_tagged`: the keys were looked up in the record index."""

    environment: TableEnvironment
    engine: Engine
    context: WriteContext
    at_start: Timeline
    metadata: CommitMetadata
    is_tagged: bool
    _known: dict[IndexShards | KeyShards, Mapping[str, IndexLog]] = field(default_factory=dict)

    def logs(self, index: IndexShards) -> Mapping[str, IndexLog]:
        """The log of each shard that changes, by file id."""
        if index.name == RECORD_INDEX:
            return self._logs_of_keys(index)
        if index not in self._known:
            logs = self._logs_by_number(index) if index.file_ids else {}
            self._known[index] = {index.file_ids[shard]: log for shard, log in logs.items()}
        return self._known[index]

    def _logs_of_keys(self, index: IndexShards) -> Mapping[str, IndexLog]:
        # Of an index by partitions only the shards of those that are written matter, whatever others write.
        shards = KeyShards(index.file_ids, index.by_partition).of_partitions(
            self.metadata.partitions | {group.partition for group in self.metadata.replaced_groups},
            least=self.context.settings.new_partition_shards,
        )
        if shards not in self._known:
            logs: Mapping[int, IndexLog] = {}
            if shards.file_ids:
                logs = key_logs(
                    self.environment,
                    self.engine,
                    self.context,
                    self.metadata,
                    at_start=self.at_start,
                    shards=shards,
                    is_tagged=self.is_tagged,
                )
            self._known[shards] = {shards.file_ids[shard]: log for shard, log in logs.items()}
        return self._known[shards]

    def _logs_by_number(self, index: IndexShards) -> Mapping[int, IndexLog]:
        shards = len(index.file_ids)
        if index.name == BLOOM_FILTERS:
            return filter_logs(self.engine, self.context, self.metadata, shards=shards)
        if index.name.startswith(SECONDARY_INDEX_PREFIX):
            return value_logs(
                self.environment,
                self.engine,
                self.context,
                self.metadata,
                at_start=self.at_start,
                index=index,
            )
        raise AssertionError(f"the changes of {index.name} are not told")
