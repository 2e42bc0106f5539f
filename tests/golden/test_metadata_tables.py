"""Metadata tables that Java wrote: our listing is the directories', our statistics are Java's own, record by record."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tablekeeper.config.table_config import TableConfig, parse_table_config
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.metadata_records import ColumnStatsRecord, ValueType, column_stats_record
from tablekeeper.format.properties import decode_properties
from tablekeeper.metadata_table.indexes import load_metadata_indexes
from tablekeeper.metadata_table.layout import (
    COLUMN_STATS,
    METADATA_DIRECTORY,
    load_metadata_file_group,
    load_metadata_timeline,
    plan_metadata_slices,
)
from tablekeeper.metadata_table.listing import open_metadata_table
from tablekeeper.metadata_table.ranges import load_column_ranges
from tablekeeper.model import join_path
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.snapshot.slices import load_files_by_listing, load_partitions_by_listing
from tablekeeper.storage import Storage, open_storage
from tablekeeper.timeline import load_timeline

__all__: list[str] = []

TABLES = Path(__file__).parent / "tables"
WITH_METADATA = [
    "cow_v9_timebasedkeygen_epochmillis",
    "cow_v9_timebasedkeygen_nonhivestyle",
    "cow_v9_txns_nonpart_meta",
    "cow_v9_txns_simple_meta",
    "cow_v9_txns_simple_overwrite",
    "mor_avro_v9_timebasedkeygen_nonhivestyle",
    "mor_avro_v9_txns_complex_meta",
    "mor_avro_v9_txns_nonpart_meta",
    "mor_avro_v9_txns_simple_overwrite",
]


@pytest.fixture(params=WITH_METADATA)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, TableConfig]:
    with zipfile.ZipFile(TABLES / f"{request.param}.zip") as archive:
        archive.extractall(tmp_path)
    roots = [path.parent.parent for path in tmp_path.glob("**/.hoodie/hoodie.properties")]
    storage = open_storage(min(roots, key=lambda path: len(path.parts)))
    properties = ".hoodie/hoodie.properties"
    return storage, parse_table_config(decode_properties(storage.read(properties), file=properties), file=properties)


def test_the_metadata_table_lists_what_lies_in_the_directories(golden: tuple[Storage, TableConfig]) -> None:
    storage, config = golden
    table = open_metadata_table(storage, config, load_timeline(storage, config), runtime=SYSTEM_RUNTIME)
    assert table is not None
    partitions = load_partitions_by_listing(storage, runtime=SYSTEM_RUNTIME)
    files = load_files_by_listing(storage, partitions, runtime=SYSTEM_RUNTIME)
    assert table.partitions() == partitions
    assert table.files(partitions) == {
        partition: sorted(file for file in found if not file[0].startswith(PARTITION_METADATA_NAME))
        for partition, found in files.items()
    }


def test_our_statistics_of_every_file_are_the_ones_that_java_recorded(golden: tuple[Storage, TableConfig]) -> None:
    storage, config = golden
    timeline = load_timeline(storage, config)
    table = open_metadata_table(storage, config, timeline, runtime=SYSTEM_RUNTIME)
    assert table is not None
    columns = load_metadata_indexes(storage, config).columns
    ours: dict[str, ColumnStatsRecord] = {}
    for partition, files in table.files(table.partitions()).items():
        for name, _ in files:
            for found in load_column_ranges(storage, join_path(partition, name), columns=columns):
                record = column_stats_record(partition=partition, file_name=name, column_range=found)
                ours[record.key] = record
    slices = plan_metadata_slices(
        storage.list_files(join_path(METADATA_DIRECTORY, COLUMN_STATS)),
        metadata_timeline=load_metadata_timeline(storage, config),
        data_timeline=timeline,
    )
    java = {
        record.key: record
        for each in slices
        for record in load_metadata_file_group(storage, each, runtime=SYSTEM_RUNTIME).records()
    }
    assert ours == java
    kinds = Counter(record.range.value_type for record in ours.values())
    assert {ValueType.STRING, ValueType.DECIMAL, ValueType.DATE, ValueType.TIMESTAMP_MICROS} <= kinds.keys()


def test_every_hfile_that_java_wrote_is_read_to_its_last_entry(golden: tuple[Storage, TableConfig]) -> None:
    storage, _ = golden
    found = [file for file in storage.walk(METADATA_DIRECTORY) if file.name.endswith(".hfile")]
    assert found
    for file in found:
        reader = HFileReader(storage.read(file.path), file=file.path)
        entries = dict(reader.items())
        assert len(entries) == reader.entry_count
        assert all(reader.get(key) == value for key, value in entries.items())
        assert reader.meta_block(b"bloomFilter")
