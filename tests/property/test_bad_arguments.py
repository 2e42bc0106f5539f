"""Whatever a caller passes, anything that goes wrong comes out as one of our errors.

Every public method of `Table`, with odd values for each of its arguments: one error of ours, or success. The
methods and their arguments are read from their signatures, so that a new one is tried without being listed here.
"""

from __future__ import annotations

import datetime as dt
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tablekeeper as tk
from tablekeeper.config.options import OPTIONS
from tablekeeper.errors import InvalidRequestError
from tests.support.table_builder import TRIPS, TableBuilder, trips

ROWS = trips(("a", "sf", 1, 1.0), ("b", "la", 1, 2.0))
TRIED = sorted(
    name for name, member in inspect.getmembers(tk.Table) if inspect.isfunction(member) and not name.startswith("_")
)
FRAMES = ("rows", "keys")
# Waiting is no mistake of the caller's.
FIXED = {"wait": 0, "runtime": None, "progress": None, "spark": None}

TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "\x00",
            "\ud800",
            "a\x1b[31m",
            "../..",
            "id",
            "city",
            "nope",
            "id,ts",
            "city = 'sf'",
            "city = ",
            "ts > 'x'",
            "ts > 99999999999999999999999",
            "fare like 'a%'",
            "id in (1, 2)",
            "cast(ts as date) > 1",
            "((((",
            "20261115100000000",
            "99999999999999999999",
            "00000000000000000",
            "0001-01-01",
            "9999-12-31T23:59:59+00:00",
            "9999-12-31T23:59:59-14:00",
            "earliest",
            "-1s",
            "1e400",
            "9" * 400 + "d",
            "compaction",
            "sort",
            "hilbert",
            "snapshot",
            "read_optimized",
        ]
    ),
    st.text(max_size=6),
)
NUMBERS = st.sampled_from(
    [0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.5, math.nan, math.inf, -math.inf]
)
ODD = st.sampled_from(
    [
        None,
        True,
        False,
        b"id",
        b"\xff",
        object(),
        int,
        Decimal("NaN"),
        1j,
        ...,
        dt.date.min,
        dt.date.max,
        dt.datetime.min,
        dt.datetime.max,
        dt.datetime.min.replace(tzinfo=dt.UTC),
        dt.timedelta(1),
        Path("id"),
        pa.scalar("id"),
        pa.array([1]),
        TRIPS,
        ROWS,
    ]
)
PLAIN = st.one_of(TEXTS, NUMBERS, ODD)
OPTION_MAPS = st.dictionaries(
    st.one_of(st.sampled_from(sorted(OPTIONS)), TEXTS, NUMBERS, st.none()), st.one_of(TEXTS, NUMBERS, ODD), max_size=3
)
ANYTHING = st.one_of(
    PLAIN,
    st.lists(PLAIN, max_size=3),
    st.tuples(PLAIN, PLAIN),
    st.sets(TEXTS, max_size=2),
    OPTION_MAPS,
)


