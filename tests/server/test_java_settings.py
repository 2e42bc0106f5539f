"""What Java is told when it runs a service for us, and the statements that it gets. No JVM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tablekeeper.config.concurrency_settings import LockSettings
from tablekeeper.config.java_settings import java_settings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.server.engines.java_services import procedure_call
from tests.support.table_builder import TableBuilder

LOCKS = "org.apache.hudi.client.transaction.lock."


@pytest.fixture
def config(tmp_path: Path) -> TableConfig:
    return TableBuilder().create(str(tmp_path / "t"), table_type="mor").config


def settings_of(config: TableConfig, options: dict[str, str], *, on_object_store: bool = False) -> dict[str, str]:
    return java_settings(config, options, locks=LockSettings.from_options(options), on_object_store=on_object_store)


def test_java_runs_as_one_of_many_writers_whatever_it_is_told(config: TableConfig) -> None:
    wild = {
        "hoodie.write.concurrency.mode": "SINGLE_WRITER",
        "hoodie.clean.failed.writes.policy": "EAGER",
        "hoodie.metadata.auto.delete.partitions": "true",
        "hoodie.metadata.enable": "false",
        "hoodie.write.auto.upgrade": "true",
        "hoodie.table.service.manager.enabled": "true",
        "hoodie.compaction.target.io": "100",
    }
    indexed = replace(config, metadata_partitions=("files", "column_stats", "record_index"))
    settings = settings_of(indexed, wild)
    assert settings["hoodie.write.concurrency.mode"] == "OPTIMISTIC_CONCURRENCY_CONTROL"
    assert settings["hoodie.clean.failed.writes.policy"] == "LAZY"
    assert settings["hoodie.metadata.auto.delete.partitions"] == "false"
    assert settings["hoodie.metadata.enable"] == "true"
    assert settings["hoodie.metadata.index.column.stats.enable"] == "true"
    assert settings["hoodie.metadata.index.partition.stats.enable"] == "false"
    assert settings_of(config, {"hoodie.metadata.enable": "true"})["hoodie.metadata.enable"] == "false"
    assert settings["hoodie.write.auto.upgrade"] == "false"
    assert settings["hoodie.write.table.version"] == "9"
    assert settings["hoodie.table.service.manager.enabled"] == "false"
    assert settings["hoodie.compaction.target.io"] == "100"
    assert settings["hoodie.write.lock.provider"] == LOCKS + "FileSystemBasedLockProvider"


def test_the_mode_in_which_nobody_loses_stays(config: TableConfig) -> None:
    mode = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    assert settings_of(config, mode)["hoodie.write.concurrency.mode"] == mode["hoodie.write.concurrency.mode"]


def test_java_takes_the_lock_of_the_table(config: TableConfig) -> None:
    provider = "hoodie.write.lock.provider"
    zookeeper = {provider: "ZookeeperBasedLockProvider", "hoodie.write.lock.zookeeper.base_path": "/locks"}
    settings = settings_of(config, zookeeper)
    assert settings[provider] == LOCKS + "ZookeeperBasedLockProvider"
    assert settings["hoodie.write.lock.zookeeper.lock_key"] == config.name
    assert settings["hoodie.write.lock.zookeeper.base_path"] == "/locks"
    assert settings_of(config, {}, on_object_store=True)[provider] == LOCKS + "StorageBasedLockProvider"
    with pytest.raises(UnsupportedFeatureError, match="one process"):
        settings_of(config, {provider: "InProcessLockProvider"})
    with pytest.raises(UnsupportedFeatureError, match="not supported"):
        settings_of(config, {provider: "com.example.DynamoLock"})


def test_values_of_statements_are_quoted_and_what_cannot_be_is_refused() -> None:
    assert procedure_call("run_clean", {"table": "t", "retain_commits": 3}) == (
        "call run_clean(table => 't', retain_commits => 3)"
    )
    for wild in ("a'b", "a\\b", "a\nb"):
        with pytest.raises(InvalidRequestError, match="quotes"):
            procedure_call("run_clean", {"table": wild})
