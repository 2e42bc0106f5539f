"""Metrics for Prometheus: what an instance did, and how the lake is.

Counts and durations are of this instance; depths and freshness are read from the database when somebody scrapes, so
that every instance tells the same. What Hudi's own writers report has the name that it has there. The number of series
is bounded: tables and queues are named only while they are among those furthest behind or longest, and paths are route
templates, not what clients send.
"""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tablekeeper.server.model import AttemptOutcome, ManagedTable, ServiceAction
from tablekeeper.server.store.overview import TableOrder
from tablekeeper.server.store.protocol import JobStore, QueueDepth
from tablekeeper.server.store.wanted import TableFilter

__all__ = ["CONTENT_TYPE", "ServiceMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TABLES_NAMED = 50
_QUEUES_NAMED = 50
_SAMPLE_MINUTES = 3
# Hudi's reporters write `action.metric`, and Prometheus a line where they have a dot.
_PENDING = {
    "compaction": ("compaction_pendingCompactionInstantCount", "Compactions that wait or run, as Hudi counts them."),
    "clustering": ("clustering_pendingClusteringInstantCount", "Clusterings that wait or run, as Hudi counts them."),
    "clean": ("clean_pendingCleanInstantCount", "Cleans that wait or run, as Hudi counts them."),
}
_EARLIEST = {
    "compaction": ("compaction_earliestInflightCompactionInstant", "The first compaction that has not completed."),
    "clustering": ("clustering_earliestInflightClusteringInstant", "The first clustering that has not completed."),
    "clean": ("clean_earliestInflightCleanInstant", "The first clean that has not completed."),
}
_LATEST = {
    "compaction": ("commit_latestCompletedCompactionInstant", "The last compaction that completed."),
    "clustering": ("replacecommit_latestCompletedClusteringInstant", "The last clustering that completed."),
    "clean": ("clean_latestCompletedCleanInstant", "The last clean that completed."),
}
_FAST_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_HUDI_ACTIONS = {
    ServiceAction.COMPACTION: "compaction",
    ServiceAction.LOG_COMPACTION: "logcompaction",
    ServiceAction.CLUSTERING: "clustering",
    ServiceAction.CLEAN: "clean",
    ServiceAction.ARCHIVE: "archive",
}
_SLOW_S = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600)


class ServiceMetrics:
    """The metrics of one instance."""

    def __init__(self, store: JobStore) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tablekeeper_requests_total",
            "Requests by route and HTTP status.",
            ("route", "status"),
            registry=self._registry,
        )
        self._latency = Histogram(
            "tablekeeper_request_seconds",
            "Time to answer a request.",
            ("route",),
            buckets=_FAST_S,
            registry=self._registry,
        )
        self._schedule_delay = Histogram(
            "tablekeeper_schedule_delay_seconds",
            "Time from the moment at which an operation could start until it was claimed.",
            ("action",),
            buckets=_SLOW_S,
            registry=self._registry,
        )
        self._submission = Histogram(
            "tablekeeper_submission_seconds",
            "Time to hand an attempt to its engine.",
            ("engine",),
            buckets=_SLOW_S,
            registry=self._registry,
        )
        self._run_time = Histogram(
            "tablekeeper_run_seconds",
            "Time from the start of an attempt to its end.",
            ("action", "outcome"),
            buckets=_SLOW_S,
            registry=self._registry,
        )
        self._attempts = Counter(
            "tablekeeper_attempts_total",
            "Attempts that ended, by service and outcome.",
            ("action", "outcome"),
            registry=self._registry,
        )
        self._durations = {
            action: Histogram(
                f"{name}_duration",
                "Milliseconds that it took, as Hudi's writers report it.",
                buckets=[1000 * seconds for seconds in _SLOW_S],
                registry=self._registry,
            )
            for action, name in _HUDI_ACTIONS.items()
        }
        self._files_deleted = Counter("clean_numFilesDeleted", "Files that cleans deleted.", registry=self._registry)
        self._instants_archived = Counter(
            "archive_numInstantsArchived", "Instants that were archived.", registry=self._registry
        )
        self._registry.register(_LakeCollector(store))

    def request_answered(self, *, route: str, status: int, seconds: float) -> None:
        """One request."""
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def claimed(self, action: ServiceAction, *, waited_s: float) -> None:
        """An operation was claimed."""
        self._schedule_delay.labels(action.value).observe(max(0.0, waited_s))

    def submitted(self, engine: str, *, seconds: float) -> None:
        """An attempt was handed to its engine."""
        self._submission.labels(engine).observe(seconds)

    def attempt_ended(
        self, action: ServiceAction, outcome: AttemptOutcome, *, seconds: float, result: Mapping[str, object]
    ) -> None:
        """An attempt ended, with what it says of itself."""
        self._run_time.labels(action.value, outcome.value).observe(max(0.0, seconds))
        self._attempts.labels(action.value, outcome.value).inc()
        if outcome is not AttemptOutcome.COMPLETED:
            return
        if action in self._durations:
            self._durations[action].observe(max(0.0, seconds) * 1000)
        if action is ServiceAction.CLEAN:
            self._files_deleted.inc(_count(result.get("files_deleted")))
        if action is ServiceAction.ARCHIVE:
            self._instants_archived.inc(_count(result.get("instants")))

    def exposed(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)


