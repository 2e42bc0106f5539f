"""What log compaction plans and leaves alone, and what its kernel makes of blocks that cannot be merged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tablekeeper.config.options import Options
from tablekeeper.config.service_settings import LogCompactionSettings
from tablekeeper.config.table_config import MergeMode, parse_table_config
from tablekeeper.config.table_properties import new_table_properties
from tablekeeper.errors import PlanCancelledError
from tablekeeper.format.avro_arrow import arrow_to_avro_schema
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.log_data import encode_parquet_block_content
from tablekeeper.model import (
    Action,
    BaseFile,
    CompletionTime,
    FileGroupId,
    FileSlice,
    Instant,
    LogFile,
    RequestedTime,
    State,
)
from tablekeeper.record.merge import KEY_COLUMN, MergeRule
from tablekeeper.services.compaction.kernels import CompactionTask, compact_slice
from tablekeeper.services.log_compaction.kernels import LogCompactionTask, compact_logs
from tablekeeper.services.log_compaction.service import LogCompaction
from tablekeeper.services.log_compaction.strategies import LogCompactionStrategy
from tablekeeper.services.plans.service import Draft
from tablekeeper.snapshot.snapshot import Snapshot
from tablekeeper.storage import forget_memory
from tablekeeper.timeline import Timeline
from tablekeeper.txn.cancel_requests import CancelRequest, save_cancel_request
from tablekeeper.write.context import WriteContext
from tests.support.table_builder import TRIPS
from tests.support.write_context import begun, make_context

GROUP = FileGroupId("sf", "a1b2c3d4-0000-0")


def at(number: int) -> str:
    return f"20240101{number:09d}"


def log(number: int) -> LogFile:
    name = f".{GROUP.file_id}_{at(number)}.log.1_0-0-0"
    return LogFile(GROUP, RequestedTime(at(number)), 1, "0-0-0", name, 10)


def delta_commit(number: int, *, action: Action = Action.DELTA_COMMIT, done: bool = True) -> list[Instant]:
    """An instant with its requested file, which stays beside the completed one."""
    requested = Instant(RequestedTime(at(number)), action, State.REQUESTED)
    if not done:
        return [requested]
    return [
        requested,
        Instant(requested.requested_at, action.completed_as, State.COMPLETED, CompletionTime(at(number))),
    ]


def plan(*logs: int, log_compactions: tuple[int, ...] = (), pending: int | None = None, blocks: int = 2) -> Draft:
    instants = [each for number in logs if number not in log_compactions for each in delta_commit(number)]
    instants += [each for n in log_compactions for each in delta_commit(n, action=Action.LOG_COMPACTION)]
    instants += [] if pending is None else delta_commit(pending, done=False)
    properties = new_table_properties(
        name="t",
        table_type="mor",
        keys=["id"],
        partitions=["city"],
        ordering=["ts"],
        avro_schema="{}",
        options=Options(),
    )
    file_slice = FileSlice(GROUP, RequestedTime(at(0)), None, tuple(map(log, logs)))
    snapshot = Snapshot(
        parse_table_config(properties, file="properties"), Timeline.of(instants), None, {GROUP: (file_slice,)}, ("sf",)
    )
    service = LogCompaction(LogCompactionStrategy(LogCompactionSettings(blocks_threshold=blocks)))
    return service.plan(snapshot, planned=frozenset())


def planned(draft: Draft) -> list[str]:
    return [each.instant.value for work in draft.work for each in work.slices[0].logs]


def test_a_slice_with_enough_logs_is_planned_with_all_of_them() -> None:
    assert planned(plan(1, 2, 3, blocks=3)) == [at(1), at(2), at(3)]
    assert planned(plan(1, 2, blocks=3)) == []


def test_one_log_alone_is_never_merged() -> None:
    assert planned(plan(1, blocks=1)) == []


def test_what_was_merged_counts_once_but_is_planned_with_its_originals() -> None:
    assert planned(plan(1, 2, 3, 4, log_compactions=(4,), blocks=2)) == []
    assert planned(plan(1, 2, 3, 4, 5, log_compactions=(4,), blocks=3)) == []
    assert planned(plan(1, 2, 3, 4, 5, 6, log_compactions=(4,), blocks=3)) == [at(n) for n in range(1, 7)]


def test_only_logs_older_than_every_pending_write_are_planned_and_the_partition_comes_back() -> None:
    draft = plan(1, 2, 4, pending=3)
    assert planned(draft) == [at(1), at(2)]
    assert draft.missing == ("sf",)
    waiting = plan(2, 4, pending=1)
    assert planned(waiting) == []
    assert waiting.missing == ("sf",)


@pytest.fixture
def context() -> Iterator[WriteContext]:
    context = make_context(rule=MergeRule(MergeMode.COMMIT_TIME), instant=at(9))
    yield context
    forget_memory(context.store.storage.spec.uri.removeprefix("memory://").split("/")[0])


def partial_slice(context: WriteContext) -> FileSlice:
    """A base file with two rows, and a log that changes the fare of one of them only."""
    storage = context.store.storage
    rows = [{"id": key, "city": "sf", "ts": 1, "fare": 1.0, KEY_COLUMN: key} for key in ("a", "b")]
    name = f"{GROUP.file_id}_0-0-0_{at(0)}.parquet"
    base = BaseFile(GROUP, RequestedTime(at(0)), "0-0-0", name, 1)
    with storage.open_output(base.path) as sink:
        pq.write_table(pa.Table.from_pylist(rows, schema=context.file_schema), sink)
    changed = pa.schema([(KEY_COLUMN, pa.string()), ("fare", pa.float64())])
    avro = json.dumps(arrow_to_avro_schema(changed, record_name="r", namespace="n"))
    content = encode_parquet_block_content(pa.table([["a"], [7.0]], schema=changed), avro_schema_json=avro)
    header = {HeaderKey.INSTANT_TIME: at(1), HeaderKey.SCHEMA: avro, HeaderKey.IS_PARTIAL: "true"}
    storage.put(log(1).path, encode_block(BlockType.PARQUET_DATA, header, content))
    return FileSlice(GROUP, base.instant, base, (log(1),))


def test_logs_with_partial_updates_are_left_as_they_are(context: WriteContext) -> None:
    file_slice = partial_slice(context)
    before = {file.path for file in context.store.storage.walk("")}
    assert compact_logs(LogCompactionTask(context, file_slice, 0)) == ()
    assert {file.path for file in context.store.storage.walk("")} == before


def test_compaction_merges_partial_updates_into_their_rows(context: WriteContext) -> None:
    written = compact_slice(CompactionTask(context, partial_slice(context), 0))
    with context.store.storage.open_input(written.stat.path) as stream:
        rows = pq.read_table(stream).select(TRIPS.names).to_pylist()
    assert [(row["id"], row["ts"], row["fare"]) for row in rows] == [("a", 1, 7.0), ("b", 1, 1.0)]
    assert (written.stat.updates, written.stat.inserts, written.stat.deletes) == (1, 0, 0)


def test_a_plan_that_was_cancelled_gets_no_file(context: WriteContext) -> None:
    file_slice, context = partial_slice(context), begun(context)
    save_cancel_request(context.store.storage, CancelRequest(RequestedTime(context.instant), "enough"))
    before = {file.path for file in context.store.storage.walk("")}
    with pytest.raises(PlanCancelledError, match="enough"):
        compact_slice(CompactionTask(context, file_slice, 0))
    with pytest.raises(PlanCancelledError, match="enough"):
        compact_logs(LogCompactionTask(replace(context, guard=begun(context).guard), file_slice, 0))
    assert {file.path for file in context.store.storage.walk("")} == before