class Hostile:
    """An Arrow stream that fails while it is drawn."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        def batches() -> Iterator[pa.RecordBatch]:
            yield from ROWS.to_batches()
            raise ValueError("the connection broke")

        return pa.RecordBatchReader.from_batches(TRIPS, batches()).__arrow_c_stream__(requested_schema)


def _column(name: str, kind: pa.DataType, values: list[Any]) -> pa.Table:
    return ROWS.drop_columns([name]).append_column(pa.field(name, kind), pa.array(values, kind)).select(TRIPS.names)


SOURCES: list[Callable[[], Any]] = [
    lambda: ROWS,
    lambda: ROWS.slice(0, 0),
    lambda: pa.table({}),
    ROWS.to_reader,
    ROWS.to_batches,
    ROWS.to_pandas,
    Hostile,
    lambda: [1],
    lambda: [ROWS.to_batches()[0], 1],
    lambda: [ROWS.to_batches()[0], ROWS.select(["id"]).to_batches()[0]],
    lambda: ROWS.append_column("id", pa.array(["x", "y"])),
    lambda: ROWS.append_column("", pa.array(["x", "y"])),
    lambda: ROWS.append_column("a.b", pa.array(["x", "y"])),
    lambda: ROWS.append_column("a\x00\n", pa.array(["x", "y"])),
    lambda: ROWS.append_column("_hoodie_record_key", pa.array([1, 2])),
    lambda: ROWS.append_column("_hoodie_commit_time", pa.array(["x", None])),
    lambda: ROWS.append_column("_hoodie_is_deleted", pa.array(["x", "y"])),
    lambda: ROWS.append_column("_hoodie_is_deleted", pa.array([True, None])),
    lambda: ROWS.append_column("new", pa.nulls(2)),
    lambda: ROWS.append_column("new", pa.array([dt.timedelta(1), None])),
    lambda: ROWS.append_column("new", pa.array([dt.time(1), None])),
    lambda: ROWS.append_column("new", pa.array([{}, {}], pa.struct([]))),
    lambda: ROWS.append_column("new", pa.array(["x", "y"]).dictionary_encode()),
    lambda: ROWS.append_column("new", pa.array([1, 2], pa.uint64())),
    lambda: ROWS.append_column("new", pa.array([2**64 - 1, 2], pa.uint64())),
    lambda: ROWS.append_column("new", pa.array([1.0, 2.0], pa.float16())),
    lambda: ROWS.append_column("new", pa.array([Decimal(1), Decimal(2)], pa.decimal256(60, 2))),
    lambda: ROWS.append_column("new", pa.array([2**62, 1], pa.timestamp("s"))),
    lambda: ROWS.append_column("new", pa.array([1, 2], pa.timestamp("ns", "Mars/Olympus"))),
    lambda: ROWS.append_column("new", pa.array([[(None, 1)][:0], [("a", 1)]], pa.map_(pa.string(), pa.int64()))),
    lambda: ROWS.append_column("new", pa.array([b"\xff", b""]).view(pa.string())),
    lambda: _column("id", pa.string(), ["a", None]),
    lambda: _column("id", pa.string(), ["", ""]),
    lambda: _column("id", pa.int64(), [1, 2]),
    lambda: _column("id", pa.list_(pa.string()), [["a"], []]),
    lambda: ROWS.set_column(0, "id", pa.array([b"\xff", b"\xfe"]).view(pa.string())),
    lambda: ROWS.set_column(1, "city", pa.array([b"\xff", b"\xfe"]).view(pa.string())),
    lambda: _column("city", pa.string(), [None, "a/../b"]),
    lambda: _column("city", pa.string(), ["..", ".hoodie"]),
    lambda: _column("city", pa.string(), ["\x00", "x" * 5000]),
    lambda: _column("city", pa.bool_(), [True, False]),
    lambda: _column("ts", pa.string(), ["x", "1"]),
    lambda: _column("ts", pa.float64(), [math.nan, None]),
    lambda: _column("ts", pa.struct([("x", pa.int64())]), [{"x": 1}, None]),
    lambda: _column("fare", pa.string(), ["x", "1"]),
    lambda: _column("fare", pa.binary(), [b"x", b"\xff"]),
    lambda: pa.table({"id": ["a"]}),
    lambda: pa.table({"ID": ["a"], "City": ["sf"], "TS": [1]}),
]


@pytest.fixture(scope="module")
def tables() -> Iterator[TableBuilder]:
    builder = TableBuilder()
    yield builder
    builder.forget()


def new_table(tables: TableBuilder) -> tk.Table:
    table = tables.create(table_type="mor")
    table.upsert(ROWS)
    table.upsert(trips(("a", "sf", 2, 3.0)))
    return table


def ours_or_none(call: Callable[[], object]) -> None:
    """Success, or one of our errors; everything else goes through and fails the test."""
    with suppress(tk.TablekeeperError):
        call()


def arguments(data: st.DataObject, method: Callable[..., object]) -> tuple[list[Any], dict[str, Any]]:
    positional, named = [], {}
    for name, parameter in inspect.signature(method).parameters.items():
        if name in FIXED:
            value = FIXED[name]
            if value is None:
                continue
        elif name in FRAMES:
            value = data.draw(st.sampled_from(SOURCES), label=name)()
        elif parameter.default is not inspect.Parameter.empty and data.draw(st.integers(0, 2)):
            continue
        elif name in ("options", "storage_options", "extra"):
            value = data.draw(st.one_of(OPTION_MAPS, OPTION_MAPS, ANYTHING), label=name)
        else:
            value = data.draw(ANYTHING, label=name)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional.append(value)
    return positional, named


@pytest.mark.parametrize("name", TRIED)
def test_every_method_fails_with_errors_of_ours_only(tables: TableBuilder, name: str) -> None:
    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def attempt(data: st.DataObject) -> None:
        table = new_table(tables) if changes_tables(name) else shared
        method = getattr(table, name)
        positional, named = arguments(data, method)
        ours_or_none(lambda: method(*positional, **named))

    shared = new_table(tables)
    attempt()


def changes_tables(name: str) -> bool:
    return not name.startswith(("explain", "read", "changes", "files", "timeline", "describe", "plans"))


PLACES = [
    "",
    " ",
    ".",
    "\0",
    "\ud800",
    "a\0b",
    "x" * 5000,
    "file:///a%00b",
    "http://x",
    "s3://",
    "memory://",
    "~no-such-user/x",
]
CREATED: dict[str, Any] = {"name": "t", "schema": TRIPS, "key": "id", "partition_by": "city", "ordering": "ts"}


@pytest.fixture
def odd_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Paths at which there is no table, or one that nobody can open."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("text")
    (tmp_path / "metadata_loop").mkdir()
    (tmp_path / "metadata_loop" / ".hoodie").symlink_to(tmp_path / "metadata_loop" / ".hoodie")
    (tmp_path / "directory" / ".hoodie" / "hoodie.properties").mkdir(parents=True)
    head = b"hoodie.table.name=x\nhoodie.table.type=COPY_ON_WRITE\n"
    contents = {
        "binary": b"\xff\xfe\\u12",
        "mode": head + b"hoodie.record.merge.mode=ODD\n",
        "kind": head + b"hoodie.table.keygenerator.type=CUSTOM\nhoodie.table.partition.fields=a:ODD\n",
        "version": head + b"hoodie.table.version=nine\n",
    }
    for name, content in contents.items():
        (tmp_path / name / ".hoodie").mkdir(parents=True)
        (tmp_path / name / ".hoodie" / "hoodie.properties").write_bytes(content)
    inside = ["loop", "loop/x", "file", "file/x", "y" * 300, "metadata_loop", "directory", *contents]
    return [*PLACES, *(tmp_path / name for name in inside), None, 1, b"x", ["a"], object()]


def test_odd_paths_are_errors_of_ours(odd_places: list[Any]) -> None:
    for place in odd_places:
        ours_or_none(partial(tk.Table.open, place, engine="local"))
        ours_or_none(partial(tk.Table.exists, place))
        ours_or_none(partial(tk.Table.create, place, engine="local", **CREATED))


@pytest.mark.parametrize("runtime", [None, "", 1, object()])
def test_an_odd_runtime_is_refused(odd_places: list[Any], runtime: Any) -> None:
    for call in (tk.Table.exists, partial(tk.Table.open, engine="local")):
        with pytest.raises(InvalidRequestError, match="runtime="):
            call(odd_places[0], runtime=runtime)


@settings(max_examples=120)
@given(data=st.data())
def test_creating_a_table_fails_with_errors_of_ours_only(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*CREATED, "table_type", "engine", "options", "storage_options", "if_not_exists"]))
    value = data.draw(st.one_of(ANYTHING, OPTION_MAPS), label=name)
    builder = TableBuilder()
    ours_or_none(lambda: tk.Table.create(builder.new_place(), **{"engine": "local", **CREATED, name: value}))
    builder.forget()


@settings(max_examples=100)
@given(name=st.sampled_from(sorted(OPTIONS)), value=st.one_of(TEXTS, NUMBERS, ODD))
def test_an_odd_value_of_any_option_is_refused_or_works(name: str, value: object) -> None:
    if "lock" in name:
        # Locks wait as long as they are told to; how they take odd settings is tried where they are made.
        return
    builder = TableBuilder()

    def work() -> None:
        table = builder.create(table_type="mor", options={name: value})
        table.upsert(ROWS)
        table.upsert(ROWS)
        table.compact()
        table.cluster()
        table.clean()
        table.archive()

    ours_or_none(work)
    builder.forget()


@pytest.mark.parametrize("hours", [10**6, 2**64, 10**400])
def test_more_hours_than_there_were_keep_everything(tables: TableBuilder, hours: int) -> None:
    assert new_table(tables).clean(keep_hours=hours) is None
