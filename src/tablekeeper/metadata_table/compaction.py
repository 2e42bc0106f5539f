"""Compacting the metadata table and deleting its old files.

    lock    remove what an earlier attempt of ours left, load the timelines and list the files
    no lock read the slices, merge them, encode the new base files in memory
    lock    load again: does everything that was merged still count?
            requested (the plan) → inflight → base files → completed → old files

Writers wait for the two loads and for writing the base files, never for the merge. Delta commits that complete between
the two loads are on top of the new base files. If something that was merged no longer counts (it was rolled back, or
another process compacted, dropped or rebuilt the metadata table), the compaction starts again.

Base files are written after the plan and deleted before it, so that there is always a pending instant that hides them:
a base file without an instant would count as committed once the timeline has moved on. A process that dies in between
leaves a pending compaction, which readers ignore, Java's too. Our next compaction recognises it by its plan and removes
it; Java's next write executes it instead.

A pending compaction by Java is left alone unless the caller says otherwise. If Java's writers leave the services of the
metadata table to another program, nobody executes it, and nothing can be compacted next to it. It is then executed as
it is (`waiting_plan.py`), in the same steps, under its own instant. Or it is dropped, if nobody has begun it, and its
files are merged here. Java's writers read such plans without the lock, and fail if one is gone: none of them may be
running then.

Differences from Java's compaction: deletions are not carried into base files, the merge holds no lock, and old files
are deleted without an instant, by the rule of the two newest slices. Java's next clean lists what is there.

Nothing is compacted while there is an index that is not maintained here (see `indexes.py`), until a write of ours has
dropped it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError, FencedError, NotFoundError
from tablekeeper.format.avro_container import schema_json
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.format.metadata_log import (
    MetadataBaseName,
    decode_metadata_base_name,
    encode_metadata_base,
    encode_metadata_base_name,
)
from tablekeeper.format.plans import encode_compaction_plan
from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.format.secondary_index import SECONDARY_INDEX_PREFIX
from tablekeeper.metadata_table.clean import plan_old_files
from tablekeeper.metadata_table.compaction_plan import (
    Merge,
    MetadataState,
    choose_time,
    plan_merge,
    uncompacted_commits,
)
from tablekeeper.metadata_table.environment import LockedTable, OpenTable
from tablekeeper.metadata_table.indexes import load_metadata_indexes
from tablekeeper.metadata_table.layout import (
    METADATA_DIRECTORY,
    MetadataSlice,
    load_metadata_file_group,
    load_metadata_files,
    load_metadata_partitions,
    load_metadata_timeline,
    metadata_config,
)
from tablekeeper.metadata_table.plan_content import is_ours, load_plan, make_plan
from tablekeeper.metadata_table.presence import refuse_lost_commits
from tablekeeper.metadata_table.record_index import load_record_index_shard, load_secondary_index_shard
from tablekeeper.metadata_table.result import MetadataCompaction
from tablekeeper.metadata_table.waiting_plan import WaitingMerge, find_waiting, plan_waiting
from tablekeeper.model import (
    SCHEMA_KEY,
    Action,
    CommitMetadata,
    CompletionTime,
    FileGroupId,
    Instant,
    Operation,
    RequestedTime,
    State,
    WriteStat,
    join_path,
)
from tablekeeper.storage import FileInfo
from tablekeeper.timeline import (
    Timeline,
    complete_instant,
    create_requested,
    later_time,
    load_timeline,
    parse_time,
    remove_instant_files,
    start_inflight,
)
from tablekeeper.timeline.history import archived_completions
from tablekeeper.timeline.properties_file import load_table_config

__all__ = ["compact_metadata_table", "explain_metadata_compaction"]

_LOG = logging.getLogger(__name__)
_OLDEST_VERSION = 8
_ROUNDS = 3
_LONGEST_WAIT_MS = 1_000
_MOST_DELETED = 2_000
_ONLY_WRITER = "0-0-0"
_DELEGATED = (Action.COMPACTION, Action.LOG_COMPACTION, Action.CLEAN)


@dataclass(frozen=True, slots=True)
class _HeldUp:
    """Why the metadata table is not compacted now, although it seemed due; if not `is_due`, it no longer is."""

    reason: str
    is_due: bool = True


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was loaded under the first lock: what to merge, and all files of the metadata table."""

    merge: Merge | _HeldUp
    listings: Mapping[str, Sequence[FileInfo]]
    removed: tuple[RequestedTime, ...]
    lock_held_s: float


