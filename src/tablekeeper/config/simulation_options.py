"""Options under which simulated processes work on a table: small numbers, so that every service soon has work."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["AT_ONCE", "INDEX_OPTIONS", "SIMULATION_OPTIONS", "TABLE_OPTIONS"]

SIMULATION_OPTIONS: Mapping[str, str] = {
    # In the store, with a lease that lapses: the lock inside one process would outlive simulated deaths.
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.write.lock.wait_time_ms": "100000000",
    "hoodie.clean.commits.retained": "2",
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.compact.inline.max.delta.commits": "2",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.metadata.compact.max.delta.commits": "4",
    # New keys make new file groups, so that there is something to cluster.
    "hoodie.parquet.small.file.limit": "0",
}

INDEX_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "simple": {},
    "record": {
        "hoodie.index.type": "RECORD_INDEX",
        "hoodie.metadata.record.index.min.filegroup.count": "2",
    },
    "bucket": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
}
"""What a table is made with, by the index of its shape."""

TABLE_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "": {},
    # Inserts go into base files that are there.
    "small files": {"hoodie.parquet.small.file.limit": "104857600"},
    "by completion": {
        "hoodie.write.lock.conflict.resolution.strategy": (
            "org.apache.hudi.client.transaction.EndTimestampBasedConcurrentFileWritesConflictResolutionStrategy"
        )
    },
}
"""What some tables are made with besides, by name."""

AT_ONCE: Mapping[str, str] = {"hoodie.table.service.rollback.delay.minutes": "0"}
"""For a clean that removes mutable plans at once."""
