"""Columns of Arrow data: found by name, nested ones by dotted path, and as the text that Hudi makes of their values.

An unknown name is always reported with the nearest existing one, because most unknown names are typing mistakes.

The text goes into record keys and partition paths and decides in which file group and partition a row lives, so it
must equal, byte for byte, what the Java writer makes of the same value: Java's own number printing, ISO dates, epoch
numbers for timestamps, lower-case hexadecimal for bytes. Nulls stay null; what a null becomes is the business of keys
and partition paths.

Known difference: before JDK 19 Java prints some doubles with one digit more than needed (1e23 as
9.999999999999999E22), and always two digits for the smallest subnormals. The shortest text is used here, as JDK 19 and
later do.
"""

from __future__ import annotations

import datetime as dt
import decimal
import difflib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import InvalidRequestError

__all__ = [
    "column_type",
    "column_values",
    "columns_holding",
    "combined",
    "format_values",
    "nearest_name_hint",
    "parse_value",
    "require_plain",
    "show_times",
]

_SHORTEST = r"^(?P<sign>-?)(?P<whole>[0-9]+)\.?(?P<fraction>[0-9]*)(?:e\+?(?P<exponent>-?[0-9]+))?$"
_INT32_MAX = 2**31 - 1


def column_values(data: pa.RecordBatch | pa.Table, path: str) -> pa.Array | pa.ChunkedArray:
    """The values of the column at `path` (`a` or `a.b.c`); a null struct has null fields."""
    column_type(data.schema, path)
    first, *rest = _steps(data.schema, path)
    values = data.column(data.schema.get_field_index(first))
    return pc.struct_field(values, rest) if rest else values


def column_type(schema: pa.Schema, path: str) -> pa.DataType:
    """The type of the column at `path`; raises InvalidRequestError naming the nearest column if there is none."""
    first, *rest = _steps(schema, path)
    positions = schema.get_all_field_indices(first)
    if len(positions) != 1:
        if positions:
            raise InvalidRequestError(f"column {first} occurs {len(positions)} times in the data: rename the copies.")
        raise InvalidRequestError(f"no column {path} in the data{nearest_name_hint(path, schema.names)}")
    found = schema.field(positions[0]).type
    for step in rest:
        children = [child.name for child in found] if pa.types.is_struct(found) else []
        if step not in children:
            parent = path[: path.index(step) - 1] if step in path else first
            known = [f"{parent}.{child}" for child in children]
            raise InvalidRequestError(f"no column {path} in the data{nearest_name_hint(path, known or schema.names)}")
        found = found.field(children.index(step)).type
    return found


def columns_holding(paths: Iterable[str], schema: pa.Schema) -> pa.Schema:
    """The columns that these fields are, or lie inside of."""
    names = {path if path in schema.names else path.split(".")[0] for path in paths}
    return pa.schema([field for field in schema if field.name in names])


