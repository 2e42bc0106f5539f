"""Rolling back an instant on request: what is allowed, and what would be deleted.

A pending write can be rolled back unless its heartbeat is active. A completed write can be rolled back if nothing
depends on it: no write completed after it, none is running, no plan of a table service uses its files, no savepoint
protects it, and what it replaced still exists. Otherwise use a restore. The oldest write on the active timeline stays,
because archived writes count as committed by being older than it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from tablekeeper.errors import (
    CommitOutcomeUnknownError,
    FencedError,
    InvalidRequestError,
    LockNotAcquiredError,
    TablekeeperError,
)
from tablekeeper.metadata_table.update import release_indexes
from tablekeeper.model import (
    Action,
    BaseFile,
    CommitMetadata,
    FileGroupId,
    Instant,
    LogFile,
    Operation,
    RequestedTime,
    State,
    join_path,
)
from tablekeeper.model.results import Result
from tablekeeper.snapshot.slices import (
    decode_partition_files,
    load_files_by_listing,
    load_files_of_instant,
    load_partitions_by_listing,
)
from tablekeeper.timeline import Timeline, load_commit_metadata
from tablekeeper.timeline.history import archived_completions, load_history
from tablekeeper.timeline.plans import find_rollback, load_clean_metadata, load_clean_plan, load_rollback_plan
from tablekeeper.txn.concurrent_commits import load_touched
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment
from tablekeeper.txn.rollback import leaves_with_attempt, load_files_of, resume_rollback, rollback_approved
from tablekeeper.txn.savepoints import find_savepoint

__all__ = ["RollbackResult", "execute_rollback"]


@dataclass(frozen=True, slots=True)
class RollbackResult(Result):
    """What a rollback did, or with `dry_run` would do. `state` is the one in which the instant was found.

    `plan_stays`: the instant is a table service whose plan can be run again. `notes` say what else became of the table.
    """

    instant: RequestedTime
    action: str
    state: str
    files: tuple[str, ...]
    rollback: RequestedTime | None = None
    dry_run: bool = False
    plan_stays: bool = False
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        done = "would be rolled back" if self.dry_run else f"rolled back by {self.rollback}"
        plan = ", its plan stays" if self.plan_stays else ""
        files = "".join(f"\n  {'would delete' if self.dry_run else 'deleted'} {file}" for file in self.files)
        notes = "".join(f"\n  {note}" for note in self.notes)
        return f"{self.action} {self.instant} ({self.state}) {done}{plan}, {len(self.files)} files{files}{notes}"


def execute_rollback(environment: TableEnvironment, instant: RequestedTime, *, dry_run: bool = False) -> RollbackResult:
    """Roll the instant back, or say what that would delete."""
    timeline = environment.load_timeline()
    current = timeline.find(instant)
    if current is None:
        return _resume(environment, timeline, instant, dry_run=dry_run)
    _refuse(environment, timeline, current)
    stays = current.is_pending and current.action.is_plan and not leaves_with_attempt(environment, current)
    files = load_files_of(environment, current)
    if current.is_pending and not files:
        files = _load_files_by_name(environment, instant)
    result = partial(RollbackResult, instant, current.action.value, current.state.value, plan_stays=stays)
    if dry_run:
        return result(tuple(sorted(files | _planned(environment, timeline, current))), dry_run=True)

    def approve(held: LockedEnvironment, now: Timeline, found: Instant) -> bool:
        _refuse(environment, now, found)
        if found.is_completed:
            release_indexes(held, action="rollback", targets=[instant])
        return True

    also_files = files if current.is_pending else ()
    try:
        outcome = rollback_approved(environment, instant, approve=approve, also_files=also_files, is_wanted=True)
    except (FencedError, LockNotAcquiredError) as error:
        _refuse_half_done(environment, current, error)
        raise
    if outcome is None:
        raise _unknown(environment, timeline, instant)
    return result(outcome.files, rollback=outcome.rollback.requested_at)


def _refuse_half_done(environment: TableEnvironment, target: Instant, cause: TablekeeperError) -> None:
    """Raise if a completed `target` is already hidden: its rollback is then not withdrawn, others finish it."""
    now = environment.load_timeline().find(target.requested_at)
    if target.is_completed and (now is None or now.is_pending):
        raise CommitOutcomeUnknownError(
            f"the lock was lost while {target} was being rolled back ({cause}). It is hidden, and stays so: another "
            "process finishes or has finished the rollback. Reload the table.",
            instant=target.requested_at.value,
        ) from cause


def _resume(
    environment: TableEnvironment, timeline: Timeline, instant: RequestedTime, *, dry_run: bool
) -> RollbackResult:
    """A rollback that died after its target had left the timeline is finished; else there is no such instant."""
    gone = Instant(instant, Action.COMMIT, State.INFLIGHT)
    rollback = find_rollback(environment.storage, environment.config, timeline, gone)
    plan = None if rollback is None else load_rollback_plan(environment.storage, environment.config, rollback)
    if rollback is None or plan is None or plan.instant is None:
        raise _unknown(environment, timeline, instant)
    result = partial(RollbackResult, instant, plan.instant.action, State.INFLIGHT.value, rollback=rollback.requested_at)
    if dry_run:
        return result(tuple(sorted(_planned(environment, timeline, gone))), dry_run=True)
    outcome = resume_rollback(environment, rollback)
    return result(outcome.files if outcome is not None else ())


def _refuse(environment: TableEnvironment, timeline: Timeline, current: Instant) -> None:
    """Raise unless `current` may be rolled back on this timeline."""
    if not current.action.writes_data:
        raise InvalidRequestError(
            f"{current} is a {current.action.value} and cannot be rolled back. One that did not complete is carried on "
            "by the next one of its kind, or by `tablekeeper doctor --fix`."
        )
    if current.is_completed:
        _refuse_completed(environment, timeline, current)
        return
    is_waiting = current.action.is_plan and current.state is State.REQUESTED
    if is_waiting and find_rollback(environment.storage, environment.config, timeline, current) is None:
        raise InvalidRequestError(f"{current} is a plan that nobody has begun: there is nothing to roll back.")
    heartbeats = environment.load_heartbeats()
    if heartbeats.is_active(current.requested_at):
        raise InvalidRequestError(
            f"{current} has a heartbeat of {heartbeats.ages[current.requested_at]:.0f} s ago: its writer is alive. "
            f"Stop the writer first; its heartbeat lapses after {heartbeats.lapses_after_s:.0f} s."
        )


def _refuse_completed(environment: TableEnvironment, timeline: Timeline, current: Instant) -> None:
    name = f"{environment.config.name}, {current}"
    savepoint = find_savepoint(timeline, current.requested_at)
    if savepoint is not None:
        raise InvalidRequestError(
            f"{name}: protected by a savepoint. Delete it first: delete_savepoint({current.requested_at.value!r})."
        )
    by_completion = timeline.completed_writes_by_completion
    later = by_completion[by_completion.index(current) + 1 :]
    if later:
        raise InvalidRequestError(
            f"{name}: {_named(later)} completed after it and may stand on what it wrote. Roll those back first, the "
            "newest first, or restore to a savepoint."
        )
    if by_completion == (current,) and load_history(environment.storage, environment.config, with_contents=False):
        raise InvalidRequestError(
            f"{name}: the last completed write on the active timeline, and older ones are archived. Without it nothing "
            "would say that these are committed, and no reader would see them. Write first, or write what you want "
            "instead."
        )
    heartbeats = environment.load_heartbeats()
    live = [i for i in timeline.pending if i.action.writes_data and heartbeats.is_active(i.requested_at)]
    if live:
        raise InvalidRequestError(
            f"{name}: {_named(live)} is being written and may stand on it. Wait until it is finished, or stop it."
        )
    metadata = load_commit_metadata(environment.storage, environment.config, current)
    planned = [i for i in timeline.pending_plans if i.requested_at > current.requested_at]
    blocking = [i for i in planned if load_touched(environment, i).file_groups & metadata.file_groups]
    if blocking:
        raise InvalidRequestError(
            f"{name}: the plan {_named(blocking)} counts on its files. Restore to a savepoint instead, which takes the "
            "plan back too."
        )
    _refuse_cleaned(environment, timeline, current, metadata)


def _refuse_cleaned(
    environment: TableEnvironment, timeline: Timeline, current: Instant, metadata: CommitMetadata
) -> None:
    """What the commit merged or replaced must still exist: readers will see it again.

    Files that an unfinished clean is about to delete count as gone.
    """
    # A compaction without an older base file had logs.
    is_compaction = metadata.operation is Operation.COMPACT
    needed: dict[FileGroupId, RequestedTime | None] = {
        stat.group: RequestedTime(stat.previous_commit) if stat.previous_commit.isdigit() else None
        for stat in metadata.stats
        if not stat.is_log and (stat.previous_commit.isdigit() or is_compaction)
    }
    for partition, file_ids in (metadata.replaced or {}).items():
        needed.update({FileGroupId(partition, file_id): None for file_id in file_ids})
    partitions = sorted({group.partition for group in needed})
    listing = load_files_by_listing(environment.storage, partitions, runtime=environment.runtime)
    there: dict[FileGroupId, set[RequestedTime]] = {}
    going = _load_files_of_cleans(environment, timeline)
    cleaned = _load_cleaned_since(environment, timeline, current)
    for partition, names in listing.items():
        for file in _files(partition, [entry for entry in names if join_path(partition, entry[0]) not in going]):
            there.setdefault(file.group, set()).add(file.instant)
    for group, previous in needed.items():
        left = {i for i in there.get(group, ()) if i != current.requested_at and timeline.is_completed(i)}
        is_there = any(previous is None or instant <= previous for instant in left)
        if not is_there or _was_cleaned(environment, timeline, cleaned.get(group, ()), previous):
            raise InvalidRequestError(
                f"{environment.config.name}, {current}: the files that it replaced in file group {group} were cleaned "
                "away, and a rollback would lose rows. Write the rows that you want instead."
            )


def _load_files_of_cleans(environment: TableEnvironment, timeline: Timeline) -> frozenset[str]:
    """Files that unfinished cleans are to delete."""
    found: set[str] = set()
    for clean in timeline.pending:
        if clean.action is not Action.CLEAN:
            continue
        plan = load_clean_plan(environment.storage, environment.config, clean)
        if plan is not None:
            for partition, files in plan.files.items():
                found.update(join_path(partition, file.path.rpartition("/")[2]) for file in files)
    return frozenset(found)


def _load_cleaned_since(
    environment: TableEnvironment, timeline: Timeline, current: Instant
) -> dict[FileGroupId, list[BaseFile | LogFile]]:
    """What cleans have deleted since the commit began. They leave parts of a slice that a savepoint names."""
    found: dict[FileGroupId, list[BaseFile | LogFile]] = {}
    for clean in timeline.completed:
        if clean.action is not Action.CLEAN or clean.completed_at is None:
            continue
        if clean.completed_at.value < current.requested_at.value:
            continue
        metadata = load_clean_metadata(environment.storage, environment.config, clean)
        for partition, done in metadata.partitions.items():
            for file in _files(partition, [(path.rpartition("/")[2], 0) for path in done.succeeded]):
                found.setdefault(file.group, []).append(file)
    return found


def _was_cleaned(
    environment: TableEnvironment,
    timeline: Timeline,
    files: Iterable[BaseFile | LogFile],
    previous: RequestedTime | None,
) -> bool:
    """Whether one of the deleted files of a group was in the slice on `previous`; None is the only slice there was."""
    if previous is None:
        return any(True for _ in files)
    archived = archived_completions(environment.storage, environment.config)
    for file in files:
        completed_at = timeline.completion_of(file.instant) or archived(file.instant)
        # A log belongs to the base file that was there, or planned, when it completed.
        is_late_log = isinstance(file, LogFile) and (completed_at is None or completed_at.value > previous.value)
        if file.instant >= previous or is_late_log:
            return True
    return False


def _load_files_by_name(environment: TableEnvironment, instant: RequestedTime) -> frozenset[str]:
    """Data files with the instant in their names: for a write that left no markers."""
    partitions = load_partitions_by_listing(environment.storage, runtime=environment.runtime)
    return load_files_of_instant(environment.storage, partitions, instant, runtime=environment.runtime)


def _files(partition: str, names: list[tuple[str, int]]) -> list[BaseFile | LogFile]:
    files = decode_partition_files(partition, names)
    return [*files.bases, *files.logs]


def _planned(environment: TableEnvironment, timeline: Timeline, target: Instant) -> frozenset[str]:
    """Files that an unfinished rollback of the target names."""
    rollback = find_rollback(environment.storage, environment.config, timeline, target)
    plan = None if rollback is None else load_rollback_plan(environment.storage, environment.config, rollback)
    requests = () if plan is None else plan.requests
    return frozenset(join_path(r.partition, path.rpartition("/")[2]) for r in requests for path in r.files_to_delete)


def _unknown(environment: TableEnvironment, timeline: Timeline, instant: RequestedTime) -> InvalidRequestError:
    name = environment.config.name
    if timeline.is_archived(instant):
        return InvalidRequestError(
            f"{name}: {instant} is older than the active timeline. What has been archived cannot be rolled back."
        )
    return InvalidRequestError(
        f"{name} has no instant {instant}: rolled back already, or never there. `tablekeeper timeline` lists them."
    )


def _named(instants: list[Instant] | tuple[Instant, ...]) -> str:
    shown = ", ".join(f"{i.requested_at} ({i.action.value})" for i in instants[-3:])
    return shown + (f" and {len(instants) - 3} more" if len(instants) > 3 else "")
