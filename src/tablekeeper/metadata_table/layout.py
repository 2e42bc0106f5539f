"""Where the metadata table is, its timeline, and which of its files count.

The metadata table is a merge-on-read table below `.hoodie/metadata` with a timeline of its own. Each
action of the data table has a delta commit there with the same requested time, completed before the
action itself. So a log file counts if its delta commit is completed on the metadata table's timeline
and the instant of that time is not pending on the data table's: an action that died between the two
completions has no effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tablekeeper.config.table_config import TableConfig
from tablekeeper.format.data_files import LogName, decode_log_name
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.metadata_log import MetadataFileGroup, decode_metadata_base_name, decode_metadata_log
from tablekeeper.model import CompletionTime, RequestedTime, join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage import FileInfo, Storage
from tablekeeper.timeline.load import load_timeline
from tablekeeper.timeline.timeline import Timeline

__all__ = [
    "BLOOM_FILTERS",
    "COLUMN_STATS",
    "FILES",
    "METADATA_DIRECTORY",
    "PARTITION_STATS",
    "MetadataSlice",
    "load_metadata_file_group",
    "load_metadata_files",
    "load_metadata_partitions",
    "load_metadata_timeline",
    "metadata_config",
    "plan_metadata_slices",
]

ArchivedCompletion = Callable[[RequestedTime], CompletionTime | None]

METADATA_DIRECTORY = ".hoodie/metadata"
FILES = "files"
COLUMN_STATS = "column_stats"
PARTITION_STATS = "partition_stats"
BLOOM_FILTERS = "bloom_filters"


@dataclass(frozen=True, slots=True)
class MetadataSlice:
    """The files of one file group that count now: a base file and the logs on top of it, in merge order."""

    file_id: str
    base: FileInfo | None
    logs: tuple[FileInfo, ...]
    base_instant: RequestedTime | None = None


def metadata_config(config: TableConfig) -> TableConfig:
    """The configuration of the data table with the timeline of its metadata table."""
    return replace(
        config,
        name=f"{config.name}_metadata",
        timeline_directory=f"{METADATA_DIRECTORY}/.hoodie/timeline",
        history_directory=f"{METADATA_DIRECTORY}/.hoodie/timeline/history",
    )


def load_metadata_timeline(storage: Storage, config: TableConfig) -> Timeline:
    """The active timeline of the metadata table of the table that `config` describes."""
    return load_timeline(storage, metadata_config(config))


def plan_metadata_slices(
    files: Iterable[FileInfo],
    *,
    metadata_timeline: Timeline,
    data_timeline: Timeline,
    archived_completion: ArchivedCompletion = lambda _: None,
) -> tuple[MetadataSlice, ...]:
    """The newest slice of each file group among the `files` of one metadata partition, by file id.

    `archived_completion` is asked for logs older than the active timeline that lie under a newer base file.
    """
    completions = _Completions(metadata_timeline, archived_completion)
    groups: dict[str, _Candidates] = defaultdict(_Candidates)
    for file in files:
        base = decode_metadata_base_name(file.name)
        if base is not None and metadata_timeline.is_completed(RequestedTime(base.instant)):
            groups[base.file_id].bases.append((RequestedTime(base.instant), file))
            continue
        log = decode_log_name(file.name)
        if log is None:
            continue
        instant = RequestedTime(log.instant)
        if metadata_timeline.is_completed(instant) and instant not in data_timeline.unfinished:
            groups[log.file_id].logs.append((log, file))
    return tuple(groups[file_id].newest(file_id, completions) for file_id in sorted(groups))


def load_metadata_partitions(storage: Storage) -> list[str]:
    """The partitions that have a directory, whether they are still in use or not."""
    return [name for name in storage.list_directories(METADATA_DIRECTORY) if not name.startswith(".")]


def load_metadata_files(storage: Storage, partitions: Sequence[str], *, runtime: Runtime) -> dict[str, list[FileInfo]]:
    """The files of metadata partitions, by partition."""
    directories = [join_path(METADATA_DIRECTORY, partition) for partition in partitions]
    return dict(zip(partitions, runtime.threads.map(storage.list_files, directories), strict=True))


def load_metadata_file_group(storage: Storage, slice_: MetadataSlice, *, runtime: Runtime) -> MetadataFileGroup:
    """The records of one slice: one read for each of its files."""
    paths = [file.path for file in (slice_.base, *slice_.logs) if file is not None]
    contents = dict(zip(paths, runtime.threads.map(storage.read, paths), strict=True))
    base = None
    if slice_.base is not None:
        base = HFileReader(contents[slice_.base.path], file=slice_.base.path)
    blocks = [block for log in slice_.logs for block in decode_metadata_log(contents[log.path], file=log.path)]
    return MetadataFileGroup(base, blocks, base_file=join_path(slice_.base.path) if slice_.base else "")


@dataclass(frozen=True, slots=True)
class _Completions:
    """When delta commits completed, on the active timeline or in the history."""

    timeline: Timeline
    archived: ArchivedCompletion

    def is_on_top(self, log: LogName, base_instant: RequestedTime) -> bool:
        """A log belongs to the newest base file that was requested before the log's delta commit completed."""
        instant = RequestedTime(log.instant)
        if base_instant <= instant:
            return True
        completed_at = self.timeline.completion_of(instant) or self.archived(instant)
        return completed_at is not None and base_instant <= RequestedTime(completed_at.value)


@dataclass(slots=True)
class _Candidates:
    """Committed files of one file group."""

    bases: list[tuple[RequestedTime, FileInfo]] = field(default_factory=list)
    logs: list[tuple[LogName, FileInfo]] = field(default_factory=list)

    def newest(self, file_id: str, completions: _Completions) -> MetadataSlice:
        instant, base = max(self.bases, key=lambda entry: entry[0], default=(None, None))
        kept = [entry for entry in self.logs if instant is None or completions.is_on_top(entry[0], instant)]
        return MetadataSlice(file_id, base, _in_merge_order(kept), instant)


def _in_merge_order(logs: Sequence[tuple[LogName, FileInfo]]) -> tuple[FileInfo, ...]:
    def order(entry: tuple[LogName, FileInfo]) -> tuple[str, int, list[int]]:
        name = entry[0]
        return name.instant, name.version, [int(part) for part in name.write_token.split("-") if part]

    return tuple(file for _, file in sorted(logs, key=order))
