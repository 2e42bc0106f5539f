"""The file that makes a directory a partition: without it Java's listing does not see the directory."""

from __future__ import annotations

from dataclasses import dataclass

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.properties import decode_properties, encode_properties

__all__ = ["PARTITION_METADATA_NAME", "PartitionMetadata", "decode_partition_metadata", "encode_partition_metadata"]

PARTITION_METADATA_NAME = ".hoodie_partition_metadata"

_COMMIT_TIME = "commitTime"
_DEPTH = "partitionDepth"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Which action created the partition, and how many directories lie between it and the table."""

    commit_time: str
    depth: int


def encode_partition_metadata(*, commit_time: str, depth: int) -> bytes:
    """The file's bytes; `depth` is 0 for the base path of a table without partitions."""
    return encode_properties({_COMMIT_TIME: commit_time, _DEPTH: str(depth)}, comment="partition metadata")


def decode_partition_metadata(data: bytes, *, file: str) -> PartitionMetadata:
    """What the file says."""
    properties = decode_properties(data, file=file)
    depth = properties.get(_DEPTH, "").strip()
    if _COMMIT_TIME not in properties or not (depth.isascii() and depth.isdigit() and len(depth) < 10):
        raise CorruptTableError(file=file, reason=f"lacks {_COMMIT_TIME}, or {_DEPTH} as a number")
    return PartitionMetadata(properties[_COMMIT_TIME], int(depth))
