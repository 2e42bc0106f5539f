"""A timeline that is empty beside data files was lost, or hoodie.properties names the wrong directory.

A write is on the timeline before its first file is there, so that files beside an empty timeline were committed.
A reader would see no rows, and a writer would begin a new history beside them: both are refused. Only an empty timeline
is looked at, and the search ends with the first data file, so that it costs nothing but at the beginning of a table.
"""

from __future__ import annotations

from collections.abc import Iterable

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError
from tablekeeper.model import join_path
from tablekeeper.snapshot.slices import decode_partition_files
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline, load_timeline

__all__ = ["find_data_file", "refuse_lost_timeline"]


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
