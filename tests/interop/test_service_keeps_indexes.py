"""A service run never takes an index of a Java table away: it is refused, visibly, or goes to Java."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.model import AttemptOutcome, Operation, ServiceAction, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.settings import Limits, ServerSettings, Timing
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page
from tests.support.java_hudi import JavaTable, bundle_jar

TIMEOUT_S = 500.0
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("ts", pa.int64())])
# Java reads a metadata table with an expression index only through its timeline server.
INDEXES = {"hoodie.metadata.enable": "true", "hoodie.embed.timeline.server": "true"}
LOCK = "hoodie.write.lock.provider"


@pytest.fixture
def java(spark: Any, tmp_path: Path) -> JavaTable:
    """A merge-on-read table of Java's with an expression index, and something to compact."""
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering="ts", table_type="mor", extra=INDEXES
    )
    made = JavaTable(spark, str(tmp_path / "t"), options)
    for ts in (1, 2, 3):
        made.write(pa.table({"id": [1, 2], "city": ["a", "b"], "ts": [ts, ts]}, schema=SCHEMA), "upsert")
    # `CREATE INDEX` asks for a lock provider.
    spark.conf.set(LOCK, "org.apache.hudi.client.transaction.lock.InProcessLockProvider")
    spark.sql(f"create table service_expression using hudi location '{made.path}'")
    spark.sql(
        "create index by_day on service_expression using column_stats(ts) "
        "options(expr='from_unixtime', format='yyyy-MM-dd')"
    )
    spark.sql("drop table service_expression")
    spark.conf.unset(LOCK)
    return made


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = open_service(
        ServerSettings(
            work_dir=tmp_path / "service",
            allow=(str(tmp_path),),
            engine="arrow",
            engine_options={
                "hudi_bundle": str(bundle_jar()),
                "hudi_python": sys.executable,
                "hudi_master": "local[1]",
            },
            limits=Limits(slots=1),
            timing=Timing(look_min_s=0.5, look_max_s=1.0),
        ),
        runtime=SYSTEM_RUNTIME,
    )
    yield opened
    opened.stop()


def run_until(service: Service, status: Status) -> Operation:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while True:
        service.run_once()
        found = service.store.list_operations(OperationFilter(statuses=(status,)), Page())
        if found:
            return found[0]
        every = service.store.list_operations(OperationFilter(), Page())
        attempts = [each for operation in every for each in service.store.load_attempts(operation.operation_id)]
        assert clock.monotonic_s() < until_s, (every, [load_log_tail(each.log_path) for each in attempts])
        clock.sleep(0.1)


@pytest.mark.timeout(600)
def test_what_would_cost_an_index_is_refused_with_an_alarm_or_goes_to_java(
    service: Service, java: JavaTable, tmp_path: Path
) -> None:
    indexes = tk.Table.open(java.path, engine="local").config.metadata_partitions
    assert "expr_index_by_day" in indexes
    policy = Policy(services=(ServiceAction.COMPACTION,), compact_after_commits=2)
    table, _ = service.store.register_table(NewTable("db", "t", str(tmp_path / "t"), policy=policy))
    refused = run_until(service, Status.FAILED)
    assert "index expr_index_by_day" in refused.note
    (attempt,) = service.store.load_attempts(refused.operation_id)
    assert attempt.outcome is AttemptOutcome.REFUSED
    service.run_once()
    assert any("index expr_index_by_day" in alarm.text for alarm in service.store.list_alarms(Page(), only_open=True))
    assert tk.Table.open(java.path, engine="local").config.metadata_partitions == indexes

    with_java = Policy(services=(ServiceAction.COMPACTION,), compact_after_commits=2, fallback_engine="hudi-java")
    service.store.change_policy(table.table_id, with_java)
    service.store.revive(refused.operation_id, note="with another engine")
    done = run_until(service, Status.COMPLETED)
    engines = [(each.engine, each.outcome) for each in service.store.load_attempts(done.operation_id)]
    assert ("hudi-java", AttemptOutcome.COMPLETED) in engines
    assert tk.Table.open(java.path, engine="local").config.metadata_partitions == indexes
    assert sorted(row["ts"] for row in java.read().to_pylist()) == [3, 3]
    java.write(pa.table({"id": [2, 9], "city": ["b", "a"], "ts": [8, 8]}, schema=SCHEMA), "upsert")
    assert sorted((row["id"], row["ts"]) for row in java.read().to_pylist()) == [(1, 3), (2, 8), (9, 8)]
