"""Executing a clean: files are deleted without the lock, the result is published under it.

An unfinished clean comes first, and deletes exactly what its plan says. Files are deleted before the metadata table is
updated, and the clean completes last, so that a clean whose process died can be repeated from the start. A partition is
removed under the lock, and only if no write is pending and only its metadata file is left: a writer that does not find
it creates it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from tablekeeper.config.clean_settings import CleanSettings
from tablekeeper.engine.protocol import Engine
from tablekeeper.errors import CommitOutcomeUnknownError, FencedError, UnsupportedFeatureError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.format.plans import CleanedPartition, CleanMetadata, CleanPlan, encode_clean_metadata
from tablekeeper.model import Action, RequestedTime, join_path
from tablekeeper.services.clean.guard import Taken, take_clean
from tablekeeper.services.clean.leftovers import roll_back_leftovers
from tablekeeper.services.clean.plan import BYTES_KEY
from tablekeeper.services.clean.publish import draft_and_publish
from tablekeeper.services.clean.results import CleanResult
from tablekeeper.snapshot.integrity import refuse_lost_timeline
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.timeline import Timeline
from tablekeeper.txn.commit import refuse_during_restore
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment
from tablekeeper.txn.late_files import sweep_late_files
from tablekeeper.txn.publish import CleanUpdate, Publication

__all__ = ["DeleteTask", "Progress", "delete_files", "execute_clean", "finish_cleans"]

Progress = Callable[[int, int], None]
"""Called with the number of deleted files, and the total."""

T = TypeVar("T")

_BATCH = 1_000
_MANY = 50_000
_DRIVER_WIDTH = 8


@dataclass(frozen=True, slots=True)
class DeleteTask:
    """Files that one task deletes, relative to the table."""

    store: StorageHandle
    paths: tuple[str, ...]


def delete_files(task: DeleteTask) -> int:
    """Delete the files of a task; files that do not exist are no error. May run again."""
    task.store.storage.delete_many(task.paths)
    return len(task.paths)


def execute_clean(
    environment: TableEnvironment,
    settings: CleanSettings,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> CleanResult | None:
    """Clean the table: writes that died are rolled back, unfinished cleans finished, and a new one planned and run.

    None if there is nothing to delete. Raises `PlanHeldError` if another process is cleaning.
    """
    worker = _Worker(environment, settings, engine, progress or (lambda done, total: None))
    timeline = environment.load_timeline()
    refuse_lost_timeline(environment.storage, environment.config, timeline)
    refuse_during_restore(environment, timeline)
    rolled_back = roll_back_leftovers(environment)
    sweep_late_files(environment)
    finished = worker.finish_all()
    published = draft_and_publish(environment, settings, begins=True)
    if published.taken is not None:
        result = worker.carry_out(published.taken)
        earlier = tuple(each.instant for each in finished)
    elif finished:
        result = finished[-1]
        earlier = tuple(each.instant for each in finished[:-1])
    else:
        return None
    return replace(result, finished_before=earlier, rolled_back=rolled_back)


def finish_cleans(
    environment: TableEnvironment,
    settings: CleanSettings,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> list[CleanResult]:
    """Execute the cleans that are on the timeline, Java's too, and plan none."""
    worker = _Worker(environment, settings, engine, progress or (lambda done, total: None))
    refuse_during_restore(environment, environment.load_timeline())
    return worker.finish_all()


@dataclass(frozen=True)
class _Worker:
    environment: TableEnvironment
    settings: CleanSettings
    engine: Engine | None
    progress: Progress

    def finish_all(self) -> list[CleanResult]:
        timeline = self.environment.load_timeline()
        results = []
        for clean in timeline.pending:
            taken = take_clean(self.environment, clean.requested_at) if clean.action is Action.CLEAN else None
            if taken is not None:
                results.append(self.carry_out(taken))
        return results

    def carry_out(self, taken: Taken) -> CleanResult:
        """Delete what the plan names, and complete it. A failure leaves the clean to be taken over at once."""
        clock = self.environment.runtime.clock
        started_s = clock.monotonic_s()
        try:
            self._delete(taken)
            result = self._complete(taken, started_s=started_s)
        except CommitOutcomeUnknownError:
            # The last request may still succeed: nobody may repeat the clean before that is known.
            taken.heartbeat.abandon()
            raise
        except BaseException:
            taken.heartbeat.stop()
            raise
        taken.heartbeat.stop()
        return replace(result, seconds=clock.monotonic_s() - started_s)

    def _delete(self, taken: Taken) -> None:
        """Files in bounded batches; an engine with worker processes is used only for very many files."""
        paths = [join_path(partition, name) for partition, names in _names(taken.plan).items() for name in names]
        store = StorageHandle(self.environment.storage)
        tasks = [DeleteTask(store, batch) for batch in _batches(paths, _BATCH)]
        if self.engine is not None and self.engine.has_workers and len(paths) > _MANY:
            done = 0
            for group in _batches(tasks, self.settings.parallelism):
                taken.heartbeat.check()
                done += sum(self.engine.run(delete_files, group, label="clean"))
                self.progress(done, len(paths))
            return

        def delete(task: DeleteTask) -> int:
            taken.heartbeat.check()
            return delete_files(task)

        done = 0
        width = min(self.settings.parallelism, _DRIVER_WIDTH)
        for count in self.environment.runtime.threads.map_unordered(delete, tasks, width=width):
            done += count
            self.progress(done, len(paths))

    def _complete(self, taken: Taken, *, started_s: float) -> CleanResult:
        environment, plan = self.environment, taken.plan
        with environment.locked() as held:
            timeline = held.load_timeline()
            mine = timeline.find(taken.inflight.requested_at)
            if mine is None:
                raise FencedError(
                    f"clean {taken.inflight} is no longer on the timeline. Reload the table before going on."
                )
            if mine.is_completed:
                return _result(taken, deleted_partitions=(), lock_held_s=held.lease.held_s)
            taken.heartbeat.check()
            held.lease.check()
            removed = _remove_partitions(held, timeline, plan.partitions_to_delete)
            publication = Publication(held, taken.inflight, known=timeline, check=taken.heartbeat.check)
            publication.update_metadata_table(CleanUpdate(_names(plan), removed))
            duration_ms = int((held.runtime.clock.monotonic_s() - started_s) * 1000)
            metadata = _metadata(taken.inflight.requested_at, plan, removed, duration_ms=duration_ms)
            publication.complete(encode_clean_metadata(metadata))
        return _result(taken, deleted_partitions=removed, lock_held_s=held.lease.held_s)


