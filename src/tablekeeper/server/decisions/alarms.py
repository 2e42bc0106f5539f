"""Which alarms should be open. Pure; the loop opens and resolves the difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tablekeeper.server.model import Instance, ManagedTable, Operation, Status
from tablekeeper.server.settings import Timing
from tablekeeper.server.store.protocol import NewAlarm, QueueDepth

__all__ = ["BACKLOG", "Firing", "World", "failure_alarm", "plan_alarms"]

BACKLOG = 1000
_MOST_LATE = 50


@dataclass(frozen=True, slots=True)
class Firing:
    """An alarm that should be open. `key` names the rule and its subject."""

    key: str
    rule: str
    text: str
    table_id: int | None = None
    operation_id: int | None = None

    def alarm(self, channels: tuple[str, ...]) -> NewAlarm:
        """The record of it."""
        return NewAlarm(self.key, self.rule, self.text, channels, self.table_id, self.operation_id)


@dataclass(frozen=True, slots=True)
class World:
    """What the rules look at: a bounded number of operations that failed, are quarantined, wait or run.

    `names` are those of tables by number. `recovered` are failed operations after which another of the same table and
    action has completed.
    """

    now_ms: int
    operations: tuple[Operation, ...]
    names: Mapping[int, str]
    recovered: frozenset[int] = frozenset()
    quarantined: tuple[ManagedTable, ...] = ()
    depths: tuple[QueueDepth, ...] = ()
    instances: tuple[Instance, ...] = ()


def plan_alarms(world: World, timing: Timing) -> list[Firing]:
    """All alarms that should be open now."""
    return [
        *_of_operations(world, timing),
        *(
            Firing(
                f"table-quarantined:{t.table_id}", "quarantined", f"{t.name} is quarantined: {t.quarantine}", t.table_id
            )
            for t in world.quarantined
        ),
        *_of_queues(world.depths),
        *_of_instances(world, timing),
    ]


def failure_alarm(operation: Operation, table_name: str) -> Firing | None:
    """The alarm of an operation that has just ended; None unless it is failed or quarantined."""
    if operation.status not in (Status.FAILED, Status.QUARANTINED):
        return None
    world = World(0, (operation,), {operation.table_id: table_name})
    return next(iter(_of_operation(operation, world, Timing())), None)


def _of_operations(world: World, timing: Timing) -> list[Firing]:
    """Those of each operation. A lake of which many tables are late has one cause, and gets one message."""
    firing = [each for operation in world.operations for each in _of_operation(operation, world, timing)]
    late = {each.key: each for each in firing if each.rule == "late"}
    if len(late) <= _MOST_LATE:
        return firing
    named = ", ".join(str(world.names.get(each.table_id or 0, each.table_id)) for each in list(late.values())[:3])
    text = f"more than {_MOST_LATE} tables miss their freshness targets, among them {named}"
    return [*(each for each in firing if each.rule != "late"), Firing("late-lake", "late", text)]


def _of_operation(operation: Operation, world: World, timing: Timing) -> Iterable[Firing]:
    name = world.names.get(operation.table_id, f"table {operation.table_id}")
    # People can only make sense of instants of the timeline.
    instant = f" {operation.instant}" if operation.is_planned else ""
    what = f"{operation.action.value.replace('_', ' ')}{instant} of {name}"
    subject = (operation.table_id, operation.operation_id)
    match operation.status:
        case Status.FAILED if operation.operation_id not in world.recovered and not operation.is_deleted:
            attempts = f"{operation.run_times} attempt{'' if operation.run_times == 1 else 's'}"
            text = f"{what} failed after {attempts}: {operation.note}"
            yield Firing(f"failed:{operation.operation_id}", "failed", text, *subject)
        case Status.QUARANTINED:
            text = f"{what} is quarantined: {operation.note}"
            yield Firing(f"quarantined:{operation.operation_id}", "quarantined", text, *subject)
        case Status.PENDING | Status.CLAIMED | Status.RUNNING:
            if operation.deadline_ms is not None and operation.deadline_ms < world.now_ms:
                late_s = (world.now_ms - operation.deadline_ms) // 1000
                yield Firing(
                    f"late:{operation.table_id}", "late", f"{name} misses its freshness target by {late_s} s", *subject
                )
            if operation.status is not Status.PENDING and operation.schedule_ms:
                age_s = (world.now_ms - operation.schedule_ms) / 1000
                if age_s > timing.stuck_after_s:
                    text = f"{what} has been running for {age_s / 3600:.1f} hours"
                    yield Firing(f"stuck:{operation.operation_id}", "stuck", text, *subject)
        case _:
            return


def _of_queues(depths: Iterable[QueueDepth]) -> Iterable[Firing]:
    for depth in depths:
        if depth.status is Status.PENDING and depth.operations >= BACKLOG:
            yield Firing(
                f"backlog:{depth.queue}", "backlog", f"{depth.operations} operations wait in queue {depth.queue}"
            )


def _of_instances(world: World, timing: Timing) -> Iterable[Firing]:
    for each in world.instances:
        silent_s = (world.now_ms - each.seen_ms) / 1000
        # One that was told to stop may leave jobs behind, which others adopt: nobody has to do anything.
        if silent_s > timing.instance_gone_s and not each.is_draining:
            text = f"instance {each.instance_id} on {each.host} was last seen {silent_s:.0f} s ago"
            yield Firing(f"instance-gone:{each.instance_id}", "instance_gone", text)
