"""Metrics for Prometheus: what an instance did, and how the lake is.

Counts and durations are of this instance; depths and freshness are read from the database when somebody scrapes, so
that every instance tells the same. The number of series is bounded: tables are named only while they are among those
furthest behind, and paths are route templates, not what clients send.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tablekeeper.server.model import AttemptOutcome, ServiceAction
from tablekeeper.server.store.protocol import JobStore

__all__ = ["CONTENT_TYPE", "ServiceMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TABLES_NAMED = 50
_FAST_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
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

    def attempt_ended(self, action: ServiceAction, outcome: AttemptOutcome, *, seconds: float) -> None:
        """An attempt ended."""
        self._run_time.labels(action.value, outcome.value).observe(max(0.0, seconds))
        self._attempts.labels(action.value, outcome.value).inc()

    def exposed(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)


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
        for each in self._store.queue_depths():
            depth.add_metric((each.queue, each.status.word), each.operations)
        yield depth
        now_ms = self._store.now_ms()
        seen = GaugeMetricFamily(
            "tablekeeper_instance_seen_seconds", "Seconds since an instance was seen.", labels=("instance",)
        )
        for instance in self._store.list_instances():
            seen.add_metric((instance.instance_id,), (now_ms - instance.seen_ms) / 1000)
        yield seen
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
        for table in map(self._store.load_table, self._store.longest_waiting_tables(_TABLES_NAMED)):
            if table.facts.behind_since_ms is not None:
                behind.add_metric((table.name,), max(0.0, (now_ms - table.facts.behind_since_ms) / 1000))
            if table.facts.read_amplification is not None:
                reads.add_metric((table.name,), table.facts.read_amplification)
        yield behind
        yield reads
