"""Options of Spark's own syntax: checked, typed, and never ignored."""

from __future__ import annotations

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import Operation
from tablekeeper.table.source_options import ReadOptions, WriteOptions, catalog_options


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


FROM_THE_CATALOG = {"provider": "tablekeeper", "owner": "me", "location": "file:/t", "path": "file:/t", "comment": "hi"}


def test_of_what_a_catalog_knows_only_the_options_of_the_user_are_taken() -> None:
    given = {"mode": "read_optimized", "operation": "insert", "key": "id"}
    listed = {f"option.{name}": text for name, text in given.items()}
    kept = catalog_options({**FROM_THE_CATALOG, "team": "rides", **given, **listed})
    assert kept == {"path": "file:/t", "mode": "read_optimized"}
    assert ReadOptions.parse(kept) == ReadOptions(path="file:/t", mode="read_optimized")


def test_options_that_do_not_come_from_a_catalog_are_left_alone() -> None:
    assert catalog_options({"path": "/t", "owner": "me"}) is None
    with pytest.raises(InvalidRequestError, match="unknown option 'owner'"):
        ReadOptions.parse({"path": "/t", "owner": "me"})


def test_credentials_are_not_put_into_a_catalog() -> None:
    with pytest.raises(InvalidRequestError, match=r"'storage.secret_access_key' does not belong into a catalog"):
        catalog_options({**FROM_THE_CATALOG, "option.storage.secret_access_key": "x"})
    kept = catalog_options({**FROM_THE_CATALOG, "option.storage.region": "eu-west-1"})
    assert kept == {"path": "file:/t", "storage.region": "eu-west-1"}


def test_the_options_of_a_java_job_are_understood() -> None:
    job = {
        "path": "/lake/trips",
        "hoodie.table.name": "drives",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.operation": "bulk_insert",
        "hoodie.upsert.shuffle.parallelism": "200",
    }
    options = WriteOptions.parse(job, overwrite=False)
    assert (options.name, options.operation, options.makes_tables) == ("drives", Operation.BULK_INSERT, True)
    assert options.settings["hoodie.datasource.write.recordkey.field"] == "id", "for the table to be compared with"
    read = ReadOptions.parse(
        {"path": "/t", "hoodie.datasource.query.type": "read_optimized", "as.of.instant": "20261115100000000"}
    )
    assert (read.mode, read.as_of) == ("read_optimized", "20261115100000000")
    with pytest.raises(InvalidRequestError, match="contradict each other"):
        WriteOptions.parse({**job, "operation": "upsert"}, overwrite=False)
    assert not WriteOptions.parse({"path": "/lake/trips"}, overwrite=False).makes_tables
