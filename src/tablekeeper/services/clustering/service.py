"""Clustering: the rows of many file slices are ordered and written into new file groups, which replace the old ones.

The strategy decides which slices go together; the plan says how the rows are ordered, so that every executor
does the same. Tables with a bucket index cannot be clustered: a row would end up in a file that its bucket does not
name, and nobody would find it there.
"""

from __future__ import annotations

import pyarrow as pa

from tablekeeper.config.clustering_order import OutputLayout
from tablekeeper.config.write_settings import IndexKind
from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.model import FileGroupId, Plan, ServiceKind, Strategy
from tablekeeper.services.clustering.kernels import ClusterTask, cluster_group, refuse_bad_order
from tablekeeper.services.plans.service import Attempt, Draft, PlanningStrategy, Rewritten
from tablekeeper.services.plans.strategies import StrategyService
from tablekeeper.snapshot.snapshot import Snapshot
from tablekeeper.write.finish import file_ids_by_partition
from tablekeeper.write.layout_checks import look_like_buckets, refuse_wrong_index

__all__ = ["Clustering"]


class Clustering(StrategyService):
    """The service.

    `layout` goes into the plans that are made here, and fills in what the plans of others leave open. With `schema`,
    the table's, a plan is not made with an order that could not be executed.
    """

    kind = ServiceKind.CLUSTERING

    def __init__(
        self,
        strategy: PlanningStrategy,
        layout: OutputLayout,
        *,
        schema: pa.Schema | None = None,
        by_bucket: bool = False,
    ) -> None:
        super().__init__(strategy)
        self._schema = schema
        self._layout = layout
        self._by_bucket = by_bucket

    def plan(self, snapshot: Snapshot, *, planned: frozenset[FileGroupId]) -> Draft:
        if self._by_bucket or look_like_buckets(snapshot.latest):
            raise _no_buckets(snapshot.config.name)
        if self._schema is not None:
            refuse_bad_order(self._layout.order, self._schema)
        return self.strategy.plan(snapshot.latest, planned=planned)

    @property
    def plan_strategy(self) -> Strategy:
        return Strategy(self._layout.class_name, {**self.strategy.params, **self._layout.to_params()})

    def rewrite(self, attempt: Attempt, plan: Plan) -> Rewritten:
        context = attempt.context
        slices = [file_slice for work in plan.work for file_slice in work.slices]
        if context.settings.index is IndexKind.BUCKET:
            raise _no_buckets(attempt.config.name)
        refuse_wrong_index(context, slices)
        layout = self._planned_layout(plan, instant=context.instant)
        refuse_bad_order(layout.order, context.schema)
        tasks = [
            ClusterTask(
                context=context,
                slices=work.slices,
                outputs=work.outputs,
                number=number,
                layout=layout,
                preserves_metadata=plan.preserves_metadata,
            )
            for number, work in enumerate(plan.work)
        ]
        try:
            written = attempt.engine.run(
                cluster_group, tasks, label="cluster", weights=[float(work.size) for work in plan.work]
            )
        finally:
            # Tasks that died may have left sorted runs.
            context.store.storage.delete_tree(context.staging)
        return Rewritten(tuple(file for files in written for file in files), replaced=file_ids_by_partition(slices))

    def _planned_layout(self, plan: Plan, *, instant: str) -> OutputLayout:
        strategy = plan.strategy or Strategy()
        return self._layout.as_planned(
            class_name=strategy.class_name, params=strategy.params, file=f"clustering plan {instant}"
        )


def _no_buckets(table: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"table {table} has a bucket index, and clustering would move rows out of the buckets that they are looked up "
        "in. Compaction, and a number of buckets that fits the table, do for it what clustering does for others."
    )
