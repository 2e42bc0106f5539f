"""Values as text: the expectations marked Java were printed by Java Hudi 1.2.0 on JDK 17."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import format_values, parse_value

JAVA_DOUBLES = {
    1.0: "1.0",
    1e10: "1.0E10",
    1.5: "1.5",
    0.001: "0.001",
    0.0001: "1.0E-4",
    9999999.0: "9999999.0",
    1e7: "1.0E7",
    123456789.125: "1.23456789125E8",
    1e-5: "1.0E-5",
    1.7e308: "1.7E308",
    0.002: "0.002",
    -1234.5678: "-1234.5678",
    12345678.9: "1.23456789E7",
    0.1 + 0.2: "0.30000000000000004",
    100.0: "100.0",
    float("inf"): "Infinity",
    -float("inf"): "-Infinity",
    -1e20: "-1.0E20",
    1.5e-300: "1.5E-300",
}
JAVA_DECIMALS = {
    "1.5": "1.5000000000",
    "0": "0E-10",
    "0.0000000001": "1E-10",
    "-0.0000012": "-0.0000012000",
    "123456789": "123456789.0000000000",
    "0.00000123": "0.0000012300",
}


def test_doubles_are_printed_as_java_prints_them() -> None:
    assert format_values(pa.array(list(JAVA_DOUBLES))).to_pylist() == list(JAVA_DOUBLES.values())


def test_zeros_keep_their_sign_and_nan_has_a_name() -> None:
    assert format_values(pa.array([0.0, -0.0, float("nan"), None])).to_pylist() == ["0.0", "-0.0", "NaN", None]


def test_floats_are_printed_with_their_own_precision() -> None:
    values = pa.array([1.1, 1e10, 1e-4, -1234.5678, 1.23456789e7], pa.float32())
    assert format_values(values).to_pylist() == ["1.1", "1.0E10", "1.0E-4", "-1234.5677", "1.2345679E7"]


def test_decimals_have_their_scale_and_javas_exponent() -> None:
    values = pa.array([decimal.Decimal(text) for text in JAVA_DECIMALS], pa.decimal128(20, 10))
    assert format_values(values).to_pylist() == list(JAVA_DECIMALS.values())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([-3, 4, None]), ["-3", "4", None]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (pa.array([dt.date(1969, 3, 4), dt.date(2024, 3, 4)]), ["1969-03-04", "2024-03-04"]),
        (pa.array([1709528767000008], pa.timestamp("us", "UTC")), ["1709528767000008"]),
        (pa.array([1709528767000008], pa.timestamp("us")), ["1709528767000008"]),
        (pa.array([1709528767001], pa.timestamp("ms", "UTC")), ["1709528767001"]),
        (pa.array([2], pa.timestamp("s")), ["2000000"]),
        (pa.array([2500], pa.timestamp("ns")), ["2"]),
        (pa.array([b"\x00\xffa", None, b""]), ["00ff61", None, ""]),
        (pa.array([b"abc"], pa.large_binary()), ["616263"]),
        (pa.array([b"abc"], pa.binary(3)), ["616263"]),
        (pa.array(["x y", "", None]), ["x y", "", None]),
        (pa.array(["x"], pa.large_string()), ["x"]),
        (pa.array([5, None, 5]).dictionary_encode(), ["5", None, "5"]),
        (pa.array([None, None]), [None, None]),
        (pa.array([], pa.binary()), []),
    ],
    ids=str,
)
def test_each_type_has_its_text(values: pa.Array, expected: list[str | None]) -> None:
    text = format_values(values)
    assert text.type == pa.string()
    assert text.to_pylist() == expected


def test_chunks_and_slices_are_formatted_as_one_array() -> None:
    chunked = pa.chunked_array([[b"ab"], [b"cd", None]]).slice(1)
    assert format_values(chunked).to_pylist() == ["6364", None]
    assert format_values(pa.array([b"ab", b"cd", b"ef"])[1:2]).to_pylist() == ["6364"]


def test_a_string_column_is_not_copied() -> None:
    values = pa.array(["a", "b"])
    assert format_values(values) is values


def test_a_nested_column_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"struct<a: int64>.*plain"):
        format_values(pa.array([{"a": 1}]))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, -5]),
        pa.array([True, False]),
        pa.array([1.5, 1e10, 1e-5]),
        pa.array([decimal.Decimal("1.50"), decimal.Decimal("0.00")], pa.decimal128(9, 2)),
        pa.array([dt.date(2024, 3, 4)]),
        pa.array([5], pa.timestamp("us", "UTC")),
        pa.array([5], pa.timestamp("ms")),
        pa.array([b"\x00\xff"]),
        pa.array(["a"]),
    ],
    ids=lambda values: str(values.type),
)
def test_a_printed_value_is_read_back(values: pa.Array) -> None:
    assert [parse_value(text, values.type) for text in format_values(values).to_pylist()] == values.to_pylist()


@pytest.mark.parametrize(
    ("text", "kind"),
    [("x", pa.int32()), ("yes", pa.bool_()), ("1,5", pa.decimal128(9, 2)), ("2024", pa.date32()), ("zz", pa.binary())],
)
def test_text_that_is_no_value_of_the_type_is_refused(text: str, kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_value(text, kind)
