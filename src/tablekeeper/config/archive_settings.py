"""Settings of the archive, under the keys that Java users know and with Java's defaults.

Archiving beyond savepoints is refused: the savepointed commit stays first on the active timeline, and the readers of
Java Hudi 1.2.0 and hudi-rs 0.5 then take the archived commits behind it for uncommitted and leave their rows out.

The archive also has to know when files are cleaned and when compactions are due, because it must not take away what
these look for on the timeline; those keys belong to their services and are only read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tablekeeper.config.clean_settings import CleanSettings
from tablekeeper.config.keys import AUTOMATIC_ARCHIVE
from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.registry import Setting, Settings, group, setting
from tablekeeper.config.service_settings import CompactionSettings, CompactionTrigger
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["ArchiveSettings"]

_BEYOND_SAVEPOINT = Setting(
    "hoodie.archive.beyond.savepoint",
    False,
    "Only false: archiving stops at the first savepoint, because readers lose what is archived after one.",
)
_COUNTING_TRIGGERS = (CompactionTrigger.NUM_COMMITS, CompactionTrigger.NUM_AND_TIME)


@dataclass(frozen=True, slots=True)
class ArchiveSettings(Settings):
    """What is archived and how the archived timeline is kept.

    `clean` is what the next clean will look for on the timeline. `compact_after`: delta commits that must stay for a
    compaction to be triggered by their number, None if it is not.
    """

    keep_min: int = setting(
        "hoodie.keep.min.commits", 20, "Completed commits that an archive leaves on the active timeline.", least=1
    )
    keep_max: int = setting(
        "hoodie.keep.max.commits",
        30,
        "Completed commits on the active timeline from which on the oldest are archived.",
    )
    automatic: bool = setting(AUTOMATIC_ARCHIVE, True, "Archive after a commit, if inline services are enabled.")
    stop_at_clean: bool = setting(
        "hoodie.archive.block.on.latest.clean.ectr", False, "Keep every commit whose files the last clean retained."
    )
    row_group_instants: int = setting(
        "hoodie.commits.archival.batch", 10, "Instants in one row group of a file of the archived timeline.", least=1
    )
    merge_files: int = setting(
        "hoodie.timeline.compaction.batch.size",
        10,
        "Files of one layer of the archived timeline that are merged into one of the next.",
        least=2,
    )
    merge_max_bytes: int = setting(
        "hoodie.timeline.compaction.target.file.max.bytes",
        1000 * 1024 * 1024,
        "Most bytes of such files that are merged at a time.",
        least=1,
    )
    manifests_kept: int = setting(
        "hoodie.timeline.manifest.retained.versions",
        3,
        "Versions of the archived timeline that readers may still be using.",
        least=1,
    )
    keep_last_plans: bool = setting(
        "tablekeeper.archive.keep.last.plans",
        True,
        "Keep the last plan of each table service, from which the next is planned, up to twice the most commits.",
    )
    max_instants: int = setting(
        "tablekeeper.archive.max.instants",
        500,
        "Most instants that are archived under one hold of the table lock.",
        least=1,
    )
    clean: CleanSettings = group(CleanSettings)
    compact_after: int | None = 5
    metadata_compact_after: int = 10

    besides: ClassVar[tuple[Setting, ...]] = (_BEYOND_SAVEPOINT,)

    def _check(self) -> None:
        if self.keep_max <= self.keep_min:
            keys = (ArchiveSettings.key("keep_max"), ArchiveSettings.key("keep_min"))
            raise InvalidRequestError(
                f"option {keys[0]} ({self.keep_max}) must be greater than {keys[1]} ({self.keep_min}): raise it"
            )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        if _BEYOND_SAVEPOINT.read(options):
            raise UnsupportedFeatureError(
                f"option {_BEYOND_SAVEPOINT.name}: readers, Java's too, lose the rows of commits that are archived "
                "behind a savepoint. Delete the savepoint to archive what it holds back."
            )
        compaction = CompactionSettings.from_options(options)
        return cls(
            **cls.read(options),
            compact_after=compaction.max_delta_commits if compaction.trigger in _COUNTING_TRIGGERS else None,
            metadata_compact_after=MetadataSettings.from_options(options).compact_after,
        )

    def for_metadata_table(self) -> ArchiveSettings:
        """The settings for the timeline of the metadata table, which keeps one commit more than the table's."""
        return replace(
            self,
            keep_min=self.keep_min + 1,
            keep_max=self.keep_max + 1,
            keep_last_plans=False,
            stop_at_clean=False,
            compact_after=self.metadata_compact_after,
        )
