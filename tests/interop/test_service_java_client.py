"""Java Hudi as a client of the service: it writes, the service compacts, clusters and cleans, and nobody else helps.

Once with the client that Java ships (patched, see `tablekeeper.java`), whose plans Java makes and the service executes;
once with nothing but Java's commit callback, where the service makes the plans too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.client import ServiceClient
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.java import enable_service_manager
from tablekeeper.metadata_table.layout import load_metadata_timeline
from tablekeeper.model import Action
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import open_storage
from tablekeeper.timeline.properties_file import load_table_config
from tests.support.java_hudi import JavaTable
from tests.support.served import Served, running_service

WRITES = 6
KEYS = 20
TIMEOUT_S = 150.0
KINDS = ("mor", "cow")

# What everybody who shares a table with other processes gives to Java.
SHARED = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.wait_time_ms": "60000",
    "hoodie.write.num.retries.on.conflict.failures": "5",
    # The writer wins: by default Java's writes fail while a clustering of their files waits.
    "hoodie.clustering.updates.strategy": "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy",
}
# Java makes the plans, and its client asks the service to execute them.
COMPACTIONS = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "2"}
PLANS = {
    "hoodie.clustering.inline": "true",
    "hoodie.clustering.inline.max.commits": "2",
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "1",
}
POLICY = {
    "services": ["compaction", "clustering", "clean"],
    "compact_after_commits": 2,
    "cluster_after_commits": 3,
    "clean_after_commits": 2,
    "keep_commits": 1,
    "cancellable": True,
}


def rows(number: int) -> pa.Table:
    """All keys in their `number`th version, and one that only this write has."""
    ids = [*(f"k{key:02d}" for key in range(KEYS)), f"w{number}"]
    return pa.table({"id": ids, "part": ["a", "b", "c"] * 7, "ts": [number] * len(ids), "value": [float(number)] * 21})


def expected(writes: int) -> list[tuple[str, float]]:
    kept = [(f"k{key:02d}", float(writes)) for key in range(KEYS)]
    return sorted([*kept, *((f"w{number}", float(number)) for number in range(1, writes + 1))])


def read_by_java(table: JavaTable) -> list[tuple[str, float]]:
    return sorted((row["id"], row["value"]) for row in table.read().select(["id", "value"]).to_pylist())


def java_tables(spark: Any, lake: Path, options: Mapping[str, str]) -> dict[str, JavaTable]:
    return {
        kind: JavaTable(
            spark,
            str(lake / kind),
            {
                **JavaTable.options_for(name=kind, key=["id"], partition_by=["part"], ordering="ts", table_type=kind),
                **SHARED,
                **options,
                # Java refuses to write a copy-on-write table with it.
                **(COMPACTIONS if kind == "mor" and PLANS.items() <= options.items() else {}),
            },
        )
        for kind in KINDS
    }


def write_and_read(tables: Mapping[str, JavaTable]) -> None:
    """Each write is followed by a read at once, whatever the service is doing to the table meanwhile."""
    for number in range(1, WRITES + 1):
        for table in tables.values():
            # `write` switches services off unless the options of the call say otherwise.
            table.write(rows(number), "upsert", **{name.replace(".", "__"): v for name, v in table.options.items()})
            assert read_by_java(table) == expected(number)


def await_services(served: Served, table: str, actions: set[str]) -> list[dict[str, Any]]:
    """The completed operations of the table, once all of these are among them and nothing is left to do."""
    client, clock = served.client(), SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while True:
        found = operations(client, table)
        done = [each for each in found if each["status"] == "completed"]
        is_quiet = all(each["status"] in ("completed", "cancelled") for each in found)
        if is_quiet and actions <= {each["action"] for each in done}:
            return done
        assert clock.monotonic_s() < until_s, (found, served.log.read_text())
        clock.sleep(0.5)


def operations(client: ServiceClient, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/operations", {"table_name": table, "limit": 1000})["operations"]
    return found


def check_end(tables: Mapping[str, JavaTable], served: Served) -> dict[str, list[dict[str, Any]]]:
    """Every service has done its work on every table, and Java finds each row that it ever wrote."""
    done = {}
    for kind, table in tables.items():
        actions = {"clustering", "clean"} | ({"compaction"} if kind == "mor" else set())
        done[kind] = await_services(served, kind, actions)
        assert read_by_java(table) == expected(WRITES)
        ours = tk.Table.open(table.path, engine="local")
        assert sorted((row["id"], row["value"]) for row in ours.read().to_pylist()) == expected(WRITES)
        assert [plan for plan in ours.plans() if plan.is_held] == []
        assert ours.doctor().findings == ()
    return done


@pytest.mark.timeout(600)
def test_the_client_that_java_ships_hands_its_plans_over(spark: Any, tmp_path: Path) -> None:
    with running_service(tmp_path / "service", allow=tmp_path / "lake") as served:
        options = {**PLANS, **enable_service_manager(spark, served.url)}
        tables = java_tables(spark, tmp_path / "lake", options)
        write_and_read(tables)
        done = check_end(tables, served)
        for kind, completed in done.items():
            asked = {each["action"] for each in completed if each["why"] == "a writer asked for it"}
            assert {"clustering", "clean"} <= asked, (kind, completed)
        assert any(e["action"] == "compaction" and e["why"] == "a writer asked for it" for e in done["mor"])


@pytest.mark.timeout(600)
def test_the_commit_callback_alone_is_enough(spark: Any, tmp_path: Path) -> None:
    with running_service(tmp_path / "service", allow=tmp_path / "lake") as served:
        callback = {
            "hoodie.write.commit.callback.on": "true",
            "hoodie.write.commit.callback.http.url": f"{served.url}/v1/hoodie/callback",
        }
        tables = java_tables(spark, tmp_path / "lake", callback)
        # What the lake wants of the service; the tables come to be known by the callback.
        served.client().put("/v1/databases/default/policy", POLICY)
        write_and_read(tables)
        done = check_end(tables, served)
        assert all(each["why"] != "a writer asked for it" for completed in done.values() for each in completed)


def test_a_session_without_java_hudi_or_without_a_jvm_is_told() -> None:
    class Package:
        """What py4j gives for names that are not there."""

        def __getattr__(self, name: str) -> Any:
            raise TypeError("'JavaPackage' object is not callable")

    class Session:
        _jvm: Any = None

    with pytest.raises(InvalidRequestError, match="classic Spark session"):
        enable_service_manager(Session())
    Session._jvm = Package()
    with pytest.raises(UnsupportedFeatureError, match="no Java Hudi"):
        enable_service_manager(Session())


@pytest.mark.timeout(600)
def test_java_leaves_compactions_of_its_metadata_table_to_the_service(spark: Any, tmp_path: Path) -> None:
    delegated = {
        "hoodie.metadata.enable": "true",
        "hoodie.metadata.compact.max.delta.commits": "3",
        "hoodie.metadata.table.service.manager.enabled": "true",
        "hoodie.metadata.table.service.manager.actions": "compaction",
    }
    with running_service(tmp_path / "service", allow=tmp_path / "lake") as served:
        options = {**delegated, **enable_service_manager(spark, served.url)}
        tables = {"mor": java_tables(spark, tmp_path / "lake", options)["mor"]}
        write_and_read(tables)
        await_services(served, "mor", {"metadata_compaction"})
        # The next write of Java's goes on where the service has left its metadata table.
        table = tables["mor"]
        table.write(rows(WRITES), "upsert", **{name.replace(".", "__"): v for name, v in table.options.items()})
    storage = open_storage(table.path, runtime=SYSTEM_RUNTIME)
    timeline = load_metadata_timeline(storage, load_table_config(storage))
    assert [each.requested_at for each in timeline.completed if each.action is Action.COMMIT], list(timeline)
    assert read_by_java(table) == expected(WRITES)
    assert tk.Table.open(table.path, engine="local").doctor().findings == ()
