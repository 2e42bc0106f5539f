"""One write from the caller's rows to the commit: check, stage, begin, tag, write, commit.

Everything that can be wrong with the rows is found while they are staged, before the timeline is touched. From
`begin_write` on, any failure withdraws the write: it leaves no trace that a reader could see.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate

from tablekeeper.config.write_settings import SortMode
from tablekeeper.engine.protocol import Frame, SourceKernel
from tablekeeper.errors import (
    EmptyWriteError,
    InvalidRequestError,
    NotFoundError,
    StorageError,
    TablekeeperError,
)
from tablekeeper.model import CompletionTime, FileGroupId, FileSlice, Operation
from tablekeeper.snapshot.snapshot import Snapshot, load_partitions, load_replaced, load_snapshot
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.timeline.history import archived_completions
from tablekeeper.txn.attempts import AttemptGuard
from tablekeeper.txn.cancelled_plans import remove_cancelled_plans
from tablekeeper.txn.commit import OpenWrite, announce_write, begin_write
from tablekeeper.txn.concurrent_commits import NoPhantoms, Phantoms, load_planned_groups
from tablekeeper.txn.early_conflict import EarlyConflicts, PlannedGroup
from tablekeeper.txn.rollback import failed_writes, rollback_instant, withdraw_idle_rollbacks, withdraw_write
from tablekeeper.write.bulk import write_live_files, write_new_files
from tablekeeper.write.context import WriteContext
from tablekeeper.write.finish import file_ids_by_partition, finish_write
from tablekeeper.write.global_look_up import look_up_everywhere
from tablekeeper.write.homes import LocatedRows
from tablekeeper.write.kernels import BinTask, write_bin
from tablekeeper.write.layout_checks import PARTITIONS_TO_CHECK, ensure_partitions, refuse_wrong_index
from tablekeeper.write.phantoms import PhantomFileGroups, PhantomKeys, base_ends
from tablekeeper.write.plan import (
    NewBuckets,
    OwnBuckets,
    PlannedRows,
    SharedBuckets,
    WorkKind,
    gather_bins,
    partition_rows,
    plan_buckets,
    plan_partition,
)
from tablekeeper.write.prepare import KnownCommits, WriteRequest
from tablekeeper.write.record_look_up import look_up_records
from tablekeeper.write.results import WriteResult, WrittenFile
from tablekeeper.write.schema import refuse_changed_schema
from tablekeeper.write.staging import StagedBatch, refuse_too_many_partitions, stage_keys, stage_rows
from tablekeeper.write.tagging import SliceKeys, Tagged, TagTask, find_keys, overtaken_logs, plan_look_up

__all__ = ["delete_partitions", "execute_staged", "execute_write", "staging_kernel"]


_LOG = logging.getLogger(__name__)
# Rows and files are marked with numbers of tasks: the two kinds of tasks of one write must not share numbers.
_GATHERING = 1 << 20
_TASKS_A_CORE = 2


def execute_write(request: WriteRequest, source: Frame) -> WriteResult:
    """Write the rows of `source`, or raise and leave the table as it was."""
    with _timed_and_tidy(request) as finish:
        if request.writes_directly:
            return finish(_write_directly(request, source))
        label = f"stage {request.operation.value.lower()}"
        staged = request.engine.consume(staging_kernel(request.operation), request.context, source, label=label)
        return finish(_write_staged(request, staged))


def staging_kernel(operation: Operation) -> SourceKernel[WriteContext, StagedBatch]:
    """The kernel that stages the rows of this operation; for deletes only their keys."""
    return stage_keys if operation is Operation.DELETE else stage_rows


def execute_staged(request: WriteRequest, staged: Sequence[StagedBatch]) -> WriteResult:
    """`execute_write` for rows that the kernel of `staging_kernel` has already staged, wherever it ran."""
    with _timed_and_tidy(request) as finish:
        return finish(_write_staged(request, staged))


def delete_partitions(request: WriteRequest, partitions: Sequence[str]) -> WriteResult:
    """Hide all file groups of these partitions."""
    with _timed_and_tidy(request) as finish, _begun(request, announces=True) as write:
        replaced = _load_snapshot(request, write, partitions).latest
        if not replaced:
            raise InvalidRequestError(
                f"no rows in the partitions {', '.join(partitions)}: nothing to delete. "
                "Give partition paths as `Table.files()` shows them."
            )
        announce_write(request.environment, write, (each.group for each in replaced))
        context = request.context.for_attempt(write.attempt)
        return finish(_finish(request, write, context, [], replaced, phantoms=PhantomFileGroups(frozenset(partitions))))


def _write_directly(request: WriteRequest, source: Frame) -> WriteResult:
    with _begun(request) as write:
        context = request.context.for_attempt(write.attempt)
        parts = context.settings.bulk_insert_tasks
        if request.is_bulk and context.settings.bulk_insert_sort is SortMode.GLOBAL_SORT:
            columns = [*(field.name for field in context.partition.fields), *context.key.fields]
            source = request.engine.sort(source, columns, parts=parts)
        kernel = write_new_files if request.is_bulk else write_live_files
        label = request.operation.value.lower()
        written = request.engine.consume(kernel, context, source, label=label, parts=parts)
        files = [each for each in written if isinstance(each, WrittenFile)]
        files += _write_gathered(request, write, context, [each for each in written if isinstance(each, StagedBatch)])
        if not files:
            raise _nothing_to_write(request)
        partitions = sorted({f.stat.group.partition for f in files})
        refuse_too_many_partitions(len(partitions), context)
        if write.at_start.completed_writes:
            known = _load_snapshot(request, write, partitions[:PARTITIONS_TO_CHECK])
            refuse_wrong_index(context, known.latest)
        phantoms = _phantoms_of_overwrite(request, partitions)
        return _finish(request, write, context, files, _replaced_slices(request, write, partitions), phantoms=phantoms)


def _write_gathered(
    request: WriteRequest, write: OpenWrite, context: WriteContext, staged: Sequence[StagedBatch]
) -> list[WrittenFile]:
    """New files for rows that were too scattered for the tasks of the source."""
    if not staged:
        return []
    by_partition = _by_partition(staged)
    refuse_too_many_partitions(len(by_partition), context)
    return _write_groups(request, write, context, _plan(request, write, by_partition, None), first=_GATHERING)


def _write_staged(request: WriteRequest, staged: Sequence[StagedBatch]) -> WriteResult:
    if not staged:
        raise _nothing_to_write(request)
    by_partition = _by_partition(staged)
    refuse_too_many_partitions(len(by_partition), request.context)
    with _begun(request, announces=True) as write:
        context = request.context.for_attempt(write.attempt)
        # Rows that replace a partition go into new groups: the existing ones do not matter.
        slices: Sequence[FileSlice] | None = None
        indexed = _look_up_records(request, write, context, by_partition)
        found = indexed or _look_up_everywhere(request, write, context, staged)
        if found is not None:
            slices = found.slices
        elif not request.replaces:
            slices = _load_input(request, write, list(by_partition)).latest
        if slices is not None:
            refuse_wrong_index(context, slices)
        planned = _plan(request, write, by_partition, slices, found)
        partitions = sorted(by_partition)
        replaced = _replaced_slices(request, write, partitions)
        touched = [each.group for rows in planned for each in rows.work] + [each.group for each in replaced or ()]
        filled = sorted({each.group.partition for rows in planned for each in rows.work})
        request.runtime.threads.together(
            lambda: announce_write(request.environment, write, touched),
            lambda: ensure_partitions(request.environment, write, context, filled),
        )
        files = _write_groups(request, write, context, planned)
        phantoms = _phantoms_of_overwrite(request, partitions)
        if request.tags_keys and slices is not None:
            beside_others = request.is_mor and write.at_start.pending_ingestion
            ends = base_ends(write.at_start, slices) if beside_others else {}
            is_global = context.looks_everywhere
            phantoms = PhantomKeys(request.engine, context, by_partition, ends, is_global=is_global)
        indexes = indexed is not None
        return _finish(
            request, write, context, files, replaced, phantoms=phantoms, uses_record_index=indexes, ensured=filled
        )


def _look_up_records(
    request: WriteRequest, write: OpenWrite, context: WriteContext, by_partition: Mapping[str, Sequence[StagedBatch]]
) -> LocatedRows | None:
    if not request.uses_record_index:
        return None
    load = partial(_load_input, request, write)
    by = request.policy.indexes.keys_by_partition
    return look_up_records(
        request.environment, request.engine, context, write.at_start, by_partition, load=load, by_partition=by
    )


def _look_up_everywhere(
    request: WriteRequest, write: OpenWrite, context: WriteContext, staged: Sequence[StagedBatch]
) -> LocatedRows | None:
    """The same in the files, where there is no record index, or none any more."""
    if not context.looks_everywhere:
        return None
    snapshot = _load_input(request, write, None)
    return look_up_everywhere(
        request.engine,
        context,
        snapshot,
        staged,
        base_ends=_base_ends(request, write, [each for each in snapshot.latest if each.logs]),
        deletes=request.operation is Operation.DELETE,
    )


def _by_partition(staged: Sequence[StagedBatch]) -> dict[str, list[StagedBatch]]:
    by_partition: dict[str, list[StagedBatch]] = defaultdict(list)
    for batch in staged:
        by_partition[batch.partition].append(batch)
    return by_partition


def _write_groups(
    request: WriteRequest, write: OpenWrite, context: WriteContext, planned: Sequence[PlannedRows], *, first: int = 0
) -> list[WrittenFile]:
    """Run the work of all file groups, unless an earlier writer is detected in one of them.

    Files are numbered from `first` on.
    """
    early = None
    if request.environment.concurrency.early.is_enabled:
        work = [each for rows in planned for each in rows.work]
        groups = [PlannedGroup(each.group, each.kind is WorkKind.APPEND, each.file_slice is None) for each in work]
        early = EarlyConflicts(request.environment, write, groups)
        early.announce()
    bins = gather_bins(request.engine, context, planned)
    deletes = request.operation is Operation.DELETE
    orders_keys = request.is_bulk and context.settings.bulk_insert_sort.orders_keys
    numbers = accumulate((len(each.work) for each in bins), initial=first)
    tasks = [
        BinTask(context, each, number, request.combines, deletes, request.is_bulk, orders_keys)
        for each, number in zip(bins, numbers, strict=False)
    ]
    files: list[WrittenFile] = []
    waves = early.waves(len(tasks), width=request.engine.parallelism) if early is not None else [range(len(tasks))]
    for wave in waves:
        # A process that slept for long must not begin to write files that nobody would clean up.
        write.heartbeat.check()
        written = request.engine.run(
            write_bin,
            [tasks[number] for number in wave],
            label=request.operation.value.lower(),
            weights=[bins[number].weight for number in wave],
        )
        files += [file for files_of_bin in written for file in files_of_bin]
    return files


@contextmanager
def _timed_and_tidy(request: WriteRequest) -> Iterator[Callable[[WriteResult], WriteResult]]:
    """Wraps a whole write: yields a function that adds the duration to a result; removes staged rows on failure."""
    clock = request.runtime.clock
    started_s = clock.monotonic_s()
    try:
        yield lambda result: replace(result, seconds=clock.monotonic_s() - started_s)
    except BaseException:
        _remove_staged(request)
        raise


def _remove_staged(request: WriteRequest) -> None:
    try:
        request.environment.storage.delete_tree(request.context.staging)
    except StorageError as error:
        # The outcome of the write does not depend on its scratch files.
        _LOG.warning("%s was left behind: %s", request.context.staging, error)


@contextmanager
def _begun(request: WriteRequest, *, announces: bool = False) -> Iterator[OpenWrite]:
    """A write on the timeline, withdrawn if the block fails. See `begin_write` for `announces`."""
    environment = request.environment
    write = begin_write(
        environment, action=request.action, operation=request.operation, plan=request.plan, announces=announces
    )
    try:
        if write.at_start.pending:
            withdraw_idle_rollbacks(environment, write.at_start)
            for dead in failed_writes(environment, write.at_start):
                rollback_instant(environment, dead)
            remove_cancelled_plans(environment, write.at_start)
        refuse_changed_schema(environment, request.known_schema, write)
        if request.replaces and not len(write.at_start):
            # Files without any instant are damage, which can only be detected before this write adds files.
            load_snapshot(environment.storage, environment.config, write.at_start, runtime=environment.runtime)
        try:
            yield write
        except NotFoundError:
            # Another process may have ended this write and deleted its files, and a clean may have deleted its input.
            AttemptGuard(StorageHandle(environment.storage), write.attempt, runtime=environment.runtime).check_now()
            raise
    except BaseException as error:
        try:
            withdraw_write(environment, write, error)
        except TablekeeperError as second:
            error.add_note(f"Rolling back {write.inflight} failed as well ({second}); the next writer will do it.")
        finally:
            # Even if this fails too: a dead write must not have an active heartbeat.
            write.heartbeat.stop()
        raise


def _phantoms_of_overwrite(request: WriteRequest, partitions: Sequence[str]) -> Phantoms:
    if not request.replaces:
        return NoPhantoms()
    return PhantomFileGroups(None if request.operation is Operation.INSERT_OVERWRITE_TABLE else frozenset(partitions))


def _replaced_slices(
    request: WriteRequest, write: OpenWrite, partitions: Sequence[str]
) -> tuple[FileSlice, ...] | None:
    """The slices that an overwrite of these partitions hides; None for other writes."""
    if not request.replaces:
        return None
    if not len(write.at_start):
        return ()
    environment = request.environment
    if request.operation is Operation.INSERT_OVERWRITE_TABLE:
        partitions = load_partitions(
            environment.storage, environment.config, write.at_start, runtime=environment.runtime
        )
    return _load_snapshot(request, write, partitions).latest


def _finish(
    request: WriteRequest,
    write: OpenWrite,
    context: WriteContext,
    files: Sequence[WrittenFile],
    replaced: Sequence[FileSlice] | None,
    *,
    phantoms: Phantoms,
    uses_record_index: bool = False,
    ensured: Sequence[str] = (),
) -> WriteResult:
    return finish_write(
        request.environment,
        write,
        context,
        files=files,
        replaced=None if replaced is None else file_ids_by_partition(replaced),
        extra=request.extra,
        engine=request.engine,
        policy=request.policy,
        phantoms=phantoms,
        known_schema=request.known_schema,
        uses_record_index=uses_record_index,
        refuse=request.refuse,
        ensured=ensured,
        tidy=lambda: _remove_staged(request),
    )


def _load_input(request: WriteRequest, write: OpenWrite, partitions: Sequence[str] | None) -> Snapshot:
    """The slices that a write builds on. An overwrite does not: it may be what makes up for a lost file."""
    return _load_snapshot(request, write, partitions, known=request.known_commits)


def _load_snapshot(
    request: WriteRequest, write: OpenWrite, partitions: Sequence[str] | None, *, known: KnownCommits = ()
) -> Snapshot:
    """The slices of these partitions when the write began; of all if that is None."""
    environment = request.environment
    return load_snapshot(
        environment.storage,
        environment.config,
        write.at_start,
        runtime=environment.runtime,
        partitions=partitions,
        known=known,
    )


def _plan(
    request: WriteRequest,
    write: OpenWrite,
    by_partition: Mapping[str, Sequence[StagedBatch]],
    found: Sequence[FileSlice] | None,
    located: LocatedRows | None = None,
) -> list[PlannedRows]:
    only_updates = request.operation is Operation.DELETE and not _may_share_with_earlier(request, write)
    in_plans = load_planned_groups(request.environment, write.at_start)
    new_buckets = _new_buckets(request, write)
    slices: dict[str, list[FileSlice]] = defaultdict(list)
    # A bulk insert makes new groups, however small the existing files are.
    fills = request.has_buckets or not request.is_bulk
    for file_slice in found if found is not None and fills else ():
        slices[file_slice.group.partition].append(file_slice)
    tagged: Mapping[str, Sequence[Tagged]] = {}
    if located is not None:
        by_partition, tagged = located.staged, located.tagged
    elif request.tags_keys:
        tagged = _look_up(request, write, by_partition, slices)
    planned: list[PlannedRows] = []
    for partition, staged in sorted(by_partition.items()):
        rows = partition_rows(partition, staged, slices[partition], tagged.get(partition, ()), planned=in_plans)
        if request.has_buckets:
            planned += plan_buckets(rows, is_mor=request.is_mor, only_updates=only_updates, new_buckets=new_buckets)
        else:
            settings, ids = request.context.settings, request.runtime.ids
            planned.append(plan_partition(rows, settings, is_mor=request.is_mor, only_updates=only_updates, ids=ids))
    return planned


def _may_share_with_earlier(request: WriteRequest, write: OpenWrite) -> bool:
    """Whether an earlier writer may be creating a missing bucket: deletes must reach it too.

    Log files of one slice are merged in the order in which their writers began.
    """
    is_shared = request.environment.concurrency.is_non_blocking
    return is_shared and bool(write.at_start.pending_ingestion)


def _new_buckets(request: WriteRequest, write: OpenWrite) -> NewBuckets:
    """How this write makes file groups for buckets that have none: its own, or shared with other writers.

    A bulk insert writes base files even if groups are shared; conflicts are then detected as in the optimistic mode.
    """
    environment = request.environment
    if not environment.concurrency.is_non_blocking:
        return OwnBuckets(request.runtime.ids)
    hidden = load_replaced(environment.storage, environment.config, write.at_start, runtime=environment.runtime)
    kind = WorkKind.CREATE if request.operation is Operation.BULK_INSERT else WorkKind.APPEND
    return SharedBuckets(frozenset(hidden), kind)


def _look_up(
    request: WriteRequest,
    write: OpenWrite,
    by_partition: Mapping[str, Sequence[StagedBatch]],
    slices: dict[str, list[FileSlice]],
) -> dict[str, list[Tagged]]:
    """The staged rows that the slices already have, by partition."""
    ends = _base_ends(request, write, [each for found in slices.values() for each in found if each.logs])
    size = sum(each.size for found in slices.values() for each in found) or 1
    tasks: list[tuple[str, TagTask]] = []
    for partition, staged in sorted(by_partition.items()):
        keys = [
            SliceKeys(number, each, overtaken_logs(each, ends.get(each.group)))
            for number, each in enumerate(slices[partition])
        ]
        share = sum(each.size for each in slices[partition]) / size
        count = round(_TASKS_A_CORE * request.engine.parallelism * share)
        planned = plan_look_up(request.context, keys, list(enumerate(staged)), tasks=count)
        tasks += [(partition, task) for task in planned]
    weights = [task.weight for _, task in tasks]
    found = request.engine.run(find_keys, [task for _, task in tasks], label="look up keys", weights=weights)
    tagged: dict[str, list[Tagged]] = defaultdict(list)
    for (partition, _), each in zip(tasks, found, strict=True):
        tagged[partition].append(each)
    return tagged


def _base_ends(
    request: WriteRequest, write: OpenWrite, slices: Sequence[FileSlice]
) -> dict[FileGroupId, CompletionTime | None]:
    """When the base files of these slices became visible; None if that is no longer known."""
    environment = request.environment
    archived = archived_completions(environment.storage, environment.config)
    bases = [each.base for each in slices if each.base is not None]
    return {base.group: write.at_start.completion_of(base.instant) or archived(base.instant) for base in bases}


def _nothing_to_write(request: WriteRequest) -> EmptyWriteError:
    return EmptyWriteError(
        f"the {request.operation.value.lower()} has no rows: nothing was written. "
        "Check the source; to skip empty input, test it before the call."
    )
