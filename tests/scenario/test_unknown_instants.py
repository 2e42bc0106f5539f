"""Files whose instant is on no timeline: an archived commit's are read, those of a write that died are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tablekeeper.config.table_config import parse_table_config
from tablekeeper.model import RequestedTime
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.timeline.history import load_archive_reach
from tablekeeper.timeline.timeline import Timeline
from tests.support.recovery_world import LAPSED_S, World, worlds
from tests.support.table_builder import trips

FEW = {
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.clean.commits.retained": 1,
    "hoodie.compact.inline.max.delta.commits": 1,
}


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    with worlds() as new:
        yield new


def leave_files_of_a_write_that_died(world: World) -> set[str]:
    """Files of a write that was rolled back, which come once more when all is over; no marker names them."""
    before = world.data_files()
    world.crash(trips(("z", "sf", 1, 1.0), ("w", "la", 1, 1.0)))
    files = {path: world.storage.read(path) for path in world.data_files() - before}
    world.clock.stall(LAPSED_S)
    world.upsert(trips(("b", "ny", 2, 2.0)))
    assert not world.data_files() & files.keys()
    for path, content in files.items():
        world.storage.put(path, content)
    assert files
    return set(files)


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_files_of_a_first_write_that_died_are_not_read_and_not_built_upon(
    make: Callable[..., World], table_type: str
) -> None:
    world = make(table_type=table_type)
    leave_files_of_a_write_that_died(world)
    assert world.rows() == [("b", 2.0)]
    result = world.upsert(trips(("z", "sf", 10, 10.0)))
    assert (result.rows_inserted, result.rows_updated) == (1, 0)
    assert world.rows() == [("b", 2.0), ("z", 10.0)]
    kinds = {finding.kind for finding in world.table.doctor().findings}
    assert kinds == {"orphan-files"}


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_what_was_archived_is_read_and_what_died_after_it_is_not(make: Callable[..., World], table_type: str) -> None:
    world = make(table_type=table_type)
    for number in range(6):
        world.upsert(trips((f"k{number}", "sf", 1, float(number))))
    if table_type == "mor":
        world.table.compact(options=FEW)
    world.table.archive(options=FEW)
    config = world.table.config
    reach = load_archive_reach(world.storage, config)
    first = world.timeline.first_active_write
    assert reach is not None
    assert first is not None
    assert reach < first
    wanted = [(f"k{number}", float(number)) for number in range(6)]
    assert world.rows() == wanted
    # A time between the archive and the active timeline, which is nobody's.
    name = next(path for path in world.data_files() if reach.value in path or first.value in path)
    between = RequestedTime(str(int(first.value) - 1))
    assert reach < between < first
    late = name.replace(first.value, between.value).replace(reach.value, between.value).replace("sf/", "sf/0")
    world.storage.put(late, world.storage.read(name))
    assert world.rows() == wanted


def test_reads_look_at_the_archive_only_where_files_are_older_than_the_timeline(make: Callable[..., World]) -> None:
    world = make()
    for number in range(6):
        world.upsert(trips((f"k{number}", "sf", 1, float(number))))

    def looks() -> int:
        table, storage, _ = world.client()
        table.read()
        return sum(path.startswith(HISTORY) for _, path in storage.calls)

    assert looks() == 0
    world.table.clean(options=FEW)
    world.table.archive(options=FEW)
    assert looks() <= 1


def storage_with(*paths: str) -> MemoryStorage:
    storage = MemoryStorage(f"memory://reach-{'-'.join(map(str, map(hash, paths)))}/table")
    for path in paths:
        storage.put(path, b"")
    return storage


PROPERTIES = {
    "hoodie.table.name": "trips",
    "hoodie.table.type": "COPY_ON_WRITE",
    "hoodie.table.version": "9",
    "hoodie.table.initial.version": "9",
}
CONFIG = parse_table_config(PROPERTIES, file="properties")
UPGRADED = replace(CONFIG, properties={"hoodie.table.initial.version": "6"})
OLD = replace(UPGRADED, version=6, history_directory=".hoodie/archived")
HISTORY = ".hoodie/timeline/history"
OLD_ARCHIVE = ".hoodie/archived/.commits_.archive.1_1-0-1"
FILE = "20240101000000001_20240101000000005_0.parquet"


def test_the_archive_reaches_as_far_as_the_names_of_its_files_say() -> None:
    assert load_archive_reach(storage_with(), CONFIG) is None
    other = "20240101000000002_20240101000000009_1.parquet"
    storage = storage_with(f"{HISTORY}/{FILE}", f"{HISTORY}/{other}", f"{HISTORY}/manifest_1", f"{HISTORY}/_version_")
    assert load_archive_reach(storage, CONFIG) == RequestedTime("20240101000000009")


def test_an_old_archive_which_is_not_read_here_counts_as_reaching_everything() -> None:
    first = RequestedTime("20250101000000000")
    for config in (UPGRADED, OLD):
        assert load_archive_reach(storage_with(), config) is None
        reach = load_archive_reach(storage_with(OLD_ARCHIVE), config)
        assert reach is not None
        assert reach > first
    # One that was brought along is exact.
    brought_along = storage_with(OLD_ARCHIVE, f"{HISTORY}/{FILE}")
    assert load_archive_reach(brought_along, UPGRADED) == RequestedTime("20240101000000005")


def test_a_timeline_made_by_hand_has_nothing_archived() -> None:
    assert not Timeline().is_archived(RequestedTime("20240101000000000"))
