"""File slices as Java forms them, from a timeline and the files of partitions; and the listing of these files.

Version 8 on: a completed log file belongs to the base file with the greatest instant that is not
after the log's completion time. A delta commit that began before a compaction and completed after
it is therefore kept on top of the compacted file. Version 6 has the base instant in the log's name.

A pending compaction opens an empty slice in Java; its readers merge that slice with the one before,
which is what ignoring the pending compaction gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tablekeeper.format.data_files import PARTITION_METADATA_NAME, decode_base_name, decode_log_name
from tablekeeper.model import BaseFile, CompletionTime, FileGroupId, FileSlice, LogFile, RequestedTime, join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline

__all__ = [
    "ArchivedCompletion",
    "Files",
    "Listed",
    "PartitionFiles",
    "SliceRules",
    "decode_partition_files",
    "load_all_files_by_listing",
    "load_files_by_listing",
    "load_files_of_instant",
    "load_partitions_by_listing",
    "plan_slices",
]

_LISTING_WIDTH = 16

Files = list[tuple[str, int]]
"""(name, size) of each file in a directory."""

_Answer = tuple[Files, list[str] | None]

ArchivedCompletion = Callable[[RequestedTime], CompletionTime | None]


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The data files of one partition, whether committed or not."""

    bases: tuple[BaseFile, ...]
    logs: tuple[LogFile, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """The files of every partition, and of directories below the table that hold files and are no partitions."""

    partitions: dict[str, Files]
    unmarked: dict[str, Files]


@dataclass(frozen=True)
class SliceRules:
    """The rules for visible files: the timeline, the format version and the requested moment.

    `archived_completion` is asked only for logs older than the active timeline that lie under a newer base
    file. `replaced` maps hidden file groups to the completion of the action that hid them. `with_cdc` also puts change
    data capture files, which no reader merges, into the slices that they belong to.
    """

    timeline: Timeline
    version: int
    as_of: RequestedTime | None = None
    replaced: Mapping[FileGroupId, RequestedTime] = field(default_factory=dict)
    archived_completion: ArchivedCompletion = lambda _: None
    with_cdc: bool = False

    def is_visible(self, instant: RequestedTime) -> bool:
        return self.timeline.is_completed(instant) and (self.as_of is None or instant <= self.as_of)

    def is_replaced(self, group: FileGroupId) -> bool:
        replaced_at = self.replaced.get(group)
        return replaced_at is not None and (self.as_of is None or replaced_at <= self.as_of)


def decode_partition_files(partition: str, files: Iterable[tuple[str, int]]) -> PartitionFiles:
    """Sort the (name, size) pairs of a partition directory into base and log files; others are ignored."""
    bases: list[BaseFile] = []
    logs: list[LogFile] = []
    for name, size in files:
        base = decode_base_name(name)
        if base is not None:
            group = FileGroupId(partition, base.file_id)
            bases.append(BaseFile(group, RequestedTime(base.instant), base.write_token, name, size))
            continue
        log = decode_log_name(name)
        if log is not None:
            group = FileGroupId(partition, log.file_id)
            instant = RequestedTime(log.instant)
            logs.append(LogFile(group, instant, log.version, log.write_token, name, size, log.is_cdc))
    return PartitionFiles(tuple(bases), tuple(logs))


def plan_slices(files: PartitionFiles, rules: SliceRules) -> dict[FileGroupId, tuple[FileSlice, ...]]:
    """All visible slices of each file group that is not replaced, newest first."""
    bases: dict[FileGroupId, dict[RequestedTime, BaseFile]] = defaultdict(dict)
    for base in sorted(files.bases, key=lambda b: b.write_token):
        if rules.is_visible(base.instant):
            bases[base.group][base.instant] = base
    logs: dict[FileGroupId, list[LogFile]] = defaultdict(list)
    for log in files.logs:
        if (rules.with_cdc or not log.is_cdc) and (rules.version < 8 or rules.is_visible(log.instant)):
            logs[log.group].append(log)
    groups = {}
    # Compared as tuples: the groups' own comparison takes most of the time that a hundred thousand of them take.
    for group in sorted(bases.keys() | logs.keys(), key=lambda each: (each.partition, each.file_id)):
        if not rules.is_replaced(group):
            slices = _slices_of_group(group, bases.get(group, {}), logs.get(group, []), rules)
            if slices:
                groups[group] = slices
    return groups


def _slices_of_group(
    group: FileGroupId, bases: Mapping[RequestedTime, BaseFile], logs: list[LogFile], rules: SliceRules
) -> tuple[FileSlice, ...]:
    base_instants = sorted(bases, reverse=True)
    members: dict[RequestedTime | None, list[LogFile]] = defaultdict(list)
    for log in logs:
        members[_base_of_log(log, base_instants, rules)].append(log)
    slices = []
    for instant in base_instants:
        ordered = tuple(sorted(members.get(instant, ()), key=lambda entry: entry.order))
        slices.append(FileSlice(group, instant, bases[instant], ordered))
    orphans = sorted(members.get(None, ()), key=lambda entry: entry.order)
    if orphans:
        # Logs without a base file below them: the oldest slice, named after its first log.
        slices.append(FileSlice(group, orphans[0].instant, None, tuple(orphans)))
    return tuple(slices)


def _base_of_log(log: LogFile, base_instants: list[RequestedTime], rules: SliceRules) -> RequestedTime | None:
    """The instant of the base file that the log lies on, None if there is none below it."""
    if rules.version < 8:
        # The name holds the base instant. A base that is not there yet is a pending compaction's.
        return next((b for b in base_instants if b <= log.instant), None)
    if base_instants and base_instants[0] <= log.instant:
        return base_instants[0]
    completed_at = rules.timeline.completion_of(log.instant)
    if completed_at is None and base_instants:
        completed_at = rules.archived_completion(log.instant)
    # An archived log with an unknown completion time counts as completed immediately.
    limit = completed_at.value if completed_at is not None else log.instant.value
    # A base instant is a requested time and the limit a completion time: comparing the two is the rule itself.
    return next((b for b in base_instants if b <= RequestedTime(limit)), None)


def load_partitions_by_listing(storage: Storage, *, runtime: Runtime) -> list[str]:
    """Every directory with a partition metadata file, sorted."""
    return sorted(load_all_files_by_listing(storage, runtime=runtime).partitions)


def load_all_files_by_listing(
    storage: Storage, *, runtime: Runtime, may_lead: Callable[[str], bool] = lambda _: True
) -> Listed:
    """The files of every partition, by partition path: one listing a directory, level by level.

    Directories that `may_lead` denies are not looked into.
    """
    found: dict[str, Files] = {}
    unmarked: dict[str, Files] = {}
    level = [""]
    while level:
        if level == [""]:
            answers = [_look_into_root(storage, runtime=runtime)]
        else:
            answers = runtime.threads.map(lambda d: _look_into(storage, d), level, width=_LISTING_WIDTH)
        following: list[str] = []
        for directory, (files, children) in zip(level, answers, strict=True):
            if children is None:
                found[directory] = files
            else:
                if files and directory:
                    unmarked[directory] = files
                paths = (join_path(directory, child) for child in children)
                following += [path for path in paths if may_lead(path)]
        level = following
    return Listed(dict(sorted(found.items())), dict(sorted(unmarked.items())))


def load_files_by_listing(storage: Storage, partitions: list[str], *, runtime: Runtime) -> dict[str, Files]:
    """The files of each of these partitions: one listing a partition."""
    listings = runtime.threads.map(storage.list_files, partitions, width=_LISTING_WIDTH)
    return {
        partition: [(file.name, file.size) for file in files]
        for partition, files in zip(partitions, listings, strict=True)
    }


def _look_into(storage: Storage, directory: str) -> _Answer:
    """The files of a directory, and the directories below one that is no partition."""
    files = [(file.name, file.size) for file in storage.list_files(directory)]
    return files, None if _is_partition(files) else storage.list_directories(directory)


def _look_into_root(storage: Storage, *, runtime: Runtime) -> _Answer:
    """The same for the table's own directory, which is hardly ever a partition when partitions are looked for."""
    infos, children = runtime.threads.together(lambda: storage.list_files(""), lambda: storage.list_directories(""))
    files = [(file.name, file.size) for file in infos]
    return files, None if _is_partition(files) else [child for child in children if child != ".hoodie"]


def _is_partition(files: Files) -> bool:
    return any(name.startswith(PARTITION_METADATA_NAME) for name, _ in files)


def load_files_of_instant(
    storage: Storage, partitions: list[str], instant: RequestedTime, *, runtime: Runtime
) -> frozenset[str]:
    """Paths of the data files in these partitions that have the instant in their names, committed or not."""
    found: set[str] = set()
    for partition, names in load_files_by_listing(storage, partitions, runtime=runtime).items():
        files = decode_partition_files(partition, names)
        found.update(base.path for base in files.bases if base.instant == instant)
        found.update(log.path for log in files.logs if log.instant == instant)
    return frozenset(found)