@dataclass(frozen=True, slots=True)
class _NewBase:
    """A new base file: its file group, the slice that it replaces, and its content."""

    group: FileGroupId
    before: MetadataSlice
    entries: int
    data: bytes


def compact_metadata_table(
    environment: OpenTable, settings: MetadataSettings, *, takes_over: bool = False, executes_plans: bool = False
) -> MetadataCompaction:
    """Compact the metadata table if that is due, and delete its old files. One listing if it is not.

    `takes_over` drops plans that a Java writer made and left to a service; `executes_plans` executes one instead.

    If it raises, the next compaction, or Java, continues what was begun.
    """
    waiting = _execute_waiting_plan(environment) if executes_plans else None
    if waiting is not None:
        return waiting
    idle = _find_idle(environment, settings)
    if idle is not None:
        return idle
    result = _compact(environment, settings, takes_over=takes_over)
    level = logging.WARNING if result.is_held_up else logging.INFO
    _LOG.log(level, "%s: %s", environment.config.name, result)
    return result


def _execute_waiting_plan(environment: OpenTable) -> MetadataCompaction | None:
    """Execute the oldest compaction that a Java writer planned and left to a service; None if none waits.

    The plan is not changed, for writers that read it in the meantime. Java executes such plans under the lock: one that
    is inflight while the lock is held here was left by a process that died, and is begun again.
    """
    held_s = 0.0
    for _ in range(_ROUNDS):
        with environment.locked() as held:
            waiting = _load_waiting(held)
        held_s += held.lease.held_s
        if waiting is None:
            return None
        if isinstance(waiting, _HeldUp):
            return MetadataCompaction(reason=waiting.reason, is_held_up=True, lock_held_s=held_s)
        try:
            bases = [_merge(environment, partition, each) for partition, each in waiting.slices]
        except NotFoundError as error:
            _LOG.info("the metadata table changes: %s", error)
            continue
        with environment.locked() as held:
            done = _complete_waiting(held, waiting, bases)
        held_s += held.lease.held_s
        if done is not None:
            return replace(done, lock_held_s=held_s)
    return MetadataCompaction(reason="others changed what it was about to merge", is_held_up=True, lock_held_s=held_s)


def explain_metadata_compaction(environment: OpenTable, settings: MetadataSettings) -> str:
    """What a compaction would do now, in a sentence. Changes nothing."""
    idle = _find_idle(environment, settings)
    if idle is None:
        return "the metadata table would be compacted first"
    return f"the metadata table would not be compacted first: {idle.reason}"


def _find_idle(environment: OpenTable, settings: MetadataSettings) -> MetadataCompaction | None:
    """Why there is nothing to do, None if a compaction is due."""
    config = environment.config
    if not settings.is_enabled:
        return MetadataCompaction(reason="that is left to Java, by the options")
    if not config.has_metadata_table or config.version < _OLDEST_VERSION:
        return MetadataCompaction(reason="there is no metadata table that is kept in step here")
    commits = uncompacted_commits(load_metadata_timeline(environment.storage, config))
    if len(commits) >= settings.compact_after:
        return None
    reason = f"{len(commits)} delta commits since its last compaction, {settings.compact_after} make one due"
    return MetadataCompaction(delta_commits=len(commits), reason=reason)


