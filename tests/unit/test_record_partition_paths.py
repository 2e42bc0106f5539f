"""Partition paths; the timestamp-based expectations are what Java Hudi 1.2.0 wrote for the same rows."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.record.partition_paths import (
    PartitionField,
    PartitionSpec,
    TimestampSpec,
    partition_paths,
    partition_values,
    prunable_values,
)

NULL = "__HIVE_DEFAULT_PARTITION__"
TIMES = pa.table(
    {
        "l": pa.array([1709528767, -1, None]),
        "s": ["2024-03-04 05:06:07", "1969-12-31 23:59:59", None],
        "d": [1.9, -0.5, None],
        "ts": pa.array([1709528767000008, -1, None], pa.timestamp("us", "UTC")),
        "z": ["2024-03-04T05:06:07.123Z", "2024-03-04T05:06:07.123+0530", None],
        "day": [dt.date(2024, 3, 4), dt.date(1960, 3, 4), None],
    }
)
ZONED = ("yyyy-MM-dd'T'HH:mm:ssZ", "yyyy-MM-dd'T'HH:mm:ss.SSSZ")


def simple(*names: str, **style: bool) -> PartitionSpec:
    return PartitionSpec(tuple(PartitionField(name) for name in names), **style)


def timed(name: str, spec: TimestampSpec, **style: bool) -> PartitionSpec:
    return PartitionSpec((PartitionField(name, "timestamp", spec),), **style)


def test_values_are_joined_by_slashes() -> None:
    rows = pa.table({"a": ["x", "y", "x"], "b": [1, 2, 1]})
    paths = partition_paths(rows, simple("a", "b"))
    assert paths.to_pylist() == ["x/1", "y/2", "x/1"]
    assert paths.type == pa.dictionary(pa.int32(), pa.string())
    assert paths.dictionary.to_pylist() == ["x/1", "y/2"]


def test_hive_style_names_the_columns() -> None:
    rows = pa.table({"a": ["x", None], "b": [1, None]})
    assert partition_paths(rows, simple("a", "b", hive_style=True)).to_pylist() == ["a=x/b=1", f"a={NULL}/b={NULL}"]


def test_null_and_empty_values_share_the_default_partition() -> None:
    paths = partition_paths(pa.table({"a": ["", None, "x"]}), simple("a"))
    assert paths.to_pylist() == [NULL, NULL, "x"]
    assert paths.dictionary.to_pylist() == [NULL, "x"]


def test_a_table_without_partition_columns_has_the_empty_path() -> None:
    assert partition_paths(pa.table({"a": [1, 2]}), PartitionSpec(())).to_pylist() == ["", ""]


def test_url_encoding_escapes_what_java_escapes() -> None:
    value = "a b/c:d=e%f?g\"h#i'j*k\\l{m[n]o^p\x7f\nä}~"
    path = partition_paths(pa.table({"a": [value]}), simple("a", url_encode=True))[0].as_py()
    assert path == "a b%2Fc%3Ad%3De%25f%3Fg%22h%23i%27j%2Ak%5Cl%7Bm%5Bn%5Do%5Ep%7F%0Aä}~"
    assert partition_values(path, simple("a", url_encode=True)) == (value,)


def test_a_slash_without_url_encoding_makes_another_level() -> None:
    assert partition_paths(pa.table({"a": ["x/y"]}), simple("a")).to_pylist() == ["x/y"]


def test_dates_may_be_separated_by_slashes() -> None:
    spec = simple("day", slash_separated_dates=True)
    rows = TIMES.slice(0, 1)
    assert partition_paths(rows, spec).to_pylist() == ["2024/03/04"]
    assert partition_values("2024/03/04", spec) == ("2024-03-04",)


def test_dictionary_columns_and_chunks_are_understood() -> None:
    chunked = pa.chunked_array([pa.array(["x", None]).dictionary_encode(), pa.array(["y"]).dictionary_encode()])
    assert partition_paths(pa.table({"a": chunked}), simple("a")).to_pylist() == ["x", NULL, "y"]


def test_no_rows_have_no_paths() -> None:
    assert partition_paths(pa.table({"a": pa.array([], pa.string())}), simple("a")).to_pylist() == []


@pytest.mark.parametrize("value", ["..", ".", "/x", "x/", "x//y", "x/../y", ".hoodie", ".hoodie/timeline", "a\0b"])
def test_a_value_that_would_leave_the_table_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="does not make a folder inside the table"):
        partition_paths(pa.table({"a": ["ok", value]}), simple("a"))


def test_a_missing_partition_column_is_named_with_the_nearest_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"no column citty .*did you mean city\?"):
        partition_paths(pa.table({"city": ["x"]}), simple("citty"))


def test_a_nested_partition_column_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="plain"):
        partition_paths(pa.table({"a": [[1]]}), simple("a"))


@pytest.mark.parametrize(
    ("column", "spec", "expected"),
    [
        (
            "l",
            TimestampSpec("UNIX_TIMESTAMP", "yyyy/MM/dd HH:mm:ss.SSS"),
            ["2024/03/04 05:06:07.000", "1969/12/31 23:59:59.000", "1970/01/01 00:00:01.000"],
        ),
        (
            "l",
            TimestampSpec("UNIX_TIMESTAMP", "yyyy-MM-dd'T'HH", output_timezone="GMT+8:00"),
            ["2024-03-04T13", "1970-01-01T07", "1970-01-01T08"],
        ),
        (
            "d",
            TimestampSpec("SCALAR", "yyyyMMddHH", scalar_unit="days"),
            ["1970010200", "1970010100", "1970010200"],
        ),
        ("day", TimestampSpec("SCALAR", "yyyyMMdd", scalar_unit="DAYS"), ["20240304", "19600304", "19700102"]),
        (
            "ts",
            TimestampSpec("SCALAR", "yyyy-MM-dd HH.mm.ss.SSS", scalar_unit="MICROSECONDS"),
            ["2024-03-04 05.06.07.000", "1970-01-01 00.00.00.000", "1970-01-01 00.00.00.000"],
        ),
        (
            "ts",
            TimestampSpec("EPOCHMICROSECONDS", "yyyy-MM-dd HH.mm.ss.SSSSSS"),
            ["2024-03-04 05.06.07.000000", "1970-01-01 00.00.00.000000", "1970-01-01 00.00.00.000000"],
        ),
        (
            "s",
            TimestampSpec(
                "DATE_STRING",
                "yyyy/MM/dd",
                ("yyyy-MM-dd HH:mm:ss",),
                input_timezone="Asia/Tokyo",
                output_timezone="UTC",
            ),
            ["2024/03/03", "1969/12/31", "1970/01/01"],
        ),
        ("z", TimestampSpec("DATE_STRING", "yyyyMMddHHmm", ZONED), ["202403040506", "202403040506", "197001010000"]),
        (
            "z",
            TimestampSpec(
                "DATE_STRING", "yyyyMMddHHmm", ZONED, input_timezone="America/New_York", output_timezone="UTC"
            ),
            ["202403040506", "202403032336", "197001010000"],
        ),
        (
            "s",
            TimestampSpec("MIXED", "yyyyMMdd HH", ("yyyy", "yyyy-MM-dd HH:mm:ss")),
            ["20240304 05", "19691231 23", "19700101 00"],
        ),
        (
            "l",
            TimestampSpec("UNIX_TIMESTAMP", "y.yy.yyy.M.d.ddd.H.m.s.S.SS.hh.D.e.w.xxxx.YYYY.k.K.''.'it''s'"),
            [
                "2024.24.2024.3.4.004.5.6.7.0.00.05.64.1.10.2024.2024.5.5.'.it's",
                "1969.69.1969.12.31.031.23.59.59.0.00.11.365.3.1.1970.1969.23.11.'.it's",
                "1970.70.1970.1.1.001.0.0.1.0.00.12.1.4.1.1970.1970.24.0.'.it's",
            ],
        ),
    ],
    ids=lambda value: value.output_format if isinstance(value, TimestampSpec) else None,
)
def test_timestamp_based_paths_are_those_of_java(column: str, spec: TimestampSpec, expected: list[str]) -> None:
    assert partition_paths(TIMES, timed(column, spec)).to_pylist() == expected


def test_timestamp_based_paths_take_the_style_of_the_table() -> None:
    spec = TimestampSpec("UNIX_TIMESTAMP", "yyyy/MM/dd HH:mm", output_timezone="America/New_York")
    encoded = partition_paths(TIMES, timed("l", spec, url_encode=True, hive_style=True)).to_pylist()
    assert encoded == ["l=2024%2F03%2F04 00%3A06", "l=1969%2F12%2F31 18%3A59", "l=1969%2F12%2F31 19%3A00"]


@pytest.mark.parametrize(
    ("spec", "column", "message"),
    [
        (TimestampSpec("DATE_STRING", "yyyy", ("yyyy",)), "l", "reads text"),
        (TimestampSpec("UNIX_TIMESTAMP", "yyyy"), "s", "reads numbers"),
        (TimestampSpec("DATE_STRING", "yyyy", ("yyyy-MM-dd",)), "s", "'2024-03-04 05:06:07' fits none"),
        (TimestampSpec("SCALAR", "yyyy", scalar_unit="DAYS"), "huge", "too large to be days"),
        (TimestampSpec("UNIX_TIMESTAMP", "yyyy"), "far", "outside the years"),
    ],
)
def test_a_value_that_is_no_time_is_refused(spec: TimestampSpec, column: str, message: str) -> None:
    rows = TIMES.slice(0, 1).append_column("huge", pa.array([2**62])).append_column("far", pa.array([10**15]))
    with pytest.raises(InvalidRequestError, match=message):
        partition_paths(rows, timed(column, spec))


@pytest.mark.parametrize(
    "settings",
    [
        {"output_format": "yyyy-MMM"},
        {"output_format": "EEE"},
        {"output_format": "yyyy Z"},
        {"output_format": "yyyy", "timestamp_type": "DATE_STRING", "input_formats": ("yy",)},
        {"output_format": "yyyy", "timestamp_type": "DATE_STRING", "input_formats": ("yyyy-DDD",)},
    ],
)
def test_a_pattern_without_a_fixed_meaning_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeatureError, match="date pattern"):
        TimestampSpec(**{"timestamp_type": "UNIX_TIMESTAMP", **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"output_format": "yyyy'x"}, "not closed"),
        ({"output_timezone": "Mars/North"}, "unknown time zone"),
        ({"timestamp_type": "SCALAR", "scalar_unit": "YEARS"}, "unknown time unit"),
        ({"timestamp_type": "DATE_STRING"}, "needs an input date format"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        TimestampSpec(**{"timestamp_type": "UNIX_TIMESTAMP", "output_format": "yyyy", **settings})


@pytest.mark.parametrize(
    ("path", "spec", "values"),
    [
        ("", PartitionSpec(()), ()),
        ("x", simple("a"), ("x",)),
        ("x/y", simple("a"), ("x/y",)),
        (NULL, simple("a"), (None,)),
        ("a=x/b=1", simple("a", "b", hive_style=True), ("x", "1")),
        (f"a={NULL}/b=1", simple("a", "b", hive_style=True), (None, "1")),
        ("x/y/z", simple("a", "b"), ()),
        ("x", simple("a", "b"), ()),
        ("a=x", simple("a"), ()),
        ("x", simple("a", hive_style=True), ()),
    ],
)
def test_a_path_gives_its_values_back_or_nothing(
    path: str, spec: PartitionSpec, values: tuple[str | None, ...]
) -> None:
    assert partition_values(path, spec) == values


def test_the_date_of_a_timestamp_field_is_not_offered_for_pruning() -> None:
    time = PartitionField("l", "timestamp", TimestampSpec("UNIX_TIMESTAMP", "yyyy/MM"))
    spec = PartitionSpec((PartitionField("city"), time), hive_style=True)
    assert partition_values("city=x/l=2024/03", spec) == ("x", "2024/03")
    assert prunable_values("city=x/l=2024/03", spec) == {"city": "x"}
