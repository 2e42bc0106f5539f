"""Blocks, names and deletes come back as they were; damage never gives more than blocks or one clear error."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.errors import CorruptTableError, TablekeeperError, UnsupportedFeatureError
from tablekeeper.format.data_files import LogName, decode_log_name, encode_log_name
from tablekeeper.format.log_blocks import MAGIC, BlockType, HeaderKey, LogBlock, decode_blocks, encode_block
from tablekeeper.format.log_data import decode_parquet_block, encode_parquet_block_content
from tablekeeper.format.log_deletes import decode_deletes, encode_deletes
from tests.support.avro_values import tables, types
from tests.support.damage import DAMAGED_FILE, damage

__all__: list[str] = []

_JAVA_OBJECTS = Path(__file__).parents[1] / "unit" / "data" / "java_kryo"
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_WRITTEN_TYPES = st.sampled_from([block_type for block_type in BlockType if block_type is not BlockType.CORRUPT])
_BLOCKS = st.tuples(
    _WRITTEN_TYPES,
    st.dictionaries(st.sampled_from(HeaderKey), _TEXT),
    st.one_of(st.binary(max_size=60), st.sampled_from([MAGIC, MAGIC * 3, b"x" + MAGIC])),
)
_ORDERINGS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): _TEXT,
    pa.binary(): st.binary(max_size=20),
    pa.decimal128(30, 15): st.integers(-(10**30 - 1), 10**30 - 1).map(lambda v: Decimal(f"{v}E-15")),
}


def _attempt(decode: Callable[[], Any]) -> tuple[Any, TablekeeperError | None]:
    try:
        return decode(), None
    except (CorruptTableError, UnsupportedFeatureError) as error:
        return None, error


@given(
    st.from_regex(r"[A-Za-z0-9-]+", fullmatch=True),
    st.from_regex(r"[0-9]{3,17}", fullmatch=True),
    st.integers(0, 10**6),
    st.tuples(st.integers(0, 999), st.integers(0, 999), st.integers(0, 999)),
)
def test_names_come_back_as_they_were(file_id: str, instant: str, version: int, token: tuple[int, int, int]) -> None:
    write_token = "-".join(map(str, token))
    name = encode_log_name(file_id=file_id, instant=instant, version=version, write_token=write_token)
    assert decode_log_name(name) == LogName(file_id, instant, version, write_token)


@given(_TEXT)
def test_any_other_text_is_a_name_or_none(text: str) -> None:
    decoded = decode_log_name(text)
    assert decoded is None or isinstance(decoded, LogName)


@given(st.lists(_BLOCKS, max_size=5))
def test_blocks_come_back_as_they_were(blocks: list[tuple[BlockType, dict[HeaderKey, str], bytes]]) -> None:
    data = b"".join(encode_block(*block) for block in blocks)
    decoded = [(block.type, dict(block.header), bytes(block.content)) for block in decode_blocks(data, file="f")]
    assert decoded == blocks


@given(st.lists(_BLOCKS, min_size=1, max_size=4), st.data())
def test_a_file_that_is_cut_off_gives_the_whole_blocks_and_then_damage(
    blocks: list[tuple[BlockType, dict[HeaderKey, str], bytes]], data: st.DataObject
) -> None:
    encoded = [encode_block(*block) for block in blocks]
    kept = data.draw(st.integers(0, sum(map(len, encoded))))
    decoded = list(decode_blocks(b"".join(encoded)[:kept], file="f"))
    whole, size = 0, 0
    while whole < len(encoded) and size + len(encoded[whole]) <= kept:
        size += len(encoded[whole])
        whole += 1
    assert [bytes(block.content) for block in decoded[:whole]] == [
        content for _type, _header, content in blocks[:whole]
    ]
    assert all(block.type is not BlockType.CORRUPT for block in decoded[:whole])
    assert all(block.type is BlockType.CORRUPT for block in decoded[whole:])


@given(st.lists(_BLOCKS, min_size=1, max_size=3), st.data())
def test_blocks_behind_a_damaged_stretch_are_still_read(
    blocks: list[tuple[BlockType, dict[HeaderKey, str], bytes]], data: st.DataObject
) -> None:
    torn = data.draw(_BLOCKS)
    stump = encode_block(*torn)[: data.draw(st.integers(len(MAGIC), 30))]
    decoded = list(decode_blocks(stump + b"".join(encode_block(*block) for block in blocks), file="f"))
    assert decoded[0].type is BlockType.CORRUPT
    read = [(block.type, dict(block.header), bytes(block.content)) for block in decoded[-len(blocks) :]]
    assert read == blocks


@settings(max_examples=300)
@given(st.lists(_BLOCKS, min_size=1, max_size=4), st.data())
def test_a_mangled_file_gives_blocks_or_an_error_with_its_name(
    blocks: list[tuple[BlockType, dict[HeaderKey, str], bytes]], data: st.DataObject
) -> None:
    mangled = data.draw(damage(b"".join(encode_block(*block) for block in blocks)))
    decoded, error = _attempt(lambda: list(decode_blocks(mangled, file=DAMAGED_FILE)))
    if error is not None:
        assert DAMAGED_FILE in str(error)
    else:
        assert sum(len(block.content) for block in decoded) <= len(mangled)


@st.composite
def _deletes(draw: st.DrawFn) -> tuple[pa.Array, str, pa.Array | None]:
    keys = draw(st.lists(_TEXT, max_size=20))
    kind = draw(st.sampled_from([*_ORDERINGS, None]))
    ordering = None
    if kind is not None:
        nullable = st.one_of(st.none(), _ORDERINGS[kind])
        ordering = pa.array(draw(st.lists(nullable, min_size=len(keys), max_size=len(keys))), kind)
    return pa.array(keys, pa.string()), draw(_TEXT), ordering


@given(_deletes())
def test_deletes_come_back_as_they_were(deletes: tuple[pa.Array, str, pa.Array | None]) -> None:
    keys, partition, ordering = deletes
    content = encode_deletes(keys, partition=partition, ordering=ordering)
    table = decode_deletes(LogBlock(BlockType.DELETE, {}, content), file="f")
    assert table["key"].to_pylist() == keys.to_pylist()
    assert table["partition"].to_pylist() == [partition] * len(keys)
    given_values = [None] * len(keys) if ordering is None else ordering.to_pylist()
    is_int = ordering is not None and ordering.type == pa.int32()
    no_order = [value is None or (is_int and value == 0) for value in given_values]
    assert table["by_commit_time"].to_pylist() == no_order
    expected = [None if default else value for default, value in zip(no_order, given_values, strict=True)]
    assert table["ordering"].to_pylist() == expected


@given(_deletes(), _deletes())
def test_deletes_with_two_ordering_columns_come_back_as_they_were(
    first: tuple[pa.Array, str, pa.Array | None], second: tuple[pa.Array, str, pa.Array | None]
) -> None:
    columns = [deletes[2] for deletes in (first, second) if deletes[2] is not None]
    if len(columns) < 2:
        return
    count = min(map(len, columns))
    ordering = pa.StructArray.from_arrays([column.slice(0, count) for column in columns], names=["f0", "f1"])
    content = encode_deletes(pa.array(["k"] * count, pa.string()), partition="p", ordering=ordering)
    table = decode_deletes(LogBlock(BlockType.DELETE, {}, content), file="f")
    assert table["ordering"].to_pylist() == ordering.to_pylist()


@settings(max_examples=300)
@given(_deletes(), st.sampled_from([1, 2, 3]), st.data())
def test_mangled_deletes_are_an_error_with_the_file_name_or_whole_deletes(
    deletes: tuple[pa.Array, str, pa.Array | None], version: int, data: st.DataObject
) -> None:
    keys, partition, ordering = deletes
    content = bytearray(encode_deletes(keys, partition=partition, ordering=ordering))
    content[:4] = struct.pack(">i", version)
    mangled = data.draw(damage(bytes(content)))
    decoded, error = _attempt(lambda: decode_deletes(LogBlock(BlockType.DELETE, {}, mangled), file=DAMAGED_FILE))
    if error is not None:
        assert DAMAGED_FILE in str(error)
    else:
        decoded.validate(full=True)
        assert decoded.num_rows <= len(mangled)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(_JAVA_OBJECTS.glob("v*.bin"))), st.data())
def test_mangled_java_objects_are_an_error_with_the_file_name_or_whole_deletes(path: Path, data: st.DataObject) -> None:
    mangled = data.draw(damage(path.read_bytes()))
    content = struct.pack(">ii", int(path.name[1]), len(mangled)) + mangled
    decoded, error = _attempt(lambda: decode_deletes(LogBlock(BlockType.DELETE, {}, content), file=DAMAGED_FILE))
    if error is not None:
        assert DAMAGED_FILE in str(error)
    else:
        decoded.validate(full=True)
        assert decoded.num_rows <= len(mangled)


@settings(deadline=None, max_examples=50)
@given(tables(types(), max_rows=20))
def test_rows_come_back_from_a_parquet_block_as_they_were(table: pa.Table) -> None:
    content = encode_parquet_block_content(table, avro_schema_json="{}")
    decoded = decode_parquet_block(LogBlock(BlockType.PARQUET_DATA, {}, content), file="f")
    assert decoded.schema.names == table.schema.names
    assert decoded.to_pylist() == table.to_pylist()


@settings(deadline=None, max_examples=150)
@given(tables(types(), max_rows=20), st.data())
def test_a_mangled_parquet_block_is_an_error_with_the_file_name_or_a_valid_table(
    table: pa.Table, data: st.DataObject
) -> None:
    content = data.draw(damage(encode_parquet_block_content(table, avro_schema_json="{}")))
    block = LogBlock(BlockType.PARQUET_DATA, {}, content)
    decoded, error = _attempt(lambda: decode_parquet_block(block, file=DAMAGED_FILE))
    if error is not None:
        assert DAMAGED_FILE in str(error)
    else:
        decoded.validate(full=True)
