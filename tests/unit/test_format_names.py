"""Names of timeline files, base files and history files."""

from __future__ import annotations

import pytest

from tablekeeper.format.data_files import BaseName, decode_base_name, encode_base_name
from tablekeeper.format.history import (
    HistoryName,
    decode_history_name,
    decode_manifest_name,
    encode_history_name,
    encode_manifest_name,
)
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State
from tablekeeper.timeline.timeline import decode_instant_name, encode_instant_name

__all__: list[str] = []

TS = "20260307135827749"
CT = "20260307135829538"


def _instant(action: Action, state: State, completed: str | None = None) -> Instant:
    return Instant(RequestedTime(TS), action, state, CompletionTime(completed) if completed else None)


LAYOUT_2 = [
    (f"{TS}.commit.requested", _instant(Action.COMMIT, State.REQUESTED)),
    (f"{TS}.inflight", _instant(Action.COMMIT, State.INFLIGHT)),
    (f"{TS}_{CT}.commit", _instant(Action.COMMIT, State.COMPLETED, CT)),
    (f"{TS}.deltacommit.inflight", _instant(Action.DELTA_COMMIT, State.INFLIGHT)),
    (f"{TS}.compaction.requested", _instant(Action.COMPACTION, State.REQUESTED)),
    (f"{TS}.logcompaction.inflight", _instant(Action.LOG_COMPACTION, State.INFLIGHT)),
    (f"{TS}.clustering.requested", _instant(Action.CLUSTERING, State.REQUESTED)),
    (f"{TS}_{CT}.replacecommit", _instant(Action.REPLACE_COMMIT, State.COMPLETED, CT)),
    (f"{TS}.savepoint.inflight", _instant(Action.SAVEPOINT, State.INFLIGHT)),
    (f"{TS}_{CT}.rollback", _instant(Action.ROLLBACK, State.COMPLETED, CT)),
    (f"{TS}.commit", _instant(Action.COMMIT, State.COMPLETED)),
]


@pytest.mark.parametrize(("name", "instant"), LAYOUT_2)
def test_layout_2_names_are_read_and_written(name: str, instant: Instant) -> None:
    assert decode_instant_name(name) == instant
    assert encode_instant_name(instant) == name


@pytest.mark.parametrize(
    ("name", "instant"),
    [
        (f"{TS}.commit", _instant(Action.COMMIT, State.COMPLETED, TS)),
        (f"{TS}.inflight", _instant(Action.COMMIT, State.INFLIGHT)),
        (f"{TS}.replacecommit.requested", _instant(Action.REPLACE_COMMIT, State.REQUESTED)),
    ],
)
def test_layout_1_completes_in_the_order_of_requests(name: str, instant: Instant) -> None:
    assert decode_instant_name(name, layout=1) == instant
    assert encode_instant_name(instant, layout=1) == name


def test_a_finished_compaction_is_named_a_commit() -> None:
    assert encode_instant_name(_instant(Action.COMPACTION, State.COMPLETED, CT)) == f"{TS}_{CT}.commit"
    assert encode_instant_name(_instant(Action.LOG_COMPACTION, State.COMPLETED, CT)) == f"{TS}_{CT}.deltacommit"
    assert encode_instant_name(_instant(Action.CLUSTERING, State.COMPLETED, CT)) == f"{TS}_{CT}.replacecommit"


def test_layout_1_knows_clustering_as_replace_commit_only() -> None:
    clustering = _instant(Action.CLUSTERING, State.REQUESTED)
    assert encode_instant_name(clustering, layout=1) == f"{TS}.replacecommit.requested"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "history",
        "hoodie.properties",
        f"{TS}",
        f"{TS}.",
        f".{TS}.commit.crc",
        f"{TS}.commit.requested.tmp",
        f"{TS}.compaction",
        f"{TS}_{CT}.compaction",
        f"{TS}_{CT}.inflight",
        f"{TS}_{CT}.commit.requested",
        f"{TS}.commit.finished",
        f"{TS}.unheardof",
        f"x{TS}.commit",
        f"{TS}.commit\n",
        "٣.commit",
    ],
)
def test_other_files_are_no_instants(name: str) -> None:
    assert decode_instant_name(name) is None
    assert decode_instant_name(name, layout=1) is None


def test_a_completion_time_is_no_part_of_layout_1() -> None:
    assert decode_instant_name(f"{TS}_{CT}.commit", layout=1) is None


def test_a_base_file_name_has_three_parts() -> None:
    file_id = "c06fe141-9f11-46fb-aa70-d7f9d2dcca2f-0"
    name = f"{file_id}_0-3-6_{TS}.parquet"
    assert decode_base_name(name) == BaseName(file_id, "0-3-6", TS)
    assert encode_base_name(file_id=file_id, write_token="0-3-6", instant=TS) == name


@pytest.mark.parametrize(
    "name",
    [
        f"a_0-0-0_{TS}.hfile",
        f"a_0-0-0_{TS}.parquet.tmp",
        f".a_0-0-0_{TS}.parquet.crc",
        f".a_{TS}.log.1_0-0-0",
        f"a_{TS}.parquet",
        "part-00000-uuid.snappy.parquet",
        ".hoodie_partition_metadata",
    ],
)
def test_other_files_are_no_base_files(name: str) -> None:
    assert decode_base_name(name) is None


def test_a_base_file_name_that_could_not_be_read_again_is_refused() -> None:
    with pytest.raises(ValueError, match="would not be read"):
        encode_base_name(file_id="a_b", write_token="0-0-0", instant=TS)


def test_history_names_carry_range_and_layer() -> None:
    name = f"{TS}_{CT}_0.parquet"
    assert decode_history_name(name) == HistoryName(TS, CT, 0)
    assert encode_history_name(HistoryName(TS, CT, 0)) == name
    assert decode_history_name("manifest_3") is None
    assert decode_manifest_name("manifest_3") == 3
    assert encode_manifest_name(3) == "manifest_3"
    assert decode_manifest_name(name) is None
