"""`Maintenance`: the table services of an open table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from tablekeeper.config.archive_settings import ArchiveSettings
from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.errors import (
    ConflictError,
    FencedError,
    InvalidRequestError,
    PlanCancelledError,
    PlanHeldError,
    TablekeeperError,
)
from tablekeeper.metadata_table.compaction import compact_metadata_table, explain_metadata_compaction
from tablekeeper.metadata_table.result import MetadataCompaction
from tablekeeper.model import PlanFlags, RequestedTime, ServiceKind
from tablekeeper.services.archive import ArchiveResult, execute_archive, explain_archive
from tablekeeper.services.clean import CleanExplanation, CleanResult, execute_clean, explain_clean, is_clean_due
from tablekeeper.services.plans.cancel import CancelResult, cancel_plan, remove_failed_plans
from tablekeeper.services.plans.execute import execute_plan
from tablekeeper.services.plans.explain import Explanation, explain_plan
from tablekeeper.services.plans.listing import PlanListing, load_plan_listing
from tablekeeper.services.plans.schedule import ScheduledPlan, schedule_plan
from tablekeeper.services.plans.service import ServiceResult
from tablekeeper.table.arguments import checked_flags, checked_names, checked_text, parse_duration_s, parse_size_bytes
from tablekeeper.table.automatic_services import (
    InlineService,
    ServiceLoop,
    find_due,
    service_names,
)
from tablekeeper.table.handle import TableHandle, parse_instant, refuse_speculation
from tablekeeper.table.service_objects import ClusteringRequest, ServiceFactory
from tablekeeper.table.summary import TimelineSummary, services_of, summarize_timeline
from tablekeeper.timeline import Timeline, load_instant_files, load_timeline
from tablekeeper.timeline.plans import find_plan
from tablekeeper.txn.environment import TableEnvironment, load_environment
from tablekeeper.write.prepare import load_begin, prepare_write, refuse_lost_indexes

__all__ = ["Maintenance"]

_LOG = logging.getLogger(__name__)


class Maintenance(TableHandle):
    """Table services: plan, execute, explain, cancel, clean and archive; on request, after writes or in the background.

    `schedule_…` puts a plan on the timeline, and `execute` executes it, in this or any other process, also in Java;
    `compact`, `log_compact` and `cluster` do both. A `cancellable` plan yields to ingestion and may be cancelled; a
    `mutable` one is removed when a failed attempt is rolled back. Other plans stay until they are executed.
    """

    def schedule_compaction(
        self,
        *,
        partitions: str | None = None,
        cancellable: bool = False,
        mutable: bool = False,
        cancel_after: str | float | None = None,
        options: Mapping[str, object] | None = None,
    ) -> ScheduledPlan | None:
        """Plan to merge logs into base files; None if there is nothing to do.

        `partitions` is a condition on partition columns (`"city = 'sf'"`); `options` override those of the table.
        """
        flags = _flags(cancellable, mutable, cancel_after)
        return self._schedule(ServiceKind.COMPACTION, flags, partitions, options)

    def schedule_log_compaction(
        self,
        *,
        partitions: str | None = None,
        cancellable: bool = False,
        mutable: bool = False,
        cancel_after: str | float | None = None,
        options: Mapping[str, object] | None = None,
    ) -> ScheduledPlan | None:
        """Plan to merge many small logs into one, leaving the base files alone; None if there is nothing to do."""
        flags = _flags(cancellable, mutable, cancel_after)
        return self._schedule(ServiceKind.LOG_COMPACTION, flags, partitions, options)

    def schedule_clustering(
        self,
        *,
        order_by: str | Sequence[str] | None = None,
        strategy: str | None = None,
        partitions: str | None = None,
        target_file_size: str | int | None = None,
        cancellable: bool = False,
        mutable: bool = False,
        cancel_after: str | float | None = None,
        options: Mapping[str, object] | None = None,
    ) -> ScheduledPlan | None:
        """Plan to rewrite small files into larger ones, ordered by `order_by`; None if there is nothing to do.

        `strategy` says how several columns are combined: "sort" (one after the other), "zorder" or "hilbert".
        """
        request = _clustering(order_by, strategy, target_file_size)
        flags = _flags(cancellable, mutable, cancel_after)
        return self._schedule(ServiceKind.CLUSTERING, flags, partitions, options, request)

    @overload
    def execute(self, plan: None, *, options: Mapping[str, object] | None = None) -> None: ...

    @overload
    def execute(self, plan: object, *, options: Mapping[str, object] | None = None) -> ServiceResult: ...

    def execute(self, plan: object, *, options: Mapping[str, object] | None = None) -> ServiceResult | None:
        """Execute a plan, ours or Java's. `plan` is its instant, or what `schedule_…` returned.

        For None, which `schedule_…` returns if there is nothing to do, it does nothing and returns None.
        `PlanHeldError` if another process is executing the plan. A cancellable plan that has to yield to a writer
        raises `ConflictError` and is removed. `options` override those of the table.
        """
        if plan is None:
            return None
        instant = parse_instant(plan)
        factory = self._factory(None, options)
        _, kind = find_plan(factory.timeline, instant)
        return self._execute(factory, kind, instant, factory.names)

    def _execute(
        self, factory: ServiceFactory, kind: ServiceKind, instant: RequestedTime, names: Sequence[str] | None = None
    ) -> ServiceResult:
        engine, operation = self._engine, kind.operation
        request = prepare_write(
            factory.environment, engine, factory.options, operation, incoming=None, extra={}, names=names
        )
        settings = LifecycleSettings.from_options(factory.options.given)
        return execute_plan(request, factory.make(kind), instant, settings)

    def compact(
        self,
        *,
        partitions: str | None = None,
        cancellable: bool = False,
        mutable: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> ServiceResult | None:
        """Merge logs into base files. Pending compactions are executed first."""
        flags = _flags(cancellable, mutable, None)
        return self._run(ServiceKind.COMPACTION, flags, partitions, options)

    def log_compact(
        self,
        *,
        partitions: str | None = None,
        cancellable: bool = False,
        mutable: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> ServiceResult | None:
        """Merge many small logs into one. Pending log compactions are executed first."""
        flags = _flags(cancellable, mutable, None)
        return self._run(ServiceKind.LOG_COMPACTION, flags, partitions, options)

    def cluster(
        self,
        *,
        order_by: str | Sequence[str] | None = None,
        strategy: str | None = None,
        partitions: str | None = None,
        target_file_size: str | int | None = None,
        cancellable: bool = False,
        mutable: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> ServiceResult | None:
        """Rewrite small files into larger ones, ordered. Pending clusterings are executed first."""
        request = _clustering(order_by, strategy, target_file_size)
        flags = _flags(cancellable, mutable, None)
        return self._run(ServiceKind.CLUSTERING, flags, partitions, options, request)

    def clean(
        self,
        *,
        keep_commits: int | None = None,
        keep_hours: int | None = None,
        keep_file_versions: int | None = None,
        options: Mapping[str, object] | None = None,
    ) -> CleanResult | None:
        """Delete files that no reader within the retention window needs; None if there are none.

        Dead writes and plans are cleaned up first. Without arguments the options decide; the default is 10 commits. If
        it is due, the metadata table is compacted and its old files are deleted.
        """
        environment = self._load_environment()
        settings = self._clean_settings(keep_commits, keep_hours, keep_file_versions, options)
        removed = remove_failed_plans(environment, LifecycleSettings.from_options(self._merged(options).given))
        result = execute_clean(environment, settings, engine=self._engine)
        notes = self._compact_metadata_table(environment, options)
        if result is None:
            return None
        return replace(result, rolled_back=(*result.rolled_back, *removed), notes=(*result.notes, *notes))

    def archive(self, *, options: Mapping[str, object] | None = None) -> ArchiveResult:
        """Move old instants from the active timeline into the archived one.

        If it is due, the metadata table is compacted first: what it has not compacted cannot be archived.
        """
        settings = ArchiveSettings.from_options(self._merged(options).given)
        environment = self._load_environment()
        notes = self._compact_metadata_table(environment, options)
        result = execute_archive(environment, settings)
        return replace(result, notes=(*result.notes, *notes))

    def cancel(self, plan: object, *, reason: str = "asked for", wait: str | float = "10s") -> CancelResult:
        """Cancel a plan. The request is durable: a running executor notices it within seconds.

        Waits up to `wait` for that. If the executor has already committed, the result says so. A plan that is neither
        cancellable nor mutable can be cancelled only if it cannot succeed because its files are damaged.
        """
        checked_text("reason", reason)
        return cancel_plan(
            self._load_environment(),
            parse_instant(plan),
            reason=reason,
            wait_s=parse_duration_s(wait),
        )

    def plans(self) -> PlanListing:
        """Pending plans of compaction, log compaction and clustering, with who holds them."""
        return load_plan_listing(self._load_environment())

    def timeline_summary(self) -> TimelineSummary:
        """What is pending and what is due, from the names on the timeline alone: cheap for tables of any size."""
        config = self.config
        return summarize_timeline(load_instant_files(self._storage, config), config)

    def services_on_timeline(self) -> Mapping[str, tuple[str | None, bool]]:
        """By instant: the table service that it is (None: another action), and whether it is completed. As cheap."""
        config = self.config
        return services_of(load_timeline(self._storage, config), config)

    def explain_compaction(
        self, *, partitions: str | None = None, options: Mapping[str, object] | None = None
    ) -> Explanation:
        """What a compaction would do now, what it would leave out, and why. Changes nothing."""
        return self._explain(ServiceKind.COMPACTION, partitions, options)

    def explain_log_compaction(
        self, *, partitions: str | None = None, options: Mapping[str, object] | None = None
    ) -> Explanation:
        """The same for a log compaction."""
        return self._explain(ServiceKind.LOG_COMPACTION, partitions, options)

    def explain_clustering(
        self,
        *,
        order_by: str | Sequence[str] | None = None,
        strategy: str | None = None,
        partitions: str | None = None,
        target_file_size: str | int | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Explanation:
        """The same for a clustering."""
        request = _clustering(order_by, strategy, target_file_size)
        return self._explain(ServiceKind.CLUSTERING, partitions, options, request)

    def explain_clean(
        self,
        *,
        keep_commits: int | None = None,
        keep_hours: int | None = None,
        keep_file_versions: int | None = None,
        options: Mapping[str, object] | None = None,
    ) -> CleanExplanation:
        """What a clean would delete now, what it would keep, and why. Changes nothing."""
        settings = self._clean_settings(keep_commits, keep_hours, keep_file_versions, options)
        return explain_clean(self._load_environment(), settings)

    def explain_archive(self, *, options: Mapping[str, object] | None = None) -> ArchiveResult:
        """What an archive would move now, and what holds it back. Changes nothing.

        If the metadata table would be compacted first, more instants may be moved than reported; a note says so.
        """
        given = self._merged(options).given
        environment = self._load_environment()
        result = explain_archive(environment, ArchiveSettings.from_options(given))
        if not environment.config.has_metadata_table:
            return result
        note = explain_metadata_compaction(environment, MetadataSettings.from_options(given))
        return replace(result, notes=(*result.notes, note))

    def services(self, names: Sequence[str], *, every: str | float = "30s") -> ServiceLoop:
        """Run services in the background while the `with` block runs, whenever their triggers say that they are due.

        `names` can be "compaction", "log_compaction", "clustering", "clean" and "archive".
        """
        return ServiceLoop(
            self._run_if_due,
            service_names(names),
            every_s=parse_duration_s(every),
            runtime=self._runtime,
            remove_failed_plans=self._remove_failed_plans,
        )

    def _run_if_due(self, name: str) -> list[Any]:
        """Run one of the `services` if its triggers say that it is due, and plans that wait. Returns what was done.

        One that the options leave to the Table Management Service runs here only if that does not take it over.
        """
        (checked,) = service_names([name])
        hosting = self._hosting
        if checked in hosting.services and hosting.hand_over([checked]).services:
            return []
        return self._run_due(checked, is_async=True)

    def _run_inline(self, service: InlineService) -> list[Any]:
        """The same after a write, or only the plan, for others to execute."""
        if not service.only_plans:
            return self._run_due(service.name, is_async=False)
        kind = ServiceKind.named(service.name)
        if any(plan.action is kind.action for plan in self._load_timeline().pending_plans):
            return []
        scheduled = self._schedule_due(kind, is_async=False)
        return [] if scheduled is None else [scheduled]

    def _run_due(self, name: str, *, is_async: bool) -> list[Any]:
        if name == "archive":
            archived = self.archive()
            return [archived] if archived.instants else []
        if name == "clean":
            due = is_clean_due(self._load_environment(), CleanSettings.from_options(self._options.given))
            cleaned = self.clean() if due else None
            return [] if cleaned is None else [cleaned]
        kind = ServiceKind.named(name)
        self._schedule_due(kind, is_async=is_async, executes=True)
        return list(self._execute_waiting(kind))

    def _schedule_due(self, kind: ServiceKind, *, is_async: bool, executes: bool = False) -> ScheduledPlan | None:
        decision = find_due(self._load_environment(), self._options, kind, is_async=is_async)
        if not decision:
            return None
        _LOG.info("%s is due: %s", kind.value, decision.why)
        return self._schedule(kind, PlanFlags(), None, None, executes=executes)

    def _execute_waiting(
        self, kind: ServiceKind, options: Mapping[str, object] | None = None, timeline: Timeline | None = None
    ) -> list[ServiceResult]:
        """Execute the plans of this kind that wait on the timeline and that nobody holds."""
        done = []
        for instant in (timeline or self._load_timeline()).pending_plans:
            if instant.action is not kind.action:
                continue
            try:
                done.append(self.execute(instant, options=options))
            except (PlanHeldError, PlanCancelledError, FencedError, ConflictError) as error:
                _LOG.info("%s was not executed: %s", instant, error)
            except InvalidRequestError as error:
                # It was cancelled or removed since the timeline was loaded.
                if self._load_timeline().find(instant.requested_at) is not None:
                    raise
                _LOG.info("%s was not executed: %s", instant, error)
        return done

    def _remove_failed_plans(self) -> tuple[RequestedTime, ...]:
        return remove_failed_plans(self._load_environment(), LifecycleSettings.from_options(self._options.given))

    def compact_metadata_table(self, *, takes_over: bool = False, executes_plans: bool = False) -> MetadataCompaction:
        """Compact the metadata table, if anything was committed since the last time, and delete its old files.

        Cleans and archives do that too, now and then. `takes_over` drops plans that a Java writer made for it and
        left to a service, and is for tables that no Java writer is writing: it may be reading such a plan, and its
        write would fail. Without it they stay, and nothing is compacted while they do. `executes_plans` executes such a
        plan where one waits, the oldest first, which disturbs no writer, and does nothing else then.
        """
        checked_flags(takes_over=takes_over, executes_plans=executes_plans)
        settings = replace(MetadataSettings.from_options(self._options.given), compact_after=1)
        return compact_metadata_table(
            self._load_environment(), settings, takes_over=takes_over, executes_plans=executes_plans
        )

    def _compact_metadata_table(
        self, environment: TableEnvironment, options: Mapping[str, object] | None
    ) -> tuple[str, ...]:
        """Compact the metadata table if that is due, and say so.

        A failure here is a note: the service itself is not at fault. Nothing is hidden by that. What was begun
        is taken up by the next compaction, and the doctor sees what is left.
        """
        settings = MetadataSettings.from_options(self._merged(options).given)
        try:
            done = compact_metadata_table(environment, settings)
        except TablekeeperError as error:
            _LOG.warning("the compaction of the metadata table failed: %s", error)
            return (f"the compaction of the metadata table failed and will be tried again: {error}",)
        return (str(done),) if done.instant is not None or done.is_held_up else ()

    def _schedule(
        self,
        kind: ServiceKind,
        flags: PlanFlags,
        partitions: str | None,
        options: Mapping[str, object] | None,
        clustering: ClusteringRequest | None = None,
        *,
        executes: bool = False,
        factory: ServiceFactory | None = None,
    ) -> ScheduledPlan | None:
        factory = factory or self._factory(partitions, options)
        if executes:
            # A plan that only others may execute would block them.
            refuse_lost_indexes(factory.environment, factory.options, kind.operation)
        service = factory.make(kind, clustering)
        return schedule_plan(
            factory.environment, service, flags=flags, incremental=factory.is_incremental, timeline=factory.timeline
        )

    def _run(
        self,
        kind: ServiceKind,
        flags: PlanFlags,
        partitions: str | None,
        options: Mapping[str, object] | None,
        clustering: ClusteringRequest | None = None,
    ) -> ServiceResult | None:
        factory = self._factory(partitions, options)
        waiting = self._execute_waiting(kind, options, factory.timeline)
        if waiting:
            factory = self._factory(partitions, options)
        scheduled = self._schedule(kind, flags, partitions, options, clustering, executes=True, factory=factory)
        if scheduled is None:
            return waiting[-1] if waiting else None
        result = self._execute(factory, kind, scheduled.instant)
        notes = tuple(f"plan {each.instant} was waiting and was executed first" for each in waiting)
        return replace(result, notes=(*result.notes, *notes))

    def _explain(
        self,
        kind: ServiceKind,
        partitions: str | None,
        options: Mapping[str, object] | None,
        clustering: ClusteringRequest | None = None,
    ) -> Explanation:
        factory = self._factory(partitions, options)
        service = factory.make(kind, clustering)
        return explain_plan(factory.environment, service, flags=PlanFlags(), incremental=factory.is_incremental)

    def _factory(self, partitions: str | None, options: Mapping[str, object] | None) -> ServiceFactory:
        if partitions is not None:
            checked_text("partitions", partitions)
        merged = self._merged(options)
        refuse_speculation(merged, speculates=self._engine.speculates)
        look = self._look()
        environment = load_environment(self._storage, merged, runtime=self._runtime, config=look.config)
        timeline, schema, _ = load_begin(environment, names=look.names)
        return ServiceFactory(environment, merged, schema, timeline, look.names, partitions)

    def _clean_settings(
        self,
        keep_commits: int | None,
        keep_hours: int | None,
        keep_file_versions: int | None,
        options: Mapping[str, object] | None,
    ) -> CleanSettings:
        settings = CleanSettings.from_options(self._merged(options).given)
        given = [each for each in (keep_commits, keep_hours, keep_file_versions) if each is not None]
        if len(given) > 1:
            raise InvalidRequestError("give one of keep_commits, keep_hours and keep_file_versions, not several")
        if any(isinstance(each, bool) or not isinstance(each, int) for each in given):
            raise InvalidRequestError(
                f"{given[0]!r}: keep_commits, keep_hours and keep_file_versions take whole numbers"
            )
        if keep_commits is not None:
            return replace(settings, policy=CleanPolicy.COMMITS, commits=keep_commits)
        if keep_hours is not None:
            return replace(settings, policy=CleanPolicy.HOURS, hours=keep_hours)
        if keep_file_versions is not None:
            return replace(settings, policy=CleanPolicy.VERSIONS, versions=keep_file_versions)
        return settings


def _flags(cancellable: bool, mutable: bool, cancel_after: str | float | None) -> PlanFlags:
    checked_flags(cancellable=cancellable, mutable=mutable)
    after_s = None if cancel_after is None else int(parse_duration_s(cancel_after))
    if after_s is not None and not cancellable:
        raise InvalidRequestError("cancel_after is for plans that may be cancelled: pass cancellable=True too")
    return PlanFlags(mutable=mutable, cancellable=cancellable, cancel_after_s=after_s)


def _clustering(
    order_by: str | Sequence[str] | None, strategy: str | None, target_file_size: str | int | None
) -> ClusteringRequest:
    named = [order_by] if isinstance(order_by, str) else order_by
    columns = None if named is None else tuple(checked_names("order_by", named))
    if strategy is not None:
        checked_text("strategy", strategy)
    size = None if target_file_size is None else parse_size_bytes(target_file_size)
    return ClusteringRequest(columns, strategy, size)
