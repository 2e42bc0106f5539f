"""Cleans of a table, without the options of a caller in between."""

from __future__ import annotations

from typing import Any

import tablekeeper as tk
from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.model import Instant, Operation, RequestedTime
from tablekeeper.services.clean import CleanExplanation, CleanResult, execute_clean, explain_clean, schedule_clean
from tablekeeper.txn.environment import TableEnvironment
from tests.support.recovery_world import World
from tests.support.table_builder import rows_of, trips
from tests.support.table_services import compact

__all__ = [
    "busy_past",
    "by_hours",
    "by_versions",
    "clean",
    "environment_of",
    "explain",
    "keep",
    "rows_by_moment",
    "schedule",
    "update",
]


def keep(commits: int, **more: Any) -> CleanSettings:
    return CleanSettings(commits=commits, **more)


def by_versions(count: int, **more: Any) -> CleanSettings:
    return CleanSettings(policy=CleanPolicy.VERSIONS, versions=count, **more)


def by_hours(count: int, **more: Any) -> CleanSettings:
    return CleanSettings(policy=CleanPolicy.HOURS, hours=count, **more)


def environment_of(table: tk.Table) -> TableEnvironment:
    return table._load_write(Operation.DELETE_PARTITION, None).environment


def clean(table: tk.Table, settings: CleanSettings, **more: Any) -> CleanResult | None:
    return execute_clean(environment_of(table), settings, **more)


def schedule(table: tk.Table, settings: CleanSettings) -> Instant | None:
    return schedule_clean(environment_of(table), settings)


def explain(table: tk.Table, settings: CleanSettings) -> CleanExplanation:
    return explain_clean(environment_of(table), settings)


def rows_by_moment(table: tk.Table, moments: list[RequestedTime]) -> dict[str, list[tuple[Any, ...]]]:
    """What a reader sees as of each of these moments."""
    return {moment.value: rows_of(table.read(as_of=moment.value), "id", "fare") for moment in moments}


def update(world: World, count: int, *, city: str = "sf", first: int = 1) -> list[RequestedTime]:
    """Updates of one row, each a new version of its file or, merged on read, a log that is compacted."""
    moments = []
    for number in range(first, first + count):
        moments.append(world.upsert(trips(("a", city, number, float(number)))).instant)
        if world.table.config.is_mor and number % 2 == 0:
            world.clock.advance(10)
            compact(world.table)
    return moments


def busy_past(world: World) -> list[RequestedTime]:
    """Two partitions, one of which is overwritten and the other deleted, and updates after that; all moments."""
    update(world, 4)
    update(world, 3, city="la")
    world.clock.advance(10)
    world.table.insert_overwrite(trips(("n", "sf", 9, 9.0)))
    update(world, 2, first=20)
    world.clock.advance(10)
    world.table.delete_partitions(["la"])
    update(world, 3, first=30)
    return [i.requested_at for i in world.timeline.completed_writes]
