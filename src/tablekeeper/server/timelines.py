"""A look at a table's timeline: which plans there are. One listing of the timeline, never one of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from tablekeeper.model import Instant
from tablekeeper.runtime import Runtime
from tablekeeper.server.model import ServiceAction
from tablekeeper.table import Table
from tablekeeper.table.summary import TimelineSummary

__all__ = ["TableTimelines"]

_OPEN_TABLES = 50_000


class TableTimelines:
    """Opens tables with the storage options of the service, and keeps them open.

    An open table holds no state of the table. Opening it costs two reads more than a look, which is most of one.
    """

    def __init__(self, storage_options: Mapping[str, str], runtime: Runtime) -> None:
        @lru_cache(maxsize=_OPEN_TABLES)
        def opened(base_path: str) -> Table:
            return Table.open(base_path, engine="local", storage_options=storage_options, runtime=runtime)

        self._opened = opened

    def open(self, base_path: str) -> Table:
        """The table at this path with an engine of this process."""
        return self._opened(base_path)

    def summary(self, base_path: str) -> TimelineSummary:
        """What waits and what is due."""
        return self._opened(base_path).timeline_summary()

    def plans(self, base_path: str) -> Mapping[str, tuple[ServiceAction | None, bool]]:
        """The service (None: something else) and whether it is completed, of each instant of the active timeline."""
        services = self._opened(base_path).services_on_timeline()
        return {
            instant: (None if service is None else ServiceAction(service), is_completed)
            for instant, (service, is_completed) in services.items()
        }

    def instants(self, base_path: str) -> Sequence[Instant]:
        """The instants of the active timeline by requested time."""
        return self._opened(base_path).timeline().instants
