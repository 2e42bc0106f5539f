"""Tables on an object store, tables that are made anew with another layout, and tables that are deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import tablekeeper as tk
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.loops.context import make_job
from tablekeeper.server.model import ManagedTable, Operation, ServiceAction, Status
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.server.policy import Policy
from tablekeeper.server.settings import Limits, ServerSettings, Timing
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page
from tablekeeper.server.timelines import TableTimelines
from tests.support.moto_server import moto_server
from tests.support.table_builder import TRIPS, rows_of, trips

TIMING = Timing(look_min_s=0.05, look_max_s=0.1, back_off_s=0.1, held_retry_s=0.2)
POLICY = Policy(services=(ServiceAction.COMPACTION, ServiceAction.CLUSTERING), compact_after_commits=2)
TIMEOUT_S = 200.0


def run_until(service: Service, is_done: Callable[[], bool]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_done():
        assert clock.monotonic_s() < until_s, service.store.list_operations(OperationFilter(), Page())
        service.run_once()
        clock.sleep(0.05)


def completed(service: Service) -> list[Operation]:
    return service.store.list_operations(OperationFilter(statuses=(Status.COMPLETED,)), Page())


def opened(work_dir: Path, allow: str, **more: object) -> Service:
    settings = ServerSettings(work_dir=work_dir, allow=(allow,), timing=TIMING, limits=Limits(failed_looks=3), **more)  # type: ignore[arg-type]
    return open_service(settings, runtime=SYSTEM_RUNTIME)


def written(
    path: str, table_type: str, *, partition_by: str | None = "city", storage_options: dict[str, str] | None = None
) -> tk.Table:
    """A table with three commits, of which a merge-on-read one has two in logs."""
    table = tk.Table.create(
        path,
        name="trips",
        schema=TRIPS,
        key="id",
        ordering="ts",
        partition_by=partition_by,
        table_type=table_type,
        engine="local",
        storage_options=storage_options,
    )
    table.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    for ts in (2, 3):
        table.upsert(trips(("a", "sf", ts, float(ts))))
    return table


def test_tables_on_an_object_store_are_looked_at_and_compacted_and_their_secrets_stay_here(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(moto_server())
        server.create_bucket("lake")
        table = written("s3://lake/trips", "mor", storage_options=server.options)
        service = opened(tmp_path / "service", "s3://lake", storage_options=server.options)
        stack.callback(service.stop)
        service.store.register_table(NewTable("db", "trips", "s3://lake/trips", policy=POLICY))
        run_until(service, lambda: bool(completed(service)))
        assert [len(each.logs) for each in table.files(partitions=["sf"])] == [0]
        assert rows_of(table.read(), "id", "fare") == [("a", 3.0), ("b", 1.0)]
    # Jobs are files that carry the keys of the store.
    folders = [tmp_path / "service" / name for name in ("", "jobs", "attempts")]
    assert [each.stat().st_mode & 0o077 for each in folders] == [0, 0, 0]
    assert [each.name for each in (tmp_path / "service").glob("service.db*") if each.stat().st_mode & 0o077] == []


def test_a_table_that_is_made_anew_with_another_layout_is_looked_at_as_what_it_is(tmp_path: Path) -> None:
    place = tmp_path / "trips"
    written(str(place), "cow")
    service = opened(tmp_path / "service", str(tmp_path))
    table, _ = service.store.register_table(NewTable("db", "trips", str(place), policy=POLICY))
    run_until(service, lambda: bool(service.store.load_table(table.table_id).facts.newest_time))
    assert completed(service) == []
    shutil.rmtree(place)
    fresh = written(str(place), "mor", partition_by=None)
    service.store.notice_commit(table.table_id)
    run_until(service, lambda: bool(completed(service)))
    assert [each.action for each in completed(service)] == [ServiceAction.COMPACTION]
    assert [len(each.logs) for each in fresh.files()] == [0]
    service.stop()


@pytest.mark.parametrize("is_held_up", [False, True])
def test_a_table_that_is_deleted_is_quarantined_and_goes_on_when_it_is_there_again(
    tmp_path: Path, is_held_up: bool
) -> None:
    place = tmp_path / "trips"
    written(str(place), "mor")
    service = opened(tmp_path / "service", str(tmp_path))
    table, _ = service.store.register_table(NewTable("db", "trips", str(place), policy=POLICY))
    if is_held_up:
        # Its compaction waits when the table goes.
        service.looks.run_once()
    shutil.rmtree(place)
    run_until(service, lambda: bool(service.store.load_table(table.table_id).quarantine))
    assert "is not a Hudi table" in service.store.load_table(table.table_id).quarantine
    service.alarms.run_once()
    assert "quarantined" in {each.rule for each in service.store.list_alarms(Page(), only_open=True)}
    again = written(str(place), "mor")
    service.store.quarantine_table(table.table_id, "")
    run_until(service, lambda: bool(completed(service)))
    assert rows_of(again.read(), "id", "fare") == [("a", 3.0), ("b", 1.0)]
    service.stop()


def test_storage_options_of_other_stores_do_no_harm(tmp_path: Path, lake: Path, table: tk.Table) -> None:
    mixed = {"region": "eu-west-1", "AWS_ENDPOINT": "http://s3", "account_name": "a", "fsync": "false"}
    timelines = TableTimelines(mixed, SYSTEM_RUNTIME, AllowedPlaces((str(tmp_path),)))
    path = f"file://{lake}/trips"
    assert timelines.summary(path).newest_time == table.timeline_summary().newest_time
    assert timelines.metadata_compactions(path) == frozenset()
    managed = ManagedTable(1, "db", "t", path)
    service = open_service(ServerSettings(work_dir=tmp_path / "w", storage_options=mixed), runtime=SYSTEM_RUNTIME)
    try:
        operation = Operation(1, 1, "clean@1", ServiceAction.CLEAN, Status.RUNNING)
        jobs = {
            place: make_job(service.context, operation, replace(managed, base_path=place), Policy(), 1)
            for place in (path, "s3://lake/t", "gs://lake/t", "az://lake/t")
        }
    finally:
        service.stop()
    assert {place: sorted(job.storage_options) for place, job in jobs.items()} == {
        path: ["fsync"],
        "s3://lake/t": ["AWS_ENDPOINT", "region"],
        "gs://lake/t": [],
        "az://lake/t": ["account_name"],
    }
