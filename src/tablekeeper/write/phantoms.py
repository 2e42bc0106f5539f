"""Phantoms: rows of concurrent commits that a write should have seen (see `txn/concurrent_commits.py`).

- An upsert or delete looked its keys up when it began. It would have updated or deleted a key
  that was inserted since; if both committed, the table would have the key twice, or keep it despite its deletion.
- An overwrite or deletion of partitions hides the file groups that it found. One that appeared since would stay.

An insert has no phantoms: it does not look keys up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tablekeeper.engine.protocol import Engine
from tablekeeper.model import CommitMetadata, CompletionTime, FileGroupId, FileSlice, RequestedTime, WriteStat
from tablekeeper.snapshot.slices import decode_partition_files
from tablekeeper.timeline import Timeline
from tablekeeper.write.context import WriteContext
from tablekeeper.write.staging import StagedBatch
from tablekeeper.write.tagging import SliceKeys, TagTask, find_keys, plan_look_up

__all__ = ["PhantomFileGroups", "PhantomKeys", "base_ends"]

_NO_COMMIT = "null"


@dataclass(frozen=True)
class PhantomKeys:
    """For a write that looked up the keys of these staged rows.

    `base_ends` says when the base files that it searched became visible. A writer that began before that searched older
    ones, and may have updated a key that a compaction has since left out. If the index is global, a key is the same in
    every partition.
    """

    engine: Engine
    context: WriteContext
    staged: Mapping[str, Sequence[StagedBatch]]
    base_ends: Mapping[FileGroupId, CompletionTime] = field(default_factory=dict)
    is_global: bool = False

    def concerns(self, other: CommitMetadata) -> bool:
        return any(self._brings_keys(stat) for stat in other.stats)

    def find(self, other: CommitMetadata) -> Sequence[FileGroupId]:
        # This write did not touch these groups, so none of its keys was in them before: a key that is there now is new.
        slices = [_slice_of(stat) for stat in other.stats if self._brings_keys(stat)]
        tasks: list[TagTask] = []
        for partition, staged in self.staged.items():
            keys = [
                SliceKeys(number, each, each.logs)
                for number, each in enumerate(slices)
                if self.is_global or each.group.partition == partition
            ]
            if keys:
                tasks += plan_look_up(self.context, keys, list(enumerate(staged)), tasks=self.engine.parallelism)
        weights = [task.weight for task in tasks]
        tagged = self.engine.run(find_keys, tasks, label="look up keys of others", weights=weights)
        return sorted({slices[each.number].group for found in tagged for each in found.slices if each.found})

    def _brings_keys(self, stat: WriteStat) -> bool:
        if stat.group.partition not in self.staged and not self.is_global:
            return False
        is_new_group = stat.previous_commit == _NO_COMMIT and stat.writes > 0
        return stat.inserts > 0 or is_new_group or self._was_overtaken(stat)

    def _was_overtaken(self, stat: WriteStat) -> bool:
        if not stat.is_log or not stat.writes or stat.group not in self.base_ends:
            return False
        return _slice_of(stat).base_instant < RequestedTime(self.base_ends[stat.group].value)


def base_ends(timeline: Timeline, slices: Sequence[FileSlice]) -> dict[FileGroupId, CompletionTime]:
    """When the base files of slices became visible, for a comparison with writers that may have begun before.

    The archive keeps commits that completed while a write was running, so the base files of these are known.
    """
    bases = [each.base for each in slices if each.base is not None]
    ends = {base.group: timeline.completion_of(base.instant) for base in bases}
    return {group: end for group, end in ends.items() if end is not None}


@dataclass(frozen=True)
class PhantomFileGroups:
    """For a write that replaces all rows of these partitions; of all partitions if they are None."""

    partitions: Collection[str] | None

    def concerns(self, other: CommitMetadata) -> bool:
        return bool(self.find(other))

    def find(self, other: CommitMetadata) -> Sequence[FileGroupId]:
        groups = {stat.group for stat in other.stats}
        return sorted(g for g in groups if self.partitions is None or g.partition in self.partitions)


def _slice_of(stat: WriteStat) -> FileSlice:
    """A slice that consists of the file that was written."""
    files = decode_partition_files(stat.group.partition, [(stat.file_name, stat.size)])
    base = files.bases[0] if files.bases else None
    instant = base.instant if base is not None else RequestedTime(files.logs[0].instant.value)
    return FileSlice(stat.group, instant, base, files.logs)
