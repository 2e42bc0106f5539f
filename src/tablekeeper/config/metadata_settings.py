"""Settings of the metadata table: whether it is kept at all, and when it is compacted here."""

from __future__ import annotations

from dataclasses import dataclass

from tablekeeper.config.keys import METADATA_ENABLE
from tablekeeper.config.registry import Settings, setting

__all__ = ["MetadataSettings"]


@dataclass(frozen=True, slots=True)
class MetadataSettings(Settings):
    """`compact_after`: delta commits since the last compaction that make the next one due."""

    compact_after: int = setting(
        "hoodie.metadata.compact.max.delta.commits",
        10,
        "Delta commits of the metadata table after which a clean or an archive compacts it, as Java's writes do.",
        least=1,
    )
    compacts: bool = setting(
        "tablekeeper.metadata.compact",
        True,
        "Compact the metadata table and delete its old files; false leaves that to Java.",
    )
    keeps_table: bool = setting(METADATA_ENABLE, True, "Keep the metadata table in step; false switches it off.")

    @property
    def is_enabled(self) -> bool:
        """Whether it is compacted here. Who switches the metadata table off has none."""
        return self.compacts and self.keeps_table
