"""The BLOOM index: footers spare the reading of keys, and never hide one, however damaged they are."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.format.data_files import BaseFooter, decode_footer
from tablekeeper.read.slice_rows import read_row_group
from tablekeeper.write import file_filters, tagging
from tests.support.table_builder import TableBuilder, rows_of, trips

__all__: list[str] = []

GROUPS = 30
BLOOM = {"hoodie.index.type": "BLOOM"}
SMALL_FILES = {
    "hoodie.parquet.max.file.size": "100",
    "hoodie.copyonwrite.record.size.estimate": "1",
    "hoodie.parquet.small.file.limit": "0",
}
FILTER = re.compile(rb"(?<=org\.apache\.hudi\.bloomfilter)[^A-Za-z0-9+/]{1,8}([A-Za-z0-9+/]{100,}=*)")


@pytest.fixture
def builder() -> Iterator[TableBuilder]:
    made = TableBuilder()
    yield made
    made.forget()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The base files whose keys were read by look-ups."""
    found: list[str] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(kwargs["file"])
        return read_row_group(*args, **kwargs)

    monkeypatch.setattr(tagging, "read_row_group", noted)
    return found


def many_files(builder: TableBuilder, **options: str) -> tk.Table:
    """Keys k0000 to k2999 in one partition, in about thirty file groups by their hash."""
    table = builder.create(options={**SMALL_FILES, **options})
    table.insert(trips(*((f"k{n:04d}", "sf", 1, 1.0) for n in range(100 * GROUPS))))
    assert len(table.files()) >= GROUPS
    return table


def base_files(table: tk.Table) -> list[str]:
    return [each.base.path for each in table.files() if each.base is not None]


def upserted(builder: TableBuilder, table: tk.Table, *keys: str, **options: str) -> None:
    builder.through(table, options={**SMALL_FILES, **options}).upsert(trips(*((key, "sf", 2, 2.0) for key in keys)))
    rows: dict[str, int] = dict(rows_of(table.read(), "id", "ts"))
    assert len(rows) == table.read().num_rows
    assert [rows[key] for key in keys] == [2] * len(keys)


def test_few_keys_are_looked_for_in_the_files_that_may_have_them(builder: TableBuilder, reads: list[str]) -> None:
    table = many_files(builder)
    upserted(builder, table, "k0001", "k1001", "k2001")
    assert len(reads) >= GROUPS - 2
    reads.clear()
    upserted(builder, table, "k0001", "k1001", "k2001", "new", **BLOOM)
    assert len(set(reads)) <= 3
    reads.clear()
    table = builder.through(table, options=BLOOM)
    table.delete(trips(("k0002", "sf"), ("nobody", "sf")))
    assert len(set(reads)) == 1
    assert "k0002" not in {key for (key,) in rows_of(table.read(), "id")}


def test_ordered_keys_are_looked_for_in_the_files_that_have_their_range(
    builder: TableBuilder, reads: list[str]
) -> None:
    table = builder.create(options={"hoodie.bloom.index.write": "false"})
    for first in range(0, 100, 10):
        table.bulk_insert(trips(*((f"k{n:04d}", "sf", 1, 1.0) for n in range(first, first + 10))))
    upserted(builder, table, *(f"k{n:04d}" for n in (0, 1, 2, 95)), **BLOOM)
    assert len(set(reads)) == 2


def test_no_filter_is_asked_for_more_keys_than_pay(builder: TableBuilder, reads: list[str]) -> None:
    table = many_files(builder)
    upserted(builder, table, *(f"k{n:04d}" for n in range(0, 3000, 2)), **BLOOM)
    assert len(set(reads)) >= GROUPS


def test_files_without_a_filter_are_read(builder: TableBuilder) -> None:
    table = many_files(builder, **{"hoodie.bloom.index.write": "false"})
    upserted(builder, table, "k0001", "k1001", "k2001", **BLOOM)


def cleared(encoded: bytes) -> bytes:
    data = base64.b64decode(encoded)
    return base64.b64encode(data[:13] + bytes(len(data) - 13))


def without_header(encoded: bytes) -> bytes:
    return b"AAAA" + encoded[4:]


def one_bit_less(encoded: bytes) -> bytes:
    data = bytearray(base64.b64decode(encoded))
    place = next(n for n in range(13, len(data)) if data[n])
    data[place] &= data[place] - 1
    return base64.b64encode(data)


def no_base64(encoded: bytes) -> bytes:
    return b"\xff" + encoded[1:]


@pytest.mark.parametrize("damage", [cleared, without_header, one_bit_less, no_base64])
def test_a_damaged_filter_hides_no_key(builder: TableBuilder, damage: Callable[[bytes], bytes]) -> None:
    table = many_files(builder)
    storage = builder.storage(table)
    for path in base_files(table):
        data = storage.read(path)
        (encoded,) = FILTER.findall(data)
        assert damage(encoded) != encoded
        storage.put(path, data.replace(encoded, damage(encoded)))
    upserted(builder, table, *(f"k{n:04d}" for n in range(0, 3000, 200)), **BLOOM)


def test_a_filter_without_a_checksum_is_believed_as_java_believes_it(builder: TableBuilder, reads: list[str]) -> None:
    table = many_files(builder)
    storage = builder.storage(table)
    for path in base_files(table):
        data = storage.read(path)
        storage.put(path, data.replace(b"tablekeeper.bloomfilter.crc32", b"somebody.else's.footer.entry."))
    upserted(builder, table, "k0001", "k1001", **BLOOM)
    assert len(set(reads)) <= 2


def test_a_filter_that_promises_little_is_not_asked_for_ever(
    builder: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(metadata: Mapping[bytes, bytes], *, file: str) -> BaseFooter:
        asked.append(file)
        return decode_footer(metadata, file=file)

    monkeypatch.setattr(file_filters, "decode_footer", noted)
    monkeypatch.setattr(file_filters, "_TRIALS", 2)
    table = many_files(builder, **{"hoodie.index.bloom.fpp": "0.999"})
    upserted(builder, table, "k0001", "k1001", "k2001", **BLOOM)
    assert 0 < len(asked) < GROUPS
