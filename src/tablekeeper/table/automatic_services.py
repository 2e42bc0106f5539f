"""Services that run automatically: after a write, or in the background.

Both ask the same triggers whether a service is due, and both execute pending plans that nobody holds. A failure is
logged and reported, and never makes the write before it fail.

After a write, services that the Table Management Service hosts are handed over, and the others run here. A hosted
service that the options would run inline is only planned here; the table's heartbeats ensure that only one process
executes the plan. If the Table Management Service does not answer in time, or refuses, the services run as if it did
not exist: inline if the options say so, otherwise in the process that runs them in the background. The result of the
write says what happened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from tablekeeper.client import Handover, HandoverTable, ServiceClient, hand_over
from tablekeeper.config.hosting_settings import HostingSettings
from tablekeeper.config.keys import AUTOMATIC_ARCHIVE, AUTOMATIC_CLEAN, SERVICES_ENABLED
from tablekeeper.config.options import Options
from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings, LogCompactionSettings
from tablekeeper.errors import InvalidRequestError, PlanHeldError, TablekeeperError
from tablekeeper.model import ServiceKind
from tablekeeper.runtime import Periodic, Runtime
from tablekeeper.services.plans.triggers import Due, clustering_due, compaction_due, log_compaction_due
from tablekeeper.services.plans.window import load_completed_plans
from tablekeeper.storage import Storage
from tablekeeper.table.arguments import checked_names
from tablekeeper.table.summary import summarize_timeline
from tablekeeper.timeline import load_instant_files
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.results import WriteResult

__all__ = [
    "Hosting",
    "InlineService",
    "ServiceLoop",
    "find_due",
    "inline_services",
    "run_after_write",
    "run_inline",
    "service_names",
]


_LOG = logging.getLogger(__name__)
_PLANNED = tuple(kind.identifier for kind in ServiceKind)
_NAMES = (*_PLANNED, "clean", "archive")


def service_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, checked."""
    given = checked_names("services", names)
    normal = tuple(name.lower().replace("-", "_").replace(" ", "_") for name in given)
    unknown = [name for name in normal if name not in _NAMES]
    if unknown or not normal:
        raise InvalidRequestError(f"unknown services {', '.join(unknown) or '(none given)'}: use {', '.join(_NAMES)}.")
    return normal


def find_due(environment: TableEnvironment, options: Options, kind: ServiceKind, *, is_async: bool) -> Due:
    """Whether a plan of this kind should be scheduled now, and why."""
    timeline = environment.load_timeline()
    completed = load_completed_plans(environment, timeline, kind)
    match kind:
        case ServiceKind.COMPACTION:
            return compaction_due(
                timeline,
                CompactionSettings.from_options(options.given),
                completed=completed,
                now_ms=environment.runtime.clock.now_ms(),
                zone=environment.config.time_zone,
            )
        case ServiceKind.LOG_COMPACTION:
            compactions = load_completed_plans(environment, timeline, ServiceKind.COMPACTION)
            settings = LogCompactionSettings.from_options(options.given)
            return log_compaction_due(timeline, settings, completed=completed, compactions=compactions)
        case ServiceKind.CLUSTERING:
            return clustering_due(
                timeline, ClusteringSettings.from_options(options.given), completed=completed, is_async=is_async
            )


@dataclass(frozen=True, slots=True)
class InlineService:
    """A service to run after a write; `only_plans` leaves it to others to execute the plan."""

    name: str
    only_plans: bool = False


def inline_services(options: Options) -> tuple[InlineService, ...]:
    """Services that the options ask for after every write. Cleaning and archiving are among them only if asked for.

    As in Java, the service is run if both the service and only its plan are asked for, and one option turns all off.
    """
    if not options.flag(SERVICES_ENABLED):
        return ()
    compaction, clustering = (
        CompactionSettings.from_options(options.given),
        ClusteringSettings.from_options(options.given),
    )
    asked = {
        "compaction": (compaction.inline, compaction.schedule_inline),
        "log_compaction": (LogCompactionSettings.from_options(options.given).inline, False),
        "clustering": (clustering.inline, clustering.schedule_inline),
        "clean": (AUTOMATIC_CLEAN in options.given and options.flag(AUTOMATIC_CLEAN), False),
        "archive": (AUTOMATIC_ARCHIVE in options.given and options.flag(AUTOMATIC_ARCHIVE), False),
    }
    return tuple(InlineService(name, only_plans=not run) for name, (run, plan) in asked.items() if run or plan)


def run_inline(
    result: WriteResult, services: Sequence[InlineService], run_due: Callable[[InlineService], list[Any]]
) -> WriteResult:
    """Run services after a write, which has succeeded: a service that fails is a note in its result, not an error."""
    done: list[Any] = []
    notes: list[str] = []
    for service in services:
        try:
            done += run_due(service)
        except PlanHeldError as error:
            _LOG.info("%s after %s: %s", service.name, result.instant, error)
            notes.append(f"{service.name} is left to its executor: {error}")
        except TablekeeperError as error:
            _LOG.warning("%s after %s failed: %s", service.name, result.instant, error)
            notes.append(f"{service.name} after the write failed: {error}")
    return replace(result, services=tuple(done), notes=(*result.notes, *notes)) if services else result


