"""Single comparisons as Arrow filter expressions.

A filter here is true where the comparison is true; where the column is null it is null or false,
which a filter treats alike. Integer and decimal columns are compared exactly: a literal between
two values or outside the type's range moves the bound, it is never rounded itself.
"""

from __future__ import annotations

import decimal
import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import column_type
from tablekeeper.record.predicate_literals import Literal, beside_type

__all__ = ["column_ref", "compare_filter", "in_filter", "plain_type", "regex_filter"]

# Wide enough for any literal beside any decimal type.
_EXACT = decimal.Context(prec=1000)


def column_ref(schema: pa.Schema, column: str) -> pc.Expression:
    """The column in an expression, nested ones by their path, dictionaries as their values."""
    kind = column_type(schema, column)
    ref = pc.field(column) if column in schema.names else pc.field(*column.split("."))
    return ref.cast(kind.value_type) if pa.types.is_dictionary(kind) else ref


def plain_type(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of the column's values."""
    kind = column_type(schema, column)
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def compare_filter(schema: pa.Schema, column: str, op: str, value: Literal) -> pc.Expression:
    """`column op value`, for a value that is not null."""
    ref, kind = column_ref(schema, column), plain_type(schema, column)
    literal = beside_type(value, kind, column=column)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return _compare_exact(ref, op, literal, kind)
    target = _comparison_type(kind)
    if target != kind:
        ref = ref.cast(target)
    found = _apply(ref, op, pc.scalar(pa.scalar(literal, target)))
    # As in Spark, not-a-number is above every number.
    return found | pc.is_nan(ref) if pa.types.is_floating(kind) and op in (">", ">=") else found


def in_filter(schema: pa.Schema, column: str, values: list[Any]) -> pc.Expression:
    """`column in (values)`, for values that are not null."""
    ref, kind = column_ref(schema, column), plain_type(schema, column)
    literals = [beside_type(value, kind, column=column) for value in values]
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        literals = [exact for value in literals if (exact := _representable(value, kind)) is not None]
    if not literals:
        return pc.scalar(False)
    if pa.types.is_floating(kind) and 0.0 in literals:
        # They compare as equal, but a set of values holds them apart.
        literals += [0.0, -0.0]
    target = _comparison_type(kind)
    return (ref.cast(target) if target != kind else ref).isin(pa.array(literals, target))


def regex_filter(schema: pa.Schema, column: str, regex: str) -> pc.Expression:
    """Where the text column matches an RE2 expression."""
    kind = plain_type(schema, column)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()):
        raise InvalidRequestError(f"column {column} is {kind}: like is for text columns.")
    ref = column_ref(schema, column)
    return pc.match_substring_regex(ref.cast(pa.string()) if kind == pa.string_view() else ref, regex)


def _comparison_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a column of type `kind` and a literal meet."""
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_date(kind):
        return pa.date32()
    return pa.string() if kind == pa.string_view() else kind


def _compare_exact(ref: pc.Expression, op: str, value: int | decimal.Decimal, kind: pa.DataType) -> pc.Expression:
    if op in ("=", "!="):
        exact = _representable(value, kind)
        if exact is None:
            return pc.scalar(False) if op == "=" else ref.is_valid()
        return _apply(ref, op, pc.scalar(pa.scalar(exact, kind)))
    units = _in_units(value, kind)
    # Between two values of the type, `<` and `<=` (and `>`, `>=`) are the same question.
    bound = {"<": math.ceil(units) - 1, "<=": math.floor(units), ">": math.floor(units) + 1, ">=": math.ceil(units)}[op]
    low, high = _limits(kind)
    downward = op in ("<", "<=")
    if (bound < low) if downward else (bound > high):
        return pc.scalar(False)
    if (bound >= high) if downward else (bound <= low):
        return ref.is_valid()
    return _apply(ref, "<=" if downward else ">=", pc.scalar(pa.scalar(_from_units(bound, kind), kind)))


def _limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _in_units(value: int | decimal.Decimal, kind: pa.DataType) -> int | decimal.Decimal:
    """The value counted in the smallest step of the type."""
    return decimal.Decimal(value).scaleb(kind.scale, _EXACT) if pa.types.is_decimal(kind) else value


def _from_units(units: int, kind: pa.DataType) -> int | decimal.Decimal:
    return decimal.Decimal(units).scaleb(-kind.scale, _EXACT) if pa.types.is_decimal(kind) else units


def _representable(value: int | decimal.Decimal, kind: pa.DataType) -> int | decimal.Decimal | None:
    units = _in_units(value, kind)
    low, high = _limits(kind)
    return _from_units(int(units), kind) if low <= units <= high and units == math.floor(units) else None


def _apply(ref: pc.Expression, op: str, literal: pc.Expression) -> pc.Expression:
    return {
        "=": ref.__eq__,
        "!=": ref.__ne__,
        "<": ref.__lt__,
        "<=": ref.__le__,
        ">": ref.__gt__,
        ">=": ref.__ge__,
    }[op](literal)
