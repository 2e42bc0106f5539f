"""Key/value metadata in the footers of base files."""

from __future__ import annotations

import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import BaseFooter, decode_footer, encode_footer

__all__: list[str] = []

FILE = "p/f-0_0-0-0_1.parquet"


def test_a_footer_has_the_entries_that_java_looks_for() -> None:
    footer = encode_footer(avro_schema_json="{}", min_key="a", max_key="b", bloom=b"\x00\xff", bloom_type="SIMPLE")
    assert footer == {
        "parquet.avro.schema": "{}",
        "writer.model.name": "avro",
        "hoodie_min_record_key": "a",
        "hoodie_max_record_key": "b",
        "org.apache.hudi.bloomfilter": "AP8=",
        "hoodie_bloom_filter_type_code": "SIMPLE",
        "tablekeeper.bloomfilter.crc32": "6cdbfd72",
    }


def test_what_is_not_known_is_left_out() -> None:
    footer = encode_footer(avro_schema_json="{}", min_key=None, max_key=None, bloom=None, bloom_type="SIMPLE")
    assert set(footer) == {"parquet.avro.schema", "writer.model.name"}
    assert decode_footer({}, file=FILE) == BaseFooter()


def test_a_filter_without_a_type_is_a_simple_one() -> None:
    footer = decode_footer({b"com.uber.hoodie.bloomfilter": b"AP8="}, file=FILE)
    assert footer == BaseFooter(bloom=b"\x00\xff", bloom_type="SIMPLE")


@pytest.mark.parametrize(
    "metadata",
    [
        {b"org.apache.hudi.bloomfilter": b"AP8"},
        {b"org.apache.hudi.bloomfilter": b"A P 8="},
        {b"org.apache.hudi.bloomfilter": b"\xff"},
        {b"org.apache.hudi.bloomfilter": b"AP8=", b"tablekeeper.bloomfilter.crc32": b"6cdbfd73"},
        {b"hoodie_min_record_key": b"\xff"},
        {b"parquet.avro.schema": b"\xff"},
    ],
    ids=range(6),
)
def test_a_broken_footer_is_reported_with_the_file_name(metadata: dict[bytes, bytes]) -> None:
    with pytest.raises(CorruptTableError, match=FILE):
        decode_footer(metadata, file=FILE)
