"""Which metadata partitions are kept in step, and how the others are switched off."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tablekeeper.config.keys import INDEX_DROP
from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.index_definitions import decode_index_definitions, remove_index_definitions
from tablekeeper.metadata_table.indexes import (
    INDEX_DEFINITIONS_PATH,
    delete_metadata_table,
    drop_metadata_indexes,
    load_metadata_indexes,
    refuse_index_loss,
    statistics_outdate,
)
from tablekeeper.model import Operation
from tests.support.metadata_builder import COLUMNS, MetadataBuilder

__all__: list[str] = []

STATS = ("files", "column_stats", "partition_stats")


def test_files_and_statistics_are_kept() -> None:
    built = MetadataBuilder()
    indexes = load_metadata_indexes(built.storage, built.config)
    assert (indexes.updated, indexes.listed, indexes.dropped) == (STATS, STATS, ())
    assert indexes.columns == COLUMNS
    assert indexes.has_statistics


def test_a_table_without_metadata_table_asks_for_nothing() -> None:
    built = MetadataBuilder(partitions=[])
    indexes = load_metadata_indexes(built.storage, built.config)
    assert (indexes.updated, indexes.dropped) == ((), ())


def test_indexes_that_nobody_maintains_are_dropped_with_definition_and_directory() -> None:
    built = MetadataBuilder(partitions=[*STATS, "expr_index_day", "secondary_index_name"])
    built.define({"column_stats": COLUMNS, "expr_index_day": [], "secondary_index_name": ["name"]})
    built.storage.put(".hoodie/metadata/expr_index_day/some.hfile", b"x")
    indexes = load_metadata_indexes(built.storage, built.config)
    assert indexes.listed == STATS
    assert indexes.dropped == ("expr_index_day", "secondary_index_name")
    drop_metadata_indexes(built.storage, indexes)
    assert set(json.loads(built.storage.read(INDEX_DEFINITIONS_PATH))["indexDefinitions"]) == {"column_stats"}
    assert not list(built.storage.walk(".hoodie/metadata/expr_index_day"))
    assert list(built.storage.walk(".hoodie/metadata/files"))


OTHERS = ("secondary_index_name", "expr_index_day")


@pytest.mark.parametrize(
    ("operation", "stays"),
    [
        (Operation.COMPACT, ("secondary_index_name",)),
        (Operation.LOG_COMPACT, ("secondary_index_name",)),
        (Operation.CLUSTER, ("secondary_index_name",)),
        (Operation.UPSERT, ()),
        (Operation.DELETE_PARTITION, ()),
        (None, ()),
    ],
)
def test_only_indexes_that_an_operation_leaves_right_stay(operation: Operation | None, stays: tuple[str, ...]) -> None:
    built = MetadataBuilder(partitions=[*STATS, *OTHERS])
    indexes = load_metadata_indexes(built.storage, built.config, operation=operation)
    assert indexes.updated == STATS
    assert indexes.listed == (*STATS, *stays)
    assert indexes.lost == indexes.dropped == tuple(name for name in OTHERS if name not in stays)


@pytest.mark.parametrize("operation", [None, Operation.UPSERT, Operation.COMPACT])
@pytest.mark.parametrize("by_partition", [False, True])
def test_bloom_filters_and_record_indexes_are_kept_in_step(operation: Operation | None, by_partition: bool) -> None:
    built = MetadataBuilder(partitions=[*STATS, "bloom_filters", "record_index"])
    definitions = json.loads(built.storage.read(INDEX_DEFINITIONS_PATH))
    definitions["indexDefinitions"]["record_index"] = {"indexOptions": {"isPartitioned": str(by_partition).lower()}}
    built.storage.put(INDEX_DEFINITIONS_PATH, json.dumps(definitions).encode())
    indexes = load_metadata_indexes(built.storage, built.config, operation=operation)
    assert indexes.updated == indexes.listed == (*STATS, "bloom_filters", "record_index")
    assert indexes.told == ("bloom_filters", "record_index")
    assert indexes.has_record_index
    assert indexes.keys_by_partition == by_partition
    assert indexes.dropped == ()


@pytest.mark.parametrize(
    ("told", "is_told"), [(None, True), (frozenset({"name"}), True), (frozenset({"other"}), False)]
)
@pytest.mark.parametrize("record_index", ["of the table", "by partitions", "none"])
def test_a_secondary_index_is_kept_beside_a_record_index_of_the_whole_table(
    told: frozenset[str] | None, is_told: bool, record_index: str
) -> None:
    names = () if record_index == "none" else ("record_index",)
    built = MetadataBuilder(partitions=[*STATS, *names, "secondary_index_name"])
    built.define({"column_stats": COLUMNS, "secondary_index_name": ["name"]})
    definitions = json.loads(built.storage.read(INDEX_DEFINITIONS_PATH))
    options = {"isPartitioned": str(record_index == "by partitions").lower()}
    definitions["indexDefinitions"]["record_index"] = {"indexOptions": options}
    built.storage.put(INDEX_DEFINITIONS_PATH, json.dumps(definitions).encode())
    indexes = load_metadata_indexes(built.storage, built.config, operation=Operation.UPSERT, told_columns=told)
    is_kept = is_told and record_index == "of the table"
    assert indexes.values == ({"secondary_index_name": "name"} if is_kept else {})
    assert ("secondary_index_name" in indexes.updated) == is_kept
    assert ("secondary_index_name" in indexes.lost) != is_kept


def test_losing_an_index_takes_consent_and_losing_statistics_does_not() -> None:
    built = MetadataBuilder(partitions=[*STATS, "expr_index_day"])
    indexes = load_metadata_indexes(built.storage, built.config)
    with pytest.raises(UnsupportedFeatureError, match=f"upsert .* expr_index_day .*{INDEX_DROP}=true"):
        refuse_index_loss(built.config, indexes, action="upsert", consents=False)
    refuse_index_loss(built.config, indexes, action="upsert", consents=True)
    plain = MetadataBuilder()
    outdated = load_metadata_indexes(plain.storage, plain.config, outdated_statistics=True)
    assert outdated.dropped
    refuse_index_loss(plain.config, outdated, action="upsert", consents=False)


@pytest.mark.parametrize("reason", ["version", "definition", "schema"])
def test_statistics_that_cannot_be_kept_are_dropped_and_files_stay(reason: str) -> None:
    built = MetadataBuilder()
    if reason == "version":
        built.define({"column_stats": COLUMNS}, version="V1")
    elif reason == "definition":
        built.storage.delete(INDEX_DEFINITIONS_PATH)
    indexes = load_metadata_indexes(built.storage, built.config, outdated_statistics=reason == "schema")
    assert indexes.updated == indexes.listed == ("files",)
    assert indexes.dropped == ("column_stats", "partition_stats")
    assert indexes.columns == ()


def test_an_index_that_is_being_built_gets_updates_too() -> None:
    built = MetadataBuilder(partitions=["files"], hoodie__table__metadata__partitions__inflight="column_stats")
    indexes = load_metadata_indexes(built.storage, built.config)
    assert (indexes.listed, indexes.updated) == (("files",), ("files", "column_stats"))


def test_an_index_that_is_being_built_and_cannot_be_kept_stops_the_write() -> None:
    built = MetadataBuilder(hoodie__table__metadata__partitions__inflight="record_index")
    with pytest.raises(UnsupportedFeatureError, match="record_index is being built"):
        load_metadata_indexes(built.storage, built.config)


def test_switching_off_leaves_nothing_of_the_metadata_table() -> None:
    built = MetadataBuilder()
    delete_metadata_table(built.storage)
    assert not list(built.storage.walk(".hoodie/metadata"))
    assert built.storage.stat(INDEX_DEFINITIONS_PATH) is None


def test_statistics_follow_a_schema_only_while_its_columns_stay_the_same() -> None:
    before = pa.schema([("a", pa.int32()), ("b", pa.list_(pa.int64()))])
    assert not statistics_outdate(before=before, after=before)
    assert not statistics_outdate(before=before, after=before.set(1, pa.field("b", pa.list_(pa.float64()))))
    assert statistics_outdate(before=before, after=before.append(pa.field("c", pa.string())))
    assert statistics_outdate(before=before, after=before.set(0, pa.field("a", pa.int64())))


def test_unknown_fields_of_the_definitions_survive() -> None:
    data = json.dumps({"indexDefinitions": {"a": {"sourceFields": ["x"], "new": 1}, "b": {}}, "more": 2}).encode()
    rest = json.loads(remove_index_definitions(data, names=["b"], file="index.json"))
    assert rest == {"indexDefinitions": {"a": {"sourceFields": ["x"], "new": 1}}, "more": 2}


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"{", b'{"indexDefinitions": 5}', b'{"indexDefinitions": {"a": {"sourceFields": 7}}}'],
)
def test_mangled_definitions_are_reported(data: bytes) -> None:
    with pytest.raises(CorruptTableError, match=r"index\.json"):
        decode_index_definitions(data, file="index.json")
