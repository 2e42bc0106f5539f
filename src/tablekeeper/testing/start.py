"""The table that a history begins with: three commits on five keys, the same for every history of a shape.

It is made once a shape and process, by the production code, and copied for each run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tablekeeper.config.simulation_options import INDEX_OPTIONS, SIMULATION_OPTIONS, TABLE_OPTIONS
from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.metadata_log import encode_metadata_log
from tablekeeper.format.metadata_records import PartitionListRecord
from tablekeeper.storage.memory import MemoryStorage, forget_memory
from tablekeeper.table import Table
from tablekeeper.testing.history import Shape
from tablekeeper.testing.loop import Loop
from tablekeeper.testing.process import Process
from tablekeeper.testing.story import NAME_KEY
from tablekeeper.testing.worker import KEYS, SCHEMA, open_table, trips
from tablekeeper.timeline.properties_file import change_properties

__all__ = ["FIRST_WRITES", "Start", "load_start"]

_URI = "memory://simulation-start/table"
_METADATA_GROUPS = {
    "files": ["files-0000-0"],
    "column_stats": ["col-stats-0000-0", "col-stats-0001-0"],
    "partition_stats": ["partition-stats-0000-0"],
}
_INDEXED = ["_hoodie_record_key", "id"]

FIRST_WRITES: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "first": {key: (city, 1.0) for key, city in KEYS.items()},
    "second": {key: (KEYS[key], 2.0) for key in ("a", "d")},
    "third": {key: (KEYS[key], 3.0) for key in ("b", "d")},
}


@dataclass(frozen=True)
class Start:
    """The files of the table, and the time at which it is in this state."""

    files: Mapping[str, bytes]
    now_s: float


@cache
def load_start(shape: Shape) -> Start:
    """The table of this shape before anything happens."""
    process = Process(Loop(lambda ready: ready[0]), "start", seed="start")
    Table.create(
        _URI,
        name="trips",
        schema=SCHEMA,
        key="id",
        partition_by="city",
        ordering="ts",
        table_type=shape.table_type,
        engine="local",
        options={**SIMULATION_OPTIONS, **INDEX_OPTIONS[shape.index], **TABLE_OPTIONS[shape.options]},
        runtime=process.runtime,
    )
    storage = MemoryStorage(_URI, runtime=process.runtime)
    if shape.metadata:
        _add_metadata_table(storage)
    table = open_table(storage, process)
    for name, rows in FIRST_WRITES.items():
        process.sleep(10)
        table.upsert(trips(rows), extra={NAME_KEY: name})
    process.sleep(10)
    if shape.index == "record":
        table.create_index()
        process.sleep(10)
    files = {file.path: storage.read(file.path) for file in storage.walk("")}
    forget_memory("simulation-start")
    return Start(files, process.loop.now_s)


def _add_metadata_table(storage: MemoryStorage) -> None:
    """The metadata table of an empty table, as Java makes it: a delta commit for each of its partitions."""
    index = {"indexName": "column_stats", "indexType": "column_stats", "sourceFields": _INDEXED, "version": "V2"}
    files = {".hoodie/.index_defs/index.json": json.dumps({"indexDefinitions": {"column_stats": index}}).encode()}
    for number, (partition, groups) in enumerate(_METADATA_GROUPS.items()):
        instant = f"0000000000000000{number}"
        for name in (
            f"{instant}.deltacommit.requested",
            f"{instant}.deltacommit.inflight",
            f"{instant}_2024010100000000{number}.deltacommit",
        ):
            files[f".hoodie/metadata/.hoodie/timeline/{name}"] = b""
        for group in groups:
            files[f".hoodie/metadata/{partition}/.{group}_{instant}.log.1_0-0-0"] = _first_log(partition, instant)
    for path, content in files.items():
        storage.put(path, content)
    change_properties(storage, {METADATA_PARTITIONS_KEY: ",".join(_METADATA_GROUPS)})


def _first_log(partition: str, instant: str) -> bytes:
    if partition == "files":
        return encode_metadata_log([PartitionListRecord({})], instant=instant)
    return encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: instant}, b"\0\0\0\x03\0\0\0\x01\0")
