"""The service objects of an open table, from its options and the arguments of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tablekeeper.config.clustering_order import Layout
from tablekeeper.config.options import Options
from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings, LogCompactionSettings
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import ServiceKind
from tablekeeper.read.pruning import PartitionPruner
from tablekeeper.record.partition_paths import partition_spec
from tablekeeper.record.predicate import parse_predicate
from tablekeeper.services.clustering.service import Clustering
from tablekeeper.services.clustering.strategies import clustering_strategy
from tablekeeper.services.compaction.service import Compaction
from tablekeeper.services.compaction.strategies import compaction_strategy
from tablekeeper.services.log_compaction.service import LogCompaction
from tablekeeper.services.log_compaction.strategies import LogCompactionStrategy
from tablekeeper.services.plans.service import PlanningStrategy, Service
from tablekeeper.services.plans.strategies import OnlyPartitions
from tablekeeper.timeline import Timeline
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["ClusteringRequest", "ServiceFactory"]


@dataclass(frozen=True, slots=True)
class ClusteringRequest:
    """A caller's arguments for a clustering, which override the options; None leaves it to the options."""

    order_by: tuple[str, ...] | None = None
    strategy: str | None = None
    target_file_bytes: int | None = None

    def applied_to(self, settings: ClusteringSettings) -> ClusteringSettings:
        if self.order_by is not None:
            settings = replace(settings, sort_columns=self.order_by)
        if self.strategy is not None:
            settings = replace(settings, layout_kind=Layout.named(self.strategy))
        if self.target_file_bytes is not None:
            small = min(settings.small_file_bytes, self.target_file_bytes)
            settings = replace(settings, target_file_bytes=self.target_file_bytes, small_file_bytes=small)
        return settings


@dataclass(frozen=True)
class ServiceFactory:
    """Makes services for one table. `partitions` is a SQL condition on the partition columns, None for all.

    `schema` is that of the table on `timeline`, which was made of the `names`.
    """

    environment: TableEnvironment
    options: Options
    schema: pa.Schema
    timeline: Timeline
    names: tuple[str, ...]
    partitions: str | None = None

    @property
    def is_incremental(self) -> bool:
        """Whether plans look only at what was touched since the last one, as far as their strategies can."""
        return CompactionSettings.from_options(self.options.given).incremental

    def make(self, kind: ServiceKind, clustering: ClusteringRequest | None = None) -> Service:
        match kind:
            case ServiceKind.COMPACTION:
                self._refuse_without_logs()
                compaction = CompactionSettings.from_options(self.options.given)
                return Compaction(self._narrowed(compaction_strategy(compaction, now_ms=self._now_ms)))
            case ServiceKind.LOG_COMPACTION:
                self._refuse_without_logs()
                settings = LogCompactionSettings.from_options(self.options.given)
                return LogCompaction(self._narrowed(LogCompactionStrategy(settings)))
            case ServiceKind.CLUSTERING:
                return self._clustering(clustering or ClusteringRequest())

    def _refuse_without_logs(self) -> None:
        if not self.environment.config.is_mor:
            raise InvalidRequestError(
                f"table {self.environment.config.name} is copy-on-write: it has no logs to compact. Cluster it to join "
                "small files or to order rows."
            )

    def _clustering(self, request: ClusteringRequest) -> Service:
        settings = request.applied_to(ClusteringSettings.from_options(self.options.given))
        return Clustering(
            self._narrowed(clustering_strategy(settings, now_ms=self._now_ms)),
            settings.layout,
            schema=self.schema,
            by_bucket=self.environment.by_bucket,
        )

    def _narrowed(self, strategy: PlanningStrategy) -> PlanningStrategy:
        if self.partitions is None:
            return strategy
        spec = partition_spec(self.environment.config)
        predicate = parse_predicate(self.partitions)
        self._refuse_other_columns(predicate.columns(), [field.name for field in spec.fields])
        return OnlyPartitions(strategy, PartitionPruner(predicate, spec, self.schema).may_match)

    def _refuse_other_columns(self, asked: Sequence[str] | frozenset[str], partitions: list[str]) -> None:
        others = sorted(set(asked) - set(partitions))
        if others:
            raise InvalidRequestError(
                f"partitions={self.partitions!r}: {', '.join(others)} is no partition column. A plan is about whole "
                f"partitions; the partition columns are {', '.join(partitions) or 'none'}."
            )

    @property
    def _now_ms(self) -> int:
        return self.environment.runtime.clock.now_ms()
