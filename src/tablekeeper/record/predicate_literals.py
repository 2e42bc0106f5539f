"""Literals of a predicate: their SQL text, and what they are worth beside a column's type.

A literal without a time zone beside a zoned column means UTC, everywhere. Comparisons whose
outcome would depend on implicit casts of the column (text against a number) are refused when
the column's type is known, and count as unknown when only its statistics are.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from tablekeeper.errors import InvalidRequestError

__all__ = ["UNKNOWN", "Literal", "beside_sample", "beside_type", "check_literal", "literal_sql", "name_sql", "text_sql"]

Literal = None | bool | int | float | decimal.Decimal | str | bytes | dt.date | dt.datetime

_LITERAL_TYPES = (bool, int, float, decimal.Decimal, str, bytes, dt.date)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset(
    {"and", "or", "not", "in", "between", "is", "null", "like", "true", "false", "date", "timestamp", "timestamp_ntz"}
    | {"select", "from", "where", "case", "when", "exists", "interval", "cast"}
)
# From here on every whole number has a neighbour with the same double, so that exact comparison misleads.
_FIRST_ROUNDED: Final = 2**53
# Java orders text by UTF-16 units, Arrow by code points: they disagree only at and above this character.
_FIRST_DISPUTED: Final = "\ud800"


class _Unknown:
    """A comparison that cannot be decided from what is known."""


UNKNOWN: Final = _Unknown()


def check_literal(value: Any) -> None:
    """Raise InvalidRequestError for a value that has no place in a predicate."""
    if value is not None and not isinstance(value, _LITERAL_TYPES):
        raise InvalidRequestError(f"a predicate cannot compare with a {type(value).__name__}: use a plain value.")
    if isinstance(value, (float, decimal.Decimal)) and not math.isfinite(value):
        raise InvalidRequestError(f"a predicate cannot compare with {value}: use a finite number.")


def literal_sql(value: Literal) -> str:
    """The literal as Spark SQL text."""
    if isinstance(value, float):
        # The exponent makes it a double; without one Spark would read a decimal.
        text = repr(value)
        return text if "e" in text else f"{text}e0"
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, (dt.date, str)):
        return text_sql(value) if isinstance(value, str) else _time_sql(value)
    named = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return named[value]
    return format(value, "f") if isinstance(value, decimal.Decimal) else str(value)


def text_sql(text: str) -> str:
    """Text as a Spark SQL string, with Spark's backslash escapes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\u0000")
    return f"'{escaped}'"


def name_sql(path: str) -> str:
    """A column path as Spark SQL text, quoted where it must be."""
    plain = (
        part if _PLAIN_NAME.fullmatch(part) and part.lower() not in _RESERVED else None for part in path.split(".")
    )
    pairs = zip(plain, path.split("."), strict=True)
    return ".".join(good if good is not None else f"`{part.replace('`', '``')}`" for good, part in pairs)


def beside_type(value: Literal, kind: pa.DataType, *, column: str) -> Any:
    """The literal as a value to compare with a column of type `kind`.

    Integers and decimals stay exact numbers (they may lie outside the type), so that the caller
    can round the comparison instead of the value. Raises InvalidRequestError if they do not compare.
    """
    converted: Any = UNKNOWN
    given = value
    if isinstance(value, str) and not _is_text(kind):
        value = _read_text(value, kind)
    if pa.types.is_boolean(kind):
        converted = value if isinstance(value, bool) else UNKNOWN
    elif _is_number(kind):
        converted = _number(value, floating=bool(pa.types.is_floating(kind)))
    elif _is_text(kind):
        converted = value if isinstance(value, str) else UNKNOWN
    elif _is_bytes(kind):
        converted = value if isinstance(value, bytes) else UNKNOWN
    elif pa.types.is_date(kind):
        converted = _as_date(value)
    elif pa.types.is_timestamp(kind):
        converted = _as_datetime(value, zoned=kind.tz is not None)
    if converted is UNKNOWN:
        raise InvalidRequestError(
            f"column {column} is {kind} and cannot be compared with {literal_sql(given)}: write a {_example(kind)}."
        )
    return converted


def beside_sample(value: Literal, sample: Any) -> Any:
    """The literal as a value that orders against `sample` (a bound from statistics), or UNKNOWN."""
    converted: Any = UNKNOWN
    if isinstance(sample, bool):
        converted = value if isinstance(value, bool) else UNKNOWN
    elif isinstance(sample, (int, float, decimal.Decimal)):
        converted = _number_beside(value, sample)
    elif isinstance(sample, str):
        if isinstance(value, str) and max(value + sample, default="") < _FIRST_DISPUTED:
            converted = value
    elif isinstance(sample, bytes):
        converted = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else UNKNOWN
    elif isinstance(sample, dt.datetime):
        read = _read_text(value, pa.timestamp("us")) if isinstance(value, str) else value
        converted = _as_datetime(read, zoned=sample.tzinfo is not None)
    elif isinstance(sample, dt.date):
        converted = _as_date(_read_text(value, pa.date32()) if isinstance(value, str) else value)
    return converted


def _time_sql(value: dt.date) -> str:
    if not isinstance(value, dt.datetime):
        return f"date '{value.isoformat()}'"
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC)
    return f"timestamp '{value.isoformat(sep=' ')}'"


def _number_beside(value: Literal, sample: float | decimal.Decimal) -> Any:
    # Text is not read as a number here: the column may be text now and have been a number in an older file.
    if isinstance(value, float) and not isinstance(sample, float):
        # Spark compares such a pair as doubles, rounding the column.
        return UNKNOWN if isinstance(sample, decimal.Decimal) or abs(value) >= _FIRST_ROUNDED else value
    return _number(value, floating=isinstance(sample, float))


def _number(value: Any, *, floating: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, decimal.Decimal)):
        return UNKNOWN
    if not floating:
        return decimal.Decimal(repr(value)) if isinstance(value, float) else value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _read_text(text: str, kind: pa.DataType) -> Any:
    """Text beside a column that is not text, read the way SQL casts it; UNKNOWN if it cannot be read."""
    for applies, read in _READERS:
        if applies(kind):
            try:
                value = read(text)
                check_literal(value)
            except (ValueError, decimal.InvalidOperation, InvalidRequestError):
                return UNKNOWN
            return value
    return UNKNOWN


def _as_date(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        midnight = value.tzinfo is None and value.time() == dt.time.min
        return value.date() if midnight else UNKNOWN
    return value if isinstance(value, dt.date) else UNKNOWN


def _as_datetime(value: Any, *, zoned: bool) -> Any:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        value = dt.datetime.combine(value, dt.time.min)
    if not isinstance(value, dt.datetime) or (value.tzinfo is not None and not zoned):
        return UNKNOWN
    if not zoned:
        return value
    return value.astimezone(dt.UTC) if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _is_bytes(kind: pa.DataType) -> bool:
    flat = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(flat or kind == pa.binary_view())


def _example(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "true or false"
    if _is_number(kind):
        return "number"
    if _is_text(kind):
        return "text in single quotes"
    if pa.types.is_date(kind):
        return "date such as date '2024-01-31'"
    if pa.types.is_timestamp(kind):
        zone = "+00:00" if kind.tz else ""
        return f"time such as timestamp '2024-01-31 10:00:00{zone}'"
    return "value of that type, if there is one; nested columns compare by their fields"


def _read_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]], ...] = (
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_decimal, decimal.Decimal),
    (pa.types.is_boolean, _read_boolean),
    (pa.types.is_date, dt.date.fromisoformat),
    (pa.types.is_timestamp, dt.datetime.fromisoformat),
    (_is_bytes, str.encode),
)
