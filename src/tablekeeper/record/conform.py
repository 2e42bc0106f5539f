"""Bringing rows into the schema of a table: stored types, order, missing columns, at any depth.

Values never change silently. A cast that would overflow or cut something off is refused with
the column's name; only the promotions that Hudi defines from integers to floating point may
round. A float becomes the double with the same shortest text (0.1 stays 0.1), as Java Hudi and
hudi-rs read it. Data that already fits is handed back as it is.

Avro has one text, one bytes, two integer and two floating types, so the many encodings that
Arrow has for the same values (dictionaries, views, large offsets, narrow integers, bytes of a
fixed size) are brought to one stored type. Types that would change value or meaning are refused,
never bent, and so are times of day: Avro has them, but neither Spark nor Java Hudi reads them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import format_values

__all__ = ["META_COLUMNS", "conform", "promotes", "refuse", "storable_schema", "stored_field", "stored_fields"]


META_COLUMNS = frozenset(
    {
        "_hoodie_commit_time",
        "_hoodie_commit_seqno",
        "_hoodie_record_key",
        "_hoodie_partition_path",
        "_hoodie_file_name",
        "_hoodie_operation",
    }
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_PRECISION = 38
_SAME_VALUES = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_STORED = frozenset(
    {
        pa.bool_(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
    }
)


def storable_schema(schema: pa.Schema, *, key_fields: Collection[str] = ()) -> pa.Schema:
    """What a table stores for data of this schema.

    Meta columns are left out. Every column is nullable, except those in `key_fields`. Raises
    InvalidRequestError that lists every name and type that cannot be stored.
    """
    problems: list[str] = []
    fields = stored_fields(schema, problems)
    refuse(problems, "this schema cannot be stored in a Hudi table")
    return pa.schema([field.with_nullable(field.name not in key_fields) for field in fields])


def stored_fields(schema: pa.Schema, problems: list[str], *, untyped: Collection[str] = ()) -> list[pa.Field]:
    """The stored fields, without the meta columns; what is wrong is added to `problems`.

    Columns in `untyped` may have Arrow's null type (data without any value in that column).
    """
    fields = [field for field in schema if field.name not in META_COLUMNS]
    _check_names([field.name for field in fields], "", problems)
    kept = [f for f in fields if not (pa.types.is_null(f.type) and f.name in untyped)]
    return [stored_field(field, field.name, problems) for field in kept]


def stored_field(field: pa.Field, path: str, problems: list[str]) -> pa.Field:
    """The field with the type that is stored for it, nullable; field metadata is dropped."""
    return pa.field(field.name, _stored_type(field.type, path, problems), nullable=True)


def refuse(problems: list[str], summary: str) -> None:
    """Raise InvalidRequestError with every problem, if there is any."""
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise InvalidRequestError(f"{summary}:\n{listed}")


def _check_names(names: list[str], parent: str, problems: list[str]) -> None:
    prefix = f"{parent}." if parent else ""
    for name in names:
        if not _NAME.fullmatch(name):
            problems.append(
                f"column {prefix}{name}: a name may hold only ASCII letters, digits and `_`, "
                "and does not start with a digit; rename it"
            )
    for folded, count in Counter(name.lower() for name in names).items():
        if count > 1:
            same = [f"{prefix}{name}" for name in names if name.lower() == folded]
            problems.append(f"columns {', '.join(same)}: names must differ in more than upper and lower case")


def _stored_type(kind: pa.DataType, path: str, problems: list[str]) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return _stored_type(kind.value_type, path, problems)
    if pa.types.is_nested(kind):
        return _stored_nested_type(kind, path, problems)
    kind = _SAME_VALUES.get(kind, kind)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "ms" else "us", "UTC" if kind.tz else None)
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _MAX_PRECISION:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if kind not in _STORED:
        problems.append(f"column {path}: Hudi tables do not store {kind}{_advice(kind)}")
    return kind


def _stored_nested_type(kind: pa.DataType, path: str, problems: list[str]) -> pa.DataType:
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            problems.append(f"column {path}: a struct without fields cannot be stored")
        _check_names([child.name for child in kind], path, problems)
        return pa.struct([stored_field(child, f"{path}.{child.name}", problems) for child in kind])
    if pa.types.is_map(kind):
        if _stored_type(kind.key_type, f"{path}.key", problems) != pa.string():
            problems.append(f"column {path}: the keys of a map are strings in Hudi tables, not {kind.key_type}")
        return pa.map_(pa.string(), stored_field(kind.item_field, f"{path}.value", problems).with_name("value"))
    if hasattr(kind, "value_field"):
        return pa.list_(stored_field(kind.value_field, f"{path}.element", problems).with_name("element"))
    problems.append(f"column {path}: Hudi tables do not store {kind}")
    return kind


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_unsigned_integer(kind):
        wider = {8: "int32", 16: "int32", 32: "int64"}.get(kind.bit_width, "decimal(20, 0)")
        return f"; cast it to {wider}"
    if pa.types.is_time(kind):
        return ", for neither Spark nor Java reads times of day; store microseconds as int64, or text"
    if pa.types.is_null(kind):
        return "; it holds no value at all, so give it a type"
    if pa.types.is_decimal(kind):
        return f"; use a scale from 0 to the precision, and a precision up to {_MAX_PRECISION}"
    return "; cast or drop it"


Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

_NUMBERS = (pa.int32(), pa.int64(), pa.float32(), pa.float64())


def conform(batch: Rows, schema: pa.Schema) -> Rows:
    """The rows of `batch` with exactly the columns of `schema`; the same object if it fits already.

    Columns that the batch lacks are null; columns that `schema` lacks are left out.
    """
    if batch.schema.equals(schema, check_metadata=False):
        return batch
    columns = [_conform_column(batch, field) for field in schema]
    if isinstance(batch, pa.Table):
        return pa.Table.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def promotes(before: pa.DataType, after: pa.DataType) -> bool:
    """Whether Hudi lets a column of plain stored type `before` be read as `after`."""
    if before == after:
        return True
    if before in _NUMBERS and after in _NUMBERS:
        return _NUMBERS.index(before) < _NUMBERS.index(after)
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        whole_digits = before.precision - before.scale
        return bool(after.scale >= before.scale and after.precision - after.scale >= whole_digits)
    if pa.types.is_string(after):
        return bool(before in _NUMBERS or pa.types.is_decimal(before) or pa.types.is_binary(before))
    return bool(pa.types.is_binary(after) and pa.types.is_string(before))


def _conform_column(batch: pa.RecordBatch | pa.Table, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    positions = batch.schema.get_all_field_indices(field.name)
    if len(positions) > 1:
        raise InvalidRequestError(f"column {field.name} occurs {len(positions)} times in the data: rename the copies.")
    if not positions:
        missing = pa.nulls(batch.num_rows, field.type)
        column = pa.chunked_array([missing], field.type) if isinstance(batch, pa.Table) else missing
    else:
        column = batch.column(positions[0])
        if isinstance(column, pa.ChunkedArray):
            chunks = [_conform_array(chunk, field.type, field.name) for chunk in column.chunks]
            column = pa.chunked_array(chunks, field.type)
        else:
            column = _conform_array(column, field.type, field.name)
    if not field.nullable and column.null_count:
        raise InvalidRequestError(
            f"column {field.name} must have a value in every row, but {column.null_count} of "
            f"{batch.num_rows} rows have none: fill or drop these rows."
        )
    return column


def _conform_array(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    if array.type == target:
        return array
    if isinstance(array, pa.ExtensionArray):
        return _conform_array(array.storage, target, path)
    if pa.types.is_dictionary(array.type):
        return _conform_array(_decoded(array), target, path)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), target)
    if pa.types.is_nested(target):
        return _conform_nested(array, target, path)
    return _cast(array, target, path)


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(array.dictionary.type)
    if plain is not None:
        # Arrow cannot pick from views. The categories of polars are such.
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
    return array.dictionary_decode()


def _conform_nested(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    kind = array.type
    if pa.types.is_struct(target) and pa.types.is_struct(kind):
        return _conform_struct(array, target, path)
    if pa.types.is_map(target) and pa.types.is_map(kind):
        validity, offsets, start, count = _list_layout(array)
        keys = _conform_array(array.keys.slice(start, count), target.key_type, f"{path}.key")
        items = _conform_array(array.items.slice(start, count), target.item_type, f"{path}.value")
        entries = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
        return pa.Array.from_buffers(target, len(array), [validity, offsets], array.null_count, children=[entries])
    if pa.types.is_list(target) and hasattr(kind, "value_field") and not pa.types.is_map(kind):
        if not pa.types.is_list(kind):
            array = _arrow_cast(array, pa.list_(kind.value_field), path)
        validity, offsets, start, count = _list_layout(array)
        values = _conform_array(array.values.slice(start, count), target.value_type, f"{path}.element")
        return pa.Array.from_buffers(target, len(array), [validity, offsets], array.null_count, children=[values])
    raise _mismatch(kind, target, path)


def _list_layout(array: pa.Array) -> tuple[pa.Buffer | None, pa.Buffer, int, int]:
    """Validity and offsets of lists or maps without an array offset, and which child values they span.

    A slice shares the children of the whole array, so that converting all of them would cost, and
    could fail, for rows that are not in it.
    """
    offsets = np.asarray(array.offsets)
    start, end = int(offsets[0]), int(offsets[-1])
    # The data of a boolean array is the bitmap itself; numpy packs it without an offset.
    validity = pa.array(np.asarray(array.is_valid())).buffers()[1] if array.null_count else None
    return validity, pa.py_buffer((offsets - start).astype(np.int32)), start, end - start


def _conform_struct(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    names = [child.name for child in array.type]
    # What stands below a null struct is arbitrary and need not convert, so it is made null first.
    given = array.flatten() if array.null_count else [array.field(position) for position in range(len(names))]
    children = []
    for field in target:
        if field.name in names:
            child = _conform_array(given[names.index(field.name)], field.type, f"{path}.{field.name}")
        elif field.nullable:
            child = pa.nulls(len(array), field.type)
        else:
            raise InvalidRequestError(f"column {path}.{field.name} must have a value, but the data has no such field.")
        children.append(child)
    mask = pc.is_null(array) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _cast(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    kind = array.type
    if pa.types.is_nested(kind) or not _may_cast(kind, target):
        raise _mismatch(kind, target, path)
    if pa.types.is_string(target) and (pa.types.is_decimal(kind) or _is_number(kind)):
        return format_values(array)
    if pa.types.is_integer(kind) and pa.types.is_floating(target):
        return array.cast(target, safe=False)
    if pa.types.is_float32(kind) and pa.types.is_float64(target):
        return array.cast(pa.string()).cast(target)
    if pa.types.is_integer(kind) and pa.types.is_decimal(target):
        array = _arrow_cast(array, pa.decimal128(38, target.scale), path)
    return _arrow_cast(array, target, path)


def _may_cast(kind: pa.DataType, target: pa.DataType) -> bool:
    """Casts that keep the meaning; whether they keep each value is checked by the cast itself."""
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(target):
        return (kind.tz is None) == (target.tz is None)
    if _is_number(kind) and _is_number(target):
        return bool(pa.types.is_integer(kind) or (pa.types.is_floating(target) and kind.bit_width <= target.bit_width))
    if pa.types.is_decimal(target):
        return bool(pa.types.is_decimal(kind) or pa.types.is_integer(kind))
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return bool(
            (pa.types.is_date(kind) and pa.types.is_date(target))
            or (pa.types.is_time(kind) and pa.types.is_time(target))
        )
    if _is_text_or_bytes(target):
        return bool(
            _is_text_or_bytes(kind) or (pa.types.is_string(target) and (_is_number(kind) or pa.types.is_decimal(kind)))
        )
    return False


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    views = (pa.string_view(), pa.binary_view())
    flat = pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(flat or pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or kind in views)


def _arrow_cast(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    try:
        return array.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRequestError(
            f"column {path}: a value of the data ({array.type}) does not fit the table's type {target}: {error}"
        ) from None


def _mismatch(kind: pa.DataType, target: pa.DataType, path: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"column {path}: table has {target}, data has {kind}: cast the column to the table's type."
    )