def _named_queues(depths: Sequence[QueueDepth]) -> Mapping[tuple[str, str], int]:
    """Operations by queue and status: the longest queues by their names, all others as one without a name."""
    lengths: Counted[str] = Counted()
    for each in depths:
        lengths[each.queue] += each.operations
    named = {queue for queue, _ in lengths.most_common(_QUEUES_NAMED)}
    counted: Counted[tuple[str, str]] = Counted()
    for each in depths:
        counted[each.queue if each.queue in named else "", each.status.word] += each.operations
    return counted


def _count(value: object) -> int:
    """A result tells a number, or the list of what it counts."""
    return value if isinstance(value, int) else len(value) if isinstance(value, list | tuple) else 0


class _LakeCollector(Collector):
    """Gauges that are read from the database at each scrape."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names are known only with the values, and asking here would need the database at start."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "tablekeeper_queue_operations", "Operations by queue and status.", labels=("queue", "status")
        )
        for (queue, status), operations in _named_queues(self._store.queue_depths()).items():
            depth.add_metric((queue, status), operations)
        yield depth
        now_ms = self._store.now_ms()
        seen = GaugeMetricFamily(
            "tablekeeper_instance_seen_seconds", "Seconds since an instance was seen.", labels=("instance",)
        )
        for instance in self._store.list_instances():
            seen.add_metric((instance.instance_id,), (now_ms - instance.seen_ms) / 1000)
        yield seen
        health = GaugeMetricFamily("tablekeeper_tables", "Registered tables, each counted once.", labels=("state",))
        counts = self._store.table_counts(TableFilter())
        rest = counts.tables - counts.paused - counts.quarantined - counts.behind
        for state, number in (
            ("up_to_date", rest),
            ("behind", counts.behind),
            ("paused", counts.paused),
            ("quarantined", counts.quarantined),
        ):
            health.add_metric((state,), number)
        yield health
        newest = self._store.list_samples(since_minute=now_ms // 60_000 - _SAMPLE_MINUTES)
        late = GaugeMetricFamily("tablekeeper_late_tables", "Tables that miss their freshness target.")
        if newest:
            late.add_metric((), newest[-1].late)
        yield late
        lease = GaugeMetricFamily(
            "tablekeeper_shortest_lease_seconds", "Seconds until the next lease lapses; negative if one has."
        )
        shortest_s = self._store.shortest_lease_s()
        if shortest_s is not None:
            lease.add_metric((), shortest_s)
        yield lease
        yield from self._tables(now_ms)

    def _tables(self, now_ms: int) -> Iterator[Metric]:
        behind = GaugeMetricFamily(
            "tablekeeper_table_behind_seconds", "How long a table has had work that is not done.", labels=("table",)
        )
        reads = GaugeMetricFamily(
            "tablekeeper_table_read_amplification", "Files that a reader opens for each base file.", labels=("table",)
        )
        hudi = {
            name: GaugeMetricFamily(name, told, labels=("table",))
            for name, told in (*_PENDING.values(), *_EARLIEST.values(), *_LATEST.values())
        }
        for table in self._named_tables():
            facts = table.facts
            if facts.behind_since_ms is not None:
                behind.add_metric((table.name,), max(0.0, (now_ms - facts.behind_since_ms) / 1000))
            if facts.read_amplification is not None:
                reads.add_metric((table.name,), facts.read_amplification)
            for service, (name, _) in _PENDING.items():
                hudi[name].add_metric((table.name,), facts.pending.get(service, 0))
            for given, names in ((facts.earliest_pending, _EARLIEST), (facts.latest_completed, _LATEST)):
                for service, (name, _) in names.items():
                    # An instant is a number to Hudi's reporters too.
                    if given.get(service, "").isdigit():
                        hudi[name].add_metric((table.name,), int(given[service]))
        yield behind
        yield reads
        yield from hudi.values()

    def _named_tables(self) -> list[ManagedTable]:
        """Those furthest behind and those whose work has waited longest: never more than twice the bound."""
        behind = self._store.rank_tables(
            TableFilter(is_behind=True), TableOrder.BEHIND_FOR, is_descending=True, offset=0, limit=_TABLES_NAMED
        )
        waiting = self._store.load_tables(self._store.longest_waiting_tables(_TABLES_NAMED))
        return list({**waiting, **{each.table_id: each for each in behind}}.values())
