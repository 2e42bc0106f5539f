"""Settings of the compaction of the metadata table: when it is compacted here, and whether at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tablekeeper.config.keys import METADATA_ENABLE
from tablekeeper.errors import InvalidRequestError

__all__ = ["METADATA_COMPACT", "METADATA_COMPACT_AFTER", "METADATA_OPTIONS", "MetadataSettings"]

METADATA_COMPACT_AFTER = "hoodie.metadata.compact.max.delta.commits"
METADATA_COMPACT = "tablekeeper.metadata.compact"

METADATA_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    (
        METADATA_COMPACT_AFTER,
        "10",
        int,
        "Delta commits of the metadata table after which a clean or an archive compacts it, as Java's writes do.",
    ),
    (METADATA_COMPACT, "true", bool, "Compact the metadata table and delete its old files; false leaves that to Java."),
)
"""Known options as (name, default, type, meaning)."""


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """`compact_after`: delta commits since the last compaction that make the next one due."""

    compact_after: int = 10
    is_enabled: bool = True

    def __post_init__(self) -> None:
        if self.compact_after < 1:
            raise InvalidRequestError(f"option {METADATA_COMPACT_AFTER}: {self.compact_after} is less than 1")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> MetadataSettings:
        """From options by name; the defaults where they say nothing. Who switches the metadata table off has none."""
        text = options.get(METADATA_COMPACT_AFTER) or "10"
        try:
            compact_after = int(text)
        except ValueError:
            raise InvalidRequestError(f"option {METADATA_COMPACT_AFTER}: {text!r} is not a whole number") from None
        flags = (options.get(name) or "true" for name in (METADATA_COMPACT, METADATA_ENABLE))
        return cls(compact_after, is_enabled=all(flag.lower() == "true" for flag in flags))
