"""Data blocks of log files, those that Java wrote among them."""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.avro_arrow import (
    META_COLUMNS,
    arrow_to_avro_schema,
    avro_to_arrow_schema,
    with_meta_columns,
)
from tablekeeper.format.avro_columnar import decode_avro_block, encode_avro_block_content
from tablekeeper.format.data_files import decode_log_name
from tablekeeper.format.log_blocks import BlockType, HeaderKey, LogBlock, decode_blocks
from tablekeeper.format.log_data import (
    decode_parquet_block,
    encode_parquet_block_content,
)
from tablekeeper.format.log_deletes import decode_deletes

__all__: list[str] = []

DATA = Path(__file__).parent / "data"
GOLDEN = Path(__file__).parents[1] / "golden" / "tables"
FILE = ".f_001.log.1_0-0-0"


def _data_block(name: str, block_type: BlockType) -> LogBlock:
    blocks = decode_blocks((DATA / name).read_bytes(), file=name)
    (block,) = (block for block in blocks if block.type is block_type)
    return block


@pytest.fixture
def avro_block() -> LogBlock:
    return _data_block("java_all_types_avro.log", BlockType.AVRO_DATA)


@pytest.fixture
def parquet_block() -> LogBlock:
    return _data_block("java_all_types_parquet.log", BlockType.PARQUET_DATA)


def _as_spark_prints(value: Any, arrow: pa.DataType) -> Any:
    """A value the way Spark's JSON shows it: no nulls in structs, milliseconds, binary in Base64."""
    if pa.types.is_struct(arrow):
        pairs = [
            (field.name, _as_spark_prints(value[field.name], field.type))
            for field in arrow
            if value[field.name] is not None
        ]
        return dict(pairs)
    if pa.types.is_map(arrow):
        return {key: None if item is None else _as_spark_prints(item, arrow.item_type) for key, item in value}
    if pa.types.is_list(arrow):
        return [_as_spark_prints(item, arrow.value_type) for item in value]
    if pa.types.is_timestamp(arrow):
        text = value.isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    if pa.types.is_binary(arrow):
        return base64.b64encode(value).decode()
    return str(value) if pa.types.is_date(arrow) else float(value) if pa.types.is_decimal(arrow) else value


def _spark_rows(table: pa.Table) -> list[dict[str, Any]]:
    arrow = pa.struct(list(table.schema))
    return [_as_spark_prints(row, arrow) for row in table.sort_by("id").to_pylist()]


