"""Whatever rows Hudi can hold come back from Avro as they were, and another Avro library agrees about the bytes."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.format.avro_arrow import (
    META_COLUMNS,
    arrow_to_avro_schema,
    avro_to_arrow_schema,
    with_meta_columns,
    without_meta_columns,
)
from tablekeeper.format.avro_columnar import decode_avro_block, decode_avro_rows, encode_avro_block_content
from tablekeeper.format.log_blocks import BlockType, HeaderKey, LogBlock
from tests.support.avro_values import schemas, tables, types

__all__: list[str] = []


def _avro(schema: pa.Schema) -> dict[str, Any]:
    return arrow_to_avro_schema(schema, record_name="t_record", namespace="hoodie.t")


def _block(content: bytes, avro: dict[str, Any]) -> LogBlock:
    return LogBlock(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: json.dumps(avro)}, content)


def _records(content: bytes) -> list[bytes]:
    _version, count = struct.unpack_from(">ii", content)
    records, at = [], 8
    for _ in range(count):
        (length,) = struct.unpack_from(">i", content, at)
        records.append(content[at + 4 : at + 4 + length])
        at += 4 + length
    assert at == len(content)
    return records


def _as_fastavro_gives(value: Any, arrow: pa.DataType) -> Any:
    """Maps as dicts, which is the one difference between the two libraries' Python values."""
    if value is None:
        return None
    if pa.types.is_map(arrow):
        return {key: _as_fastavro_gives(item, arrow.item_type) for key, item in value}
    if pa.types.is_list(arrow):
        return [_as_fastavro_gives(item, arrow.value_type) for item in value]
    if pa.types.is_struct(arrow):
        return {field.name: _as_fastavro_gives(value[field.name], field.type) for field in arrow}
    return value


@given(schemas(types()))
def test_a_schema_comes_back_from_avro_as_it_was(schema: pa.Schema) -> None:
    avro = _avro(schema)
    fastavro.parse_schema(avro)
    assert avro_to_arrow_schema(avro, file="f").equals(schema)


@given(schemas(types()))
def test_meta_columns_come_first_and_can_be_taken_off_again(schema: pa.Schema) -> None:
    full = with_meta_columns(schema)
    assert tuple(full.names[:5]) == META_COLUMNS
    assert with_meta_columns(full).equals(full)
    assert without_meta_columns(full).equals(schema)


@settings(deadline=None, max_examples=150)
@given(tables(types()))
def test_rows_come_back_from_a_block_as_they_were(table: pa.Table) -> None:
    avro = _avro(table.schema)
    content = encode_avro_block_content(table, avro)
    decoded = decode_avro_block(_block(content, avro), file="f")
    decoded.validate(full=True)
    assert decoded.schema.equals(table.schema)
    assert decoded.equals(table)


@settings(deadline=None, max_examples=150)
@given(tables(types(), max_rows=6))
def test_fastavro_writes_the_same_bytes_and_reads_the_same_values(table: pa.Table) -> None:
    avro = _avro(table.schema)
    parsed = fastavro.parse_schema(avro)
    records = _records(encode_avro_block_content(table, avro))
    for record, row in zip(records, table.to_pylist(), strict=True):
        expected = {field.name: _as_fastavro_gives(row[field.name], field.type) for field in table.schema}
        assert fastavro.schemaless_reader(io.BytesIO(record), parsed) == expected
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, expected)
        assert stream.getvalue() == record


@settings(deadline=None, max_examples=60)
@given(tables(types()), st.data())
def test_chosen_columns_are_the_same_as_those_of_all_columns(table: pa.Table, data: st.DataObject) -> None:
    avro = _avro(table.schema)
    chosen = data.draw(st.sets(st.sampled_from([*table.column_names, "not_there"])))
    block = _block(encode_avro_block_content(table, avro), avro)
    decoded = decode_avro_block(block, file="f", columns=chosen)
    expected = table.select([name for name in table.column_names if name in chosen])
    assert decoded.num_rows == table.num_rows
    assert decoded.equals(expected)


@settings(deadline=None, max_examples=60)
@given(tables(types(), max_rows=30), st.randoms(use_true_random=False))
def test_records_are_decoded_in_the_order_asked_for(table: pa.Table, random: Any) -> None:
    avro = _avro(table.schema)
    content = encode_avro_block_content(table, avro)
    ends = np.cumsum([4 + len(record) for record in _records(content)], dtype=np.int64) + 8
    lengths = np.array([len(record) for record in _records(content)], np.int64)
    picks = [random.randrange(len(table)) for _ in range(2 * len(table))]
    decoded = decode_avro_rows(
        memoryview(content), offsets=(ends - lengths)[picks], lengths=lengths[picks], schema=avro, file="f"
    )
    assert decoded.equals(table.take(pa.array(picks, pa.int64())))


@settings(deadline=None, max_examples=60)
@given(tables(types()))
def test_decoded_rows_can_be_written_to_parquet(table: pa.Table) -> None:
    avro = _avro(table.schema)
    decoded = decode_avro_block(_block(encode_avro_block_content(table, avro), avro), file="f")
    sink = io.BytesIO()
    pq.write_table(decoded, sink)
    assert pq.read_table(io.BytesIO(sink.getvalue())).to_pylist() == table.to_pylist()


@settings(deadline=None, max_examples=60)
@given(tables(types()), st.integers(0, 50), st.integers(0, 50))
def test_slices_and_chunks_are_encoded_like_whole_tables(table: pa.Table, start: int, length: int) -> None:
    avro = _avro(table.schema)
    part = table.slice(start, length)
    fresh = pa.Table.from_pylist(part.to_pylist(), schema=table.schema)
    assert encode_avro_block_content(part, avro) == encode_avro_block_content(fresh, avro)
    doubled = pa.concat_tables([part, part])
    assert len(_records(encode_avro_block_content(doubled, avro))) == 2 * len(part)
