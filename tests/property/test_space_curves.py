"""Laws of the curves that clustering orders rows along, and of the sort that takes more rows than memory holds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.sort_order import sorted_positions
from tablekeeper.record.space_curves import fit_curve, hilbert_positions, z_positions
from tablekeeper.write.row_sorter import RowSorter
from tests.support.write_context import make_context

__all__: list[str] = []

GRIDS = [(1, 5), (2, 1), (2, 2), (2, 4), (3, 1), (3, 3), (4, 2), (5, 2)]

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text(max_size=6)),
    "bytes": (pa.binary(), st.binary(max_size=6)),
    "flag": (pa.bool_(), st.booleans()),
    "decimal": (pa.decimal128(12, 2), st.integers(-(10**11), 10**11).map(lambda n: Decimal(n) / 100)),
    "date": (pa.date32(), st.dates()),
    "moment": (pa.timestamp("us", tz="UTC"), st.integers(-(2**50), 2**50)),
}


def _points(dimensions: int, bits: int) -> list[np.ndarray[Any, np.dtype[np.uint64]]]:
    grid = np.array(list(itertools.product(range(1 << bits), repeat=dimensions)), dtype=np.uint64)
    return [np.ascontiguousarray(grid[:, number]) for number in range(dimensions)]


@pytest.mark.parametrize("curve", [z_positions, hilbert_positions])
@pytest.mark.parametrize(("dimensions", "bits"), GRIDS)
def test_a_curve_visits_every_point_of_the_grid_once(curve: Any, dimensions: int, bits: int) -> None:
    positions = curve(_points(dimensions, bits), bits=bits)
    assert sorted(positions.tolist()) == list(range(1 << (dimensions * bits)))


@pytest.mark.parametrize(("dimensions", "bits"), GRIDS)
def test_each_step_along_the_hilbert_curve_goes_to_a_neighbour(dimensions: int, bits: int) -> None:
    points = _points(dimensions, bits)
    order = np.argsort(hilbert_positions(points, bits=bits))
    walked = np.stack([coordinate[order].astype(np.int64) for coordinate in points])
    steps = np.abs(np.diff(walked, axis=1)).sum(axis=0)
    assert set(steps.tolist()) <= {1}


@given(st.lists(st.tuples(*[st.integers(0, (1 << 16) - 1)] * 3), min_size=1, max_size=20))
def test_the_z_curve_interleaves_the_bits_of_the_coordinates(points: list[tuple[int, int, int]]) -> None:
    columns = [np.array([point[number] for point in points], dtype=np.uint64) for number in range(3)]
    expected = [_interleaved(point) for point in points]
    assert z_positions(columns, bits=16).tolist() == expected


def _interleaved(point: tuple[int, ...]) -> int:
    bits = [format(coordinate, "016b") for coordinate in point]
    return int("".join(bit for round_ in zip(*bits, strict=True) for bit in round_), 2)


@given(st.data())
def test_coordinates_follow_the_order_of_values_of_every_type_and_tie_where_values_do(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(VALUES)))
    kind, strategy = VALUES[name]
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=40))
    column = pa.array(values, kind)
    curve = fit_curve([column], is_hilbert=False)

    ranks = curve.positions([column]).tolist()

    order = sorted_positions([column])
    assert [ranks[i] for i in order] == sorted(ranks)
    by_value: dict[Any, set[int]] = {}
    for value, rank in zip(column.to_pylist(), ranks, strict=True):
        by_value.setdefault(value, set()).add(rank)
    assert all(len(found) == 1 for found in by_value.values())
    # All values are in the sample, so that different ones have different ranks, and null the lowest of all.
    assert len({min(found) for found in by_value.values()}) == len(by_value)
    if None in by_value:
        assert by_value[None] == {0}


@given(st.lists(st.integers(0, 1000), max_size=50), st.lists(st.integers(0, 1000), min_size=1, max_size=50))
def test_values_outside_the_sample_lie_between_its_bounds(sample: list[int], values: list[int]) -> None:
    curve = fit_curve([pa.array(sample, pa.int64())], is_hilbert=False)
    ranks = curve.positions([pa.array(values, pa.int64())]).tolist()
    assert ranks == [len({bound for bound in sample if bound <= value}) for value in values]


def test_a_large_sample_is_cut_into_equal_shares() -> None:
    values = pa.array(np.random.default_rng(7).exponential(size=200_000))
    ranks = fit_curve([values] * 4, is_hilbert=True)
    assert ranks.bits == 16
    shares = np.bincount((fit_curve([values], is_hilbert=False).positions([values]) >> np.uint64(12)).astype(np.int64))
    assert len(shares) == 16
    assert shares.max() < 1.1 * shares.min()


@pytest.mark.parametrize("columns", [0, 33])
def test_a_curve_has_a_limit_of_columns(columns: int) -> None:
    with pytest.raises(InvalidRequestError, match="columns"):
        fit_curve([pa.array([1])] * columns, is_hilbert=False)


@given(
    st.lists(st.lists(st.tuples(st.none() | st.integers(0, 20), st.text(max_size=3)), max_size=60), max_size=8),
    st.sampled_from([1, 200, 2000, 1 << 20]),
    st.sampled_from([1, 300, 1 << 20]),
)
def test_sorting_through_files_gives_what_sorting_in_memory_gives(
    tables: Sequence[Sequence[tuple[int | None, str]]], budget: int, chunk: int
) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("n", pa.int64())])
    numbers = itertools.count()
    rows = [[(a, b, next(numbers)) for a, b in part] for part in tables]
    context = make_context()
    with RowSorter(
        context, lambda t: [t.column("a"), t.column("b")], budget_bytes=budget, chunk_bytes=chunk, block_bytes=100
    ) as sorter:
        for part in rows:
            sorter.add(pa.Table.from_pylist([dict(zip("abn", row, strict=True)) for row in part], schema=schema))
        found = [tuple(row.values()) for chunk_rows in sorter.chunks() for row in chunk_rows.to_pylist()]

    everything = [row for part in rows for row in part]
    assert sorter.rows == len(everything)
    assert sorted(found, key=repr) == sorted(everything, key=repr)
    assert [row[:2] for row in found] == sorted((row[:2] for row in everything), key=_nulls_first)
    assert not list(context.store.storage.walk(context.staging))


def _nulls_first(row: tuple[int | None, str]) -> tuple[bool, int, bytes]:
    return (row[0] is not None, row[0] or 0, row[1].encode())