class ServiceLoop:
    """Runs services every `every_s` seconds while its `with` block runs. `results` and `failures` are kept.

    `run_due` runs one service, by name, if it is due. `remove_failed_plans` begins every round: plans that were
    cancelled, or that nobody will execute, must not wait for a clean, which may not be among the services.
    """

    def __init__(
        self,
        run_due: Callable[[str], list[Any]],
        names: tuple[str, ...],
        *,
        every_s: float,
        runtime: Runtime,
        remove_failed_plans: Callable[[], object] = lambda: None,
    ) -> None:
        self._run_due = run_due
        self._names = names
        self._every_s = every_s
        self._runtime = runtime
        self._remove_failed_plans = remove_failed_plans
        self._periodic: Periodic | None = None
        self.results: list[Any] = []
        self.failures: list[TablekeeperError] = []

    def run_once(self) -> None:
        """One round: remove failed plans, then run each service that is due."""
        try:
            self._remove_failed_plans()
        except TablekeeperError as error:
            _LOG.warning("removing failed plans failed and will be tried again: %s", error)
            self.failures.append(error)
        for name in self._names:
            try:
                self.results += self._run_due(name)
            except PlanHeldError as error:
                _LOG.info("%s: %s", name, error)
            except TablekeeperError as error:
                _LOG.warning("%s failed and will be tried again: %s", name, error)
                self.failures.append(error)

    def __enter__(self) -> Self:
        self._periodic = self._runtime.threads.every(self._every_s, self.run_once, name="tablekeeper-services")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for a running round, and raise the error that ended the loop if it is not one of ours."""
        if self._periodic is not None:
            self._periodic.stop()
            if self._periodic.failure is not None and kind is None:
                raise self._periodic.failure


class Hosting:
    """What a table handle leaves to the Table Management Service: `services`, none if there is no service.

    Wrong settings are refused when it is made, before anything is written.
    """

    def __init__(self, storage: Storage, options: Options, runtime: Runtime) -> None:
        self._storage = storage
        self._runtime = runtime
        self._settings = HostingSettings.from_options(options.given)
        self.services = self._settings.services if options.flag(SERVICES_ENABLED) else frozenset()
        self._token = os.environ.get("TABLEKEEPER_TOKEN", "")
        if self.services:
            ServiceClient(self._settings.addresses, token=self._token)

    def hand_over(self, services: Iterable[str]) -> Handover:
        """Notify the service of these and of their pending plans. Does not raise."""
        try:
            config = load_table_config(self._storage)
            pending = summarize_timeline(load_instant_files(self._storage, config), config).pending
        except TablekeeperError as error:
            return Handover(self._settings.addresses, refusal=f"its plans that wait could not be listed: {error}")
        plans = {
            service: [plan.instant for plan in pending if plan.service == service and service in _PLANNED]
            for service in sorted(services)
        }
        table = HandoverTable(self._storage.spec.uri, config.name, config.database)
        handover = hand_over(self._settings, table, plans, token=self._token, runtime=self._runtime)
        if handover.refusal:
            left = ", ".join(sorted(set(plans) - set(handover.services)))
            _LOG.warning("%s of %s: not taken over by the service: %s", left, table.base_path, handover.refusal)
        return handover


def run_after_write(
    result: WriteResult,
    services: Sequence[InlineService],
    hosting: Hosting,
    run_due: Callable[[InlineService], list[Any]],
    *,
    hosted: frozenset[str],
) -> WriteResult:
    """Run the services after a write; those in `hosted` are handed over. The result says what happened."""
    if not hosted:
        return run_inline(result, services, run_due)
    here = [each for each in services if each.name not in hosted]
    planned = [InlineService(each.name, only_plans=True) for each in services if each.name in hosted & {*_PLANNED}]
    result = run_inline(result, [*here, *planned], run_due)
    handover = hosting.hand_over(hosted)
    if handover.services:
        result = replace(result, services=(*result.services, handover))
    left = hosted - {*handover.services}
    if not left:
        return result
    back = [each for each in services if each.name in left and not each.only_plans]
    waiting = sorted(left - {each.name for each in back})
    notes = [f"the Table Management Service did not take {', '.join(sorted(left))} over: {handover.refusal}"]
    if back:
        notes.append(f"{', '.join(each.name for each in back)} ran here instead, as the options ask for")
    if waiting:
        notes.append(
            f"{', '.join(waiting)} waits for the next write, or for a process that runs services in the background"
        )
    return run_inline(replace(result, notes=(*result.notes, *notes)), back, run_due)
