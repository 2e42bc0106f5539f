"""Damage is seen and never made worse: kinds of damage, tables, and what is done to the damaged table.

Each case damages a copy of a table, acts on it, and asks the doctor, who must not call the table healthy. Then the
damage is undone, as from a backup: the rows must be those from before, whatever was tried meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper.errors import CorruptTableError, InvalidRequestError, TablekeeperError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.read.log_changes import load_blocks
from tablekeeper.read.query import load_query_snapshot
from tablekeeper.services.plans import schedule
from tablekeeper.storage import Storage
from tablekeeper.timeline.properties_file import change_properties
from tests.support.recovery_world import SHAPES, World, shape_name, worlds
from tests.support.table_builder import trips

__all__: list[str] = []

SHORT = {"hoodie.keep.max.commits": 3, "hoodie.keep.min.commits": 2, "hoodie.clean.commits.retained": 1}
TIMELINE = ".hoodie/timeline"


def _newest(storage: Storage, part: str) -> str:
    """The newest data file of partition sf whose name has `part` in it."""
    paths = [file.path for file in storage.list_files("sf") if part in file.name]
    return max(paths, key=lambda path: path.rpartition("_20")[2])


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x04]) + data[at + 1 :]


def _lose(part: str) -> Callable[[Storage], None]:
    return lambda storage: storage.delete(_newest(storage, part))


def _change(part: str, change: Callable[[bytes], bytes]) -> Callable[[Storage], None]:
    def damage(storage: Storage) -> None:
        path = _newest(storage, part)
        storage.put(path, change(storage.read(path)))

    return damage


def _empty_overwrite(storage: Storage) -> None:
    (path,) = [file.path for file in storage.list_files(TIMELINE) if file.name.endswith(".replacecommit")]
    storage.put(path, b"")


DAMAGE: dict[str, Callable[[Storage], None]] = {
    "base lost": _lose(".parquet"),
    "base cut off": _change(".parquet", lambda data: data[:-40]),
    "byte of a page flipped": _change(".parquet", lambda data: _flip(data, 60)),
    "partition not marked": lambda storage: storage.delete(f"sf/{PARTITION_METADATA_NAME}"),
    "overwrite empty": _empty_overwrite,
    "timeline lost": lambda storage: storage.delete_many([file.path for file in storage.walk(TIMELINE)]),
}
DAMAGE_TO_LOGS: dict[str, Callable[[Storage], None]] = {
    "log lost": _lose(".log."),
    "log cut off": _change(".log.", lambda data: data[:-3]),
    "log emptied": _change(".log.", lambda data: b""),
    "length of a block flipped": _change(".log.", lambda data: _flip(data, 12)),
    "magic of a block flipped": _change(".log.", lambda data: _flip(data, 2)),
    "instant of a block flipped": _change(".log.", lambda data: _flip(data, data.index(b"20") + 1)),
}
ACTIONS: dict[str, Callable[[tk.Table], object]] = {
    "read": lambda table: table.read(),
    "compact": lambda table: table.compact(),
    "log compact": lambda table: table.log_compact(options={"hoodie.log.compaction.blocks.threshold": 2}),
    "cluster": lambda table: table.cluster(),
    "clean": lambda table: table.clean(keep_commits=1),
    "archive": lambda table: table.archive(options=SHORT),
    "doctor": lambda table: table.doctor(fix=True, yes=True, safe_age_s=0.0),
}
CASES = [
    pytest.param(shape, kind, id=f"{shape_name(shape)}-{kind}")
    for shape in SHAPES
    for kind in (*DAMAGE, *(DAMAGE_TO_LOGS if shape["table_type"] == "mor" else ()))
]


@pytest.fixture(scope="module")
def healthy() -> Iterator[Callable[[dict[str, Any]], World]]:
    """Tables with an overwritten partition and two versions of the files in another, each made once."""
    made: dict[str, World] = {}
    with worlds() as new:

        def find(shape: dict[str, Any]) -> World:
            name = shape_name(shape)
            if name not in made:
                made[name] = new(**shape)
                _fill(made[name])
            return made[name]

        yield find


def _fill(world: World) -> None:
    world.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0), ("o", "ny", 1, 1.0)))
    world.clock.advance(10)
    world.table.insert_overwrite(trips(("n", "ny", 1, 1.0)))
    for time in (2, 3, 4):
        world.upsert(trips(("a", "sf", time, float(time)), ("b", "sf", time, 1.0)))
    world.clock.advance(10)
    assert world.table.doctor(deep=True).is_healthy


@pytest.mark.parametrize(("shape", "kind"), CASES)
def test_damage_is_told_by_the_doctor_and_not_made_worse_by(
    healthy: Callable[[dict[str, Any]], World], shape: dict[str, Any], kind: str
) -> None:
    origin = healthy(shape)
    expected = origin.rows()
    for name, act in ACTIONS.items():
        world = origin.copy()
        before = {file.path: world.storage.read(file.path) for file in world.storage.walk("")}
        {**DAMAGE, **DAMAGE_TO_LOGS}[kind](world.storage)
        with suppress(TablekeeperError):
            act(world.table)
        report = world.table.doctor(deep=True)
        if report.is_healthy:
            # Whoever writes to a partition marks it again.
            assert kind == "partition not marked", f"{name}: {report}"
            assert world.rows() == expected, name
        _undo(world.storage, before)
        assert world.rows() == expected, name
        world.forget()


def _undo(storage: Storage, before: dict[str, bytes]) -> None:
    """Bring back what the damage took, and leave what was done since."""
    for path, data in before.items():
        is_damaged = storage.stat(path) is None or storage.read(path) != data
        if is_damaged and (path.startswith((TIMELINE, "sf/", "ny/", "la/"))):
            storage.put(path, data)


LOSSES = ["base lost", "base cut off", "log lost", "log cut off", "log emptied"]
SCHEDULES: dict[str, Callable[[tk.Table], tk.ScheduledPlan | None]] = {
    "compact": lambda table: table.schedule_compaction(),
    "cluster": lambda table: table.schedule_clustering(),
    "log compact": lambda table: table.schedule_log_compaction(options={"hoodie.log.compaction.blocks.threshold": 2}),
}


def _cases_of_services(kinds: Iterable[str]) -> list[Any]:
    """Pairs of a service and damage to what it reads: a log compaction reads no base files."""
    return [
        pytest.param(service, kind, id=f"{service}-{kind}")
        for service in SCHEDULES
        for kind in kinds
        if service != "log compact" or not kind.startswith("base")
    ]


@pytest.mark.parametrize("shape", [{"table_type": "mor"}, {"table_type": "mor", "metadata": True}], ids=shape_name)
@pytest.mark.parametrize(("service", "kind"), _cases_of_services(LOSSES))
def test_no_plan_is_scheduled_on_files_that_are_lost_or_cut_off(
    healthy: Callable[[dict[str, Any]], World], shape: dict[str, Any], service: str, kind: str
) -> None:
    world = healthy(shape).copy()
    instants = world.timeline.instants
    {**DAMAGE, **DAMAGE_TO_LOGS}[kind](world.storage)
    with pytest.raises(CorruptTableError, match=r"gone|cut off"):
        SCHEDULES[service](world.table)
    assert world.timeline.instants == instants
    world.forget()


@pytest.mark.parametrize(("service", "kind"), _cases_of_services(["base lost", "base cut off", *DAMAGE_TO_LOGS]))
def test_a_plan_whose_input_is_damaged_later_is_refused_and_stays(
    healthy: Callable[[dict[str, Any]], World], service: str, kind: str
) -> None:
    origin = healthy({"table_type": "mor"})
    world = origin.copy()
    plan = SCHEDULES[service](world.table)
    before = {path: world.storage.read(path) for path in world.data_files()}
    {**DAMAGE, **DAMAGE_TO_LOGS}[kind](world.storage)
    commits = len(world.timeline.completed_writes)
    with pytest.raises(CorruptTableError):
        world.table.execute(plan)
    assert len(world.timeline.completed_writes) == commits
    assert [instant.state.value for instant in world.timeline.pending] == ["requested"]
    _undo(world.storage, before)
    world.clock.advance(10)
    assert world.table.execute(plan).outcome == "completed"
    assert world.rows() == origin.rows()
    world.forget()


@pytest.mark.parametrize("kind", ["base lost", "log cut off", "length of a block flipped"])
def test_a_plan_that_cannot_succeed_can_be_cancelled(healthy: Callable[[dict[str, Any]], World], kind: str) -> None:
    world = healthy({"table_type": "mor"}).copy()
    plan = world.table.schedule_compaction()
    with pytest.raises(InvalidRequestError, match="no damage of its files is known"):
        world.table.cancel(plan)
    {**DAMAGE, **DAMAGE_TO_LOGS}[kind](world.storage)
    with pytest.raises(CorruptTableError, match=r"Table.cancel\(\) removes the plan"):
        world.table.execute(plan)
    assert world.table.cancel(plan).is_removed
    assert world.timeline.pending == ()
    world.forget()


@pytest.mark.parametrize("kind", ["log lost", "base lost"])
def test_a_plan_of_another_program_that_was_made_without_a_file_is_refused(
    healthy: Callable[[dict[str, Any]], World], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Such a plan does not say that it was compared with the commits: its execution compares more of them."""
    world = healthy({"table_type": "mor"}).copy()
    {**DAMAGE, **DAMAGE_TO_LOGS}[kind](world.storage)
    monkeypatch.setattr(schedule, "refuse_damaged_draft", lambda *_: None)
    monkeypatch.setattr(schedule, "CHECKED", {})
    plan = world.table.schedule_compaction()
    with pytest.raises(CorruptTableError, match="gone"):
        world.table.execute(plan)
    assert world.table.cancel(plan).is_removed
    world.forget()


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
@pytest.mark.parametrize("kind", ["partition not marked", "overwrite empty", "timeline lost"])
def test_reads_refuse_what_would_show_other_rows(
    healthy: Callable[[dict[str, Any]], World], shape: dict[str, Any], kind: str
) -> None:
    origin = healthy(shape)
    world = origin.copy()
    DAMAGE[kind](world.storage)
    if kind == "partition not marked" and shape.get("metadata"):
        assert world.rows() == origin.rows(), "the metadata table knows the partition"
    else:
        with pytest.raises(CorruptTableError):
            world.table.read()
    world.forget()


