"""Which Arrow types a Hudi table stores, and what other types become.

Avro has one text, one bytes, two integer and two floating types, so the many encodings that
Arrow has for the same values (dictionaries, views, large offsets, narrow integers, bytes of a
fixed size) are brought to one stored type. Types that would change value or meaning are refused,
never bent, and so are times of day: Avro has them, but neither Spark nor Java Hudi reads them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

import pyarrow as pa

from tablekeeper.errors import InvalidRequestError

__all__ = ["META_COLUMNS", "refuse", "storable_schema", "stored_field", "stored_fields"]

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
