"""Mangled Avro bytes: an error that names the file, or rows that another Avro library reads just so; never more."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.errors import CorruptTableError, TablekeeperError, UnsupportedFeatureError
from tablekeeper.format.avro_arrow import arrow_to_avro_schema, avro_to_arrow_schema
from tablekeeper.format.avro_columnar import decode_avro_block, decode_avro_rows, encode_avro_block_content
from tablekeeper.format.log_blocks import BlockType, HeaderKey, LogBlock
from tests.support.avro_values import plain_types, tables, types
from tests.support.damage import DAMAGED_FILE, damage

__all__: list[str] = []


def _avro(schema: pa.Schema) -> dict[str, Any]:
    return arrow_to_avro_schema(schema, record_name="t_record", namespace="hoodie.t")


def _block(content: bytes, avro: dict[str, Any]) -> LogBlock:
    return LogBlock(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: json.dumps(avro)}, content)


def _attempt(decode: Callable[[], Any]) -> tuple[Any, TablekeeperError | None]:
    """What decoding gives, or one of the two errors that it may end with."""
    try:
        return decode(), None
    except (CorruptTableError, UnsupportedFeatureError) as error:
        return None, error


def _as_dicts(value: Any, arrow: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(arrow):
        return {key: _as_dicts(item, arrow.item_type) for key, item in value}
    if pa.types.is_list(arrow):
        return [_as_dicts(item, arrow.value_type) for item in value]
    if pa.types.is_struct(arrow):
        return {field.name: _as_dicts(value[field.name], field.type) for field in arrow}
    return value


@settings(deadline=None, max_examples=150)
@given(tables(types(), max_rows=25), st.data())
def test_a_mangled_block_gives_an_error_with_the_file_name_or_as_many_rows_as_it_says(
    table: pa.Table, data: st.DataObject
) -> None:
    avro = _avro(table.schema)
    content = data.draw(damage(encode_avro_block_content(table, avro)))
    decoded, error = _attempt(lambda: decode_avro_block(_block(content, avro), file=DAMAGED_FILE))
    if error is not None:
        assert DAMAGED_FILE in str(error)
    else:
        decoded.validate(full=True)
        assert decoded.num_rows == struct.unpack_from(">i", content, 4)[0]


@settings(deadline=None, max_examples=100)
@given(tables(types(), max_rows=20), st.data())
def test_a_block_that_is_cut_off_is_an_error(table: pa.Table, data: st.DataObject) -> None:
    avro = _avro(table.schema)
    content = encode_avro_block_content(table, avro)
    kept = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(CorruptTableError, match=DAMAGED_FILE):
        decode_avro_block(_block(content[:kept], avro), file=DAMAGED_FILE)


@settings(deadline=None, max_examples=300)
@given(tables(plain_types(), max_rows=1), st.integers(1, 20), st.data())
def test_a_mangled_record_is_an_error_or_reads_as_another_library_reads_it(
    table: pa.Table, copies: int, data: st.DataObject
) -> None:
    if not len(table):
        return
    avro = _avro(table.schema)
    record = data.draw(damage(encode_avro_block_content(table, avro)[12:]))
    offsets = np.arange(copies, dtype=np.int64) * len(record)
    lengths = np.full(copies, len(record), np.int64)
    many = memoryview(record * copies)
    decoded, error = _attempt(
        lambda: decode_avro_rows(many, offsets=offsets, lengths=lengths, schema=avro, file=DAMAGED_FILE)
    )
    if error is not None:
        assert isinstance(error, CorruptTableError)
        return
    stream = io.BytesIO(record)
    expected = fastavro.schemaless_reader(stream, fastavro.parse_schema(avro))
    assert stream.tell() == len(record)
    assert decoded.num_rows == copies
    for row in decoded.to_pylist():
        mine = {field.name: _as_dicts(row[field.name], field.type) for field in table.schema}
        # Compared as text, where a NaN equals itself.
        assert repr(mine) == repr(expected)


_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.sampled_from(["null", "int", "record", "array", "fixed", "x"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "name", "fields", "items", "values", "size", "logicalType", "precision", "scale"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(_JSON)
def test_any_json_as_a_schema_is_a_schema_or_one_clear_error(schema: Any) -> None:
    record = {"type": "record", "name": "r", "fields": [{"name": "a", "type": schema}]}
    for candidate in (schema, record, json.dumps(record)):
        decoded, error = _attempt(partial(avro_to_arrow_schema, candidate, file=DAMAGED_FILE))
        assert isinstance(decoded, pa.Schema) if error is None else DAMAGED_FILE in str(error)


@given(st.text(max_size=30))
def test_any_text_as_a_schema_is_one_clear_error(text: str) -> None:
    with pytest.raises(CorruptTableError, match=DAMAGED_FILE):
        avro_to_arrow_schema(text, file=DAMAGED_FILE)
