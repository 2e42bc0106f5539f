"""Plans of compaction between the timeline and the service: ours come back, Java's are understood, damage is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.plans import CompactionOperation, CompactionPlan, decode_compaction_plan, encode_compaction_plan
from tablekeeper.model import (
    BaseFile,
    FileGroupId,
    FileSlice,
    LogFile,
    Plan,
    PlanFlags,
    RequestedTime,
    ServiceKind,
    Strategy,
    Work,
)
from tablekeeper.storage.protocol import StorageSpec
from tablekeeper.timeline.plans import decode_plan, encode_plan

GROUP = FileGroupId("city=sf", "a1b2c3d4-0000-0")
OLD, FIRST, SECOND = "20240101000000000", "20240101000000001", "20240101000000002"
BASE = f"a1b2c3d4-0000-0_0-1-2_{OLD}.parquet"
LOGS = tuple(f".a1b2c3d4-0000-0_{instant}.log.1_0-3-4" for instant in (FIRST, SECOND))
MB = 1 << 20
KIND, SPEC = ServiceKind.COMPACTION, StorageSpec("file:///lake/t")


def base(size: int = 5 * MB) -> BaseFile:
    return BaseFile(GROUP, RequestedTime(OLD), "0-1-2", BASE, size)


def log(instant: str, size: int = MB) -> LogFile:
    return LogFile(GROUP, RequestedTime(instant), 1, "0-3-4", f".a1b2c3d4-0000-0_{instant}.log.1_0-3-4", size)


def operation(**changes: Any) -> CompactionOperation:
    made = CompactionOperation(
        GROUP,
        OLD,
        BASE,
        LOGS,
        metrics={"TOTAL_LOG_FILES_SIZE": 2.0 * MB, "TOTAL_IO_READ_MB": 7.0},
    )
    return replace(made, **changes)


def decoded(*operations: CompactionOperation) -> Plan:
    return decode_plan(encode_compaction_plan(CompactionPlan(operations)), KIND, file="plan")


def test_a_plan_comes_back_as_it_was_written() -> None:
    file_slice = FileSlice(GROUP, RequestedTime(OLD), base(), (log(FIRST), log(SECOND)))
    flags = PlanFlags(cancellable=True, mutable=True, cancel_after_s=60, scheduled_by="host:1")
    plan = Plan((Work((file_slice,)),), flags=flags, missing=("city=la",), extra={"note": "kept"})
    plan = replace(plan, strategy=Strategy("a.Strategy", {"p": "v"}))
    found = decode_plan(encode_plan(plan, KIND, spec=SPEC), KIND, file="plan")
    assert (found.work, found.flags, found.missing) == (plan.work, flags, ("city=la",))
    assert found.extra["note"] == "kept"
    assert found.strategy == Strategy("a.Strategy", {"p": "v"})


def test_a_plan_carries_the_metrics_that_javas_executor_needs() -> None:
    file_slice = FileSlice(GROUP, RequestedTime(OLD), base(), (log(FIRST), log(SECOND)))
    content = encode_plan(Plan((Work((file_slice,)),)), KIND, spec=SPEC)
    (made,) = decode_compaction_plan(content, file="plan").operations
    assert made.metrics["TOTAL_LOG_FILES_SIZE"] == 2.0 * MB
    assert made.metrics["TOTAL_LOG_FILES"] == 2.0
    assert (made.base_file, made.log_files) == (BASE, LOGS)


def test_sizes_are_estimated_from_the_metrics() -> None:
    (work,) = decoded(operation()).work
    assert work.slices == (FileSlice(GROUP, RequestedTime(OLD), base(), (log(FIRST), log(SECOND))),)
    (unknown,) = decoded(operation(metrics={})).work
    assert unknown.size == 0


def test_logs_are_put_in_the_order_in_which_they_merge_and_whole_paths_count_by_their_names() -> None:
    paths = tuple(f"file:/lake/t/city=sf/{name}" for name in reversed(LOGS))
    (work,) = decoded(operation(log_files=paths, base_file=f"/lake/t/city=sf/{BASE}")).work
    assert [each.name for each in work.slices[0].logs] == list(LOGS)
    assert work.slices[0].base == base()


def test_a_slice_without_a_base_file_begins_at_its_first_log() -> None:
    (work,) = decoded(operation(base_file=None, base_instant="")).work
    assert (work.slices[0].base, work.slices[0].base_instant) == (None, RequestedTime(FIRST))


@pytest.mark.parametrize(
    "changes",
    [{"log_files": ("stranger",)}, {"base_file": "stranger.parquet"}, {"base_file": None, "log_files": ()}],
    ids=str,
)
def test_a_plan_that_names_files_of_others_is_damage(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptTableError, match="plan"):
        decoded(operation(**changes))


def test_files_of_another_group_are_damage() -> None:
    with pytest.raises(CorruptTableError, match="no data file of file group"):
        decoded(operation(group=FileGroupId("city=sf", "other-0")))


def test_a_bootstrapped_file_group_is_left_to_java() -> None:
    with pytest.raises(UnsupportedFeatureError, match="Run this plan with Java"):
        decoded(operation(bootstrap_file="/elsewhere/x.parquet"))
