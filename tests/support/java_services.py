"""Table services of Java Hudi, one phase at a time, through its write client: what the SQL procedures do not offer.

Nothing here imports tablekeeper. Each call makes a client of its own, as a separate job would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.java_hudi import JavaTable

__all__ = ["JavaServices"]

_QUIET = {
    "hoodie.embed.timeline.server": "false",
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.log.compaction.enable": "true",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.compact.inline.max.delta.commits": "1",
}


@dataclass(frozen=True)
class JavaServices:
    """The services of one table. `options` go over those of the table."""

    table: JavaTable
    options: Mapping[str, str] = field(default_factory=dict)

    def schedule(self, service: str) -> str | None:
        """Put a plan of COMPACT, LOG_COMPACT or CLEAN on the timeline; its instant, None if there is nothing to do."""
        with self._client() as client:
            kind = getattr(self._jvm.org.apache.hudi.common.model.TableServiceType, service)
            found = client.scheduleTableService(self._jvm.org.apache.hudi.common.util.Option.empty(), kind)
            return str(found.get()) if found.isPresent() else None

    def compact(self, instant: str) -> None:
        """Execute the compaction of this instant, and no other; the SQL procedure would plan one of its own first."""
        with self._client() as client:
            client.compact(instant, True)

    def compact_logs(self, instant: str) -> None:
        """Execute the log compaction of this instant."""
        with self._client() as client:
            client.logCompact(instant, True)

    def clean(self) -> None:
        """Execute the clean that is pending, or plan one and execute it."""
        with self._client() as client:
            client.clean()

    def archive(self) -> None:
        with self._client() as client:
            client.archive()

    @property
    def _jvm(self) -> Any:
        return self.table.spark._jvm

    @contextmanager
    def _client(self) -> Iterator[Any]:
        settings = self._jvm.java.util.HashMap({**self.table.options, **_QUIET, **self.options})
        name = self.table.options["hoodie.table.name"]
        client = self._jvm.org.apache.hudi.DataSourceUtils.createHoodieClient(
            self.table.spark._jsc, None, self.table.path, name, settings
        )
        try:
            yield client
        finally:
            client.close()
