"""Which partitions a table has and which files lie in them, by listing directories."""

from __future__ import annotations

from tablekeeper.format.partition_metadata import PARTITION_METADATA_NAME
from tablekeeper.model import join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage

__all__ = ["load_files_by_listing", "load_partitions_by_listing"]

_LISTING_WIDTH = 16


def load_partitions_by_listing(storage: Storage, *, runtime: Runtime) -> list[str]:
    """Every directory that holds a partition metadata file, level by level, sorted."""
    found: list[str] = []
    level = [""]
    while level:
        answers = runtime.threads.map(lambda d: _look_into(storage, d), level, width=_LISTING_WIDTH)
        following: list[str] = []
        for directory, (is_partition, children) in zip(level, answers, strict=True):
            if is_partition:
                found.append(directory)
            else:
                following += [join_path(directory, child) for child in children]
        level = following
    return sorted(found)


def load_files_by_listing(
    storage: Storage, partitions: list[str], *, runtime: Runtime
) -> dict[str, list[tuple[str, int]]]:
    """(name, size) of the files in each partition: one listing a partition."""
    listings = runtime.threads.map(storage.list_files, partitions, width=_LISTING_WIDTH)
    return {
        partition: [(file.name, file.size) for file in files]
        for partition, files in zip(partitions, listings, strict=True)
    }


def _look_into(storage: Storage, directory: str) -> tuple[bool, list[str]]:
    is_partition = any(file.name.startswith(PARTITION_METADATA_NAME) for file in storage.list_files(directory))
    if is_partition:
        return True, []
    children = storage.list_directories(directory)
    return False, [child for child in children if directory or child != ".hoodie"]
