"""Checks that a write fits the layout of the table, its index and its partitions, and creates partition directories.

Hudi stores nothing about the index with a table. A writer that does not know that a table has a bucket index, or
assumes another number of buckets, finds none of the keys and writes every row a second time. The names of the file
groups reveal a wrong index, and the rows of one file a wrong number of buckets.

No partition may lie inside another: a listing of directories stops at the first partition on the way down. Only values
with `/` in them, in a table whose paths are not URL-encoded, can make such paths (`a` and `a/b`). Rows of the inner
partition would be written and never found again.

Java does not see a partition without its metadata file. A write checks for the file while it is pending on the
timeline. A clean removes such a file only under the lock and while no write is pending, so that the file stays until
the write is over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tablekeeper.config.keys import BUCKET_COUNT, INDEX_TYPE
from tablekeeper.config.write_settings import IndexKind
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME, encode_partition_metadata
from tablekeeper.format.hashing import bucket_of_values
from tablekeeper.model import BaseFile, FileGroupId, FileSlice, LogFile, join_path
from tablekeeper.read.log_changes import load_log_keys
from tablekeeper.record.evolution import conform
from tablekeeper.record.keys import bucket_field_values
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.record.partition_paths import PartitionSpec
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.txn.commit import OpenWrite
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext

__all__ = [
    "PARTITIONS_TO_CHECK",
    "can_nest",
    "ensure_partitions",
    "look_like_buckets",
    "refuse_nested_partitions",
    "refuse_wrong_index",
]

PARTITIONS_TO_CHECK = 16
"""A table has one index: this many of its partitions are enough to find out which."""

_BUCKET_ID = re.compile(r"(\d{8})-")
# One random id in forty begins with eight digits; one in 400,000 with four zeros and four digits.
_LIKELY_BUCKETS = 10_000
_SAMPLED_ROWS = 64
# Blocks of a log are read whole.
_SAMPLED_LOG_BYTES = 1 << 20


def refuse_wrong_index(context: WriteContext, slices: Sequence[FileSlice]) -> None:
    """Raise `InvalidRequestError` if the slices, all of some partitions, cannot come from the configured index."""
    if not slices:
        return
    if context.settings.index is IndexKind.BUCKET:
        _refuse_wrong_buckets(context, slices)
        return
    if look_like_buckets(slices):
        raise InvalidRequestError(
            f"the file groups of this table are buckets ({slices[0].group.file_id}), but this writer has no bucket "
            f"index and would write every row a second time. Pass options={{'{INDEX_TYPE}': 'BUCKET', "
            f"'{BUCKET_COUNT}': …}} with the number of buckets that the table was made with."
        )


def look_like_buckets(slices: Sequence[FileSlice]) -> bool:
    """Whether the slices, all of some partitions, are named as a bucket index names them."""
    buckets = [_bucket(s.group) for s in slices]
    taken = Counter((s.group.partition, bucket) for s, bucket in zip(slices, buckets, strict=True))
    if any(bucket is None or bucket >= _LIKELY_BUCKETS for bucket in buckets):
        return False
    return max(taken.values(), default=0) == 1


def _refuse_wrong_buckets(context: WriteContext, slices: Sequence[FileSlice]) -> None:
    taken: dict[tuple[str, int], FileSlice] = {}
    for file_slice in slices:
        bucket = _bucket(file_slice.group)
        if bucket is None or bucket >= max(_LIKELY_BUCKETS, context.settings.buckets):
            raise InvalidRequestError(
                f"file group {file_slice.group} is no bucket: the table was written with another index. Leave out "
                f"{INDEX_TYPE}=BUCKET, with which every row would be written a second time."
            )
        if bucket >= context.settings.buckets:
            raise _wrong_count(context, f"file group {file_slice.group} is bucket {bucket}")
        other = taken.setdefault((file_slice.group.partition, bucket), file_slice)
        if other is not file_slice:
            raise InvalidRequestError(
                f"file groups {other.group} and {file_slice.group} are both bucket {bucket}, so it is unclear "
                "which of them a row belongs to. Delete or overwrite the partition, or cluster it with Java."
            )
    sampled = min((s for s in slices if s.base is not None), key=lambda s: s.size, default=None)
    if sampled is not None and sampled.base is not None:
        _refuse_wrong_hash(context, sampled.group, _base_values(context, sampled.base))
    elif not context.key.composite:
        # Writers that share buckets begin them with a log file.
        log = min((log for s in slices for log in s.logs), key=lambda log: log.size, default=None)
        if log is not None and log.size <= _SAMPLED_LOG_BYTES:
            _refuse_wrong_hash(context, log.group, _log_values(context, log))


def _base_values(context: WriteContext, base: BaseFile) -> list[pa.Array]:
    """The hashed values of some rows of a base file; empty if they are unknown."""
    names = {path if path in context.schema.names else path.split(".")[0] for path in context.key.fields}
    schema = pa.schema([field for field in context.schema if field.name in names])
    with context.store.storage.open_input(base.path) as stream:
        # Small buffered reads: a page of the key columns is enough.
        file = pq.ParquetFile(stream, buffer_size=1 << 16, pre_buffer=False)
        if not names <= set(file.schema_arrow.names):
            return []
        batch = next(file.iter_batches(batch_size=_SAMPLED_ROWS, columns=sorted(names)), None)
    if batch is None:
        return []
    return bucket_field_values(conform(batch, schema), context.settings.bucket_fields, key=context.key)


def _log_values(context: WriteContext, log: LogFile) -> list[pa.Array]:
    """The same for a log file and keys of one field, where the key is what is hashed."""
    types = pa.schema([(KEY_COLUMN, pa.string())])
    keys = load_log_keys(
        context.store.storage,
        [log],
        key=context.key,
        key_types=types,
        visibility=context.blocks,
        runtime=context.runtime,
    )
    return [pa.concat_arrays([each[:_SAMPLED_ROWS] for each in keys])] if keys else []


def _refuse_wrong_hash(context: WriteContext, group: FileGroupId, values: list[pa.Array]) -> None:
    """Rows of a file must hash to the bucket that it belongs to."""
    if not values:
        return
    found = bucket_of_values(values, buckets=context.settings.buckets)
    # Java splits keys at these characters, so such rows do not prove anything.
    texts = pc.binary_join_element_wise(*values, "/").to_pylist()
    plain = [text is not None and not any(mark in text for mark in ",:") for text in texts]
    strays = {int(bucket) for bucket, counts in zip(found, plain, strict=True) if counts} - {_bucket(group)}
    if strays:
        raise _wrong_count(context, f"file group {group} holds rows that hash to bucket {min(strays)} of that many")


def _wrong_count(context: WriteContext, evidence: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{BUCKET_COUNT} is {context.settings.buckets}, but {evidence}. Open the table with the "
        "number of buckets (and the hash fields) that it was made with."
    )


def _bucket(group: FileGroupId) -> int | None:
    found = _BUCKET_ID.match(group.file_id)
    return int(found[1]) if found else None


def can_nest(spec: PartitionSpec, schema: pa.Schema) -> bool:
    """Whether a value of a partition column can contain a `/` that creates a directory."""
    if spec.url_encode:
        return False
    kinds = [schema.field(field.name).type for field in spec.fields if field.name in schema.names]
    return len(kinds) < len(spec.fields) or any(pa.types.is_string(kind) for kind in kinds)


def refuse_nested_partitions(storage: Storage, partitions: Sequence[str], *, runtime: Runtime) -> list[str]:
    """Raise `InvalidRequestError` if one of these partitions lies inside another one, of these or of the table.

    Returns those that are not in the table yet.
    """
    among = set(partitions)
    for partition in partitions:
        for outer in _above(partition):
            if outer in among:
                raise _nested(inner=partition, outer=outer)
    is_new = runtime.threads.map(lambda partition: _refuse_nested(storage, partition), partitions)
    return [partition for partition, new in zip(partitions, is_new, strict=True) if new]


def _refuse_nested(storage: Storage, partition: str) -> bool:
    """Whether the partition is not in the table yet."""
    if storage.stat(join_path(partition, PARTITION_METADATA_NAME)) is not None:
        return False
    for outer in _above(partition):
        if storage.stat(join_path(outer, PARTITION_METADATA_NAME)) is not None:
            raise _nested(inner=partition, outer=outer)
    for directory in storage.list_directories(partition):
        for file in storage.walk(join_path(partition, directory)):
            if file.name == PARTITION_METADATA_NAME:
                raise _nested(inner=file.path.removesuffix(f"/{PARTITION_METADATA_NAME}"), outer=partition)
    return True


def _above(partition: str) -> list[str]:
    segments = partition.split("/")
    return ["/".join(segments[:depth]) for depth in range(1, len(segments))]


def _nested(*, inner: str, outer: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"partition {inner!r} would lie inside partition {outer!r}, where readers do not look for it. Change the "
        "value, or make the table with URL-encoded partition paths."
    )


def ensure_partitions(
    environment: TableEnvironment, write: OpenWrite, context: WriteContext, partitions: Sequence[str]
) -> None:
    """Create missing partition metadata files; `InvalidRequestError` if a partition would be inside another one."""
    if can_nest(context.partition, context.schema):
        partitions = refuse_nested_partitions(environment.storage, partitions, runtime=environment.runtime)
    storage = write.attempt.driver_storage(environment.storage)

    def ensure(partition: str) -> None:
        depth = partition.count("/") + 1 if partition else 0
        content = encode_partition_metadata(commit_time=write.inflight.requested_at.value, depth=depth)
        storage.put_if_absent(join_path(partition, PARTITION_METADATA_NAME), content)

    environment.runtime.threads.map(ensure, partitions)
