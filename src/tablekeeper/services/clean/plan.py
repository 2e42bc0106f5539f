"""Which files a clean deletes: a pure function of the timeline, the files and the settings.

The rules are Java's. By commits or hours there is an oldest retained commit; a file group keeps its newest slice, what
was written from that commit on, and the one slice before it that a read as of that commit sees. By file versions a
group keeps its newest slices. A replaced file group goes as a whole: once the commit that replaced it is older than the
oldest retained one, or at once by file versions. Logs go with their slice.

Whatever the policy, a slice stays if a savepoint names a file of it, or the pending plan of a table service needs it.
Java does not look at pending clusterings, and deletes a partition that holds nothing but replaced files even if a
savepoint names them; both stay here.
"""

from __future__ import annotations

import enum
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.model import BaseFile, FileGroupId, FileSlice, Instant, LogFile, RequestedTime
from tablekeeper.snapshot.retention import READABLE_FROM_KEY
from tablekeeper.snapshot.slices import ArchivedCompletion, PartitionFiles, SliceRules, plan_slices
from tablekeeper.timeline import Timeline

__all__ = [
    "BYTES_KEY",
    "MISSING_KEY",
    "PLANNED_ON_KEY",
    "SAVEPOINTS_KEY",
    "VERSIONS_KEY",
    "CleanDraft",
    "CleanView",
    "Fate",
    "Holds",
    "SliceVerdict",
    "plan_clean",
]

SAVEPOINTS_KEY = "savepointed_timestamps"
"""Java's key for the savepoints that a clean knew of: once one of them is deleted, all partitions are examined."""

MISSING_KEY = "tablekeeper.clean.missing"
"""Partitions with files that can be deleted once a pending plan or write has ended, as JSON."""

PLANNED_ON_KEY = "tablekeeper.clean.planned.on"
"""The newest completion time on the timeline on which the clean was planned."""

VERSIONS_KEY = "tablekeeper.clean.versions"
"""How many file versions the clean kept."""

BYTES_KEY = "tablekeeper.clean.bytes"
"""Bytes of the files in the plan."""


File = BaseFile | LogFile


class Fate(enum.Enum):
    """Why a slice stays or goes; the value says it in words."""

    NEWEST = "the newest version of its file group"
    IN_WINDOW = "written inside the retained window"
    WINDOW_START = "the last version from before the retained window"
    ENOUGH_VERSIONS = "one of the versions that are kept"
    REPLACED_IN_WINDOW = "replaced inside the retained window"
    SAVEPOINT = "protected by a savepoint"
    PLANNED = "needed by a pending plan"
    OLD = "older than the retained window"
    SURPLUS = "more versions than are kept"
    REPLACED = "replaced"

    @property
    def goes(self) -> bool:
        return self in _GOING


_GOING = frozenset({Fate.OLD, Fate.SURPLUS, Fate.REPLACED})


@dataclass(frozen=True, slots=True)
class SliceVerdict:
    """What becomes of one slice. `twins` are base files that another attempt of the same commit left beside its own.

    `readable_from`: reads as of this moment and later do not need the slice; None for the newest one.
    """

    file_slice: FileSlice
    fate: Fate
    twins: tuple[BaseFile, ...] = ()
    readable_from: RequestedTime | None = None

    @property
    def partition(self) -> str:
        return self.file_slice.group.partition

    @property
    def files(self) -> tuple[File, ...]:
        base = (self.file_slice.base,) if self.file_slice.base is not None else ()
        return (*base, *self.twins, *self.file_slice.logs)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Holds:
    """What must not be deleted, whatever its age.

    `savepointed` and `planned_files` are file names by partition. `planned_bases` has, for a file group with a pending
    compaction or log compaction, the base instant from which on its slices are kept besides.
    """

    savepointed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    planned_files: Mapping[str, frozenset[str]] = field(default_factory=dict)
    planned_bases: Mapping[FileGroupId, RequestedTime] = field(default_factory=dict)

    def is_planned_base(self, file_slice: FileSlice) -> bool:
        base = self.planned_bases.get(file_slice.group)
        return base is not None and file_slice.base_instant >= base

    def fate_of(self, file_slice: FileSlice, names: Iterable[str]) -> Fate | None:
        """Why the slice has to stay, None if it does not."""
        partition = file_slice.group.partition
        own = frozenset(names)
        if own & self.savepointed.get(partition, frozenset()):
            return Fate.SAVEPOINT
        if self.is_planned_base(file_slice) or own & self.planned_files.get(partition, frozenset()):
            return Fate.PLANNED
        return None


