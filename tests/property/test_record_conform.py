"""Laws of schema evolution: data written under a planned schema keeps its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.evolution import conform, plan_evolution, storable_schema

PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=4)),
    (pa.large_string(), st.text(max_size=4)),
    (pa.dictionary(pa.int32(), pa.string()), st.text(max_size=2)),
    (pa.large_binary(), st.binary(max_size=4)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.timestamp("ms", "UTC"), st.none()),
    (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
]

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def as_list(typed: Typed) -> Typed:
        return pa.list_(typed[0]), st.lists(st.none() | typed[1], max_size=3)

    def as_large_list(typed: Typed) -> Typed:
        return pa.large_list(typed[0]), st.lists(st.none() | typed[1], max_size=3)

    def as_map(typed: Typed) -> Typed:
        entries = st.dictionaries(st.text(max_size=2), st.none() | typed[1], max_size=3)
        return pa.map_(pa.string(), typed[0]), entries.map(lambda found: list(found.items()))

    def as_struct(children: list[Typed]) -> Typed:
        named = {f"f{number}": typed for number, typed in enumerate(children)}
        kind = pa.struct([(name, typed[0]) for name, typed in named.items()])
        return kind, st.fixed_dictionaries({name: st.none() | typed[1] for name, typed in named.items()})

    structs = st.lists(inner, min_size=1, max_size=3).map(as_struct)
    return inner.map(as_list) | inner.map(as_large_list) | inner.map(as_map) | structs


COLUMN = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=4)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    columns = draw(st.lists(COLUMN, min_size=1, max_size=4))
    count = draw(st.integers(0, 5))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind) for kind, values in columns
    ]
    return pa.table(arrays, names=[f"c{number}" for number in range(len(arrays))])


def outcome(action: Callable[[], Any]) -> Any:
    """What the action returns, or its refusal."""
    try:
        return action()
    except InvalidRequestError as refusal:
        return refusal


@given(tables(), st.data())
@settings(deadline=None)
def test_conforming_to_what_is_stored_keeps_every_value(table: pa.Table, data: st.DataObject) -> None:
    schema = storable_schema(table.schema)
    start = data.draw(st.integers(0, table.num_rows))
    stored = conform(table.slice(start), schema)
    stored.validate(full=True)
    assert stored.schema == schema
    assert stored.to_pylist() == table.slice(start).to_pylist()
    assert conform(stored, schema) is stored
    assert plan_evolution(schema, table.schema).schema is schema


@given(tables(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_columns_in_the_data_does_not_matter(table: pa.Table, random: Any) -> None:
    names = list(table.schema.names)
    random.shuffle(names)
    schema = storable_schema(table.schema)
    assert conform(table.select(names), schema).equals(conform(table, schema))


@given(tables(), tables())
@settings(deadline=None)
def test_a_planned_schema_takes_both_the_old_rows_and_the_new(old: pa.Table, new: pa.Table) -> None:
    table = storable_schema(old.schema)
    planned = outcome(lambda: plan_evolution(table, new.schema))
    if isinstance(planned, InvalidRequestError):
        assert "the data does not fit the table" in str(planned)
        return
    assert planned.schema.names[: len(table.names)] == table.names
    assert conform(conform(old, table), planned.schema).num_rows == old.num_rows
    written = outcome(lambda: conform(new, planned.schema))
    if isinstance(written, InvalidRequestError):
        # A plan promises the types; a single value may still be too large for a decimal or not be UTF-8.
        assert "a value of the data" in str(written)
        return
    written.validate(full=True)
    assert plan_evolution(planned.schema, new.schema).schema == planned.schema


@given(st.lists(st.none() | st.floats(width=32, allow_nan=False), max_size=20))
@settings(deadline=None)
def test_a_float_widened_to_a_double_shows_the_same_digits_and_stays_the_same_float(values: list[float | None]) -> None:
    narrow = pa.table({"c": pa.array(values, pa.float32())})
    wide = conform(narrow, pa.schema([("c", pa.float64())])).column("c")
    shortest = [None if value is None else float(str(np.float32(value))) for value in values]
    assert wide.to_pylist() == shortest
    assert wide.cast(pa.float32()).to_pylist() == values
