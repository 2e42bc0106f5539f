"""Rows of one group side by side, without a second copy of all rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tablekeeper.write.grouping import group_rows


def _rows(chunks: int, rows_a_chunk: int, *, groups: int) -> tuple[pa.Table, np.ndarray]:
    count = chunks * rows_a_chunk
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, groups, count)
    places = [pa.array(np.arange(start, start + rows_a_chunk)) for start in range(0, count, rows_a_chunk)]
    texts = pa.chunked_array([pa.array([f"row {n}" for n in each.to_pylist()]) for each in places])
    return pa.table({"place": pa.chunked_array(places), "text": texts}), numbers


@pytest.mark.parametrize(
    ("chunks", "rows_a_chunk", "groups"),
    [(4, 5_000, 4), (1, 9_000, 2), (50, 40, 7), (3, 1_000, 900), (2, 1, 2), (2, 500, 1)],
    ids=["long chunks", "one chunk", "short chunks", "many groups", "two rows", "one group"],
)
def test_a_group_has_its_rows_in_their_old_order(chunks: int, rows_a_chunk: int, groups: int) -> None:
    rows, numbers = _rows(chunks, rows_a_chunk, groups=groups)
    found = dict(group_rows(rows, numbers))
    assert list(found) == sorted(set(numbers.tolist()))
    for number, part in found.items():
        assert part.column("place").to_pylist() == np.flatnonzero(numbers == number).tolist()
        assert part.column("text").to_pylist() == [f"row {n}" for n in part.column("place").to_pylist()]


def test_no_rows_make_no_groups() -> None:
    rows, _ = _rows(1, 1, groups=1)
    assert list(group_rows(rows.slice(0, 0), np.zeros(0, np.int64))) == []


def test_groups_are_taken_one_at_a_time() -> None:
    rows, numbers = _rows(8, 10_000, groups=8)
    before = pa.total_allocated_bytes()
    most = 0
    for _, part in group_rows(rows, numbers):
        most = max(most, pa.total_allocated_bytes() - before)
        del part
    assert 0 < most < rows.nbytes / 3
