"""Early conflict detection: a write that would lose is stopped before it writes data, not when it commits.

Optional, as in Java. Markers announce the files of a writer, and its heartbeat shows that it is running. Before a write
starts its tasks, it reads the markers of all live writers that began before it, and gives up if one of them is writing
to the same file group, or to the same bucket if the table has a bucket index. Only the later of two writers gives up,
because each looks only at earlier ones.

After this check the write announces all its own file groups, so that others see all of its work and not only the files
that it has started. Both happen on the driver. While an earlier writer is still running, the tasks run in waves with
another check before each; if there is none, only the announcements cost something.

Markers show only the present moment, so the check under the lock before the commit remains decisive. Compaction and
clustering are not checked; they do not keep writers waiting.
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

# A token that no task uses: such a file is announced and never written.
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
        # Nobody else can have a group that was just invented, but they can have the same bucket.
        self._planned = [each for each in planned if environment.by_bucket or not each.is_new]
        self._groups = frozenset(each.group for each in self._planned)
        # Times are assigned under the lock: a write that began earlier was pending when this one began.
        self._earlier = list(write.at_start.pending_ingestion)

    def announce(self) -> None:
        """Raise `ConflictError` if there is a conflict; otherwise announce what this write will touch."""
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
        """The numbers of the tasks in waves, with a check before each wave."""
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
    """Before a retry: wait until the writer that `error` names has ended.

    An immediate retry would meet the same writer again. Waits no longer than for the lock; then the retry takes place
    anyway. Returns at once if detection is off or the other writer has committed.
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
