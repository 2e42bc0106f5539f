"""Concurrent writers of other programs, mainly Java, when a plan is scheduled.

A Java writer takes its instant time first, puts it on the timeline, and loads the timeline later. One of our plans that
is scheduled and completed in between has a later time than the writer. The writer still finds the new base files, and
may put rows into a small one of them: a file with the older time, which is hidden by ours, so that its rows are never
seen. If the writer loaded the timeline before, it may rewrite a base file that the plan merges, with the same result.

So a plan is published only when every such writer has announced what it touches. A writer does so when it goes
inflight, and has loaded its timeline by then. The announced file groups are left out and recorded as missing
partitions.

Java names the file groups of its updates. Of its inserts it only says how many go into a partition; with most indexes
small base files without logs may get them, and are left out as well.

There is no need to wait for our own writers: their commit detects such a plan. They are recognised by the text in their
heartbeat files; Java's are empty. A writer without an active heartbeat is dead, or alone on the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablekeeper.errors import ConflictError
from tablekeeper.model import FileGroupId, FileSlice, Instant, State
from tablekeeper.timeline import Timeline
from tablekeeper.txn.concurrent_commits import load_inflight
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.heartbeat import load_heartbeat_owner

__all__ = ["ForeignWrites", "await_announcements", "load_foreign_writes"]

_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class ForeignWrites:
    """Pending writes of other programs: `silent` ones have announced nothing, `announced` are the groups of the others.

    `filled` are partitions with inserts that may go into any base file without logs.
    """

    silent: tuple[Instant, ...] = ()
    announced: frozenset[FileGroupId] = frozenset()
    filled: frozenset[str] = frozenset()

    def may_rewrite(self, file_slice: FileSlice) -> bool:
        """Whether one of these writes may be making a new base file of the slice, or adding to it."""
        group = file_slice.group
        return group in self.announced or (group.partition in self.filled and not file_slice.logs)


def load_foreign_writes(environment: TableEnvironment, timeline: Timeline) -> ForeignWrites:
    """Pending writes with an active heartbeat of another program. No I/O if nothing is pending."""
    if not timeline.pending_ingestion:
        return ForeignWrites()
    heartbeats = environment.load_heartbeats()
    foreign = [
        i
        for i in timeline.pending_ingestion
        if heartbeats.is_active(i.requested_at) and load_heartbeat_owner(environment.storage, i.requested_at) == ""
    ]
    announced = [load_inflight(environment, i) for i in foreign if i.state is State.INFLIGHT]
    return ForeignWrites(
        silent=tuple(i for i in foreign if i.state is State.REQUESTED),
        announced=frozenset(group for each in announced for group in each.file_groups if group.file_id),
        filled=frozenset(
            stat.group.partition for each in announced for stat in each.stats if stat.inserts and not stat.group.file_id
        ),
    )


def await_announcements(environment: TableEnvironment, silent: tuple[Instant, ...], *, until_s: float) -> None:
    """Wait, without the lock, until these writers have announced what they touch, have ended, or are dead.

    `ConflictError` if one is still silent at `until_s` on the monotonic clock.
    """
    clock = environment.runtime.clock
    waiting = {i.requested_at for i in silent}
    while True:
        timeline = environment.load_timeline()
        left = [i for i in load_foreign_writes(environment, timeline).silent if i.requested_at in waiting]
        if not left:
            return
        if clock.monotonic_s() >= until_s:
            raise _too_long(environment, left[0])
        clock.sleep(_PAUSE_S)


def _too_long(environment: TableEnvironment, writer: Instant) -> ConflictError:
    return ConflictError(
        f"table {environment.config.name}: {writer} is another program's, which has not said yet which file "
        "groups it touches. A plan beside it could hide its rows, so that none was made. Schedule it later, or wait "
        "longer (tablekeeper.planning.announcement.wait.ms).",
        instant="",
        beaten_by=writer.requested_at.value,
        file_groups=(),
    )
