"""What a scheduler pass sees of the operations that wait: one statement, whatever the number of queues and owners.

Every queue and owner with something to start (a share) shows as many as every other one, so that the backlog of one
hides nobody else's work: those that come first in it (see `decisions.choose`), and those that have waited longest.
Shares are bounded too: those with the most urgent operation, and those with the oldest.

The statement reads what waits and nothing of what has finished. What it leaves out are sets (`NOT IN`), which databases
read once: a join would be planned by statistics from before the backlog came, and look each operation up by itself.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, func, not_, or_, select, tuple_
from sqlalchemy.sql.selectable import CTE

from tablekeeper.server.model import Status
from tablekeeper.server.store.protocol import DUE_WITHIN_S, MOST_LATE_S
from tablekeeper.server.store.schema import IS_STOPPED, OPERATION, TBL_STATE

__all__ = ["select_window"]

_MOST_SHARES = 32
_HELD = (Status.CLAIMED, Status.RUNNING)


def select_window(now: ColumnElement[int]) -> Select[Any]:
    """Operations that may start, about `limit` of them, which is the statement's parameter."""
    waiting = _waiting(now)
    ranked = _ranked_shares(waiting)
    is_shown = or_(ranked.c.by_urgency <= _MOST_SHARES, ranked.c.by_age <= _MOST_SHARES)
    share = (waiting.c.queue, waiting.c.owner)
    by_age = (waiting.c.waited_ms.desc(), waiting.c.operation_id)
    placed = (
        select(
            waiting,
            func.row_number()
            .over(partition_by=share, order_by=(waiting.c.priority.desc(), waiting.c.due_in_ms, *by_age))
            .label("place"),
            func.row_number().over(partition_by=share, order_by=by_age).label("place_by_age"),
        )
        .where(tuple_(*share).not_in(select(ranked.c.queue, ranked.c.owner).where(not_(is_shown))))
        .subquery()
    )
    shares = select(func.count()).select_from(ranked).where(is_shown).scalar_subquery()

    def is_seen(place: ColumnElement[int]) -> ColumnElement[bool]:
        # Half of a share's part of the limit in each order, and at least one.
        return or_(place == 1, 2 * place * shares <= bindparam("limit"))

    return select(placed).where(or_(is_seen(placed.c.place), is_seen(placed.c.place_by_age)))


def _waiting(now: ColumnElement[int]) -> CTE:
    """What may start now: not paused, not quarantined, and no other of its kind running on its table."""
    # The clock is asked once: databases would otherwise ask it for each row, and could use no index.
    now_ms = select(now).scalar_subquery()
    running = OPERATION.alias("running")
    deadline_in_ms = OPERATION.c.deadline_ms - now_ms
    waited_ms = now_ms - OPERATION.c.not_before_ms
    most_late_ms = round(-1000 * MOST_LATE_S)
    return (
        select(
            OPERATION.c.operation_id,
            OPERATION.c.tbl_id,
            OPERATION.c.action,
            OPERATION.c.queue,
            OPERATION.c.owner,
            OPERATION.c.priority,
            deadline_in_ms.label("deadline_in_ms"),
            waited_ms.label("waited_ms"),
            case(
                (OPERATION.c.deadline_ms.is_(None), round(1000 * DUE_WITHIN_S) - waited_ms),
                (deadline_in_ms < most_late_ms, most_late_ms),
                else_=deadline_in_ms,
            ).label("due_in_ms"),
        )
        .where(
            OPERATION.c.status == Status.PENDING,
            OPERATION.c.not_before_ms <= now_ms,
            OPERATION.c.tbl_id.not_in(select(TBL_STATE.c.tbl_id).where(IS_STOPPED)),
            tuple_(OPERATION.c.tbl_id, OPERATION.c.action).not_in(
                select(running.c.tbl_id, running.c.action).where(running.c.status.in_(_HELD))
            ),
        )
        .cte("waiting")
    )


def _ranked_shares(waiting: CTE) -> CTE:
    """Queues with owners that something waits of."""
    share = (waiting.c.queue, waiting.c.owner)
    urgent, oldest = func.max(waiting.c.priority), func.max(waiting.c.waited_ms)
    return (
        select(
            *share,
            func.row_number().over(order_by=(urgent.desc(), oldest.desc(), *share)).label("by_urgency"),
            func.row_number().over(order_by=(oldest.desc(), *share)).label("by_age"),
        )
        .group_by(*share)
        .cte("ranked")
    )
