"""No partition inside another: whoever lists directories stops at the first partition on the way down.

Only values with `/` in them, in a table whose paths are not URL-encoded, can make such paths (`a` and `a/b`).
Rows of the inner partition would be written and never found again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.partition_metadata import PARTITION_METADATA_NAME
from tablekeeper.model import join_path
from tablekeeper.record.partition_paths import PartitionSpec
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage

__all__ = ["can_nest", "refuse_nested_partitions"]


def can_nest(spec: PartitionSpec, schema: pa.Schema) -> bool:
    """Whether a value of a partition column can hold a `/` that makes a directory."""
    if spec.url_encode:
        return False
    kinds = [schema.field(field.name).type for field in spec.fields if field.name in schema.names]
    return len(kinds) < len(spec.fields) or any(pa.types.is_string(kind) for kind in kinds)


def refuse_nested_partitions(storage: Storage, partitions: Sequence[str], *, runtime: Runtime) -> None:
    """Raise `InvalidRequestError` if one of these partitions lies inside another one, of these or of the table."""
    among = set(partitions)
    for partition in partitions:
        for outer in _above(partition):
            if outer in among:
                raise _nested(inner=partition, outer=outer)
    runtime.threads.map(lambda partition: _refuse_nested(storage, partition), partitions)


def _refuse_nested(storage: Storage, partition: str) -> None:
    if storage.stat(join_path(partition, PARTITION_METADATA_NAME)) is not None:
        return
    for outer in _above(partition):
        if storage.stat(join_path(outer, PARTITION_METADATA_NAME)) is not None:
            raise _nested(inner=partition, outer=outer)
    for directory in storage.list_directories(partition):
        for file in storage.walk(join_path(partition, directory)):
            if file.name == PARTITION_METADATA_NAME:
                raise _nested(inner=file.path.removesuffix(f"/{PARTITION_METADATA_NAME}"), outer=partition)


def _above(partition: str) -> list[str]:
    segments = partition.split("/")
    return ["/".join(segments[:depth]) for depth in range(1, len(segments))]


def _nested(*, inner: str, outer: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"partition {inner!r} would lie inside partition {outer!r}, where readers do not look for it. Change the "
        "value, or make the table with URL-encoded partition paths."
    )