@pytest.mark.parametrize("kind", ["lost", "emptied"])
def test_a_metadata_table_without_one_of_its_files_lists_nothing(
    healthy: Callable[[dict[str, Any]], World], kind: str
) -> None:
    origin = healthy({"table_type": "cow", "metadata": True})
    expected = origin.rows()
    counting = [file.path for file in origin.storage.list_files(".hoodie/metadata/files") if "log" in file.name]
    assert len(counting) > 3
    # The first of them made the metadata table, and its commit says nothing here.
    for path in counting[1:]:
        world = origin.copy()
        data = world.storage.read(path)
        if kind == "lost":
            world.storage.delete(path)
        else:
            world.storage.put(path, b"")
        for act in ("read", "clean", "cluster"):
            with pytest.raises(CorruptTableError, match="gone" if kind == "lost" else "empty"):
                ACTIONS[act](world.table)
        assert [finding.kind for finding in world.table.doctor().findings] == ["stale-metadata-table"]
        world.storage.put(path, data)
        assert world.rows() == expected
        world.forget()


def _misname_timeline(storage: Storage) -> None:
    change_properties(storage, {"hoodie.timeline.path": "elsewhere"})


BEGINNINGS: dict[str, Callable[[tk.Table], object]] = {
    "upsert": lambda table: table.upsert(trips(("z", "zz", 9, 9.0))),
    "insert": lambda table: table.insert(trips(("z", "zz", 9, 9.0))),
    "bulk insert": lambda table: table.bulk_insert(trips(("z", "zz", 9, 9.0))),
    "delete": lambda table: table.delete(trips(("a", "sf")).select(["id", "city"])),
    "insert overwrite": lambda table: table.insert_overwrite(trips(("z", "zz", 9, 9.0))),
    "compact": lambda table: table.schedule_compaction(),
    "cluster": lambda table: table.schedule_clustering(),
    "clean": lambda table: table.clean(),
    "archive": lambda table: table.archive(),
}


