"""After a write: services that the Table Management Service hosts are handed over, the others run here.

A hosted service that the options would run inline is only planned here; the table's heartbeats see to it that one
process executes the plan, whoever that is. If the service takes it over, that is all. If it does not answer in time, or
refuses, the services run as if nobody hosted them: inline where the options ask for it, else when whoever runs them in
the background comes by. The result of the write says which it was. The write has landed by then, and nothing that
happens here makes it fail.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tablekeeper.client import Handover, HandoverTable, ServiceClient, hand_over
from tablekeeper.config.hosting_settings import HostingSettings
from tablekeeper.config.keys import SERVICES_ENABLED
from tablekeeper.config.options import Options
from tablekeeper.errors import TablekeeperError
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.table.service_loop import InlineService, run_inline
from tablekeeper.table.summary import summarize_timeline
from tablekeeper.timeline import load_instant_files
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.write.results import WriteResult

__all__ = ["Hosting", "run_after_write"]

_LOG = logging.getLogger(__name__)
_PLANNED = ("compaction", "log_compaction", "clustering")


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
        """Tell the service of these and of their plans that wait. Does not raise."""
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
    """The services after a write, of which `hosted` are for the service. What came of it is in the result."""
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
        notes.append(f"{', '.join(waiting)} waits for the next write, or for whoever runs services in the background")
    return run_inline(replace(result, notes=(*result.notes, *notes)), back, run_due)
