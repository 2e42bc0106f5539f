"""Real databases: brought up to date from each earlier schema, by one instance at a time, with a clock of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import inspect, text

from tablekeeper.server.model import (
    ServiceAction,
)
from tablekeeper.server.store.migrate import current_revision, migrate
from tablekeeper.server.store.protocol import (
    NewTable,
    Submission,
)
from tablekeeper.server.store.schema import OPERATION
from tablekeeper.server.store.sql import open_store

# As the first release wrote them.
_OLD_TABLE = (
    "INSERT INTO tbl (id, db_name, table_name, base_path, owner, queue, action_types, priority) "
    "VALUES (1, 'db', 'trips', '/lake/trips', 'ann', 'q1', '', '5')"
)
_OLD_STATE = (
    "INSERT INTO tbl_state (tbl_id, path_digest, policy, is_paused, quarantine, look_at_ms, hold_until_ms, is_noticed, "
    """idle_looks, failed_looks, facts) VALUES (1, 'x', '{}', false, '', 0, 0, false, 0, 0, '{"newest_time":"1"}')"""
)
_OLD_OPERATION = (
    "INSERT INTO operation (operation_id, tbl_id, instant, action, status, engine, retry_on_error, run_times, "
    "{deleted}, create_time, update_time, failures, priority, queue, owner, parameters, not_before_ms, lease_token, "
    "instance_id, cancel_reason, why, note) VALUES (1, 1, '20261118120000000', 'compaction', 0, '', true, 0, false, "
    "'2026-11-18 12:00:00', '2026-11-18 12:00:00', 0, 5, 'q1', 'ann', '{{}}', 0, 0, '', '', '', '')"
)


@pytest.mark.parametrize("earlier", ["0001", "0002", "0003", "0004"])
def test_a_database_of_an_earlier_release_is_brought_up_to_date_with_what_is_in_it(
    database_url: str, earlier: str
) -> None:
    old = open_store(database_url)
    engine = old._database.engine
    migrate(engine, earlier)
    with engine.begin() as connection:
        connection.execute(text(_OLD_TABLE))
        connection.execute(text(_OLD_STATE))
        connection.execute(text(_OLD_OPERATION.format(deleted=engine.dialect.identifier_preparer.quote("isDeleted"))))
    old.migrate()
    assert current_revision(engine) == "0005"
    assert {column["name"] for column in inspect(engine).get_columns("operation")} >= {"operation_id", "trace"}
    wanted = {index.name: [column.name for column in index.columns] for index in OPERATION.indexes}
    found = {index["name"]: index["column_names"] for index in inspect(engine).get_indexes("operation")}
    assert {name: found.get(name) for name in wanted} == wanted
    table = old.find_table("db", "trips")
    assert table is not None
    (waiting,) = old.load_work(10).queued
    claimed = old.claim(waiting.operation_id, instance_id="one", lease_s=60.0)
    assert claimed is not None
    assert (claimed.instant, claimed.table_id) == ("20261118120000000", table.table_id)
    old.close()


def test_migrating_twice_or_at_once_is_migrating_once(database_url: str) -> None:
    stores = [open_store(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: each.migrate(), stores))
    assert stores[0].list_instances() == []
    for each in stores:
        each.close()


def test_the_database_tells_the_time(database_url: str) -> None:
    store = open_store(database_url)
    store.migrate()
    before = store.now_ms()
    table, _ = store.register_table(NewTable("db", "t", "/t"))
    operation = store.submit(Submission(table.table_id, "20261118120000000", ServiceAction.COMPACTION)).operation
    assert before - 2 <= operation.create_ms <= store.now_ms() + 2
    assert abs(operation.not_before_ms - operation.create_ms) < 5_000
    store.close()
