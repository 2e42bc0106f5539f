"""Settings of Java jobs: honoured, compared with the table, refused with a reason, or named as without meaning."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import tablekeeper as tk
from tablekeeper.config.java_keys import CLAIMS, IDLE, REFUSED, RENAMED
from tablekeeper.config.options import OPTIONS, Options
from tablekeeper.storage import forget_memory
from tablekeeper.table.automatic_services import inline_services
from tests.support.table_builder import TRIPS, trips

NAME = "java-keys"
URI = f"memory://{NAME}/trips"
JOB = {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "city",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
    "hoodie.datasource.hive_sync.enable": "true",
    "hoodie.upsert.shuffle.parallelism": "200",
    "hoodie.insert.shuffle.parallelism": 200,
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metrics.on": False,
    "hoodie.datasource.write.row.writer.enable": "true",
    "hoodie.clean.commits.retained": "5",
}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget_memory(NAME)


def job_table() -> tk.Table:
    return tk.Table.create(URI, schema=TRIPS, engine="local", options=JOB)


def test_the_settings_of_a_java_job_make_the_table_that_they_describe() -> None:
    table = job_table()
    config = table.config
    assert (config.name, config.key_fields, config.partition_columns) == ("trips", ("id",), ("city",))
    assert (config.ordering_fields, config.is_mor, config.hive_style) == (("ts",), False, True)
    assert (config.key_generator, config.merge_mode.value) == ("COMPLEX", "COMMIT_TIME_ORDERING")
    table.upsert(trips(("a", "sf", 1, 1.0)))
    assert tk.Table.open(URI, engine="local", options=JOB).read().num_rows == 1


def test_settings_without_meaning_are_named_once_and_the_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        job_table()
    (line,) = [record.getMessage() for record in caplog.records]
    for name in ("hoodie.upsert.shuffle.parallelism", "hoodie.datasource.hive_sync.enable", "hoodie.metrics.on"):
        assert name in line
    for name in ("recordkey", "hive_style", "hoodie.clean.commits.retained", "hoodie.table.name"):
        assert name not in line


@pytest.mark.parametrize(
    ("name", "value", "of_the_table"),
    [
        ("hoodie.datasource.write.recordkey.field", "city", "key is id"),
        ("hoodie.table.recordkey.fields", "id,city", "key is id"),
        ("hoodie.datasource.write.partitionpath.field", "", "partition_by is city"),
        ("hoodie.datasource.write.precombine.field", "fare", "ordering is ts"),
        ("hoodie.table.ordering.fields", "fare", "ordering is ts"),
        ("hoodie.datasource.write.table.type", "MERGE_ON_READ", "table type is COPY_ON_WRITE"),
        ("hoodie.table.name", "drives", "name is trips"),
        ("hoodie.datasource.write.hive_style_partitioning", "false", "hive-style partitioning is true"),
        ("hoodie.datasource.write.partitionpath.urlencode", "true", "escaping of partition paths is false"),
        ("hoodie.datasource.write.keygenerator.class", "a.b.SimpleKeyGenerator", "key generator is COMPLEX"),
        ("hoodie.datasource.write.payload.class", "a.b.DefaultHoodieRecordPayload", "is COMMIT_TIME_ORDERING"),
        ("hoodie.write.record.merge.mode", "EVENT_TIME_ORDERING", "merge mode is COMMIT_TIME_ORDERING"),
        ("hoodie.populate.meta.fields", "false", "meta columns is true"),
        ("hoodie.table.cdc.enabled", "true", "change log is false"),
        ("hoodie.write.table.version", "6", "table version is 9"),
        ("hoodie.table.base.file.format", "orc", "base file format is PARQUET"),
        ("hoodie.table.timeline.timezone", "local", "zone of instant times is UTC"),
    ],
)
def test_a_contradiction_of_the_table_is_an_error_that_names_both(name: str, value: str, of_the_table: str) -> None:
    table = job_table()
    for attempt in (
        lambda: tk.Table.open(URI, engine="local", options={name: value}),
        lambda: table.schedule_clustering(options={name: value}),
    ):
        with pytest.raises(tk.InvalidRequestError) as caught:
            attempt()
        assert f"{name}={value!r}" in str(caught.value)
        assert of_the_table in str(caught.value)


def test_an_argument_of_create_and_a_setting_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(tk.InvalidRequestError, match=r"recordkey\.field='id'.*key is city"):
        tk.Table.create(URI, schema=TRIPS, key="city", engine="local", options={**JOB})
    assert not tk.Table.exists(URI)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hoodie.datasource.write.payload.class", "org.example.MyPayload"),
        ("hoodie.datasource.write.keygenerator.class", "org.example.MyGenerator"),
        ("hoodie.datasource.write.insert.drop.duplicates", "true"),
        ("hoodie.precommit.validators", "org.example.MyCheck"),
        ("hoodie.clean.partition.filter.regex", "sf.*"),
        ("as.of.instant", "20261115100000000"),
    ],
)
def test_what_would_change_rows_and_is_not_supported_is_refused(name: str, value: str) -> None:
    job_table()
    with pytest.raises(tk.UnsupportedFeatureError, match=name):
        tk.Table.open(URI, engine="local", options={name: value})


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_value_that_asks_for_nothing_is_accepted(name: str) -> None:
    for value in ("", *REFUSED[name].harmless):
        options = Options({name: value.upper()})
        assert (options.given, options.claims, options.idle) == ({}, {}, [])


def test_a_second_name_counts_as_the_first() -> None:
    assert Options({"hoodie.datasource.clustering.inline.enable": "true"}).flag("hoodie.clustering.inline")
    with pytest.raises(tk.InvalidRequestError, match="are one and differ"):
        Options({"hoodie.clustering.inline": "false", "hoodie.datasource.clustering.inline.enable": "true"})


def test_every_setting_has_one_fate() -> None:
    idle = [name for names in IDLE.values() for name in names]
    groups = [set(OPTIONS) | set(CLAIMS), set(RENAMED), set(REFUSED), set(idle)]
    assert len(set().union(*groups)) == sum(map(len, groups))
    assert len(set(idle)) == len(idle)
    assert set(RENAMED.values()) <= set(OPTIONS)


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("hoodie.upsert.shufle.parallelism", "hoodie.upsert.shuffle.parallelism"),
        ("hoodie.datasource.write.recordkey.fields", "hoodie.datasource.write.recordkey.field"),
    ],
)
def test_a_misspelt_setting_of_java_is_still_refused(misspelt: str, meant: str) -> None:
    with pytest.raises(tk.InvalidRequestError, match=f"Did you mean '{meant}'"):
        Options({misspelt: "x"})


def test_one_setting_turns_all_services_after_writes_off() -> None:
    asked = {"hoodie.compact.inline": "true", "hoodie.clean.automatic": "true"}
    assert [service.name for service in inline_services(Options(asked))] == ["compaction", "clean"]
    assert inline_services(Options({**asked, "hoodie.table.services.enabled": "false"})) == ()


def test_the_settings_also_fit_a_table_that_is_there_already() -> None:
    job_table()
    again = tk.Table.create(URI, schema=TRIPS, engine="local", options=JOB, if_not_exists=True)
    assert again.config.name == "trips"
