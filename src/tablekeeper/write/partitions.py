"""The partitions that a write needs: Java does not see one without its metadata file.

Whoever makes sure of that is pending on the timeline. A clean takes such a file away only under the lock and while
nobody writes, so that what is seen once stays until the write is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from tablekeeper.format.data_files import PARTITION_METADATA_NAME, encode_partition_metadata
from tablekeeper.model import join_path
from tablekeeper.txn.commit import OpenWrite
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.layout_checks import can_nest, refuse_nested_partitions

__all__ = ["ensure_partitions"]


def ensure_partitions(
    environment: TableEnvironment, write: OpenWrite, context: WriteContext, partitions: Sequence[str]
) -> None:
    """Put the metadata file where it is missing; `InvalidRequestError` if a partition would lie inside another one."""
    if can_nest(context.partition, context.schema):
        partitions = refuse_nested_partitions(environment.storage, partitions, runtime=environment.runtime)
    storage = write.attempt.driver_storage(environment.storage)

    def ensure(partition: str) -> None:
        depth = partition.count("/") + 1 if partition else 0
        content = encode_partition_metadata(commit_time=write.inflight.requested_at.value, depth=depth)
        storage.put_if_absent(join_path(partition, PARTITION_METADATA_NAME), content)

    environment.runtime.threads.map(ensure, partitions)