def _compact(environment: OpenTable, settings: MetadataSettings, *, takes_over: bool) -> MetadataCompaction:
    removed: tuple[RequestedTime, ...] = ()
    held_s = 0.0
    for _ in range(_ROUNDS):
        seen = _look(environment, settings, takes_over=takes_over)
        removed, held_s = removed + seen.removed, held_s + seen.lock_held_s
        if isinstance(seen.merge, _HeldUp):
            why = seen.merge
            return MetadataCompaction(
                removed_attempts=removed, reason=why.reason, is_held_up=why.is_due, lock_held_s=held_s
            )
        try:
            refuse_lost_commits(environment.storage, environment.config, seen.merge.commits, seen.listings)
            bases = [_merge(environment, partition, each) for partition, each in seen.merge.slices]
        except NotFoundError as error:
            # Others have compacted and cleaned in the meantime, or rolled back a commit.
            _LOG.info("the metadata table changes: %s", error)
            continue
        _wait_for_clock(environment, seen.merge)
        with environment.locked() as held:
            done = _publish(held, seen.merge, bases)
        held_s += held.lease.held_s
        if done is not None:
            return replace(done, removed_attempts=removed, lock_held_s=held_s)
    reason = "others changed it each time that it was about to be compacted"
    return MetadataCompaction(removed_attempts=removed, reason=reason, is_held_up=True, lock_held_s=held_s)


def _look(environment: OpenTable, settings: MetadataSettings, *, takes_over: bool) -> _Seen:
    """What to merge. Under the lock: without it a commit may be between its two completions."""
    removed: tuple[RequestedTime, ...] = ()
    with environment.locked() as held:
        config = load_table_config(held.storage)
        if config.has_metadata_table:
            removed = _remove_attempts(held, config)
            if takes_over and _find_obstacle(held, config) is None:
                removed += _drop_requested(held, config)
        state = _load_state(held, config)
        merge = state if isinstance(state, _HeldUp) else _plan(state, least=settings.compact_after)
    listings = {} if isinstance(state, _HeldUp) else state.listings
    return _Seen(merge, listings, removed, held.lease.held_s)


def _plan(state: MetadataState, *, least: int) -> Merge | _HeldUp:
    if len(uncompacted_commits(state.timeline)) < least:
        return _HeldUp("another process has compacted it meanwhile", is_due=False)
    merge = plan_merge(state)
    if merge is None or len(merge.commits) < least:
        return _HeldUp("an action of the table that is in it already is unfinished, and has to be rolled back first")
    return merge


def _load_state(environment: OpenTable, config: TableConfig) -> MetadataState | _HeldUp:
    """The metadata table as it is, or why it must not be compacted. Under the lock."""
    obstacle = _find_obstacle(environment, config)
    if obstacle is not None:
        return obstacle
    state = _load_files(environment, config)
    pending = [i for i in state.timeline.pending if i.action is not Action.DELTA_COMMIT]
    if pending:
        return _HeldUp(f"{pending[0]} is unfinished on its timeline; Java's next write finishes it")
    return state


def _load_files(environment: OpenTable, config: TableConfig) -> MetadataState:
    storage = environment.storage
    indexes = load_metadata_indexes(storage, config)
    timeline = load_metadata_timeline(storage, config)
    return MetadataState(
        data_timeline=load_timeline(storage, config),
        timeline=timeline,
        listings=load_metadata_files(storage, indexes.updated, runtime=environment.runtime),
        zone=config.time_zone,
        archived_completion=archived_completions(storage, metadata_config(config)),
    )


def _find_obstacle(environment: OpenTable, config: TableConfig) -> _HeldUp | None:
    """What on the table itself prevents a compaction, whatever is pending on the timeline of its metadata table."""
    if not config.has_metadata_table:
        return _HeldUp("it was switched off")
    if config.metadata_partitions_inflight:
        return _HeldUp(f"the index {config.metadata_partitions_inflight[0]} is being built")
    indexes = load_metadata_indexes(environment.storage, config)
    if indexes.dropped:
        return _HeldUp(f"the index {indexes.dropped[0]} is not kept in step here: leave it to Java")
    return None


def _merge(environment: OpenTable, partition: str, slice_: MetadataSlice) -> _NewBase:
    storage, runtime = environment.storage, environment.runtime
    try:
        if partition == RECORD_INDEX:
            entries = load_record_index_shard(storage, slice_, runtime=runtime).entries()
        elif partition.startswith(SECONDARY_INDEX_PREFIX):
            entries = load_secondary_index_shard(storage, slice_, runtime=runtime).entries()
        else:
            entries = load_metadata_file_group(storage, slice_, runtime=runtime).compacted()
        counted = itertools.count()
        data = encode_metadata_base(
            (entry for entry, _ in zip(entries, counted, strict=False)), created_ms=runtime.clock.now_ms()
        )
    except ValueError as error:
        path = join_path(METADATA_DIRECTORY, partition)
        raise CorruptTableError(file=path, reason=f"file group {slice_.file_id} does not merge ({error})") from error
    return _NewBase(FileGroupId(partition, slice_.file_id), slice_, next(counted), data)


