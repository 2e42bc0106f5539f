"""Loads what a clean is planned on, at a cost that depends on the partitions touched since the last clean.

Which partitions those are follows from the last completed clean. A slice becomes due only if a newer one, or a replace
commit, moved out of the retained window since then: the writes between the two oldest retained commits, and older ones
that completed only after the last clean was planned. Partitions in which the last clean had to leave something are
examined again. If that is not enough (no clean yet, its window archived, a savepoint deleted, fewer versions to keep
than before, hidden file groups that became visible again), all partitions are listed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import NotFoundError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.format.plans import (
    CleanMetadata,
    decode_rollback_metadata,
)
from tablekeeper.metadata_table.listing import MetadataTable, open_metadata_table
from tablekeeper.model import (
    Action,
    CommitMetadata,
    CompletionTime,
    FileGroupId,
    Instant,
    Operation,
    RequestedTime,
)
from tablekeeper.services.clean.plan import (
    MISSING_KEY,
    PLANNED_ON_KEY,
    SAVEPOINTS_KEY,
    VERSIONS_KEY,
    CleanView,
    Holds,
)
from tablekeeper.snapshot.retention import plan_retained
from tablekeeper.snapshot.slices import decode_partition_files, load_all_files_by_listing, load_files_by_listing
from tablekeeper.timeline import Timeline, instant_path, load_commit_metadata, load_content, load_timeline
from tablekeeper.timeline.history import archived_completions
from tablekeeper.timeline.plans import load_clean_metadata, load_plan
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.savepoints import load_savepoint_if_there, savepoints_of

__all__ = ["LastClean", "Scope", "find_last_clean", "load_holds", "load_last_clean", "load_view", "plan_scope"]

_ONLY_UPDATES_LEAVE_WORK = frozenset({Operation.INSERT, Operation.UPSERT, Operation.BULK_INSERT})

Files = Mapping[str, list[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class LastClean:
    """The newest completed clean and what it says about itself."""

    instant: Instant
    metadata: CleanMetadata

    @property
    def retained(self) -> RequestedTime | None:
        text = self.metadata.earliest_commit_to_retain or ""
        return RequestedTime(text) if text.isascii() and text.isdigit() else None

    @property
    def planned_on(self) -> CompletionTime:
        """The clean has not seen what completed later. A clean by Java records no better time than its own."""
        text = self.metadata.extra_metadata.get(PLANNED_ON_KEY, "")
        return CompletionTime(text if text.isascii() and text.isdigit() else self.instant.requested_at.value)

    @property
    def savepoints(self) -> frozenset[str]:
        return frozenset(filter(None, self.metadata.extra_metadata.get(SAVEPOINTS_KEY, "").split(",")))

    @property
    def missing(self) -> frozenset[str]:
        try:
            return frozenset(json.loads(self.metadata.extra_metadata.get(MISSING_KEY, "[]")))
        except ValueError:
            return frozenset()

    @property
    def versions(self) -> int | None:
        """How many versions it kept; None if it kept commits, or is Java's."""
        text = self.metadata.extra_metadata.get(VERSIONS_KEY, "")
        return int(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which partitions are examined: all of them (`instants` is None), or those that some instants touched."""

    reason: str
    instants: tuple[Instant, ...] | None = None
    also: frozenset[str] = field(default_factory=frozenset)


def load_view(environment: TableEnvironment, settings: CleanSettings) -> tuple[CleanView, Scope]:
    """The table as it is now, as far as a clean with these settings needs to see it."""
    storage, runtime = environment.storage, environment.runtime
    config = load_table_config(storage)
    timeline = load_timeline(storage, config)
    last = load_last_clean(environment, timeline)
    previous = last.retained if last is not None else None
    earliest = plan_retained(
        timeline, settings, now_ms=runtime.clock.now_ms(), zone=config.time_zone, previous=previous
    )
    scope = plan_scope(timeline, settings, earliest=earliest, last=last)
    if scope.instants is not None and last is not None and _groups_came_back(environment, timeline, last):
        scope = Scope("a restore, or the rollback of a replace commit, brought file groups back since the last clean")
    files = _load_files(environment, config, timeline, _load_partitions(environment, scope))
    savepoints = savepoints_of(timeline)
    plans = timeline.pending_plans
    view = CleanView(
        config=config,
        timeline=timeline,
        earliest=earliest,
        files={partition: decode_partition_files(partition, found) for partition, found in files.items()},
        replaced=_load_replaced(environment, timeline) if files else {},
        holds=load_holds(environment, savepoints=savepoints, plans=plans) if files else Holds(),
        savepoints=tuple(i.requested_at for i in savepoints),
        previous=previous,
        archived_completion=archived_completions(storage, config),
    )
    return view, scope


def plan_scope(
    timeline: Timeline, settings: CleanSettings, *, earliest: Instant | None, last: LastClean | None
) -> Scope:
    """Where there may be something to clean."""
    by_versions = settings.policy is CleanPolicy.VERSIONS
    if not by_versions and earliest is None:
        return Scope("there are no commits beyond those that are kept", instants=())
    why_all = _why_all(timeline, settings, last)
    if last is None or why_all:
        return Scope(why_all)
    late = [i for i in timeline.completed_writes if i.completed_at is not None and i.completed_at > last.planned_on]
    if by_versions:
        return Scope(f"touched since the clean {last.instant.requested_at}", tuple(late), last.missing)
    window = [
        i
        for i in timeline.completed_writes
        if earliest is not None
        and i.requested_at < earliest.requested_at
        and ((last.retained is not None and i.requested_at >= last.retained) or i in late)
    ]
    return Scope(f"touched by commits that left the window since {last.retained}", tuple(window), last.missing)


def _why_all(timeline: Timeline, settings: CleanSettings, last: LastClean | None) -> str:
    """Why all partitions have to be examined; `""` if they do not."""
    if not settings.incremental or last is None:
        off = "incremental planning is switched off"
        return "there is no completed clean on the timeline" if settings.incremental else off
    if last.savepoints - {i.requested_at.value for i in savepoints_of(timeline)}:
        return "a savepoint that the last clean spared has been deleted"
    if settings.policy is CleanPolicy.VERSIONS and (last.versions is None or last.versions > settings.versions):
        return "the last clean did not keep as few file versions"
    since = last.instant.requested_at if settings.policy is CleanPolicy.VERSIONS else last.retained
    if since is None:
        return "the last clean does not say which commits it retained"
    return (
        f"commits since {since}, from where the last clean goes on, are archived" if timeline.is_archived(since) else ""
    )


def find_last_clean(timeline: Timeline) -> Instant | None:
    """The newest completed clean."""
    return next((i for i in reversed(timeline.completed) if i.action is Action.CLEAN), None)


def load_last_clean(environment: TableEnvironment, timeline: Timeline) -> LastClean | None:
    """The newest completed clean with its metadata."""
    instant = find_last_clean(timeline)
    if instant is None:
        return None
    return LastClean(instant, load_clean_metadata(environment.storage, environment.config, instant))


def load_holds(environment: TableEnvironment, *, savepoints: Iterable[Instant], plans: Iterable[Instant]) -> Holds:
    """What these savepoints and pending plans of table services need."""
    saved: dict[str, set[str]] = defaultdict(set)
    for savepoint in savepoints:
        metadata = load_savepoint_if_there(environment.storage, environment.config, savepoint)
        for partition, names in metadata.files.items() if metadata is not None else ():
            saved[partition].update(names)
    files: dict[str, set[str]] = defaultdict(set)
    bases: dict[FileGroupId, RequestedTime] = {}
    for plan in plans:
        _load_plan(environment, plan, files, bases)
    return Holds(
        savepointed={partition: frozenset(names) for partition, names in saved.items()},
        planned_files={partition: frozenset(names) for partition, names in files.items()},
        planned_bases=bases,
    )


def _load_plan(
    environment: TableEnvironment, plan: Instant, files: dict[str, set[str]], bases: dict[FileGroupId, RequestedTime]
) -> None:
    """Add what a pending plan needs; nothing if it has been rolled back since the timeline was listed."""
    try:
        slices = [
            each for work in load_plan(environment.storage, environment.config, plan).work for each in work.slices
        ]
    except NotFoundError:
        return
    for each in slices:
        if plan.action is not Action.CLUSTERING:
            bases[each.group] = min(each.base_instant, bases.get(each.group, each.base_instant))
        # The base instant is not enough: a slice of logs is named after the oldest, which may be newer than the plan.
        files[each.group.partition].update(log.name for log in each.logs)
        if each.base is not None:
            files[each.group.partition].add(each.base.name)


def _groups_came_back(environment: TableEnvironment, timeline: Timeline, last: LastClean) -> bool:
    """Whether replaced file groups may be visible again, with old slices that were kept while they were hidden."""
    for instant in timeline.completed:
        if instant.completed_at is None or instant.completed_at <= last.planned_on:
            continue
        if instant.action is Action.RESTORE:
            return True
        if instant.action is Action.ROLLBACK:
            content = load_content(environment.storage, environment.config, instant)
            metadata = decode_rollback_metadata(content, file=instant_path(environment.config, instant))
            if any(info.action == Action.REPLACE_COMMIT.value for info in metadata.instants):
                return True
    return False


def _load_partitions(environment: TableEnvironment, scope: Scope) -> list[str] | None:
    """The partitions of the scope, None for all."""
    if scope.instants is None:
        return None
    read = partial(load_commit_metadata, environment.storage, environment.config)
    touched = set(scope.also)
    loaded = environment.runtime.threads.map(read, scope.instants)
    for instant, metadata in zip(scope.instants, loaded, strict=True):
        touched |= _left_work_in(environment.config, instant, metadata)
    return sorted(touched)


def _left_work_in(config: TableConfig, instant: Instant, metadata: CommitMetadata) -> frozenset[str]:
    """Partitions in which the commit may have left something to clean. New files of a copy-on-write table do not."""
    if config.is_mor or instant.action is not Action.COMMIT or metadata.operation not in _ONLY_UPDATES_LEAVE_WORK:
        return metadata.partitions
    return frozenset(stat.group.partition for stat in metadata.stats if stat.previous_commit not in ("", "null"))


def _load_files(
    environment: TableEnvironment, config: TableConfig, timeline: Timeline, partitions: list[str] | None
) -> Files:
    """The files of these partitions (None: all), from the metadata table if there is one.

    Partitions that do not exist are left out.
    """
    if partitions is not None and not partitions:
        return {}
    storage, runtime = environment.storage, environment.runtime
    metadata_table = open_metadata_table(storage, config, timeline, runtime=runtime)
    if metadata_table is not None:
        return _files_by_metadata(metadata_table, partitions)
    if not config.is_partitioned:
        return load_files_by_listing(storage, [""], runtime=runtime)
    if partitions is None:
        return load_all_files_by_listing(storage, runtime=runtime).partitions
    found = load_files_by_listing(storage, partitions, runtime=runtime)
    return {
        partition: files
        for partition, files in found.items()
        if any(name.startswith(PARTITION_METADATA_NAME) for name, _ in files)
    }


def _files_by_metadata(metadata_table: MetadataTable, partitions: list[str] | None) -> Files:
    """The files as the metadata table lists them, without partitions that do not exist.

    The list of all partitions is one record, which takes seconds to decode if there are very many. So it is read only
    if there are partitions without files, which may not exist any more.
    """
    if partitions is None:
        return metadata_table.files(metadata_table.partitions())
    found = metadata_table.files(partitions)
    bare = {partition for partition, files in found.items() if not files}
    gone = bare.difference(metadata_table.partitions()) if bare else bare
    return {partition: files for partition, files in found.items() if partition not in gone}


def _load_replaced(environment: TableEnvironment, timeline: Timeline) -> dict[FileGroupId, RequestedTime]:
    """Hidden file groups with the newest commit that replaced them: until then some reader may have seen them."""
    instants = [i for i in timeline.completed if i.action is Action.REPLACE_COMMIT]
    read = partial(load_commit_metadata, environment.storage, environment.config)
    replaced: dict[FileGroupId, RequestedTime] = {}
    for instant, metadata in zip(instants, environment.runtime.threads.map(read, instants), strict=True):
        for partition, file_ids in (metadata.replaced or {}).items():
            replaced.update({FileGroupId(partition, file_id): instant.requested_at for file_id in file_ids})
    return replaced
