"""Column statistics for the metadata table: from a Parquet footer, or from rows at hand.

Java prunes a file when the statistics of a filtered column exclude it. A range that the Parquet
footer does not give (writers leave out very long values) must therefore not be passed off as
empty: `column_ranges_from_parquet` leaves such a column out, and it has to be computed from the rows.

Columns are addressed as in the index definition: by dotted path in the Parquet schema, so that
`a.b` is a field of a struct and `a.list.element` the elements of a list.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.format.metadata_records import ColumnRange, StatValue, ValueType

__all__ = [
    "column_ranges_from_parquet",
    "column_ranges_from_table",
    "deleted_column_range",
    "empty_column_range",
    "merge_column_ranges",
    "value_type_of",
]

_FIXED_TYPES = {
    pa.bool_(): ValueType.BOOLEAN,
    pa.int8(): ValueType.INT,
    pa.int16(): ValueType.INT,
    pa.int32(): ValueType.INT,
    pa.int64(): ValueType.LONG,
    pa.float32(): ValueType.FLOAT,
    pa.float64(): ValueType.DOUBLE,
    pa.string(): ValueType.STRING,
    pa.large_string(): ValueType.STRING,
    pa.binary(): ValueType.BYTES,
    pa.large_binary(): ValueType.BYTES,
    pa.date32(): ValueType.DATE,
    pa.time32("ms"): ValueType.TIME_MILLIS,
    pa.time64("us"): ValueType.TIME_MICROS,
}
_TIMESTAMPS = {
    ("ms", True): ValueType.TIMESTAMP_MILLIS,
    ("us", True): ValueType.TIMESTAMP_MICROS,
    ("ns", True): ValueType.TIMESTAMP_NANOS,
    ("ms", False): ValueType.LOCAL_TIMESTAMP_MILLIS,
    ("us", False): ValueType.LOCAL_TIMESTAMP_MICROS,
    ("ns", False): ValueType.LOCAL_TIMESTAMP_NANOS,
}
_FLOATS = (ValueType.FLOAT, ValueType.DOUBLE)


def value_type_of(data_type: Any) -> ValueType | None:
    """The statistics type of an Arrow type; None for types without statistics (nested ones, for instance)."""
    fixed = _FIXED_TYPES.get(data_type)
    if fixed is not None:
        return fixed
    if pa.types.is_timestamp(data_type):
        return _TIMESTAMPS.get((data_type.unit, data_type.tz is not None))
    if pa.types.is_decimal(data_type):
        return ValueType.DECIMAL
    if pa.types.is_fixed_size_binary(data_type):
        return ValueType.FIXED
    return None


def column_ranges_from_parquet(metadata: Any, schema: Any, *, columns: Iterable[str]) -> dict[str, ColumnRange]:
    """Ranges of those of `columns` whose bounds the footer of a Parquet file (`FileMetaData`) gives.

    `schema` is the file's Arrow schema. Left out are columns that the file does not have, that have no
    statistics type, that have no values at all, or whose bounds are not known from the footer.
    """
    ranges: dict[str, ColumnRange] = {}
    positions = {metadata.schema.column(i).path: i for i in range(len(metadata.schema))}
    for path in columns:
        data_type = _leaf_type(schema, path)
        value_type = None if data_type is None else value_type_of(data_type)
        position = positions.get(path)
        if value_type is None or position is None:
            continue
        empty = ColumnRange(path, value_type, None, None, 0, 0, type_info=_type_info(data_type))
        chunks = [metadata.row_group(i).column(position) for i in range(metadata.num_row_groups)]
        parts = [_chunk_range(chunk, empty) for chunk in chunks]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts) and any(part.value_count for part in known):
            ranges[path] = merge_column_ranges(known)
    return ranges


def column_ranges_from_table(table: Any, *, columns: Iterable[str]) -> dict[str, ColumnRange]:
    """Ranges of `columns` over the rows of an Arrow table, without sizes.

    Columns that the table does not have, or that have no statistics type, are left out.
    """
    ranges: dict[str, ColumnRange] = {}
    for path in columns:
        values = _leaf_values(table, path)
        value_type = None if values is None else value_type_of(values.type)
        if values is None or value_type is None:
            continue
        minimum, maximum = _bounds(values, value_type)
        ranges[path] = ColumnRange(
            column=path,
            value_type=value_type,
            minimum=minimum,
            maximum=maximum,
            null_count=values.null_count,
            value_count=len(values),
            type_info=_type_info(values.type),
        )
    return ranges


def merge_column_ranges(ranges: Sequence[ColumnRange]) -> ColumnRange:
    """One range over the rows of all of `ranges`, of which there is at least one, all of one column."""
    merged = ranges[0]
    for part in ranges[1:]:
        merged = merged.merged_with(part)
    return merged


def empty_column_range(column: str) -> ColumnRange:
    """The range of a column in a file without rows, such as a log of nothing but deletes."""
    return ColumnRange(column, ValueType.NULL, None, None, 0, 0)


def deleted_column_range(column: str) -> ColumnRange:
    """What stands in the record that takes back the statistics of a deleted file."""
    return ColumnRange(column, ValueType.NULL, None, None, -1, -1, -1, -1)


def _leaf_type(schema: Any, path: str) -> Any:
    """Type of the column at a dotted Parquet path, or None."""
    names = path.split(".")
    if schema.get_field_index(names[0]) < 0:
        return None
    data_type = schema.field(names[0]).type
    position = 1
    while position < len(names):
        if pa.types.is_struct(data_type) and data_type.get_field_index(names[position]) >= 0:
            data_type = data_type.field(names[position]).type
            position += 1
        elif _is_list(data_type) and names[position : position + 2] == ["list", "element"]:
            data_type = data_type.value_type
            position += 2
        elif pa.types.is_map(data_type) and names[position : position + 2] in _MAP_SIDES:
            data_type = data_type.key_type if names[position + 1] == "key" else data_type.item_type
            position += 2
        else:
            return None
    return data_type


_MAP_SIDES = (["key_value", "key"], ["key_value", "value"])


def _is_list(data_type: Any) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _leaf_values(table: Any, path: str) -> Any:
    """Values of the column at a dotted Parquet path as a chunked array, or None."""
    if _leaf_type(table.schema, path) is None:
        return None
    names = path.split(".")
    values = table.column(names[0])
    position = 1
    while position < len(names):
        if pa.types.is_struct(values.type):
            values = pc.struct_field(values, names[position])
            position += 1
        elif _is_list(values.type):
            values = pc.list_flatten(values)
            position += 2
        else:
            side = "keys" if names[position + 1] == "key" else "items"
            item_type = values.type.key_type if side == "keys" else values.type.item_type
            values = pa.chunked_array([_map_side(chunk, side) for chunk in values.chunks], type=item_type)
            position += 2
    return values


def _map_side(chunk: Any, side: str) -> Any:
    """Keys or items of the maps that are not null, without what lies outside the array's window."""
    present = chunk.drop_null()
    window = slice(present.offsets[0].as_py(), present.offsets[-1].as_py()) if len(present) else slice(0, 0)
    return getattr(present, side)[window]