def _wait_for_clock(environment: OpenTable, merge: Merge) -> None:
    """The compaction takes place after the last delta commit and before now."""
    clock = environment.runtime.clock
    ahead_ms = parse_time(merge.newest.value, zone=environment.config.time_zone) + 2 - clock.now_ms()
    if 0 <= ahead_ms <= _LONGEST_WAIT_MS:
        clock.sleep((ahead_ms + 1) / 1000)


def _publish(environment: LockedTable, merge: Merge, bases: Sequence[_NewBase]) -> MetadataCompaction | None:
    """Complete the compaction and delete old files. None if something that was merged no longer counts."""
    config = load_table_config(environment.storage)
    state = _load_state(environment, config)
    if isinstance(state, _HeldUp) or plan_merge(state, among=merge.commits) != merge:
        return None
    at = choose_time(merge, state, now_ms=environment.runtime.clock.now_ms())
    if at is None:
        return None
    environment.lease.check()
    plan = encode_compaction_plan(make_plan(merge))
    requested = create_requested(
        environment.storage, metadata_config(config), requested_at=at, action=Action.COMPACTION, content=plan
    )
    completed, stats = _complete(environment, config, state.timeline, requested, bases)
    deleted = _delete_old(environment, _with_compaction(state, completed, stats))
    return replace(_result_of(at, stats, commits=len(merge.commits)), files_deleted=deleted)


def _complete(
    environment: LockedTable, config: TableConfig, timeline: Timeline, requested: Instant, bases: Sequence[_NewBase]
) -> tuple[Instant, Sequence[WriteStat]]:
    own, storage = metadata_config(config), environment.storage
    inflight = start_inflight(storage, own, requested)
    environment.lease.check()
    at = requested.requested_at
    stats = environment.runtime.threads.map(lambda base: _put(environment, base, at), bases)
    extra = {SCHEMA_KEY: schema_json("HoodieMetadataRecord")}
    metadata = CommitMetadata(Operation.COMPACT, tuple(stats), extra, compacted=True)
    environment.lease.check()
    now_ms = environment.runtime.clock.now_ms()
    completed_at = CompletionTime(later_time(timeline.newest_time, now_ms=now_ms, zone=config.time_zone))
    content = encode_commit_metadata(metadata)
    return complete_instant(storage, own, inflight, completed_at=completed_at, content=content), stats


def _result_of(at: RequestedTime, stats: Sequence[WriteStat], *, commits: int) -> MetadataCompaction:
    size_bytes = sum(stat.size for stat in stats)
    return MetadataCompaction(instant=at, delta_commits=commits, files_written=len(stats), bytes_written=size_bytes)


def _load_waiting(environment: LockedTable) -> WaitingMerge | _HeldUp | None:
    """What the waiting plan asks to merge, or why it cannot be executed here. Under the lock."""
    config = load_table_config(environment.storage)
    if not config.has_metadata_table or config.version < _OLDEST_VERSION:
        return None
    _remove_attempts(environment, config)
    found = find_waiting(environment.storage, config)
    if found is None:
        return None
    obstacle = _find_obstacle(environment, config)
    if obstacle is not None:
        return obstacle
    merge = plan_waiting(found, _load_files(environment, config))
    return _HeldUp(merge) if isinstance(merge, str) else merge


def _complete_waiting(
    environment: LockedTable, waiting: WaitingMerge, bases: Sequence[_NewBase]
) -> MetadataCompaction | None:
    if _load_waiting(environment) != waiting:
        return None
    config = load_table_config(environment.storage)
    own, storage, at = metadata_config(config), environment.storage, waiting.requested_at
    # A dead attempt may have left files: they are deleted before its instant is requested again.
    environment.lease.check()
    storage.delete_many(_load_base_files(environment).get(at, ()))
    remove_instant_files(storage, own, Instant(at, Action.COMPACTION, State.INFLIGHT))
    environment.lease.check()
    requested = Instant(at, Action.COMPACTION, State.REQUESTED)
    _, stats = _complete(environment, config, load_metadata_timeline(storage, config), requested, bases)
    return _result_of(at, stats, commits=waiting.commits)