@pytest.mark.parametrize("shape", [{"table_type": "mor"}, {"table_type": "mor", "metadata": True}], ids=shape_name)
@pytest.mark.parametrize("damage", [DAMAGE["timeline lost"], _misname_timeline], ids=["lost", "misnamed"])
@pytest.mark.parametrize("operation", BEGINNINGS)
def test_no_history_is_begun_where_the_timeline_was_lost(
    healthy: Callable[[dict[str, Any]], World],
    shape: dict[str, Any],
    damage: Callable[[Storage], None],
    operation: str,
) -> None:
    world = healthy(shape).copy()
    damage(world.storage)
    before = {file.path for file in world.storage.walk("")}
    with pytest.raises(CorruptTableError, match="no instant is there"):
        BEGINNINGS[operation](world.table)
    assert {file.path for file in world.storage.walk("")} == before
    world.forget()


@pytest.mark.parametrize("change", ["lost", "cut off"])
def test_reads_miss_a_file_that_an_overwrite_wrote(healthy: Callable[[dict[str, Any]], World], change: str) -> None:
    world = healthy({"table_type": "cow"}).copy()
    storage = world.storage
    (path,) = [each.base.path for each in world.table.files() if each.group.partition == "ny" and each.base]
    if change == "lost":
        storage.delete(path)
    else:
        storage.put(path, storage.read(path)[:-1])
    with pytest.raises(CorruptTableError, match="gone" if change == "lost" else "cut off"):
        world.table.read(where="city = 'ny'")
    world.forget()


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
@pytest.mark.parametrize("change", ["lost", "cut off"])
def test_reads_miss_a_file_that_the_newest_commit_wrote(
    healthy: Callable[[dict[str, Any]], World], shape: dict[str, Any], change: str
) -> None:
    world = healthy(shape).copy()
    part = ".log." if shape["table_type"] == "mor" else ".parquet"
    (_lose(part) if change == "lost" else _change(part, lambda data: data[:-1]))(world.storage)
    with pytest.raises(TablekeeperError, match=r"gone|cut off|no longer there|not a readable"):
        world.table.read()
    assert world.table.read(where="city = 'la'").num_rows == 1, "other partitions are whole"
    world.forget()


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
@pytest.mark.parametrize("partition", ["sf", "ny"], ids=["of the newest commit", "of an overwrite"])
@pytest.mark.parametrize("renamed", [False, True], ids=["lost", "renamed"])
def test_reads_miss_a_partition_that_is_gone_as_a_whole(
    healthy: Callable[[dict[str, Any]], World], shape: dict[str, Any], partition: str, *, renamed: bool
) -> None:
    world = healthy(shape).copy()
    for file in list(world.storage.list_files(partition)):
        if renamed:
            world.storage.put(f"old/{file.name}", world.storage.read(file.path))
        world.storage.delete(file.path)
    with pytest.raises(TablekeeperError, match=r"gone|no longer there"):
        world.table.read()
    assert world.table.read(where="city = 'la'").num_rows == 1, "other partitions are whole"
    world.forget()


