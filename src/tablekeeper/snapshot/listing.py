"""Which partitions a table has and which files lie in them, by listing directories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.model import RequestedTime, join_path
from tablekeeper.runtime import Runtime
from tablekeeper.snapshot.slices import decode_partition_files
from tablekeeper.storage import Storage

__all__ = [
    "Files",
    "Listed",
    "load_all_files_by_listing",
    "load_files_by_listing",
    "load_files_of_instant",
    "load_partitions_by_listing",
]

_LISTING_WIDTH = 16

Files = list[tuple[str, int]]
"""(name, size) of each file in a directory."""

_Answer = tuple[Files, list[str] | None]


@dataclass(frozen=True, slots=True)
class Listed:
    """The files of every partition, and of directories below the table that hold files and are no partitions."""

    partitions: dict[str, Files]
    unmarked: dict[str, Files]


def load_partitions_by_listing(storage: Storage, *, runtime: Runtime) -> list[str]:
    """Every directory that holds a partition metadata file, sorted."""
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
