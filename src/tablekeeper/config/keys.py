"""Names of options that other layers speak of, in messages or look-ups."""

from __future__ import annotations

__all__ = [
    "AUTOMATIC_ARCHIVE",
    "AUTOMATIC_CLEAN",
    "BLOCKS_SPECULATION",
    "BUCKET_COUNT",
    "INDEX_DROP",
    "INDEX_TYPE",
    "KEY_GENERATOR",
    "MAX_PARTITIONS",
    "MERGE_MODE",
    "METADATA_ENABLE",
    "SERVICES_ENABLED",
    "SORT_MODE",
    "WIDEN_TO_STRING",
]

INDEX_TYPE = "hoodie.index.type"
BUCKET_COUNT = "hoodie.bucket.index.num.buckets"
METADATA_ENABLE = "hoodie.metadata.enable"
MAX_PARTITIONS = "tablekeeper.write.max.partitions"
AUTOMATIC_CLEAN = "hoodie.clean.automatic"
AUTOMATIC_ARCHIVE = "hoodie.archive.automatic"
BLOCKS_SPECULATION = "hoodie.block.writes.on.speculative.execution"
SORT_MODE = "hoodie.bulkinsert.sort.mode"
WIDEN_TO_STRING = "tablekeeper.schema.widen.to.string"
INDEX_DROP = "tablekeeper.metadata.index.drop"
KEY_GENERATOR = "hoodie.table.keygenerator.type"
MERGE_MODE = "hoodie.record.merge.mode"
SERVICES_ENABLED = "hoodie.table.services.enabled"