def _put(environment: OpenTable, base: _NewBase, at: RequestedTime) -> WriteStat:
    name = encode_metadata_base_name(MetadataBaseName(base.group.file_id, _ONLY_WRITER, at.value))
    path = join_path(base.group.partition, name)
    # Never replace a file: a process that lost the lock while it slept must not change what counts now.
    if not environment.storage.put_if_absent(join_path(METADATA_DIRECTORY, path), base.data):
        raise FencedError(f"{path} of the metadata table exists already: another process is compacting it; retry.")
    before = base.before
    return WriteStat(
        group=base.group,
        path=path,
        size=len(base.data),
        writes=base.entries,
        updates=base.entries,
        previous_commit=before.base_instant.value if before.base_instant is not None else "null",
        previous_base_file=before.base.name if before.base is not None else None,
    )


def _delete_old(environment: LockedTable, state: MetadataState) -> int:
    """A limited number of old files, so that the lock is not held too long; the next compaction deletes the rest."""
    old = plan_old_files(state)[:_MOST_DELETED]
    environment.lease.check()
    environment.storage.delete_many(old)
    return len(old)


def _with_compaction(state: MetadataState, completed: Instant, stats: Sequence[WriteStat]) -> MetadataState:
    """The state with the compaction that was just completed."""
    listings: dict[str, Sequence[FileInfo]] = dict(state.listings)
    for stat in stats:
        file = FileInfo(join_path(METADATA_DIRECTORY, stat.path), stat.size, 0)
        listings[stat.group.partition] = [*listings[stat.group.partition], file]
    timeline = Timeline.of([*state.timeline, completed], archive=state.timeline.archive)
    return replace(state, timeline=timeline, listings=listings)


def _remove_attempts(environment: LockedTable, config: TableConfig) -> tuple[RequestedTime, ...]:
    """Remove compactions that a process of ours began and did not finish from the timeline. Under the lock.

    The files are deleted before the instant, and of the instant the latest state first.
    """
    storage, own = environment.storage, metadata_config(config)
    attempts = [
        i.requested_at for i in load_metadata_timeline(storage, config).pending if _is_ours(environment, own, i)
    ]
    if not attempts:
        return ()
    files = _load_base_files(environment)
    for attempt in attempts:
        environment.lease.check()
        storage.delete_many(files.get(attempt, ()))
        states = (Instant(attempt, Action.COMPACTION, state) for state in (State.INFLIGHT, State.REQUESTED))
        remove_instant_files(storage, own, *states)
    return tuple(attempts)


def _drop_requested(environment: LockedTable, config: TableConfig) -> tuple[RequestedTime, ...]:
    """Remove plans that nobody has begun to execute. Under the lock, under which Java executes them."""
    own = metadata_config(config)
    plans = [
        i
        for i in load_metadata_timeline(environment.storage, config).pending
        if i.state is State.REQUESTED and i.action in _DELEGATED
    ]
    for plan in plans:
        environment.lease.check()
        remove_instant_files(environment.storage, own, plan)
    return tuple(plan.requested_at for plan in plans)


def _is_ours(environment: OpenTable, own: TableConfig, pending: Instant) -> bool:
    if pending.action is not Action.COMPACTION:
        return False
    try:
        plan = load_plan(environment.storage, own, pending.requested_at)
    except NotFoundError:
        # The rest of an attempt that others removed while its process slept. Nobody can continue it.
        return pending.state is State.INFLIGHT
    return is_ours(plan)


def _load_base_files(environment: OpenTable) -> Mapping[RequestedTime, list[str]]:
    """Paths of all base files by instant, in all metadata partitions, whether in use or not."""
    storage = environment.storage
    listings = load_metadata_files(storage, load_metadata_partitions(storage), runtime=environment.runtime)
    found: dict[RequestedTime, list[str]] = {}
    for files in listings.values():
        for file in files:
            base = decode_metadata_base_name(file.name)
            if base is not None:
                found.setdefault(RequestedTime(base.instant), []).append(file.path)
    return found