def combined(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array of all chunks."""
    if isinstance(values, pa.ChunkedArray):
        return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    return values


def nearest_name_hint(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name, or the list of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or difflib.get_close_matches(
        name.lower(), [other for other in names if other.lower() == name.lower()] or names, n=1, cutoff=0.4
    )
    if near:
        return f"; did you mean {near[0]}?"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"; its columns are: {shown}." if names else "; it has no columns."


def _steps(schema: pa.Schema, path: str) -> list[str]:
    """The names to follow from the top; a column whose own name holds dots is taken as it is."""
    return [path] if path in schema.names else path.split(".")


def format_values(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The values as Hudi's key generators print them, as a string array of the same length."""
    array = combined(values)
    require_plain(array.type)
    if pa.types.is_string(array.type):
        return array
    if pa.types.is_dictionary(array.type):
        return pc.take(format_values(array.dictionary), array.indices)
    for applies, formatter in _FORMATTERS:
        if applies(array.type):
            return formatter(array)
    # Arrow prints integers, booleans and decimals (BigDecimal's rule for exponents included) as Java does.
    return array.cast(pa.string())


def require_plain(kind: pa.DataType) -> None:
    """Raise InvalidRequestError for a type that has no text form in a key or partition path."""
    if pa.types.is_nested(kind):
        raise InvalidRequestError(
            f"a column of type {kind} cannot be part of a key or partition path: choose a column with plain values."
        )


def show_times(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with moments and dates as text in the columns that `schema` has as text, in the form that Spark shows."""
    for position, name in enumerate(rows.column_names):
        column = rows.column(position)
        if name in schema.names and pa.types.is_string(schema.field(name).type) and pa.types.is_temporal(column.type):
            rows = rows.set_column(position, name, _shown(column))
    return rows


def parse_value(text: str, kind: pa.DataType) -> Any:
    """The Python value that `format_values` printed as `text`; raises ValueError if it could not have been."""
    for applies, parser in _PARSERS:
        if applies(kind):
            return parser(text, kind)
    raise ValueError(f"{text!r} is not the text of a {kind}")


def _is_bytes(kind: pa.DataType) -> bool:
    plain = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(plain or kind == pa.binary_view())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _parse_timestamp(text: str, kind: pa.DataType) -> Any:
    unit = "ms" if kind.unit == "ms" else "us"
    return pa.scalar(int(text), pa.int64()).cast(pa.timestamp(unit, kind.tz)).as_py()


def _parse_decimal(text: str, kind: pa.DataType) -> decimal.Decimal:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError(f"{text!r} is not the text of a {kind}") from None


def _parse_boolean(text: str, kind: pa.DataType) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is not the text of a {kind}")
    return text == "true"


def _format_times(array: pa.Array) -> pa.Array:
    return array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64()).cast(pa.string())


def _format_dates(array: pa.Array) -> pa.Array:
    return array.cast(pa.date32()).cast(pa.string())


def _format_timestamps(array: pa.Array) -> pa.Array:
    return _epoch_numbers(array).cast(pa.string())


def _epoch_numbers(array: pa.Array) -> pa.Array:
    """Hudi stores milliseconds or microseconds; a key holds the stored number."""
    unit = array.type.unit
    if unit in ("s", "ns"):
        array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
    return array.cast(pa.int64())


def _shown(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.string())
    # Without the zone, which is UTC, and without zeros at the end of the fraction.
    text = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.timestamp("us")).cast(pa.string())
    return pc.replace_substring_regex(text, r"\.?0*$", "").cast(pa.string())


def _format_floats(array: pa.Array) -> pa.Array:
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    text = array.cast(pa.string())
    size = pc.abs(array)
    # Java writes the plain form only for magnitudes from a thousandth up to ten million.
    plain = pc.or_(pc.and_(pc.greater_equal(size, 1e-3), pc.less(size, 1e7)), pc.equal(size, 0.0))
    whole = pc.and_(plain, pc.invert(pc.match_substring(text, ".")))
    if pc.any(whole).as_py():
        text = pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)
    special = pc.invert(plain)
    if not pc.any(special).as_py():
        return text
    special = pc.fill_null(special, False)
    return pc.replace_with_mask(text, special, _scientific(text.filter(special)))


def _scientific(shortest: pa.Array) -> pa.Array:
    """Shortest decimal texts of any shape, in Java's form `d.dddE±n`; not-a-number and infinities by name."""
    parts = pc.extract_regex(shortest, _SHORTEST)
    whole, fraction, exponent = (pc.struct_field(parts, name) for name in ("whole", "fraction", "exponent"))
    digits = pc.binary_join_element_wise(whole, fraction, "")
    significant = pc.utf8_ltrim(digits, "0")
    leading_zeros = pc.subtract(pc.binary_length(digits), pc.binary_length(significant))
    shown_exponent = pc.if_else(pc.equal(exponent, ""), "0", exponent).cast(pa.int32())
    power = pc.subtract(pc.add(shown_exponent, pc.subtract(pc.binary_length(whole), 1)), leading_zeros)
    tail = pc.utf8_rtrim(pc.utf8_slice_codeunits(significant, 1), "0")
    tail = pc.if_else(pc.equal(tail, ""), "0", tail)
    head = pc.utf8_slice_codeunits(significant, 0, 1)
    sign = pc.struct_field(parts, "sign")
    numbers = pc.binary_join_element_wise(sign, head, ".", tail, "E", power.cast(pa.string()), "")
    names = pc.replace_substring(pc.replace_substring(shortest, "inf", "Infinity"), "nan", "NaN")
    return pc.coalesce(numbers, names)


def _format_bytes(array: pa.Array) -> pa.Array:
    """Two lower-case hexadecimal digits a byte, by one table look-up over the whole value buffer."""
    array = array.cast(pa.binary())
    _, offsets_buffer, data_buffer = array.buffers()
    count = len(array)
    offsets = (
        np.frombuffer(offsets_buffer, dtype=np.int32)[array.offset : array.offset + count + 1]
        if count
        else np.zeros(1, np.int32)
    )
    start, end = int(offsets[0]), int(offsets[-1])
    if 2 * (end - start) > _INT32_MAX:
        raise InvalidRequestError("the binary key column holds more than 1 GiB in one batch: write smaller batches.")
    raw = np.frombuffer(data_buffer, dtype=np.uint8)[start:end] if data_buffer is not None else np.zeros(0, np.uint8)
    table = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype=np.uint16)
    text = pa.py_buffer(table[raw])
    new_offsets = pa.py_buffer(((offsets - start) * 2).astype(np.int32))
    plain = pa.Array.from_buffers(pa.string(), count, [None, new_offsets, text])
    return pc.if_else(array.is_valid(), plain, pa.scalar(None, pa.string())) if array.null_count else plain


_FORMATTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_floating, _format_floats),
    (pa.types.is_timestamp, _format_timestamps),
    (pa.types.is_date, _format_dates),
    (pa.types.is_time, _format_times),
    (_is_bytes, _format_bytes),
)

_PARSERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str, pa.DataType], Any]], ...] = (
    (_is_text, lambda text, _: text),
    (pa.types.is_integer, lambda text, _: int(text)),
    (pa.types.is_boolean, _parse_boolean),
    (pa.types.is_date, lambda text, _: dt.date.fromisoformat(text)),
    (pa.types.is_timestamp, _parse_timestamp),
    (pa.types.is_floating, lambda text, kind: pa.scalar(float(text), kind).as_py()),
    (pa.types.is_decimal, _parse_decimal),
    (_is_bytes, lambda text, _: bytes.fromhex(text)),
)
