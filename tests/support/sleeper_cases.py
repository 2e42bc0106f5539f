"""What a process may be doing when it falls asleep: every write and every service, on tables made for it.

A `Case` names the table it needs, what the sleeper does and what must hold if it reports success. Every write has a
name in its commit, and an `Effect` on the rows by which it is known what the table must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import tablekeeper as tk
from tablekeeper.model import RequestedTime
from tests.support.recovery_world import World
from tests.support.table_builder import trips

__all__ = ["CASES", "EFFECTS", "NAME_KEY", "Case", "Effect", "Prepared", "prepare"]

NAME_KEY = "sim.write"
Rows = dict[str, tuple[str, float]]
Effect = Callable[[Rows], None]
Act = Callable[[tk.Table, str], Any]

OPTIONS = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.write.lock.wait_time_ms": "100000000",
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.metadata.compact.max.delta.commits": "3",
    # New keys make new file groups, so that there is something to cluster.
    "hoodie.parquet.small.file.limit": "0",
}


def _puts(*rows: tuple[str, str, float]) -> Effect:
    return lambda table: table.update({key: (city, fare) for key, city, fare in rows})


def _drops(is_dropped: Callable[[str, str], bool], then: Effect = lambda table: None) -> Effect:
    def effect(table: Rows) -> None:
        for key in [key for key, (city, _) in table.items() if is_dropped(key, city)]:
            del table[key]
        then(table)

    return effect


def _named(name: str) -> dict[str, str]:
    return {NAME_KEY: name}


_FIRST = trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0), ("d", "ny", 1, 1.0))
_SECOND = trips(("a", "sf", 1, 2.0), ("e", "sf", 1, 2.0))
_THIRD = trips(("b", "sf", 1, 3.0), ("c", "la", 1, 3.0))
_UPSERTED = trips(("a", "sf", 1, 4.0), ("g", "sf", 1, 4.0), ("h", "rome", 1, 4.0))
_NEW = trips(("g", "sf", 1, 4.0), ("h", "rome", 1, 4.0))

EFFECTS: dict[str, Effect] = {
    "first": _puts(("a", "sf", 1.0), ("b", "sf", 1.0), ("c", "la", 1.0), ("d", "ny", 1.0)),
    "second": _puts(("a", "sf", 2.0), ("e", "sf", 2.0)),
    "third": _puts(("b", "sf", 3.0), ("c", "la", 3.0)),
    "fourth": _puts(("a", "sf", 3.5), ("d", "ny", 3.5)),
    "fifth": _puts(("a", "sf", 3.6), ("c", "la", 3.6)),
    "upsert": _puts(("a", "sf", 4.0), ("g", "sf", 4.0), ("h", "rome", 4.0)),
    "new": _puts(("g", "sf", 4.0), ("h", "rome", 4.0)),
    "delete": _drops(lambda key, _: key in ("a", "c")),
    "overwrite": _drops(lambda _, city: city == "sf", _puts(("i", "sf", 4.0))),
    "overwrite_table": _drops(lambda *_: True, _puts(("i", "sf", 4.0))),
    "DELETE_PARTITION": _drops(lambda _, city: city == "ny"),
    # What others write meanwhile, and in the end. All rows have one ordering value, so that the later commit wins.
    "other": _puts(("a", "sf", 8.0), ("c", "la", 8.0), ("x", "sf", 8.0)),
    "last": _puts(("b", "sf", 9.0), ("z", "la", 9.0)),
}


@dataclass(frozen=True)
class Prepared:
    """A table, and the instant that the case is about."""

    world: World
    target: str


@dataclass(frozen=True)
class Case:
    """`act` on a table of this kind; `write` is the name of the sleeper's write, if it is one.

    `done` says, after success was reported, whether what was reported is so.
    """

    act: Act
    table_type: str
    metadata: bool = False
    setup: Callable[[World], str] = lambda world: ""
    write: str = ""
    done: Callable[[World, str, Any], bool] = lambda world, target, result: True
    options: Mapping[str, str] = field(default_factory=dict)


@cache
def prepare(name: str) -> Prepared:
    """The table of a case. Trials work on copies of it."""
    case = CASES[name]
    world = World(table_type=case.table_type, metadata=case.metadata, options={**OPTIONS, **case.options})
    for write, rows in (("first", _FIRST), ("second", _SECOND), ("third", _THIRD)):
        world.clock.advance(10)
        world.table.upsert(rows, extra=_named(write))
    target = case.setup(world)
    world.clock.advance(10)
    return Prepared(world, target)


def _schedule(kind: str, **flags: Any) -> Callable[[World], str]:
    def setup(world: World) -> str:
        world.clock.advance(10)
        table = world.table
        options = {"order_by": "ts", **flags} if kind == "clustering" else flags
        plan = getattr(table, f"schedule_{kind}")(**options)
        assert plan is not None
        return str(plan.instant.value)

    return setup


def _last_commit(world: World) -> str:
    return world.timeline.completed_writes[-1].requested_at.value


def _dead_write(world: World) -> str:
    """A writer died before; its heartbeat is over."""
    instant = world.crash(_NEW)
    world.clock.advance(10)
    return instant


def _saved(world: World) -> str:
    world.clock.advance(10)
    saved = world.table.savepoint().instant.value
    world.clock.advance(10)
    world.table.upsert(_UPSERTED, extra=_named("upsert"))
    return saved


def _dropped_partition(world: World) -> str:
    world.clock.advance(10)
    world.table.delete_partitions(["ny"])
    world.clock.advance(10)
    world.table.upsert(_NEW, extra=_named("new"))
    return ""


def _longer(world: World) -> str:
    """More commits, the older ones compacted: there is something to clean and to archive."""
    for write, city in (("fourth", "ny"), ("fifth", "la")):
        world.clock.advance(10)
        fare = 3.5 if write == "fourth" else 3.6
        world.table.upsert(
            trips(("a", "sf", 1, fare), ({"ny": "d", "la": "c"}[city], city, 1, fare)), extra=_named(write)
        )
        world.clock.advance(10)
        if world.table.config.is_mor:
            world.table.compact()
    return ""


def _is_completed(world: World, target: str, result: Any) -> bool:
    found = world.timeline.find(RequestedTime(target))
    is_done = found is None or found.is_completed
    return is_done if result.outcome == "completed" else True


def _is_gone(world: World, target: str, result: Any) -> bool:
    return world.timeline.find(RequestedTime(target)) is None


def _is_cancelled(world: World, target: str, result: Any) -> bool:
    found = world.timeline.find(RequestedTime(target))
    return found is None if result.outcome == "removed" else found is not None and found.is_completed


def _can_be_restored(world: World, target: str, result: Any) -> bool:
    """A savepoint that was reported protects its files from then on."""
    there = {file.path for file in world.storage.walk("")}
    wanted = {f"{partition}/{name}" for partition, names in result.files.items() for name in names}
    return wanted <= there and result.instant in {saved.instant for saved in world.table.savepoints()}


def _is_restored(world: World, target: str, result: Any) -> bool:
    """Nothing that completed before the restore lies on top of the savepoint."""
    timeline = world.timeline
    restores = [i for i in timeline if result.restore is not None and i.requested_at == result.restore]
    if not restores or restores[0].completed_at is None:
        return False
    ended = restores[0].completed_at
    later = (i for i in timeline.completed_writes if i.requested_at > RequestedTime(target))
    return all(i.completed_at is not None and i.completed_at > ended for i in later)


def _execute(table: tk.Table, target: str) -> object:
    return table.execute(target)


def _writes() -> dict[str, Case]:
    acts: dict[str, tuple[str, Act]] = {
        "upsert": ("upsert", lambda t, _: t.upsert(_UPSERTED, extra=_named("upsert"))),
        "insert": ("new", lambda t, _: t.insert(_NEW, extra=_named("new"))),
        "bulk_insert": ("new", lambda t, _: t.bulk_insert(_NEW, extra=_named("new"))),
        "delete": ("delete", lambda t, _: t.delete(trips(("a", "sf"), ("c", "la")), extra=_named("delete"))),
        "insert_overwrite": (
            "overwrite",
            lambda t, _: t.insert_overwrite(trips(("i", "sf", 1, 4.0)), extra=_named("overwrite")),
        ),
        "insert_overwrite_table": (
            "overwrite_table",
            lambda t, _: t.insert_overwrite_table(trips(("i", "sf", 1, 4.0)), extra=_named("overwrite_table")),
        ),
        "delete_partitions": ("DELETE_PARTITION", lambda t, _: t.delete_partitions(["ny"])),
    }
    cases = {}
    for number, (name, (write, act)) in enumerate(acts.items()):
        cases[f"{name}_cow"] = Case(act, "cow", write=write, metadata=number % 2 == 0)
        cases[f"{name}_mor"] = Case(act, "mor", write=write, metadata=number % 2 == 1)
    return cases


def _plans() -> dict[str, Case]:
    plan = partial(Case, _execute, done=_is_completed)
    return {
        "compaction": plan("mor", setup=_schedule("compaction")),
        "compaction_metadata_table": plan("mor", metadata=True, setup=_schedule("compaction")),
        "compaction_mutable": plan("mor", setup=_schedule("compaction", mutable=True)),
        "log_compaction": plan("mor", setup=_schedule("log_compaction")),
        "log_compaction_metadata_table": plan("mor", metadata=True, setup=_schedule("log_compaction")),
        "clustering_cow": plan("cow", setup=_schedule("clustering")),
        "clustering_mor": plan("mor", metadata=True, setup=_schedule("clustering")),
        "clustering_mutable": plan("cow", metadata=True, setup=_schedule("clustering", mutable=True)),
        "clustering_cancellable": plan("cow", setup=_schedule("clustering", cancellable=True)),
    }


def _housekeeping() -> dict[str, Case]:
    cancellable = _schedule("clustering", cancellable=True)
    return {
        "schedule_compaction": Case(lambda t, _: t.schedule_compaction(), "mor"),
        "schedule_clustering": Case(lambda t, _: t.schedule_clustering(order_by="ts"), "cow"),
        "clean_cow": Case(lambda t, _: t.clean(), "cow", metadata=True),
        "clean_mor": Case(lambda t, _: t.clean(), "mor", setup=_longer),
        "clean_dropped_partition": Case(lambda t, _: t.clean(), "cow", setup=_dropped_partition),
        "clean_dead_write": Case(lambda t, _: t.clean(), "cow", metadata=True, setup=_dead_write),
        "archive": Case(lambda t, _: t.archive(), "cow", setup=_longer),
        "archive_metadata_table": Case(lambda t, _: t.archive(), "mor", metadata=True, setup=_longer),
        "cancel": Case(lambda t, i: t.cancel(i, wait=0), "cow", setup=cancellable, done=_is_cancelled),
        "rollback_completed": Case(lambda t, i: t.rollback(i), "cow", setup=_last_commit, done=_is_gone),
        "rollback_completed_mor": Case(
            lambda t, i: t.rollback(i), "mor", metadata=True, setup=_last_commit, done=_is_gone
        ),
        "savepoint": Case(lambda t, _: t.savepoint(), "cow", done=_can_be_restored),
        "savepoint_mor": Case(lambda t, _: t.savepoint(), "mor", done=_can_be_restored),
        "restore": Case(lambda t, i: t.restore(i), "cow", metadata=True, setup=_saved, done=_is_restored),
        "restore_mor": Case(lambda t, i: t.restore(i), "mor", setup=_saved, done=_is_restored),
    }


CASES: dict[str, Case] = {**_writes(), **_plans(), **_housekeeping()}