def test_an_avro_block_of_java_has_the_rows_that_spark_reads(avro_block: LogBlock) -> None:
    table = decode_avro_block(avro_block, file=FILE)
    assert table.schema.equals(avro_to_arrow_schema(avro_block.header[HeaderKey.SCHEMA], file=FILE))
    # Single precision is printed in its own shortest form by Spark.
    table = table.set_column(
        table.column_names.index("f"), "f", pc.cast(pc.cast(table["f"], pa.string()), pa.float64())
    )
    lines = (DATA / "java_all_types_rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert _spark_rows(table) == [json.loads(line) for line in lines]


def test_an_avro_block_of_java_is_encoded_to_the_same_bytes(avro_block: LogBlock) -> None:
    table = decode_avro_block(avro_block, file=FILE)
    assert encode_avro_block_content(table, avro_block.header[HeaderKey.SCHEMA]) == avro_block.content


def test_the_schema_of_a_java_block_is_what_we_would_write(avro_block: LogBlock) -> None:
    java = json.loads(avro_block.header[HeaderKey.SCHEMA])
    for field in java["fields"]:
        field.pop("doc", None)
    arrow = avro_to_arrow_schema(java, file=FILE)
    assert arrow_to_avro_schema(arrow, record_name=java["name"], namespace=java["namespace"]) == java


def test_a_parquet_block_of_java_has_the_same_rows_as_its_avro_block(
    avro_block: LogBlock, parquet_block: LogBlock
) -> None:
    avro = decode_avro_block(avro_block, file=FILE).drop(list(META_COLUMNS)).sort_by("id")
    parquet = decode_parquet_block(parquet_block, file=FILE).drop(list(META_COLUMNS)).sort_by("id")
    assert parquet.num_rows == 36
    assert parquet.to_pylist() == avro.to_pylist()


def test_columns_of_a_parquet_block_can_be_chosen(parquet_block: LogBlock) -> None:
    table = decode_parquet_block(parquet_block, file=FILE, columns=["id", "not_there", "_hoodie_record_key"])
    assert table.column_names == ["_hoodie_record_key", "id"]
    assert table["_hoodie_record_key"].to_pylist() == [str(key) for key in table["id"].to_pylist()]


def test_a_parquet_block_comes_back_as_it_was_and_carries_its_avro_schema() -> None:
    table = pa.table(
        {"id": [1, 2], "tags": [["a"], None], "m": pa.array([None, [("k", 1)]], pa.map_("string", "int64"))}
    )
    full = with_meta_columns(table.schema)
    avro = json.dumps(arrow_to_avro_schema(full, record_name="t_record", namespace="hoodie.t"))
    content = encode_parquet_block_content(table, avro_schema_json=avro)
    block = LogBlock(BlockType.PARQUET_DATA, {}, memoryview(content))
    decoded = decode_parquet_block(block, file=FILE)
    assert decoded.equals(table)
    parquet = pq.ParquetFile(pa.BufferReader(content))
    assert parquet.metadata.metadata[b"parquet.avro.schema"] == avro.encode()
    assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_flipped_bit_in_a_page_of_a_parquet_block_is_noticed() -> None:
    table = pa.table({"id": list(range(2000))})
    content = bytearray(encode_parquet_block_content(table, avro_schema_json="{}"))
    content[200] ^= 0x10
    with pytest.raises(CorruptTableError, match="Parquet block at byte 0") as caught:
        decode_parquet_block(LogBlock(BlockType.PARQUET_DATA, {}, bytes(content)), file=FILE)
    assert caught.value.file == FILE


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 30 + b"PAR1", b"x" * 100])
def test_content_that_is_no_parquet_file_is_reported_with_the_file(content: bytes) -> None:
    with pytest.raises(CorruptTableError, match="Parquet block"):
        decode_parquet_block(LogBlock(BlockType.PARQUET_DATA, {}, content), file=FILE)


def test_a_block_of_another_type_is_not_decoded() -> None:
    with pytest.raises(ValueError, match="DELETE"):
        decode_parquet_block(LogBlock(BlockType.DELETE, {}, b""), file=FILE)
    with pytest.raises(ValueError, match="DELETE"):
        decode_avro_block(LogBlock(BlockType.DELETE, {}, b""), file=FILE)


def _golden_logs() -> Iterator[tuple[str, bytes]]:
    for path in sorted(GOLDEN.glob("mor_*.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if decode_log_name(name.rsplit("/", 1)[-1]) is not None and "/.hoodie/metadata/" not in name:
                    yield f"{path.stem}/{name}", archive.read(name)


def test_every_log_file_of_the_golden_tables_decodes_and_encodes_to_the_same_bytes() -> None:
    counts = {BlockType.AVRO_DATA: 0, BlockType.PARQUET_DATA: 0, BlockType.DELETE: 0}
    for name, data in _golden_logs():
        for block in decode_blocks(data, file=name):
            counts[block.type] += 1
            if block.type is BlockType.DELETE:
                assert decode_deletes(block, file=name).num_rows > 0
                continue
            schema = block.header[HeaderKey.SCHEMA]
            arrow = avro_to_arrow_schema(schema, file=name)
            decode = decode_avro_block if block.type is BlockType.AVRO_DATA else decode_parquet_block
            table = decode(block, file=name)
            assert table.num_rows > 0
            assert table.schema.names == arrow.names
            if block.type is BlockType.AVRO_DATA:
                assert encode_avro_block_content(table, schema) == block.content
    assert counts == {BlockType.AVRO_DATA: 14, BlockType.PARQUET_DATA: 3, BlockType.DELETE: 9}
