"""Plans of other programs that only they can execute."""

from __future__ import annotations

from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.model import Instant, Plan, State
from tablekeeper.timeline import instant_path
from tablekeeper.timeline.plans import load_plan
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["load_executable_plan", "refuse_foreign_plan"]

_RESIZES_BUCKETS = ("ConsistentBucket", "ConsistentHashing")


def refuse_foreign_plan(plan: Plan, *, file: str) -> None:
    """Raise `UnsupportedFeatureError` if the plan cannot be executed here, whatever its kind."""
    strategy = (plan.strategy.class_name if plan.strategy is not None else None) or ""
    if any(part in strategy for part in _RESIZES_BUCKETS):
        raise UnsupportedFeatureError(
            f"{file}: the plan resizes the buckets of a consistent hashing index ({strategy}), which only Java does. "
            "Run it with Java Hudi."
        )
    if any(len({each.group.partition for each in work.slices}) > 1 for work in plan.work):
        raise UnsupportedFeatureError(
            f"{file}: a clustering group spans several partitions, which tablekeeper does not support. Run the "
            "plan with Java."
        )


def load_executable_plan(environment: TableEnvironment, instant: Instant) -> Plan:
    """The pending plan, if it can be executed here."""
    plan = load_plan(environment.storage, environment.config, instant)
    requested = Instant(instant.requested_at, instant.action, State.REQUESTED)
    refuse_foreign_plan(plan, file=instant_path(environment.config, requested))
    return plan
