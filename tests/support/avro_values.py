"""Generated Arrow types and rows that Hudi tables can hold, for the property tests of the Avro codecs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

__all__ = ["plain_types", "schemas", "tables", "types", "values"]

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NAMES = st.sampled_from(["a", "b", "c", "_d", "Ee", "f1", "fixed", "record", "element", "null"])
_PLAIN: Sequence[pa.DataType] = (
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.binary(5),
    pa.binary(21),
)
_LOGICAL: Sequence[pa.DataType] = (
    pa.date32(),
    pa.time32("ms"),
    pa.time64("us"),
    pa.timestamp("ms", tz="UTC"),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("ms"),
    pa.timestamp("us"),
)


def _decimals() -> st.SearchStrategy[pa.DataType]:
    precisions = st.integers(1, 38)
    return precisions.flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = st.tuples(_NAMES, inner, st.booleans()).map(lambda f: pa.field(f[0], f[1], nullable=f[2]))
    element = st.tuples(inner, st.booleans()).map(lambda f: pa.field("element", f[0], nullable=f[1]))
    value = st.tuples(inner, st.booleans()).map(lambda f: pa.field("value", f[0], nullable=f[1]))
    return st.one_of(
        st.lists(field, min_size=1, max_size=3, unique_by=lambda f: f.name).map(pa.struct),
        element.map(pa.list_),
        value.map(lambda f: pa.map_(pa.string(), f)),
    )


def types() -> st.SearchStrategy[pa.DataType]:
    """Any type of a column."""
    return st.recursive(
        st.one_of(st.sampled_from(_PLAIN), st.sampled_from(_LOGICAL), _decimals()), _nested, max_leaves=4
    )


def plain_types() -> st.SearchStrategy[pa.DataType]:
    """Types without an Avro logical type."""
    return st.recursive(st.sampled_from(_PLAIN), _nested, max_leaves=4)


def schemas(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.Schema]:
    """Schemas of one to six columns."""
    column = st.tuples(kinds, st.booleans())
    return st.lists(column, min_size=1, max_size=6).map(
        lambda columns: pa.schema([pa.field(f"c{n}", t, nullable=null) for n, (t, null) in enumerate(columns)])
    )


def values(field: pa.Field) -> st.SearchStrategy[Any]:
    """Python values for a field, nulls included where it takes them."""
    plain = _plain_values(field.type)
    return st.one_of(st.none(), plain, plain) if field.nullable else plain


@st.composite
def tables(draw: st.DrawFn, kinds: st.SearchStrategy[pa.DataType], *, max_rows: int = 40) -> pa.Table:
    """Tables of a generated schema. Few distinct rows are drawn and repeated, so that many rows stay cheap."""
    schema = draw(schemas(kinds))
    row = st.fixed_dictionaries({field.name: values(field) for field in schema})
    distinct = draw(st.lists(row, min_size=1, max_size=4))
    picks = draw(st.lists(st.integers(0, len(distinct) - 1), max_size=max_rows))
    columns = [pa.array([distinct[pick][field.name] for pick in picks], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _plain_values(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_nested(arrow):
        return _nested_values(arrow)
    if pa.types.is_decimal(arrow):
        most = 10**arrow.precision - 1
        return st.integers(-most, most).map(lambda unscaled: _decimal(unscaled, arrow.scale))
    if pa.types.is_fixed_size_binary(arrow):
        return st.binary(min_size=arrow.byte_width, max_size=arrow.byte_width)
    if pa.types.is_timestamp(arrow):
        moments = st.datetimes(timezones=st.just(dt.UTC) if arrow.tz else st.none())
        return moments.map(_whole_millis) if arrow.unit == "ms" else moments
    return _SIMPLE[arrow]


def _nested_values(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(arrow):
        return st.fixed_dictionaries({field.name: values(field) for field in arrow})
    if pa.types.is_map(arrow):
        return st.dictionaries(_TEXT, values(arrow.item_field), max_size=3).map(lambda d: list(d.items()))
    return st.lists(values(arrow.value_field), max_size=4)


def _whole_millis(moment: Any) -> Any:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _decimal(unscaled: int, scale: int) -> Decimal:
    sign = "-" if unscaled < 0 else ""
    return Decimal(f"{sign}{abs(unscaled)}E-{scale}")


_SIMPLE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.one_of(st.integers(-200, 200), st.integers(-(2**63), 2**63 - 1)),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): _TEXT,
    pa.binary(): st.binary(max_size=80),
    pa.date32(): st.dates(),
    pa.time32("ms"): st.times().map(_whole_millis),
    pa.time64("us"): st.times(),
}