@pytest.mark.parametrize("act", ["read", "cluster"])
def test_a_partition_that_was_copied_inside_the_table_is_not_read_twice(
    healthy: Callable[[dict[str, Any]], World], act: str
) -> None:
    world = healthy({"table_type": "cow"}).copy()
    for file in world.storage.list_files("la"):
        world.storage.put(f"la copy/{file.name}", world.storage.read(file.path))
    with pytest.raises(CorruptTableError, match="written to the partition 'la'"):
        ACTIONS[act](world.table)
    assert world.table.read(where="city = 'la'").num_rows == 1
    assert "misplaced-files" in {each.kind for each in world.table.doctor().findings}
    world.forget()


def test_a_rollback_between_timeline_and_listing_is_no_damage(
    healthy: Callable[[dict[str, Any]], World],
) -> None:
    world = healthy({"table_type": "cow"}).copy()
    query = world.table._load_query()
    world.table.rollback(world.timeline.completed_writes[-1].requested_at)
    assert load_query_snapshot(query).latest


@pytest.mark.parametrize("shape", [each for each in SHAPES if "metadata" not in each], ids=shape_name)
@pytest.mark.parametrize("operation", ["upsert", "insert", "delete"])
def test_writes_do_not_build_on_slices_that_lost_what_the_newest_commit_wrote(
    healthy: Callable[[dict[str, Any]], World], shape: dict[str, Any], operation: str
) -> None:
    world = healthy(shape).copy()
    before = world.table.read()
    lost = _newest(world.storage, ".log." if shape["table_type"] == "mor" else ".parquet")
    data = world.storage.read(lost)
    world.storage.delete(lost)
    with pytest.raises(TablekeeperError, match=r"gone|no longer there"):
        getattr(world.table, operation)(trips(("a", "sf", 9, 9.0)))
    world.storage.put(lost, data)
    assert world.table.read().equals(before)
    world.forget()


