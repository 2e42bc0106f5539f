"""A merge-on-read table with very many partitions, of which a few are lived in.

What is planned on is real: the lived-in partitions, their writes and all plans are made through the public API. The
others only make up the number. Their files are put in place, as a commit that has been archived long ago would have
left them: one base file each, all with the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

import tablekeeper as tk
from tablekeeper.engine.local import LocalEngine
from tablekeeper.format.data_files import PARTITION_METADATA_NAME, encode_base_name, encode_partition_metadata
from tablekeeper.format.hfile_writer import encode_hfile
from tablekeeper.format.metadata_records import (
    FileEntry,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
    encode_metadata_record,
    metadata_schema_json,
)
from tablekeeper.metadata_table.layout import FILES, METADATA_DIRECTORY, metadata_config
from tablekeeper.model import Action, CompletionTime, RequestedTime, join_path
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import Storage, open_storage
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.timeline import complete_instant, create_requested, start_inflight
from tablekeeper.timeline.properties_file import change_properties
from tests.support.storage_wrappers import CountingStorage

__all__ = ["FULL", "WideTable", "make_wide_table"]

FULL = {"hoodie.table.services.incremental.enabled": "false", "hoodie.clean.incremental.enabled": "false"}
"""Options with which plans look at all partitions."""

_SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
_LONG_AGO = "20200101000000000"
_BEFORE_ALL = "00000000000000000"
_FILE_ID = "00000000-aaaa-4000-8000-000000000000-0"
_OPTIONS = {
    "hoodie.bloom.index.write": "false",
    "hoodie.log.compaction.blocks.threshold": "2",
    # Files that lie alone in their partition have been clustered before.
    "hoodie.clustering.plan.strategy.single.group.clustering.enabled": "false",
}


@dataclass
class WideTable:
    """The table on a store that counts. `lived_in` are the partitions that writes go to."""

    table: tk.Table
    store: CountingStorage
    lived_in: tuple[str, ...]
    moment: int = 0

    def touch(self) -> None:
        """Two new file groups in each partition that is lived in, and two log files on each of those."""
        written = [self.moment + 1, self.moment + 2]
        for self.moment in written:
            self.table.bulk_insert(self._rows([self.moment]))
        for _ in written:
            self.table.upsert(self._rows(written))

    def run_services(self) -> None:
        """Plan and execute everything there is to do: the next plans begin where these end."""
        for service in (self.table.log_compact, self.table.compact, self.table.cluster):
            assert service() is not None
        # One more write moves what was clustered out of the window that the clean keeps.
        self.table.upsert(self._rows([self.moment]))
        assert self.table.clean(keep_commits=1) is not None

    def widen(self, partitions: int, *, metadata: bool = False) -> None:
        """Add partitions until there are so many. With `metadata` a metadata table lists all of them from now on."""
        storage = self.store.storage
        taken = set(self.lived_in)
        added = [name for number in range(partitions) if (name := _partition(number)) not in taken]
        mark = encode_partition_metadata(commit_time=_LONG_AGO, depth=1)
        name = encode_base_name(file_id=_FILE_ID, write_token="0-0-0", instant=_LONG_AGO)
        data = _base_file()
        for partition in added:
            storage.put(join_path(partition, PARTITION_METADATA_NAME), mark)
            storage.put(join_path(partition, name), data)
        if metadata:
            listing = {partition: {name: len(data)} for partition in added}
            listing |= {partition: _listed(storage, partition) for partition in self.lived_in}
            _start_metadata_table(storage, listing)

    def _rows(self, keys: Iterable[int]) -> pa.Table:
        rows = [{"id": f"{part}-{key}", "part": part, "ts": self.moment} for part in self.lived_in for key in keys]
        return pa.Table.from_pylist(rows, schema=_SCHEMA)


def make_wide_table(place: str, *, lived_in: int = 10, spread: int = 10) -> WideTable:
    """A new table in which nothing has been done yet. Every `spread`-th partition will be lived in."""
    tk.Table.create(
        place,
        name="wide",
        schema=_SCHEMA,
        key="id",
        partition_by="part",
        ordering="ts",
        table_type="mor",
        engine="local",
        options=_OPTIONS,
    )
    store = CountingStorage(open_storage(place))
    table = tk.Table(
        store,
        LocalEngine(threads=2, runtime=SYSTEM_RUNTIME),
        load_writer_options(store),
        runtime=SYSTEM_RUNTIME,
    )
    return WideTable(table, store, tuple(_partition(number * spread) for number in range(lived_in)))


def _partition(number: int) -> str:
    return f"p{number:07d}"


def _listed(storage: Storage, partition: str) -> dict[str, int]:
    return {file.name: file.size for file in storage.list_files(partition) if file.name != PARTITION_METADATA_NAME}


def _base_file() -> bytes:
    meta = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path"]
    columns = {each: ["0"] for each in [*meta, "_hoodie_file_name", "id", "part"]}
    stream = pa.BufferOutputStream()
    pq.write_table(pa.table({**columns, "ts": [0]}), stream)
    return bytes(stream.getvalue().to_pybytes())


def _start_metadata_table(storage: Storage, files: Mapping[str, Mapping[str, int]]) -> None:
    """A metadata table with the listing in a base file, as a compaction of it would have left it."""
    records: list[MetadataRecord] = [PartitionListRecord(dict.fromkeys(files, True))]
    records += [FileListRecord(p, {n: FileEntry(size) for n, size in names.items()}) for p, names in files.items()]
    entries = sorted((record.key.encode(), encode_metadata_record(record)) for record in records)
    content = encode_hfile(entries, schema_json=metadata_schema_json())
    storage.put(f"{METADATA_DIRECTORY}/{FILES}/files-0000-0_0-0-0_{_BEFORE_ALL}.hfile", content)
    config = metadata_config(change_properties(storage, {"hoodie.table.metadata.partitions": FILES}))
    requested = create_requested(storage, config, requested_at=RequestedTime(_BEFORE_ALL), action=Action.DELTA_COMMIT)
    inflight = start_inflight(storage, config, requested)
    complete_instant(storage, config, inflight, completed_at=CompletionTime(_LONG_AGO), content=b"")
