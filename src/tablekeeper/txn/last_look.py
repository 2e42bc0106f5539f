"""The last look of whoever completed an instant: did it hold the lock until the end?

Between the last check and the completed file a process may sleep for long. Its lease lapses, another writer takes the
lock, finds the instant pending and rolls it back; and then the sleeper publishes it. Therefore the lease is checked
once more after the completed file is there: if it still stands, nobody else can have held the lock in between. If not,
the lock is taken again and the timeline says what has become of the instant.
"""

from __future__ import annotations

from tablekeeper.errors import CommitOutcomeUnknownError, FencedError, LockNotAcquiredError, StorageError
from tablekeeper.metadata_table.update import take_back_update
from tablekeeper.model import Action, Instant, State
from tablekeeper.timeline import Timeline, instant_path, load_instant_files, remove_instant_files
from tablekeeper.timeline.history import find_archived
from tablekeeper.timeline.plans import find_rollback, load_rollback_target
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment

__all__ = ["confirm_completed"]


def confirm_completed(held: LockedEnvironment, completed: Instant, *, known: Timeline) -> bool:
    """Return if `completed`, just published under the lock, stands. False if the lease is over all the same.

    `known` is the timeline that was loaded under the lock. Raises `FencedError` if another process rolled the instant
    back or completed it meanwhile, after taking the own completed file away, and `CommitOutcomeUnknownError` if the
    lock cannot be had to find out.
    """
    try:
        held.lease.check()
    except (FencedError, StorageError) as doubt:
        held.lease.release()
        _decide(held.unlocked, completed, known, doubt)
        return False
    return True


def _decide(environment: TableEnvironment, completed: Instant, known: Timeline, doubt: Exception) -> None:
    try:
        with environment.locked() as held:
            if _stands(held, completed, known):
                return
            held.lease.check()
            remove_instant_files(held.storage, held.config, completed)
            if completed.action.writes_data and not _own_files(held, completed):
                take_back_update(held, completed.requested_at)
    except (FencedError, LockNotAcquiredError, StorageError) as error:
        raise CommitOutcomeUnknownError(
            f"the lock was lost while {completed} was being completed, and what became of it could not be found out "
            f"({error}); reload the table to see whether it stands.",
            instant=completed.requested_at.value,
        ) from doubt
    raise FencedError(
        f"instant {completed} was rolled back or completed by another process while this one did not answer. Nothing "
        "of it was left; reload the table and write again."
    ) from doubt


def _stands(environment: TableEnvironment, completed: Instant, known: Timeline) -> bool:
    """Whether nobody has rolled the instant back, or completed it as well. The caller holds the lock."""
    storage, config = environment.storage, environment.config
    mine = _own_files(environment, completed)
    own_path = instant_path(config, completed)
    paths = {instant_path(config, i) for i in mine if i.is_completed}
    if own_path not in paths or not any(i.state is State.INFLIGHT for i in mine):
        # An archive takes the earlier states first, after the archived timeline has the instant.
        archived = find_archived(storage, config, completed)
        return archived is not None and archived.instant.completed_at == completed.completed_at
    if len(paths) > 1:
        return False
    timeline = environment.load_timeline()
    if find_rollback(environment.storage, environment.config, timeline, completed) is not None:
        return False
    before = {i.requested_at for i in known}
    return not any(
        load_rollback_target(storage, config, rollback) == completed.requested_at
        for rollback in timeline.completed
        if rollback.action is Action.ROLLBACK and rollback.requested_at not in before
    )


def _own_files(environment: TableEnvironment, target: Instant) -> list[Instant]:
    files = load_instant_files(environment.storage, environment.config)
    same = [i for i in files if i.requested_at == target.requested_at]
    return [i for i in same if i.action.completed_as is target.action.completed_as]
