"""What the pages and metrics show of the whole lake: counts, rankings and a sample for every minute, in SQL.

Nothing here grows with the history: finished operations are counted in buckets over an index, samples are pruned, and
of the tables only those that are asked for are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, func, insert, select

from tablekeeper.server.model import FINISHED, ManagedTable, Sample, Status
from tablekeeper.server.store.database import Database
from tablekeeper.server.store.overview import Finished, TableCounts, TableOrder
from tablekeeper.server.store.rows import table_of
from tablekeeper.server.store.schema import DATABASE_POLICY, OPERATION, SAMPLE, TBL, TBL_STATE
from tablekeeper.server.store.sql_tables import JOINED, table_conditions
from tablekeeper.server.store.wanted import TableFilter

__all__ = ["SqlOverview"]

_RANKED: dict[TableOrder, tuple[ColumnElement[Any], ...]] = {
    TableOrder.NAME: (TBL.c.db_name, TBL.c.table_name),
    # What was never looked at, or is not behind, comes last when the worst come first.
    TableOrder.BEHIND: (func.coalesce(TBL_STATE.c.commits_behind, -1),),
    TableOrder.BEHIND_FOR: (-func.coalesce(TBL_STATE.c.behind_since_ms, 2**53),),
    TableOrder.PLANS: (func.coalesce(TBL_STATE.c.pending_plans, -1),),
    TableOrder.AMPLIFICATION: (func.coalesce(TBL_STATE.c.read_amplification, -1),),
    TableOrder.QUEUE: (TBL.c.queue,),
    TableOrder.PRIORITY: (TBL.c.priority,),
    TableOrder.OWNER: (TBL.c.owner,),
}

_LOOKED_AFTER = (TBL_STATE.c.is_paused.is_(False), TBL_STATE.c.quarantine == "")


class SqlOverview:
    """The part of the job store that is about the lake as a whole."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def rank_tables(
        self, wanted: TableFilter, order: TableOrder, *, is_descending: bool, offset: int, limit: int
    ) -> list[ManagedTable]:
        # The number decides between equals, so that pages do not overlap.
        keys = [key.desc() if is_descending else key.asc() for key in _RANKED[order]]
        query = (
            select(TBL, TBL_STATE)
            .select_from(JOINED)
            .where(*table_conditions(wanted))
            .order_by(*keys, TBL.c.id)
            .offset(offset)
            .limit(limit)
        )
        return self._database.read(lambda connection: [table_of(row) for row in connection.execute(query)])

    def load_tables(self, table_ids: Sequence[int]) -> dict[int, ManagedTable]:
        query = select(TBL, TBL_STATE).select_from(JOINED).where(TBL.c.id.in_(sorted(set(table_ids))))
        return self._database.read(lambda connection: {row.id: table_of(row) for row in connection.execute(query)})

    def table_counts(self, wanted: TableFilter) -> TableCounts:
        def number(condition: ColumnElement[bool]) -> ColumnElement[int]:
            return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)

        query = select(
            func.count(),
            number(and_(TBL_STATE.c.is_paused.is_(True), TBL_STATE.c.quarantine == "")),
            number(TBL_STATE.c.quarantine != ""),
            number(and_(TBL_STATE.c.behind_since_ms.is_not(None), *_LOOKED_AFTER)),
        )
        conditions = table_conditions(wanted)
        # Without conditions the names need not be read.
        chosen = query.select_from(JOINED).where(*conditions) if conditions else query.select_from(TBL_STATE)
        row = self._database.read(lambda connection: connection.execute(chosen).one())
        return TableCounts(*map(int, row))

    def tables_behind(self, *, after: int, limit: int) -> list[tuple[int, str, str, int]]:
        query = (
            select(TBL.c.id, TBL.c.db_name, TBL_STATE.c.policy, TBL_STATE.c.behind_since_ms)
            .select_from(JOINED)
            .where(TBL_STATE.c.behind_since_ms.is_not(None), TBL.c.id > after, *_LOOKED_AFTER)
            .order_by(TBL.c.id)
            .limit(limit)
        )
        return self._database.read(lambda connection: [tuple(row) for row in connection.execute(query)])

    def databases_with_policies(self) -> list[str]:
        query = select(DATABASE_POLICY.c.db_name).order_by(DATABASE_POLICY.c.db_name)
        return self._database.read(lambda connection: list(connection.execute(query).scalars()))

    def finished_operations(self, *, bucket_s: int, buckets: int) -> list[Finished]:
        bucket = OPERATION.c.finished_ms // (bucket_s * 1000)
        since = self._database.after(-float(bucket_s * buckets))
        query = (
            select(bucket.label("bucket"), OPERATION.c.status, func.count().label("operations"))
            .where(OPERATION.c.finished_ms > since, OPERATION.c.status.in_(sorted(FINISHED)))
            .group_by(bucket, OPERATION.c.status)
        )
        return self._database.read(
            lambda connection: [
                Finished(int(row.bucket), Status(row.status), int(row.operations)) for row in connection.execute(query)
            ]
        )

    def add_sample(self, sample: Sample) -> bool:
        statement = insert(SAMPLE).values(**asdict(sample))
        return self._database.write(lambda connection: self._database.insert_or_none(connection, statement) is not None)

    def has_sample(self, minute: int) -> bool:
        query = select(SAMPLE.c.minute).where(SAMPLE.c.minute == minute)
        return self._database.read(lambda connection: connection.execute(query).one_or_none() is not None)

    def list_samples(self, *, since_minute: int) -> list[Sample]:
        query = select(SAMPLE).where(SAMPLE.c.minute >= since_minute).order_by(SAMPLE.c.minute)
        return self._database.read(lambda connection: [Sample(**row._mapping) for row in connection.execute(query)])

    def prune_samples(self, *, before_minute: int) -> int:
        statement = delete(SAMPLE).where(SAMPLE.c.minute < before_minute)
        return int(self._database.write(lambda connection: connection.execute(statement).rowcount))
