"""Compaction and log compaction of a table, step by step: schedule a plan, execute it, or both."""

from __future__ import annotations

from typing import Any

import tablekeeper as tk
from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.config.service_settings import CompactionSettings, LogCompactionSettings
from tablekeeper.model import PlanFlags, RequestedTime
from tablekeeper.services.compaction.service import Compaction
from tablekeeper.services.compaction.strategies import compaction_strategy
from tablekeeper.services.log_compaction.service import LogCompaction
from tablekeeper.services.log_compaction.strategies import LogCompactionStrategy
from tablekeeper.services.plans.execute import execute_plan
from tablekeeper.services.plans.schedule import ScheduledPlan, schedule_plan
from tablekeeper.services.plans.service import Service, ServiceResult

__all__ = ["compact", "compact_logs", "compaction", "execute", "log_compaction", "schedule"]


def compaction(**settings: Any) -> Compaction:
    """The service, which takes every slice that has logs unless the settings say otherwise."""
    return Compaction(compaction_strategy(CompactionSettings(**settings), now_ms=0))


def log_compaction(*, blocks: int = 2) -> LogCompaction:
    """The service, which takes slices with this many logs."""
    return LogCompaction(LogCompactionStrategy(LogCompactionSettings(blocks_threshold=blocks)))


def schedule(
    table: tk.Table, service: Service, *, flags: PlanFlags | None = None, incremental: bool = True
) -> ScheduledPlan | None:
    """Put a plan on the timeline; None if there is nothing to do."""
    environment = table._load_write(service.kind.operation, None).environment
    return schedule_plan(environment, service, flags=flags or PlanFlags(), incremental=incremental)


def execute(table: tk.Table, service: Service, instant: RequestedTime) -> ServiceResult:
    """Execute a plan."""
    return execute_plan(table._load_write(service.kind.operation, None), service, instant, LifecycleSettings())


def compact(table: tk.Table) -> ServiceResult:
    """Schedule a compaction of everything and execute it."""
    return _run(table, compaction())


def compact_logs(table: tk.Table, *, blocks: int = 2) -> ServiceResult:
    """Schedule a log compaction and execute it."""
    return _run(table, log_compaction(blocks=blocks))


def _run(table: tk.Table, service: Service) -> ServiceResult:
    plan = schedule(table, service)
    assert plan is not None, f"nothing to do for {service.kind.value}"
    return execute(table, service, plan.instant)
