"""What a plan is made from and what is archived: instant files, the last clean, the metadata table, contents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import NotFoundError
from tablekeeper.format.history import ArchivedInstant
from tablekeeper.format.plans import decode_clean_metadata, decode_clean_plan
from tablekeeper.metadata_table.compaction_plan import last_compaction
from tablekeeper.metadata_table.layout import load_metadata_timeline, metadata_config
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State
from tablekeeper.services.archive.plan import ActiveAction, ArchiveView, MetadataState, RetainedByClean
from tablekeeper.storage import FileInfo, Storage
from tablekeeper.timeline import Timeline, format_time, instant_path
from tablekeeper.timeline.history import load_archive_reach
from tablekeeper.timeline.timeline import decode_instant_name
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["load_archive_view", "load_contents", "load_metadata_archive_view"]

# The key under which a clean plan says which savepoints it spared.
_SAVEPOINTS_KEY = "savepointed_timestamps"
_HAS_PLAN = (Action.CLEAN, Action.COMPACTION, Action.LOG_COMPACTION, Action.CLUSTERING, Action.REPLACE_COMMIT)


def load_archive_view(storage: Storage, config: TableConfig) -> ArchiveView:
    """The active timeline of a table with everything that decides what may leave it."""
    timeline, actions = _load_actions(storage, config)
    metadata = None
    if config.has_metadata_table:
        metadata = MetadataState(last_compaction(load_metadata_timeline(storage, config)))
    return ArchiveView(
        timeline=timeline,
        actions=actions,
        is_mor=config.is_mor,
        zone=config.time_zone,
        last_clean=_load_last_clean(storage, config, actions),
        metadata=metadata,
    )


def load_metadata_archive_view(storage: Storage, config: TableConfig, data_timeline: Timeline) -> ArchiveView:
    """The same for the timeline of the metadata table of `config`."""
    own = metadata_config(config)
    timeline, actions = _load_actions(storage, own)
    return ArchiveView(
        timeline=timeline,
        actions=actions,
        is_mor=True,
        zone=config.time_zone,
        last_clean=_load_last_clean(storage, own, actions),
        data_timeline=data_timeline,
    )


def load_contents(
    environment: TableEnvironment, config: TableConfig, actions: Sequence[ActiveAction]
) -> tuple[ArchivedInstant, ...]:
    """The instants with what their files hold, as the archived timeline keeps it.

    Without the lock an instant may be archived by somebody else meanwhile; it is left out.
    """
    read = partial(_load_archived, environment.storage, config)
    return tuple(found for found in environment.runtime.threads.map(read, actions) if found is not None)


def _load_archived(storage: Storage, config: TableConfig, action: ActiveAction) -> ArchivedInstant | None:
    metadata = _read(storage, config, action.completed_files[0])
    if metadata is None:
        return None
    # A plan that is gone was removed by an archive which had put the instant into the history: it is not written again.
    return ArchivedInstant(action.instant, metadata or None, _load_plan(storage, config, action))


def _load_plan(storage: Storage, config: TableConfig, action: ActiveAction) -> bytes | None:
    """The plan as Java keeps it: for replace commits the workload of the inflight file, where there is one."""
    if action.begun_as not in _HAS_PLAN:
        return None
    files = {file.state: file for file in action.pending_files}
    workload = None
    if action.begun_as in (Action.REPLACE_COMMIT, Action.CLUSTERING):
        workload = _read(storage, config, files.get(State.INFLIGHT))
    return workload or _read(storage, config, files.get(State.REQUESTED)) or None


def _read(storage: Storage, config: TableConfig, file: Instant | None) -> bytes | None:
    """What the file holds, None if there is none: an archive that died may have removed it."""
    try:
        return storage.read(instant_path(config, file)) if file is not None else None
    except NotFoundError:
        return None


def _load_actions(storage: Storage, config: TableConfig) -> tuple[Timeline, tuple[ActiveAction, ...]]:
    """The active timeline, and its completed instants with all their files, by requested time. One listing."""
    groups: dict[tuple[RequestedTime, Action], list[tuple[Instant, FileInfo]]] = defaultdict(list)
    for file in storage.list_files(config.timeline_directory):
        instant = decode_instant_name(file.name, layout=config.layout)
        if instant is not None:
            groups[instant.requested_at, instant.action.completed_as].append((instant, file))
    dated = [_dated(instant, file, config) for group in groups.values() for instant, file in group]
    actions = [_active_action(group, config) for group in groups.values() if any(i.is_completed for i, _ in group)]
    actions.sort(key=lambda action: (action.instant.requested_at.order, action.instant.action.value))
    return Timeline.of(dated, archive=partial(load_archive_reach, storage, config)), tuple(actions)


def _dated(instant: Instant, file: FileInfo, config: TableConfig) -> Instant:
    """The instant with a completion time: completed files of upgraded tables have none in their names."""
    if instant.is_pending or instant.completed_at is not None:
        return instant
    return replace(instant, completed_at=CompletionTime(format_time(file.modified_ms, zone=config.time_zone)))


def _active_action(group: Sequence[tuple[Instant, FileInfo]], config: TableConfig) -> ActiveAction:
    completed = [(_dated(instant, file, config), instant) for instant, file in group if instant.is_completed]
    # The latest counts, and comes first.
    completed.sort(key=lambda pair: pair[0].completed_at.order if pair[0].completed_at else "", reverse=True)
    pending = sorted((i for i, _ in group if i.is_pending), key=lambda i: i.state.rank)
    return ActiveAction(
        instant=completed[0][0],
        completed_files=tuple(named for _, named in completed),
        pending_files=tuple(pending),
        size=sum(file.size for _, file in group),
    )


def _load_last_clean(storage: Storage, config: TableConfig, actions: Sequence[ActiveAction]) -> RetainedByClean | None:
    cleans = [action for action in actions if action.instant.action is Action.CLEAN]
    if not cleans:
        return None
    clean = cleans[-1]
    requested = next((i for i in clean.pending_files if i.state is State.REQUESTED), None)
    content = _read(storage, config, requested)
    at = clean.instant.requested_at
    if requested is not None and content:
        plan = decode_clean_plan(content, file=instant_path(config, requested))
        kept = plan.earliest_instant_to_retain
        saved = plan.extra_metadata.get(_SAVEPOINTS_KEY, "").split(",")
        return RetainedByClean(at, _time(kept.timestamp if kept else ""), tuple(t for s in saved if (t := _time(s))))
    completed = clean.completed_files[0]
    path = instant_path(config, completed)
    metadata = decode_clean_metadata(storage.read(path), file=path)
    return RetainedByClean(at, _time(metadata.earliest_commit_to_retain))


def _time(text: str) -> RequestedTime | None:
    return RequestedTime(text) if text.isascii() and text.isdigit() else None
