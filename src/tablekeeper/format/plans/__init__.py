"""Plans and results of table services: the contents of their requested and completed timeline files.

A plan says what will be done, and is published when an action is requested; the metadata says what was
done, and is published when it completes. Commit metadata, which completed compactions and clusterings
share with ordinary writes, is in `tablekeeper.format.commit_metadata`.

How a plan names files differs, because Java resolves them differently: compaction by file name inside the
partition, clustering, clean and rollback by full path.
"""

from tablekeeper.format.plans.clean import (
    CleanedPartition,
    CleanFile,
    CleanMetadata,
    CleanPlan,
    RetainedInstant,
    decode_clean_metadata,
    decode_clean_plan,
    encode_clean_metadata,
    encode_clean_plan,
)
from tablekeeper.format.plans.clustering import (
    ClusteringGroup,
    ClusteringPlan,
    RequestedReplaceMetadata,
    SliceInfo,
    decode_requested_replace_metadata,
    encode_requested_replace_metadata,
)
from tablekeeper.format.plans.compaction import (
    CompactionOperation,
    CompactionPlan,
    decode_compaction_plan,
    encode_compaction_plan,
)
from tablekeeper.format.plans.outline import decode_outline, decode_outline_note
from tablekeeper.format.plans.restore import (
    RestoreMetadata,
    RestorePlan,
    SavepointMetadata,
    decode_restore_metadata,
    decode_restore_plan,
    decode_savepoint_metadata,
    encode_restore_metadata,
    encode_restore_plan,
    encode_savepoint_metadata,
)
from tablekeeper.format.plans.rollback import (
    InstantInfo,
    RollbackMetadata,
    RollbackPlan,
    RollbackRequest,
    RolledBackPartition,
    decode_rollback_metadata,
    decode_rollback_plan,
    encode_rollback_metadata,
    encode_rollback_plan,
)

__all__ = [
    "CleanFile",
    "CleanMetadata",
    "CleanPlan",
    "CleanedPartition",
    "ClusteringGroup",
    "ClusteringPlan",
    "CompactionOperation",
    "CompactionPlan",
    "InstantInfo",
    "RequestedReplaceMetadata",
    "RestoreMetadata",
    "RestorePlan",
    "RetainedInstant",
    "RollbackMetadata",
    "RollbackPlan",
    "RollbackRequest",
    "RolledBackPartition",
    "SavepointMetadata",
    "SliceInfo",
    "decode_clean_metadata",
    "decode_clean_plan",
    "decode_compaction_plan",
    "decode_outline",
    "decode_outline_note",
    "decode_requested_replace_metadata",
    "decode_restore_metadata",
    "decode_restore_plan",
    "decode_rollback_metadata",
    "decode_rollback_plan",
    "decode_savepoint_metadata",
    "encode_clean_metadata",
    "encode_clean_plan",
    "encode_compaction_plan",
    "encode_requested_replace_metadata",
    "encode_restore_metadata",
    "encode_restore_plan",
    "encode_rollback_metadata",
    "encode_rollback_plan",
    "encode_savepoint_metadata",
]
