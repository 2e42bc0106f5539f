"""Tables whose timeline is in local time, over the hour that is gone through twice in autumn.

Java formats instants as `yyyyMMddHHmmssSSS` in the zone of its machine, and so do we. Instants are ordered by their
digits, so that ours must increase although the clock on the wall goes back.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from zoneinfo import ZoneInfo

import pytest

import tablekeeper as tk
from tablekeeper.timeline import following_time, format_time, parse_time, time_bounds
from tests.support.fake_runtime import FakeClock, FakeWorld
from tests.support.table_builder import TableBuilder, rows_of, trips

__all__: list[str] = []

BERLIN = ZoneInfo("Europe/Berlin")
FOLD = dt.datetime(2026, 10, 25, 1, 0, tzinfo=dt.UTC)
"""When the clocks of Berlin go from 03:00 back to 02:00."""

OPTIONS = {"hoodie.table.timeline.timezone": "LOCAL"}
STEP_S = 600


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process lives in Berlin."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


class Autumn:
    """A table on a simulated clock, which stands at some minutes before the clocks go back."""

    def __init__(self, *, minutes_before: int, table_type: str = "mor") -> None:
        world = FakeWorld()
        self.clock: FakeClock = world.clock
        self.clock.suspend(FOLD.timestamp() - minutes_before * 60 - self.clock.now_ms() / 1000)
        self.builder = TableBuilder(runtime=world.process())
        self.table: tk.Table = self.builder.create(table_type=table_type, options=OPTIONS)

    def write(self, key: str) -> tk.WriteResult:
        return self.table.upsert(trips((key, "sf", 1, 1.0)))

    def now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.clock.now_ms() / 1000, tz=dt.UTC)

    def times(self) -> list[str]:
        """Requested and completion times in the order in which they were given."""
        writes = [i for i in self.table.timeline() if i.action.writes_data]
        return [t for i in writes for t in (i.requested_at.value, i.completed_at.value if i.completed_at else "")]


@pytest.fixture
def autumn() -> Iterator[Autumn]:
    world = Autumn(minutes_before=65)
    yield world
    world.builder.forget()


def test_instants_increase_through_the_hour_that_comes_twice(autumn: Autumn) -> None:
    results = []
    for number in range(15):
        results.append(autumn.write(f"k{number}"))
        autumn.clock.advance(STEP_S)
    given = [t for r in results for t in (r.instant.value, r.completed_at.value if r.completed_at else "")]
    assert given == sorted(set(given))
    assert given == autumn.times()
    assert given[0].startswith("202610250155")
    assert given[-1] > "20261025030"


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_changes_since_the_last_instant_give_each_row_once_through_the_hour(table_type: str) -> None:
    autumn = Autumn(minutes_before=65, table_type=table_type)
    cursor: object = autumn.write("first").instant
    seen = []
    for number in range(15):
        result = autumn.write(f"k{number:02d}")
        seen += [row[0] for row in rows_of(autumn.table.changes(since=cursor), "id")]
        cursor = result.instant
        autumn.clock.advance(STEP_S)
    assert seen == [f"k{number:02d}" for number in range(15)]
    assert len(rows_of(autumn.table.read(), "id")) == 16
    autumn.builder.forget()


def test_changes_since_a_moment_of_the_hour_miss_nothing_that_came_later(autumn: Autumn) -> None:
    autumn.clock.advance(5 * 60)
    moments = []
    for number in range(12):
        moments.append(autumn.now())
        autumn.clock.advance(STEP_S / 2)
        # Few writes, so that the first one of the second round finds no later time on the timeline.
        if number in (0, 7, 11):
            autumn.write(f"k{number:02d}")
        autumn.clock.advance(STEP_S / 2)
    for number, moment in enumerate(moments):
        later = {f"k{each:02d}" for each in (0, 7, 11) if each >= number}
        earlier = {f"k{each:02d}" for each in (0, 7, 11) if each < number}
        assert later <= {row[0] for row in rows_of(autumn.table.changes(since=moment), "id")}
        assert earlier <= {row[0] for row in rows_of(autumn.table.changes(until=moment), "id")}


def test_the_bounds_of_a_moment_differ_in_that_hour_alone() -> None:
    def bounds(minutes: int) -> tuple[str, str]:
        return time_bounds(int(FOLD.timestamp() + minutes * 60) * 1000, zone="LOCAL")

    assert bounds(-61) == ("20261025015900000",) * 2
    assert bounds(-10) == ("20261025015000000", "20261025025000000")
    assert bounds(10) == ("20261025021000000", "20261025031000000")
    assert bounds(60) == ("20261025030000000",) * 2
    assert time_bounds(int(FOLD.timestamp()) * 1000, zone="UTC") == ("20261025010000000",) * 2


def test_times_are_written_as_java_writes_them_on_either_side() -> None:
    for minutes in (-61, -1, 1, 61):
        moment = FOLD + dt.timedelta(minutes=minutes)
        java = moment.astimezone(BERLIN).strftime("%Y%m%d%H%M%S") + "000"
        assert format_time(int(moment.timestamp() * 1000), zone="LOCAL") == java
    for minutes in (-61, 61):
        moment_ms = int((FOLD + dt.timedelta(minutes=minutes)).timestamp() * 1000)
        assert parse_time(format_time(moment_ms, zone="LOCAL"), zone="LOCAL") == moment_ms


@pytest.mark.parametrize(
    ("time_text", "next_text"),
    [
        ("20261025025959999", "20261025030000000"),
        ("20260329015959999", "20260329020000000"),
        ("20251231235959999", "20260101000000000"),
        ("20261025025959", "20261025030000000"),
    ],
)
def test_the_following_time_is_the_next_by_the_digits(time_text: str, next_text: str) -> None:
    assert following_time(time_text) == next_text


def test_our_instant_follows_one_that_java_gave_before_the_clocks_went_back(autumn: Autumn) -> None:
    autumn.write("a")
    autumn.clock.advance(60 * 60)
    storage = autumn.builder.storage(autumn.table)
    java = "20261025025959990"
    storage.put(f".hoodie/timeline/{java}.savepoint.requested", b"")
    autumn.clock.advance(20 * 60)
    result = autumn.write("b")
    assert result.instant.value == "20261025025959991"
    assert rows_of(autumn.table.changes(since="20261025025959990"), "id") == [("b",)]