def _type_info(data_type: Any) -> str | None:
    return f"{data_type.precision},{data_type.scale}" if pa.types.is_decimal(data_type) else None


def _chunk_range(chunk: Any, empty: ColumnRange) -> ColumnRange | None:
    """The range of one column chunk; None if the footer does not say."""
    stats = chunk.statistics
    if chunk.num_values == 0:
        return empty
    if stats is None or not stats.has_null_count:
        return None
    minimum = maximum = None
    if stats.null_count < chunk.num_values:
        if not stats.has_min_max:
            return None
        minimum = _physical_bound(stats.min_raw, empty.value_type)
        maximum = _physical_bound(stats.max_raw, empty.value_type)
    return ColumnRange(
        column=empty.column,
        value_type=empty.value_type,
        minimum=minimum,
        maximum=maximum,
        null_count=stats.null_count,
        value_count=chunk.num_values,
        total_size=chunk.total_compressed_size,
        total_uncompressed_size=chunk.total_uncompressed_size,
        type_info=empty.type_info,
    )


def _physical_bound(value: Any, value_type: ValueType) -> StatValue:
    if value_type is ValueType.DECIMAL:
        return _unscaled_bytes(value if isinstance(value, int) else int.from_bytes(value, "big", signed=True))
    if value_type is ValueType.STRING and isinstance(value, bytes):
        return value.decode()
    bound: StatValue = value
    return bound


def _bounds(values: Any, value_type: ValueType) -> tuple[StatValue | None, StatValue | None]:
    if values.null_count == len(values):
        return None, None
    if value_type in _FLOATS:
        return _float_bounds(values)
    ends: Mapping[str, Any] = pc.min_max(_comparable(values, value_type)).as_py()
    if value_type is ValueType.DECIMAL:
        return _unscaled_decimal(ends["min"]), _unscaled_decimal(ends["max"])
    return ends["min"], ends["max"]


def _comparable(values: Any, value_type: ValueType) -> Any:
    """`values` in a type whose bounds come out as they are stored."""
    if value_type is ValueType.FIXED:
        return values.cast(pa.binary())
    if pa.types.is_temporal(values.type):
        return values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return values


def _float_bounds(values: Any) -> tuple[float, float]:
    """Bounds in the order of Java and Spark, where not-a-number is the largest number, but with infinity in its place.

    Java finds nothing in files and partitions with a bound that is not-a-number, not even their other rows.
    """
    is_nan = pc.is_nan(values)
    ends = pc.min_max(pc.filter(values, pc.invert(is_nan))).as_py()
    has_nan = pc.any(is_nan).as_py()
    minimum = math.inf if ends["min"] is None else ends["min"]
    return minimum, math.inf if has_nan else ends["max"]


def _unscaled_decimal(value: decimal.Decimal) -> bytes:
    """The digits of a decimal whose exponent Arrow has made the scale of its column."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return _unscaled_bytes(-number if sign else number)


def _unscaled_bytes(value: int) -> bytes:
    """Two's complement, big-endian, as few bytes as hold the number and its sign."""
    bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(bits // 8 + 1, "big", signed=True)
