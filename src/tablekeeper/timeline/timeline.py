"""`Timeline`: the instants of a table at one moment, as an immutable value; and the names of their files.

Invariant: one entry for each action (requested time and comparable action) in its latest state, ordered by requested
time.

A name says which instant it is, in which state. Layout 2 (table versions 8 and 9) puts the completion time into the
name of a completed file; layout 1 (version 6) has none, and completes in the order in which actions were requested. In
both, the inflight file of a commit is the only one without its action in the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State

__all__ = [
    "ArchiveReach",
    "Timeline",
    "decode_instant_name",
    "encode_instant_name",
    "latest_states",
]

ArchiveReach = Callable[[], RequestedTime | None]
"""The newest instant that the archived timeline may hold; None if nothing has been archived."""


def latest_states(instants: Iterable[Instant]) -> tuple[Instant, ...]:
    """One instant for each action, in its latest state, by requested time."""
    # By the text of the time, which is hashed faster than the time: a timeline is loaded under the lock.
    latest: dict[tuple[str, Action], Instant] = {}
    for instant in instants:
        key = (instant.requested_at.value, instant.action.completed_as)
        known = latest.get(key)
        if known is None or instant.state.rank > known.state.rank:
            latest[key] = instant
    return tuple(sorted(latest.values(), key=lambda i: (i.requested_at.order, i.action.value)))


def _nothing_archived() -> RequestedTime | None:
    return None


@dataclass(frozen=True)
class Timeline:
    """The active timeline. Instants before its first write have been archived, as far as the archive reaches.

    `log_compactions` are requested times of log compactions, also of completed ones, which are delta commits then.
    `archive` is called only for an instant that is older than all of these.
    """

    instants: tuple[Instant, ...] = ()
    log_compactions: frozenset[RequestedTime] = frozenset()
    archive: ArchiveReach = field(default=_nothing_archived, compare=False, repr=False)

    @classmethod
    def of(cls, instants: Iterable[Instant], *, archive: ArchiveReach = _nothing_archived) -> Timeline:
        known = tuple(instants)
        compactions = frozenset(i.requested_at for i in known if i.action is Action.LOG_COMPACTION)
        return cls(latest_states(known), compactions, archive)

    def __iter__(self) -> Iterator[Instant]:
        return iter(self.instants)

    def __len__(self) -> int:
        return len(self.instants)

    @cached_property
    def completed(self) -> tuple[Instant, ...]:
        """Completed instants by requested time."""
        return tuple(i for i in self.instants if i.is_completed)

    @cached_property
    def pending(self) -> tuple[Instant, ...]:
        """Requested and inflight instants by requested time."""
        return tuple(i for i in self.instants if i.is_pending)

    @cached_property
    def pending_plans(self) -> tuple[Instant, ...]:
        """Pending compactions, log compactions and clusterings, also those being executed, by requested time."""
        return tuple(i for i in self.pending if i.action.is_plan)

    @cached_property
    def pending_ingestion(self) -> tuple[Instant, ...]:
        """Writes of rows that have begun and not completed, by requested time."""
        return tuple(i for i in self.pending if i.action.is_ingestion)

    @cached_property
    def pending_rollbacks(self) -> tuple[Instant, ...]:
        """Rollbacks that were begun and are not finished, by requested time."""
        return tuple(i for i in self.pending if i.action is Action.ROLLBACK)

    @cached_property
    def unfinished(self) -> frozenset[RequestedTime]:
        """When what is pending was requested, savepoints left out: each has the time of a commit that stands."""
        return frozenset(i.requested_at for i in self.pending if i.action is not Action.SAVEPOINT)

    @cached_property
    def completed_writes(self) -> tuple[Instant, ...]:
        """Completed commits, delta commits and replace commits by requested time."""
        return tuple(i for i in self.completed if i.action.writes_data)

    @cached_property
    def completed_writes_by_completion(self) -> tuple[Instant, ...]:
        """Completed commits, delta commits and replace commits in the order in which they became visible."""
        return tuple(sorted(self.completed_writes, key=lambda i: (i.completed_at, i.requested_at)))

    @cached_property
    def _completions(self) -> dict[RequestedTime, CompletionTime]:
        # A savepoint shares the requested time of the commit that it protects.
        return {
            i.requested_at: i.completed_at
            for i in self.completed
            if i.completed_at is not None and i.action is not Action.SAVEPOINT
        }

    @cached_property
    def first_active_write(self) -> RequestedTime | None:
        """The oldest write that is not savepointed: completed writes before it are archived.

        If all writes are savepointed, as after a restore, it is the newest: instants that would count as archived after
        a further write do so without it.
        """
        savepoints = {i.requested_at for i in self.instants if i.action is Action.SAVEPOINT}
        writes = [i.requested_at for i in self.instants if i.action.writes_data]
        newest = writes[-1] if writes else None
        return next((requested_at for requested_at in writes if requested_at not in savepoints), newest)

    @cached_property
    def _archived_until(self) -> RequestedTime | None:
        return self.archive()

    def without(self, requested_at: RequestedTime) -> Timeline:
        """The same without the action requested at this time."""
        return replace(self, instants=tuple(i for i in self.instants if i.requested_at != requested_at))

    def find(self, requested_at: RequestedTime) -> Instant | None:
        """The instant requested at this time; the write itself where a savepoint shares the time."""
        found = [i for i in self.instants if i.requested_at == requested_at]
        writes = [i for i in found if i.action is not Action.SAVEPOINT]
        return next(iter(writes or found), None)

    def completion_of(self, requested_at: RequestedTime) -> CompletionTime | None:
        """When the action completed; None if it is pending, unknown or archived."""
        return self._completions.get(requested_at)

    def is_archived(self, requested_at: RequestedTime) -> bool:
        """True if the time is before the active timeline and within the archive: its action was archived.

        A write that died before the first completed one is older than the active timeline too, but was never archived.
        """
        if self.first_active_write is None or requested_at >= self.first_active_write:
            return False
        return self._archived_until is not None and requested_at <= self._archived_until

    def has_lost(self, earlier: Timeline) -> bool:
        """Whether a completed write of `earlier` was rolled back or archived since, or a pending one may have been.

        The timelines do not show which: a commit that was rolled back at the front looks archived. Anything planned on
        the earlier timeline has to be planned again.
        """
        here = {instant.requested_at for instant in self.instants}
        is_lost = any(i.requested_at not in self._completions for i in earlier.completed_writes)
        return is_lost or any(
            i.requested_at not in here and self.is_archived(i.requested_at)
            for i in earlier.pending
            if i.action.writes_data
        )

    def is_completed(self, requested_at: RequestedTime) -> bool:
        return requested_at in self._completions or self.is_archived(requested_at)

    @cached_property
    def newest_time(self) -> str:
        """The greatest requested or completion time on the timeline, `""` if it is empty."""
        times = [i.requested_at.value for i in self.instants]
        times += [i.completed_at.value for i in self.completed if i.completed_at is not None]
        return max(times, default="")


_NAME = re.compile(r"(\d+)(?:_(\d+))?\.([a-z]+)(?:\.([a-z]+))?", re.ASCII)
_ACTIONS = {action.value: action for action in Action}
_PENDING = {State.REQUESTED.value: State.REQUESTED, State.INFLIGHT.value: State.INFLIGHT}


def encode_instant_name(instant: Instant, *, layout: int = 2) -> str:
    """The file name of the instant in its state.

    A completed instant without completion time, legal in a table upgraded from layout 1, has none in its name.
    """
    requested = instant.requested_at.value
    action = instant.action
    if layout == 1 and action is Action.CLUSTERING:
        action = Action.REPLACE_COMMIT
    if instant.state is State.COMPLETED:
        name = action.completed_as.value
        if layout == 1 or instant.completed_at is None:
            return f"{requested}.{name}"
        return f"{requested}_{instant.completed_at.value}.{name}"
    if instant.state is State.INFLIGHT and action is Action.COMMIT:
        return f"{requested}.inflight"
    return f"{requested}.{action.value}.{instant.state.value}"


def decode_instant_name(name: str, *, layout: int = 2) -> Instant | None:
    """The instant that a file name stands for, None if the file is no instant.

    A completed file of layout 2 without completion time gives `completed_at=None`: its time is then the
    file's last change, which only the reader of the directory knows.
    """
    found = _NAME.fullmatch(name)
    if not found:
        return None
    requested, completed, word, state_word = found.groups()
    if word == State.INFLIGHT.value and state_word is None:
        word, state_word = Action.COMMIT.value, State.INFLIGHT.value
    action = _ACTIONS.get(word)
    if action is None or (completed and (layout == 1 or state_word)):
        return None
    if state_word is not None:
        state = _PENDING.get(state_word)
        return Instant(RequestedTime(requested), action, state) if state else None
    if action.is_plan:
        return None
    if layout == 1:
        completed = requested
    return Instant(RequestedTime(requested), action, State.COMPLETED, CompletionTime(completed) if completed else None)
