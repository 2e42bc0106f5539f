"""Early conflict detection: a write that is bound to lose is stopped before it writes data, not when it commits.

Optional, as in Java. A writer announces its files by markers, and shows by its heartbeat that it lives. So before a
write starts its tasks it looks at the markers of all live writers that began before it, and gives up if one of them is
writing to the same file group, or to the same bucket where the table has a bucket index. Of two writers it is always
the later one that gives up: each looks only at those before it, and so never both.

Once it has looked, the write announces all its own file groups, so that others see the whole of its work and not only
the files that have been started. Both happen on the driver. While a writer that began earlier is still running, the
tasks run in waves with another look before each; nobody being there costs nothing but the announcements.

What is found is what the markers show at that moment: the check under the lock before the commit stays the one that
decides. Compaction and clustering are not looked at; they do not keep writers waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tablekeeper.errors import ConflictError
from tablekeeper.format.data_files import encode_base_name, encode_log_name
from tablekeeper.model import FileGroupId, Instant, RequestedTime
from tablekeeper.txn.commit import OpenWrite
from tablekeeper.txn.concurrent_commits import ConflictCheck, NoPhantoms, conflict_error
from tablekeeper.txn.conflict import OwnWrite, WriteKind, overlapping_groups
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.markers import MarkerKind, create_marker, load_marked_groups

__all__ = ["EarlyConflicts", "PlannedGroup", "await_earlier_writer"]

# A token that no task draws: such a file is announced, and never written.
_NO_TASK = "0-0-0"
_WAVES_A_CORE = 4
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A file group that a write is about to write to: into a log file or a base file, a new group or an old one."""

    group: FileGroupId
    is_log: bool
    is_new: bool


class EarlyConflicts:
    """Other writers of the file groups that one write is going to touch. Made only where detection is on."""

    def __init__(self, environment: TableEnvironment, write: OpenWrite, planned: Sequence[PlannedGroup]) -> None:
        self._environment = environment
        self._write = write
        self._settings = environment.concurrency.early
        # Nobody else can have a group that has just been invented; but a bucket they can.
        self._planned = [each for each in planned if environment.by_bucket or not each.is_new]
        self._groups = frozenset(each.group for each in self._planned)
        # Times are given out under the lock: a write that began earlier was pending when this one began.
        self._earlier = list(write.at_start.pending_ingestion)

    def announce(self) -> None:
        """Raise `ConflictError` if somebody is in the way; else tell others what this write is about to touch."""
        if not self._groups:
            return
        if self._settings.is_locked:
            with self._environment.locked() as held:
                self.refuse()
                held.lease.check()
                self._create_markers(held)
            return
        self.refuse()
        self._create_markers(self._environment)

    def refuse(self) -> None:
        """Raise `ConflictError` if a live writer that began earlier has announced one of the groups."""
        if not self._groups:
            return
        if self._settings.checks_commits:
            self._refuse_commits()
        self._earlier = self._still_active()
        environment = self._environment

        def load(writer: Instant) -> frozenset[FileGroupId]:
            return load_marked_groups(environment.storage, instant=writer.requested_at.value)

        marked = environment.runtime.threads.map(load, self._earlier)
        for writer, theirs in zip(self._earlier, marked, strict=True):
            groups = overlapping_groups(own=self._groups, other=theirs, by_bucket=environment.by_bucket)
            if groups:
                raise conflict_error(
                    environment,
                    self._instant,
                    beaten_by=writer,
                    file_groups=groups,
                    reason=f"yields to {writer}, which is still writing to the same file groups",
                )

    def waves(self, tasks: int, *, width: int) -> Iterator[range]:
        """The numbers of the tasks in the parts in which to run them, with a look at the others before each."""
        start = 0
        while start < tasks:
            if start:
                self.refuse()
            watches = bool(self._groups) and bool(self._earlier)
            end = min(tasks, start + width * _WAVES_A_CORE) if watches else tasks
            yield range(start, end)
            start = end

    @property
    def _instant(self) -> RequestedTime:
        return self._write.inflight.requested_at

    def _still_active(self) -> list[Instant]:
        """Those of the earlier writers whose heartbeats are active."""
        if not self._earlier:
            return []
        environment = self._environment
        heartbeats = environment.load_heartbeats()
        return [i for i in self._earlier if heartbeats.is_active(i.requested_at)]

    def _refuse_commits(self) -> None:
        own = OwnWrite(
            instant=self._instant,
            kind=WriteKind.INGESTION,
            file_groups=self._groups,
            pending_at_start=frozenset(i.requested_at for i in self._write.at_start.pending),
        )
        timeline = self._environment.load_timeline()
        ConflictCheck(self._environment, own, NoPhantoms()).refuse_conflict(timeline)

    def _create_markers(self, environment: TableEnvironment) -> None:
        instant = self._instant.value

        def create(planned: PlannedGroup) -> None:
            file_id = planned.group.file_id
            if planned.is_log:
                name = encode_log_name(file_id=file_id, instant=instant, version=1, write_token=_NO_TASK)
            else:
                name = encode_base_name(file_id=file_id, write_token=_NO_TASK, instant=instant)
            kind = MarkerKind.CREATE if planned.is_new or planned.is_log else MarkerKind.MERGE
            create_marker(
                environment.storage,
                instant=instant,
                partition=planned.group.partition,
                file_name=name,
                kind=kind,
            )

        environment.runtime.threads.map(create, self._planned)


def await_earlier_writer(environment: TableEnvironment, error: ConflictError) -> None:
    """Before another attempt: wait until the writer that `error` gave way to has come to an end.

    A new attempt at once would find the same writer there. Waits no longer than for the lock; then the attempt is made
    all the same. Returns at once where detection is off, or the other has committed.
    """
    if not environment.concurrency.early.is_enabled or not error.beaten_by.isdigit():
        return
    writer = RequestedTime(error.beaten_by)
    clock = environment.runtime.clock
    deadline_s = clock.monotonic_s() + environment.lock_settings.acquire_timeout_s
    pause_s = _FIRST_PAUSE_S
    while clock.monotonic_s() < deadline_s and _is_writing(environment, writer):
        clock.sleep(pause_s * (0.5 + environment.runtime.ids.jitter()))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _is_writing(environment: TableEnvironment, writer: RequestedTime) -> bool:
    found = environment.load_timeline().find(writer)
    if found is None or found.is_completed or not found.action.is_ingestion:
        return False
    heartbeats = environment.load_heartbeats()
    return heartbeats.is_active(writer)