@dataclass(frozen=True)
class CleanView:
    """What a clean is planned on: the timeline, and the files of the partitions that are looked into.

    `earliest` is the oldest retained commit, None by file versions or where there is nothing to clean.
    `previous` is what the last clean retained from, None if there was none or it did not say.
    `replaced` has the newest replace commit of each hidden file group.
    """

    config: TableConfig
    timeline: Timeline
    earliest: Instant | None
    files: Mapping[str, PartitionFiles] = field(default_factory=dict)
    replaced: Mapping[FileGroupId, RequestedTime] = field(default_factory=dict)
    holds: Holds = Holds()
    savepoints: tuple[RequestedTime, ...] = ()
    previous: RequestedTime | None = None
    archived_completion: ArchivedCompletion = lambda _: None


@dataclass(frozen=True)
class CleanDraft:
    """A clean before it is published: what would go, and what would stay and why.

    `emptied` partitions hold nothing but files that go, and go as well. `withheld` ones have to stay for the moment.
    """

    settings: CleanSettings
    earliest: Instant | None
    verdicts: tuple[SliceVerdict, ...] = ()
    emptied: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    savepoints: tuple[RequestedTime, ...] = ()
    planned_on: str = ""
    last_completed: str = ""
    previous: RequestedTime | None = None

    @cached_property
    def going(self) -> tuple[SliceVerdict, ...]:
        return tuple(each for each in self.verdicts if each.fate.goes)

    @cached_property
    def files(self) -> dict[str, tuple[File, ...]]:
        """Files that go, by partition."""
        found: dict[str, list[File]] = defaultdict(list)
        for verdict in self.going:
            found[verdict.partition] += verdict.files
        return {partition: tuple(files) for partition, files in sorted(found.items())}

    @property
    def file_count(self) -> int:
        return sum(len(files) for files in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.going)

    @property
    def is_empty(self) -> bool:
        return not self.going and not self.emptied

    @property
    def missing(self) -> tuple[str, ...]:
        """Partitions to examine again, even if no commit touches them until then."""
        held = {each.partition for each in self.verdicts if each.fate is Fate.PLANNED}
        return tuple(sorted(held | set(self.withheld)))

    @property
    def retained(self) -> RequestedTime | None:
        """The time from which on everything can be read, never earlier than an earlier clean left it."""
        if self.earliest is None:
            return None
        return max(self.earliest.requested_at, self.previous or self.earliest.requested_at)

    @property
    def readable_from(self) -> str:
        """The earliest moment whose reads need none of the files that go; `""` if none go."""
        moments = [each.readable_from.value for each in self.going if each.readable_from is not None]
        return max(moments, default="")

    def without(self, holds: Holds) -> CleanDraft:
        """The draft without the files that these holds protect."""
        verdicts = tuple(_held(each, holds) for each in self.verdicts)
        spared = {each.partition for each in verdicts if not each.fate.goes}
        return replace(self, verdicts=verdicts, emptied=tuple(p for p in self.emptied if p not in spared))

    def keeping(self, partitions: Iterable[str]) -> CleanDraft:
        """The draft that keeps these partitions, even if they will be empty."""
        kept = [p for p in self.emptied if p in frozenset(partitions)]
        emptied = tuple(p for p in self.emptied if p not in kept)
        return replace(self, emptied=emptied, withheld=(*self.withheld, *kept))

    def extra_metadata(self, *, is_partitioned: bool) -> dict[str, str]:
        """The extra metadata of the plan. Java keeps it and understands the first entry."""
        savepoints = ",".join(each.value for each in self.savepoints) if is_partitioned else ""
        by_versions = self.settings.policy is CleanPolicy.VERSIONS
        entries = {
            SAVEPOINTS_KEY: savepoints,
            MISSING_KEY: json.dumps(self.missing) if self.missing else "",
            PLANNED_ON_KEY: self.planned_on,
            VERSIONS_KEY: str(self.settings.versions) if by_versions else "",
            READABLE_FROM_KEY: self.readable_from,
            BYTES_KEY: str(self.bytes),
        }
        return {key: value for key, value in entries.items() if value}


