"""The order of rows by some of their columns: nulls first, not-a-number last, as Spark sorts ascending."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["sorted_positions"]


def sorted_positions(columns: Sequence[pa.Array | pa.ChunkedArray]) -> npt.NDArray[np.int64]:
    """Row positions in the order of all columns from the left; rows that are equal keep their order.

    Nulls are ordered by a column of their own: the way to ask Arrow for it differs between its versions.
    """
    keys: dict[str, pa.Array | pa.ChunkedArray] = {}
    for number, column in enumerate(columns):
        if column.null_count:
            keys[f"{number} present"] = column.is_valid()
        keys[str(number)] = column
    order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    positions: npt.NDArray[np.int64] = order.to_numpy().view(np.int64)
    return positions
