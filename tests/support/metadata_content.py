"""What a metadata table says to its readers, record by record, whatever files hold it."""

from __future__ import annotations

from tablekeeper.format.metadata_records import (
    BloomFilterRecord,
    ColumnStatsRecord,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
)
from tablekeeper.metadata_table.layout import (
    METADATA_DIRECTORY,
    MetadataSlice,
    load_metadata_file_group,
    load_metadata_timeline,
    metadata_config,
    plan_metadata_slices,
)
from tablekeeper.storage import FileInfo, Storage
from tablekeeper.timeline import Timeline, load_timeline
from tablekeeper.timeline.history import archived_completions
from tablekeeper.timeline.properties_file import load_table_config
from tests.support.fake_runtime import FakeClock
from tests.support.step_faults import one_thread_runtime

__all__ = ["load_content", "load_slices", "metadata_files", "metadata_timeline"]


def load_content(storage: Storage) -> dict[tuple[str, str], MetadataRecord]:
    """The live part of every record of every partition in use, by partition and key."""
    runtime = one_thread_runtime(FakeClock(), process=1)
    found: dict[tuple[str, str], MetadataRecord] = {}
    for partition, slices in load_slices(storage).items():
        for each in slices:
            for record in load_metadata_file_group(storage, each, runtime=runtime).records():
                live = _live(record)
                if live is not None:
                    found[partition, record.key] = live
    return found


def load_slices(storage: Storage) -> dict[str, tuple[MetadataSlice, ...]]:
    """The newest slices of every partition in use."""
    config = load_table_config(storage)
    data_timeline = load_timeline(storage, config)
    timeline = load_metadata_timeline(storage, config)
    return {
        partition: plan_metadata_slices(
            storage.list_files(f"{METADATA_DIRECTORY}/{partition}"),
            metadata_timeline=timeline,
            data_timeline=data_timeline,
            archived_completion=archived_completions(storage, metadata_config(config)),
        )
        for partition in config.metadata_partitions
    }


def metadata_timeline(storage: Storage) -> Timeline:
    return load_metadata_timeline(storage, load_table_config(storage))


def metadata_files(storage: Storage) -> list[FileInfo]:
    """Base and log files of the metadata table."""
    return [file for file in storage.walk(METADATA_DIRECTORY) if not file.path.startswith(f"{METADATA_DIRECTORY}/.")]


def _live(record: MetadataRecord) -> MetadataRecord | None:
    if isinstance(record, ColumnStatsRecord | BloomFilterRecord):
        return None if record.is_deleted else record
    if isinstance(record, FileListRecord):
        files = {name: entry for name, entry in sorted(record.files.items()) if not entry.is_deleted}
        return FileListRecord(record.partition, files) if files else None
    return PartitionListRecord(dict.fromkeys(record.live, True))
