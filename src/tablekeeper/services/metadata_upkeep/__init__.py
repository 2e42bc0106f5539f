"""Upkeep of the metadata table: its logs are merged into new base files, and files that nobody reads any more go.

`plan.py` decides what is merged and what is old, `execute.py` does it, `result.py` tells of it. The timeline of the
metadata table is archived by `services/archive`, together with that of the table.
"""

from tablekeeper.services.metadata_upkeep.execute import explain_metadata_upkeep, keep_metadata_table
from tablekeeper.services.metadata_upkeep.plan import (
    Merge,
    MetadataState,
    choose_time,
    last_compaction,
    plan_merge,
    plan_old_files,
    uncompacted_commits,
)
from tablekeeper.services.metadata_upkeep.result import MetadataUpkeep

__all__ = [
    "Merge",
    "MetadataState",
    "MetadataUpkeep",
    "choose_time",
    "explain_metadata_upkeep",
    "keep_metadata_table",
    "last_compaction",
    "plan_merge",
    "plan_old_files",
    "uncompacted_commits",
]
