"""A table with a metadata table in memory, as Java would have left it after creation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence

from tablekeeper.config.table_config import TableConfig, parse_table_config
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.metadata_log import encode_metadata_log
from tablekeeper.format.metadata_records import MetadataRecord, PartitionListRecord
from tablekeeper.model import Action, FileGroupId, WriteStat
from tablekeeper.storage import MemoryStorage, Storage

__all__ = ["COLUMNS", "MetadataBuilder", "stat"]

COLUMNS = ("_hoodie_record_key", "id")
_GROUPS = {"files": ["files-0000-0"], "column_stats": ["col-stats-0000-0", "col-stats-0001-0"]}
_GROUPS["partition_stats"] = ["partition-stats-0000-0"]
_NAMES = itertools.count()


def stat(partition: str, name: str, size: int) -> WriteStat:
    """A written file; its file id does not matter here."""
    path = f"{partition}/{name}" if partition else name
    return WriteStat(FileGroupId(partition, "g"), path, size, log_version=1 if ".log." in name else None)


class MetadataBuilder:
    """Puts timeline files and metadata files straight into a store."""

    def __init__(
        self, *, partitions: Sequence[str] = ("files", "column_stats", "partition_stats"), **extra: str
    ) -> None:
        self.storage: Storage = MemoryStorage(f"memory://metadata-{next(_NAMES)}")
        self.properties = {
            "hoodie.table.name": "t",
            "hoodie.table.type": "COPY_ON_WRITE",
            "hoodie.table.version": "9",
            "hoodie.table.partition.fields": "p",
            "hoodie.table.timeline.timezone": "UTC",
            "hoodie.table.metadata.partitions": ",".join(partitions),
            **{name.replace("__", "."): value for name, value in extra.items()},
        }
        for number, partition in enumerate(partitions):
            instant = f"0000000000000000{number}"
            self.metadata_instant(instant, f"2024010100000000{number}")
            for file_id in _GROUPS.get(partition, []):
                self._start_group(partition, file_id, instant)
        self.define({"column_stats": COLUMNS})

    @property
    def config(self) -> TableConfig:
        return parse_table_config(self.properties, file="hoodie.properties")

    def define(self, indexes: Mapping[str, Sequence[str]], *, version: str = "V2") -> None:
        """Write index.json."""
        entries = {
            name: {"indexName": name, "indexType": name, "sourceFields": list(columns), "version": version}
            for name, columns in indexes.items()
        }
        self.storage.put(".hoodie/.index_defs/index.json", json.dumps({"indexDefinitions": entries}).encode())

    def metadata_instant(self, requested: str, completed: str | None, action: str = "deltacommit") -> None:
        """An instant on the metadata table's timeline."""
        self._instant(".hoodie/metadata/.hoodie/timeline", requested, completed, action)

    def data_instant(self, requested: str, completed: str | None, action: str = "commit") -> None:
        """An instant on the data table's timeline."""
        self._instant(".hoodie/timeline", requested, completed, action)

    def log(
        self, instant: str, *records: MetadataRecord, partition: str = "files", file_id: str = "files-0000-0"
    ) -> str:
        """A log file of one delta commit; its path."""
        path = f".hoodie/metadata/{partition}/.{file_id}_{instant}.log.1_0-0-0"
        self.storage.put(path, encode_metadata_log(records, instant=instant))
        return path

    def _start_group(self, partition: str, file_id: str, instant: str) -> None:
        if partition == "files":
            self.log(instant, PartitionListRecord({}), partition=partition, file_id=file_id)
            return
        empty = encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: instant}, b"\0\0\0\x03\0\0\0\x01\0")
        self.storage.put(f".hoodie/metadata/{partition}/.{file_id}_{instant}.log.1_0-0-0", empty)

    def _instant(self, directory: str, requested: str, completed: str | None, action: str) -> None:
        inflight = f"{requested}.inflight" if action == Action.COMMIT.value else f"{requested}.{action}.inflight"
        for name in (f"{requested}.{action}.requested", inflight):
            self.storage.put(f"{directory}/{name}", b"")
        if completed is not None:
            self.storage.put(f"{directory}/{requested}_{completed}.{action}", b"")
