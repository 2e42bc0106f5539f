"""What runs next: by priority, then fair share over queues and owners, then earliest deadline, then age. Pure.

An operation gains one level of priority for each `AGING_S` it has waited, without bound. So whatever keeps arriving,
everything that waits is once the most urgent of its queue and owner, and starts as soon as their limits allow.
"""

from __future__ import annotations

import math
from collections import Counter

from tablekeeper.server.settings import Limits
from tablekeeper.server.store.protocol import Load, Queued

__all__ = ["AGING_S", "choose_next", "urgency", "what_holds_back"]

AGING_S = 600.0


def choose_next(load: Load, limits: Limits, *, slots: int) -> list[Queued]:
    """Up to `slots` operations to start, in order. Limits hold with what already runs counted."""
    queues, owners = Counter(load.running.by_queue), Counter(load.running.by_owner)
    busy = set(load.running.busy)
    left = list(load.queued)
    chosen: list[Queued] = []
    while len(chosen) < slots:
        able = [
            each
            for each in left
            if (each.table_id, each.action) not in busy
            and _has_room(queues[each.queue], limits.queue_limit(each.queue))
            and _has_room(owners[each.owner], limits.owner_limit(each.owner))
        ]
        if not able:
            break
        best = min(able, key=lambda each: (-urgency(each), queues[each.queue], owners[each.owner], *_order(each)))
        chosen.append(best)
        left.remove(best)
        queues[best.queue] += 1
        owners[best.owner] += 1
        busy.add((best.table_id, best.action))
    return chosen


def urgency(queued: Queued) -> int:
    """The priority with age."""
    return queued.priority + int(queued.waited_s // AGING_S)


def what_holds_back(queued: Queued, load: Load, limits: Limits) -> str:
    """Why an operation that may start does not, but for want of slots; empty if nothing holds it back."""
    if (queued.table_id, queued.action) in load.running.busy:
        return f"another {queued.action.value} of the table is at work"
    for kind, name, count, limit in (
        ("queue", queued.queue, load.running.by_queue.get(queued.queue, 0), limits.queue_limit(queued.queue)),
        ("owner", queued.owner, load.running.by_owner.get(queued.owner, 0), limits.owner_limit(queued.owner)),
    ):
        if not _has_room(count, limit):
            return f"{kind} {name} runs {count} of at most {limit}"
    return ""


def _has_room(count: int, limit: int) -> bool:
    return limit == 0 or count < limit


def _order(queued: Queued) -> tuple[float, float, int]:
    deadline = queued.deadline_in_s if queued.deadline_in_s is not None else math.inf
    return deadline, -queued.waited_s, queued.operation_id
