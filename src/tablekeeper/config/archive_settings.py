"""Settings of the archive, under the keys that Java users know and with Java's defaults.

Archiving beyond savepoints is refused: the savepointed commit stays first on the active timeline, and the readers of
Java Hudi 1.2.0 and hudi-rs 0.5 then take the archived commits behind it for uncommitted and leave their rows out.

The archive also has to know when files are cleaned and when compactions are due, because it must not take away what
these look for on the timeline; those keys belong to their services and are only read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tablekeeper.config.clean_settings import CleanSettings
from tablekeeper.config.keys import AUTOMATIC_ARCHIVE
from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.service_options import COMPACTION_KEYS, SERVICE_OPTIONS
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["ARCHIVE_OPTIONS", "ArchiveSettings"]

_KEEP_MIN = "hoodie.keep.min.commits"
_KEEP_MAX = "hoodie.keep.max.commits"
_BEYOND_SAVEPOINT = "hoodie.archive.beyond.savepoint"
_STOP_AT_CLEAN = "hoodie.archive.block.on.latest.clean.ectr"
_BATCH = "hoodie.commits.archival.batch"
_MERGE_FILES = "hoodie.timeline.compaction.batch.size"
_MERGE_BYTES = "hoodie.timeline.compaction.target.file.max.bytes"
_MANIFESTS = "hoodie.timeline.manifest.retained.versions"
_KEEP_PLANS = "tablekeeper.archive.keep.last.plans"
_RUN_INSTANTS = "tablekeeper.archive.max.instants"

_COUNTING_TRIGGERS = ("NUM_COMMITS", "NUM_AND_TIME")

ARCHIVE_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    (_KEEP_MAX, "30", int, "Completed commits on the active timeline from which on the oldest are archived."),
    (_KEEP_MIN, "20", int, "Completed commits that an archive leaves on the active timeline."),
    (AUTOMATIC_ARCHIVE, "true", bool, "Archive after a commit, where inline services are asked for."),
    (
        _BEYOND_SAVEPOINT,
        "false",
        bool,
        "Only false: archiving stops at the first savepoint, because readers lose what is archived behind one.",
    ),
    (_STOP_AT_CLEAN, "false", bool, "Keep every commit whose files the last clean retained."),
    (_BATCH, "10", int, "Instants in one row group of a file of the archived timeline."),
    (_MERGE_FILES, "10", int, "Files of one layer of the archived timeline that are merged into one of the next."),
    (_MERGE_BYTES, "1048576000", int, "Most bytes of such files that are merged at a time."),
    (_MANIFESTS, "3", int, "Versions of the archived timeline that readers may still be using."),
    (
        _KEEP_PLANS,
        "true",
        bool,
        "Keep the last plan of each table service, from which the next is planned, up to twice the most commits.",
    ),
    (_RUN_INSTANTS, "500", int, "Most instants that are archived under one hold of the table lock."),
)
"""Known options as (name, default, type, meaning)."""

_DEFAULTS = {name: default for name, default, _, _ in (*ARCHIVE_OPTIONS, *SERVICE_OPTIONS)}


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """What is archived and how the archived timeline is kept.

    `clean` is what the next clean will look for on the timeline. `compact_after`: delta commits that must stay for a
    compaction to be triggered by their number, None if it is not.
    """

    keep_min: int = 20
    keep_max: int = 30
    automatic: bool = True
    stop_at_clean: bool = False
    row_group_instants: int = 10
    merge_files: int = 10
    merge_max_bytes: int = 1000 * 1024 * 1024
    manifests_kept: int = 3
    keep_last_plans: bool = True
    max_instants: int = 500
    clean: CleanSettings = field(default_factory=CleanSettings)
    compact_after: int | None = 5
    metadata_compact_after: int = 10

    def __post_init__(self) -> None:
        for name, value, least in (
            (_KEEP_MIN, self.keep_min, 1),
            (_BATCH, self.row_group_instants, 1),
            (_MERGE_FILES, self.merge_files, 2),
            (_MERGE_BYTES, self.merge_max_bytes, 1),
            (_MANIFESTS, self.manifests_kept, 1),
            (_RUN_INSTANTS, self.max_instants, 1),
        ):
            if value < least:
                raise InvalidRequestError(f"option {name}: {value} is less than {least}")
        if self.keep_max <= self.keep_min:
            raise InvalidRequestError(
                f"option {_KEEP_MAX} ({self.keep_max}) must be greater than {_KEEP_MIN} ({self.keep_min}): raise it"
            )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ArchiveSettings:
        """From options by name; the defaults where they say nothing."""
        if _flag(options, _BEYOND_SAVEPOINT):
            raise UnsupportedFeatureError(
                f"option {_BEYOND_SAVEPOINT}: readers, Java's too, lose the rows of commits that are archived behind a "
                "savepoint. Delete the savepoint to archive what it holds back."
            )
        counts = _text(options, COMPACTION_KEYS.trigger).upper() in _COUNTING_TRIGGERS
        return cls(
            keep_min=_whole(options, _KEEP_MIN),
            keep_max=_whole(options, _KEEP_MAX),
            automatic=_flag(options, AUTOMATIC_ARCHIVE),
            stop_at_clean=_flag(options, _STOP_AT_CLEAN),
            row_group_instants=_whole(options, _BATCH),
            merge_files=_whole(options, _MERGE_FILES),
            merge_max_bytes=_whole(options, _MERGE_BYTES),
            manifests_kept=_whole(options, _MANIFESTS),
            keep_last_plans=_flag(options, _KEEP_PLANS),
            max_instants=_whole(options, _RUN_INSTANTS),
            clean=CleanSettings.from_options(options),
            compact_after=_whole(options, COMPACTION_KEYS.delta_commits) if counts else None,
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


def _text(options: Mapping[str, str], name: str) -> str:
    return options.get(name) or _DEFAULTS[name] or ""


def _whole(options: Mapping[str, str], name: str) -> int:
    text = _text(options, name)
    try:
        return int(text)
    except ValueError:
        raise InvalidRequestError(f"option {name}: {text!r} is not a whole number") from None


def _flag(options: Mapping[str, str], name: str) -> bool:
    return _text(options, name).lower() == "true"
