"""Short batches of Spark's become longer ones before kernels see them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tablekeeper.engine.spark import joined_batches


def batches(count: int, *, rows: int, width: int = 1) -> list[pa.RecordBatch]:
    text = ["x" * width] * rows
    return [pa.record_batch({"n": [n] * rows, "text": text}) for n in range(count)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (batches(0, rows=1), []),
        (batches(14, rows=10_000), [60_000, 60_000, 20_000]),
        (batches(3, rows=70_000), [70_000, 70_000, 70_000]),
        (batches(10, rows=4, width=1 << 20), [12, 12, 12, 4]),
        (batches(2, rows=20, width=1 << 20), [20, 20]),
        (batches(3, rows=0), []),
    ],
    ids=["none", "short rows", "long enough", "long rows", "very long", "empty"],
)
def test_batches_are_joined_up_to_a_number_of_rows_and_of_bytes(
    given: list[pa.RecordBatch], expected: list[int]
) -> None:
    joined = list(joined_batches(iter(given)))
    assert [batch.num_rows for batch in joined] == expected
    if joined:
        assert pa.Table.from_batches(joined) == pa.Table.from_batches(given)
