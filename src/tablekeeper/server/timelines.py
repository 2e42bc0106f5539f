"""A look at a table's timeline: which plans there are. One listing of the timeline, never one of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tablekeeper.model import Action, Instant
from tablekeeper.runtime import Runtime
from tablekeeper.server.model import ServiceAction
from tablekeeper.table import Table
from tablekeeper.table.summary import TimelineSummary

__all__ = ["TableTimelines"]

_PENDING = {
    Action.COMPACTION: ServiceAction.COMPACTION,
    Action.LOG_COMPACTION: ServiceAction.LOG_COMPACTION,
    Action.CLUSTERING: ServiceAction.CLUSTERING,
    Action.CLEAN: ServiceAction.CLEAN,
}


class TableTimelines:
    """Opens tables with the storage options of the service."""

    def __init__(self, storage_options: Mapping[str, str], runtime: Runtime) -> None:
        self._storage_options = storage_options
        self._runtime = runtime

    def open(self, base_path: str) -> Table:
        """The table at this path with an engine of this process. Opening reads its properties."""
        return self._open(base_path)

    def summary(self, base_path: str) -> TimelineSummary:
        """What waits and what is due."""
        return self._open(base_path).timeline_summary()

    def plans(self, base_path: str) -> Mapping[str, tuple[ServiceAction | None, bool]]:
        """The service (None: something else) and whether it is completed, of each instant of the active timeline."""
        table = self._open(base_path)
        is_mor = table.config.is_mor
        return {
            instant.requested_at.value: (_service_of(instant, is_mor=is_mor), instant.is_completed)
            for instant in table.timeline()
            if instant.action is not Action.SAVEPOINT
        }

    def instants(self, base_path: str) -> Sequence[Instant]:
        """The instants of the active timeline by requested time."""
        return self._open(base_path).timeline().instants

    def _open(self, base_path: str) -> Table:
        return Table.open(base_path, engine="local", storage_options=self._storage_options, runtime=self._runtime)


def _service_of(instant: Instant, *, is_mor: bool) -> ServiceAction | None:
    """A completed compaction is a commit, which merge-on-read tables have no others of; a clustering a replace."""
    if instant.is_completed and instant.action is Action.COMMIT and is_mor:
        return ServiceAction.COMPACTION
    if instant.is_completed and instant.action is Action.REPLACE_COMMIT:
        return ServiceAction.CLUSTERING
    return _PENDING.get(instant.action)
