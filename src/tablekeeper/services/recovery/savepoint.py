"""Savepoints: a commit whose files stay, and the way back to it.

A savepoint lists the files that readers see as of its commit: the table as it was when the commit completed, which is
what a restore returns to. A write that began earlier and completed later is not in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tablekeeper.errors import CorruptTableError, InvalidRequestError, NotFoundError
from tablekeeper.format.plans import (
    SavepointMetadata,
    encode_savepoint_metadata,
)
from tablekeeper.metadata_table.update import release_indexes
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.model.results import Listing, Result
from tablekeeper.snapshot.retention import load_readable_from
from tablekeeper.snapshot.slices import load_files_by_listing
from tablekeeper.snapshot.snapshot import load_snapshot
from tablekeeper.timeline import (
    Timeline,
    remove_instant_files,
    start_inflight,
)
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment
from tablekeeper.txn.publish import Publication
from tablekeeper.txn.restore import execute_restore, plan_restore
from tablekeeper.txn.savepoints import find_savepoint, load_savepoint, load_savepoint_if_there, savepoints_of

__all__ = [
    "RestoreResult",
    "Savepoint",
    "SavepointListing",
    "create_savepoint",
    "delete_savepoint",
    "load_savepoints",
    "restore_savepoint",
]

_USER = "tablekeeper"


@dataclass(frozen=True, slots=True)
class Savepoint(Result):
    """A protected commit; `files` are names by partition path."""

    instant: RequestedTime
    comment: str
    user: str
    saved_at_ms: int
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def file_count(self) -> int:
        return sum(len(names) for names in self.files.values())

    def __repr__(self) -> str:
        comment = f" ({self.comment})" if self.comment else ""
        return f"savepoint {self.instant}{comment}, {self.file_count} files, by {self.user}"


@dataclass(frozen=True, slots=True)
class SavepointListing(Listing[Savepoint]):
    """The savepoints of a table by the time of their commits."""

    savepoints: tuple[Savepoint, ...]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.savepoints)) or "no savepoints"


@dataclass(frozen=True, slots=True)
class RestoreResult(Result):
    """What a restore did, or with `dry_run` would do; `instants` are rolled back, in this order.

    `notes` say what else became of the table.
    """

    savepoint: RequestedTime
    instants: tuple[str, ...]
    files: tuple[str, ...] = ()
    restore: RequestedTime | None = None
    dry_run: bool = False
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        head = f"restore to {self.savepoint}: {len(self.instants)} instants"
        verb = "would be rolled back" if self.dry_run else "rolled back"
        return "\n".join([f"{head} {verb}", *(f"  {line}" for line in (*self.instants, *self.notes))])


def create_savepoint(
    environment: TableEnvironment, instant: RequestedTime | None = None, *, comment: str = ""
) -> Savepoint:
    """Protect the newest commit, or the one given."""
    config = environment.config
    # The lock keeps a clean from being planned between the listing of the files and their protection.
    with environment.locked() as held:
        timeline = held.load_timeline()
        commit = _commit_to_save(held, timeline, instant)
        existing = find_savepoint(timeline, commit.requested_at)
        if existing is not None and existing.is_completed:
            raise InvalidRequestError(f"{config.name} has a savepoint at {commit.requested_at} already.")
        saved = Savepoint(
            instant=commit.requested_at,
            comment=comment,
            user=_USER,
            saved_at_ms=held.runtime.clock.now_ms(),
            files=_load_files(held, timeline, commit),
        )
        inflight = Instant(commit.requested_at, Action.SAVEPOINT, State.INFLIGHT)
        if existing is None:
            held.lease.check()
            inflight = start_inflight(held.storage, config, inflight)
        metadata = SavepointMetadata(_USER, saved.saved_at_ms, comment, saved.files)
        Publication(held, inflight, known=timeline).complete(encode_savepoint_metadata(metadata))
    return saved


def load_savepoints(environment: TableEnvironment) -> SavepointListing:
    """All completed savepoints."""
    timeline = environment.load_timeline()
    loaded = (
        (each, load_savepoint_if_there(environment.storage, environment.config, each))
        for each in savepoints_of(timeline)
    )
    return SavepointListing(tuple(_savepoint(each, metadata) for each, metadata in loaded if metadata is not None))


def delete_savepoint(environment: TableEnvironment, instant: RequestedTime) -> None:
    """Give up the protection of a commit. A clean deletes its files when they are old enough."""
    with environment.locked() as held:
        timeline = held.load_timeline()
        found = find_savepoint(timeline, instant)
        if found is None:
            raise _no_savepoint(held, timeline, instant)
        inflight = Instant(instant, Action.SAVEPOINT, State.INFLIGHT)
        completed = (found,) if found.is_completed else ()
        held.lease.check()
        remove_instant_files(held.storage, held.config, *completed, inflight)


def restore_savepoint(environment: TableEnvironment, instant: RequestedTime, *, dry_run: bool = False) -> RestoreResult:
    """Return the table to a savepoint: everything that came after it is gone permanently."""

    def approve(held: LockedEnvironment, timeline: Timeline) -> Instant:
        commit = _approve_restore(environment, timeline, instant)
        targets = [i.requested_at for i in plan_restore(timeline, commit) if i.is_completed]
        release_indexes(held, action="restore", targets=targets)
        return commit

    if dry_run:
        timeline = environment.load_timeline()
        planned = plan_restore(timeline, _approve_restore(environment, timeline, instant))
        return RestoreResult(instant, tuple(str(each) for each in planned), dry_run=True)
    done = execute_restore(environment, instant, approve=approve)
    names = tuple(f"{info.commit_time}.{info.action}" for info in done.instants)
    return RestoreResult(instant, names, done.files, done.restore.requested_at)


def _commit_to_save(environment: TableEnvironment, timeline: Timeline, instant: RequestedTime | None) -> Instant:
    name = environment.config.name
    if any(i.action is Action.RESTORE for i in timeline.pending):
        raise InvalidRequestError(f"{name} is being restored. Make the savepoint when the restore has finished.")
    writes = timeline.completed_writes_by_completion
    if not writes:
        raise InvalidRequestError(f"{name} has no commit that a savepoint could protect. Write to it first.")
    if instant is None:
        return writes[-1]
    found = next((i for i in writes if i.requested_at == instant), None)
    if found is None:
        raise InvalidRequestError(
            f"{name} has no completed commit {instant} on its active timeline. `tablekeeper timeline` lists them."
        )
    oldest = _oldest_kept(environment, timeline)
    if oldest is not None and (found.requested_at < oldest or _may_miss_files(timeline, found, oldest)):
        raise InvalidRequestError(
            f"{name}: files of {instant} may have been cleaned, because cleans keep commits from {oldest} on. "
            "Choose a later commit."
        )
    return found


def _oldest_kept(environment: TableEnvironment, timeline: Timeline) -> RequestedTime | None:
    """The oldest commit whose files no clean has deleted or is about to delete."""
    kept = [_kept_by(environment, timeline, i) for i in timeline if i.action is Action.CLEAN]
    return max(kept, default=None)


def _kept_by(environment: TableEnvironment, timeline: Timeline, clean: Instant) -> RequestedTime:
    try:
        moment = load_readable_from(environment.storage, environment.config, clean)
    except NotFoundError:
        return clean.requested_at
    if moment is not None:
        return moment
    before = [i.requested_at for i in timeline.completed_writes if i.requested_at <= clean.requested_at]
    return before[-1] if before else clean.requested_at


def _may_miss_files(timeline: Timeline, commit: Instant, oldest: RequestedTime) -> bool:
    """Whether a write that completed after `commit` is so old that cleans may have deleted what it replaced."""
    later = timeline.completed_writes_by_completion
    later = later[later.index(commit) + 1 :]
    return any(i.requested_at <= oldest for i in later)


def _load_files(environment: TableEnvironment, timeline: Timeline, commit: Instant) -> dict[str, tuple[str, ...]]:
    """Names of the files that readers see on the timeline as it was when `commit` completed."""
    snapshot = load_snapshot(
        environment.storage,
        environment.config,
        _as_of_completion(timeline, commit),
        runtime=environment.runtime,
    )
    names: dict[str, list[str]] = defaultdict(list)
    for file_slice in snapshot.latest:
        if file_slice.base is not None:
            names[file_slice.group.partition].append(file_slice.base.name)
        names[file_slice.group.partition] += [log.name for log in file_slice.logs]
    return {partition: tuple(sorted(each)) for partition, each in sorted(names.items())}


def _as_of_completion(timeline: Timeline, commit: Instant) -> Timeline:
    """The timeline with every write pending that completed after `commit`.

    Pending and not absent: an instant that is missing from the front of the timeline counts as archived. Cleans and
    rollbacks stay completed: what they deleted is gone, and the metadata table has to record that.
    """

    def back_then(instant: Instant) -> Instant:
        is_later = (
            instant.action.writes_data
            and instant.completed_at is not None
            and commit.completed_at is not None
            and instant.completed_at > commit.completed_at
        )
        return replace(instant, state=State.INFLIGHT, completed_at=None) if is_later else instant

    then = (back_then(i) for i in timeline if i.action is not Action.SAVEPOINT)
    return Timeline.of(then, archive=timeline.archive)


def _approve_restore(environment: TableEnvironment, timeline: Timeline, instant: RequestedTime) -> Instant:
    config = environment.config
    savepoint = find_savepoint(timeline, instant)
    if savepoint is None or not savepoint.is_completed:
        raise _no_savepoint(environment, timeline, instant)
    commit = next((i for i in timeline.completed_writes if i.requested_at == instant), None)
    if commit is None:
        raise InvalidRequestError(
            f"{config.name}: the commit of savepoint {instant} has been archived, and with it what came after. "
            "A restore cannot take back what is not on the active timeline."
        )
    heartbeats = environment.load_heartbeats()
    live = [i for i in timeline.pending if heartbeats.is_active(i.requested_at)]
    if live:
        raise InvalidRequestError(
            f"{config.name}: {', '.join(str(i) for i in live)} is being written. Stop all writers before a restore; "
            f"a heartbeat lapses after {heartbeats.lapses_after_s:.0f} s."
        )
    later = [i for i in savepoints_of(timeline) if _is_after(timeline, i.requested_at, commit)]
    if later:
        raise InvalidRequestError(
            f"{config.name}: the restore would roll back {later[-1].requested_at}, which a savepoint protects. "
            f"Delete that one first: delete_savepoint({later[-1].requested_at.value!r})."
        )
    metadata = load_savepoint(environment.storage, environment.config, savepoint)
    _refuse_missing_files(environment, _savepoint(savepoint, metadata))
    return commit


def _is_after(timeline: Timeline, requested_at: RequestedTime, commit: Instant) -> bool:
    completed_at = timeline.completion_of(requested_at)
    return completed_at is not None and commit.completed_at is not None and completed_at > commit.completed_at


def _refuse_missing_files(environment: TableEnvironment, savepoint: Savepoint) -> None:
    listing = load_files_by_listing(environment.storage, sorted(savepoint.files), runtime=environment.runtime)
    for partition, names in savepoint.files.items():
        missing = set(names) - {name for name, _ in listing.get(partition, [])}
        if missing:
            raise CorruptTableError(
                file=f"{partition}/{min(missing)}".lstrip("/"),
                reason=f"savepoint {savepoint.instant} protects the file, and it is missing: nothing was restored",
            )


def _savepoint(savepoint: Instant, metadata: SavepointMetadata) -> Savepoint:
    return Savepoint(savepoint.requested_at, metadata.comments, metadata.user, metadata.saved_at_ms, metadata.files)


def _no_savepoint(environment: TableEnvironment, timeline: Timeline, instant: RequestedTime) -> InvalidRequestError:
    known = ", ".join(i.requested_at.value for i in savepoints_of(timeline)) or "none"
    return InvalidRequestError(f"{environment.config.name} has no savepoint at {instant}. It has: {known}.")
