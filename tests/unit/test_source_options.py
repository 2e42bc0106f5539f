"""Options of Spark's own syntax: checked, typed, and never ignored."""

from __future__ import annotations

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import Operation
from tablekeeper.table.source_options import ReadOptions, WriteOptions


def test_read_options_are_typed() -> None:
    options = ReadOptions.parse(
        {
            "path": "/lake/trips",
            "columns": "id, fare",
            "as_of": "2026-11-15",
            "mode": "read_optimized",
            "meta_columns": "true",
            "parallelism": "8",
            "push_filters": "true",
            "storage.region": "eu-west-1",
            "hoodie.metadata.enable": "false",
        }
    )
    assert options == ReadOptions(
        path="/lake/trips",
        columns=("id", "fare"),
        as_of="2026-11-15",
        mode="read_optimized",
        meta_columns=True,
        parallelism=8,
        push_filters=True,
        settings={"hoodie.metadata.enable": "false"},
        storage={"region": "eu-west-1"},
    )
    assert not options.is_incremental


def test_a_bound_makes_a_read_incremental() -> None:
    assert ReadOptions.parse({"path": "/t", "since": "20261115100000000"}).is_incremental
    assert ReadOptions.parse({"path": "/t", "until": "20261115100000000"}).is_incremental


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "no path"),
        ({"path": "/t", "asof": "x"}, "Did you mean 'as_of'"),
        ({"path": "/t", "fizz": "x"}, "unknown option 'fizz'. There are path, columns"),
        ({"path": "/t", "hoodie.index.typ": "BUCKET"}, "Did you mean 'hoodie.index.type'"),
        ({"path": "/t", "meta_columns": "yes"}, "not true or false"),
        ({"path": "/t", "parallelism": "-1"}, "whole number"),
        ({"path": "/t", "since": "1", "as_of": "2"}, "do not go together"),
        ({"path": "/t", "since": "1", "mode": "read_optimized"}, "do not go together"),
    ],
)
def test_a_wrong_read_option_is_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        ReadOptions.parse(given)


def test_appending_upserts_and_overwriting_replaces_the_table_unless_told_otherwise() -> None:
    path = {"path": "/lake/trips"}
    assert WriteOptions.parse(path, overwrite=False).operation is Operation.UPSERT
    assert WriteOptions.parse(path, overwrite=True).operation is Operation.INSERT_OVERWRITE_TABLE
    insert = WriteOptions.parse({**path, "operation": "bulk_insert"}, overwrite=False)
    assert insert.operation is Operation.BULK_INSERT
    partitions = WriteOptions.parse({**path, "operation": "INSERT_OVERWRITE"}, overwrite=True)
    assert partitions.operation is Operation.INSERT_OVERWRITE


@pytest.mark.parametrize(
    ("operation", "overwrite"), [("insert_overwrite", False), ("upsert", True), ("compact", False), ("", False)]
)
def test_an_operation_that_does_not_fit_the_save_mode_is_refused(operation: str, overwrite: bool) -> None:
    with pytest.raises(InvalidRequestError, match="does not go with mode"):
        WriteOptions.parse({"path": "/t", "operation": operation}, overwrite=overwrite)


def test_a_new_table_is_named_after_its_directory_unless_told_otherwise() -> None:
    assert WriteOptions.parse({"path": "s3://lake/trips/"}, overwrite=False).name == "trips"
    assert WriteOptions.parse({"path": "s3://lake/trips", "name": "rides"}, overwrite=False).name == "rides"


def test_keys_and_partitions_are_lists() -> None:
    given = {"path": "/t", "key": "id,region", "partition_by": "city", "ordering": "ts, seq", "table_type": "cow"}
    options = WriteOptions.parse(given, overwrite=False)
    assert (options.key, options.partition_by, options.ordering) == (("id", "region"), ("city",), ("ts", "seq"))
    assert options.table_type == "cow"
