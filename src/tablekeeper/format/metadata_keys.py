"""Keys of the metadata table: what a record is found by, and which file group of its partition holds it.

Keys of statistics and bloom filters are hashes, of the column, the partition path and the file name, one behind the
other: all statistics of a column in a partition lie beside each other.
"""

from __future__ import annotations

import base64
import functools
import operator
from collections.abc import Sequence

from tablekeeper.format.hashing import md5_key, xxhash64_key

__all__ = [
    "bloom_filter_key",
    "column_stats_key",
    "metadata_file_group_index",
    "metadata_partition_name",
    "partition_stats_key",
    "table_partition_path",
]

_NON_PARTITIONED = "."


def metadata_partition_name(partition: str) -> str:
    """How the metadata table names a partition path: `.` stands for the empty one."""
    return partition or _NON_PARTITIONED


def table_partition_path(name: str) -> str:
    """The partition path behind a name in the metadata table."""
    return "" if name == _NON_PARTITIONED else name


def column_stats_key(*, partition: str, file_name: str, column: str) -> str:
    """Key of the statistics of `column` in one file."""
    return partition_stats_key(partition=partition, column=column) + _file_digest(file_name)


def partition_stats_key(*, partition: str, column: str) -> str:
    """Key of the statistics of `column` in one partition, and prefix of those of its files."""
    return _hash64(column) + _hash64(metadata_partition_name(partition))


def bloom_filter_key(*, partition: str, file_name: str) -> str:
    """Key of the bloom filter of one base file."""
    return _hash64(metadata_partition_name(partition)) + _file_digest(file_name)


def metadata_file_group_index(key: str, *, groups: int) -> int:
    """Which of a metadata partition's `groups` file groups holds `key` (Java's string hash)."""
    if groups < 1:
        raise ValueError("a metadata partition has at least one file group")
    units = key.encode("utf-16-le") if not key.isascii() else None
    values: Sequence[int] = key.encode() if units is None else memoryview(units).cast("H")
    value: int = sum(map(operator.mul, values, _hash_powers(len(values)))) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    # Java's abs leaves the smallest int negative, and its remainder keeps the sign; the outer abs corrects that.
    return abs(signed) % groups


@functools.lru_cache(maxsize=64)
def _file_digest(file_name: str) -> str:
    """Kept for a moment: the keys of all columns of a file are made one after the other."""
    return base64.b64encode(md5_key(file_name)).decode()


@functools.lru_cache(maxsize=4096)
def _hash64(text: str) -> str:
    return base64.b64encode(xxhash64_key(text)).decode()


@functools.lru_cache(maxsize=256)
def _hash_powers(length: int) -> tuple[int, ...]:
    """What each character of a text of this length counts in Java's string hash."""
    return tuple(pow(31, length - 1 - position, 1 << 32) for position in range(length))
