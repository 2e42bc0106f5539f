"""Java properties files and the table's checksum."""

from __future__ import annotations

import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import (
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)
from tablekeeper.format.properties import decode_properties, encode_properties, table_checksum, verify_checksum

__all__: list[str] = []

FILE = "t/.hoodie/table.properties"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\t=  b ", {"a": "b "}),
        ("  a = b = c", {"a": "b = c"}),
        ("a", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=1\ra=2\r\nb=3", {"a": "2", "b": "3"}),
        ("# a=1\n  ! b=2\nc=3", {"c": "3"}),
        ("a=1 # not a comment", {"a": "1 # not a comment"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# still the value", {"a": "b# still the value"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("a\\ b\\:c\\=d=e", {"a b:c=d": "e"}),
        ("a=\\u0041\\u00e9\\ud83d\\ude00", {"a": "Aé😀"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=b\\", {"a": "b"}),
        ("\\", {}),
        ("a=caf\xe9", {"a": "café"}),
        ("", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert decode_properties(text.encode("iso-8859-1"), file=FILE) == expected


def test_properties_are_written_as_java_stores_them() -> None:
    properties = {"b key": " leading", "a": "x=y:z#!", "c": "é😀\t\\"}
    assert encode_properties(properties, comment="two\nlines") == (
        b"#two\n#lines\na=x\\=y\\:z\\#\\!\nb\\ key=\\ leading\nc=\\u00E9\\uD83D\\uDE00\\t\\\\\n"
    )


@pytest.mark.parametrize("text", [b"a=\\u12", b"a=\\uxyzw", b"\\u=1", b"a=\\ud83d"])
def test_a_broken_escape_is_reported_with_the_file_name(text: bytes) -> None:
    with pytest.raises(CorruptTableError, match=FILE):
        decode_properties(text, file=FILE)


def test_the_checksum_is_the_one_that_java_computes() -> None:
    assert table_checksum(database="", table="t") == "498511606"
    assert table_checksum(database="default", table="v9_txns_cow_simple_meta") == "2985977913"


def test_a_wrong_checksum_is_refused_and_an_absent_one_accepted() -> None:
    verify_checksum(None, database="", table="t", file=FILE)
    verify_checksum("498511606", database="", table="t", file=FILE)
    with pytest.raises(CorruptTableError, match=FILE):
        verify_checksum("498511607", database="", table="t", file=FILE)


def test_partition_metadata_of_java_is_read() -> None:
    data = b"#partition metadata\n#Sat Jan 18 04:46:24 UTC 2025\ncommitTime=20250118044623136\npartitionDepth=2\n"
    assert decode_partition_metadata(data, file=FILE) == PartitionMetadata("20250118044623136", 2)


def test_partition_metadata_is_written_as_java_writes_it() -> None:
    data = encode_partition_metadata(commit_time="20250118044623136", depth=0)
    assert data == b"#partition metadata\ncommitTime=20250118044623136\npartitionDepth=0\n"


@pytest.mark.parametrize("data", [b"", b"commitTime=1", b"partitionDepth=1", b"commitTime=1\npartitionDepth=x"])
def test_incomplete_partition_metadata_is_reported_with_the_file_name(data: bytes) -> None:
    with pytest.raises(CorruptTableError, match=FILE):
        decode_partition_metadata(data, file=FILE)
