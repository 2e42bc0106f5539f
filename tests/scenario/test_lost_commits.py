"""A completed file that is lost or holds the contents of another, a data file in the place of another, and properties
that no longer fit the table: nothing is rolled back, rewritten or deleted because of it, and the doctor tells of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import tablekeeper as tk
from tablekeeper.errors import ConflictError, CorruptTableError, TablekeeperError, UnsupportedFeatureError
from tablekeeper.timeline.properties_file import PROPERTIES_FILE
from tests.support.recovery_world import FIRST, LAPSED_S, SHAPES, World, shape_name, worlds
from tests.support.table_builder import trips

__all__: list[str] = []

TIMELINE = ".hoodie/timeline"
ACTIONS: dict[str, Callable[[tk.Table], object]] = {
    "upsert": lambda table: table.upsert(trips(("a", "sf", 9, 9.0))),
    "compact": lambda table: table.compact(),
    "log compact": lambda table: table.log_compact(options={"hoodie.log.compaction.blocks.threshold": 2}),
    "cluster": lambda table: table.cluster(),
    "clean": lambda table: table.clean(keep_commits=1),
    "doctor": lambda table: table.doctor(fix=True, yes=True, safe_age_s=0.0),
}


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    with worlds() as new:
        yield new


def _completed(world: World, end: str) -> list[str]:
    """Paths of completed instants, oldest first."""
    return sorted(file.path for file in world.storage.list_files(TIMELINE) if file.name.endswith(end))


def _fill(world: World) -> None:
    world.upsert(FIRST)
    for time in (2, 3, 4, 5):
        world.upsert(trips(("a", "sf", time, float(time)), ("b", "sf", time, 1.0)))
    world.clock.advance(LAPSED_S)


CASES = [
    pytest.param(shape, action, id=f"{shape_name(shape)}-{action}")
    for shape in SHAPES
    for action in ACTIONS
    if shape["table_type"] == "mor" or "compact" not in action
]


@pytest.mark.parametrize(("shape", "action"), CASES)
def test_a_write_that_lost_its_completed_file_is_not_taken_for_a_dead_one_by(
    make: Callable[..., World], shape: dict[str, object], action: str
) -> None:
    world = make(**shape)
    _fill(world)
    lost = _completed(world, "commit")[2]
    content, expected = world.storage.read(lost), world.rows()
    world.storage.delete(lost)
    before = {path: world.storage.read(path) for path in world.data_files()}

    if action == "doctor":
        ACTIONS[action](world.table)
    elif action == "log compact":
        assert ACTIONS[action](world.table) is None, "it leaves logs alone that are newer than a pending write"
    else:
        with pytest.raises(CorruptTableError, match="completed file was lost"):
            ACTIONS[action](world.table)

    assert not world.table.doctor(deep=True).is_healthy
    assert {path: world.storage.read(path) for path in before} == before
    world.storage.put(lost, content)
    assert world.rows() == expected


@pytest.mark.parametrize(
    ("action", "refusal"),
    [("upsert", ConflictError), ("cluster", CorruptTableError), ("clean", None), ("doctor", None)],
)
def test_a_clustering_that_lost_its_completed_file_is_neither_run_again_nor_taken_back_by(
    make: Callable[..., World], action: str, refusal: type[TablekeeperError] | None
) -> None:
    world = make()
    _fill(world)
    done = world.table.cluster()
    assert done is not None
    world.upsert(trips(("a", "sf", 6, 6.0)))
    world.clock.advance(LAPSED_S)
    (lost,) = _completed(world, ".replacecommit")
    content, expected, files = world.storage.read(lost), world.rows(), world.data_files()
    world.storage.delete(lost)

    if refusal is None:
        ACTIONS[action](world.table)
    else:
        with pytest.raises(refusal):
            ACTIONS[action](world.table)

    assert not world.table.doctor().is_healthy
    assert action == "clean" or files <= world.data_files()
    world.storage.put(lost, content)
    assert world.rows() == expected


def test_a_compaction_refuses_a_plan_whose_input_lost_its_commit(make: Callable[..., World]) -> None:
    world = make(table_type="mor")
    _fill(world)
    plan = world.table.schedule_compaction()
    lost = _completed(world, ".deltacommit")[2]
    content, expected = world.storage.read(lost), world.rows()
    world.storage.delete(lost)
    with pytest.raises(CorruptTableError, match="completed file was lost"):
        world.table.execute(plan)
    world.storage.put(lost, content)
    world.table.execute(plan)
    assert world.rows() == expected


def test_somebody_who_asks_for_it_rolls_such_a_write_back(make: Callable[..., World]) -> None:
    world = make()
    _fill(world)
    lost = _completed(world, ".commit")[-1]
    world.storage.delete(lost)
    instant = world.timeline.pending[0].requested_at
    result = world.table.rollback(instant)
    assert result.files
    world.upsert(trips(("a", "sf", 9, 9.0)))
    assert world.table.doctor(deep=True).is_healthy


def test_a_write_that_died_is_rolled_back_as_ever(make: Callable[..., World]) -> None:
    world = make()
    _fill(world)
    world.crash(trips(("a", "sf", 9, 9.0)))
    world.clock.advance(LAPSED_S)
    world.upsert(trips(("b", "sf", 9, 9.0)))
    assert world.table.doctor(deep=True).is_healthy


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
def test_a_commit_with_the_contents_of_another_does_not_let_the_doctor_delete_its_files(
    make: Callable[..., World], shape: dict[str, object]
) -> None:
    world = make(**shape)
    _fill(world)
    expected = world.rows()
    last, other = _completed(world, "commit")[-1], _completed(world, "commit")[1]
    content = world.storage.read(last)
    world.storage.put(last, world.storage.read(other))
    report = world.table.doctor(fix=True, yes=True, safe_age_s=0.0)
    assert not report.is_healthy
    with pytest.raises(CorruptTableError, match="the contents of another commit"):
        world.table.read()
    world.storage.put(last, content)
    assert world.rows() == expected


def test_a_base_file_in_the_place_of_another_is_seen_by_reads_and_by_the_doctor(make: Callable[..., World]) -> None:
    world = make()
    _fill(world)
    newest = sorted((path for path in world.data_files() if path.startswith("sf/")), key=lambda p: p.rpartition("_")[2])
    world.storage.put(newest[-1], world.storage.read(newest[0]))
    with pytest.raises(CorruptTableError):
        world.table.read()
    assert not world.table.doctor(deep=True).is_healthy


def test_a_longer_base_file_is_found_without_reading_it(make: Callable[..., World]) -> None:
    world = make()
    _fill(world)
    newest = max((path for path in world.data_files() if path.startswith("sf/")), key=lambda p: p.rpartition("_")[2])
    world.storage.put(newest, world.storage.read(newest) + b"PAR1")
    assert [each.kind for each in world.table.doctor().findings if each.paths == (newest,)] == ["replaced-files"]


@pytest.mark.parametrize(
    ("line", "damaged", "error"),
    [
        ("hoodie.table.partition.fields=", "hoodie.table.partition.fiElds=", CorruptTableError),
        ("hoodie.table.ordering.fields=ts", "hoodie.table.ordering.fields=tS", CorruptTableError),
        ("hoodie.table.recordkey.fields=id", "hoodie.table.recordkey.fields=iD", CorruptTableError),
        ("hoodie.table.recordkey.fields=", "hoodie.table.recordkey.fiElds=", UnsupportedFeatureError),
    ],
)
@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_properties_that_do_not_fit_the_table_are_an_error_for_everybody(
    make: Callable[..., World], table_type: str, line: str, damaged: str, error: type[TablekeeperError]
) -> None:
    world = make(table_type=table_type)
    _fill(world)
    content = world.storage.read(PROPERTIES_FILE)
    assert line.encode() in content
    world.storage.put(PROPERTIES_FILE, content.replace(line.encode(), damaged.encode()))
    table = world.table
    assert not table.doctor().is_healthy
    services = ["cluster"] if table_type == "cow" else ["compact", "log compact", "cluster"]
    for action in (tk.Table.read, *(ACTIONS[name] for name in ("upsert", *services))):
        with pytest.raises(error):
            action(table)
