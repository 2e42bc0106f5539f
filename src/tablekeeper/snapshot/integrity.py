"""Checks whether the files of the newest slices exist and are complete, according to the commits that wrote them.

Slices are formed from the listed files together with the files that commits name. Only the newest slice of a file group
is compared: cleans keep it, so a file that is missing from it was lost and not cleaned. A log also names its base file,
whose commit may be archived.

If the timeline is empty although there are data files, it was lost, or hoodie.properties names the wrong directory: a
write is on the timeline before its first file exists, so these files were committed. A reader would see no rows, and a
writer would begin a new history: both are refused. Only an empty timeline is checked, and the search ends with the
first data file, so it costs something only at the beginning of a table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import decode_base_name
from tablekeeper.model import CommitMetadata, FileGroupId, FileSlice, join_path
from tablekeeper.snapshot.slices import SliceRules, decode_partition_files, plan_slices
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline, load_timeline
from tablekeeper.timeline.properties_file import PROPERTIES_FILE

__all__ = [
    "Damage",
    "committed_files",
    "files_of",
    "find_data_file",
    "plan_damage",
    "plan_whole_slices",
    "refuse_damage",
    "refuse_lost_timeline",
    "refuse_wrong_type",
]

Files = Mapping[str, Iterable[tuple[str, int]]]
"""(name, size) of the files of each partition."""


class Damage:
    """What can be wrong with a file that readers need."""

    LOST = "it is gone, and a completed commit wrote it"
    CUT = "it is shorter than its commit says: it was cut off"
    OTHER = "it is longer than its commit says: it is another file, or something was written into it"


def committed_files(commits: Iterable[CommitMetadata]) -> dict[str, int]:
    """Path and size of the files that commits wrote or built on; 0 where the size is not told."""
    named: dict[str, int] = {}
    for stat in (stat for commit in commits for stat in commit.stats):
        if stat.path and stat.size > 0:
            named[stat.path] = max(stat.size, named.get(stat.path, 0))
        if stat.base_file and decode_base_name(stat.base_file) is not None:
            named.setdefault(join_path(stat.group.partition, stat.base_file), 0)
    return named


def files_of(file_slice: FileSlice) -> dict[str, int]:
    """Path and size of the files of a slice."""
    base = {file_slice.base.path: file_slice.base.size} if file_slice.base is not None else {}
    return base | {log.path: log.size for log in file_slice.logs}


def plan_whole_slices(listed: Files, named: Mapping[str, int], rules: SliceRules) -> dict[FileGroupId, FileSlice]:
    """The newest slice of each file group as it is if nothing was lost."""
    by_partition: dict[str, dict[str, int]] = defaultdict(dict)
    for path, size in named.items():
        partition, _, name = path.rpartition("/")
        by_partition[partition][name] = size
    for partition, files in listed.items():
        by_partition[partition].update(files)
    newest: dict[FileGroupId, FileSlice] = {}
    for partition, sizes in by_partition.items():
        groups = plan_slices(decode_partition_files(partition, sizes.items()), rules)
        newest |= {group: slices[0] for group, slices in groups.items()}
    return newest


def plan_damage(
    listed: Files, named: Mapping[str, int], rules: SliceRules, *, groups: Container[FileGroupId] | None = None
) -> dict[str, str]:
    """What is wrong with files of the newest slices (of `groups`, all by default), by path."""
    there = {join_path(partition, name): size for partition, files in listed.items() for name, size in files}
    suspects = {path for path, size in named.items() if there.get(path, -1) < size or _is_too_long(path, size, there)}
    if not suspects:
        return {}
    damage: dict[str, str] = {}
    for group, file_slice in plan_whole_slices(listed, named, rules).items():
        if groups is None or group in groups:
            for path in suspects & files_of(file_slice).keys():
                damage[path] = _what(named[path], there.get(path))
    return dict(sorted(damage.items()))


def _is_too_long(path: str, size: int, there: Mapping[str, int]) -> bool:
    """Base files are written once; of logs nobody but their commit knows how long they may be."""
    return 0 < size < there.get(path, 0) and decode_base_name(path.rpartition("/")[2]) is not None


def _what(committed: int, there: int | None) -> str:
    if there is None:
        return Damage.LOST
    return Damage.CUT if there < committed else Damage.OTHER


def refuse_damage(damage: Mapping[str, str]) -> None:
    """Raise `CorruptTableError` about the first of the damaged files, if there are any."""
    for path, what in damage.items():
        others = f"; so are {len(damage) - 1} more files damaged" if len(damage) > 1 else ""
        raise CorruptTableError(file=path, reason=what + others)


def refuse_lost_timeline(
    storage: Storage, config: TableConfig, timeline: Timeline, *, known_file: str | None = None
) -> None:
    """Raise `CorruptTableError` if the timeline is empty and the table has data files. `known_file` is one of them."""
    if len(timeline):
        return
    found = known_file or _search(storage)
    # The first write may have begun after the timeline was loaded: ours, or that of somebody else.
    if found is not None and not len(load_timeline(storage, config)):
        reason = (
            f"no instant is there, although the table has data files, such as {found}. The directory was lost, or "
            "hoodie.properties names another one than the writers used: bring it back, or correct the name"
        )
        raise CorruptTableError(file=config.timeline_directory, reason=reason)


def refuse_wrong_type(config: TableConfig, newest: Iterable[FileSlice]) -> None:
    """Raise `CorruptTableError` if the table is said to be copy on write, and newest slices have logs.

    The next version of such a file would be written without them.
    """
    logs = () if config.is_mor else (log for file_slice in newest for log in file_slice.logs)
    for log in logs:
        raise CorruptTableError(
            file=PROPERTIES_FILE,
            reason=f"it says that the table is copy on write, and {log.path} is a log of a newest version. If the "
            "table is merge on read, correct the property; if it is to become copy on write, compact it first",
        )


def find_data_file(partition: str, files: Iterable[tuple[str, int]]) -> str | None:
    """The path of a base or log file among the (name, size) pairs of a directory."""
    here = decode_partition_files(partition, files)
    paths = [base.path for base in here.bases] + [log.path for log in here.logs]
    return paths[0] if paths else None


def _search(storage: Storage) -> str | None:
    directories = [""]
    while directories:
        directory = directories.pop()
        found = find_data_file(directory, ((file.name, file.size) for file in storage.list_files(directory)))
        if found is not None:
            return found
        children = storage.list_directories(directory)
        directories += [join_path(directory, child) for child in children if directory or child != ".hoodie"]
    return None
