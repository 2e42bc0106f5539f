"""Whether the files of the metadata table exist: if one is missing, files of the table vanish from listings.

Every action of the table writes to the partition `files`, so only for a delta commit without a file there its metadata
is read; a complete listing costs no extra read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import decode_log_name
from tablekeeper.format.metadata_log import decode_metadata_base_name
from tablekeeper.metadata_table.compaction_plan import last_compaction, uncompacted_commits
from tablekeeper.metadata_table.layout import FILES, METADATA_DIRECTORY, metadata_config
from tablekeeper.model import Instant, RequestedTime, join_path
from tablekeeper.storage import FileInfo, Storage
from tablekeeper.timeline import Timeline, load_written_paths

__all__ = ["refuse_lost_commits", "refuse_lost_listing"]

_BEGINNINGS = "00000000000000"
"""The prefix of the times at which Java creates the partitions of a metadata table, `files` at the first."""


def refuse_lost_listing(
    storage: Storage, config: TableConfig, files: Iterable[FileInfo], *, metadata_timeline: Timeline, data: Timeline
) -> None:
    """Raise `CorruptTableError` if a file of the partition `files` that counts is not among `files`."""
    listed = list(files)
    there = {instant for file in listed if (instant := _instant_of(file)) is not None}
    begun = last_compaction(metadata_timeline)
    counting = [i for i in metadata_timeline.completed_writes if i.requested_at == begun]
    counting += [i for i in uncompacted_commits(metadata_timeline) if i.requested_at not in data.unfinished]
    without = [i for i in counting if i.requested_at not in there and not _makes_another_partition(i)]
    refuse_lost_commits(storage, config, without, {FILES: listed})


def refuse_lost_commits(
    storage: Storage,
    config: TableConfig,
    commits: Iterable[Instant],
    listings: Mapping[str, Sequence[FileInfo]],
) -> None:
    """Raise `CorruptTableError` if `listings`, by metadata partition, lack a file that one of `commits` wrote there.

    A partition that was dropped and built again begins with its newest build.
    """
    there = {file.path for files in listings.values() for file in files}
    own = metadata_config(config)
    written: dict[str, set[str]] = {}
    for commit in sorted(commits, key=lambda each: str(each.completed_at)):
        paths = load_written_paths(storage, own, commit)
        if _makes_another_partition(commit):
            written = {each: written[each] for each in written.keys() - map(_partition_of, paths)}
        for path in paths:
            written.setdefault(_partition_of(path), set()).add(join_path(METADATA_DIRECTORY, path))
    lost = set().union(*(written.get(partition, set()) for partition in listings)) - there
    if lost:
        raise CorruptTableError(file=min(lost), reason="it is gone, and a completed commit wrote it")


def _makes_another_partition(commit: Instant) -> bool:
    time = commit.requested_at.value
    return time.startswith(_BEGINNINGS) and time.strip("0") != ""


def _partition_of(path: str) -> str:
    return path.partition("/")[0]


def _instant_of(file: FileInfo) -> RequestedTime | None:
    name = decode_metadata_base_name(file.name) or decode_log_name(file.name)
    return RequestedTime(name.instant) if name is not None else None
