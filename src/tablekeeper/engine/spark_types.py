"""Spark types to Arrow types and back, as this package stores them.

Written out here, because PySpark's own conversion functions moved and changed between 3.5 and 4.x.
Timestamps with a zone are in UTC; Spark's byte and short become Arrow int8 and int16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from tablekeeper.errors import UnsupportedFeatureError

__all__ = ["arrow_from_spark", "in_types_of", "spark_from_arrow"]

_SIMPLE: tuple[tuple[type[st.DataType], Any], ...] = (
    (st.BooleanType, pa.bool_()),
    (st.ByteType, pa.int8()),
    (st.ShortType, pa.int16()),
    (st.IntegerType, pa.int32()),
    (st.LongType, pa.int64()),
    (st.FloatType, pa.float32()),
    (st.DoubleType, pa.float64()),
    (st.StringType, pa.string()),
    (st.VarcharType, pa.string()),
    (st.CharType, pa.string()),
    (st.BinaryType, pa.binary()),
    (st.DateType, pa.date32()),
    (st.TimestampType, pa.timestamp("us", tz="UTC")),
    (st.TimestampNTZType, pa.timestamp("us")),
    (st.NullType, pa.null()),
)


def arrow_from_spark(schema: st.StructType) -> pa.Schema:
    """The Arrow schema in which rows of this Spark schema arrive."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


def spark_from_arrow(schema: pa.Schema) -> st.StructType:
    """The Spark schema of rows of this Arrow schema."""
    return st.StructType([_spark_field(field) for field in schema])


def in_types_of(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch in the very types of `schema`: Spark takes microseconds only, and no bytes of a fixed size."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _arrow_field(field: st.StructField) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType, field.name), nullable=field.nullable)


def _arrow_type(kind: st.DataType, column: str) -> pa.DataType:
    for spark_type, arrow_type in _SIMPLE:
        if type(kind) is spark_type:
            return arrow_type
    if isinstance(kind, st.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, st.ArrayType):
        return pa.list_(pa.field("element", _arrow_type(kind.elementType, column), nullable=kind.containsNull))
    if isinstance(kind, st.MapType):
        value = pa.field("value", _arrow_type(kind.valueType, column), nullable=kind.valueContainsNull)
        return pa.map_(_arrow_type(kind.keyType, column), value)
    if isinstance(kind, st.StructType):
        return pa.struct([_arrow_field(field) for field in kind.fields])
    raise UnsupportedFeatureError(
        f"column {column}: Spark type {kind.simpleString()} has no counterpart in a Hudi table. "
        "Cast or drop the column."
    )


def _spark_field(field: pa.Field) -> st.StructField:
    return st.StructField(field.name, _spark_type(field.type, field.name), field.nullable)


_BY_ARROW: tuple[tuple[Callable[[pa.DataType], bool], Callable[[], st.DataType]], ...] = (
    (pa.types.is_boolean, st.BooleanType),
    (pa.types.is_int8, st.ByteType),
    (pa.types.is_int16, st.ShortType),
    (pa.types.is_int32, st.IntegerType),
    (pa.types.is_int64, st.LongType),
    (pa.types.is_float32, st.FloatType),
    (pa.types.is_float64, st.DoubleType),
    (pa.types.is_string, st.StringType),
    (pa.types.is_large_string, st.StringType),
    (pa.types.is_binary, st.BinaryType),
    (pa.types.is_large_binary, st.BinaryType),
    (pa.types.is_fixed_size_binary, st.BinaryType),
    (pa.types.is_date32, st.DateType),
    (pa.types.is_null, st.NullType),
)


def _spark_type(kind: pa.DataType, column: str) -> st.DataType:
    for matches, spark_type in _BY_ARROW:
        if matches(kind):
            return spark_type()
    if pa.types.is_timestamp(kind):
        return st.TimestampType() if kind.tz else st.TimestampNTZType()
    if pa.types.is_decimal(kind):
        return st.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.ArrayType(_spark_type(kind.value_type, column), kind.value_field.nullable)
    if pa.types.is_map(kind):
        return st.MapType(
            _spark_type(kind.key_type, column), _spark_type(kind.item_type, column), kind.item_field.nullable
        )
    if pa.types.is_struct(kind):
        return st.StructType([_spark_field(kind.field(i)) for i in range(kind.num_fields)])
    raise UnsupportedFeatureError(f"column {column}: {kind} has no counterpart in Spark. Leave the column out.")
