"""The BLOOM indexes: which row groups of a base file can hold some of the staged keys, according to its footer.

The footer has the range of keys of each row group, and a bloom filter over all keys of the file. Opening the file loads
both, and they can save reading its keys. In doubt the keys are read: if a row group has no statistics, or the file has
no filter or a damaged one.

Asking a filter costs about a tenth of comparing as many stored keys. It is done for files that have several times as
many rows as there are keys to ask for, and only as long as it saves reading some of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.bloom import BloomProbe
from tablekeeper.format.data_files import decode_footer

__all__ = ["FileFilters"]

_ROWS_A_KEY = 4
# The hashes of a key take up to 120 bytes of memory.
_MOST_KEYS = 1 << 19
# After so many filters were asked, at least one file in so many must have been skipped.
_TRIALS = 4
_LEAST_SPARED = 4

_Range = tuple[int, int]
"""A range of the sorted keys."""


class FileFilters:
    """Asks the footers of files for distinct keys, none of them null."""

    def __init__(self, keys: pa.Array) -> None:
        self._keys = keys.take(pc.sort_indices(keys)).to_pylist() if len(keys) <= _MOST_KEYS else None
        self._probe: BloomProbe | None = None
        self._asked = 0
        self._spared = 0

    def row_groups(self, file: pq.ParquetFile, *, key: int, name: str) -> list[int]:
        """Numbers of the row groups that may hold one of the keys; the column at the place `key` has theirs."""
        groups = range(file.num_row_groups)
        if self._keys is None:
            return list(groups)
        ranges = {number: self._range(file, number, key, self._keys) for number in groups}
        ranges = {number: (first, end) for number, (first, end) in ranges.items() if first < end}
        if not ranges:
            return []
        first, end = min(each[0] for each in ranges.values()), max(each[1] for each in ranges.values())
        if (end - first) * _ROWS_A_KEY > file.metadata.num_rows or not self._pays:
            return list(ranges)
        found = self._candidates(file, first, end, name)
        if found is None:
            return list(ranges)
        kept = [number for number, (start, stop) in ranges.items() if _is_any_within(found, start, stop)]
        self._asked += 1
        self._spared += not kept
        return kept

    @property
    def _pays(self) -> bool:
        return self._asked < _TRIALS or self._spared * _LEAST_SPARED >= self._asked

    def _range(self, file: pq.ParquetFile, number: int, key: int, keys: Sequence[str]) -> _Range:
        statistics = file.metadata.row_group(number).column(key).statistics
        if statistics is None or not statistics.has_min_max or not isinstance(statistics.min, str):
            return 0, len(keys)
        return bisect_left(keys, statistics.min), bisect_right(keys, statistics.max)

    def _candidates(self, file: pq.ParquetFile, first: int, end: int, name: str) -> npt.NDArray[np.intp] | None:
        """Places of the keys that the filter of the file lets through; None if it cannot be asked."""
        try:
            footer = decode_footer(file.metadata.metadata or {}, file=name)
            if footer.bloom is None:
                return None
            if self._probe is None:
                self._probe = BloomProbe(pa.array(self._keys, pa.large_string()))
            return self._probe.candidates(footer.bloom, first=first, end=end, bloom_type=footer.bloom_type, file=name)
        except CorruptTableError:
            # Then the keys of the file are read, which gives the same answer.
            return None


def _is_any_within(places: npt.NDArray[np.intp], first: int, end: int) -> bool:
    at = np.searchsorted(places, first)
    return bool(at < len(places) and places[at] < end)
