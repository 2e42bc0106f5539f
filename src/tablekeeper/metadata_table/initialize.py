"""Initializes a metadata table, or a partition of one, from the table as it is at that moment.

As in Java, this is a delta commit at one of the earliest possible times, so that every action of the table is later.
The table's properties name the partition last, and readers and writers go by them: the files of a process that dies
before do no harm, and the next attempt deletes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tablekeeper.config.table_config import TableConfig
from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY, new_metadata_properties
from tablekeeper.errors import FencedError, NotFoundError
from tablekeeper.format.avro_container import schema_json
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.format.data_files import PARTITION_METADATA_NAME, encode_log_name, encode_partition_metadata
from tablekeeper.format.index_definitions import add_record_index_definition
from tablekeeper.format.index_shard import encode_empty_log
from tablekeeper.format.key_shards import KeyShards
from tablekeeper.format.metadata_log import MetadataBaseName, encode_metadata_base, encode_metadata_base_name
from tablekeeper.format.metadata_records import (
    FileEntry,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
    encode_metadata_record,
)
from tablekeeper.format.properties import encode_properties, table_checksum
from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.metadata_table.environment import LockedTable
from tablekeeper.metadata_table.index_changes import IndexLog
from tablekeeper.metadata_table.indexes import INDEX_DEFINITIONS_PATH, delete_metadata_table
from tablekeeper.metadata_table.layout import FILES, METADATA_DIRECTORY, load_metadata_timeline, metadata_config
from tablekeeper.model import (
    SCHEMA_KEY,
    Action,
    CommitMetadata,
    CompletionTime,
    FileGroupId,
    Instant,
    Operation,
    RequestedTime,
    State,
    WriteStat,
    join_path,
)
from tablekeeper.storage import Storage
from tablekeeper.timeline import complete_instant, create_requested, later_time, remove_instant_files, start_inflight
from tablekeeper.timeline.properties_file import change_properties, load_table_config

__all__ = ["begin_metadata_table", "begin_record_index"]

_ONLY_WRITER = "0-0-0"
_PROPERTIES = f"{METADATA_DIRECTORY}/.hoodie/hoodie.properties"
_FILES_ID = "files-0000-0"


def begin_metadata_table(environment: LockedTable, files: Mapping[str, Mapping[str, int]]) -> None:
    """Create the metadata table, which lists `files`: size by name, by partition path. Under the table lock.

    They are those of completed actions; pending actions add theirs when they complete.
    """
    storage = environment.storage
    config = load_table_config(storage)
    environment.lease.check()
    delete_metadata_table(storage)
    storage.put(_PROPERTIES, encode_properties(_properties(config), comment="metadata table"))
    records: list[MetadataRecord] = [PartitionListRecord(dict.fromkeys(files, True))]
    records += [
        FileListRecord(path, {n: FileEntry(size) for n, size in names.items()}) for path, names in files.items()
    ]
    entries = sorted((record.key.encode(), encode_metadata_record(record)) for record in records)
    data = encode_metadata_base(entries, created_ms=environment.runtime.clock.now_ms())
    _begin_partition(environment, config, FILES, [_FILES_ID], {_FILES_ID: IndexLog(len(entries), lambda: data)})
    change_properties(storage, {METADATA_PARTITIONS_KEY: FILES})


def begin_record_index(environment: LockedTable, shards: KeyShards, bases: Mapping[int, IndexLog]) -> None:
    """Add a record index of these shards with these base files to the metadata table. Under the table lock."""
    storage = environment.storage
    config = load_table_config(storage)
    ids = shards.file_ids
    _begin_partition(environment, config, RECORD_INDEX, ids, {ids[number]: base for number, base in bases.items()})
    try:
        definitions = storage.read(INDEX_DEFINITIONS_PATH)
    except NotFoundError:
        definitions = None
    definition = add_record_index_definition(definitions, by_partition=shards.by_partition, file=INDEX_DEFINITIONS_PATH)
    environment.lease.check()
    storage.put(INDEX_DEFINITIONS_PATH, definition)
    named = dict.fromkeys([*config.metadata_partitions, RECORD_INDEX])
    change_properties(storage, {METADATA_PARTITIONS_KEY: ",".join(named)})


def _begin_partition(
    environment: LockedTable,
    config: TableConfig,
    partition: str,
    file_ids: Sequence[str],
    bases: Mapping[str, IndexLog],
) -> None:
    storage, own = environment.storage, metadata_config(config)
    directory = join_path(METADATA_DIRECTORY, partition)
    environment.lease.check()
    storage.delete_tree(directory)
    timeline = load_metadata_timeline(storage, config)
    at = RequestedTime("0" * 17)
    while (taken := timeline.find(at)) is not None and taken.is_completed:
        at = RequestedTime(f"{int(at.value) + 1:017d}")
    if taken is not None:
        # The rest of an attempt that died.
        states = (State.INFLIGHT, State.REQUESTED)
        remove_instant_files(storage, own, *(Instant(at, Action.DELTA_COMMIT, state) for state in states))
    environment.lease.check()
    inflight = start_inflight(storage, own, create_requested(storage, own, requested_at=at, action=Action.DELTA_COMMIT))
    depth = partition.count("/") + 1
    storage.put(
        join_path(directory, PARTITION_METADATA_NAME), encode_partition_metadata(commit_time=at.value, depth=depth)
    )

    def write(file_id: str) -> WriteStat | None:
        # A file group exists from the beginning, even if it gets no records for long.
        log = encode_log_name(file_id=file_id, instant=at.value, version=1, write_token=_ONLY_WRITER)
        _create(storage, join_path(directory, log), encode_empty_log(instant=at.value))
        return (
            _write_base(environment, FileGroupId(partition, file_id), bases[file_id], at) if file_id in bases else None
        )

    stats = environment.runtime.threads.map(write, file_ids)
    extra = {SCHEMA_KEY: schema_json("HoodieMetadataRecord")}
    metadata = CommitMetadata(Operation.BULK_INSERT, tuple(stat for stat in stats if stat is not None), extra)
    environment.lease.check()
    now_ms = environment.runtime.clock.now_ms()
    completed_at = CompletionTime(later_time(timeline.newest_time, now_ms=now_ms, zone=config.time_zone))
    complete_instant(storage, own, inflight, completed_at=completed_at, content=encode_commit_metadata(metadata))


def _write_base(environment: LockedTable, group: FileGroupId, base: IndexLog, at: RequestedTime) -> WriteStat:
    data = base.load()
    path = join_path(
        group.partition, encode_metadata_base_name(MetadataBaseName(group.file_id, _ONLY_WRITER, at.value))
    )
    _create(environment.storage, join_path(METADATA_DIRECTORY, path), data)
    return WriteStat(group=group, path=path, size=len(data), writes=base.entries, inserts=base.entries)


def _create(storage: Storage, path: str, data: bytes) -> None:
    """Never replace a file: another process may have built the index in the meantime."""
    if not storage.put_if_absent(path, data):
        raise FencedError(f"{path} exists already: another process is building this index. Reload the table; retry.")


def _properties(config: TableConfig) -> dict[str, str]:
    name = metadata_config(config).name
    return new_metadata_properties(name=name, version=config.version, checksum=table_checksum(database="", table=name))
