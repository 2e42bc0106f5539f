"""The outline of a plan: what it says beside its file groups, from the header of a large one or past the groups."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import fastavro
import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.avro_container import encode_record
from tablekeeper.format.plans import (
    ClusteringGroup,
    ClusteringPlan,
    CompactionOperation,
    CompactionPlan,
    RequestedReplaceMetadata,
    SliceInfo,
    decode_compaction_plan,
    decode_outline,
    decode_outline_note,
    decode_requested_replace_metadata,
    encode_compaction_plan,
    encode_requested_replace_metadata,
)
from tablekeeper.model import FileGroupId, Operation, PlanOutline, Strategy

__all__: list[str] = []

FILE = "20260101000000000.compaction.requested"
OUTLINE = PlanOutline(("a", "b"), {"scope": "s"}, {"tablekeeper.mutable": "true"})
SMALL, LARGE = 3, 1_000


def compaction(groups: int) -> CompactionPlan:
    operations = tuple(
        CompactionOperation(FileGroupId("p", f"f{n}"), "1", None, (f".f{n}.log",), {"TOTAL_LOG_FILES": 1.0})
        for n in range(groups)
    )
    return CompactionPlan(operations, OUTLINE.extra, ("a", "b"), Strategy("C", OUTLINE.params))


def clustering(groups: int) -> RequestedReplaceMetadata:
    slices = tuple(SliceInfo(FileGroupId("p", f"f{n}"), f"/t/f{n}.parquet") for n in range(groups))
    plan = ClusteringPlan((ClusteringGroup(slices),), Strategy("C", OUTLINE.params), OUTLINE.extra, ("a", "b"))
    return RequestedReplaceMetadata(Operation.CLUSTER, plan)


@pytest.mark.parametrize("groups", [SMALL, LARGE])
def test_the_outline_of_a_compaction_is_what_the_whole_plan_says(groups: int) -> None:
    plan = compaction(groups)
    data = encode_compaction_plan(plan)
    assert decode_outline(data, file=FILE, is_clustering=False) == OUTLINE
    assert decode_compaction_plan(data, file=FILE) == plan


@pytest.mark.parametrize("groups", [SMALL, LARGE])
def test_the_outline_of_a_clustering_is_what_the_whole_plan_says(groups: int) -> None:
    plan = clustering(groups)
    data = encode_requested_replace_metadata(plan)
    assert decode_outline(data, file=FILE, is_clustering=True) == OUTLINE
    assert decode_requested_replace_metadata(data, file=FILE) == plan


@pytest.mark.parametrize("groups", [SMALL, LARGE])
def test_the_file_groups_are_told_where_they_are_asked_for(groups: int) -> None:
    expected = replace(OUTLINE, file_groups=frozenset(FileGroupId("p", f"f{n}") for n in range(groups)))
    data = encode_compaction_plan(compaction(groups))
    assert decode_outline(data, file=FILE, is_clustering=False, with_groups=True) == expected
    data = encode_requested_replace_metadata(clustering(groups))
    assert decode_outline(data, file=FILE, is_clustering=True, with_groups=True) == expected


def test_only_large_plans_carry_their_outline_in_the_header_which_others_ignore() -> None:
    small, large = encode_compaction_plan(compaction(SMALL)), encode_compaction_plan(compaction(LARGE))
    assert decode_outline_note(small, file=FILE) is None
    assert decode_outline_note(large, file=FILE) == OUTLINE
    (record,) = fastavro.reader(io.BytesIO(large))
    assert isinstance(record, dict)
    assert len(record["operations"]) == LARGE


def test_the_beginning_of_a_large_plan_is_enough() -> None:
    large = encode_compaction_plan(compaction(LARGE))
    assert decode_outline_note(large[: 1 << 13], file=FILE) == OUTLINE
    assert decode_outline_note(large[:500], file=FILE) is None


@pytest.mark.parametrize("groups", [SMALL, LARGE])
def test_a_plan_whose_maker_recorded_nothing_has_no_missing_partitions_to_trust(groups: int) -> None:
    silent = CompactionPlan(compaction(groups).operations, records_missing=False)
    assert decode_outline(encode_compaction_plan(silent), file=FILE, is_clustering=False) == PlanOutline()


def test_a_replace_commit_without_a_plan_has_an_empty_outline() -> None:
    data = encode_requested_replace_metadata(RequestedReplaceMetadata(Operation.INSERT_OVERWRITE))
    assert decode_outline(data, file=FILE, is_clustering=True) == PlanOutline()


@pytest.mark.parametrize("note", [b"scrambled", b"[]", json.dumps({"missing": 1, "params": {}, "extra": {}}).encode()])
def test_an_outline_that_does_not_decode_is_reported_with_the_file_name(note: bytes) -> None:
    record = {"operations": [], "extraMetadata": {}, "version": 2, "strategy": None}
    data = encode_record("HoodieCompactionPlan", record, notes={"tablekeeper.outline": note})
    with pytest.raises(CorruptTableError, match=r"\.compaction\.requested: the outline of the plan does not decode"):
        decode_outline(data, file=FILE, is_clustering=False)


def test_a_file_that_is_no_plan_is_reported() -> None:
    with pytest.raises(CorruptTableError, match="not an Avro container file"):
        decode_outline(b"scrambled", file=FILE, is_clustering=False)