def plan_clean(view: CleanView, settings: CleanSettings) -> CleanDraft:
    """What a clean of the partitions in `view` would delete."""
    verdicts: list[SliceVerdict] = []
    emptied: list[str] = []
    judges = settings.policy is CleanPolicy.VERSIONS or view.earliest is not None
    for partition, files in sorted(view.files.items()) if judges else ():
        found = [*_judge_partition(files, view, settings)]
        verdicts += found
        gone = {file.name for verdict in found if verdict.fate.goes for file in verdict.files}
        there = {base.name for base in files.bases} | {log.name for log in files.logs}
        if partition and view.config.is_partitioned and there <= gone:
            emptied.append(partition)
    completions = [i.completed_at.value for i in view.timeline.completed_writes if i.completed_at is not None]
    writes = view.timeline.completed_writes
    return CleanDraft(
        settings=settings,
        earliest=view.earliest,
        verdicts=tuple(verdicts),
        emptied=tuple(emptied),
        savepoints=view.savepoints,
        planned_on=max(completions, default=""),
        last_completed=writes[-1].requested_at.value if writes else "",
        previous=view.previous,
    )


def _judge_partition(files: PartitionFiles, view: CleanView, settings: CleanSettings) -> Iterator[SliceVerdict]:
    rules = SliceRules(
        timeline=view.timeline,
        version=view.config.version,
        archived_completion=view.archived_completion,
        with_cdc=True,
    )
    bases: dict[tuple[FileGroupId, RequestedTime], list[BaseFile]] = defaultdict(list)
    for base in files.bases:
        bases[base.group, base.instant].append(base)
    for group, slices in plan_slices(files, rules).items():
        for verdict in _judge_group(group, slices, view, settings):
            chosen = verdict.file_slice.base
            twins = tuple(
                b for b in bases[group, verdict.file_slice.base_instant] if chosen is not None and b != chosen
            )
            yield _held(replace(verdict, twins=twins), view.holds)


def _judge_group(
    group: FileGroupId, slices: Sequence[FileSlice], view: CleanView, settings: CleanSettings
) -> Iterator[SliceVerdict]:
    replaced_at = view.replaced.get(group)
    if replaced_at is not None:
        in_window = view.earliest is not None and replaced_at >= view.earliest.requested_at
        fate = Fate.REPLACED_IN_WINDOW if in_window else Fate.REPLACED
        return (SliceVerdict(each, fate, readable_from=replaced_at) for each in slices)
    if settings.policy is CleanPolicy.VERSIONS:
        fates = _fates_by_versions(slices, view.holds, keep=settings.versions)
    else:
        fates = _fates_by_window(slices, view.earliest)
    newer = [None, *(each.base_instant for each in slices[:-1])]
    triples = zip(slices, fates, newer, strict=True)
    return (SliceVerdict(each, fate, readable_from=moment) for each, fate, moment in triples)


def _fates_by_window(slices: Sequence[FileSlice], earliest: Instant | None) -> list[Fate]:
    start = None if earliest is None else earliest.requested_at
    before = next((each.base_instant for each in slices if start is not None and each.base_instant < start), None)
    fates = []
    for index, each in enumerate(slices):
        if index == 0:
            fates.append(Fate.NEWEST)
        elif start is None or each.base_instant >= start:
            fates.append(Fate.IN_WINDOW)
        else:
            fates.append(Fate.WINDOW_START if each.base_instant == before else Fate.OLD)
    return fates


def _fates_by_versions(slices: Sequence[FileSlice], holds: Holds, *, keep: int) -> list[Fate]:
    """The slices that a pending compaction needs count as one version, as in Java."""
    left = keep - (1 if slices[0].group in holds.planned_bases else 0)
    fates = []
    for index, each in enumerate(slices):
        if holds.is_planned_base(each):
            fates.append(Fate.NEWEST if index == 0 else Fate.PLANNED)
        elif left > 0 or index == 0:
            fates.append(Fate.NEWEST if index == 0 else Fate.ENOUGH_VERSIONS)
            left -= 1
        else:
            fates.append(Fate.SURPLUS)
    return fates


def _held(verdict: SliceVerdict, holds: Holds) -> SliceVerdict:
    """The verdict, changed if the slice would go although something holds it."""
    if not verdict.fate.goes:
        return verdict
    fate = holds.fate_of(verdict.file_slice, (file.name for file in verdict.files))
    return verdict if fate is None else replace(verdict, fate=fate)
