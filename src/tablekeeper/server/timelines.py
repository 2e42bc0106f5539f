"""A look at a table's timeline: which plans there are. One listing of the timeline, never one of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from tablekeeper.metadata_table.layout import load_metadata_timeline
from tablekeeper.model import Action, Instant, RequestedTime
from tablekeeper.runtime import Runtime
from tablekeeper.server.model import ServiceAction
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.storage import open_storage
from tablekeeper.storage.protocol import Storage
from tablekeeper.storage.shared_options import options_for
from tablekeeper.table import Table
from tablekeeper.table.summary import TimelineSummary
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.properties_file import load_table_config

__all__ = ["TableTimelines"]

_OPEN_TABLES = 50_000


class TableTimelines:
    """Opens tables with the storage options of the service, and keeps them open as long as they are allowed.

    An open table holds no state of the table. Opening it costs two reads, which a look at an open table saves.
    """

    def __init__(self, storage_options: Mapping[str, str], runtime: Runtime, places: AllowedPlaces) -> None:
        @lru_cache(maxsize=_OPEN_TABLES)
        def opened(base_path: str) -> Table:
            return Table.open(
                base_path, engine="local", storage_options=options_for(base_path, storage_options), runtime=runtime
            )

        self._cached = opened
        self._places = places
        self._storage_options = storage_options
        self._runtime = runtime

    def open(self, base_path: str) -> Table:
        """The table at this path with an engine of this process."""
        return self._opened(base_path)

    def summary(self, base_path: str) -> TimelineSummary:
        """What is pending and what is due."""
        return self._opened(base_path).timeline_summary()

    def plans(self, base_path: str) -> Mapping[str, tuple[ServiceAction | None, bool]]:
        """The service (None: something else) and whether it is completed, of each instant of the active timeline."""
        services = self._opened(base_path).services_on_timeline()
        return {
            instant: (None if service is None else ServiceAction(service), is_completed)
            for instant, (service, is_completed) in services.items()
        }

    def metadata_compactions(self, base_path: str) -> frozenset[str]:
        """Compactions that are planned on the timeline of the metadata table of this table."""
        storage = self._storage(base_path)
        pending = load_metadata_timeline(storage, load_table_config(storage)).pending
        return frozenset(each.requested_at.value for each in pending if each.action is Action.COMPACTION)

    def was_archived(self, base_path: str, instant: str) -> bool:
        """Whether the archive of the table has the action of this time, as completed."""
        storage, at = self._storage(base_path), RequestedTime(instant)
        return bool(load_history(storage, load_table_config(storage), first=at, last=at, with_contents=False))

    def instants(self, base_path: str) -> Sequence[Instant]:
        """The instants of the active timeline by requested time."""
        return self._opened(base_path).timeline().instants

    def _storage(self, base_path: str) -> Storage:
        self._places.recheck(base_path)
        return open_storage(base_path, options=options_for(base_path, self._storage_options), runtime=self._runtime)

    def _opened(self, base_path: str) -> Table:
        # It may have been replaced by a link since it was registered.
        self._places.recheck(base_path)
        return self._cached(base_path)