def _is_written(timeline: Timeline) -> bool:
    """Whether a writer may be about to put a file into a partition."""
    return bool(timeline.pending_ingestion)


def _remove_partitions(held: LockedEnvironment, timeline: Timeline, partitions: Iterable[str]) -> tuple[str, ...]:
    """Remove partitions in which nothing is left. The lock is held, so that nobody begins to write."""
    if _is_written(timeline):
        return ()
    storage = held.storage
    removed = []
    for partition in partitions:
        files = storage.list_files(partition) if partition else []
        is_bare = all(file.name.startswith(PARTITION_METADATA_NAME) for file in files)
        if partition and is_bare and not storage.list_directories(partition):
            # By name: files that were added since the listing must stay.
            _remove_bare(held, [file.path for file in files])
            removed.append(partition)
    return tuple(removed)


def _remove_bare(held: LockedEnvironment, paths: list[str]) -> None:
    """Delete what makes a directory a partition; bring it back if the lock was lost meanwhile.

    By then another process may have committed rows to the partition, which readers do not find without these files. A
    store with scopes prevents such late deletions.
    """
    if held.storage.has_scopes:
        held.storage.delete_many(paths)
        return
    contents = held.runtime.threads.map(held.storage.read, paths)
    held.storage.delete_many(paths)
    try:
        held.lease.look()
    except FencedError:
        for path, content in zip(paths, contents, strict=True):
            held.unlocked.storage.put_if_absent(path, content)
        raise


def _names(plan: CleanPlan) -> dict[str, tuple[str, ...]]:
    """File names by partition. Full paths are spelled in many ways; partition and name are not."""
    if any(file.is_bootstrap_base_file for files in plan.files.values() for file in files):
        raise UnsupportedFeatureError("the clean deletes files outside of the table (bootstrap): run it in Java.")
    return {p: tuple(file.path.rpartition("/")[2] for file in files) for p, files in plan.files.items()}


def _metadata(
    requested_at: RequestedTime, plan: CleanPlan, removed: tuple[str, ...], *, duration_ms: int
) -> CleanMetadata:
    names = _names(plan)
    retained = plan.earliest_instant_to_retain
    partitions = {
        partition: CleanedPartition(
            partition=partition,
            policy=plan.policy,
            delete_patterns=names.get(partition, ()),
            succeeded=names.get(partition, ()),
            is_partition_deleted=partition in removed,
        )
        for partition in sorted({*names, *removed})
    }
    return CleanMetadata(
        started_at=requested_at.value,
        duration_ms=duration_ms,
        files_deleted=sum(map(len, names.values())),
        earliest_commit_to_retain=retained.timestamp if retained is not None else "",
        last_completed_commit=plan.last_completed_commit,
        partitions=partitions,
        extra_metadata=plan.extra_metadata,
    )


def _result(taken: Taken, *, deleted_partitions: tuple[str, ...], lock_held_s: float) -> CleanResult:
    plan = taken.plan
    size = plan.extra_metadata.get(BYTES_KEY, "")
    retained = plan.earliest_instant_to_retain
    return CleanResult(
        instant=taken.inflight.requested_at,
        policy=plan.policy,
        files_deleted=sum(map(len, plan.files.values())),
        bytes=int(size) if size.isascii() and size.isdigit() else None,
        partitions=tuple(sorted({*plan.files, *deleted_partitions})),
        deleted_partitions=deleted_partitions,
        earliest_retained=retained.timestamp if retained is not None else "",
        was_resumed=taken.was_resumed,
        lock_held_s=lock_held_s,
    )


def _batches(items: Iterable[T], size: int) -> Iterable[tuple[T, ...]]:
    remaining = iter(items)
    while batch := tuple(islice(remaining, size)):
        yield batch
