"""What runs next: by priority, then fair share over queues and owners, then earliest deadline, then age. Pure.

A priority gains one level for each `AGING_S` that its oldest operation has waited, without bound, so that nothing
starves behind more important work. The whole priority gains, not only the one operation: within a priority the queue
with the fewest running operations goes first, and in it the owner with the fewest, however long the backlog of others
is. An operation without a deadline gets one by its age, so that those with deadlines cannot hold it back forever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tablekeeper.server.decisions.spans import span_text
from tablekeeper.server.settings import Limits
from tablekeeper.server.store.protocol import DUE_WITHIN_S, MOST_LATE_S, Load, Queued

__all__ = ["AGING_S", "choose_next", "tell_order", "urgencies", "what_holds_back"]

AGING_S = 600.0


def choose_next(load: Load, limits: Limits, *, slots: int) -> list[Queued]:
    """Up to `slots` operations to start, in order. Limits include what is already running."""
    queues, owners = Counter(load.running.by_queue), Counter(load.running.by_owner)
    shares = Counter(load.running.by_share)
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
        gained = urgencies(able)
        best = min(
            able,
            key=lambda each: (
                -gained[each.priority],
                -each.priority,
                queues[each.queue],
                shares[each.queue, each.owner],
                *_order(each),
            ),
        )
        chosen.append(best)
        left.remove(best)
        queues[best.queue] += 1
        owners[best.owner] += 1
        shares[best.queue, best.owner] += 1
        busy.add((best.table_id, best.action))
    return chosen


def urgencies(waiting: Iterable[Queued]) -> Mapping[int, int]:
    """Each priority among them, raised by the age of its oldest operation."""
    gained: dict[int, int] = {}
    for each in waiting:
        urgency = each.priority + int(each.waited_s // AGING_S)
        gained[each.priority] = max(urgency, gained.get(each.priority, urgency))
    return gained


def tell_order(queued: Queued, load: Load) -> str:
    """What decides when this operation runs, as part of a sentence."""
    urgency = urgencies([*load.queued, queued])[queued.priority]
    aged = f", plus {urgency - queued.priority} for the age of what waits with it" if urgency > queued.priority else ""
    deadline = "" if queued.deadline_in_s is None else f", {_deadline(queued.deadline_in_s)}"
    return (
        f"priority {queued.priority}{aged} (running in queue {queued.queue}: "
        f"{load.running.by_queue.get(queued.queue, 0)}, of owner {queued.owner}: "
        f"{load.running.by_share.get((queued.queue, queued.owner), 0)}), after {span_text(queued.waited_s)}{deadline}"
    )


def what_holds_back(queued: Queued, load: Load, limits: Limits) -> str:
    """Why an operation that may start does not, apart from a lack of slots; empty if nothing holds it back."""
    if (queued.table_id, queued.action) in load.running.busy:
        return f"another {queued.action.value} of the table is running"
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
    # The job store shows operations in this order, too.
    deadline_s = queued.deadline_in_s
    due_s = DUE_WITHIN_S - queued.waited_s if deadline_s is None else max(-MOST_LATE_S, deadline_s)
    return due_s, -queued.waited_s, queued.operation_id


def _deadline(in_s: float) -> str:
    return f"{span_text(abs(in_s))} {'before' if in_s >= 0 else 'after'} its deadline"
