"""Avro schemas <-> Arrow schemas, as Hudi stores them.

Nullable is a union with null first and default null. Decimals are `fixed` of the smallest size for
their precision; the names of nested records and fixed types come from the path of field names, the
way Spark names them, so that a schema written here and one written by Spark are the same text.
Rows are handled elsewhere (`avro_columnar`); what both need to agree on is `avro_to_arrow_schema`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.avro_types import MAX_DECIMAL_PRECISION, AvroSchema, resolve_record

__all__ = [
    "META_COLUMNS",
    "arrow_to_avro_schema",
    "avro_to_arrow_schema",
    "with_meta_columns",
    "without_meta_columns",
]

META_COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)
_OPERATION_COLUMN = "_hoodie_operation"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


def with_meta_columns(schema: pa.Schema) -> pa.Schema:
    """The schema with the five meta columns in front, whether or not it had them."""
    meta = [pa.field(name, pa.string()) for name in META_COLUMNS]
    rest = [field for field in schema if field.name not in META_COLUMNS]
    return pa.schema(meta + rest, metadata=schema.metadata)


def without_meta_columns(schema: pa.Schema) -> pa.Schema:
    """The schema without the meta columns, `_hoodie_operation` included."""
    dropped = {*META_COLUMNS, _OPERATION_COLUMN}
    return pa.schema([field for field in schema if field.name not in dropped], metadata=schema.metadata)


def arrow_to_avro_schema(schema: pa.Schema, *, record_name: str, namespace: str) -> dict[str, Any]:
    """The Avro record schema for an Arrow schema. Types that Hudi does not store are refused by column name."""
    name = _sanitized(record_name)
    space = ".".join(_sanitized(part) for part in namespace.split(".") if part)
    return _avro_record(list(schema), name=name, namespace=space, column="")


def avro_to_arrow_schema(avro: AvroSchema, *, file: str) -> pa.Schema:
    """The Arrow schema of a record's rows. `avro` is JSON text or its parsed form; `file` is named in errors."""
    return pa.schema(list(resolve_record(avro, file=file).arrow))


def _sanitized(name: str) -> str:
    """A legal Avro name for `name`, made the way Java Hudi makes it from table names."""
    name = _NOT_IN_NAMES.sub("__", name)
    return name if _NAME.fullmatch(name) else "__" + name[1:] if name else "__"


# Arrow -> Avro


_ARROW_TO_AVRO: Mapping[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.binary_view(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.date64(): {"type": "int", "logicalType": "date"},
    pa.time32("ms"): {"type": "int", "logicalType": "time-millis"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
}
_TIMESTAMP_UNITS = {"ms": "millis", "us": "micros"}


def _avro_record(fields: list[pa.Field], *, name: str, namespace: str, column: str) -> dict[str, Any]:
    inner = f"{namespace}.{name}" if namespace else name
    seen: set[str] = set()
    avro_fields = []
    for field in fields:
        path = f"{column}.{field.name}" if column else field.name
        if not _NAME.fullmatch(field.name):
            raise InvalidRequestError(
                f"column {path!r}: Avro names take letters, digits and `_` and do not start with a digit. "
                "Rename the column."
            )
        if field.name in seen:
            raise InvalidRequestError(f"column {path!r} is there twice. Rename or drop one of them.")
        seen.add(field.name)
        avro_fields.append(_avro_field(field, namespace=inner, column=path))
    record: dict[str, Any] = {"type": "record", "name": name}
    if namespace:
        record["namespace"] = namespace
    return {**record, "fields": avro_fields}


def _avro_field(field: pa.Field, *, namespace: str, column: str) -> dict[str, Any]:
    avro = _avro_type(field, name=field.name, namespace=namespace, column=column)
    if field.nullable:
        return {"name": field.name, "type": avro, "default": None}
    return {"name": field.name, "type": avro}


def _avro_type(field: pa.Field, *, name: str, namespace: str, column: str) -> Any:
    plain = _avro_plain_type(field.type, name=name, namespace=namespace, column=column)
    return ["null", plain] if field.nullable else plain


def _avro_plain_type(arrow: pa.DataType, *, name: str, namespace: str, column: str) -> Any:
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if (known := _ARROW_TO_AVRO.get(arrow)) is not None:
        return dict(known) if isinstance(known, dict) else known
    if pa.types.is_timestamp(arrow) and arrow.unit in _TIMESTAMP_UNITS:
        prefix = "timestamp" if arrow.tz else "local-timestamp"
        return {"type": "long", "logicalType": f"{prefix}-{_TIMESTAMP_UNITS[arrow.unit]}"}
    if pa.types.is_decimal(arrow) and 0 <= arrow.scale <= arrow.precision <= MAX_DECIMAL_PRECISION:
        size = _decimal_size(arrow.precision)
        logical = {"logicalType": "decimal", "precision": arrow.precision, "scale": arrow.scale}
        return {**_avro_fixed(size, name=name, namespace=namespace), **logical}
    if pa.types.is_fixed_size_binary(arrow) and arrow.byte_width > 0:
        return _avro_fixed(arrow.byte_width, name=name, namespace=namespace)
    return _avro_nested_type(arrow, name=name, namespace=namespace, column=column)


def _avro_nested_type(arrow: pa.DataType, *, name: str, namespace: str, column: str) -> Any:
    if pa.types.is_struct(arrow) and arrow.num_fields:
        return _avro_record(list(arrow), name=name, namespace=namespace, column=column)
    if _is_list(arrow):
        item = _avro_type(arrow.value_field, name=name, namespace=namespace, column=f"{column}.element")
        return {"type": "array", "items": item}
    if pa.types.is_map(arrow):
        if arrow.key_type not in (pa.string(), pa.large_string(), pa.string_view()):
            raise InvalidRequestError(
                f"column {column!r}: keys of a map are strings in Hudi tables, not {arrow.key_type}. Cast the keys."
            )
        values = _avro_type(arrow.item_field, name=name, namespace=namespace, column=f"{column}.value")
        return {"type": "map", "values": values}
    raise InvalidRequestError(f"column {column!r}: Hudi tables do not store type {arrow}. Cast or drop the column.")


def _avro_fixed(size: int, *, name: str, namespace: str) -> dict[str, Any]:
    return {"type": "fixed", "name": "fixed", "namespace": f"{namespace}.{name}", "size": size}


def _is_list(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(arrow)
        or pa.types.is_large_list(arrow)
        or pa.types.is_fixed_size_list(arrow)
        or pa.types.is_list_view(arrow)
        or pa.types.is_large_list_view(arrow)
    )


def _decimal_size(precision: int) -> int:
    """Bytes of the smallest two's complement number that holds `precision` digits."""
    largest: int = 10**precision - 1
    return (largest.bit_length() + 8) // 8