def test_a_lost_file_does_not_keep_its_partition_from_being_overwritten(
    healthy: Callable[[dict[str, Any]], World],
) -> None:
    world = healthy({"table_type": "cow"}).copy()
    world.storage.delete(_newest(world.storage, ".parquet"))
    world.table.insert_overwrite(trips(("a", "sf", 9, 9.0)))
    assert world.rows() == [("a", 9.0), ("c", 1.0), ("n", 1.0)]
    world.forget()


REWRITES: dict[str, Callable[[World], object]] = {
    "compact": lambda world: world.table.compact(),
    "cluster": lambda world: world.table.cluster(),
    "upsert": lambda world: world.upsert(trips(("a", "sf", 9, 9.0))),
}


@pytest.mark.parametrize(("table_type", "rewrite"), [("mor", "compact"), ("cow", "cluster"), ("cow", "upsert")])
def test_rows_of_a_page_that_does_not_fit_its_checksum_are_not_written_again(
    healthy: Callable[[dict[str, Any]], World], table_type: str, rewrite: str
) -> None:
    world = healthy({"table_type": table_type}).copy()
    path = _newest(world.storage, ".parquet")
    world.storage.put(path, _flip_silently(world.storage.read(path)))
    with pytest.raises(CorruptTableError, match="CRC"):
        REWRITES[rewrite](world)
    assert "damaged-base" in [finding.kind for finding in world.table.doctor(deep=True).findings]
    world.forget()


def _flip_silently(data: bytes) -> bytes:
    """The file with a byte flipped that changes rows and that only checksums give away."""
    rows = pq.read_table(pa.BufferReader(data))
    for at in range(8, len(data)):
        flipped = _flip(data, at)
        with suppress(pa.ArrowException, OSError, UnicodeDecodeError):
            if pq.read_table(pa.BufferReader(flipped)) != rows and not _is_verified(flipped):
                return flipped
    raise AssertionError("every flip is noticed without checksums")


def _is_verified(data: bytes) -> bool:
    try:
        pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    except OSError:
        return False
    return True


def test_a_plan_that_was_made_while_a_file_was_missing_is_refused_once_it_is_back(
    healthy: Callable[[dict[str, Any]], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = healthy({"table_type": "mor"})
    world = origin.copy()
    path = _newest(world.storage, ".parquet")
    data = world.storage.read(path)
    world.storage.delete(path)
    monkeypatch.setattr(schedule, "refuse_damaged_draft", lambda *_: None)
    plan = world.table.schedule_compaction()
    assert plan is not None
    world.storage.put(path, data)
    with pytest.raises(CorruptTableError, match="made while it was missing"):
        world.table.execute(plan)
    assert world.table.cancel(plan).is_removed
    assert world.rows() == origin.rows()
    monkeypatch.undo()
    assert world.table.compact() is not None
    assert world.rows() == origin.rows()
    world.forget()


def test_a_log_that_is_shorter_than_known_is_refused_where_a_block_ends(
    healthy: Callable[[dict[str, Any]], World],
) -> None:
    world = healthy({"table_type": "mor"})
    (log, *_) = [log for each in world.table.files() for log in each.logs]
    with pytest.raises(CorruptTableError, match="cut off"):
        load_blocks(world.storage, log, least_bytes=log.size + 1)
    assert load_blocks(world.storage, log, least_bytes=log.size)
