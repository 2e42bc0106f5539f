"""One partition of many file groups: every row finds its group, and what is read grows with the rows alone."""

from __future__ import annotations

import io
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.storage import Storage
from tablekeeper.write import plan, prepare, tagging
from tests.support.storage_wrappers import CountingStorage, WatchedStorage
from tests.support.table_builder import TableBuilder, rows_of, trips

ROWS = 1200
STAGING = ".hoodie/.tablekeeper/staging/"


def flat_table(tables: TableBuilder, *, groups: int, table_type: str = "cow", text: str = "") -> tk.Table:
    """About so many file groups in one partition, each with a range of key hashes."""
    options = {
        "hoodie.parquet.max.file.size": str(ROWS // groups),
        "hoodie.copyonwrite.record.size.estimate": "1",
        "hoodie.parquet.small.file.limit": "0",
        "hoodie.bloom.index.write": "false",
    }
    rows = numbered(range(ROWS), version=1, text=text)
    table = tables.create(schema=rows.schema, table_type=table_type, partition_by=None, options=options)
    table.insert(rows)
    return table


def numbered(numbers: range | list[int], *, version: int, text: str = "") -> pa.Table:
    size = len(numbers)
    return pa.table(
        {
            "id": [f"k{n:05d}" for n in numbers],
            "ts": pa.array(np.full(size, version)),
            "text": [f"{n} {text}" for n in numbers],
        }
    )


@pytest.mark.parametrize("table_type", ["cow", "mor"])
@pytest.mark.parametrize("is_cut_fine", [False, True])
def test_updates_new_rows_and_deletes_all_find_their_file_group(
    tables: TableBuilder, monkeypatch: pytest.MonkeyPatch, table_type: str, is_cut_fine: bool
) -> None:
    if is_cut_fine:
        # As with very many rows: bins and tags that do not fit where small ones do.
        for module, name in ((plan, "_STAGED_BYTES"), (plan, "_TINY_BYTES"), (tagging, "_MOST_TRAVELLING_BYTES")):
            monkeypatch.setattr(module, name, 1 << 10)
        monkeypatch.setattr(prepare, "_CARRIED_BYTES", 0)
    table = flat_table(tables, groups=40, table_type=table_type)
    assert len(table.files()) == 40
    model = {f"k{n:05d}": 1 for n in range(ROWS)}
    random = np.random.default_rng(5)
    for version in (2, 3):
        chosen = sorted({int(n) for n in random.integers(0, ROWS + 200, 500)})
        result = table.upsert(numbered(chosen, version=version))
        known = sum(f"k{n:05d}" in model for n in chosen)
        if result.counts_are_exact:
            assert (result.rows_updated, result.rows_inserted) == (known, len(chosen) - known)
        model |= {f"k{n:05d}": version for n in chosen}
        gone = sorted({int(n) for n in random.integers(0, ROWS + 400, 100)})
        table.delete(numbered(gone, version=9).select(["id"]))
        for n in gone:
            model.pop(f"k{n:05d}", None)
        assert rows_of(table.read(), "id", "ts") == sorted(model.items())


def test_a_key_that_two_groups_hold_is_updated_in_both_and_new_rows_beside_it_are_added(tables: TableBuilder) -> None:
    table = tables.create(partition_by=None, options={"hoodie.parquet.small.file.limit": "0"})
    for fare in (1.0, 2.0):
        # An insert does not look keys up.
        table.insert(trips(("a", "x", 1, fare), (f"only-{fare}", "x", 1, fare)))
    # As many rows as were found, counted once for each group; one of them is new all the same.
    table.upsert(trips(("a", "x", 2, 9.0), ("b", "x", 2, 9.0)))
    assert rows_of(table.read(), "id", "fare") == [
        ("a", 9.0),
        ("a", 9.0),
        ("b", 9.0),
        ("only-1.0", 1.0),
        ("only-2.0", 2.0),
    ]


@pytest.mark.parametrize("groups", [2, 60])
def test_staged_rows_are_read_twice_at_most_however_many_file_groups_there_are(
    tables: TableBuilder, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    # As with more rows than are carried along.
    monkeypatch.setattr(prepare, "_CARRIED_BYTES", 0)
    table = flat_table(tables, groups=groups, text="x" * 500)
    assert len(table.files()) == groups
    staged = StagedBytes(tables.storage(table))
    tables.through(table, cast(Storage, staged)).upsert(numbered(range(0, ROWS, 2), version=2, text="y" * 500))
    assert staged.written > ROWS // 2 * 500
    assert staged.read_bytes <= 2 * staged.written


def test_few_rows_are_carried_along_and_never_staged_in_the_store(tables: TableBuilder) -> None:
    table = flat_table(tables, groups=2)
    store = CountingStorage(tables.storage(table))
    assert tables.through(table, store).upsert(numbered(range(100), version=2)).rows_updated == 100
    assert not [path for path in store.paths("open_output", "put", "open_input") if path.startswith(STAGING)]


class StagedBytes(WatchedStorage):
    """Counts the bytes of staged rows that are written and read."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.read_bytes = 0
        self._sizes: dict[str, int] = {}

    @property
    def written(self) -> int:
        """Bytes of the files that were read at all, which is all of them."""
        return sum(self._sizes.values())

    def open_input(self, path: str) -> BinaryIO:
        source = super().open_input(path)
        if not path.startswith(STAGING):
            return source
        found = self.storage.stat(path)
        assert found is not None
        self._sizes[path] = found.size
        return cast(BinaryIO, pa.PythonFile(_Counted(source, self), mode="r"))


class _Counted(io.RawIOBase):
    def __init__(self, source: BinaryIO, staged: StagedBytes) -> None:
        self._source = source
        self._staged = staged

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._staged.read_bytes += len(data)
        return data
