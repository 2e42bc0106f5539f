"""Clustering step by step, below the door of `Table`: schedule a plan, execute one, by whichever engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.config.options import Options
from tablekeeper.config.service_settings import ClusteringSettings
from tablekeeper.engine.protocol import Engine
from tablekeeper.model import Operation, RequestedTime
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.services.clustering import Clustering
from tablekeeper.services.clustering_strategies import clustering_strategy
from tablekeeper.services.lifecycle import execute_plan
from tablekeeper.services.plans import PlanFlags, ServiceResult
from tablekeeper.services.scheduling import ScheduledPlan, schedule_plan
from tablekeeper.snapshot.schema import load_table_schema
from tablekeeper.storage import Storage
from tablekeeper.timeline import load_timeline
from tablekeeper.txn.properties_file import load_table_config
from tablekeeper.write.prepare import load_environment, prepare_write

__all__ = ["ClusteringRun"]

_SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"
_LAYOUT = "hoodie.layout.optimize.strategy"
_PLAIN = PlanFlags()


@dataclass(frozen=True)
class ClusteringRun:
    """A table to cluster. `options` are those of the writer and of the service."""

    storage: Storage
    engine: Engine
    options: Mapping[str, str]
    runtime: Runtime = SYSTEM_RUNTIME

    def schedule(self, *, order_by: str, layout: str = "LINEAR", flags: PlanFlags = _PLAIN) -> ScheduledPlan | None:
        """Put a plan over all partitions on the timeline; None if there is nothing to do."""
        options = Options({**self.options, _SORT_COLUMNS: order_by, _LAYOUT: layout})
        environment = load_environment(self.storage, options, runtime=self.runtime)
        return schedule_plan(environment, self._service(options), flags=flags, incremental=False)

    def execute(self, instant: RequestedTime) -> ServiceResult:
        """Carry a plan out, whoever made it."""
        options = Options(self.options)
        environment = load_environment(self.storage, options, runtime=self.runtime)
        request = prepare_write(environment, self.engine, options, Operation.CLUSTER, incoming=None, extra={})
        return execute_plan(request, self._service(options), instant, LifecycleSettings())

    def cluster(self, *, order_by: str, layout: str = "LINEAR") -> ServiceResult:
        """Schedule and execute."""
        plan = self.schedule(order_by=order_by, layout=layout)
        assert plan is not None
        return self.execute(plan.instant)

    def _service(self, options: Options) -> Clustering:
        settings = ClusteringSettings.from_options(options)
        config = load_table_config(self.storage)
        return Clustering(
            clustering_strategy(settings, now_ms=self.runtime.clock.now_ms()),
            settings.layout,
            spec=self.storage.spec,
            schema=load_table_schema(self.storage, config, load_timeline(self.storage, config)),
        )
