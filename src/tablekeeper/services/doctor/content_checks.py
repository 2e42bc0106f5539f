"""What files say of themselves: partitions that lost the file that marks them, and logs that are not whole.

Log files of the newest slices are read to see whether every byte belongs to a block. A deep examination also decodes
all rows of logs and base files, and compares the checksums of pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tablekeeper.errors import CorruptTableError, NotFoundError, TablekeeperError, UnsupportedFeatureError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.model import BaseFile, FileSlice, LogFile, join_path
from tablekeeper.read.damage import find_base_damage, find_log_damage
from tablekeeper.read.log_changes import BlockVisibility
from tablekeeper.services.doctor.file_checks import visible_slices
from tablekeeper.services.doctor.report import Finding, Severity
from tablekeeper.services.doctor.view import TableView
from tablekeeper.snapshot.integrity import refuse_wrong_type
from tablekeeper.snapshot.schema import load_table_schema
from tablekeeper.timeline.properties_file import PROPERTIES_FILE

__all__ = ["check_base_files", "check_log_files", "check_partition_metadata", "check_schema"]


def check_schema(view: TableView) -> Iterator[Finding]:
    """Whether the table's properties, newest commit and files fit together, as every read and write asks first."""
    environment = view.environment
    if not view.timeline.completed_writes:
        return
    try:
        load_table_schema(environment.storage, environment.config, view.timeline)
        refuse_wrong_type(environment.config, _visible(view))
    except NotFoundError:
        # Archived since the timeline was loaded.
        return
    except UnsupportedFeatureError as error:
        yield _unreadable(error, Severity.WARNING)
    except CorruptTableError as error:
        # Damaged commits have findings of their own.
        if error.file == PROPERTIES_FILE:
            yield _unreadable(error, Severity.ERROR)
    except TablekeeperError as error:
        yield _unreadable(error, Severity.ERROR)


def _unreadable(error: TablekeeperError, severity: Severity) -> Finding:
    return Finding(
        "unreadable-table",
        severity,
        PROPERTIES_FILE,
        f"The table cannot be read or written here: {error}",
        "Bring the damaged file back from a backup.",
    )


def check_partition_metadata(view: TableView) -> Iterator[Finding]:
    """Directories with committed files that no reader takes for partitions."""
    storage = view.environment.storage
    if not view.environment.config.is_partitioned:
        return
    for partition in sorted({each.group.partition for each in _visible(view)}):
        names = storage.list_names(partition)
        if names and not any(name.startswith(PARTITION_METADATA_NAME) for name in names):
            yield Finding(
                "unmarked-partition",
                Severity.ERROR,
                partition or "the table's own directory",
                f"{PARTITION_METADATA_NAME} is gone: reads that list directories fail, and Java's do not see the rows.",
                "Bring the file back from a backup, or copy it from a partition of the same depth.",
                paths=(join_path(partition, PARTITION_METADATA_NAME),),
            )


def check_log_files(view: TableView) -> Iterator[Finding]:
    """Logs of the newest slices with bytes that are no block of their commit."""
    environment = view.environment
    if environment.config.version < 8:
        return

    visibility = BlockVisibility(may_share_files=environment.config.may_have_old_log_names)

    def look(log: LogFile) -> str:
        return find_log_damage(environment.storage, log, visibility=visibility, with_rows=view.settings.deep)

    logs = [log for each in _visible(view) for log in each.logs]
    damaged = {
        log.path: reason
        for log, reason in zip(logs, environment.runtime.threads.map(look, logs), strict=True)
        if reason
    }
    yield from _damaged("damaged-log", damaged)


def check_base_files(view: TableView) -> Iterator[Finding]:
    """Base files of the newest slices that do not decode, or whose pages do not fit their checksums."""
    environment = view.environment
    if not view.settings.deep:
        return

    def look(base: BaseFile) -> str:
        return find_base_damage(environment.storage, base)

    bases = [each.base for each in _visible(view) if each.base is not None]
    looked = zip(bases, environment.runtime.threads.map(look, bases), strict=True)
    yield from _damaged("damaged-base", {base.path: reason for base, reason in looked if reason})


def _damaged(kind: str, damaged: Mapping[str, str]) -> Iterator[Finding]:
    for path, reason in sorted(damaged.items()):
        yield Finding(
            kind,
            Severity.ERROR,
            path,
            f"It cannot be read, and reads and services that need it fail: {reason}.",
            "Bring it back from a backup, go back to a savepoint, or write the rows again.",
            paths=(path,),
        )


def _visible(view: TableView) -> list[FileSlice]:
    listed: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for file in view.files:
        listed[file.path.rpartition("/")[0]].append((file.name, file.size))
    return visible_slices(view, listed)
