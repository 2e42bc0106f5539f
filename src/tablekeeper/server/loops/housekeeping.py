"""Keeps the service itself in order: heartbeats of instances, expired leases, old records and files, alarms."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tablekeeper.server.decisions.alarms import World, plan_alarms
from tablekeeper.server.loops.context import LoopContext, about
from tablekeeper.server.model import Alarm, ManagedTable, Operation, Status
from tablekeeper.server.store.protocol import OperationFilter, Page, TableFilter, UnknownRecordError

__all__ = ["AlarmLoop", "BeatLoop", "ExpireLoop", "PruneLoop"]

_LOG = logging.getLogger(__name__)
_BATCH = 500
_SEEN = 200
_MOST_PAGES = 100


class BeatLoop:
    """Shows other instances that this one is running."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self.is_draining = False

    def run_once(self) -> None:
        self._context.store.beat(self._context.instance, is_draining=self.is_draining)


class ExpireLoop:
    """Gives operations of dead and sleeping instances back to the queue."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context

    def run_once(self) -> int:
        expired = self._context.store.expire_leases(_BATCH)
        for operation in expired:
            _LOG.warning(
                "operation %d: the lease of %s lapsed",
                operation.operation_id,
                operation.instance_id,
                extra=about(operation),
            )
        return len(expired)


class PruneLoop:
    """Removes what is too old: records from the database, files of jobs from the working folder."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context

    def run_once(self) -> int:
        keep_s = self._context.settings.timing.keep_finished_s
        pruned = 0
        # In small transactions until nothing is left: more than one batch of operations can end between two passes.
        for _ in range(_MOST_PAGES):
            batch = self._context.store.prune(keep_s=keep_s, limit=_BATCH)
            pruned += batch
            if batch < _BATCH:
                break
        return pruned + self._prune_files(keep_s)

    def _prune_files(self, keep_s: float) -> int:
        before_s = self._context.runtime.clock.now_ms() / 1000 - keep_s
        gone = 0
        for folder in ("attempts", "jobs", "warm"):
            for path in (Path(self._context.settings.work_dir) / folder).glob("*"):
                # Other instances may share the folder: a file may already be gone.
                with suppress(FileNotFoundError):
                    if path.is_file() and path.stat().st_mtime < before_s:
                        path.unlink()
                        gone += 1
        return gone


class AlarmLoop:
    """Opens the alarms that should be open and resolves the others."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context

    def run_once(self) -> int:
        """How many were opened or resolved."""
        store, settings = self._context.store, self._context.settings
        channels = tuple(channel.name for channel in settings.channels)
        firing = {each.key: each for each in plan_alarms(self._load_world(), settings.timing)}
        still_open = {each.key: each for each in self._load_open()}
        changed = 0
        for key, each in firing.items():
            if key not in still_open and store.open_alarm(each.alarm(channels)):
                changed += 1
                _LOG.warning("alarm %s: %s", each.rule, each.text)
        for key, alarm in still_open.items():
            if key not in firing and not self._still_stands(alarm) and store.resolve_alarm(key, channels=channels):
                changed += 1
                _LOG.info("alarm %s is over: %s", alarm.rule, alarm.text)
        return changed

    def _load_open(self) -> Iterator[Alarm]:
        after = 0
        for _ in range(_MOST_PAGES):
            page = self._context.store.list_alarms(Page(after, _BATCH), only_open=True)
            yield from page
            if len(page) < _BATCH:
                return
            after = page[-1].alarm_id

    def _load_world(self) -> World:
        store = self._context.store
        operations: list[Operation] = []
        for status in (Status.FAILED, Status.QUARANTINED, Status.RUNNING):
            operations += store.list_operations(OperationFilter(statuses=(status,)), Page(limit=_SEEN))
        late = [each.operation_id for each in store.load_work(_SEEN).queued if (each.deadline_in_s or 0.0) < 0.0]
        operations += [store.load_operation(each) for each in late]
        return World(
            now_ms=store.now_ms(),
            operations=tuple(operations),
            names=self._load_names(operations),
            recovered=frozenset(each.operation_id for each in operations if self._is_recovered(each)),
            quarantined=tuple(self._load_quarantined()),
            depths=tuple(store.queue_depths()),
            # Without this one: however slow its machine is, it is there.
            instances=tuple(each for each in store.list_instances() if each.instance_id != self._context.instance_id),
        )

    def _load_quarantined(self) -> Iterator[ManagedTable]:
        after = 0
        for _ in range(_MOST_PAGES):
            page = self._context.store.list_tables(TableFilter(is_quarantined=True), Page(after, _BATCH))
            yield from page
            if len(page) < _BATCH:
                return
            after = page[-1].table_id

    def _load_names(self, operations: Sequence[Operation]) -> dict[int, str]:
        tables = self._context.store.load_tables(sorted({each.table_id for each in operations}))
        return {table_id: table.name for table_id, table in tables.items()}

    def _is_recovered(self, operation: Operation) -> bool:
        """Whether the same service has worked on the same table since this operation failed."""
        if operation.status is not Status.FAILED:
            return False
        newer = OperationFilter(table_id=operation.table_id, statuses=(Status.COMPLETED,), actions=(operation.action,))
        newest = self._context.store.list_operations(newer, Page(limit=1))
        return bool(newest) and newest[0].operation_id > operation.operation_id

    def _still_stands(self, alarm: Alarm) -> bool:
        """Whether an alarm about an operation that was not loaded stays open.

        If many operations wait or fail, each round loads others; that must not resolve alarms.
        """
        if alarm.operation_id is None:
            return False
        try:
            operation = self._context.store.load_operation(alarm.operation_id)
        except UnknownRecordError:
            return False
        recovered = frozenset({operation.operation_id} if self._is_recovered(operation) else ())
        world = World(self._context.store.now_ms(), (operation,), {}, recovered)
        return any(each.key == alarm.key for each in plan_alarms(world, self._context.settings.timing))
