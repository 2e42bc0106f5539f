"""Z-order and Hilbert curves over any mix of sortable columns: rows that are near in all columns come to lie together.

Each value is replaced by its rank among bounds that are drawn from a sample, so that columns of different types,
ranges and distributions count alike; nulls rank lowest and equal values equal. The ranks of a row are the coordinates
of a point, and its place on the curve is one unsigned number of at most 64 bits.

Java's default maps each value to its first eight bytes instead; the curve is the same, the grid is finer where there
are more rows. Nothing but the locality of rows depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import combined
from tablekeeper.record.sort_order import sorted_positions

__all__ = ["SAMPLE_ROWS", "SpaceCurve", "fit_curve", "hilbert_positions", "z_positions"]

SAMPLE_ROWS = 1 << 16
"""More rows than this in a sample do not make the bounds better: a coordinate has no more bits."""

_MOST_BITS = 16
_MOST_COLUMNS = 32

_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SpaceCurve:
    """A curve through the space of some columns. `bounds` are each column's, ascending and distinct."""

    bounds: tuple[pa.Array, ...]
    bits: int
    is_hilbert: bool

    def positions(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> _Words:
        """Each row's place on the curve."""
        points = [_ranks(combined(column), bounds) for column, bounds in zip(columns, self.bounds, strict=True)]
        curve = hilbert_positions if self.is_hilbert else z_positions
        return curve(points, bits=self.bits)


def fit_curve(sample: Sequence[pa.Array | pa.ChunkedArray], *, is_hilbert: bool) -> SpaceCurve:
    """A curve for rows of which `sample` holds some, column by column."""
    if not 0 < len(sample) <= _MOST_COLUMNS:
        raise InvalidRequestError(f"a curve takes 1 to {_MOST_COLUMNS} columns, not {len(sample)}")
    bits = min(_MOST_BITS, 64 // len(sample))
    return SpaceCurve(tuple(_bounds(combined(column), bits) for column in sample), bits, is_hilbert)


def z_positions(points: Sequence[_Words], *, bits: int) -> _Words:
    """Interleave the low `bits` of the coordinates, the first coordinate's bit leading each round."""
    spread = _spread_table(len(points))
    result = np.zeros(len(points[0]), dtype=np.uint64)
    for number, coordinate in enumerate(points):
        shift = len(points) - 1 - number
        for byte in range(-(-bits // 8)):
            low = (coordinate >> np.uint64(8 * byte)) & np.uint64(min(0xFF, (1 << (bits - 8 * byte)) - 1))
            result |= spread[low.astype(np.intp)] << np.uint64(8 * byte * len(points) + shift)
    return result


def hilbert_positions(points: Sequence[_Words], *, bits: int) -> _Words:
    """The distance along the Hilbert curve of this many `bits` a coordinate: neighbours on it are neighbours in space.

    The coordinates are turned, level by level, into the transposed form of the distance (Skilling, 2004), whose
    interleaved bits are the distance itself.
    """
    x = [np.array(coordinate, dtype=np.uint64) for coordinate in points]
    top = np.uint64(1 << (bits - 1))
    level = top
    while level > 1:
        below = level - np.uint64(1)
        for number in range(len(x)):
            inverted = (x[number] & level) != 0
            swapped = np.where(inverted, np.uint64(0), (x[0] ^ x[number]) & below)
            x[0] ^= np.where(inverted, below, swapped)
            x[number] ^= swapped
        level >>= np.uint64(1)
    for number in range(1, len(x)):
        x[number] ^= x[number - 1]
    carried = np.zeros(len(x[0]), dtype=np.uint64)
    level = top
    while level > 1:
        carried ^= np.where((x[-1] & level) != 0, level - np.uint64(1), np.uint64(0))
        level >>= np.uint64(1)
    return z_positions([coordinate ^ carried for coordinate in x], bits=bits)


def _bounds(values: pa.Array, bits: int) -> pa.Array:
    """Values that cut the sample into shares of equal size, as many as ranks allow; fewer where values repeat."""
    present = values.drop_null()
    ordered = present.take(pa.array(sorted_positions([present])))
    most = (1 << bits) - 1
    if len(ordered) > most:
        ordered = ordered.take(pa.array(np.arange(1, most + 1) * len(ordered) // (most + 1)))
    return ordered.unique()


def _ranks(values: pa.Array, bounds: pa.Array) -> _Words:
    """How many bounds each value reaches; 0 for null. One sort does it for every type that can be sorted."""
    order = sorted_positions([pa.concat_arrays([bounds, values.cast(bounds.type)])])
    is_bound = order < len(bounds)
    ranks = np.empty(len(order), dtype=np.uint64)
    ranks[order] = np.cumsum(is_bound)
    return ranks[len(bounds) :]


def _spread_table(stride: int) -> _Words:
    """Each byte with its bits `stride` places apart."""
    table = np.zeros(256, dtype=np.uint64)
    values = np.arange(256, dtype=np.uint64)
    for bit in range(8):
        place = bit * stride
        if place < 64:
            table |= ((values >> np.uint64(bit)) & np.uint64(1)) << np.uint64(place)
    return table
