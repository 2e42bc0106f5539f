"""Tags: which staged rows have a key that a file slice holds.

They come in pages, one for each staged batch: rows of the batch, and the number of the slice for each. A few travel
with the result of the look-up; many are parked beside the staged rows, so that the driver holds counts and no rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.storage.handle import StorageHandle

__all__ = ["TagPage", "Tags", "load_tags", "save_tags"]

_SCHEMA = pa.schema([("row", pa.int32()), ("slice", pa.int32())])
_MOST_TRAVELLING_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class TagPage:
    """Rows of one staged batch, and the slice that holds the key of each. A row is there once for each such slice."""

    rows: npt.NDArray[np.int32]
    slices: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tags:
    """The pages of one look-up: page `i` is that of the staged batch `batches[i]`. In `data`, or in `file` if None."""

    batches: tuple[int, ...]
    data: bytes | None
    file: str = ""


def save_tags(store: StorageHandle, batches: Sequence[int], pages: Sequence[TagPage], *, file: str) -> Tags:
    """Keep the pages of these batches: in `file` if they are many."""
    size = sum(page.rows.nbytes + page.slices.nbytes for page in pages)
    if size > _MOST_TRAVELLING_BYTES:
        with store.storage.open_output(file) as sink:
            _write(sink, pages)
        return Tags(tuple(batches), None, file)
    travelling = pa.BufferOutputStream()
    _write(travelling, pages)
    return Tags(tuple(batches), travelling.getvalue().to_pybytes())


def load_tags(store: StorageHandle, tags: Sequence[Tags], batches: Collection[int]) -> dict[int, list[TagPage]]:
    """The pages of these staged batches, from all look-ups."""
    pages: dict[int, list[TagPage]] = {batch: [] for batch in batches}
    for each in tags:
        wanted = [(place, batch) for place, batch in enumerate(each.batches) if batch in pages]
        for batch, page in _read(store, each, wanted):
            pages[batch].append(page)
    return pages


def _write(sink: object, pages: Sequence[TagPage]) -> None:
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        for page in pages:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(page.rows), pa.array(page.slices)], schema=_SCHEMA))


def _read(store: StorageHandle, tags: Tags, wanted: Sequence[tuple[int, int]]) -> Iterator[tuple[int, TagPage]]:
    if not wanted:
        return
    source = store.storage.open_input(tags.file) if tags.data is None else pa.BufferReader(tags.data)
    with closing(source):
        reader = pa.ipc.open_file(source)
        for place, batch in wanted:
            rows, slices = reader.get_batch(place).columns
            yield batch, TagPage(rows.to_numpy(), slices.to_numpy())
