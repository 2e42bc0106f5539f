"""Which blocks of a slice's logs count, and in which order: rollbacks, log compactions, damage, and version 6."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tablekeeper.config.table_config import MergeMode, TableConfig, parse_table_config
from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.avro_arrow import arrow_to_avro_schema
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.log_data import encode_parquet_block_content
from tablekeeper.format.log_deletes import encode_deletes
from tablekeeper.model import Action, CompletionTime, FileGroupId, Instant, LogFile, RequestedTime, State
from tablekeeper.read.log_changes import EVERY_BLOCK, BlockVisibility, load_changes, load_log_keys
from tablekeeper.record.keys import KeySpec
from tablekeeper.record.merge import KEY_COLUMN, Deletes, MergeRule
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import MemoryStorage, forget_memory
from tablekeeper.timeline import Timeline

SCHEMA = pa.schema([(KEY_COLUMN, pa.string()), ("v", pa.int64())])
AVRO = json.dumps(arrow_to_avro_schema(SCHEMA, record_name="r", namespace="n"))
GROUP = FileGroupId("", "g")
UPGRADED = BlockVisibility(may_share_files=True)


def at(number: int) -> str:
    return f"20240101{number:09d}"


def data(instant: int, *rows: tuple[str, int], compacted: str = "") -> bytes:
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
    header = {HeaderKey.INSTANT_TIME: at(instant), HeaderKey.SCHEMA: AVRO}
    header |= compacted_times(compacted)
    return encode_block(BlockType.PARQUET_DATA, header, encode_parquet_block_content(table, avro_schema_json=AVRO))


def deletes(instant: int, *keys: str, compacted: str = "") -> bytes:
    content = encode_deletes(pa.array(keys), partition="", ordering=None)
    return encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: at(instant)} | compacted_times(compacted), content)


def compacted_times(numbers: str) -> dict[HeaderKey, str]:
    if not numbers:
        return {}
    return {HeaderKey.COMPACTED_BLOCK_TIMES: ",".join(at(int(n)) for n in numbers.split(","))}


def rollback(instant: int, *, target: int) -> bytes:
    header = {
        HeaderKey.INSTANT_TIME: at(instant),
        HeaderKey.TARGET_INSTANT_TIME: at(target),
        HeaderKey.COMMAND_BLOCK_TYPE: "0",
    }
    return encode_block(BlockType.COMMAND, header, b"")


def config(version: int, *, began: str | None = None) -> TableConfig:
    properties = {
        "hoodie.table.name": "t",
        "hoodie.table.type": "MERGE_ON_READ",
        "hoodie.table.version": str(version),
    }
    if began is not None:
        properties["hoodie.table.initial.version"] = began
    return parse_table_config(properties, file="hoodie.properties")


@pytest.fixture
def storage() -> Iterator[MemoryStorage]:
    yield MemoryStorage("memory://log-blocks/table")
    forget_memory("log-blocks")


def put(storage: MemoryStorage, *contents: bytes) -> list[LogFile]:
    logs = []
    for number, content in enumerate(contents):
        storage.put(f"log{number}", content)
        logs.append(LogFile(GROUP, RequestedTime(at(number)), 1, "0-0-0", f"log{number}", len(content)))
    return logs


def values(storage: MemoryStorage, logs: list[LogFile], visibility: BlockVisibility = UPGRADED) -> list[object]:
    """For each change that counts its values, or the keys that it deletes."""
    changes = load_changes(
        storage,
        logs,
        schema=SCHEMA,
        rule=MergeRule(MergeMode.COMMIT_TIME),
        key=KeySpec(("v",), composite=False),
        visibility=visibility,
        runtime=SYSTEM_RUNTIME,
    ).changes
    found: list[object] = []
    for change in changes:
        if isinstance(change, Deletes):
            found.append(change.keys.to_pylist())
        else:
            assert isinstance(change, pa.Table)
            found.append(change.column("v").to_pylist()[0])
    return found


def test_blocks_count_in_the_order_of_files_and_inside_them(storage: MemoryStorage) -> None:
    logs = put(storage, data(1, ("a", 1)) + deletes(1, "a"), data(2, ("a", 2)))
    assert values(storage, logs) == [1, ["a"], 2]


def test_a_rollback_cancels_the_blocks_of_its_target_that_come_before_it(storage: MemoryStorage) -> None:
    logs = put(
        storage,
        data(1, ("a", 1)) + data(2, ("a", 2)) + deletes(2, "b"),
        rollback(3, target=2) + data(4, ("a", 4)),
        data(2, ("a", 22)),
    )
    assert values(storage, logs) == [1, 4, 22]


def test_a_log_compaction_block_stands_in_for_the_blocks_it_was_made_of(storage: MemoryStorage) -> None:
    logs = put(storage, data(1, ("a", 1)), data(2, ("a", 2)), data(5, ("a", 12), compacted="1,2"), data(6, ("a", 6)))
    assert values(storage, logs) == [12, 6]


def test_a_log_compaction_of_a_log_compaction_replaces_both(storage: MemoryStorage) -> None:
    logs = put(
        storage,
        data(1, ("a", 1)),
        data(3, ("a", 11), compacted="1"),
        data(4, ("a", 4)),
        data(5, ("a", 111), compacted="3,4"),
    )
    assert values(storage, logs) == [111]


def test_a_log_compaction_block_stands_where_the_newest_that_it_replaces_stood(storage: MemoryStorage) -> None:
    # The log compaction was planned before 4, and completed after it.
    logs = put(storage, data(1, ("a", 1)), data(2, ("a", 2)), data(4, ("a", 4)), data(5, ("a", 12), compacted="1,2"))
    assert values(storage, logs) == [12, 4]


def test_a_log_compaction_block_counts_for_nothing_once_its_originals_were_compacted(storage: MemoryStorage) -> None:
    logs = put(storage, data(5, ("a", 12), compacted="1,2"), data(6, ("a", 6)))
    assert values(storage, logs) == [6]


def test_a_log_compaction_block_counts_if_any_of_its_originals_is_there(storage: MemoryStorage) -> None:
    logs = put(storage, data(2, ("a", 2)), data(3, ("a", 3)), data(5, ("a", 12), compacted="1,2"))
    assert values(storage, logs) == [12, 3]


def test_all_blocks_of_a_log_compaction_stand_in_for_the_originals_in_their_own_order(storage: MemoryStorage) -> None:
    both = deletes(5, "b", compacted="1,2") + data(5, ("a", 12), compacted="1,2")
    logs = put(storage, data(1, ("a", 1)), deletes(2, "b"), both, data(6, ("a", 6)))
    assert values(storage, logs) == [["b"], 12, 6]


def test_damage_at_the_end_or_in_the_middle_of_a_file_hides_only_the_damaged_block(storage: MemoryStorage) -> None:
    whole, cut = data(1, ("a", 1)), data(2, ("a", 2))[:-20]
    assert values(storage, put(storage, whole + cut)) == [1]
    assert values(storage, put(storage, whole + cut + data(3, ("a", 3)))) == [1, 3]


def test_a_block_of_another_instant_is_damage_in_a_table_where_every_write_had_files_of_its_own(
    storage: MemoryStorage,
) -> None:
    logs = put(storage, data(0, ("a", 0)), data(1, ("a", 1)) + deletes(3, "a"))
    assert values(storage, logs, UPGRADED) == [0, 1, ["a"]]
    with pytest.raises(CorruptTableError, match="log1: the bytes from"):
        values(storage, logs, EVERY_BLOCK)
    assert values(storage, logs[:1], EVERY_BLOCK) == [0]


@pytest.mark.parametrize(("version", "began", "shares"), [(9, "9", False), (9, "6", True), (9, None, True)])
def test_only_tables_that_began_before_version_8_may_have_shared_files(
    version: int, began: str | None, shares: bool
) -> None:
    visibility = BlockVisibility.of(Timeline.of([]), config(version, began=began), as_of=None)
    assert visibility.may_share_files is shares


def test_a_block_of_change_data_among_those_of_rows_is_damage(storage: MemoryStorage) -> None:
    # Change data has files of its own: left out, a block whose type was flipped to it would be lost in silence.
    header = {HeaderKey.INSTANT_TIME: at(1), HeaderKey.SCHEMA: AVRO}
    logs = put(storage, data(1, ("a", 1)) + encode_block(BlockType.CDC_DATA, header, b"whatever"))
    with pytest.raises(CorruptTableError, match="of change data"):
        values(storage, logs)


def test_a_block_without_its_instant_is_damage_that_names_the_file(storage: MemoryStorage) -> None:
    logs = put(storage, encode_block(BlockType.DELETE, {}, b""))
    with pytest.raises(CorruptTableError, match="log0"):
        values(storage, logs)


def test_data_blocks_of_hfiles_are_not_read_here(storage: MemoryStorage) -> None:
    header = {HeaderKey.INSTANT_TIME: at(1), HeaderKey.SCHEMA: AVRO}
    logs = put(storage, encode_block(BlockType.HFILE_DATA, header, b""))
    with pytest.raises(UnsupportedFeatureError, match="HFILE_DATA"):
        values(storage, logs)


def test_blocks_after_the_moment_asked_for_do_not_count(storage: MemoryStorage) -> None:
    logs = put(storage, data(1, ("a", 1)) + data(3, ("a", 3)))
    visibility = BlockVisibility.of(Timeline.of([]), config(9), as_of=RequestedTime(at(2)))
    assert values(storage, logs, visibility) == [1]


def test_in_version_6_blocks_of_instants_that_did_not_complete_do_not_count(storage: MemoryStorage) -> None:
    done = Instant(RequestedTime(at(5)), Action.DELTA_COMMIT, State.COMPLETED, CompletionTime(at(5)))
    pending = Instant(RequestedTime(at(6)), Action.DELTA_COMMIT, State.INFLIGHT)
    timeline = Timeline.of([done, pending])
    # 3 is older than the timeline and counts as archived, 6 is pending, 7 was rolled back.
    logs = put(storage, data(3, ("a", 3)) + data(5, ("a", 5)) + data(6, ("a", 6)) + data(7, ("a", 7)))
    assert values(storage, logs, BlockVisibility.of(timeline, config(6), as_of=None)) == [3, 5]
    assert values(storage, logs, BlockVisibility.of(timeline, config(9), as_of=None)) == [3, 5, 6, 7]


def test_in_version_6_a_rollback_counts_although_it_is_no_commit(storage: MemoryStorage) -> None:
    timeline = Timeline.of(
        [
            Instant(RequestedTime(at(5)), Action.DELTA_COMMIT, State.COMPLETED, CompletionTime(at(5))),
            Instant(RequestedTime(at(6)), Action.ROLLBACK, State.COMPLETED, CompletionTime(at(6))),
        ]
    )
    # The target is older than the timeline: without the rollback it would be taken for archived.
    logs = put(storage, data(3, ("a", 3)) + data(4, ("a", 4)) + data(5, ("a", 5)) + rollback(6, target=4))
    assert values(storage, logs, BlockVisibility.of(timeline, config(6), as_of=None)) == [3, 5]
    assert values(storage, logs, BlockVisibility.of(timeline, config(6), as_of=RequestedTime(at(5)))) == [3, 5]


def test_keys_of_all_rows_in_the_logs_are_found_but_not_those_of_deletes(storage: MemoryStorage) -> None:
    logs = put(storage, data(1, ("a", 1), ("b", 2)), deletes(2, "z"), data(3, ("a", 3)))
    found = load_log_keys(
        storage,
        logs,
        key=KeySpec(("v",), composite=False),
        key_types=pa.schema([(KEY_COLUMN, pa.string())]),
        visibility=UPGRADED,
        runtime=SYSTEM_RUNTIME,
    )
    assert [keys.to_pylist() for keys in found] == [["a", "b"], ["a"]]
